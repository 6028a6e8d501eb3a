"""Word error rates of a config over several seeds, beside those of the same network untrained.

    python benchmarks/accuracy.py config/config.yaml --seeds 1 2 3
    python benchmarks/accuracy.py config/fsdd.yaml --seeds 1 2 3

Each seed is a whole run of the workflow: another corpus where it is made or strung together at random, other
weights, another order. The seconds are those of the whole run on this machine, with whatever else it was doing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from espnet3_rules.config import load

ROOT = Path(__file__).parents[1]


def run(config: Path, data: Path, exp: Path, seed: int, **more: Any) -> dict[str, dict[str, Any]]:
    """The scores of each test set after a run with these folders."""
    settings = {"seed": seed, "data_dir": str(data), "exp_dir": str(exp), **more}
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}
    command = [
        sys.executable, "-m", "snakemake", "--cores", str(len(os.sched_getaffinity(0))), "--configfile", str(config),
        "--config", *(f"{key}={text}" for key, text in texts.items()),
    ]  # fmt: skip
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    scores = [json.loads(found.read_text()) for found in exp.rglob("scores.json")]
    return {one["test_set"]: one for one in scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = parser.parse_args()
    rates: dict[str, list[float]] = {}
    words: dict[str, int] = {}
    taken = []
    (system,) = load(given.config).trained()
    with tempfile.TemporaryDirectory() as name:
        for seed in given.seeds:
            start = time.perf_counter()
            scores = run(given.config, Path(name) / f"{seed}/data", Path(name) / f"{seed}/exp", seed)
            taken.append(time.perf_counter() - start)
            for test_set, one in scores.items():
                rates.setdefault(test_set, []).append(one["words"]["rate"])
                words[test_set] = one["words"]["reference"]
            found = ", ".join(f"{test_set} {rate[-1]:.2%}" for test_set, rate in rates.items())
            print(f"seed {seed}: {taken[-1]:.0f} s, {found}", flush=True)
        still = {system: {"max_steps": 1, "optimizer": {"lr": 1e-12}, "checkpoint": {"average": "none"}}}
        seed = given.seeds[0]
        untrained = run(given.config, Path(name) / f"{seed}/data", Path(name) / "untrained", seed, systems=still)
    for test_set, rate in rates.items():
        print(
            f"{test_set}: median {statistics.median(rate):.2%} of {words[test_set]} words, "
            f"untrained {untrained[test_set]['words']['rate']:.1%}, {statistics.median(taken):.0f} s"
        )


if __name__ == "__main__":
    main()
