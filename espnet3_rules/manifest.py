"""Manifests: Lhotse cuts as gzipped JSON lines, with an index beside them for planning and random access.

``<split>.jsonl.gz`` holds one ``MonoCut`` a line and reads with any gzip reader, but is made of small gzip members,
so that a byte offset finds a cut. ``<split>.index.jsonl`` has a line a cut and a last line with the manifest's
digest: an index that is missing, cut off or of another manifest is seen as such, and made anew.
Nothing here needs torch, numpy or lhotse, apart from `ManifestReader` where it gives cut objects.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from espnet3_rules.errors import DataError, RulesError
from espnet3_rules.index import (
    UNREADABLE,
    VERSION,
    Entry,
    ItemHasher,
    Stamp,
    cut_text,
    entry_line,
    entry_of,
    id_problem,
    index_path,
    item_hash,
    last_line,
    load_index,
    load_stamps,
    stamp_of,
)
from espnet3_rules.records import canonical_json, file_digest, not_utf8, read_jsonl, write_aside

if TYPE_CHECKING:
    from lhotse import MonoCut

__all__ = [
    "UNREADABLE",
    "VERSION",
    "Entry",
    "ItemHasher",
    "ManifestReader",
    "Stamp",
    "changed_audio",
    "cut_text",
    "id_problem",
    "index_path",
    "item_hash",
    "read_cut_records",
    "read_index",
    "read_texts",
    "stamp_of",
    "write_manifest",
]

#: Cuts in one gzip member: one random access unpacks about 40 kB (0.2 ms), and gzip still finds what repeats.
CUTS_PER_MEMBER = 64


class _Same(Exception):
    """What was written is what is there already."""


class _Hashing:
    """A stream that counts and hashes what is written to it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._hash, self.size = stream, hashlib.sha256(), 0

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self._hash.update(data)
        self.size += len(data)

    def digest(self) -> str:
        return self._hash.hexdigest()


@contextlib.contextmanager
def _write_if_changed(path: Path) -> Iterator[_Hashing]:
    """Like `write_aside`, but a file that would get the content it has keeps its mtime: nothing later reruns."""
    with contextlib.suppress(_Same), write_aside(path, "wb") as stream:
        hashing = _Hashing(stream)
        yield hashing
        if path.is_file() and path.stat().st_size == hashing.size and file_digest(path) == hashing.digest():
            raise _Same


def write_manifest(path: Path | str, cuts: Iterable[MonoCut | dict[str, Any]]) -> int:
    """Publishes cuts (or their records) as manifest and index, and returns how many there are.

    Cuts are streamed. Files whose content would be the same are left untouched.

    Raises:
        DataError: an id is double or cannot be an id, or a cut has no recording; nothing is written then.
    """
    path = Path(path)
    # a corpus reads its lists before its first cut: what goes wrong there must not look like our disk's fault
    cuts = iter(cuts)
    cuts = itertools.chain(list(itertools.islice(cuts, 1)), cuts)
    # the manifest is the inner one, published first: an index without its manifest would be of no use
    with _write_if_changed(index_path(path)) as index, _write_if_changed(path) as manifest:
        return _write_members(cuts, manifest, index, path)


def _write_members(cuts: Iterable[Any], manifest: _Hashing, index: _Hashing, path: Path) -> int:
    seen: dict[str, int] = {}
    stamps = functools.cache(stamp_of)
    lines: list[bytes] = []

    def close_member() -> None:
        if lines:  # mtime=0: the same cuts give the same bytes
            manifest.write(gzip.compress(b"".join(lines), compresslevel=6, mtime=0))
            lines.clear()

    for number, cut in enumerate(cuts, 1):
        record = cut if isinstance(cut, dict) else cut.to_dict()
        where = f"{path}, cut {number}"
        try:
            text = (canonical_json(record) + "\n").encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where} ({record.get('id')!a}): {not_utf8(error)}",
                hint="take it out of the corpus, or rename the file",
            ) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"{where} ({record.get('id')}): cannot be written as JSON: {error}") from error
        if len(lines) == CUTS_PER_MEMBER:
            close_member()
        entry = entry_of(record, manifest.size, len(lines), stamps, where)
        if entry.id in seen:
            raise DataError(
                f"{path}: the id {entry.id!r} of cut {number} is that of cut {seen[entry.id]} too",
                hint="give each utterance an id of its own",
            )
        seen[entry.id] = number
        lines.append(text)
        index.write((entry_line(entry) + "\n").encode())
    close_member()
    if not manifest.size:  # an empty test set is still a gzip file
        manifest.write(gzip.compress(b"", mtime=0))
    index.write((last_line(len(seen), manifest.size, manifest.digest()) + "\n").encode())
    return len(seen)


