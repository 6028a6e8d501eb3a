"""The files of one training run, as any process can read them without torch.

::

    options.json           what the run's key is made of
    tokens/                the tokens
    states/                Lightning checkpoints, `<batches>.ckpt`, each with a `.json` that makes it valid
    weights/               the network's weights after validations, the same way
    trace/                 `<attempt>-<rank>.jsonl`: the utterances of each batch, as soon as it was trained on
    curves.csv             every logged value
    tensorboard/           the same for TensorBoard
    left_out-<rank>.jsonl  utterances that could not be trained on, with the reason
    progress.json          how far it is
    model/                 the exported model, valid once `complete.json` is there
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from espnet3_rules.errors import DataError
from espnet3_rules.records import file_digest, read_json, read_jsonl, sync_folder, write_json


@dataclasses.dataclass(frozen=True)
class Saved:
    """A saved state, or saved weights: the file (a folder for sharded strategies) and what its record says."""

    path: Path
    record: dict[str, Any]


class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.options = self.path / "options.json"
        self.tokens = self.path / "tokens"
        self.states = self.path / "states"
        self.weights = self.path / "weights"
        self.trace = self.path / "trace"
        self.curves = self.path / "curves.csv"
        self.progress = self.path / "progress.json"
        self.model = self.path / "model"
        self.complete = self.path / "complete.json"

    def new_attempt(self) -> int:
        """The number of a new attempt, from 1; its traces get it. What a kill left half written is removed."""
        for stray in (*self.states.glob(".*.tmp"), *self.weights.glob(".*.tmp")):
            discard(stray)
        return 1 + max((int(p.name.split("-")[0]) for p in self.trace.glob("*-*.jsonl")), default=0)

    def trace_file(self, attempt: int, rank: int) -> Path:
        """Where one rank of one attempt writes its batches."""
        return self.trace / f"{attempt:04d}-{rank}.jsonl"

    def newest_state(self, warn: Any = None) -> Saved | None:
        """The newest saved state that is whole; ``warn`` is called with a line for each that is not."""
        return next(iter(_whole(self.states, warn)), None)

    def all_weights(self, warn: Any = None) -> list[Saved]:
        """The saved weights that are whole, newest first."""
        return list(_whole(self.weights, warn))


def _whole(folder: Path, warn: Any) -> Iterator[Saved]:
    for record_path in sorted(folder.glob("*.json"), reverse=True):
        path = record_path.with_suffix(".ckpt")
        try:
            record = read_json(record_path)
            if path.is_file() and file_digest(path) != record["sha256"]:
                raise DataError(f"{path}: not what was written")
            if not path.exists():
                raise DataError(f"{path}: no such file")
        except (DataError, OSError, KeyError, TypeError) as error:
            if warn:
                warn(f"{path.name} is damaged and is passed over ({error})")
            continue
        yield Saved(path, record)


def publish(aside: Path, path: Path, record: dict[str, Any]) -> None:
    """Makes ``aside`` (a file, or a folder) valid as ``path``: synced, renamed, and its record written last."""
    digest = None
    if aside.is_file():
        with aside.open("rb") as stream:
            os.fsync(stream.fileno())
        digest = file_digest(aside)
    elif path.exists():
        shutil.rmtree(path)
    aside.replace(path)
    sync_folder(path.parent)
    write_json(path.with_suffix(".json"), {**record, "sha256": digest})


def discard(path: Path) -> None:
    """Removes a saved file or folder and its record; the record first, so that what is left is not taken for whole."""
    with contextlib.suppress(FileNotFoundError):
        path.with_suffix(".json").unlink()
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def read_trace(run: Path | str) -> list[list[dict[str, Any]]]:
    """The batches of each attempt, in order: ``epoch``, ``batch``, ``step``, ``rank`` and ``ids`` of each.

    A last line that a kill has cut off is left out.
    """
    attempts: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((Path(run) / "trace").glob("*-*.jsonl")):
        lines = attempts.setdefault(path.name.split("-")[0], [])
        with contextlib.suppress(DataError):
            lines.extend(read_jsonl(path))
    order = ("epoch", "batch", "rank")
    return [sorted(attempts[name], key=lambda line: [line[k] for k in order]) for name in sorted(attempts)]
