"""Training through the workflow: killed with its driver, or left behind by it, and changed."""

from __future__ import annotations

import os
import random
import signal

import pytest

from espnet3_rules.train.run_folder import read_trace
from tests.train.tones import joined
from tests.workflow.conftest import kill_tree, wait_for

INTERVAL = 3  # steps between two saved states


@pytest.fixture
def training(project):
    """The project with a small system that is trained, on a split of its own."""
    project.write_corpus(24)
    (project.folder / "train.tsv").write_text((project.folder / "test.tsv").read_text())
    project.write_corpus(6)
    project.config["corpora"]["tones"]["splits"]["train"] = "train.tsv"
    project.config["systems"]["tones"] = {
        "train": ["tones/train"],
        "valid": ["tones/test"],
        "features": {"sampling_rate": 8000, "mel_bins": 16},
        "network": {"layers": 1, "width": 16, "heads": 2, "feed_forward": 32, "subsampling_channels": 8},
        "batch": {"duration_s": 4, "num_buckets": 2},
        "max_epochs": 4,
        "threads": 1,
        "checkpoint": {"every_s": None, "every_n_steps": INTERVAL, "average_n": 2},
        "trainer": {"accelerator": "cpu", "logger": False},
    }
    return project


def runs(project):
    return [path for path in sorted((project.folder / "exp/tones/runs").glob("*")) if (path / "options.json").exists()]


def batches(project) -> int:
    return sum(len(attempt) for run in runs(project) for attempt in read_trace(run))


def weights(project) -> bytes:
    return (project.folder / "exp/tones/model/model.safetensors").read_bytes()


def wait_for_batches(project, driver, wanted: int) -> None:
    wait_for(lambda: batches(project) >= wanted or driver.poll() is not None, driver, may_end=True)


def killed_and_uninterrupted(project, kills: int, seed: int) -> None:
    """Kills driver and trainer so often, and compares with what no kill gives."""
    chance = random.Random(seed)
    most = 3 * INTERVAL
    for _ in range(kills):
        before = batches(project)
        driver = project.start("train")
        wanted = before + chance.randint(1, most)
        wait_for_batches(project, driver, wanted)
        kill_tree(driver)
    project.run("train")
    (run,) = runs(project)
    trace, overlaps = joined(read_trace(run))
    after_kills = weights(project)
    project.config["exp_dir"] = "undisturbed"
    project.run("train")
    (whole,) = [p for p in (project.folder / "undisturbed/tones/runs").glob("*") if (p / "options.json").exists()]
    assert whole.name == run.name, "the same options and data make the same run"
    (uninterrupted,) = read_trace(whole)
    assert trace == uninterrupted
    assert overlaps and max(overlaps) <= INTERVAL
    assert (project.folder / "undisturbed/tones/model/model.safetensors").read_bytes() == after_kills


def test_training_killed_with_its_driver_goes_on(training):
    killed_and_uninterrupted(training, kills=2, seed=3)


@pytest.mark.slow
def test_training_killed_with_its_driver_ten_times_goes_on(training):
    training.config["systems"]["tones"]["max_epochs"] = 10
    killed_and_uninterrupted(training, kills=10, seed=4)


def test_training_left_behind_is_waited_for_and_a_changed_key_starts_another_run(training):
    driver = training.start("train")
    wait_for(lambda: batches(training) >= 1, driver)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    training.run()
    (run,) = runs(training)
    assert len(read_trace(run)) == 1, "the one that was left behind has done it all"
    assert training.jobs() == {}
    training.config["systems"]["tones"]["log_every_s"] = 1.0
    training.config["systems"]["tones"]["checkpoint"]["keep"] = 3
    assert training.jobs() == {}, "such keys change no model"
    training.config["systems"]["tones"]["max_epochs"] = 5
    jobs = training.jobs()
    assert jobs["train_system"] == 1 and "prepare_split" not in jobs
    printed = training.run()
    assert "max_epochs: 4 -> 5" in printed
    assert len(runs(training)) == 2
    training.config["systems"]["tones"]["max_epochs"] = 4
    training.run()
    assert len(runs(training)) == 2 and len(read_trace(run)) == 1, "the old run was only published again"
