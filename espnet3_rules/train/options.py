"""What a user can set of training; free of torch and Lightning, so that checking a config costs nothing."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from espnet3_rules.errors import OptionError
from espnet3_rules.models.options import AugmentOptions, FeatureOptions, NetworkOptions, check_mel_bins
from espnet3_rules.options import Options, join, nearest, opt
from espnet3_rules.tokens import TokenOptions
from espnet3_rules.train.trainer_keys import check_trainer, result_keys

#: The learning rates over time that go by a name; any other is a class with ``_target_``.
SCHEDULES = ("warmup_cosine", "noam", "constant")


@dataclasses.dataclass(frozen=True)
class BatchOptions(Options):
    """How utterances are put together to batches, on each device."""

    duration_s: float = opt(
        100.0, "most audio of a batch in seconds: its utterances times the longest of their length group", above=0
    )
    max_cuts: int | None = opt(None, "most utterances of a batch; null: as many as `duration_s` allows", minimum=1)
    num_buckets: int = opt(10, "groups of similar length that batches are drawn from", minimum=1)
    shuffle_buffer: int = opt(20000, "utterances that are held to draw from", minimum=1)
    longest_s: float | None = opt(None, "longer utterances are left out of training; null: none is", above=0)


@dataclasses.dataclass(frozen=True)
class SpeechAugmentOptions(AugmentOptions):
    """What is done to training utterances: other speeds, and parts that are hidden (SpecAugment)."""

    speed: tuple[float, ...] = opt(
        (0.9, 1.0, 1.1), "each utterance is played at one of these speeds, drawn anew each epoch", above=0.3, maximum=3
    )

    def check(self) -> None:
        """There is a speed to draw."""
        super().check()
        if not self.speed:
            raise OptionError("speed: an empty list", hint="[1.0] leaves the audio as it is")


@dataclasses.dataclass(frozen=True)
class CheckpointOptions(Options):
    """When the state is saved, and which weights make up the exported model."""

    every_s: float | None = opt(
        15.0, "seconds between two saved states; what a kill can cost at most", above=0, affects_result=False
    )
    every_n_steps: int | None = opt(
        None, "steps between two saved states, in place of or beside `every_s`", minimum=1, affects_result=False
    )
    keep: int = opt(2, "saved states that are kept, newest first", minimum=1, affects_result=False)
    average: str = opt(
        "best",
        "which validated weights are averaged for the exported model; none: the last ones alone",
        choices=("last", "best", "none"),
    )
    average_n: int = opt(5, "over how many validations' weights", minimum=1)
    metric: str = opt("ter", "what `best` is measured by, on the validation set", choices=("loss", "ter", "wer"))

    def check(self) -> None:
        """Something says when to save."""
        if self.every_s is None and self.every_n_steps is None:
            raise OptionError("every_s: null, as every_n_steps is", hint="set one, or a kill costs the whole run")


@dataclasses.dataclass(frozen=True)
class TrainOptions(Options):
    """All of training: tokens, features, network, data, optimisation, and where it runs."""

    seed: int = opt(
        0, "where the weights, the order of the data and all noise start", minimum=0, maximum=2**32 - 1
    )  # fmt: skip
    num_device: int = opt(1, "devices (GPUs, or processes on a CPU) per node", minimum=1)
    num_nodes: int = opt(1, "machines, with `num_device` devices each", minimum=1)
    max_epochs: int | None = opt(50, "passes over the training data; null: only `max_steps` ends training", minimum=1)
    max_steps: int | None = opt(None, "most optimiser steps; null: only `max_epochs` ends training", minimum=1)
    tokens: TokenOptions = opt(TokenOptions, "what the model writes")
    features: FeatureOptions = opt(FeatureOptions, "what the model hears")
    network: NetworkOptions = opt(NetworkOptions, "size of the model")
    augment: SpeechAugmentOptions = opt(SpeechAugmentOptions, "how training utterances are varied")
    batch: BatchOptions = opt(BatchOptions, "how batches are made")
    optimizer: dict[str, Any] = opt(
        {"_target_": "torch.optim.AdamW", "lr": 0.002, "weight_decay": 0.001},
        "the optimiser's class as `_target_` (AdamW where it is left out) and its arguments",
    )
    scheduler: dict[str, Any] = opt(
        {"name": "warmup_cosine", "warmup_steps": 200},
        "the learning rate over the steps: `name` (warmup_cosine, noam, constant), `warmup_steps`, "
        "`final` (last rate as a fraction); or a class as `_target_`, stepped after each optimiser step",
    )
    checkpoint: CheckpointOptions = opt(CheckpointOptions, "saved states and the exported model")
    trainer: dict[str, Any] = opt({}, "goes to `lightning.Trainer`")
    max_nonfinite: int = opt(
        20, "steps in a row whose gradient is not finite before training gives up", minimum=1, affects_result=False
    )
    threads: int | None = opt(
        None,
        "threads of one device's computation on a CPU; null: all cores, shared by the devices",
        minimum=1,
        affects_result=False,
    )
    workers: int = opt(0, "processes a device that load audio; 0: none", minimum=0, affects_result=False)
    cache_mb: int = opt(
        1024, "memory a loading process may keep audio in, in MiB; 0: read it anew", minimum=0, affects_result=False
    )
    log_every_s: float = opt(
        10.0, "seconds between two lines of progress where there is no terminal", above=0, affects_result=False
    )

    def check(self) -> None:
        """Training ends, the network takes the features, and Lightning's keys are those that may be set."""
        if self.max_epochs is None and self.max_steps is None:
            raise OptionError("max_epochs: null, as max_steps is", hint="set one of them, or training never ends")
        check_trainer(self.trainer, self.num_device, self.num_nodes)
        try:
            check_mel_bins(self.features, self.network)
        except OptionError as error:
            raise OptionError(f"features.{error.message}", hint=error.hint) from None
        _check_target(self.optimizer, "optimizer")
        _check_rate(self.optimizer)
        _check_scheduler(self.scheduler)

    def to_dict(self, *, only_result: bool = False) -> dict[str, Any]:
        """The options as plain values; with ``only_result`` without what cannot change the model, in trainer too."""
        values = super().to_dict(only_result=only_result)
        if only_result:
            values["trainer"] = result_keys(values["trainer"])
        return values


