"""Batches that fail: only what cannot be done alone is given up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3_rules.attempts import HOPELESS, Attempts, Failed, is_out_of_memory
from espnet3_rules.errors import EnvironmentProblem, OptionError


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120), st.booleans())
def test_whatever_fits_is_done(sizes, memory, learns):
    batches = []

    def work(batch):
        batches.append(len(batch))
        if sum(batch) > memory:
            raise MemoryError
        return [-size for size in batch]

    results = Attempts(work, size=sum if learns else None, proven=True)(sizes)
    assert results == [Failed("out of memory, decoded on its own") if size > memory else -size for size in sizes]
    assert len(batches) <= 2 * len(sizes)


def test_what_was_too_much_is_not_tried_again():
    sizes = []

    def work(batch):
        sizes.append(len(batch))
        if len(batch) > 8:
            raise MemoryError
        return batch

    attempts = Attempts(work, size=len)
    for _ in range(3):
        assert attempts(list(range(32))) == list(range(32))
    assert sizes == [32, 16, *[8] * 12]


@given(st.lists(st.sampled_from(["good", "bad"]), max_size=30))
def test_what_raises_alone_fails_alone(batch):
    def work(batch):
        if "bad" in batch:
            raise ValueError("bad one\nwith details")
        return batch

    expected = [Failed("ValueError: bad one") if x == "bad" else x for x in batch]
    assert Attempts(work, proven=True)(batch) == expected


def test_a_fault_that_all_meet_stops():
    def work(batch):
        raise KeyError("beam")

    with pytest.raises(KeyError) as raised:
        Attempts(work)(list(range(100)))
    assert str(HOPELESS) in raised.value.__notes__[0]
    assert len(Attempts(work)(list(range(HOPELESS - 1)))) == HOPELESS - 1
    assert len(Attempts(work, proven=True)(list(range(100)))) == 100


def test_a_device_that_is_full_stops():
    def work(batch):
        raise RuntimeError("CUDA out of memory.")

    with pytest.raises(EnvironmentProblem, match="out of memory on each"):
        Attempts(work)(list(range(100)))


def test_what_the_user_has_to_change_is_raised_at_once():
    calls = []

    def work(batch):
        calls.append(batch)
        raise OptionError("lm: no such file")

    with pytest.raises(OptionError):
        Attempts(work)([1, 2, 3])
    assert len(calls) == 1


def test_the_ways_of_saying_out_of_memory():
    import torch

    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA"))
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(raised.value)
    assert not is_out_of_memory(ValueError("out of memory"))
