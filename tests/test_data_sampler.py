"""Batches: every utterance once, the same for the same seed, the same number for every rank."""

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from espnet3_rules.data.sampler import TrainSampler, validation_plans
from espnet3_rules.manifest import Entry

durations = st.lists(st.floats(0.1, 20).map(lambda d: round(d, 2)), min_size=1, max_size=60)


def entries_of(lengths):
    return [Entry(f"u{i}", length, 0, 0, "", (), (), "text", None) for i, length in enumerate(lengths)]


def batches(entries, epoch=0, world_size=1, start=0, **changes):
    options = {"duration_s": 30.0, "num_buckets": 4, "seed": 7, **changes}
    return [
        list(TrainSampler(entries, rank=rank, world_size=world_size, position=lambda: (epoch, start), **options))
        for rank in range(world_size)
    ]


@settings(max_examples=40, deadline=None)
@given(durations, st.integers(1, 4), st.integers(0, 3), st.integers(1, 8))
def test_each_utterance_once_and_all_ranks_in_step(lengths, world_size, epoch, num_buckets):
    entries = entries_of(lengths)
    of_rank = batches(entries, epoch, world_size, num_buckets=num_buckets)
    assert len({len(plans) for plans in of_rank}) == 1
    seen = Counter(utt_id for plans in of_rank for plan in plans for utt_id in plan.ids)
    assert seen == Counter(entry.id for entry in entries)
    longest = dict(zip((e.id for e in entries), lengths, strict=True))
    for plan in itertools.chain(*of_rank):
        assert len(plan.ids) <= 1 or len(plan.ids) * max(longest[i] for i in plan.ids) <= 30.0 * 1.0001
        assert plan.epoch == epoch


@settings(max_examples=20, deadline=None)
@given(durations, st.integers(1, 3), st.integers(0, 9))
def test_it_goes_on_where_it_was(lengths, world_size, start):
    entries = entries_of(lengths)
    whole, rest = batches(entries, 1, world_size), batches(entries, 1, world_size, start=start)
    assert rest == [plans[start:] for plans in whole]


def test_epochs_and_seeds_differ_and_the_same_seed_does_not():
    entries = entries_of([1 + i % 7 for i in range(100)])
    first, again = batches(entries), batches(entries)
    assert first == again
    assert [p.ids for p in batches(entries, 1)[0]] != [p.ids for p in first[0]]
    assert [p.ids for p in batches(entries, seed=8)[0]] != [p.ids for p in first[0]]


def test_a_small_buffer_still_mixes_all_of_the_corpus():
    entries = entries_of([1.0] * 1000)
    (plans,) = batches(entries, shuffle_buffer=50)
    first = [int(utt_id[1:]) for plan in plans[:5] for utt_id in plan.ids]
    assert max(first) > 700


def test_lengths_are_together():
    entries = entries_of([1 + 0.01 * i for i in range(400)])
    of = {entry.id: entry.duration_s for entry in entries}
    (plans,) = batches(entries)
    spread = sum(max(of[i] for i in p.ids) - min(of[i] for i in p.ids) for p in plans) / len(plans)
    assert spread < 1.5  # of four seconds, in four buckets


def test_limits():
    entries = entries_of([2.0] * 40)
    (plans,) = batches(entries, max_cuts=3, limit=4)
    assert [len(plan.ids) for plan in plans] == [3] * 4
    sampler = TrainSampler(entries, duration_s=30.0, max_cuts=3, limit=4)
    assert sampler.batches_per_epoch() == 4
    assert TrainSampler(entries, duration_s=30.0).batches_per_epoch() == 3
    assert list(TrainSampler([], duration_s=30.0)) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.1, 20), max_size=60), st.integers(1, 5), st.one_of(st.none(), st.integers(1, 9)))
def test_validation_has_each_utterance_once(lengths, world_size, max_cuts):
    entries = entries_of(lengths)
    of_rank = [
        validation_plans(entries, duration_s=30.0, max_cuts=max_cuts, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert len({len(plans) for plans in of_rank}) == 1
    seen = Counter(utt_id for plans in of_rank for plan in plans for utt_id in plan.ids)
    assert seen == Counter(entry.id for entry in entries)
    assert all(len(plan.ids) <= (max_cuts or 60) for plans in of_rank for plan in plans)
