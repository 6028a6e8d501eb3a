"""The optimiser and the learning rate over the steps, from their blocks in the config."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from espnet3_rules.errors import OptionError, RulesError


def build_object(block: Mapping[str, Any], path: str, *arguments: Any, **more: Any) -> Any:
    """What the block's ``_target_`` gives, called with ``arguments`` and the block's keys.

    Raises:
        OptionError: it cannot be imported or called; ``path`` names the block.
    """
    import hydra.errors
    import hydra.utils

    try:
        # partial: hydra would turn the arguments (parameters, an optimiser) into config nodes
        return hydra.utils.instantiate({**block, "_partial_": True}, _convert_="all")(*arguments, **more)
    except RulesError:
        raise
    except (hydra.errors.HydraException, ImportError, TypeError, ValueError, AttributeError) as error:
        cause = error.__cause__ or error
        raise OptionError(
            f"{path}: {block.get('_target_')} cannot be built: {cause}",
            hint="`_target_` is an import path; the block's other keys are its arguments",
        ) from error


def build_optimizer(block: Mapping[str, Any], parameters: Iterable[Any]) -> Any:
    """The optimiser over ``parameters``; AdamW where the block has no ``_target_``."""
    return build_object({"_target_": "torch.optim.AdamW", **block}, "optimizer", parameters)


def build_scheduler(block: Mapping[str, Any], optimizer: Any, total_steps: int) -> Any:
    """The learning rate scheduler, to be stepped after each of about ``total_steps`` optimiser steps."""
    from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

    if "_target_" not in block:
        return LambdaLR(optimizer, schedule(block, total_steps))
    more = {"total_steps": total_steps} if _wants_total(block) else {}
    scheduler = build_object(block, "scheduler", optimizer, **more)
    if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, LRScheduler):
        raise OptionError(
            f"scheduler._target_: {block['_target_']} does not go by the step",
            hint="take one of torch.optim.lr_scheduler other than ReduceLROnPlateau, or a name",
        )
    return scheduler


def _wants_total(block: Mapping[str, Any]) -> bool:
    """Whether the class takes the number of steps (as OneCycleLR does) and the user leaves it to us."""
    import hydra.utils

    if {"total_steps", "epochs", "steps_per_epoch"} & block.keys():
        return False
    try:
        return "total_steps" in inspect.signature(hydra.utils.get_object(block["_target_"])).parameters
    except (ImportError, ValueError, TypeError):
        return False


def schedule(block: Mapping[str, Any], total_steps: int) -> Callable[[int], float]:
    """The factor on the learning rate at each step from 0, for one of `options.SCHEDULES`.

    All rise linearly over ``warmup_steps`` (at most a fifth of the training, so that a short one gets anywhere);
    ``warmup_cosine`` then falls along a half cosine to ``final``, ``noam`` with the inverse square root of the
    step (https://arxiv.org/abs/1706.03762, scaled to 1 at its top), ``constant`` not at all.
    """
    name, final = block.get("name", "constant"), float(block.get("final", 0.0))
    warmup = max(1, min(int(block.get("warmup_steps", 0)), math.ceil(total_steps / 5)))

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if name == "noam":
            return math.sqrt(warmup / (step + 1))
        if name == "warmup_cosine":
            done = min(1.0, (step - warmup) / max(1, total_steps - warmup))
            return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * done))
        return 1.0

    return factor