def _check_target(block: dict[str, Any], path: str) -> None:
    target = block.get("_target_", "")
    if not isinstance(target, str):
        raise OptionError(f"{join(path, '_target_')}: expected text, found {target!r}")


def _check_rate(optimizer: dict[str, Any]) -> None:
    """The learning rate, where there is one, is a positive number."""
    if "lr" not in optimizer:
        return
    rate = optimizer["lr"]
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not (rate > 0 and math.isfinite(rate)):
        raise OptionError(
            f"optimizer.lr: expected a number above 0, found {rate!r}",
            hint="write it with a point, such as 0.002 or 2.0e-3: YAML takes 2e-3 for a text"
            if isinstance(rate, str)
            else "0.002 is what it is if not given",
        )


def _check_scheduler(block: dict[str, Any]) -> None:
    """The schedule is a known name with its keys, or names a class."""
    _check_target(block, "scheduler")
    if "_target_" in block:
        return
    known = {"name", "warmup_steps", "final"}
    for key in block:
        if key not in known:
            near = nearest(key, [*known, "_target_"])
            raise OptionError(
                f"scheduler.{key}: unknown key",
                hint=(f"did you mean '{near}'? " if near else "") + "known here: _target_, final, name, warmup_steps",
            )
    name, warmup, final = block.get("name", "constant"), block.get("warmup_steps", 0), block.get("final", 0.0)
    if name not in SCHEDULES:
        near = nearest(str(name), SCHEDULES)
        raise OptionError(
            f"scheduler.name: {name!r} is not one of {', '.join(SCHEDULES)}",
            hint=f"did you mean '{near}'?" if near else "any other class can be given as _target_",
        )
    if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
        raise OptionError(f"scheduler.warmup_steps: expected a whole number from 0, found {warmup!r}")
    if isinstance(final, bool) or not isinstance(final, int | float) or not 0 <= final <= 1:
        raise OptionError(f"scheduler.final: expected a number from 0 to 1, found {final!r}")
