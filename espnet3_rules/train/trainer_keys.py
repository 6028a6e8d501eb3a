"""Which keys of `lightning.Trainer` a user may set, and which of them can change the trained model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espnet3_rules.errors import OptionError
from espnet3_rules.options import nearest, unknown_key

#: Every argument of `lightning.Trainer`: whether it can change the trained model. A test holds it to the class.
KEYS = {
    "accelerator": True,
    "strategy": True,
    "devices": True,
    "num_nodes": True,
    "precision": True,
    "logger": False,
    "callbacks": True,
    "fast_dev_run": True,
    "max_epochs": True,
    "min_epochs": True,
    "max_steps": True,
    "min_steps": True,
    "max_time": True,
    "limit_train_batches": True,
    "limit_val_batches": True,
    "limit_test_batches": False,
    "limit_predict_batches": False,
    "overfit_batches": True,
    "val_check_interval": True,
    "check_val_every_n_epoch": True,
    "num_sanity_val_steps": False,
    "log_every_n_steps": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accumulate_grad_batches": True,
    "gradient_clip_val": True,
    "gradient_clip_algorithm": True,
    "deterministic": True,
    "benchmark": False,
    "inference_mode": False,
    "use_distributed_sampler": False,
    "profiler": False,
    "detect_anomaly": False,
    "barebones": False,
    "plugins": True,
    "sync_batchnorm": True,
    "reload_dataloaders_every_n_epochs": False,
    "default_root_dir": False,
    "enable_autolog_hparams": False,
    "model_registry": False,
}

#: What the stage sets itself: the only value that is let through, the reason, and what to do in its place.
OWNED: dict[str, tuple[Any, str, str]] = {
    "use_distributed_sampler": (
        False,
        "the data module gives each rank its own part, by length; another sampler would undo that",
        "leave it out",
    ),
    "reload_dataloaders_every_n_epochs": (
        0,
        "the data module starts each epoch itself, so that a rerun can continue inside one",
        "leave it out",
    ),
    "num_sanity_val_steps": (
        0,
        "a check before each start would count utterances twice and slow down every rerun",
        "leave it out",
    ),
    "default_root_dir": (None, "all files of a run lie in its own folder, where a rerun finds them", "leave it out"),
    "enable_checkpointing": (
        True,
        "the stage saves its state itself, so that it can continue inside an epoch",
        "leave it out; `checkpoint` says when and what is kept",
    ),
    "max_epochs": (None, "it is a key of the system", "move it one level up: max_epochs"),
    "max_steps": (None, "it is a key of the system", "move it one level up: max_steps"),
    "max_time": (None, "the model would depend on how fast the machine was", "set max_steps"),
    "fast_dev_run": (False, "it would publish a model that has seen a few batches", "set max_steps"),
    "overfit_batches": (0, "it replaces the data module's sampler", "set train to a small manifest"),
    "barebones": (False, "it turns off what the stage needs to save its state", "leave it out"),
}

#: Callbacks of Lightning that only watch.
QUIET_CALLBACKS = (
    "DeviceStatsMonitor",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "ProgressBar",
    "RichModelSummary",
    "RichProgressBar",
    "ThroughputMonitor",
    "TQDMProgressBar",
)

#: The values that Lightning knows by name; a test holds each table to Lightning's own.
PRECISIONS: tuple[str | int, ...] = (
    "transformer-engine", "transformer-engine-float16", "16-true", "16-mixed", "bf16-true", "bf16-mixed", "32-true",
    "64-true", 64, 32, 16, "64", "32", "16", "bf16",
)  # fmt: skip
ACCELERATORS = ("auto", "gpu", "cpu", "cuda", "mps", "tpu")
STRATEGIES = (
    "auto",
    "ddp", "ddp_find_unused_parameters_false", "ddp_find_unused_parameters_true",
    "ddp_fork", "ddp_fork_find_unused_parameters_false", "ddp_fork_find_unused_parameters_true",
    "ddp_notebook", "ddp_notebook_find_unused_parameters_false", "ddp_notebook_find_unused_parameters_true",
    "ddp_spawn", "ddp_spawn_find_unused_parameters_false", "ddp_spawn_find_unused_parameters_true",
    "deepspeed", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_2_offload", "deepspeed_stage_3",
    "deepspeed_stage_3_offload", "deepspeed_stage_3_offload_nvme",
    "fsdp", "fsdp_cpu_offload", "single_device", "single_tpu", "single_xla", "xla", "xla_debug",
)  # fmt: skip
_NAMED: dict[str, tuple[str | int, ...]] = {
    "precision": PRECISIONS,
    "accelerator": ACCELERATORS,
    "strategy": STRATEGIES,
}

_NO_LENGTH = "the sampler makes batches by duration as it goes, so an epoch has no length to take a part of"


def check_trainer(trainer: Mapping[str, Any], num_device: int, num_nodes: int) -> None:
    """Raises `OptionError` for a key of ``trainer`` that is unknown, is the stage's own, or contradicts the devices."""
    for key, value in trainer.items():
        if key not in KEYS:
            raise unknown_key(f"trainer.{key}", key, KEYS)
        if key in OWNED:
            allowed, reason, instead = OWNED[key]
            if value is not None and value != allowed:
                raise OptionError(f"trainer.{key}: {value!r} cannot be set: {reason}", hint=instead)
    for key, name, wanted in (("devices", "num_device", num_device), ("num_nodes", "num_nodes", num_nodes)):
        if trainer.get(key) is not None and trainer[key] not in (wanted, str(wanted)):
            raise OptionError(
                f"trainer.{key}: {trainer[key]!r}, and {name} says {wanted}",
                hint=f"set {name} at the top of the config and leave trainer.{key} out",
            )
    _check_names(trainer)
    _check_limits(trainer)
    _check_blocks(trainer)


