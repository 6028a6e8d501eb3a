"""The records that pass between stages, and the one way to write a file.

Every published file is written aside, synced and renamed, so that a reader, or a rerun after a kill, sees
either the old file or the whole new one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gzip
import hashlib
import json
import os
import uuid
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from espnet3_rules.errors import DataError, EnvironmentProblem

OK = "ok"
FAILED = "failed"


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """What is known of one utterance after decoding: one line of a journal, of a shard, of the merged file."""

    utt_id: str
    #: The item hash: which cut of which audio this is the result of.
    item: str
    text: str = ""
    #: Natural log of the probability that the decoder gave the text; None where it has none.
    score: float | None = None
    #: The best texts with their scores, best first; None unless asked for.
    nbest: tuple[tuple[str, float], ...] | None = None
    #: Length of the audio in seconds.
    duration_s: float = 0.0
    #: This utterance's part of the time its batch took, in seconds. Lives in the journal only.
    decode_s: float | None = None
    status: str = OK
    #: Why it failed; None where it did not.
    error: str | None = None

    def to_json(self, *, timings: bool = True) -> dict[str, Any]:
        """The record as a JSON object, without the fields that say nothing."""
        record = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        if not timings:
            record.pop("decode_s", None)
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any], *, source: str = "record") -> Hypothesis:
        """The hypothesis in a JSON object; keys of later versions are left alone.

        Raises:
            DataError: a needed key is missing; ``source`` says where.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        values = {k: v for k, v in record.items() if k in known}
        missing = {"utt_id", "item"} - values.keys()
        if missing:
            raise DataError(f"{source}: no {' and no '.join(sorted(missing))} in {record!r}")
        if values.get("nbest") is not None:
            values["nbest"] = tuple((text, score) for text, score in values["nbest"])
        return cls(**values)


def not_utf8(error: UnicodeEncodeError) -> str:
    """What is wrong with a text that cannot be written, with a little of what stands before."""
    before = error.object[max(0, error.start - 20) : error.start]
    return f"the character {error.object[error.start]!a} after {before!a} is no text that UTF-8 can hold"


def canonical_json(value: Any) -> str:
    """``value`` as JSON that depends on nothing but the value: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def content_key(value: Any) -> str:
    """SHA-256 over ``value``'s canonical JSON, as 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, as 64 hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns a full disk, one that may not be written, or a path that cannot be made into an error that names it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            todo = "make room (or choose another folder)" if full else "make the folder writable (or choose another)"
            raise EnvironmentProblem(
                f"{path}: {os.strerror(error.errno)}",
                hint=f"{todo} and give the same command again: what is done is kept",
            ) from error
        if error.errno in _NO_SUCH_PLACE and _is_of(error, path):
            raise EnvironmentProblem(
                f"{path}: this path cannot be created: {os.strerror(error.errno)}"
                + (f" ({error.filename})" if error.filename else ""),
                hint="choose another folder, or see whether a part of the path is a file, a broken link or too long",
            ) from error
        raise


#: What a path is answered with that cannot be made, whatever room and rights there are.
_NO_SUCH_PLACE = (errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.ENAMETOOLONG, errno.EISDIR)


def _is_of(error: OSError, path: Path) -> bool:
    """Whether an error is about ``path`` (its folders, or a file beside or in it), not about a file read meanwhile."""
    if not isinstance(error.filename, str | os.PathLike):
        return False
    found = Path(error.filename)
    return found in (path, *path.parents) or path in found.parents or found.parent == path.parent


@contextlib.contextmanager
def write_aside(path: Path | str, mode: str = "w") -> Iterator[IO[Any]]:
    """A stream whose content becomes ``path`` at once when the block ends well, and nothing otherwise.

    The temporary file lies in the same folder (a rename is atomic only there). The data and the folder's
    entry are synced, so that the file survives a power cut as well as a kill. Opened as UTF-8 for text.

    Raises:
        EnvironmentProblem: the disk is full or not writable, or there can be no such path.
        DataError: a text holds a lone surrogate, which UTF-8 cannot.
    """
    path = Path(path)
    aside = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex[:12]}.tmp")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            encoding, newline = (None, None) if "b" in mode else ("utf-8", "\n")
            with aside.open(mode, encoding=encoding, newline=newline) as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            aside.replace(path)
            sync_folder(path.parent)
        except UnicodeEncodeError as error:
            raise DataError(f"{path}: {not_utf8(error)}", hint="take it out of the text it comes from") from error
        finally:
            aside.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes the folder's entries (a new file, a rename) survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path | str, value: Any) -> None:
    """Publishes ``value`` as a readable JSON file."""
    with write_aside(path) as stream:
        json.dump(value, stream, ensure_ascii=False, indent=2, sort_keys=True, allow_nan=False)
        stream.write("\n")


def _made_by(stage: str | None) -> str | None:
    return f"`espnet3-rules {stage}` makes it: run that first, or correct the path" if stage else None


_AGAIN = "delete the file and give the same command again: it is made anew"


def read_json(path: Path | str, *, made_by: str | None = None) -> Any:
    """The value in a JSON file; ``made_by`` is the stage that publishes it, for messages.

    Raises:
        DataError: the file is missing, or is not JSON.
    """
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", hint=_made_by(made_by)) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error})", hint=_AGAIN) from error


def write_jsonl(path: Path | str, records: Iterable[dict[str, Any]]) -> None:
    """Publishes ``records`` as a file of JSON lines."""
    with write_aside(path) as stream:
        for number, record in enumerate(records, 1):
            try:
                stream.write(canonical_json(record) + "\n")
            except UnicodeEncodeError as error:
                raise DataError(
                    f"{path}, line {number} ({record.get('utt_id') or record.get('id')}): {not_utf8(error)}",
                    hint="take it out of the text it comes from",
                ) from error


def read_jsonl(path: Path | str, *, made_by: str | None = None) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines (gzip by its ending), one at a time; never a whole file in memory.

    Raises:
        DataError: the file is missing, or a line is not a whole JSON object; names file and line.
    """
    path = Path(path)
    try:
        stream: Any = gzip.GzipFile(path) if path.suffix == ".gz" else path.open("rb")
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", hint=_made_by(made_by)) from error
    with stream:
        number = 0
        while True:
            number += 1
            try:
                line = stream.readline()
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(
                    f"{path}, line {number}: the gzip file is cut off or damaged ({error})", hint=_AGAIN
                ) from error
            if not line:
                return
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}, line {number}: not a whole JSON object: {line[:80]!r}",
                    hint=f"{_AGAIN} from what is done",
                ) from error
            if not isinstance(record, dict):
                raise DataError(f"{path}, line {number}: expected a JSON object, found {line[:80]!r}", hint=_AGAIN)
            yield record
