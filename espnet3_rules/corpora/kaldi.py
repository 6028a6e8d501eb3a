"""Kaldi data directories: ``wav.scp`` (paths and pipes), ``segments``, ``text``, ``utt2spk`` and ``spk2utt``.

The formats are those of Kaldi's "Data preparation" page. Utterances come in the order of ``segments``, or of
``wav.scp`` where every recording is one utterance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3_rules import options as option_module
from espnet3_rules.corpora import Work
from espnet3_rules.corpora.audio import MAX_CHANNEL, MAX_S, Utterance, make_cuts
from espnet3_rules.corpora.commands import Stored, store_commands
from espnet3_rules.corpora.reading import Problems, check_id, text_lines
from espnet3_rules.errors import DataError
from espnet3_rules.options import opt

if TYPE_CHECKING:
    from lhotse import MonoCut


@dataclasses.dataclass(frozen=True)
class Options(option_module.Options):
    """A corpus of Kaldi data directories."""

    splits: dict[str, str] = opt(doc="name of each split, and its data directory (with wav.scp and text)")
    root: str | None = opt(
        None, "folder that relative paths in wav.scp start from and pipes run in; the working directory if not given"
    )
    channel: int | None = opt(
        None, "channel to take from recordings with several, from 0; segments may give one each", minimum=0
    )

    def sources(self, split: str) -> list[Path]:
        """The files that describe a split; a change in one of them means that it must be prepared again."""
        names = ("wav.scp", "segments", "text", "utt2spk", "spk2utt")
        return [path for path in (Path(self.splits[split]) / name for name in names) if path.is_file()]


@dataclasses.dataclass(frozen=True)
class _Region:
    """A line of ``segments``, or a whole recording."""

    recording: str
    where: str
    start_s: float = 0.0
    duration_s: float | None = None
    channel: int | None = None


def cuts(options: Options, split: str, work: Work) -> Iterator[MonoCut]:
    """The cuts of one data directory.

    Raises:
        DataError: files that do not fit together; names each line.
    """
    folder = Path(options.splits[split])
    if not (folder / "wav.scp").is_file() or not (folder / "text").is_file():
        found = ", ".join(sorted(p.name for p in folder.iterdir())) if folder.is_dir() else "no such folder"
        raise DataError(
            f"{folder}: expected a Kaldi data directory with wav.scp and text, found {found or 'an empty folder'}",
            hint=f"correct the path in the corpus's 'splits' (relative paths start from {Path.cwd()})",
        )
    problems = Problems(str(folder))
    audio = _table(folder / "wav.scp", problems, "path or command")
    texts = _table(folder / "text", problems, "text", may_be_empty=True)
    segments = folder / "segments"
    if segments.is_file():
        regions = _segments(segments, audio, problems)
    else:
        regions = {name: _Region(name, where) for name, (_, where) in audio.items()}
    speakers = _speakers(folder, regions, problems)
    _compare(regions, texts, folder / "text", segments if segments.is_file() else folder / "wav.scp", problems)
    problems.check()

    root = Path(options.root or ".").absolute()
    used = {region.recording: audio[region.recording][0] for region in regions.values()}
    commands = {name: value[:-1].strip() for name, value in used.items() if value.endswith("|")}
    stored = store_commands(commands.values(), work, root)
    # absolute, because a manifest is read from other folders and on other nodes
    sources = {
        name: stored[commands[name]] if name in commands else Stored(str(root / value), None)
        for name, value in used.items()
    }
    utterances = [
        Utterance(
            id=utt_id,
            audio=sources[region.recording].path,
            text=texts[utt_id][0],
            where=region.where,
            start_s=region.start_s,
            duration_s=region.duration_s,
            channel=region.channel if region.channel is not None else options.channel,
            speaker=speakers.get(utt_id),
            recording=region.recording,
            problem=sources[region.recording].problem,
        )
        for utt_id, region in regions.items()
    ]
    yield from make_cuts(utterances, work, str(folder))


def _table(path: Path, problems: Problems, what: str, *, may_be_empty: bool = False) -> dict[str, tuple[str, str]]:
    """``id rest of the line`` -> {id: (rest, where)}. The rest may hold spaces and quotes, which mean nothing here."""
    table: dict[str, tuple[str, str]] = {}
    seen: dict[str, str] = {}
    for number, line in text_lines(path):
        where = f"{path}, line {number}"
        name, *rest = line.split(maxsplit=1)
        check_id(name, where, seen, problems)
        if not rest and not may_be_empty:
            problems.add(f"{where}: {name!r} without a {what}", f"give {path.name} an id and a {what} a line")
        table.setdefault(name, (rest[0].strip() if rest else "", where))
    return table


def _segments(path: Path, audio: dict[str, tuple[str, str]], problems: Problems) -> dict[str, _Region]:
    regions: dict[str, _Region] = {}
    seen: dict[str, str] = {}
    fix = (
        "write 'utterance recording start end' in seconds, with end after start (or -1: to the end), "
        "then a channel if wanted"
    )
    for number, line in text_lines(path):
        where = f"{path}, line {number}"
        fields = line.split()
        check_id(fields[0], where, seen, problems)
        try:
            name, start_s, end_s = fields[1], float(fields[2]), float(fields[3])
            channel = int(fields[4]) if len(fields) > 4 else None
            if len(fields) > 5 or not (0 <= start_s < end_s <= MAX_S or (0 <= start_s <= MAX_S and end_s == -1)):
                raise ValueError
            if channel is not None and not -1 <= channel <= MAX_CHANNEL:
                raise ValueError
        except (IndexError, ValueError):
            problems.add(f"{where}: no region of a recording: {line[:80]!r}", fix)
            continue
        if name not in audio:
            problems.add(
                f"{where}: utterance {fields[0]!r} is in recording {name!r}, which wav.scp does not have",
                "add the recording to wav.scp, or take the line out of segments",
            )
        duration_s = None if end_s == -1 else round(end_s - start_s, 8)
        # extract-segments takes -1 for "no channel said"
        regions[fields[0]] = _Region(name, where, start_s, duration_s, None if channel == -1 else channel)
    return regions


def _speakers(folder: Path, regions: dict[str, _Region], problems: Problems) -> dict[str, str]:
    """Utterance -> speaker, from utt2spk or else spk2utt; where both are there they must agree."""
    utt2spk, spk2utt = folder / "utt2spk", folder / "spk2utt"
    listed: dict[str, str] = {}
    if spk2utt.is_file():
        for name, (rest, where) in _table(spk2utt, problems, "list of utterances").items():
            for utt_id in rest.split():
                if utt_id in listed:
                    problems.add(
                        f"{where}: utterance {utt_id!r} stands under {listed[utt_id]!r} too", "make spk2utt anew"
                    )
                listed[utt_id] = name
    if not utt2spk.is_file():
        return listed
    speakers = {}
    for utt_id, (name, where) in _table(utt2spk, problems, "speaker").items():
        speakers[utt_id] = name
        if spk2utt.is_file() and listed.get(utt_id) != name:
            problems.add(
                f"{where}: utterance {utt_id!r} is spoken by {name!r}, in spk2utt by {listed.get(utt_id)!r}",
                f"make spk2utt anew from utt2spk, or delete {spk2utt}",
            )
    for utt_id, region in regions.items():
        if utt_id not in speakers:
            problems.add(f"{region.where}: utterance {utt_id!r} is not in utt2spk", f"add it to {utt2spk}")
    return speakers


def _compare(
    regions: dict[str, _Region], texts: dict[str, tuple[str, str]], text: Path, source: Path, problems: Problems
) -> None:
    """An utterance on one side only is an error here; Kaldi's fix_data_dir.sh would drop it in silence."""
    for utt_id, region in regions.items():
        if utt_id not in texts:
            problems.add(
                f"{region.where}: utterance {utt_id!r} has no line in {text}",
                "add its text (the id alone for an empty one), or run Kaldi's utils/fix_data_dir.sh to drop it",
            )
    for utt_id, (_, where) in texts.items():
        if utt_id not in regions:
            problems.add(
                f"{where}: utterance {utt_id!r} has no line in {source}",
                "add its audio, or run Kaldi's utils/fix_data_dir.sh to drop it",
            )
