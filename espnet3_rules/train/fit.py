"""One rank's training: everything that needs torch and Lightning is built here, and the trainer is run."""

from __future__ import annotations

import dataclasses
import logging
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from espnet3_rules.errors import EnvironmentProblem, OptionError
from espnet3_rules.train.console import say
from espnet3_rules.train.options import TrainOptions
from espnet3_rules.train.run_folder import RunFolder
from espnet3_rules.train.world import World


@dataclasses.dataclass(frozen=True)
class Job:
    """What all ranks of one attempt are given."""

    options: TrainOptions
    train: tuple[str, ...]
    valid: tuple[str, ...]
    run: str
    attempt: int
    #: The saved state to continue from, and its step.
    state: str | None
    step: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON, for another process."""
        return {**dataclasses.asdict(self), "options": self.options.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """The job in a JSON object."""
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**{**values, "options": TrainOptions.from_dict(values["options"])})


def starts_its_own_ranks(options: TrainOptions) -> bool:
    """Whether the strategy forks or spawns its processes itself (``ddp_spawn`` and its kin)."""
    strategy = options.trainer.get("strategy", "auto")
    if isinstance(strategy, Mapping):
        return strategy.get("start_method", "popen") != "popen"
    return any(word in str(strategy) for word in ("spawn", "fork", "notebook"))


def fit(job: Job, world: World, owned: Callable[[], bool]) -> None:
    """Trains as rank ``world.rank`` until the job is finished; its last state is then in the run's folder.

    Raises:
        Interrupted: a signal asked to stop; the state is saved.
    """
    import torch

    from espnet3_rules.data.corpus import Corpus
    from espnet3_rules.data.module import SpeechData
    from espnet3_rules.tokens import load_tokens
    from espnet3_rules.train.callbacks import LeftOut, StateKeeper
    from espnet3_rules.train.module import CtcRoom, CtcTraining
    from espnet3_rules.train.progress import Progress
    from espnet3_rules.train.ranks import Agreement

    options, run = job.options, RunFolder(job.run)
    _quieten()
    tokens = load_tokens(run.tokens)
    batch = options.batch.to_dict()
    longest_s = batch.pop("longest_s")
    data = SpeechData(
        Corpus(job.train),
        Corpus(job.valid) if job.valid else None,
        encode=tokens.encode,
        sampling_rate=options.features.sampling_rate,
        room=CtcRoom(options, tokens.vocab_size),
        batch=batch,
        longest_s=longest_s,
        speeds=options.augment.speed,
        limit=options.trainer.get("limit_train_batches"),
        seed=options.seed,
        workers=options.workers,
        cache_bytes=options.cache_mb << 20,
    )
    total = _total_steps(options, data)
    agreement = Agreement()
    module = CtcTraining(options, tokens, total, agreement)
    terminal = sys.stderr.isatty() and options.trainer.get("enable_progress_bar", True)
    callbacks = [
        StateKeeper(options, run, job.attempt, agreement, owned),
        LeftOut(run),
        Progress(run, every_s=None if terminal else options.log_every_s, total_steps=total),
    ]
    ranks = options.num_device * options.num_nodes
    if options.threads:
        torch.set_num_threads(options.threads)
    elif ranks > 1 and not torch.cuda.is_available() and not starts_its_own_ranks(options):
        torch.set_num_threads(max(1, torch.get_num_threads() // options.num_device))
    trainer = _trainer(options, run, job.step, world, callbacks, terminal)
    if world.rank == 0:
        parameters = sum(p.numel() for p in module.parameters())
        where = f"continues after step {job.step}" if job.state else "starts"
        say(
            f"training {where}: {len(data.train_entries)} utterances, {parameters / 1e6:.2f}M parameters, "
            f"about {total} steps, on {trainer.world_size} x {trainer.strategy.root_device.type}"
        )
    trainer.fit(module, datamodule=data, ckpt_path=job.state, weights_only=False)


def _total_steps(options: TrainOptions, data: Any) -> int:
    """About how many optimiser steps the training takes."""
    steps = math.inf
    if options.max_epochs is not None:
        batches = data.sampler(0, options.num_device * options.num_nodes).batches_per_epoch()
        accumulate = options.trainer.get("accumulate_grad_batches") or 1
        steps = math.ceil(batches / accumulate) * options.max_epochs
    return max(1, int(min(steps, options.max_steps or math.inf)))


def _quieten() -> None:
    """Turns off what Lightning says about choices that are the stage's own."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*Checkpoint directory .* exists.*",
        ".*in eval mode at the start of training.*",
        ".*`isinstance.treespec, LeafSpec.` is deprecated.*",
        ".*smaller than the logging interval.*",
        ".*`srun` command is available.*",
        ".*sync_dist=True.*",
    ):
        warnings.filterwarnings("ignore", message)


