"""Any Lhotse manifest in JSON lines: cuts, or recordings with the supervisions that lie beside them.

What a cut holds (supervisions, alignments, custom fields) stays as it is; only its audio paths are made absolute,
audio that commands give is stored, and what cannot be read is marked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3_rules import options as option_module
from espnet3_rules.corpora import Work
from espnet3_rules.corpora.audio import MAX_S, Header, probe_all, region_of, report_unreadable
from espnet3_rules.corpora.commands import Stored, store_commands
from espnet3_rules.corpora.reading import Problems, check_id, existing_file, json_lines
from espnet3_rules.errors import DataError
from espnet3_rules.manifest import UNREADABLE
from espnet3_rules.options import opt

if TYPE_CHECKING:
    from lhotse import MonoCut

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Options(option_module.Options):
    """A corpus of Lhotse manifests."""

    splits: dict[str, str] = opt(
        doc="name of each split, and its manifest (.jsonl or .jsonl.gz): of cuts, or of recordings with the "
        "supervisions beside it under the same name with 'supervisions' for 'recordings'"
    )
    root: str | None = opt(
        None, "folder that relative audio paths start from and commands run in; the working directory if not given"
    )
    channel: int | None = opt(None, "channel to take where a cut or supervision has several, from 0", minimum=0)

    def sources(self, split: str) -> list[Path]:
        """The files that describe a split; a change in one of them means that it must be prepared again."""
        path = Path(self.splits[split])
        return [p for p in dict.fromkeys((path, supervisions_of(path))) if p.is_file()]


def supervisions_of(recordings: Path) -> Path:
    """Where Lhotse's recipes put the supervisions of a recordings manifest."""
    return recordings.with_name(recordings.name.replace("recordings", "supervisions"))


def cuts(options: Options, split: str, work: Work) -> Iterator[MonoCut]:
    """The cuts of one manifest, in its order.

    Raises:
        DataError: lines that cannot be used; names each.
    """
    path = existing_file(options.splits[split], "a Lhotse manifest")
    if path.name.removesuffix(".gz").rsplit(".", 1)[-1] != "jsonl":
        raise DataError(
            f"{path}: expected a manifest in JSON lines (.jsonl or .jsonl.gz)",
            hint=f"lhotse copy {path} {path.with_suffix('.jsonl.gz')}",
        )
    problems = Problems(str(path))
    first = next((record for _, record in json_lines(path, Problems(str(path)))), {})
    if "sources" in first:
        found = _from_recordings(path, problems)
    else:
        found = [(record, f"{path}, line {number}") for number, record in json_lines(path, problems)]
    seen: dict[str, str] = {}
    records = []
    for record, where in found:
        check_id(record.get("id", ""), where, seen, problems)
        try:
            mono = _mono(record, where, options.channel, problems)
        except (KeyError, TypeError, AttributeError) as error:
            problems.add(
                f"{where} ({record.get('id')}): not a whole cut: {type(error).__name__} {error}",
                "take a manifest that 'lhotse validate' accepts",
            )
            continue
        if mono:
            records.append(mono)
    problems.check()
    _place_audio(records, options, work, str(path))

    from lhotse import MonoCut

    for record in records:
        record.pop("type")
        yield MonoCut.from_dict(record)


def _from_recordings(path: Path, problems: Problems) -> list[tuple[Record, str]]:
    """A cut for each supervision."""
    beside = supervisions_of(path)
    if beside == path or not beside.is_file():
        raise DataError(
            f"{path}: a manifest of recordings, without one of supervisions beside it ({beside.name})",
            hint="name them <name>recordings<rest> and <name>supervisions<rest>, or make cuts: "
            "lhotse cut simple -r RECORDINGS -s SUPERVISIONS CUTS",
        )
    recordings: dict[str, Record] = {}
    seen: dict[str, str] = {}
    for number, record in json_lines(path, problems):
        check_id(record.get("id", ""), f"{path}, line {number}", seen, problems)
        recordings[record.get("id", "")] = record
    made = []
    for number, record in json_lines(beside, problems):
        where = f"{beside}, line {number}"
        missing = [key for key in ("id", "recording_id", "start", "duration") if key not in record]
        if missing:
            problems.add(f"{where}: no {', no '.join(missing)}", "take a manifest that 'lhotse validate' accepts")
        elif record["recording_id"] not in recordings:
            problems.add(
                f"{where}: supervision {record['id']!r} is of recording {record['recording_id']!r}, which {path} "
                "does not have",
                "take recordings and supervisions of the same corpus ('lhotse fix' drops what does not fit)",
            )
        else:
            cut = {key: record[key] for key in ("id", "start", "duration")}
            cut["channel"] = record.get("channel", 0)
            cut["recording"] = recordings[record["recording_id"]]
            cut["supervisions"] = [{**record, "start": 0.0}]  # counted from the cut's start
            cut["type"] = "MonoCut"
            made.append((cut, where))
    return made


