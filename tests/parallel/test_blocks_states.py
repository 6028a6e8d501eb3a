"""Workers that are started, doubled, killed, frozen and woken between any two steps never lose or repeat a row."""

import collections
import os
import shutil
import tempfile

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from espnet3_rules.parallel.blocks import CLAIMED, JOURNALLED, RELEASED, WAITING, WORKED, BlockWorker
from espnet3_rules.parallel.claims import Claims, Owner
from espnet3_rules.parallel.journal import Journal
from espnet3_rules.shards import Block, Row

STALE_AFTER_S = 60
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # every step syncs


class Worker:
    def __init__(self, machine, number, host, blocks, batch_size, claim_cost):
        self.number, self.host, self.blocks = number, host, blocks
        self.alive, self.frozen, self.was_frozen = True, False, False
        self.in_hands = 0  # rows worked on and not yet journalled
        self.held = set()
        self.machine = machine
        self.claims = Claims(
            machine.folder + "/claims",
            stale_after_s=STALE_AFTER_S,
            owner=Owner(host, number),
            clock=lambda: machine.now,
            gone=lambda owner: owner.host == host and not machine.workers[owner.pid].alive,
            thread=False,
        )
        self.worker = BlockWorker(
            blocks,
            journal=Journal(machine.folder + "/journal"),
            claims=self.claims,
            batches=lambda rows: [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)],
            work=self.work,
            claim_cost=claim_cost,
        )
        self.steps = self.worker.steps()
        self.finished = False

    def work(self, rows, _):
        self.machine.worked.update(row.utt_id for row in rows)
        bad = self.machine.bad
        return [
            {"utt_id": r.utt_id, "item": r.item, "status": "failed" if r.utt_id in bad else "ok", "by": self.number}
            for r in rows
        ]

    def step(self):
        """One step, told to the machine; the heartbeat is a thread, so it beats as long as the process runs."""
        self.claims.beat()
        step = next(self.steps, None)
        if step is None:
            self.finished = True
            self.machine.complete(self)
        elif step.kind == CLAIMED:
            self.machine.taken(step.blocks[0], self)
        elif step.kind == WORKED:
            self.in_hands = len(step.records)
        elif step.kind == JOURNALLED:
            self.machine.journalled(step, self)
            self.in_hands = 0
        elif step.kind == RELEASED:
            self.held.discard(step.blocks[0])
        return step