def _trainer(
    options: TrainOptions, run: RunFolder, step: int, world: World, callbacks: list[Any], terminal: bool
) -> Any:
    """The Lightning trainer that the options ask for, with what is ours."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Checkpoint
    from lightning.pytorch.plugins.environments import ClusterEnvironment, LightningEnvironment

    from espnet3_rules.train.ranks import WorldEnvironment

    given = {key: _built(value, f"trainer.{key}") for key, value in options.trainer.items()}
    callbacks = [*callbacks, *_listed(given.pop("callbacks", None))]
    plugins = _listed(given.pop("plugins", None))
    if any(isinstance(plugin, ClusterEnvironment) for plugin in plugins):
        raise OptionError("trainer.plugins: a cluster environment cannot be set: the stage starts the ranks itself")
    plugins.append(LightningEnvironment() if starts_its_own_ranks(options) else WorldEnvironment(world))
    logger = _loggers(given.pop("logger", True), run, step, world.rank)
    for ours in ("limit_train_batches", "devices", "num_nodes", "enable_progress_bar", "max_epochs", "max_steps"):
        given.pop(ours, None)
    if isinstance(given.get("val_check_interval"), int):
        # counted since the start of training: a rerun's epoch is shorter
        given.setdefault("check_val_every_n_epoch", None)
    owned = {
        "devices": options.num_device,
        "num_nodes": options.num_nodes,
        "max_epochs": options.max_epochs if options.max_epochs is not None else -1,
        "callbacks": callbacks,
        "plugins": plugins,
        "logger": logger,
        "strategy": _strategy(given.pop("strategy", "auto"), options),
        "enable_progress_bar": terminal,
        "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": run.path,
        "enable_checkpointing": any(isinstance(callback, Checkpoint) for callback in callbacks),
    }
    try:
        return pl.Trainer(**{"enable_model_summary": False, "log_every_n_steps": 10, **given, **owned})
    except (TypeError, ValueError, pl.utilities.exceptions.MisconfigurationException) as error:
        raise OptionError(f"trainer: {error}", hint="see the arguments of lightning.Trainer") from error
    except RuntimeError as error:
        raise EnvironmentProblem(f"trainer: {error}") from error


def _strategy(strategy: Any, options: TrainOptions) -> Any:
    """The strategy: data parallel where there are several processes, and able to leave out whole layers."""
    if strategy == "auto" and options.num_device * options.num_nodes > 1:
        strategy = "ddp"
    if strategy == "ddp" and options.network.layer_dropout > 0:
        return "ddp_find_unused_parameters_true"
    return strategy


def _loggers(given: Any, run: RunFolder, step: int, rank: int) -> list[Any]:
    """The curves, and beside them the loggers of the config, or TensorBoard's."""
    from espnet3_rules.train.progress import CurveLogger

    curves = CurveLogger(run.curves, step)
    if given is None or given is True:
        from lightning.pytorch.loggers import TensorBoardLogger

        # what lies after the step that training continues from is hidden, and shown anew as it comes
        return [curves, TensorBoardLogger(run.path, name="", version="tensorboard", purge_step=step or None)]
    return [curves, *_listed(given or None)]


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _built(value: Any, path: str) -> Any:
    """``value`` with each block that has a ``_target_`` replaced by what it gives."""
    from espnet3_rules.train.schedules import build_object

    if isinstance(value, Mapping):
        if "_target_" in value:
            return build_object(value, path)
        return {k: _built(v, f"{path}.{k}") for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_built(v, f"{path}[{i}]") for i, v in enumerate(value)]
    return value
