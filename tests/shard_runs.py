"""A small test set of real audio files, and what runs on it: shared by the tests of plan, decode and merge."""

import collections
import json
import os
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np

from espnet3_rules.decode import DecodeOptions, decode
from espnet3_rules.manifest import write_manifest
from espnet3_rules.merge import merge
from espnet3_rules.shards import plan

TINY = {"_target_": "tests.tiny_recogniser.WaveText"}


def write_wav(path, samples, loudness, rate=8000):
    path.parent.mkdir(parents=True, exist_ok=True)
    t = np.arange(samples) / rate
    # a pure tone has mel bins without any variance, whose normalised values are rounding errors
    noise = np.random.default_rng(samples).normal(scale=0.05, size=samples)
    swell = np.sin(2 * np.pi * 3 * t) ** 2
    data = (loudness * 32767 * np.clip(swell * np.sin(2 * np.pi * 440 * t) + noise, -1, 1)).astype("<i2")
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(data.tobytes())


def record(utt_id, path, samples, rate=8000, **more):
    seconds = samples / rate
    return {
        "id": utt_id,
        "start": 0.0,
        "duration": seconds,
        "channel": 0,
        "supervisions": [],
        "recording": {
            "id": utt_id,
            "sources": [{"type": "file", "channels": [0], "source": str(path)}],
            "sampling_rate": rate,
            "num_samples": samples,
            "duration": seconds,
        },
        "type": "MonoCut",
        **more,
    }


def run_cli(*arguments):
    """Runs a stage in a process of its own.

    Returns its processor seconds, the least of three (the wall time depends on what else the machine does), and
    which heavy libraries it had loaded.
    """
    script = (
        "import resource, sys; from espnet3_rules.cli import main; code = main(sys.argv[1:]);"
        "used = resource.getrusage(resource.RUSAGE_SELF);"
        "heavy = [m for m in ('torch', 'lhotse', 'numpy', 'pandas') if m in sys.modules];"
        "print(code, used.ru_utime + used.ru_stime, *heavy)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    times = []
    for _ in range(3):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        code, seconds, *heavy = done.stdout.split()
        assert code == "0", done.stderr
        times.append(float(seconds))
    return min(times), heavy


class TestSet:
    """Some wav files with their manifest, and a folder of everything that is made from them."""

    __test__ = False

    def __init__(self, folder, count, seed=0):
        self.folder = folder
        self.manifest = folder / "data" / "test.jsonl.gz"
        self.cuts = []
        random = np.random.default_rng(seed)
        for number in range(count):
            self.add(f"spk{number % 3}/utt{number}", int(random.integers(400, 4000)), 0.1 + 0.6 * random.random())
        self.publish()

    def add(self, utt_id, samples, loudness):
        path = self.folder / "wav" / f"{utt_id.replace('/', '-')}.wav"
        write_wav(path, samples, loudness)
        self.cuts.append(record(utt_id, path, samples))

    def wav(self, utt_id):
        return self.folder / "wav" / f"{utt_id.replace('/', '-')}.wav"

    def publish(self):
        write_manifest(self.manifest, self.cuts)

    def exp(self, name="exp"):
        return Experiment(self, self.folder / name)


class Experiment:
    """One system on the test set."""

    def __init__(self, test_set, folder):
        self.test_set, self.folder = test_set, folder
        self.journal = folder / "journal"

    def plan(self, shards):
        plan(manifest=self.test_set.manifest, out=self.folder / "plan", shards=shards)

    def decode(self, shard, shards, model=TINY, **options):
        decode(
            manifest=self.test_set.manifest,
            plan=self.folder / "plan",
            shard=shard,
            shards=shards,
            model=model,
            journal=self.journal,
            out=self.shard(shard, shards),
            options=DecodeOptions.from_dict({"device": "cpu", **options}),
        )

    def shard(self, shard, shards):
        return self.folder / "shards" / f"{shard}-of-{shards}.jsonl"

    def merge(self, shards):
        files = [self.shard(i, shards) for i in range(1, shards + 1)]
        merge(manifest=self.test_set.manifest, plan=self.folder / "plan", shards=files, out=self.folder)

    def run(self, shards=2, model=TINY, **options):
        """Plan, decode, merge; returns the merged hypotheses by id."""
        self.plan(shards)
        for shard in range(1, shards + 1):
            self.decode(shard, shards, model, **options)
        self.merge(shards)
        return self.hypotheses()

    def hypotheses(self):
        lines = (self.folder / "hypotheses.jsonl").read_text().splitlines()
        return {line["utt_id"]: line for line in map(json.loads, lines)}

    def merged(self):
        return [(self.folder / name).read_bytes() for name in ("hypotheses.jsonl", "failed.tsv", "text")]

    def decoded(self, status="ok"):
        """How often each utterance was decoded, over all runs."""
        counts: collections.Counter[str] = collections.Counter()
        for path in self.journal.glob("*/*.jsonl"):
            for line in path.read_bytes().split(b"\n")[:-1]:
                entry = json.loads(line)
                if entry["status"] == status:
                    counts[entry["utt_id"]] += 1
        return counts
