"""The loop of a worker: claim blocks, work on batches of their rows, journal each batch, give the blocks back.

Any number of workers may run it on the same blocks, on any hosts, and be killed or frozen at any time: every row gets
a result, none is worked on twice, apart from the one batch that a killed worker had in hands. Workers whose blocks
overlap without being the same (plans of a test set before and after utterances were added in its middle) lose
nothing either, but may work on rows of such a block twice.
It knows nothing of what the rows are.

A claim is checked right before its results are journalled. Should a worker freeze in the microseconds between that
check and the write, its late lines are a second, equally valid result of the same rows, of which the journal's
readers take one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from espnet3_rules.parallel.claims import Claim, Claims
from espnet3_rules.parallel.journal import Journal
from espnet3_rules.shards import Block, Row

T = TypeVar("T")

CLAIMED, WORKED, JOURNALLED, RELEASED, WAITING = "claimed", "worked", "journalled", "released", "waiting"


@dataclass(frozen=True)
class Step:
    """Something that a worker has just done."""

    kind: str
    #: Names of the blocks it was done to, or that are waited for.
    blocks: tuple[str, ...] = ()
    #: The results worked out or journalled.
    records: tuple[dict[str, Any], ...] = ()


class BlockWorker(Generic[T]):
    """Brings every row of some blocks to a result, together with whoever else works on them.

    Args:
        blocks: to be finished, in the order in which they are taken.
        journal: where results are; rows with an ok result there are not worked on.
        claims: shared by all workers on this journal.
        batches: cuts rows into batches.
        prepare: called with a batch, in a second thread while ``work`` has the batch before.
        work: called with a batch and what ``prepare`` made of it; returns one record a row, each with ``utt_id``,
            ``item`` and ``status``. A row that cannot be done gets a ``failed`` record; an exception ends the worker.
        claim_cost: blocks are claimed together until they cost so much, so that batches can be larger than blocks.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        journal: Journal,
        claims: Claims,
        batches: Callable[[list[Row]], list[list[Row]]],
        work: Callable[[list[Row], T], Sequence[dict[str, Any]]],
        prepare: Callable[[list[Row]], T] | None = None,
        claim_cost: float = 0.0,
    ) -> None:
        self._blocks = blocks
        self._journal = journal
        self._claims = claims
        self._batches = batches
        self._work = work
        self._prepare = prepare
        self._claim_cost = claim_cost
        self._writer = journal.open_writer()
        journal.refresh()
        # failed is not final, so what had failed before is tried again; what fails from now on, here or in another
        # worker, has been tried in this run
        self._failed_before = {
            row: failures
            for block in blocks
            for row in block.rows
            if (failures := journal.failures(row.utt_id, row.item))
        }

    def is_pending(self, row: Row) -> bool:
        """Whether a row still needs a result, as far as the journal was read."""
        if self._journal.is_ok(row.utt_id, row.item):
            return False
        return self._journal.failures(row.utt_id, row.item) <= self._failed_before.get(row, 0)

    def pending(self, block: Block) -> list[Row]:
        """The rows of a block that still need a result."""
        return [row for row in block.rows if self.is_pending(row)]

    def run(self, report: Callable[[Step], None] = lambda step: None, *, poll_s: float = 1.0) -> None:
        """Returns when every row has a result; ``report`` is called after each step."""
        try:
            for step in self.steps():
                report(step)
                if step.kind == WAITING:
                    self._claims.wait_for_change(step.blocks, poll_s)
        finally:
            self._writer.close()

    def steps(self) -> Iterator[Step]:
        """The work, step by step; between any two of them the worker may be killed or frozen."""
        left = deque(block for block in self._blocks if self.pending(block))
        while left:
            claims: dict[str, Claim] = {}
            mine: list[Block] = []
            held: list[Block] = []
            cost = 0.0
            while left and (not mine or cost < self._claim_cost):
                block = left.popleft()
                claim = self._claims.acquire(block.name)
                if claim is None:
                    held.append(block)
                    continue
                claims[block.name] = claim
                mine.append(block)
                cost += sum(row.cost for row in self.pending(block))
                yield Step(CLAIMED, (block.name,))
            self._journal.refresh()  # after the claim: what the former owner has published counts
            if mine:
                yield from self._work_on(mine, claims)
            # a block whose claim was lost has to be waited for like any other that somebody holds
            left.extend(block for block in (*held, *mine) if self.pending(block))
            if not mine and left:
                yield Step(WAITING, tuple(block.name for block in left))
                self._journal.refresh()

    def _work_on(self, mine: list[Block], claims: dict[str, Claim]) -> Iterator[Step]:
        block_of = {row: block.name for block in mine for row in self.pending(block)}
        lost: set[str] = set()
        for batch, prepared in self._prepared(self._batches(list(block_of))):
            names = dict.fromkeys(block_of[row] for row in batch)
            if lost.issuperset(names):
                continue
            records = self._work(batch, prepared)
            assert [record["utt_id"] for record in records] == [row.utt_id for row in batch]
            yield Step(WORKED, tuple(names), tuple(records))
            lost.update(name for name in names if not claims[name].check())
            if lost.intersection(names):  # frozen for a while: whatever else was in hands may have gone as well
                lost.update(name for name in claims if not claims[name].check())
            kept = tuple(record for row, record in zip(batch, records, strict=True) if block_of[row] not in lost)
            self._writer.append(kept)
            yield Step(JOURNALLED, tuple(names), kept)
        for name, claim in claims.items():
            claim.release(done=name not in lost)
            yield Step(RELEASED, (name,))
        self._journal.refresh()

    def _prepared(self, batches: list[list[Row]]) -> Iterator[tuple[list[Row], Any]]:
        """Each batch with what ``prepare`` made of it, one batch ahead of the work."""
        if self._prepare is None:
            for batch in batches:
                yield batch, None
            return
        with ThreadPoolExecutor(1, thread_name_prefix="prepare") as pool:
            coming: deque[Future[T]] = deque()
            try:
                for number, batch in enumerate(batches):
                    if not coming:
                        coming.append(pool.submit(self._prepare, batch))
                    made = coming.popleft().result()
                    if number + 1 < len(batches):
                        coming.append(pool.submit(self._prepare, batches[number + 1]))
                    yield batch, made
            finally:
                for future in coming:
                    future.cancel()
