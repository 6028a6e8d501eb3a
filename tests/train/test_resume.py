"""Killed at any time, a training goes on inside the epoch and ends as if nothing had been."""

import random
import signal
import time

import pytest

from espnet3_rules.errors import Interrupted
from espnet3_rules.train.run_folder import RunFolder
from tests.train.tones import joined

INTERVAL = 4  # steps, as in tones.BASE


def assert_as_uninterrupted(work, uninterrupted):
    whole, overlaps = joined(work.traces())
    assert whole == joined(uninterrupted.traces())[0]
    assert max(overlaps, default=0) <= INTERVAL
    assert work.weights() == uninterrupted.weights()
    assert work.curve("valid/loss") == uninterrupted.curve("valid/loss")
    assert work.curve("train/loss") == uninterrupted.curve("train/loss")


def test_an_epoch_has_each_utterance_once(uninterrupted):
    (trace,) = uninterrupted.traces()
    for epoch in (0, 1):
        ids = [utt_id for line in trace if line["epoch"] == epoch for utt_id in line["ids"]]
        assert sorted(ids) == sorted(f"train-{i}" for i in range(50))
    first, second = ([line["ids"] for line in trace if line["epoch"] == epoch] for epoch in (0, 1))
    assert first != second
    assert len(trace) > 20


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_moments(work, uninterrupted, seed):
    kill_and_rerun(work, kills=2, seed=seed)
    assert_as_uninterrupted(work, uninterrupted)


@pytest.mark.slow
def test_killed_ten_times(work, uninterrupted):
    kill_and_rerun(work, kills=10, seed=0)
    assert_as_uninterrupted(work, uninterrupted)


def kill_and_rerun(work, *, kills, seed, **changes):
    generator = random.Random(seed)
    for _ in range(kills):
        process = work.process(**changes)
        # sometimes before the first batch of the attempt, seldom after its first saved state
        work.wait_for_batches(process, generator.randint(0, 2 * INTERVAL))
        time.sleep(generator.uniform(0, 0.1))
        process.signal(signal.SIGKILL)
        process.wait()
    work.process(**changes).finish()


def test_starting_again_from_nothing_is_seen(work, uninterrupted):
    process = work.process()
    work.wait_for_batches(process, 2 * INTERVAL + 1)
    process.signal(signal.SIGKILL)
    process.wait()
    states = RunFolder(work.run).states
    for path in states.iterdir():
        path.unlink()
    work.process().finish()
    with pytest.raises(AssertionError):
        assert_as_uninterrupted(work, uninterrupted)


def test_a_damaged_state_falls_back_to_the_one_before(work, uninterrupted):
    process = work.process()
    work.wait_for_batches(process, 2 * INTERVAL + 2)
    process.signal(signal.SIGKILL)
    process.wait()
    newest, before = sorted(RunFolder(work.run).states.glob("*.ckpt"), reverse=True)[:2]
    newest.write_bytes(newest.read_bytes()[:-1000])
    said = work.process().finish()
    assert f"{newest.name} is damaged" in said
    assert f"continues after step {int(before.stem)}" in said
    whole, overlaps = joined(work.traces())
    assert whole == joined(uninterrupted.traces())[0]
    assert INTERVAL < overlaps[0] <= 2 * INTERVAL
    assert work.weights() == uninterrupted.weights()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_at_once(work, uninterrupted, number):
    process = work.process()
    work.wait_for_batches(process, 2)
    process.signal(number)
    assert process.wait() == Interrupted.exit_code
    assert f"stopped by {number.name} in epoch 1" in process.log.read_text()
    work.process().finish()
    assert joined(work.traces())[1] == [0]
    assert_as_uninterrupted(work, uninterrupted)


def test_a_signal_during_validation(work, uninterrupted, monkeypatch):
    """The rest of the validation is done by the rerun, and each value is logged once."""
    from espnet3_rules.train.callbacks import StateKeeper

    original = StateKeeper.on_validation_batch_start

    def interrupted(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        if trainer.current_epoch == 0 and batch_idx == 1:
            self.stop.signal = signal.SIGTERM
        original(self, trainer, pl_module, batch, batch_idx, dataloader_idx)

    with monkeypatch.context() as patch:
        patch.setattr(StateKeeper, "on_validation_batch_start", interrupted)
        with pytest.raises(Interrupted):
            work.here()
    work.here()
    assert_as_uninterrupted(work, uninterrupted)


def test_kept_states_are_few(work):
    process = work.process(max_epochs=5, checkpoint={"every_n_steps": 1, "keep": 2})
    work.wait_for_batches(process, 12)
    process.signal(signal.SIGKILL)
    process.wait()
    assert 2 <= len(list((work.run / "states").glob("*.json"))) <= 3


def test_accumulation_is_not_cut(work, uninterrupted):
    changes = {"trainer": {"logger": False, "accumulate_grad_batches": 3}, "checkpoint": {"every_n_steps": 1}}
    process = work.process(**changes)
    work.wait_for_batches(process, 5)
    process.signal(signal.SIGTERM)
    assert process.wait() == Interrupted.exit_code
    work.process(**changes).finish()
    whole, overlaps = joined(work.traces())
    assert overlaps == [0]
    for epoch in (0, 1):
        steps = [line["step"] for line in whole if line["epoch"] == epoch]
        assert len(steps) == sum(line["epoch"] == epoch for line in uninterrupted.traces()[0])
        # every third batch is a step, and so is the last one of an epoch
        first = steps[0]
        assert steps == [first + (i + 1) // 3 for i in range(len(steps) - 1)] + [first + -(-len(steps) // 3)]
