"""Reading what people wrote: lines with their numbers, and every problem of a corpus in one error."""

from __future__ import annotations

import gzip
import json
import typing
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from espnet3_rules.errors import DataError
from espnet3_rules.manifest import id_problem
from espnet3_rules.records import not_utf8

#: As many problems as a reader of the message still reads.
SHOWN = 20


class Problems:
    """What is wrong with a corpus, collected, so that all of it can be mended at once."""

    def __init__(self, corpus: str) -> None:
        self.corpus = corpus
        self._messages: list[str] = []
        self._fixes: dict[str, None] = {}  # in their order, each once

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, message: str, fix: str) -> None:
        """Notes a problem (naming file, line and utterance) and what to do about it."""
        self._messages.append(message)
        self._fixes[fix] = None

    def check(self) -> None:
        """Raises one `DataError` with every problem noted, if there is any."""
        if self._messages:
            count = "a problem" if len(self) == 1 else f"{len(self)} problems"
            raise DataError(
                f"{self.corpus}: {count}, nothing was written\n{shown(self._messages)}", hint="; ".join(self._fixes)
            )


def shown(messages: list[str]) -> str:
    """The first `SHOWN` messages as indented lines, and how many more there are."""
    lines = [f"  {message}" for message in messages[:SHOWN]]
    if len(messages) > SHOWN:
        lines.append(f"  ... and {len(messages) - SHOWN} more")
    return "\n".join(lines)


def existing_file(path: Path | str, what: str) -> Path:
    """``path``, if it is a file.

    Raises:
        DataError: it is not; says what was expected there.
    """
    path = Path(path)
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise DataError(
            f"{path}: expected {what}, found {found}",
            hint=f"correct the path in the corpus's 'splits' (relative paths start from {Path.cwd()})",
        )
    return path


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text without its end) of each line that is not blank; gzip by the ending.

    Raises:
        DataError: the file is no UTF-8, cannot be read, or its compression is damaged; names file and line.
    """
    number = 1
    with _opened(path) as stream:
        while True:
            try:
                raw = stream.readline()
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise DataError(
                    f"{path}, line {number}: the compressed file is cut off or damaged ({error})",
                    hint="fetch or make the file again",
                ) from error
            except OSError as error:
                raise DataError(f"{path}, line {number}: {error.strerror or error}") from error
            if not raw:
                return
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}: not UTF-8 ({error.reason} at byte {error.start}): {raw[:60]!r}",
                    hint="convert the file, for instance with iconv -f latin1 -t utf-8",
                ) from error
            if text.strip():
                yield number, text
            number += 1


def _opened(path: Path) -> IO[bytes]:
    try:
        return typing.cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", hint="see that the file is there and may be read") from error


def json_lines(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, object) of each line of a file of JSON objects; other lines go to ``problems``."""
    for number, text in text_lines(path):
        try:
            record = json.loads(text)
            if "\\ud" in text.lower():  # an escape is the only way to a lone surrogate
                json.dumps(record, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            problems.add(f"{path}, line {number}: {not_utf8(error)}", "write such characters as UTF-8, or as a pair")
            continue
        except (ValueError, RecursionError) as error:
            problems.add(f"{path}, line {number}: not JSON ({error}): {text[:60]!r}", "give one JSON object a line")
            continue
        if isinstance(record, dict):
            yield number, record
        else:
            problems.add(f"{path}, line {number}: not a JSON object: {text[:60]!r}", "give one JSON object a line")


def check_id(utt_id: str, where: str, seen: dict[str, str], problems: Problems) -> None:
    """Notes an id that cannot be one, or that was seen before; remembers where it stands."""
    problem = id_problem(utt_id)
    if problem:
        problems.add(f"{where}: {problem}", "rename such ids, for instance with '_' for a space")
    elif utt_id in seen:
        problems.add(
            f"{where}: the id {utt_id!r} is that of {seen[utt_id]} too", "give each utterance an id of its own"
        )
    else:
        seen[utt_id] = where
