"""Curves and progress: a CSV that joins over reruns, and lines for a log."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from espnet3_rules.data.loading import Batch
from espnet3_rules.records import write_aside, write_json
from espnet3_rules.train.console import say
from espnet3_rules.train.run_folder import RunFolder

_HEADER = ("step", "epoch", "name", "value")


class CurveLogger(Logger):
    """Every logged value as a line of ``curves.csv``: step, epoch, name, value.

    After a restart the lines of steps that are done again are dropped first, so that each stands there once.

    Args:
        path: the file.
        step: the step that training continues from.
    """

    def __init__(self, path: Path, step: int) -> None:
        super().__init__()
        self._path, self._start, self._ready = path, step, False

    @property
    def name(self) -> str:
        """Of the logger."""
        return "curves"

    @property
    def version(self) -> str:
        """There is one file."""
        return ""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The options lie in a file of their own."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Appends the values of one step."""
        if not self._ready:
            self._drop_later_steps()
            self._ready = True
        epoch = metrics.get("epoch", "")
        with self._path.open("a", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerows((step, epoch, name, f"{value:.8g}") for name, value in metrics.items() if name != "epoch")

    def _drop_later_steps(self) -> None:
        rows: list[list[str]] = []
        if self._path.exists():
            with self._path.open(encoding="utf-8", newline="") as stream:
                rows = [row for row in csv.reader(stream) if len(row) == len(_HEADER) and row[0].isdecimal()]
        with write_aside(self._path) as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(_HEADER)
            # the logger counts steps from 0: the step that comes next has the number of steps that are done
            writer.writerows(row for row in rows if int(row[0]) < self._start)


class Progress(pl.Callback):
    """Says how far training is: in ``progress.json`` for who waits, and as lines where there is no terminal.

    Args:
        every_s: seconds between two lines; None for none.
        total_steps: about how many steps there will be.
    """

    def __init__(self, run: RunFolder, *, every_s: float | None, total_steps: int) -> None:
        self.run, self.every_s, self.total_steps = run, every_s, total_steps

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Starts the clock."""
        self._last = self._begin = time.monotonic()
        self._first_step, self._utterances, self._loss = trainer.global_step, 0, float("nan")

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Says how far it is, where it is time."""
        if not trainer.is_global_zero:
            return
        self._utterances += len(batch) * trainer.world_size
        now = time.monotonic()
        if now - self._last >= (self.every_s or 10.0):
            self._say(trainer, float(trainer.callback_metrics.get("train/loss", float("nan"))), now)
            self._last, self._utterances = now, 0

    def _say(self, trainer: pl.Trainer, loss: float, now: float) -> None:
        step = trainer.global_step
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        speed = self._utterances / (now - self._last)
        done = step - self._first_step
        left = (self.total_steps - step) * (now - self._begin) / done if done else None
        line = (
            f"epoch {trainer.current_epoch + 1}, step {step} of about {self.total_steps}, loss {loss:.4g}, "
            f"lr {rate:.3g}, {speed:.0f} utterances/s"
        )
        if left is not None:
            line += f", {_duration(max(0.0, left))} left"
        write_json(self.run.progress, {"step": step, "total_steps": self.total_steps, "line": line})
        if self.every_s is not None:
            say(line)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Says what validation has measured."""
        if not trainer.is_global_zero or self.every_s is None:
            return
        values = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("valid/")}
        say(
            f"epoch {trainer.current_epoch + 1}, step {trainer.global_step}: validation loss "
            f"{values['valid/loss']:.4g}, token errors {values['valid/ter']:.2%}, word errors {values['valid/wer']:.2%}"
            f" of {values['valid/utterances']:.0f} utterances"
        )


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