class Machine(RuleBasedStateMachine):
    @initialize(sizes=st.lists(st.integers(1, 4), min_size=2, max_size=6), bad=st.sets(st.integers(0, 23), max_size=2))
    def begin(self, sizes, bad):
        self.folder = tempfile.mkdtemp(prefix="blocks-", dir=MEMORY)
        self.now = 1000.0
        self.workers = {}
        self.owner = {}
        self.worked: collections.Counter[str] = collections.Counter()
        self.allowed = 0  # rows that may have been worked on for nothing
        ids = iter(range(100))
        self.blocks = [Block.of(Row(f"u{next(ids)}", "x", 1.0) for _ in range(size)) for size in sizes]
        self.rows = [row for block in self.blocks for row in block.rows]
        self.block_of = {row.utt_id: block.name for block in self.blocks for row in block.rows}
        self.bad = {f"u{number}" for number in bad}
        self.runs_of_bad = 0

    def taken(self, block, worker):
        """Nobody takes a block from a worker that lives and never slept."""
        before = self.owner.get(block)
        if before and block in before.held:
            assert not before.alive or before.was_frozen, "taken from a live worker"
            before.held.discard(block)
        self.owner[block] = worker
        worker.held.add(block)

    def journalled(self, step, worker):
        """What is published was published by the owner."""
        for record in step.records:
            block = self.block_of[record["utt_id"]]
            assert self.owner[block] is worker, "published after it was taken over"
        lost = worker.in_hands - len(step.records)
        assert not lost or worker.was_frozen
        self.allowed += lost

    def complete(self, worker):
        """A worker comes to its end when every row of its blocks has a result, whoever made it."""
        journal = Journal(self.folder + "/journal")
        journal.refresh()
        assert all(journal.result(r.utt_id, r.item) for block in worker.blocks for r in block.rows)

    def pick(self, data, condition):
        return data.draw(st.sampled_from([w for w in self.workers.values() if condition(w)]))

    def any(self, condition):
        return any(condition(w) for w in getattr(self, "workers", {}).values())

    def running(self, worker):
        return worker.alive and not worker.frozen and not worker.finished

    @precondition(lambda self: len(self.workers) < 6)
    @rule(
        host=st.sampled_from(["n1", "n2"]),
        shard=st.integers(0, 1),
        shards=st.integers(1, 2),
        batch_size=st.integers(1, 4),
        claim_cost=st.sampled_from([0.0, 5.0]),
    )
    def start(self, host, shard, shards, batch_size, claim_cost):
        number = len(self.workers) + 1
        blocks = self.blocks[shard % shards :: shards]
        self.workers[number] = Worker(self, number, host, blocks, batch_size, claim_cost)
        self.runs_of_bad += 1

    @precondition(lambda self: self.any(self.running))
    @rule(data=st.data(), times=st.integers(1, 4))
    def go_on(self, data, times):
        worker = self.pick(data, self.running)
        for _ in range(times):
            if not worker.finished:
                worker.step()

    @precondition(lambda self: self.any(lambda w: w.alive and not w.finished))
    @rule(data=st.data())
    def kill(self, data):
        worker = self.pick(data, lambda w: w.alive and not w.finished)
        worker.alive = False
        self.allowed += worker.in_hands
        worker.in_hands = 0

    @precondition(lambda self: self.any(lambda w: self.running(w) and w.held))
    @rule(data=st.data())
    def freeze(self, data):
        worker = self.pick(data, lambda w: self.running(w) and w.held)
        worker.frozen = worker.was_frozen = True

    @precondition(lambda self: self.any(lambda w: w.alive and w.frozen))
    @rule(data=st.data())
    def wake(self, data):
        self.pick(data, lambda w: w.alive and w.frozen).frozen = False

    @rule(seconds=st.sampled_from([1, 20, 70, 90]))
    def time_passes(self, seconds):
        """Processes that run beat, and those that wait look, all the while."""
        for _ in range(seconds):
            self.now += 1
            for worker in self.workers.values():
                if self.running(worker):
                    worker.claims.beat()
                    for block in self.blocks if self.now % 10 == 0 else ():
                        worker.claims.is_free(block.name)

    @invariant()
    def nothing_twice(self):
        if not hasattr(self, "rows"):
            return
        written: collections.Counter[str] = collections.Counter()
        for path in Journal(self.folder + "/journal").folder.glob("*.jsonl"):
            for line in path.read_text().splitlines():
                if '"ok"' in line:
                    written[line.split('"utt_id":"')[1].split('"')[0]] += 1
        assert not written or max(written.values()) == 1
        good = [row.utt_id for row in self.rows if row.utt_id not in self.bad]
        in_hands = sum(w.in_hands for w in self.workers.values())
        assert sum(max(0, self.worked[u] - 1) for u in good) <= self.allowed + in_hands
        # what fails is tried once by a run, and once more for each batch that was lost
        assert all(self.worked[u] <= self.runs_of_bad + self.allowed + in_hands for u in self.bad)

    def teardown(self):
        if not hasattr(self, "rows"):
            return
        try:
            for worker in self.workers.values():
                worker.frozen = False
            if len(self.workers) % 2:  # with the others, or after they were killed
                for worker in self.workers.values():
                    if not worker.finished and worker.alive:
                        worker.alive = False
                        self.allowed += worker.in_hands
                        worker.in_hands = 0
            self.runs_of_bad += 1
            number = len(self.workers) + 1
            self.workers[number] = Worker(self, number, "n3", self.blocks, 2, 0.0)
            for _ in range(3000):
                running = [w for w in self.workers.values() if self.running(w)]
                if not running:
                    break
                self.now += 1
                for worker in running:
                    step = worker.step()
                    if step is not None and step.kind == WAITING:
                        worker.claims.wait_for_change(step.blocks, 0)
            assert not running
            self.nothing_twice()
            journal = Journal(self.folder + "/journal")
            journal.refresh()
            assert not journal.problems
            results = journal.results()
            assert {key[0]: record["status"] for key, record in results.items()} == {
                row.utt_id: "failed" if row.utt_id in self.bad else "ok" for row in self.rows
            }
        finally:
            for worker in self.workers.values():
                worker.worker._writer.close()
            shutil.rmtree(self.folder)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes, and the steps are plain enough
)
