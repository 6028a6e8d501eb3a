"""The training stage: finds its run by what it is made of, trains or continues it, and publishes the model."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espnet3_rules.errors import EnvironmentProblem, Interrupted, OptionError
from espnet3_rules.manifest import read_index
from espnet3_rules.normalise import Normaliser
from espnet3_rules.options import join
from espnet3_rules.parallel.claims import Claims
from espnet3_rules.records import canonical_json, content_key, disk_errors, read_json, write_json
from espnet3_rules.tokens import VERSION as TOKENS_VERSION
from espnet3_rules.train.console import say
from espnet3_rules.train.options import TrainOptions
from espnet3_rules.train.run_folder import RunFolder

#: Raise it when the same options and data give another model.
VERSION = 1

#: The claim on a run.
_NAME = "train"


def train_key(options: TrainOptions, train: Sequence[Path | str], valid: Sequence[Path | str]) -> str:
    """What the model depends on, as 64 hexadecimal digits: the options that can change it, the data, `VERSION`."""
    return content_key(_made_of(options, train, valid))


def _made_of(options: TrainOptions, train: Sequence[Path | str], valid: Sequence[Path | str]) -> dict[str, Any]:
    return {
        "version": VERSION,
        "tokens": {"version": TOKENS_VERSION, "normalise": Normaliser(options.tokens.normalise).versions},
        "options": options.to_dict(only_result=True),
        "train": [_data_key(path) for path in train],
        "valid": [_data_key(path) for path in valid],
    }


def _data_key(manifest: Path | str) -> str:
    """What is in a manifest: cuts, texts, and size and mtime of their audio; not where it lies."""
    return content_key([[e.cut, e.text, e.unreadable, e.stamp] for e in read_index(manifest)])


def train(
    *, train: Sequence[Path], valid: Sequence[Path], model_dir: Path, run_dir: Path, options: TrainOptions
) -> None:
    """Publishes the model trained on ``train`` in ``model_dir``: its weights, tokens and config.

    The run has a folder of its own in ``run_dir``, named after `train_key`. A run that was killed goes on from its
    last saved state, one that is complete is only published again, and one that another process is busy with is
    waited for.

    Args:
        train: manifests to train on.
        valid: manifests to validate on.
        model_dir: where the model goes.
        run_dir: where all runs of this system are kept.
        options: how to train.

    Raises:
        DataError: a manifest, or all of its audio, cannot be used.
        Interrupted: a signal asked to stop; the state is saved.
        EnvironmentProblem: a disk, a device or a process of the training failed.
    """
    _check_valid(valid, options)
    made_of = _made_of(options, train, valid)
    run = RunFolder(Path(run_dir) / content_key(made_of)[:16])
    latest = Path(run_dir) / "latest.json"  # whoever started last says which run the published model is of
    with disk_errors(run.path):
        write_json(latest, {"run": run.path.name, "model": str(Path(model_dir).absolute())})
        if not run.options.exists():
            _explain(run, made_of)
            write_json(run.options, made_of)
        if not run.complete.exists():
            _complete(run, [str(p) for p in train], [str(p) for p in valid], options)
        from espnet3_rules.train.export import publish_model

        if read_json(latest)["run"] != run.path.name:
            raise Interrupted(
                f"{model_dir}: not published, since another training of this system, with other options or data, has "
                "started",
                hint=f"the model is kept in {run.model}, for when these options are wanted again",
            )
        publish_model(run, Path(model_dir))
    say(f"model of step {', '.join(map(str, read_json(run.complete)['steps']))} published in {model_dir}")


def _check_valid(valid: Sequence[Path], options: TrainOptions) -> None:
    if options.checkpoint.average == "best" and (not valid or options.trainer.get("limit_val_batches") == 0):
        raise OptionError(
            "checkpoint.average: 'best' needs validation, and there is none",
            hint="name a validation set, or set checkpoint.average to last",
        )


def _complete(run: RunFolder, train: list[str], valid: list[str], options: TrainOptions) -> None:
    """Trains until the run is complete, or waits until whoever is at it has done so."""
    with Claims(run.path / "claims") as claims:
        claim = claims.acquire(_NAME)
        if claim is None:
            say(f"{run.path} is being trained by {claims.owner(_NAME)}: waiting for it")
        said = ""
        while claim is None:
            claims.wait_for_change([_NAME], 2.0)
            said = _relay(run, said)
            claim = claims.acquire(_NAME)
        # only now is what the former owner has written sure to be seen
        if not run.complete.exists():
            from espnet3_rules.train.driver import run_attempt

            steps = run_attempt(run, train, valid, options, claim.check)
            if not claim.check():
                raise EnvironmentProblem(
                    f"{run.path}: another process has taken this run over, since this one stood still",
                    hint="wait for the other one",
                )
            write_json(run.complete, {"steps": steps})
            shutil.rmtree(run.states, ignore_errors=True)  # of no more use, and large
        claim.release(done=True)


def _relay(run: RunFolder, said: str) -> str:
    """Shows the other process's line of progress where it is a new one."""
    line = str(read_json(run.progress)["line"]) if run.progress.exists() else said
    if line != said:
        say(line)
    return line


def _explain(run: RunFolder, made_of: dict[str, Any]) -> None:
    """Says which keys differ from the newest other run's, since this one starts from nothing."""
    others = [p for p in run.path.parent.glob("*/options.json") if p != run.options]
    if not others:
        return
    newest = max(others, key=lambda path: path.stat().st_mtime)
    old, new = _flat(read_json(newest)), _flat(made_of)
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    say(f"not the run in {newest.parent}, since these have changed; {run.path} is a new one:")
    for key in changed:
        if key.split(".")[0] in ("train", "valid"):
            say(f"  {key}: another content")
        else:
            name = key.removeprefix("options.")
            say(f"  {name}: {canonical_json(old.get(key))} -> {canonical_json(new.get(key))}")


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """``{"a.b": value}`` for nested blocks and lists of blocks."""
    if isinstance(value, dict):
        return {k: v for key, inner in value.items() for k, v in _flat(inner, join(path, key)).items()}
    if isinstance(value, list) and path in ("train", "valid"):
        return {f"{path}[{i}]": inner for i, inner in enumerate(value)}
    return {path: value}
