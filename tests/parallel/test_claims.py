"""Claims: one owner at a time, and what happens when it dies, freezes or comes back."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from espnet3_rules.errors import EnvironmentProblem
from espnet3_rules.parallel.claims import Claims, Owner, process_is_gone


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def claims(folder, clock, name, *, gone=lambda owner: False):
    """A process on a host of its own, so that only the counter tells whether it lives."""
    return Claims(folder, stale_after_s=60, owner=Owner(name, 1), clock=clock, gone=gone, thread=False)


def look(observer, name, clock, seconds):
    """Looks at a claim once a second."""
    for _ in range(seconds):
        clock.now += 1
        observer.is_free(name)


def test_one_owner_and_its_release(tmp_path):
    clock = Clock()
    one, two = claims(tmp_path, clock, "n1"), claims(tmp_path, clock, "n2")
    claim = one.acquire("block 1/ä")
    assert claim.check() and claim.epoch == 1
    assert two.acquire("block 1/ä") is None and one.acquire("block 1/ä") is None
    assert two.owner("block 1/ä").host == "n1"
    assert two.acquire("block 2").check()
    assert claim.release()
    assert not claim.check() and not claim.release()
    assert two.owner("block 1/ä") is None and not two.is_done("block 1/ä")
    again = two.acquire("block 1/ä")
    assert again.epoch == 2 and not claim.check()
    again.release(done=True)
    assert one.is_done("block 1/ä")


def test_a_live_owner_is_left_alone_for_ever(tmp_path):
    clock = Clock()
    one, two = claims(tmp_path, clock, "n1"), claims(tmp_path, clock, "n2")
    one.acquire("b")
    for _ in range(100):
        look(two, "b", clock, 50)
        one.beat()
    assert two.acquire("b") is None


def test_a_frozen_owner_is_taken_over_and_cannot_publish(tmp_path):
    clock = Clock()
    one, two, three = (claims(tmp_path, clock, name) for name in ("n1", "n2", "n3"))
    old = one.acquire("b")
    look(two, "b", clock, 59)
    assert two.acquire("b") is None
    look(two, "b", clock, 3)
    new = two.acquire("b")
    assert new.epoch == 2
    one.beat()  # wakes up
    assert not old.check() and not old.release()
    assert new.check()
    two.beat()
    assert three.acquire("b") is None
    assert new.release() and not old.check()
    third = three.acquire("b")
    assert third.epoch == 3 and not new.check()


def test_one_long_gap_between_two_looks_is_not_taken_for_death(tmp_path):
    """Owner and observer were suspended together for an hour; the observer wakes first."""
    clock = Clock()
    one, two = claims(tmp_path, clock, "n1"), claims(tmp_path, clock, "n2")
    claim = one.acquire("b")
    assert two.acquire("b") is None
    clock.now += 3600
    assert two.acquire("b") is None
    one.beat()
    assert two.acquire("b") is None and claim.check()


def test_an_observer_with_an_old_view_does_not_kick_out_the_new_owner(tmp_path, monkeypatch):
    clock = Clock()
    one, two, slow = (claims(tmp_path, clock, name) for name in ("n1", "n2", "n3"))
    one.acquire("b")
    view = slow._current("b")
    look(two, "b", clock, 70)
    new = two.acquire("b")
    monkeypatch.setattr(slow, "_current", lambda name: view)
    monkeypatch.setattr(slow, "_may_be_taken", lambda name, content: True)
    assert slow.acquire("b") is None
    new.release()
    assert slow.acquire("b") is None  # the released epoch's file is still there to run into
    newest = two.acquire("b")
    monkeypatch.setattr(slow, "_current", lambda name: (0, None))
    assert slow.acquire("b") is None  # epoch 1 can be linked again, and counts for nothing
    assert newest.check()


def test_a_link_whose_answer_was_lost_counts(tmp_path, monkeypatch):
    """An NFS client that repeats a request is told "exists" although its first one made the link."""
    import pathlib

    real = pathlib.Path.hardlink_to

    def lost_answer(self, target):
        real(self, target)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(pathlib.Path, "hardlink_to", lost_answer)
    one = claims(tmp_path, Clock(), "n1")
    assert one.acquire("b").check()
    assert one.acquire("b") is None


def test_no_hard_links(tmp_path, monkeypatch):
    import pathlib

    def refused(self, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(pathlib.Path, "hardlink_to", refused)
    with pytest.raises(EnvironmentProblem, match="no hard links"):
        claims(tmp_path, Clock(), "n1").acquire("b")


def test_a_claim_cut_off_by_a_power_cut_goes_stale(tmp_path):
    clock = Clock()
    one, two = claims(tmp_path, clock, "n1"), claims(tmp_path, clock, "n2")
    claim = one.acquire("b")
    claim._path.write_bytes(b"")
    assert two.acquire("b") is None and not claim.check()
    look(two, "b", clock, 70)
    assert two.acquire("b").epoch == 2


def test_a_process_number_used_again_is_another_process():
    here = Owner.this_process()
    assert not process_is_gone(here)
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    time.sleep(0.01)
    values = {**vars(here), "pid": child.pid, "started": "1"}
    assert process_is_gone(Owner(**values))
    assert not process_is_gone(Owner(**{**values, "host": "elsewhere"}))
    child.wait()
    assert process_is_gone(Owner(**{**values, "started": "1"}))


def hold(folder, ready):
    taken = Claims(folder, stale_after_s=1.2)
    claim = taken.acquire("b")
    assert claim
    ready.put(os.getpid())
    while True:
        time.sleep(0.02)
        ready.put(claim.check())


def start_holder(folder):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=hold, args=(folder, queue), daemon=True)
    process.start()
    queue.get(timeout=30)
    return process, queue


def test_a_killed_process_is_seen_at_once(tmp_path):
    process, _ = start_holder(tmp_path)
    with Claims(tmp_path, stale_after_s=60) as mine:
        assert mine.acquire("b") is None
        owner = mine.owner("b")
        assert owner and owner.pid == process.pid
        os.kill(process.pid, signal.SIGKILL)
        assert mine.wait_for_change(["b"], 10)  # not yet waited for: a zombie
        claim = mine.acquire("b")
        assert claim and claim.epoch == 2
    process.join()


def test_a_stopped_process_loses_its_claim_and_knows_it(tmp_path):
    process, queue = start_holder(tmp_path)
    with Claims(tmp_path, stale_after_s=1.2) as mine:
        assert not mine.wait_for_change(["b"], 2.5)  # its thread beats
        os.kill(process.pid, signal.SIGSTOP)
        assert mine.wait_for_change(["b"], 10)
        claim = mine.acquire("b")
        while not queue.empty():
            queue.get()
        os.kill(process.pid, signal.SIGCONT)
        answers = [queue.get(timeout=10) for _ in range(6)]
        assert not any(answers[1:])  # one may have been on its way when it was stopped
        assert claim and claim.check()
    process.kill()
    process.join()


def race(folder, names, barrier, out):
    with Claims(folder) as mine:
        barrier.wait()
        won = [name for name in names if mine.acquire(name)]
        barrier.wait()
    out.put(won)


def test_many_processes_race_for_the_same_names(tmp_path):
    names = [f"b{i}" for i in range(100)]
    context = multiprocessing.get_context("spawn")
    barrier, out = context.Barrier(4), context.Queue()
    workers = [context.Process(target=race, args=(tmp_path, names, barrier, out)) for _ in range(4)]
    for worker in workers:
        worker.start()
    won = [name for _ in workers for name in out.get(timeout=60)]
    assert sorted(won) == sorted(names)
    for worker in workers:
        worker.join()


def test_close_releases_and_leaves_few_files(tmp_path):
    with Claims(tmp_path) as mine:
        mine.acquire("a")
        claim = mine.acquire("b")
        assert claim and claim.release(done=True)
    with Claims(tmp_path) as other:
        assert other.is_free("a") and other.is_done("b")
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) == 2
    assert {json.loads(p.read_text())["state"] for p in files} == {"free", "done"}


def test_the_heartbeat_needs_no_room(tmp_path):
    """Written over in place: a file that is cut and filled again could stay empty on a full disk."""
    mine = claims(tmp_path, Clock(), "n1")
    mine.beat()
    (path,) = (tmp_path / "beats").iterdir()
    with path.open("rb") as stream:
        first = stream.read()
        mine.beat()
        stream.seek(0)
        second = stream.read()
    assert len(first) == len(second) == 21 and first != second
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: len(first))
        mine.beat()
    assert path.read_bytes() == second
