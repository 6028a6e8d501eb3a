"""Every problem of a manifest: ours, or any Lhotse manifest of cuts. The audio is really decoded."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from espnet3_rules.corpora import ParallelMap
from espnet3_rules.corpora.audio import Header, probe, region_of
from espnet3_rules.corpora.reading import text_lines
from espnet3_rules.errors import DataError
from espnet3_rules.manifest import UNREADABLE, cut_text, id_problem
from espnet3_rules.options import Options, opt
from espnet3_rules.prepare import process_map

#: How many seconds a recording's length may differ from what is declared; Lhotse accepts as much when it loads.
TOLERANCE_S = 0.025
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffd]")


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something that is wrong, or worth knowing, about one line of a manifest."""

    #: From 1.
    line: int
    utt_id: str
    #: id, cut, audio, duration, text, sampling rate, channel or file.
    what: str
    message: str
    #: True for what can be used all the same, such as an empty text.
    harmless: bool = False

    def __str__(self) -> str:
        return f"line {self.line} ({self.utt_id}): {self.what}: {self.message}{' (harmless)' if self.harmless else ''}"


class _Checked(NamedTuple):
    """What a worker found out about one line."""

    utt_id: str
    #: In Hz; None where it is not known.
    sampling_rate: int | None
    #: (what, message, harmless)
    findings: list[tuple[str, str, bool]]


@dataclasses.dataclass(frozen=True)
class ValidateOptions(Options):
    """How a manifest is checked."""

    workers: int | None = opt(
        None, "processes that decode the audio; all cores if not given", minimum=1, affects_result=False
    )


def report_problems(*, manifest: Path, options: ValidateOptions = ValidateOptions()) -> int:
    """Prints every problem of a manifest, and returns the exit code: 0 where all can be used, 3 otherwise.

    Args:
        manifest: of cuts, ours or any of Lhotse's in JSON lines.
        options: how.

    Raises:
        DataError: there is no such manifest.
    """
    with process_map(options.workers) as parallel_map:
        problems = validate(manifest, parallel_map=parallel_map)
    for problem in problems:
        print(problem)
    serious = sum(not p.harmless for p in problems)
    print(f"{manifest}: {serious} problems, and {len(problems) - serious} things to know")
    return DataError.exit_code if serious else 0


def validate(path: Path | str, *, parallel_map: ParallelMap = map) -> list[Problem]:  # type: ignore[assignment]
    """Every problem of a manifest of cuts, in its order.

    Looked at are ids, cuts, audio (the cut's region is decoded), durations, texts, sampling rates and channels.

    Raises:
        DataError: there is no such manifest.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such manifest", hint="make it with 'espnet3-rules prepare', or correct the path")
    problems: list[Problem] = []
    lines_of: dict[str, int] = {}
    rates: list[tuple[int, str, int]] = []
    number = 0
    for batch, damage in _batches(path):
        checked = parallel_map(_check_line, [text for _, text in batch])
        for (number, _), found in zip(batch, checked, strict=True):
            problems += [Problem(number, found.utt_id, *finding) for finding in found.findings]
            first = lines_of.setdefault(found.utt_id, number)
            if first != number and found.utt_id:
                problems.append(Problem(number, found.utt_id, "id", f"the id of line {first} too"))
            if found.sampling_rate:
                rates.append((number, found.utt_id, found.sampling_rate))
        if damage:  # what comes after it cannot be looked at
            problems.append(Problem(number + 1, "", "file", damage.message))
    problems += _rare_rates(rates)
    return sorted(problems, key=lambda problem: problem.line)


def _batches(path: Path) -> Iterator[tuple[list[tuple[int, str]], DataError | None]]:
    """Numbered lines by the thousands, since a manifest can be larger than memory; and why there are no more."""
    lines = text_lines(path)
    more, damage = True, None
    while more:
        batch: list[tuple[int, str]] = []
        try:
            batch.extend(itertools.islice(lines, 8192))
            more = bool(batch)
        except DataError as error:  # cut off, or not UTF-8
            more, damage = False, error
        yield batch, damage


def _rare_rates(rates: list[tuple[int, str, int]]) -> Iterator[Problem]:
    counts = Counter(rate for _, _, rate in rates)
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    for number, utt_id, rate in rates:
        if rate != usual:
            message = f"{rate} Hz, where most have {usual} Hz; it is resampled when it is read"
            yield Problem(number, utt_id, "sampling rate", message, harmless=True)


def _check_line(text: str) -> _Checked:
    """Everything about one line; runs in a worker process."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        return _Checked("", None, [("file", f"not JSON ({error}): {text[:60]!r}", False)])
    if not isinstance(record, dict):
        return _Checked("", None, [("file", f"not a JSON object: {text[:60]!r}", False)])
    utt_id = record.get("id")
    findings = [("id", problem, False)] if (problem := id_problem(utt_id)) else []
    utt_id = utt_id if isinstance(utt_id, str) else ""
    if record.get("type") not in ("MonoCut", "Cut") or not isinstance(record.get("recording"), dict):
        kind = record.get("type") or f"keys {', '.join(record)}"
        findings.append(("cut", f"expected a MonoCut with a recording, found {kind}", False))
        return _Checked(utt_id, None, findings)
    findings += _check_text(record)
    try:
        rate = record["recording"]["sampling_rate"]
        findings += _check_audio(record, record["recording"])
    except (KeyError, TypeError, IndexError) as error:
        findings.append(("cut", f"not a whole cut: {type(error).__name__} {error}", False))
        rate = None
    return _Checked(utt_id, rate, findings)


