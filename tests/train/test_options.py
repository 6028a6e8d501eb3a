"""Training options: what is refused, with which reason, and that the table of Lightning's keys is whole."""

import inspect
import subprocess
import sys

import pytest

from espnet3_rules.errors import OptionError
from espnet3_rules.train import TrainOptions
from espnet3_rules.train.schedules import schedule
from espnet3_rules.train.trainer_keys import ACCELERATORS, KEYS, OWNED, PRECISIONS, STRATEGIES, result_keys


def test_the_table_has_every_key_of_lightning():
    from lightning.pytorch import Trainer

    assert KEYS.keys() == set(inspect.signature(Trainer).parameters)
    assert OWNED.keys() <= KEYS.keys()


def test_the_tables_have_every_name_of_lightning():
    from typing import get_args

    from lightning.fabric.plugins.precision import precision
    from lightning.pytorch.accelerators import AcceleratorRegistry
    from lightning.pytorch.strategies import StrategyRegistry

    literals = (precision._PRECISION_INPUT_STR, precision._PRECISION_INPUT_INT, precision._PRECISION_INPUT_STR_ALIAS)
    assert set(PRECISIONS) == {value for literal in literals for value in get_args(literal)}
    assert set(ACCELERATORS) == {"auto", "gpu", *AcceleratorRegistry.available_accelerators()}
    assert set(STRATEGIES) == {"auto", *StrategyRegistry.available_strategies()}


def test_importing_the_options_is_cheap():
    script = "import sys, espnet3_rules.train; print([m for m in ('torch', 'lightning', 'lhotse') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize(
    "values, message, hint",
    [
        ({"trainer": {"precison": 16}}, "systems.a.trainer.precison: unknown key", "did you mean 'precision'?"),
        ({"trainer": {"use_distributed_sampler": True}}, "trainer.use_distributed_sampler", "leave it out"),
        ({"trainer": {"reload_dataloaders_every_n_epochs": 1}}, "continue inside one", "leave it out"),
        ({"trainer": {"max_epochs": 3}}, "trainer.max_epochs", "one level up"),
        ({"trainer": {"devices": 2}}, "trainer.devices: 2, and num_device says 1", "set num_device"),
        ({"trainer": {"num_nodes": 2}}, "trainer.num_nodes: 2, and num_nodes says 1", "set num_nodes"),
        ({"trainer": {"limit_train_batches": 0.5}}, "is a fraction", "a number of batches"),
        ({"trainer": {"val_check_interval": 0.5}}, "is a fraction", "a number of batches"),
        ({"trainer": {"val_check_interval": "00:01:00"}}, "goes by the clock", "a number of batches"),
        ({"trainer": {"callbacks": ["EarlyStopping"]}}, r"trainer.callbacks\[0\]", "_target_: lightning"),
        ({"trainer": {"precision": "bf16-mixd"}}, "trainer.precision", "did you mean 'bf16-mixed'?"),
        ({"trainer": {"precision": 17}}, "trainer.precision", "32-true"),
        ({"trainer": {"precision": 32.0}}, "trainer.precision", "32-true"),
        ({"trainer": {"accelerator": "cuda1"}}, "trainer.accelerator", "did you mean 'cuda'?"),
        ({"trainer": {"strategy": "dpp"}}, "trainer.strategy", "did you mean 'ddp'?"),
        ({"features": {"mel_bins": 42}}, "features.mel_bins: 42 is not a multiple", "take 40 or 44"),
        ({"features": {"mel_bins": 6}, "network": {"subsampling": 8}}, "features.mel_bins", "take 8"),
        ({"optimizer": {"lr": "2e-3"}}, "optimizer.lr", "2.0e-3"),
        ({"optimizer": {"lr": 0}}, "optimizer.lr", None),
        ({"optimizer": {"lr": None}}, "optimizer.lr", None),
        ({"optimizer": {"lr": float("nan")}}, "optimizer.lr", None),
        ({"seed": 2**32}, "seed", None),
        ({"scheduler": {"name": "warmup_cosin"}}, "scheduler.name", "did you mean 'warmup_cosine'?"),
        ({"scheduler": {"warmup": 3}}, "scheduler.warmup: unknown key", "did you mean 'warmup_steps'?"),
        ({"scheduler": {"warmup_steps": 0.5}}, "scheduler.warmup_steps", None),
        ({"optimizer": {"_target_": 3}}, "optimizer._target_", None),
        ({"max_epochs": None}, "max_epochs: null", "never ends"),
        ({"checkpoint": {"every_s": None}}, "checkpoint.every_s: null", "a kill costs the whole run"),
        ({"augment": {"speed": []}}, "augment.speed", None),
        ({"augment": {"speed": [0.0]}}, "augment.speed", None),
    ],
)
def test_refused(values, message, hint):
    with pytest.raises(OptionError, match=message) as caught:
        TrainOptions.from_dict(values, "systems.a")
    assert str(caught.value).startswith("systems.a.")
    if hint:
        assert hint in caught.value.hint


@pytest.mark.parametrize(
    "trainer",
    [
        {"devices": 2, "num_nodes": 1, "use_distributed_sampler": False},
        {"strategy": {"_target_": "lightning.pytorch.strategies.DDPStrategy", "static_graph": True}},
        {"val_check_interval": 100, "limit_val_batches": 3, "precision": "bf16-mixed", "logger": False},
        {"callbacks": {"_target_": "lightning.pytorch.callbacks.EarlyStopping", "monitor": "valid/loss"}},
        {"strategy": "ddp_find_unused_parameters_true", "precision": 16, "accelerator": "gpu"},
        {"strategy": "fsdp", "precision": "bf16"},
        {"strategy": "deepspeed_stage_2", "accelerator": "auto", "precision": None},
    ],
)
def test_let_through(trainer):
    TrainOptions.from_dict({"num_device": 2, "trainer": trainer})


def test_only_what_changes_the_model_is_in_the_key():
    quiet = {"_target_": "lightning.pytorch.callbacks.LearningRateMonitor"}
    loud = {"_target_": "lightning.pytorch.callbacks.EarlyStopping", "monitor": "valid/loss"}
    assert result_keys({"logger": False, "callbacks": [quiet], "devices": 2, "precision": None}) == {}
    kept = result_keys({"profiler": "simple", "callbacks": [quiet, loud], "precision": "64"})
    assert kept == {"callbacks": [loud], "precision": "64"}


def test_schedules():
    cosine = schedule({"name": "warmup_cosine", "warmup_steps": 10, "final": 0.1}, 110)
    assert [cosine(0), cosine(9), cosine(10)] == pytest.approx([0.1, 1.0, 1.0])
    assert cosine(60) == pytest.approx(0.55)
    assert cosine(110) == cosine(500) == pytest.approx(0.1)
    noam = schedule({"name": "noam", "warmup_steps": 100}, 10000)
    assert [noam(99), noam(399)] == pytest.approx([1.0, 0.5])
    assert schedule({"warmup_steps": 0}, 10)(0) == 1.0
    # a training shorter than its warm-up still gets to the top
    assert max(map(schedule({"name": "warmup_cosine", "warmup_steps": 1000}, 50), range(50))) == 1.0
