"""Tables with a header line and tabs between the fields: id, audio, text and, if wanted, speaker, offset, duration,
channel.

Other columns are left alone. A field in double quotes is unquoted as spreadsheets and pandas write it (inner quotes
doubled); any other quote is a character like the rest, so that an unbalanced one cannot swallow the lines after it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3_rules import options as option_module
from espnet3_rules.corpora import Work
from espnet3_rules.corpora.audio import MAX_CHANNEL, MAX_S, Utterance, make_cuts
from espnet3_rules.corpora.reading import Problems, check_id, existing_file, text_lines
from espnet3_rules.errors import DataError, OptionError
from espnet3_rules.options import opt, unknown_key

if TYPE_CHECKING:
    from lhotse import MonoCut

REQUIRED = ("id", "audio", "text")
OPTIONAL = ("speaker", "offset", "duration", "channel")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"')


@dataclasses.dataclass(frozen=True)
class Options(option_module.Options):
    """A corpus of tables."""

    splits: dict[str, str] = opt(doc="name of each split, and its table; audio paths start from the table's folder")
    columns: dict[str, str] = opt(
        {}, "what the columns id, audio, text, speaker, offset, duration and channel are called in the table, if other"
    )
    channel: int | None = opt(
        None, "channel to take from files with several, from 0; a column 'channel' goes first", minimum=0
    )

    def sources(self, split: str) -> list[Path]:
        """The file that describes a split; a change in it means that the split must be prepared again."""
        return [path for path in (Path(self.splits[split]),) if path.is_file()]

    def check(self) -> None:
        """Refuses names for columns that there are not."""
        for name in self.columns:
            if name not in REQUIRED + OPTIONAL:
                raise unknown_key(f"columns.{name}", name, REQUIRED + OPTIONAL)
        if len(set(self.columns.values())) < len(self.columns):
            raise OptionError(f"columns: two of {self.columns} are the same column of the table")


def cuts(options: Options, split: str, work: Work) -> Iterator[MonoCut]:
    """The cuts of one table, in its order.

    Raises:
        DataError: a column is missing, or lines that cannot be used; names each.
    """
    path = existing_file(options.splits[split], "a table with tabs between its fields")
    problems = Problems(str(path))
    seen: dict[str, str] = {}
    utterances = []
    lines = text_lines(path)
    header = fields_of(next(lines, (1, ""))[1])
    places = _places(header, options.columns, path)
    for number, line in lines:
        where = f"{path}, line {number}"
        fields = fields_of(line)
        if len(fields) != len(header):
            problems.add(
                f"{where}: {len(fields)} fields, and the header has {len(header)}: {line[:60]!r}",
                "put a tab between fields, also around empty ones; a field may hold no tab and no line break",
            )
            continue
        row = {name: fields[place] for name, place in places.items()}
        check_id(row["id"], where, seen, problems)
        utterance = _utterance(row, path.parent, where, options.channel, problems)
        if utterance:
            utterances.append(utterance)
    problems.check()
    yield from make_cuts(utterances, work, str(path))


def fields_of(line: str) -> list[str]:
    r"""The fields of a line, unquoted.

    >>> fields_of('a1\t"he said ""no"" twice"\t"so, she')
    ['a1', 'he said "no" twice', '"so, she']
    """
    fields = []
    for field in line.split("\t"):
        quoted = _QUOTED.fullmatch(field)
        fields.append((quoted[1].replace('""', '"') if quoted else field).strip())
    return fields


def _places(header: list[str], columns: dict[str, str], path: Path) -> dict[str, int]:
    """Which field of a line is which."""
    names = {name: columns.get(name, name) for name in REQUIRED + OPTIONAL}
    missing = [names[name] for name in REQUIRED if names[name] not in header]
    missing += [names[name] for name in columns if name in OPTIONAL and names[name] not in header]
    if missing:
        raise DataError(
            f"{path}, line 1: no column {' and no column '.join(map(repr, missing))} among {header}",
            hint="the first line names the columns, with tabs between; 'columns' tells which is which if they are "
            "called otherwise, for instance columns: {audio: path, text: sentence}",
        )
    return {name: header.index(names[name]) for name in names if names[name] in header}


def _utterance(
    row: dict[str, str], folder: Path, where: str, channel: int | None, problems: Problems
) -> Utterance | None:
    before = len(problems)
    if not row["audio"]:
        problems.add(f"{where}: utterance {row['id']!r} has no audio", "give each line an audio path")
    numbers: dict[str, float | None] = {}
    for name in ("offset", "duration"):
        numbers[name] = None
        if row.get(name):
            try:
                numbers[name] = value = float(row[name])
                if not 0 <= value <= MAX_S or (name == "duration" and not value):
                    raise ValueError
            except ValueError:
                problems.add(
                    f"{where}: the {name} of {row['id']!r} is {row[name]!r:.40}", f"give the {name} in seconds"
                )
    if row.get("channel"):
        # the length first: Python refuses to read a number of thousands of digits
        if not row["channel"].isdecimal() or len(row["channel"]) > 9 or int(row["channel"]) > MAX_CHANNEL:
            problems.add(
                f"{where}: the channel of {row['id']!r} is {row['channel']!r:.40}",
                f"count channels from 0, to {MAX_CHANNEL} at the most",
            )
        else:
            channel = int(row["channel"])
    if len(problems) > before:
        return None
    return Utterance(
        id=row["id"],
        # absolute, because a manifest is read from other folders and on other nodes
        audio=str((folder / row["audio"]).absolute()),
        text=row["text"],
        where=where,
        start_s=numbers["offset"] or 0.0,
        duration_s=numbers["duration"],
        channel=channel,
        speaker=row.get("speaker") or None,
    )