def _check_text(record: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    supervisions = record.get("supervisions") or []
    if not supervisions:
        yield "text", "no supervision, so no reference text", True
    elif any(not isinstance(s.get("text"), str | None) for s in supervisions):
        yield "text", f"not a text: {[s.get('text') for s in supervisions]!r}", False
    elif not cut_text(record).strip():
        yield "text", "an empty reference text", True
    elif found := _CONTROL.search(cut_text(record)):
        yield "text", f"holds the character {found[0]!r}: {cut_text(record)[:60]!r}", False


def _check_audio(record: dict[str, Any], recording: dict[str, Any]) -> Iterator[tuple[str, str, bool]]:
    start_s, duration_s, rate = record.get("start", 0.0), record["duration"], recording["sampling_rate"]
    channel = record["channel"]
    if not duration_s > 0 or start_s < 0:
        yield "duration", f"a cut from {start_s} s for {duration_s} s", False
        return
    marked = (record.get("custom") or {}).get(UNREADABLE)
    if marked:  # its recording is made up, so that there is nothing to compare
        name = recording["sources"][0]["source"]
        yield "audio", f"{name}: marked by prepare as unreadable: {marked}", False
        return
    declared_s = recording["num_samples"] / rate
    if abs(declared_s - recording["duration"]) > TOLERANCE_S:
        yield "duration", f"{recording['duration']} s and {recording['num_samples']} samples of {rate} Hz", False
    if start_s + duration_s > declared_s + TOLERANCE_S:
        yield "duration", f"the cut ends at {start_s + duration_s:g} s, its recording at {declared_s:g} s", False
    sources = [s for s in recording["sources"] if channel in s["channels"]]
    if not sources:
        there = sorted(c for s in recording["sources"] for c in s["channels"])
        yield "channel", f"channel {channel} of a recording with channels {there}", False
    for source in sources:
        if source["type"] != "file":
            yield "audio", f"not looked at, because it is a source of type {source['type']!r}", True
            continue
        header = probe(source["source"])
        if isinstance(header, str):
            yield "audio", f"{source['source']}: {header}", False
            continue
        yield from _compare(header, recording, source, declared_s)
        # transforms change the times on the way: then the whole file is decoded
        region = (0.0, None) if recording.get("transforms") else (start_s, duration_s)
        yield from _decode(source["source"], header, *region)


def _compare(
    header: Header, recording: dict[str, Any], source: dict[str, Any], declared_s: float
) -> Iterator[tuple[str, str, bool]]:
    name = source["source"]
    if len(source["channels"]) != header.channels:
        yield "channel", f"{name}: declared with {len(source['channels'])} channels, has {header.channels}", False
    # transforms change rate and length; opus is decoded at the declared rate
    if recording.get("transforms") or name.endswith(".opus"):
        return
    if header.sampling_rate != recording["sampling_rate"]:
        declared = recording["sampling_rate"]
        yield "sampling rate", f"{name}: declared as {declared} Hz, has {header.sampling_rate} Hz", False
    has_s = header.frames / header.sampling_rate
    if abs(has_s - declared_s) > TOLERANCE_S:
        yield "duration", f"{name}: declared as {declared_s:g} s, has {has_s:g} s", False


def _decode(name: str, header: Header, start_s: float, duration_s: float | None) -> Iterator[tuple[str, str, bool]]:
    """Problems that only show when the samples are read."""
    import numpy as np
    import soundfile

    region = region_of(header, start_s, duration_s, None)
    if isinstance(region, str):
        yield "audio", f"{name}: {region}", False
        return
    wanted = round(region[1] * header.sampling_rate)
    read, finite = 0, True
    try:
        with soundfile.SoundFile(name) as stream:
            stream.seek(round(region[0] * header.sampling_rate))
            while read < wanted:
                block = stream.read(min(1 << 20, wanted - read), dtype="float32", always_2d=True)
                if not len(block):
                    break
                read += len(block)
                finite = finite and bool(np.isfinite(block).all())
    except (soundfile.LibsndfileError, OSError, ValueError) as error:
        why = str(error).strip() or "damaged data"
        yield "audio", f"{name}: cannot be decoded after {read / header.sampling_rate:g} s of the cut: {why}", False
        return
    if wanted - read > TOLERANCE_S * header.sampling_rate:
        yield "audio", f"{name}: only {read / header.sampling_rate:g} s of {region[1]:g} s can be decoded", False
    if not finite:
        yield "audio", f"{name}: samples that are infinite or not a number", False
