"""The index of a manifest: one entry a cut, all that planning, merging and scoring need to know of it.

Nothing here parses a manifest. Used through `espnet3_rules.manifest`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from espnet3_rules.errors import DataError
from espnet3_rules.records import canonical_json, content_key, file_digest

#: Of the layout of manifest and index.
VERSION = 1
#: Key in a cut's ``custom`` block: why its audio cannot be read. Such a cut is decoded to a failed line, and never
#: trained on.
UNREADABLE = "unreadable"

#: (size in bytes, mtime in ns), or None where there is no such file.
Stamp = tuple[int, int] | None

# trn, ctm and Kaldi's text split at whitespace and have no escapes; lone surrogates cannot be written as UTF-8
_NOT_IN_IDS = re.compile("[\\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Entry(NamedTuple):
    """One line of the index (a tuple, because an index may have hundreds of thousands)."""

    id: str
    duration_s: float
    #: Byte offset in the manifest where the cut's gzip member starts.
    offset: int
    #: Number of the cut's line within that member, from 0.
    line: int
    #: Hash of id, start, duration, channel, sampling rate, and the audio files' names.
    cut: str
    #: The audio files, absolute.
    audio: tuple[str, ...]
    #: Their sizes and mtimes when the manifest was written.
    stamp: tuple[Stamp, ...]
    #: The reference text as the corpus gave it.
    text: str
    #: Why the audio cannot be read; None where it can.
    unreadable: str | None


def index_path(manifest: Path | str) -> Path:
    """Where the index of a manifest lies: ``test.jsonl.gz`` -> ``test.index.jsonl``."""
    manifest = Path(manifest)
    return manifest.with_name(manifest.name.removesuffix(".gz").removesuffix(".jsonl") + ".index.jsonl")


def id_problem(utt_id: Any) -> str | None:
    """Why ``utt_id`` cannot be an utterance's id, or None where it can."""
    if not isinstance(utt_id, str) or not utt_id:
        return f"the id {utt_id!r} is not a text of at least one character"
    found = _NOT_IN_IDS.search(utt_id)
    if found:
        return f"the id {utt_id!r} holds {found[0]!r}, and an id may hold no whitespace and no control characters"
    return None


def stamp_of(path: str) -> Stamp:
    """Size and mtime of a file now; None where there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called for every audio file at each start of the workflow
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


class ItemHasher:
    """Item hashes of entries, with each audio file looked at once (a recording may hold thousands of cuts).

    Args:
        hash_audio: take the audio's content rather than its size and mtime: slow, but it survives a copy to
            another disk.
    """

    def __init__(self, *, hash_audio: bool = False) -> None:
        self._look = functools.cache(_content_of if hash_audio else stamp_of)
        self._kind = "content" if hash_audio else "stamp"

    def __call__(self, entry: Entry) -> str:
        """The hash over the cut and its audio as it is now, 32 hexadecimal digits."""
        return content_key([entry.cut, self._kind, [self._look(path) for path in entry.audio]])[:32]


def _content_of(path: str) -> str | None:
    try:
        return file_digest(Path(path))
    except OSError:
        return None


def item_hash(entry: Entry, *, hash_audio: bool = False) -> str:
    """The hash over a cut and its audio as it is now; for many entries take one `ItemHasher`."""
    return ItemHasher(hash_audio=hash_audio)(entry)


def cut_text(record: dict[str, Any]) -> str:
    """The reference text of a cut's record: its supervisions' texts in their order, joined by a space."""
    return " ".join(s["text"] for s in record.get("supervisions") or () if s.get("text"))


def entry_of(record: dict[str, Any], offset: int, line: int, stamps: Any, where: str) -> Entry:
    """The entry of a cut's record, which starts at a byte offset and line of the manifest.

    Args:
        record: the cut as JSON.
        offset: of its gzip member.
        line: within the member.
        stamps: `stamp_of`, cached or not.
        where: file and line, for messages.

    Raises:
        DataError: the id cannot be one, or it is no MonoCut with a recording.
    """
    if not isinstance(record, dict):
        raise DataError(f"{where}: expected a cut as a JSON object, found {record!r:.80}", hint="prepare it again")
    problem = id_problem(record.get("id"))
    if problem:
        raise DataError(f"{where}: {problem}", hint="rename it in the corpus, for instance with '_' for a space")
    recording = record.get("recording")
    if record.get("type") != "MonoCut" or not recording or "duration" not in record:
        raise DataError(
            f"{where} ({record['id']}): expected a MonoCut with a recording and a duration, found "
            f"{record.get('type') or 'no cut'} with {', '.join(sorted(record))}",
            hint="let 'espnet3-rules prepare' make the manifest; a corpus of type lhotse takes any lhotse manifest",
        )
    try:
        return _entry(record, offset, line, stamps)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{where} ({record['id']}): not a whole cut: {type(error).__name__} {error}", hint="prepare it again"
        ) from error


def _entry(record: dict[str, Any], offset: int, line: int, stamps: Any) -> Entry:
    recording = record["recording"]
    audio = tuple(s["source"] for s in recording["sources"] if s["type"] == "file")
    key = [record["id"], record.get("start", 0.0), record["duration"], record["channel"], recording["sampling_rate"]]
    # the name, since other clips may have the same size and time; not the folder, so that a corpus can be moved
    key += [[os.path.basename(name) for name in audio], recording.get("transforms")]  # noqa: PTH119
    return Entry(
        id=record["id"],
        duration_s=record["duration"],
        offset=offset,
        line=line,
        cut=content_key(key)[:32],
        audio=audio,
        stamp=tuple(stamps(name) for name in audio),
        text=cut_text(record),
        unreadable=(record.get("custom") or {}).get(UNREADABLE),
    )


def entry_line(entry: Entry) -> str:
    """An entry as a line of the index."""
    return canonical_json({k: v for k, v in entry._asdict().items() if v is not None})


def last_line(cuts: int, size: int, digest: str) -> str:
    """The line that ends an index: how many cuts there are, and of which manifest (bytes, SHA-256)."""
    return canonical_json({"version": VERSION, "cuts": cuts, "manifest_bytes": size, "manifest_sha256": digest})


def load_index(path: Path) -> tuple[list[Entry], str] | None:
    """The index's entries and the digest of the manifest they are of; None where they cannot be this manifest's.

    The manifest's size is compared, and comparing the digest is left to the caller.
    """
    try:
        with _no_collection():
            records, digest = _load(path)
            return [
                Entry(
                    r["id"],
                    r["duration_s"],
                    r["offset"],
                    r["line"],
                    r["cut"],
                    tuple(r["audio"]),
                    tuple([tuple(s) if s else None for s in r["stamp"]]),
                    r["text"],
                    r.get("unreadable"),
                )
                for r in records
            ], digest
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def load_stamps(path: Path) -> dict[str, Stamp] | None:
    """The stamp of each audio file in the index, without making entries; None as `load_index`."""
    try:
        with _no_collection():
            records, _ = _load(path)
            return {
                name: tuple(stamp) if stamp else None
                for r in records
                for name, stamp in zip(r["audio"], r["stamp"], strict=True)
            }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _load(path: Path) -> tuple[list[dict[str, Any]], str]:
    lines = index_path(path).read_bytes().split(b"\n")
    # one call for all lines: three times as fast as one a line
    *records, last = json.loads(b"[" + b",".join(lines[:-1]) + b"]")
    if (last["version"], last["cuts"], last["manifest_bytes"]) != (VERSION, len(records), path.stat().st_size):
        raise ValueError
    return records, last["manifest_sha256"]


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Without garbage collection: with many new objects and nothing to collect it takes half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
