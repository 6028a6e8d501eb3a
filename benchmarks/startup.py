"""How long each stage takes to start, beside what importing the libraries it needs takes, in one run.

    python benchmarks/startup.py [--rounds 5]

Each stage does its smallest real job (a dozen utterances of three tones). Light stages are compared with half a
second; ``train`` and ``decode`` with a process that only imports what they need. The commands run in turn, round by
round, so that a machine that changes its speed changes both sides of a ratio; medians are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.train.tones import BASE, make_manifest

TRAINING = "import torch, lightning.pytorch, lhotse, tensorboard; from transformers import ParakeetForCTC"
DECODING = "import torch, lhotse; from transformers import ParakeetForCTC"


def stage(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "espnet3_rules.cli", *map(str, arguments)]


def seconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return time.perf_counter() - start


def commands(folder: Path, round_: int) -> dict[str, list[str]]:
    """What each row of the table runs, in the order that they depend on each other."""
    manifest = folder / "data/test.jsonl.gz"
    options = {**BASE, "max_steps": 1, "seed": round_, "checkpoint": {"every_n_steps": 1, "average": "none"}}
    plan, out = folder / "plan", folder / f"out{round_}"
    shard, scores = out / "shards/1-of-1.jsonl", out / "scores.json"
    decode = stage(
        "decode", "--manifest", manifest, "--plan", plan, "--shard", 1, "--shards", 1, "--model", folder / "model",
        "--journal", out / "journal", "--out", shard,
    )  # fmt: skip
    return {
        "python": [sys.executable, "-c", "pass"],
        "imports of train": [sys.executable, "-c", TRAINING],
        "train": stage(
            "train", "--train", folder / "data/train.jsonl.gz", "--valid", manifest, "--model-dir", folder / "model",
            "--run-dir", folder / "runs", "--options", json.dumps(options),
        ),
        "plan": stage("plan", "--manifest", manifest, "--out", plan, "--shards", 1),
        "imports of decode": [sys.executable, "-c", DECODING],
        "decode": decode,
        "decode, all done": decode,
        "merge": stage("merge", "--manifest", manifest, "--plan", plan, "--shards", shard, "--out", out),
        "score": stage("score", "--manifest", manifest, "--hypotheses", out / "hypotheses.jsonl", "--out", scores),
        "report": stage("report", "--scores", scores, "--out", out / "results.md"),
        "gate": stage("gate", "--scores", scores, "--out", out / "gate.json", "--set", "max_failed=1.0"),
        "--help": stage("--help"),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for split in ("train", "test"):
            make_manifest(folder / "data", split, 12)
        for round_ in range(rounds):
            for row, command in commands(folder, round_).items():
                taken.setdefault(row, []).append(seconds(command))
    middle = {row: statistics.median(times) for row, times in taken.items()}
    print(f"{'':18} {'seconds':>8}  beside")
    for row, time_s in middle.items():
        other = {"train": "imports of train", "decode": "imports of decode"}.get(row)
        beside = f"{time_s / middle[other]:.2f} x {other}" if other else f"{time_s / 0.5:.2f} x 0.5 s"
        print(f"{row:18} {time_s:8.2f}  {beside}")


if __name__ == "__main__":
    main()
