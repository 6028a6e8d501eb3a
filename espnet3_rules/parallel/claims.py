"""Claims: who works on what, sound on a network file system and whatever is killed or frozen.

A claim on a name is a file ``<key>.<epoch>`` made by ``link()``, the one operation that every NFS server does
exactly once; the count of links of the own file tells whether it was done, even where the answer was lost. No
lock, and no file that two hosts write. An owner shows that it lives by a counter in a file of its own. Who
finds the owner dead takes over with the next epoch, and removes the older file *before* it starts to work: the
old owner, should it only have been frozen, opens its file before it publishes (opening a file always asks the
server, listing a folder does not) and finds it gone.

The highest epoch's file of a name always stays, released or not: an observer that made up its mind long ago
then runs into it instead of making the same epoch a second time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from espnet3_rules.errors import EnvironmentProblem
from espnet3_rules.parallel.owners import Owner, process_is_gone
from espnet3_rules.records import disk_errors

HELD, FREE, DONE = "held", "free", "done"
#: A gap between two looks counts for at most this part of ``stale_after_s``. An observer that was frozen
#: together with the owner (a suspended job, a closed laptop) would otherwise take its own sleep for the owner's.
_LOOKS = 4
#: Tokens of the `Claims` of this process that are open.
_OPEN: set[str] = set()


class Claim:
    """A name that this process holds; made by `Claims.acquire`."""

    def __init__(self, claims: Claims, name: str, epoch: int, content: dict[str, Any]) -> None:
        self.name = name
        self.epoch = epoch
        self._claims = claims
        self._content = content
        self._path = claims._path(name, epoch)

    def check(self) -> bool:
        """Whether the claim still stands; to be asked right before anything is published.

        False once another process has taken it over, and after `release`.
        """
        mine = self._claims.held.get(self.name) is self
        return mine and self._claims._stands(self.name, self.epoch, self._content["token"])

    def release(self, *, done: bool = False) -> bool:
        """Gives the name back, with a mark that it is done or without; False if it had been lost before."""
        stands = self.check()
        if self._claims.held.get(self.name) is self:
            del self._claims.held[self.name]
        if stands:
            self._claims._replace(self._path, {**self._content, "state": DONE if done else FREE})
        return stands


class Claims:
    """The claims in one folder, seen from one process.

    Args:
        folder: made if missing; shared by all who work on the same thing, on any host.
        stale_after_s: an owner on another host, or one that is frozen, counts as dead once its counter stood still
            for so long on this process's own clock; clocks of different hosts are never compared.
        heartbeat_s: how often the own counter advances; a sixth of ``stale_after_s``, at most 5, unless given.
        owner: who this is; clock: seconds that only grow; gone: whether an owner's process is no more;
            thread: whether a thread advances the counter, or whoever calls `beat`. Tests replace these.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        stale_after_s: float = 60.0,
        heartbeat_s: float | None = None,
        owner: Owner | None = None,
        clock: Callable[[], float] = time.monotonic,
        gone: Callable[[Owner], bool] = process_is_gone,
        thread: bool = True,
    ) -> None:
        self.folder = Path(folder)
        self.stale_after_s = stale_after_s
        self.heartbeat_s = heartbeat_s if heartbeat_s is not None else min(5.0, stale_after_s / 6)
        self.owner_here = owner or Owner.this_process()
        #: The claims that this process holds, by name.
        self.held: dict[str, Claim] = {}
        self._clock = clock
        self._gone = gone
        host = re.sub(r"[^A-Za-z0-9-]", "_", self.owner_here.host)
        self._token = f"{host}-{self.owner_here.pid}-{uuid.uuid4().hex[:12]}"
        _OPEN.add(self._token)
        self._beat = 0
        self._seen: dict[str, tuple[bytes | None, float, float]] = {}
        self._wants_thread = thread
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases what is held and ends the heartbeat."""
        for claim in list(self.held.values()):
            # on a full disk the claim stays as it is, and the others see that the process is gone
            with contextlib.suppress(OSError, EnvironmentProblem):
                claim.release()
        _OPEN.discard(self._token)
        self._stop.set()
        if self._thread:
            self._thread.join()
            self._thread = None
        with contextlib.suppress(OSError):
            self._beat_path(self._token).unlink(missing_ok=True)

    # -- what a worker does

    def acquire(self, name: str) -> Claim | None:
        """The claim on ``name``, or None where a live owner holds it (or another was faster).

        A name that is done can be claimed again; ask `is_done` first where that matters. What the former owner
        has published is to be read *after* this.

        Raises:
            EnvironmentProblem: the disk is full, or the file system has no hard links.
        """
        epoch, current = self._current(name)
        if current is not None and not self._may_be_taken(name, current):
            return None
        self._start()
        content = {
            "name": name,
            "epoch": epoch + 1,
            "token": self._token,
            "heartbeat_s": self.heartbeat_s,
            "state": HELD,
            "owner": dataclasses.asdict(self.owner_here),
        }
        if not self._link(content, self._path(name, epoch + 1)):
            return None
        if max(self._epochs(name)) > epoch + 1:  # decided on an old view; a file below the highest means nothing
            return None
        for older in self._epochs(name):
            if older <= epoch:
                self._path(name, older).unlink(missing_ok=True)
        claim = self.held[name] = Claim(self, name, epoch + 1, content)
        return claim

    def owner(self, name: str) -> Owner | None:
        """Who holds ``name``, alive or not; None where nobody does."""
        _, content = self._current(name)
        return _owner(content) if content is not None and content.get("state", HELD) == HELD else None

    def is_done(self, name: str) -> bool:
        """Whether the last owner released ``name`` as done."""
        _, content = self._current(name)
        return content is not None and content.get("state") == DONE

    def is_free(self, name: str) -> bool:
        """Whether `acquire` would give ``name``: never claimed, released, or its owner dead."""
        _, content = self._current(name)
        return content is None or self._may_be_taken(name, content)

    def wait_for_change(self, names: Iterable[str], timeout_s: float, *, poll_s: float = 0.2) -> bool:
        """True as soon as one of ``names`` can be acquired; False when ``timeout_s`` have passed."""
        names = list(names)
        end = self._clock() + timeout_s
        while not any(self.is_free(name) for name in names):
            left = end - self._clock()
            if left <= 0:
                return False
            time.sleep(min(poll_s, left))
        return True

    # -- the heartbeat

    def beat(self) -> None:
        """Advances the counter that shows that this process lives."""
        self._beat += 1
        path = self._beat_path(self._token)
        path.parent.mkdir(parents=True, exist_ok=True)
        # written over, never cut to nothing and filled again: that would need room, and a full disk must not look
        # like death; closed each time, because that is when NFS sends it
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(descriptor, b"%020d\n" % self._beat, 0)
        finally:
            os.close(descriptor)

    def _start(self) -> None:
        if self._beat == 0:
            with disk_errors(self.folder):
                self.beat()
        if self._wants_thread and self._thread is None:
            self._thread = threading.Thread(target=self._beat_for_ever, name="heartbeat", daemon=True)
            self._thread.start()

    def _beat_for_ever(self) -> None:
        while not self._stop.wait(self.heartbeat_s):
            with contextlib.suppress(OSError):  # a server that is away for a moment
                self.beat()

    # -- is the owner dead?

    def _may_be_taken(self, name: str, content: dict[str, Any]) -> bool:
        if content.get("state", HELD) != HELD:
            return True
        owner = _owner(content)
        if owner is not None and (self._gone(owner) or self._is_closed(owner, content)):
            return True
        # a claim cut off by a power cut names no owner: its counter is one that never advances
        limit = max(self.stale_after_s, 4 * float(content.get("heartbeat_s", 0)))
        return self._stood_still(str(content.get("token", f"?{name}"))) >= limit

    def _is_closed(self, owner: Owner, content: dict[str, Any]) -> bool:
        """Whether it is a claim of this very process that could not be released when it was closed."""
        here = self.owner_here
        return (owner.host, owner.pid, owner.started, owner.boot) == (
            here.host,
            here.pid,
            here.started,
            here.boot,
        ) and (content.get("token") not in _OPEN)

    def _stood_still(self, token: str) -> float:
        """For how many seconds of this process's looking the counter has had the same value."""
        try:
            value = self._beat_path(token).read_bytes()
        except OSError:
            value = None
        now = self._clock()
        before = self._seen.get(token)
        if before is None or before[0] != value:
            self._seen[token] = (value, 0.0, now)
            return 0.0
        still = before[1] + min(now - before[2], self.stale_after_s / _LOOKS)
        self._seen[token] = (value, still, now)
        return still

    # -- the files

    def _path(self, name: str, epoch: int) -> Path:
        key = hashlib.sha256(name.encode()).hexdigest()[:40]
        readable = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:40]
        # one folder per first digits, so that looking one name up lists few files however many there are
        return self.folder / key[:2] / f"{readable}-{key}.{epoch}"

    def _beat_path(self, token: str) -> Path:
        return self.folder / "beats" / re.sub(r"[^A-Za-z0-9_-]", "_", token)

    def _epochs(self, name: str) -> list[int]:
        first = self._path(name, 0)
        stem = first.name[:-1]
        try:
            found = [path.name for path in first.parent.iterdir()]
        except FileNotFoundError:
            return []
        return [int(f[len(stem) :]) for f in found if f.startswith(stem) and f[len(stem) :].isdecimal()]

    def _current(self, name: str) -> tuple[int, dict[str, Any] | None]:
        """The highest epoch and what its file says: (0, None) for a name never claimed, {} for an unreadable file."""
        for turn in range(100):
            time.sleep(min(0.01 * turn, 1.0))  # a listing of another host's folder can be a minute old
            epoch = max(self._epochs(name), default=0)
            if epoch == 0:
                return 0, None
            try:
                return epoch, _parse(self._path(name, epoch).read_bytes())
            except FileNotFoundError:
                continue  # taken over between the listing and the reading
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
        raise EnvironmentProblem(f"{self._path(name, epoch)}: listed, but cannot be opened")

    def _stands(self, name: str, epoch: int, token: str) -> bool:
        try:
            content = _parse(self._path(name, epoch).read_bytes())
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):
                return False
            raise
        return content.get("token") == token and max(self._epochs(name), default=0) == epoch

    def _aside(self, folder: Path, content: dict[str, Any]) -> Path:
        aside = folder / f".{uuid.uuid4().hex}"
        # not synced: after a power cut every owner is dead, and a file cut off is seen as such
        aside.write_text(json.dumps(content), encoding="utf-8")
        return aside

    def _replace(self, path: Path, content: dict[str, Any]) -> None:
        with disk_errors(path):
            self._aside(path.parent, content).replace(path)

    def _link(self, content: dict[str, Any], path: Path) -> bool:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            mine = self._aside(path.parent, content)
        try:
            try:
                path.hardlink_to(mine)
            except OSError as error:
                if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                    raise EnvironmentProblem(
                        f"{path.parent}: the file system has no hard links ({os.strerror(error.errno)})",
                        hint="put exp/ on a local disk or on NFS",
                    ) from error
                # "exists" may also be the answer to a request that was sent twice: the count decides
            with mine.open("rb") as stream:
                return os.fstat(stream.fileno()).st_nlink == 2
        finally:
            mine.unlink(missing_ok=True)


def _parse(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _owner(content: dict[str, Any]) -> Owner | None:
    known = {f.name for f in dataclasses.fields(Owner)}
    try:
        return Owner(**{k: v for k, v in content["owner"].items() if k in known})
    except (KeyError, TypeError, AttributeError):
        return None
