"""NeMo manifests: JSON lines with ``audio_filepath``, ``text`` and, if wanted, ``duration``, ``offset``, ``id``,
``speaker``, ``lang`` and ``channel``.

Relative audio paths start from the manifest's folder, as in NeMo.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from espnet3_rules import options as option_module
from espnet3_rules.corpora import Work
from espnet3_rules.corpora.audio import MAX_CHANNEL, MAX_S, Utterance, make_cuts
from espnet3_rules.corpora.reading import Problems, check_id, existing_file, json_lines
from espnet3_rules.options import opt

if TYPE_CHECKING:
    from lhotse import MonoCut


@dataclasses.dataclass(frozen=True)
class Options(option_module.Options):
    """A corpus of NeMo manifests."""

    splits: dict[str, str] = opt(doc="name of each split, and its manifest (JSON lines; .gz is read too)")
    channel: int | None = opt(
        None, "channel to take from files with several, from 0; a line's own 'channel' goes first", minimum=0
    )

    def sources(self, split: str) -> list[Path]:
        """The file that describes a split; a change in it means that the split must be prepared again."""
        return [path for path in (Path(self.splits[split]),) if path.is_file()]


def cuts(options: Options, split: str, work: Work) -> Iterator[MonoCut]:
    """The cuts of one manifest, in its order.

    Raises:
        DataError: lines that cannot be used; names each.
    """
    path = existing_file(options.splits[split], "a NeMo manifest")
    problems = Problems(str(path))
    seen: dict[str, str] = {}
    utterances = []
    for number, record in json_lines(path, problems):
        utterance = _utterance(record, path, f"{path}, line {number}", options.channel, problems)
        if utterance:
            check_id(utterance.id, utterance.where, seen, problems)
            utterances.append(utterance)
    problems.check()
    yield from make_cuts(utterances, work, str(path))


def _utterance(
    record: dict[str, Any], manifest: Path, where: str, channel: int | None, problems: Problems
) -> Utterance | None:
    audio, text = record.get("audio_filepath"), record.get("text")
    before = len(problems)
    if not isinstance(audio, str) or not audio:
        problems.add(f"{where}: 'audio_filepath' is {audio!r}", "give each line an 'audio_filepath'")
    if not isinstance(text, str):
        problems.add(f"{where} ({audio}): 'text' is {text!r}", "give each line a 'text', \"\" if nothing is said")
    offset_s = _number(record, "offset", where, problems)
    duration_s = _number(record, "duration", where, problems)
    if duration_s == 0:
        problems.add(
            f"{where} ({audio}): a duration of 0 s", "correct the duration, or leave it out for the whole file"
        )
    channel = record.get("channel", channel)
    if channel is not None and (
        isinstance(channel, bool) or not isinstance(channel, int) or not 0 <= channel <= MAX_CHANNEL
    ):
        problems.add(
            f"{where} ({audio}): 'channel' is {channel!r:.40}",
            f"give channels as whole numbers from 0 to {MAX_CHANNEL}",
        )
    if len(problems) > before or not isinstance(audio, str) or not isinstance(text, str):
        return None
    utt_id, speaker, language = record.get("id"), record.get("speaker"), record.get("lang")
    return Utterance(
        id=str(utt_id) if utt_id is not None else id_of(audio, manifest.parent, offset_s),
        # absolute, because our manifest is read from other folders and on other nodes
        audio=str((manifest.parent / audio).absolute()),
        text=text.strip(),
        where=where,
        start_s=offset_s or 0.0,
        duration_s=duration_s,
        channel=channel,
        speaker=None if speaker is None else str(speaker),
        language=None if language is None else str(language),
    )


def _number(record: dict[str, Any], key: str, where: str, problems: Problems) -> float | None:
    value = record.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_S:
        problems.add(f"{where} ({record.get('audio_filepath')}): {key!r} is {value!r:.40}", f"give {key!r} in seconds")
        return None
    return float(value)


def id_of(audio: str, folder: Path, offset_s: float | None) -> str:
    """An id from the audio's path and, in milliseconds, the offset: the same whatever lines are added around it."""
    path = PurePath(audio)
    if path.is_relative_to(folder.absolute()):
        path = path.relative_to(folder.absolute())
    name = re.sub(r"\s", "_", str(path.with_suffix("")).lstrip("/"))
    return name if offset_s is None else f"{name}-{round(offset_s * 1000):08d}"
