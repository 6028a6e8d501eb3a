"""A language of three tones to train on, and processes to train in that start at once and can be killed."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from lhotse import MonoCut, Recording, SupervisionSegment

from espnet3_rules.manifest import write_manifest
from espnet3_rules.options import lay_over
from espnet3_rules.train import TrainOptions, train
from espnet3_rules.train.run_folder import read_trace

RATE = 4000
HZ = {"a": 300, "b": 600, "c": 1200}
BASE: dict[str, Any] = {
    "features": {"sampling_rate": RATE, "mel_bins": 16},
    "network": {"layers": 1, "width": 16, "heads": 2, "feed_forward": 32, "subsampling_channels": 8},
    "batch": {"duration_s": 4, "num_buckets": 3},
    "max_epochs": 2,
    "checkpoint": {"every_s": None, "every_n_steps": 4},
    "optimizer": {"lr": 0.005},
    "trainer": {"logger": False},
}


def tone(text: str, generator: np.random.Generator) -> np.ndarray:
    parts = []
    for letter in text:
        time_s = np.arange(int(RATE * 0.2)) / RATE
        parts += [0.4 * np.sin(2 * np.pi * HZ[letter] * time_s), np.zeros(int(RATE * generator.uniform(0.05, 0.15)))]
    wave = np.concatenate(parts)
    return wave + 0.001 * generator.standard_normal(len(wave))


def cut(path: Path, utt_id: str, text: str, **custom: Any) -> MonoCut:
    recording = Recording.from_file(path)
    supervision = SupervisionSegment(utt_id, recording.id, 0, recording.duration, 0, text=text)
    return MonoCut(
        utt_id, 0, recording.duration, 0, recording=recording, supervisions=[supervision], custom=custom or None
    )


def make_manifest(folder: Path, name: str, utterances: int, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    cuts = []
    for i in range(utterances):
        text = "".join(generator.choice(list(HZ), size=generator.integers(1, 5)))
        path = folder / f"{name}-{i}.wav"
        soundfile.write(path, tone(text, generator), RATE)
        cuts.append(cut(path, f"{name}-{i}", text))
    write_manifest(folder / f"{name}.jsonl.gz", cuts)
    return folder / f"{name}.jsonl.gz"


def options_of(**changes: Any) -> TrainOptions:
    return TrainOptions.from_dict(lay_over(BASE, changes))


class Work:
    """A folder with manifests, and trainings in it."""

    def __init__(self, folder: Path, data: Path, name: str = "system") -> None:
        self.train, self.valid = data / "train.jsonl.gz", data / "valid.jsonl.gz"
        self.model, self.runs = folder / name / "model", folder / name / "runs"

    def arguments(self, **changes: Any) -> dict[str, Any]:
        return {
            "train": [str(self.train)],
            "valid": [str(self.valid)],
            "model_dir": str(self.model),
            "run_dir": str(self.runs),
            "options": lay_over(BASE, changes),
        }

    def here(self, **changes: Any) -> None:
        """Trains in this process."""
        _train(self.arguments(**changes))

    def process(self, **changes: Any) -> Process:
        """Trains in a process of its own."""
        log = self.model.with_name(f"log-{time.monotonic_ns()}")
        return Process(self.arguments(**changes), log, done_before=self.batches_done())

    @property
    def run(self) -> Path:
        """The folder of the only run."""
        (run,) = (path for path in self.runs.iterdir() if (path / "options.json").exists())
        return run

    def traces(self) -> list[list[dict[str, Any]]]:
        return read_trace(self.run)

    def weights(self) -> bytes:
        return (self.model / "model.safetensors").read_bytes()

    def curve(self, name: str) -> list[tuple[int, str]]:
        rows = [line.split(",") for line in (self.run / "curves.csv").read_text().splitlines()[1:]]
        return [(int(step), value) for step, _, logged, value in rows if logged == name]

    def batches_done(self) -> int:
        """How many batches rank 0 has written down in all attempts."""
        return sum(path.read_bytes().count(b"\n") for path in self.runs.glob("*/trace/*-0.jsonl"))

    def wait_for_batches(self, process: Process, count: int) -> None:
        """Until so many batches are done by this process, or it has ended."""
        while process.alive and self.batches_done() < process.done_before + count:
            time.sleep(0.002)


def _train(arguments: dict[str, Any]) -> None:
    paths = {key: [Path(p) for p in value] for key, value in arguments.items() if key in ("train", "valid")}
    train(
        **paths,
        model_dir=Path(arguments["model_dir"]),
        run_dir=Path(arguments["run_dir"]),
        options=TrainOptions.from_dict(arguments["options"]),
    )


def _child(arguments: dict[str, Any], log: str) -> None:
    from espnet3_rules.errors import RulesError

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        _train(arguments)
    except RulesError as error:
        print(f"ERROR: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)


@functools.cache
def _server() -> Any:
    """Starts processes by forking one that has imported everything and started no thread."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.train.preload"])
    return context


class Process:
    """A training in a process of its own."""

    def __init__(self, arguments: dict[str, Any], log: Path, *, done_before: int = 0) -> None:
        self.done_before = done_before
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        self.log = log
        # not a daemon: those may not have children, which ranks and loader workers are
        self._process = _server().Process(target=_child, args=(json.loads(json.dumps(arguments)), str(log)))
        self._process.start()
        self.pid: int = self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, timeout_s: float = 120) -> int:
        """The exit code, below 0 for a signal."""
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            self._process.kill()
            raise AssertionError(f"still running after {timeout_s} s:\n{self.log.read_text()}")
        return self._process.exitcode

    def finish(self, timeout_s: float = 120) -> str:
        """What it said, once it has ended well."""
        code = self.wait(timeout_s)
        text = self.log.read_text()
        assert code == 0, f"exit code {code}:\n{text}"
        return text


def joined(traces: list[list[dict[str, Any]]]) -> tuple[list[dict[str, Any]], list[int]]:
    """The batches of interrupted attempts as one run, and how many each restart did again.

    Each attempt has to go on somewhere inside what is there, and do the same batches.
    """
    whole: list[dict[str, Any]] = []
    overlaps = []
    for attempt in traces:
        if not attempt:
            continue
        first = next((i for i, line in enumerate(whole) if line == attempt[0]), len(whole))
        overlaps.append(len(whole) - first)
        done_again = whole[first:]
        assert attempt[: len(done_again)] == done_again[: len(attempt)], "a restart did other batches"
        whole = whole[:first] + (attempt if len(attempt) > len(done_again) else done_again)
    return whole, overlaps[1:]
