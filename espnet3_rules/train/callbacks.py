"""What happens between the steps: agreeing to stop, saving the state, the trace, and the lines of progress."""

from __future__ import annotations

import io
import json
import random
import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from espnet3_rules.data.loading import Batch
from espnet3_rules.data.module import SpeechData
from espnet3_rules.errors import DataError, EnvironmentProblem, Interrupted, RulesError
from espnet3_rules.records import canonical_json, content_key, disk_errors, read_jsonl
from espnet3_rules.train.console import say
from espnet3_rules.train.failures import record_failure
from espnet3_rules.train.module import CtcTraining
from espnet3_rules.train.options import TrainOptions
from espnet3_rules.train.ranks import Agreement, StopRequest
from espnet3_rules.train.run_folder import RunFolder, discard, publish


class StateKeeper(pl.Callback):
    """Keeps the position, saves the state at step boundaries, and ends the run there when a signal asks for it.

    Before each step the ranks add up what they know: the loss's divisor, whether one was asked to stop, whether it
    is time to save. All act on the sums, so all do the same. States are saved before a step and never after, so
    that whatever the step before has caused (validation, schedules, other callbacks) is in them.

    Args:
        owned: whether the run is still this process's; asked before a state is written.
    """

    def __init__(
        self, options: TrainOptions, run: RunFolder, attempt: int, agreement: Agreement, owned: Callable[[], bool]
    ) -> None:
        self.options, self.run, self.attempt, self.agreement, self.owned = options, run, attempt, agreement, owned
        self.stop = StopRequest()
        self.position = {"epoch": 0, "batches": 0, "total_batches": 0, "validation_due": False}
        self._saved_at, self._saved_batches, self._saved_step = 0.0, 0, 0
        self._weights_at: int | None = None
        self._used, self._skipped = 0.0, 0.0

    # -- where it starts

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Opens the channel between the ranks."""
        self.agreement.start(trainer.world_size)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Takes up the position, opens the trace, and takes the signals over from Lightning."""
        self.position = dict(_data(trainer).start)
        self._saved_batches, self._saved_step = self.position["total_batches"], trainer.global_step
        self._saved_at = time.monotonic()
        path = self.run.trace_file(self.attempt, trainer.global_rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._trace = path.open("a", encoding="utf-8")
        self.stop.install()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Counts from the epoch's first batch, or from where the saved state was."""
        start = _data(trainer).start
        self.position["epoch"] = trainer.current_epoch
        self.position["batches"] = start["batches"] if trainer.current_epoch == start["epoch"] else 0
        self._used, self._skipped = float(self.position["batches"] > 0), 0.0
        if self.position["validation_due"]:
            self.position["validation_due"] = False
            _validate(trainer)

    # -- before a step

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Lets the ranks agree, saves where it is time, stops where it is asked for, and seeds the step."""
        assert isinstance(pl_module, CtcTraining)
        done = (self.position["epoch"], self.position["batches"])
        assert (batch.plan.epoch, batch.plan.batch) == done, f"{batch.plan} does not follow {done}"
        weight, stop, save, skipped = self.agreement.sum(
            [batch.weight, float(bool(self.stop)), float(self._is_time(trainer)), len(batch.skipped)]
        )
        pl_module.step_weight = max(1.0, weight)
        self._used += weight
        self._skipped += skipped
        # gradients that wait for more batches are in no checkpoint
        if (stop or save) and self.position["batches"] % trainer.accumulate_grad_batches == 0:
            self.save(trainer)
            if stop:
                raise self._interrupted(trainer)
        seed = content_key([self.options.seed, self.position["total_batches"], trainer.global_rank])
        torch.manual_seed(int(seed[:15], 16))
        random.seed(seed)
        np.random.seed(int(seed[:8], 16))

    def _is_time(self, trainer: pl.Trainer) -> bool:
        """Whether rank 0 wants to save."""
        if not trainer.is_global_zero or self.position["total_batches"] == self._saved_batches:
            return False
        options = self.options.checkpoint
        return (options.every_s is not None and time.monotonic() - self._saved_at >= options.every_s) or (
            options.every_n_steps is not None and trainer.global_step - self._saved_step >= options.every_n_steps
        )

    def _interrupted(self, trainer: pl.Trainer) -> RulesError:
        self.agreement.sum([0.0])  # the first rank that ends takes the others with it: not before the state is saved
        return self._failed(
            trainer,
            Interrupted(
                f"stopped by {self.stop.name} in epoch {self.position['epoch'] + 1} after "
                f"{self.position['batches']} batches of it; the state is saved in {self.run.states}",
                hint="the same command continues from there",
            ),
        )

    # -- after a step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        """Writes the trace and moves the position on."""
        assert isinstance(pl_module, CtcTraining)
        line = {
            "epoch": batch.plan.epoch,
            "batch": batch.plan.batch,
            "step": trainer.global_step,
            "rank": trainer.global_rank,
            "ids": batch.ids,
        }
        self._trace.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._trace.flush()  # what the system has been given survives a kill of this process
        self.position["batches"] += 1
        self.position["total_batches"] += 1
        if pl_module.nonfinite >= self.options.max_nonfinite:
            raise self._failed(
                trainer,
                RulesError(
                    f"the gradient of {pl_module.nonfinite} steps in a row was infinite or not a number, the last at "
                    f"step {trainer.global_step} with {', '.join(batch.ids[:5])}{' ...' if len(batch.ids) > 5 else ''}",
                    hint="lower optimizer.lr, set trainer.gradient_clip_val, or look at these utterances",
                ),
            )
        if self.options.max_steps is not None and trainer.global_step >= self.options.max_steps:
            trainer.should_stop = True

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Stops also inside a validation; the rerun validates first."""
        at_boundary = self.position["batches"] % trainer.accumulate_grad_batches == 0
        if self.agreement.sum([float(bool(self.stop))])[0] and at_boundary:
            self.position["validation_due"] = True
            self.save(trainer)
            raise self._interrupted(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuses an epoch without a single usable utterance."""
        if not self._used:
            raise self._failed(
                trainer,
                DataError(
                    f"not one utterance of epoch {trainer.current_epoch + 1} could be trained on, {self._skipped:g} "
                    "were left out",
                    hint=f"{self.run.path}/left_out-*.jsonl says why, one line for each",
                ),
            )
        if self._skipped and trainer.is_global_zero:
            say(f"epoch {trainer.current_epoch + 1}: {self._skipped:g} utterances were left out")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Saves the last state, marked as such."""
        self._trace.close()
        # steps since the last validation count, but for the best of what was measured
        newest = self._weights_at == self.position["total_batches"]
        if not newest and (self.options.checkpoint.average != "best" or self._weights_at is None):
            self.save_weights(trainer, {})
        self.save(trainer, finished=True)

    def _failed(self, trainer: pl.Trainer, error: RulesError) -> RulesError:
        """Writes an error down, to be raised: where Lightning starts the ranks, only its text gets back."""
        record_failure(self.run.path / "failures" / f"{trainer.global_rank}.json", error)
        return error

    # -- saving

    def save(self, trainer: pl.Trainer, *, finished: bool = False) -> None:
        """Writes the state; all ranks call it at the same step."""
        if trainer.is_global_zero and not self.owned():
            raise self._failed(
                trainer,
                EnvironmentProblem(
                    f"{self.run.path}: another process has taken this run over, since this one stood still",
                    hint="wait for the other one; it continues from the last saved state",
                ),
            )
        _data(trainer).state = dict(self.position)
        name = f"{self.position['total_batches']:09d}{'-final' if finished else ''}"
        aside = self.run.states / f".{name}.tmp"
        with disk_errors(self.run.states):
            trainer.save_checkpoint(aside)
            if trainer.is_global_zero:
                record = {**self.position, "step": trainer.global_step, "finished": finished}
                publish(aside, self.run.states / f"{name}.ckpt", record)
        if trainer.is_global_zero:
            kept = sorted(self.run.states.glob("*.json"), reverse=True)
            for old in kept[self.options.checkpoint.keep :]:
                discard(old.with_suffix(".ckpt"))
        self._saved_at = time.monotonic()
        self._saved_batches, self._saved_step = self.position["total_batches"], trainer.global_step

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Saves the weights with what validation has measured."""
        metrics = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("valid/")}
        self.save_weights(trainer, metrics)

    def save_weights(self, trainer: pl.Trainer, metrics: dict[str, float]) -> None:
        """Writes the network's weights, and drops those that the exported model will not be made of."""
        self._weights_at = self.position["total_batches"]
        weights = trainer.strategy.lightning_module_state_dict()  # sharded ones are put together: all ranks call it
        if not trainer.is_global_zero:
            return
        folder = self.run.weights
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self.position['total_batches']:09d}"
        prefix = "network."
        kept = {k.removeprefix(prefix): v.detach().cpu() for k, v in weights.items() if k.startswith(prefix)}
        content = io.BytesIO()
        torch.save(kept, content)  # torch itself says of a full disk nothing that could be understood
        with disk_errors(folder):
            (folder / f".{name}.tmp").write_bytes(content.getbuffer())
            publish(folder / f".{name}.tmp", folder / f"{name}.ckpt", {"step": trainer.global_step, "metrics": metrics})
        from espnet3_rules.train.export import chosen

        wanted = {saved.path for saved in chosen(self.run, self.options.checkpoint)}
        for record in folder.glob("*.json"):
            if record.with_suffix(".ckpt") not in wanted:
                discard(record.with_suffix(".ckpt"))


class LeftOut(pl.Callback):
    """Writes the name and the reason of every utterance that could not be used, once, and says so the first time."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._known: set[str] = set()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Reads which are known, and adds those known from the manifest."""
        self._path = self.run.path / f"left_out-{trainer.global_rank}.jsonl"
        if self._path.exists():
            self._known = {line["utt_id"] for line in read_jsonl(self._path)}
        data = _data(trainer)
        if trainer.is_global_zero:
            self._note([*data.left_out, *getattr(data, "valid_left_out", [])])

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Batch, *_: Any) -> None:
        """Notes those of a training batch."""
        self._note(batch.skipped)

    def on_validation_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Batch, *_: Any) -> None:
        """Notes those of a validation batch."""
        self._note(batch.skipped)

    def _note(self, skipped: Any) -> None:
        # in training and validation both, it is named once
        new = list({i: reason for i, reason in skipped if i not in self._known}.items())
        if not new:
            return
        with self._path.open("a", encoding="utf-8") as stream:
            stream.writelines(canonical_json({"utt_id": i, "reason": reason}) + "\n" for i, reason in new)
        if not self._known:
            say(f"WARNING: {new[0][0]} is left out: {new[0][1]}; all such are listed in {self._path}")
        self._known.update(utt_id for utt_id, _ in new)


def _validate(trainer: pl.Trainer) -> None:
    """Runs the validation that the interrupted run still owed, as Lightning's loop does after a step."""
    loop = trainer.fit_loop.epoch_loop
    loop._batches_that_stepped -= 1  # its values belong to the last step, as far as loggers are concerned
    trainer.validating = True
    loop.val_loop.run()
    trainer.training = True
    loop._batches_that_stepped += 1


def _data(trainer: pl.Trainer) -> SpeechData:
    assert isinstance(trainer.datamodule, SpeechData)  # type: ignore[attr-defined]
    return trainer.datamodule  # type: ignore[attr-defined]