def _mono(record: Record, where: str, channel: int | None, problems: Problems) -> Record | None:
    """The record as one of a cut of one channel, or None where it cannot be one."""
    name = f"{where} ({record.get('id')})"
    if record.get("type") not in ("MonoCut", "MultiCut", "Cut"):
        problems.add(
            f"{name}: expected a cut of one recording, found {record.get('type') or 'keys ' + ', '.join(record)}",
            "give a manifest of cuts or of recordings; save mixed cuts as audio first (CutSet.save_audios)",
        )
        return None
    recording = record.get("recording")
    if not recording or not isinstance(record.get("duration"), int | float) or record["duration"] <= 0:
        problems.add(
            f"{name}: a cut without {'a duration above 0' if recording else 'a recording'}",
            "take cuts that have audio, not features alone; 'lhotse cut validate' tells more",
        )
        return None
    start_s = record.get("start", 0.0)
    if not isinstance(start_s, int | float) or not (0 <= start_s <= MAX_S and record["duration"] <= MAX_S):
        problems.add(
            f"{name}: {record['duration']!r:.40} s from {start_s!r:.40} s", "give start and duration in seconds"
        )
        return None
    unusable = sorted({s["type"] for s in recording["sources"]} - {"file", "command"})
    if unusable:
        problems.add(
            f"{name}: audio in a source of type {', '.join(unusable)}",
            "save the audio as files first (CutSet.save_audios): only files and commands can be read later",
        )
        return None
    there = record.get("channel", 0)
    if isinstance(there, list) and len(there) != 1 and channel not in there:
        problems.add(f"{name}: a cut of channels {there}", "choose one with the corpus's 'channel'")
        return None
    wanted = channel if isinstance(there, list) and len(there) != 1 else there
    wanted = wanted[0] if isinstance(wanted, list) else wanted
    # recordings are shared between cuts: what is changed later is changed in a copy
    return {**record, "type": "MonoCut", "channel": wanted, "start": record.get("start", 0.0)}


def _place_audio(records: list[Record], options: Options, work: Work, corpus: str) -> None:
    """Makes paths absolute, stores what commands give, and marks the cuts that cannot be read."""
    root = Path(options.root or ".").absolute()
    sources = [source for record in records for source in record["recording"]["sources"]]
    stored = store_commands((s["source"] for s in sources if s["type"] == "command"), work, root)
    unplaced = {(s["type"], s["source"]) for s in sources}
    # absolute, because our manifest is read from other folders and on other nodes
    placed = {
        (kind, text): stored[text] if kind == "command" else Stored(str(root / text), None) for kind, text in unplaced
    }
    headers = probe_all([s.path for s in placed.values() if not s.problem], work)
    unreadable = []
    for record in records:
        recording = record["recording"]
        files = [placed[s["type"], s["source"]] for s in recording["sources"]]
        record["recording"] = {
            **recording,
            "sources": [
                {**s, "type": "file", "source": f.path} for s, f in zip(recording["sources"], files, strict=True)
            ],
        }
        reasons = (_reason(record, s, f, headers) for s, f in zip(recording["sources"], files, strict=True))
        reason = next(filter(None, reasons), None)
        if reason:
            record["custom"] = {**(record.get("custom") or {}), UNREADABLE: reason}
            unreadable.append((record["id"], files[0].path, reason))
    report_unreadable(corpus, unreadable, len(records))


def _reason(record: Record, source: Record, file: Stored, headers: dict[str, Header | str]) -> str | None:
    """Why a cut cannot be read from this source of its recording, or None."""
    if record["channel"] not in source["channels"]:
        return None  # another source's business
    header = file.problem or headers[file.path]
    if isinstance(header, str):
        return header
    recording = record["recording"]
    # transforms (speed, resampling) change rate and length on the way; opus is decoded at the rate that is declared
    if recording.get("transforms") or file.path.endswith(".opus"):
        return None
    if header.sampling_rate != recording["sampling_rate"]:
        return f"declared as {recording['sampling_rate']} Hz, but the audio has {header.sampling_rate} Hz"
    region = region_of(header, record["start"], record["duration"], source["channels"].index(record["channel"]))
    return region if isinstance(region, str) else None
