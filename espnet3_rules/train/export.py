"""From the weights of a run to the published model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from espnet3_rules.errors import DataError
from espnet3_rules.models.recogniser import CONFIG, export
from espnet3_rules.records import file_digest, write_aside
from espnet3_rules.tokens import load_tokens
from espnet3_rules.train.options import CheckpointOptions, TrainOptions
from espnet3_rules.train.run_folder import RunFolder, Saved


def chosen(run: RunFolder, options: CheckpointOptions) -> list[Saved]:
    """The saved weights that the model is the average of, best or newest first."""
    saved = run.all_weights()
    if options.average == "last":
        return saved[: options.average_n]
    measured = [one for one in saved if one.record["metrics"]]
    if options.average == "none" or not measured:
        return saved[:1]
    # of two that are as good, the newer
    measured.sort(key=lambda one: one.record["metrics"][f"valid/{options.metric}"])
    return measured[: options.average_n]


def export_average(run: RunFolder, options: TrainOptions) -> list[int]:
    """Writes the averaged model to the run's own folder, and returns the steps that it was made of."""
    import torch

    from espnet3_rules.models.network import build_network

    parts = chosen(run, options.checkpoint)
    if not parts:
        raise DataError(f"{run.weights}: no whole weights", hint=f"remove {run.path} and train again")
    tokens = load_tokens(run.tokens)
    with torch.random.fork_rng(devices=[]):
        network = build_network(options.network, tokens.vocab_size, options.features)
    network.load_state_dict(_average([torch.load(part.path, map_location="cpu") for part in parts]))
    export(run.model, network, network_options=options.network, feature_options=options.features, tokens=tokens)
    return sorted(part.record["step"] for part in parts)


def _average(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of each floating point tensor; counters as the first has them."""
    average = {}
    for name, first in states[0].items():
        if first.is_floating_point():
            average[name] = (sum(state[name].double() for state in states) / len(states)).to(first.dtype)
        else:
            average[name] = first
    return average


def publish_model(run: RunFolder, model_dir: Path) -> None:
    """Copies the run's model to ``model_dir``, each file at once; files that are the same already are left alone."""
    names = sorted(path.name for path in run.model.iterdir() if path.is_file() and not path.name.startswith("."))
    changed = [name for name in names if not _same(run.model / name, model_dir / name)]
    if changed:
        # where the config is, all is: a kill in between must not leave it beside others' weights
        (model_dir / CONFIG).unlink(missing_ok=True)
        for name in sorted({*changed, CONFIG}, key=lambda name: name == CONFIG):
            with (run.model / name).open("rb") as source, write_aside(model_dir / name, "wb") as target:
                shutil.copyfileobj(source, target)


def _same(path: Path, other: Path) -> bool:
    return other.is_file() and path.stat().st_size == other.stat().st_size and file_digest(path) == file_digest(other)
