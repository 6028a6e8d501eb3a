"""Several processes that train together: each its part, all the same steps, one result."""

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from lightning.pytorch import Callback

from espnet3_rules.errors import EnvironmentProblem, Interrupted
from tests.train.tones import Work, joined, make_manifest

TWO = {"num_device": 2, "trainer": {"logger": False, "accelerator": "cpu"}}
#: Lightning forks the ranks, which is quick; `ddp` starts new processes, which have to import everything first.
FORK = {**TWO, "trainer": {**TWO["trainer"], "strategy": "ddp_fork"}}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory, data):
    """A training on two ranks that nothing disturbed."""
    work = Work(tmp_path_factory.mktemp("two"), data)
    work.process(**TWO).finish()
    return work


def assert_halves(trace):
    for epoch in (0, 1):
        lines = [line for line in trace if line["epoch"] == epoch]
        batches = Counter(line["rank"] for line in lines)
        assert batches[0] == batches[1] > 3
        seen = [[i for line in lines if line["rank"] == rank for i in line["ids"]] for rank in (0, 1)]
        assert sorted(seen[0] + seen[1]) == sorted(f"train-{i}" for i in range(50))
        assert min(len(seen[0]), len(seen[1])) > 15


def test_each_rank_has_its_part(two_ranks):
    (trace,) = two_ranks.traces()
    assert_halves(trace)
    # nine validation utterances, each counted once
    assert {value for _, value in two_ranks.curve("valid/utterances")} == {"9"}


def test_killed_and_continued(two_ranks, work):
    process = work.process(**TWO)
    work.wait_for_batches(process, 6)
    process.signal(signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 30
    while (children := ranks_of(work)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not children, "a rank outlived the one that started it"

    work.process(**TWO).finish()
    whole, overlaps = joined(work.traces())
    assert whole == joined(two_ranks.traces())[0]
    assert max(overlaps) <= 2 * 4  # batches of both ranks, in the four steps between two saved states
    assert work.weights() == two_ranks.weights()
    assert work.curve("valid/loss") == two_ranks.curve("valid/loss")


def ranks_of(work):
    """The processes that are ranks of this training."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if b"espnet3_rules.train.driver import child" in command and os.fsencode(work.runs) in command:
            found.append(int(path.parent.name))
    return found


def test_a_rank_that_dies_ends_the_run(work):
    process = work.process(**TWO)
    work.wait_for_batches(process, 2)
    (child,) = ranks_of(work)
    os.kill(child, signal.SIGKILL)
    assert process.wait(60) == EnvironmentProblem.exit_code
    assert "rank 1 of 2 ended with signal SIGKILL" in process.log.read_text()


@pytest.mark.slow
def test_a_rank_that_fails_shows_its_traceback(work, data):
    trainer = {**TWO["trainer"], "callbacks": [{"_target_": "tests.train.test_ranks.FailsOnRank1"}]}
    process = work.process(num_device=2, trainer=trainer)
    assert process.wait(90) == EnvironmentProblem.exit_code
    said = process.log.read_text()
    assert "rank 1 failed:" in said
    assert 'raise ZeroDivisionError("on purpose")' in said


@pytest.mark.parametrize("strategy", ["ddp_fork", pytest.param("ddp_spawn", marks=pytest.mark.slow)])
def test_ranks_that_lightning_starts(work, two_ranks, strategy):
    changes = {**TWO, "trainer": {**TWO["trainer"], "strategy": strategy}}
    process = work.process(**changes)
    work.wait_for_batches(process, 4)
    process.signal(signal.SIGTERM)
    assert process.wait() == Interrupted.exit_code
    work.process(**changes).finish()
    whole, overlaps = joined(work.traces())
    assert whole == joined(two_ranks.traces())[0]
    assert overlaps == [0]
    assert work.weights() == two_ranks.weights()


@pytest.mark.parametrize("utterances, batches", [(21, [11, 11]), (3, [2, 2]), (1, [1, 1])])
def test_uneven_batches(work, tmp_path, data, utterances, batches):
    """21 batches of one utterance: ten for one rank, eleven for the other, and no rank waits."""
    make_manifest(tmp_path / "few", "train", utterances)
    make_manifest(tmp_path / "few", "valid", 3)
    few = Work(tmp_path, tmp_path / "few")
    few.process(**FORK, batch={"max_cuts": 1}, max_epochs=1).finish()
    (trace,) = few.traces()
    assert [sum(line["rank"] == rank for line in trace) for rank in (0, 1)] == batches
    assert sorted(i for line in trace for i in line["ids"]) == sorted(f"train-{i}" for i in range(utterances))
    assert {value for _, value in few.curve("valid/utterances")} == {"3"}


def test_two_ranks_do_what_one_does_with_both_batches(tmp_path, data):
    """The loss is divided once, over all ranks, however uneven their batches are."""
    make_manifest(tmp_path / "few", "train", 5)
    make_manifest(tmp_path / "few", "valid", 2)
    same = {
        "network": {"dropout": 0.0},
        "augment": {"speed": [1.0], "frequency_masks": 0, "time_masks": 0},
        "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.01},
        "batch": {"duration_s": 100, "num_buckets": 1},
        "max_epochs": 1,
    }
    one, two = Work(tmp_path, tmp_path / "few", "one"), Work(tmp_path, tmp_path / "few", "two")
    one.here(**same)
    two.process(**{**same, **FORK}).finish()
    assert [len(line["ids"]) for line in two.traces()[0]] in ([3, 2], [2, 3])
    losses = [[float(value) for _, value in work.curve("valid/loss")] for work in (one, two)]
    # batch normalisation sees other batches; weights that were divided by two would be further away
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert json.loads((two.run / "complete.json").read_text())["steps"] == [1]


class FailsOnRank1(Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_rank == 1:
            raise ZeroDivisionError("on purpose")