def _check_names(trainer: Mapping[str, Any]) -> None:
    """Values that go by a name are among those that Lightning knows; an accelerator or strategy may be a block."""
    for key, known in _NAMED.items():
        value = trainer.get(key)
        if value is None or (key != "precision" and isinstance(value, Mapping)):
            continue
        if not isinstance(value, str | int) or isinstance(value, bool) or value not in known:
            names = list(dict.fromkeys(map(str, known)))
            near = nearest(str(value), names)
            raise OptionError(
                f"trainer.{key}: Lightning knows no {value!r}",
                hint=(f"did you mean '{near}'? " if near else "") + f"it knows {', '.join(names)}",
            )


def _check_limits(trainer: Mapping[str, Any]) -> None:
    """Counts of batches are whole numbers."""
    for key in ("limit_train_batches", "limit_val_batches", "limit_test_batches", "limit_predict_batches"):
        value = trainer.get(key)
        if isinstance(value, float):
            raise OptionError(f"trainer.{key}: {value!r} is a fraction: {_NO_LENGTH}", hint="give a number of batches")
    interval = trainer.get("val_check_interval")
    if interval is None or (isinstance(interval, int) and not isinstance(interval, bool)):
        return
    if isinstance(interval, float):
        if interval != 1.0:
            raise OptionError(
                f"trainer.val_check_interval: {interval!r} is a fraction: {_NO_LENGTH}",
                hint="give a number of batches, or leave it out to validate after each epoch",
            )
        return
    raise OptionError(
        f"trainer.val_check_interval: {interval!r} goes by the clock, so that a rerun would validate at other steps",
        hint="give a number of batches, or leave it out to validate after each epoch",
    )


def _check_blocks(trainer: Mapping[str, Any]) -> None:
    """Objects are given as blocks with ``_target_``, alone or in a list."""
    for key in ("logger", "callbacks", "plugins"):
        value = trainer.get(key)
        if key == "plugins" and isinstance(value, str):
            continue
        for i, one in enumerate(value if isinstance(value, list | tuple) else [value]):
            if one is None or isinstance(one, bool) or (isinstance(one, Mapping) and "_target_" in one):
                continue
            where = f"trainer.{key}[{i}]" if isinstance(value, list | tuple) else f"trainer.{key}"
            raise OptionError(
                f"{where}: expected a block with `_target_`, found {one!r}",
                hint=f"for example {{_target_: lightning.pytorch.{_EXAMPLES[key]}}}",
            )


_EXAMPLES = {
    "logger": "loggers.CSVLogger, save_dir: logs",
    "callbacks": "callbacks.EarlyStopping, monitor: valid/loss",
    "plugins": "plugins.MixedPrecision, precision: bf16-mixed, device: cpu",
}


def result_keys(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """The part of ``trainer`` that can change the trained model: without logging, progress and what only watches."""
    kept = {key: value for key, value in trainer.items() if KEYS.get(key, True) and key not in ("devices", "num_nodes")}
    callbacks = kept.pop("callbacks", None)
    if callbacks:
        listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
        changing = [one for one in listed if _target(one).rsplit(".", 1)[-1] not in QUIET_CALLBACKS]
        if changing:
            kept["callbacks"] = changing
    return {key: value for key, value in kept.items() if value is not None}


def _target(block: Any) -> str:
    return str(block.get("_target_", "")) if isinstance(block, Mapping) else ""
