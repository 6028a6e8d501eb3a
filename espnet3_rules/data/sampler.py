"""Which utterances are trained on together, and in which order: the same for the same seed, whatever is killed.

Training batches are Lhotse's: buckets of similar length, at most so many seconds a batch, drawn anew each epoch
from the seed. With several ranks each takes every n-th batch, and all get the same number of them. Lhotse repeats
cuts where the last ones are fewer than the ranks; here those ranks get an empty batch instead, so that an epoch
holds every utterance once.
"""

from __future__ import annotations

import bisect
import dataclasses
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence

from espnet3_rules.manifest import Entry

#: Above this many utterances the length of an epoch is estimated from a part of them.
_COUNTED = 20000


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The utterances of one batch of one rank; none for a rank that only keeps step."""

    epoch: int
    #: Number of the batch within the epoch, from 0; the same on all ranks.
    batch: int
    ids: tuple[str, ...]


class TrainSampler:
    """The training batches of one rank, epoch by epoch; iterating starts at the position it asks for.

    Args:
        entries: the utterances.
        duration_s: most audio of a batch, as its number of utterances times the longest.
        max_cuts: most utterances of a batch.
        num_buckets: groups of similar length.
        shuffle_buffer: utterances held to draw from.
        seed: where the order starts.
        rank: of this process; world_size: number of processes.
        position: gives (epoch, batches of it that are done) when an iteration starts.
        limit: most batches of an epoch.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        *,
        duration_s: float,
        max_cuts: int | None = None,
        num_buckets: int = 10,
        shuffle_buffer: int = 20000,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        position: Callable[[], tuple[int, int]] = lambda: (0, 0),
        limit: int | None = None,
    ) -> None:
        self.ids = [entry.id for entry in entries]
        self.durations = [entry.duration_s for entry in entries]
        self.duration_s, self.max_cuts, self.shuffle_buffer = duration_s, max_cuts, shuffle_buffer
        self.seed, self.rank, self.world_size, self.limit = seed, rank, world_size, limit
        self.position = position
        self.bins = _bins(self.durations, num_buckets)
        self.longest = _longest(self.durations, self.bins)

    def __iter__(self) -> Iterator[BatchPlan]:
        epoch, done = self.position()
        for plan in self.epoch(epoch):
            if plan.batch >= done:
                yield plan

    def epoch(self, epoch: int) -> Iterator[BatchPlan]:
        """This rank's batches of an epoch."""
        for number, numbers in enumerate(self._numbers(epoch, range(len(self.ids)))):
            if self.limit is not None and number >= self.limit:
                return
            yield BatchPlan(epoch, number, tuple(self.ids[i] for i in numbers))

    def batches_per_epoch(self) -> float:
        """How many batches a rank has in an epoch: those of the first, or an estimate for a large corpus."""
        chosen: Sequence[int] = range(len(self.ids))
        if len(chosen) > _COUNTED:
            chosen = sorted(random.Random(self.seed).sample(chosen, _COUNTED))
        batches = sum(1 for _ in self._numbers(0, chosen)) * len(self.ids) / max(1, len(chosen))
        return batches if self.limit is None else min(batches, self.limit)

    def _numbers(self, epoch: int, chosen: Sequence[int]) -> Iterator[list[int]]:
        """The places in `ids` of each of this rank's batches."""
        from lhotse.dataset.sampling import DynamicBucketingSampler

        if not chosen:
            return
        order = list(chosen)
        # the buffer may be smaller than the corpus: without this its last part would always come last
        random.Random(f"{self.seed} {epoch}").shuffle(order)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it finds any buffer too small for a small corpus
            sampler = DynamicBucketingSampler(
                # as long as the longest of its bucket: Lhotse counts a batch full when one more cut like those in it
                # would be too much, and then may add a longer one
                _Cuts(order, self.longest),
                max_duration=self.duration_s,
                max_cuts=self.max_cuts,
                duration_bins=self.bins,
                buffer_size=self.shuffle_buffer,
                shuffle=True,
                seed=self.seed,
                # never looked up in the environment: the trainer knows
                rank=self.rank,
                world_size=self.world_size,
                # ranks whose batches have the same length do not wait for each other; without it Lhotse 1.33
                # draws from empty buckets too, and ends the epoch there with cuts left over
                sync_buckets=True,
            )
            sampler.set_epoch(epoch)
            for batch in sampler:
                # Lhotse marks a cut that it repeats in the id, where ours are numbers
                yield [int(cut.id) for cut in batch if cut.id.isdecimal()]


class _Cuts:
    """Cuts without a recording, made as the sampler asks for them: all it needs is their duration."""

    def __init__(self, order: list[int], durations: list[float]) -> None:
        self.order, self.durations = order, durations

    def __iter__(self) -> Iterator[object]:
        from lhotse import MonoCut

        for i in self.order:
            yield MonoCut(id=str(i), start=0, duration=self.durations[i], channel=0)


def _bins(durations: Sequence[float], num_buckets: int) -> list[float]:
    """The longest duration of each bucket but the last, in seconds, so that each holds about the same total."""
    bins: list[float] = []
    share, held, before = sum(durations) / num_buckets, 0.0, 0.0
    for duration in sorted(durations):
        if held >= share and duration > before:
            bins.append(before)
            held = 0.0
        held += duration
        before = duration
    return bins or [before]


def _longest(durations: Sequence[float], bins: list[float]) -> list[float]:
    """For each duration the longest one that falls into the same bucket."""
    buckets = [bisect.bisect_left(bins, duration) for duration in durations]
    longest: dict[int, float] = {}
    for bucket, duration in zip(buckets, durations, strict=True):
        longest[bucket] = max(duration, longest.get(bucket, 0.0))
    return [longest[bucket] for bucket in buckets]


def validation_plans(
    entries: Iterable[Entry], *, duration_s: float, max_cuts: int | None, rank: int, world_size: int
) -> list[BatchPlan]:
    """One rank's validation batches: each utterance is in one batch of one rank, and all ranks have as many batches.

    Neighbours in length are together, longest first, so that what does not fit into memory shows at once.
    """
    batches: list[list[str]] = []
    longest = 0.0
    for entry in sorted(entries, key=lambda e: (-e.duration_s, e.id)):
        full = batches and (
            longest * (len(batches[-1]) + 1) > duration_s or (max_cuts is not None and len(batches[-1]) >= max_cuts)
        )
        if not batches or full:
            batches.append([])
            longest = entry.duration_s
        batches[-1].append(entry.id)
    rounds = -(-len(batches) // world_size)
    batches += [[] for _ in range(rounds * world_size - len(batches))]
    return [BatchPlan(0, number, tuple(ids)) for number, ids in enumerate(batches[rank::world_size])]