def read_index(path: Path | str) -> list[Entry]:
    """The entries of a manifest's index, in the manifest's order.

    An index that is missing, damaged or of another state of the manifest is made anew (and published where the
    folder can be written).

    Raises:
        DataError: there is no such manifest, or it is damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise _no_manifest(path)
    loaded = load_index(path)
    if loaded and loaded[1] == file_digest(path):
        return loaded[0]
    entries = _index_of(path)
    with contextlib.suppress(OSError, RulesError), _write_if_changed(index_path(path)) as stream:
        for entry in entries:
            stream.write((entry_line(entry) + "\n").encode())
        stream.write((last_line(len(entries), path.stat().st_size, file_digest(path)) + "\n").encode())
    return entries


def _no_manifest(path: Path) -> DataError:
    return DataError(f"{path}: no such manifest", hint="make it with 'espnet3-rules prepare', or correct the path")


def _index_of(path: Path) -> list[Entry]:
    """The entries of a manifest that has no usable index; of a foreign one too."""
    stamps = functools.cache(stamp_of)
    entries: dict[str, Entry] = {}
    number = 0
    for offset, lines in _blocks(path):
        for line, text in enumerate(lines):
            if not text.strip():
                continue
            number += 1
            where = f"{path}, line {number}"
            try:
                record = json.loads(text)
                entry = entry_of(record, offset, line, stamps, where)
                entry_line(entry).encode()
            except UnicodeEncodeError as error:
                raise DataError(f"{where}: {not_utf8(error)}", hint="take it out of the manifest") from error
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where}: not JSON: {text[:80]!r}", hint="prepare it again") from error
            if entry.id in entries:
                raise DataError(f"{where}: the id {entry.id!r} stands there twice", hint="see 'espnet3-rules validate'")
            entries[entry.id] = entry
    return list(entries.values())


def _blocks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """(byte offset, lines) of each gzip member, or of each line of a plain file."""
    with path.open("rb") as stream:
        if path.suffix != ".gz":
            offset = 0
            for text in stream:
                yield offset, [text]
                offset += len(text)
            return
        offset, size = 0, path.stat().st_size
        while offset < size:
            data, used = _member(stream.fileno(), offset, path)
            yield offset, data.split(b"\n")
            offset += used


def _member(descriptor: int, offset: int, path: Path) -> tuple[bytes, int]:
    """The unpacked gzip member at a byte offset, and how many bytes it takes in the file."""
    unpacker = zlib.decompressobj(wbits=31)
    parts, used = [], 0
    try:
        while not unpacker.eof:
            # pread has no position of its own: threads and forked loader workers can share the descriptor
            chunk = os.pread(descriptor, 1 << 14, offset + used)
            if not chunk:
                raise zlib.error("it ends too early")
            parts.append(unpacker.decompress(chunk))
            used += len(chunk)
    except zlib.error as error:
        raise DataError(
            f"{path}: the compressed file is cut off or damaged after byte {offset} ({error})",
            hint="delete it and give the same command again: prepare makes it anew",
        ) from error
    return b"".join(parts), used - len(unpacker.unused_data)


def read_cut_records(path: Path | str) -> Iterator[dict[str, Any]]:
    """The cuts of a manifest as plain JSON objects, one at a time.

    Raises:
        DataError: no such manifest, or a line that is not whole; names it.
    """
    if not Path(path).is_file():
        raise _no_manifest(Path(path))
    return read_jsonl(path)


def read_texts(path: Path | str) -> dict[str, str]:
    """The reference text of each utterance id, in the manifest's order."""
    return {entry.id: entry.text for entry in read_index(path)}


def changed_audio(path: Path | str) -> list[str]:
    """The audio files whose size or mtime is no longer what the index says (came and went included).

    Called at every start of the workflow: 10,000 files take about 0.1 s. Without a manifest there is nothing to
    compare. Where the index is not the manifest's, the index itself is named, so that prepare makes both anew.
    """
    path = Path(path)
    if not path.is_file():
        return []
    known = load_stamps(path)
    if known is None:
        return [str(index_path(path))]
    return [name for name, stamp in known.items() if stamp_of(name) != stamp]


class ManifestReader:
    """Random access to a manifest's cuts by utterance id, without parsing the rest.

    Can be shared by threads, forked and pickled.

    Raises:
        DataError: there is no such manifest, or it is damaged.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.entries = {entry.id: entry for entry in read_index(self.path)}
        self._open()

    def _open(self) -> None:
        # kept open: a manifest that is replaced meanwhile cannot mix with the index read before
        self._stream = self.path.open("rb")
        # neighbours are often asked for together: keep the last few members
        self._lines = functools.lru_cache(maxsize=8)(self._lines_at)

    def _lines_at(self, offset: int) -> list[bytes]:
        if self.path.suffix == ".gz":
            return _member(self._stream.fileno(), offset, self.path)[0].split(b"\n")
        with self.path.open("rb") as stream:
            stream.seek(offset)
            return [stream.readline()]

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "entries": self.entries}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __contains__(self, utt_id: object) -> bool:
        return utt_id in self.entries

    def record(self, utt_id: str) -> dict[str, Any]:
        """The cut as a plain JSON object.

        Raises:
            DataError: no such utterance.
        """
        entry = self.entries.get(utt_id)
        if entry is None:
            raise DataError(f"{self.path}: no utterance {utt_id!r} among its {len(self.entries)}")
        record: dict[str, Any] = json.loads(self._lines(entry.offset)[entry.line])
        return record

    def __getitem__(self, utt_id: str) -> MonoCut:
        from lhotse import MonoCut

        record = self.record(utt_id)
        record.pop("type", None)
        return MonoCut.from_dict(record)
