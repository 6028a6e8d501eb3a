"""The journal: every result on disk as soon as it exists, and read back whatever was killed meanwhile.

A journal is a folder of files of JSON lines. Each file has one writer, so that no append of two hosts can mix. A
line has ``utt_id``, ``item`` and ``status``; a result counts for the item that it names, and for no other state of
the same utterance. ``ok`` is final, ``failed`` is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3_rules.errors import RulesError
from espnet3_rules.records import FAILED, OK, canonical_json, disk_errors, sync_folder, write_json


class Journal:
    """The results in one folder; `refresh` reads what has come since.

    Args:
        folder: made by the first writer.
        wanted: the item of each utterance that matters here; the results of others are read over. None: all.
    """

    def __init__(self, folder: Path | str, wanted: Mapping[str, str] | None = None) -> None:
        self.folder = Path(folder)
        #: Damaged lines, by file and number: they count as not there.
        self.problems: list[str] = []
        #: Whether there is any ok result, of a wanted utterance or not.
        self.any_ok = False
        self._wanted = wanted
        self._read: dict[str, tuple[int, int]] = {}  # file -> (bytes read, lines read)
        # a line is kept as it stands: a third of the memory of the object in it
        self._best: dict[tuple[str, str], tuple[tuple[bool, str, int], bytes]] = {}
        self._failures: dict[tuple[str, str], int] = {}

    def refresh(self) -> None:
        """Reads what was appended since the last time; a last line that is not whole yet is left for the next."""
        self._forget_old_listing()
        for path in sorted(self.folder.glob("*.jsonl")):
            start, number = self._read.get(path.name, (0, 0))
            try:
                with path.open("rb") as stream:  # opening asks an NFS server for the newest state
                    if os.fstat(stream.fileno()).st_size <= start:
                        continue
                    stream.seek(start)
                    data = stream.read()
            except FileNotFoundError:  # pruned
                continue
            whole = data[: data.rfind(b"\n") + 1]
            for line in whole.split(b"\n")[:-1]:
                number += 1
                self._take(line, path, number)
            self._read[path.name] = (start + len(whole), number)

    def _forget_old_listing(self) -> None:
        """Makes an NFS client list the folder anew: it keeps a listing for up to a minute, until it sees a change."""
        with contextlib.suppress(OSError):  # not there yet, full, or only to be read
            probe = self.folder / f".{uuid.uuid4().hex}"
            probe.touch()
            probe.unlink()

    def _take(self, line: bytes, path: Path, number: int) -> None:
        try:
            record = json.loads(line)
            key, ok = (record["utt_id"], record["item"]), record["status"] == OK
            if not all(isinstance(part, str) for part in key):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            self.problems.append(f"{path}, line {number}: damaged: {line[:60]!r}")
            return
        self.any_ok |= ok
        if self._wanted is not None and self._wanted.get(key[0]) != key[1]:
            return
        if not ok:
            self._failures[key] = self._failures.get(key, 0) + 1
        # names of files start with the time, so this is the latest; and the same one in whatever order they are read
        rank = (ok, path.name, number)
        if key not in self._best or self._best[key][0] < rank:
            self._best[key] = rank, line

    def is_ok(self, utt_id: str, item: str) -> bool:
        """Whether there is an ok result."""
        found = self._best.get((utt_id, item))
        return found is not None and found[0][0]

    def failures(self, utt_id: str, item: str) -> int:
        """How often it failed."""
        return self._failures.get((utt_id, item), 0)

    def result(self, utt_id: str, item: str) -> dict[str, Any] | None:
        """The latest ok record, else the latest failed one, else None."""
        found = self._best.get((utt_id, item))
        return None if found is None else json.loads(found[1])

    def results(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The record of every (utt_id, item) that there is."""
        return {key: json.loads(line) for key, (_, line) in self._best.items()}

    def describe(self, key: Mapping[str, Any]) -> None:
        """Publishes ``key.json``, which says what the results depend on, if it is not there."""
        path = self.folder / "key.json"
        if not path.exists():
            write_json(path, key)

    def open_writer(self) -> JournalWriter:
        """A writer with a file of its own, made by its first line."""
        return JournalWriter(self.folder)


class JournalWriter:
    """Appends results to a file that nothing else writes to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self.path: Path | None = None

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        host = re.sub(r"[^A-Za-z0-9-]", "_", socket.gethostname())
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self.path = self._folder / f"{now}-{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        sync_folder(self._folder)
        return descriptor

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Puts the records on disk: once this returns, no kill and no power cut takes them away.

        Raises:
            EnvironmentProblem: the disk is full; then none of them is there, and what was there before still is.
        """
        if not records:
            return
        for record in records:
            if record["status"] not in (OK, FAILED):
                raise RulesError(f"a journal holds results that are ok or failed, found {record['status']!r}")
        data = "".join(canonical_json(record) + "\n" for record in records).encode()
        with disk_errors(self.path or self._folder):
            if self._descriptor is None:
                self._descriptor = self._open()
            before = os.fstat(self._descriptor).st_size
            try:
                written = os.write(self._descriptor, data)
                while written < len(data):  # a full disk takes a part and refuses the rest
                    written += os.write(self._descriptor, data[written:])
                os.fsync(self._descriptor)
            except BaseException:
                # a half line followed by others would be a damaged one
                os.ftruncate(self._descriptor, before)
                raise
