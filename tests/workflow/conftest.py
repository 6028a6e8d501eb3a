"""A project folder of its own for each test, and the real snakemake run in it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.recognisers import ToneReader, write_tones

ROOT = Path(__file__).parents[2]


def words_of(number: int) -> list[str]:
    """The words of utterance ``number``: some long, most short."""
    chance = random.Random(number)
    return chance.choices(list(ToneReader.NAMES.values()), k=chance.choice([1, 2, 3, 12]))


@dataclasses.dataclass
class Project:
    """A folder with a corpus of tones, a config, and snakemake."""

    folder: Path
    config: dict
    started: list[subprocess.Popen] = dataclasses.field(default_factory=list)

    def write_corpus(self, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            path = self.folder / "audio" / f"t{number}.wav"
            if not path.exists():
                write_tones(path, words_of(number))
        self.write_table({number: " ".join(words_of(number)) for number in range(first + count)})

    def write_table(self, texts: dict[int, str]) -> None:
        lines = ["id\taudio\ttext", *(f"utt/{n}\taudio/t{n}.wav\t{text}" for n, text in texts.items())]
        (self.folder / "test.tsv").write_text("\n".join(lines) + "\n")

    def command(self, *arguments: str) -> list[str]:
        (self.folder / "config.yaml").write_text(yaml.safe_dump(self.config))
        return [
            sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "workflow/Snakefile"),
            "--directory", str(self.folder), "--configfile", str(self.folder / "config.yaml"),
            "--workflow-profile", str(ROOT / "profiles/default"), "--cores", "2", *arguments,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Runs snakemake to its end; what it printed."""
        done = subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            env=self.environment(),
            cwd=self.folder,
            check=False,
        )
        printed = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, printed
        return printed

    def start(self, *arguments: str) -> subprocess.Popen:
        """Starts snakemake in a process group of its own."""
        log = (self.folder / "driver.log").open("ab")
        process = subprocess.Popen(
            self.command(*arguments), stdout=log, stderr=log, env=self.environment(), cwd=self.folder,
            start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def jobs(self, *arguments: str) -> dict[str, int]:
        """How many jobs of each rule a run would have."""
        printed = self.run("--dry-run", "--quiet", "rules", *arguments)
        return {rule: int(n) for rule, n in re.findall(r"^(\w+)\s+(\d+)\s*$", printed, re.MULTILINE) if rule != "total"}

    def experiment(self, decoder: str = "plain") -> Path:
        return self.folder / "exp/tones/decode" / decoder / "tones/test"

    def decoded(self, decoder: str = "plain") -> list[str]:
        """The ids of every utterance that was ever decoded, in any journal, as often as it was."""
        found = []
        for path in sorted(self.experiment(decoder).glob("journal/*/*.jsonl")):
            found += [json.loads(line)["utt_id"] for line in path.read_text().splitlines() if line.endswith("}")]
        return found

    def scores(self, decoder: str = "plain") -> dict:
        return json.loads((self.experiment(decoder) / "scores.json").read_text())


@pytest.fixture
def project(tmp_path):
    """Ten recordings, decoded by a recogniser that is given, in two shards; in a folder whose name is a trial."""
    folder = tmp_path / "it's a 'test'"
    folder.mkdir()
    made = Project(
        folder,
        {
            "corpora": {"tones": {"type": "tsv", "splits": {"test": "test.tsv"}}},
            "systems": {"tones": {"model": {"_target_": "tests.recognisers.ToneReader"}}},
            "decoders": {"plain": {"method": "greedy"}},
            "test_sets": ["tones/test"],
            "decode": {"shards": 2},
        },
    )
    made.write_corpus(10)
    yield made
    for process in made.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def kill_tree(process: subprocess.Popen) -> None:
    """``kill -9`` for the driver and everything it started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(holds, driver: subprocess.Popen, timeout_s: float = 120.0, *, may_end: bool = False) -> None:
    """Waits until ``holds()``; fails when the driver ends before, unless it may."""
    end = time.monotonic() + timeout_s
    while not holds():
        assert may_end or driver.poll() is None, "the driver ended too early"
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)
