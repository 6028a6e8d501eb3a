"""LibriSpeech and Mini LibriSpeech, with Lhotse's recipe for the names of the parts and for the download.

The transcripts are read here: the recipe's own reader stops at the first file that cannot be read, and leaves out
utterances whose file is missing. On a whole corpus both give the same recordings and supervisions (a test).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3_rules import options as option_module
from espnet3_rules.corpora import Work
from espnet3_rules.corpora.audio import Utterance, make_cuts
from espnet3_rules.corpora.reading import Problems, check_id, text_lines
from espnet3_rules.errors import DataError, OptionError
from espnet3_rules.options import nearest, opt

if TYPE_CHECKING:
    from lhotse import MonoCut

# as lhotse.recipes.librispeech has them; importing that takes seconds, and a config is checked at every start
PARTS = (
    "train-clean-100", "train-clean-360", "train-other-500", "dev-clean", "dev-other", "test-clean", "test-other",
    "train-clean-5", "dev-clean-2",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Options(option_module.Options):
    """LibriSpeech."""

    folder: str = opt(doc="folder that has the parts (train-clean-100, ...), or has LibriSpeech/ with them")
    download: bool = opt(False, "fetch parts that are not there from openslr.org into the folder", affects_result=False)
    splits: dict[str, str | list[str]] = opt(
        {part: part for part in PARTS}, "name of each split, and the part or the list of parts it is made of"
    )

    def check(self) -> None:
        """Refuses parts that LibriSpeech does not have."""
        for split in self.splits:
            for part in self.parts(split):
                if part not in PARTS:
                    near = nearest(part, PARTS)
                    guess = f"did you mean '{near}'? " if near else ""
                    raise OptionError(
                        f"splits.{split}: no part {part!r} in LibriSpeech", hint=f"{guess}there are: {', '.join(PARTS)}"
                    )

    def parts(self, split: str) -> tuple[str, ...]:
        """The parts a split is made of."""
        value = self.splits[split]
        return (value,) if isinstance(value, str) else tuple(value)

    def sources(self, split: str) -> list[Path]:
        """The transcripts of a split that are there; a change in one means that it must be prepared again."""
        if self.download:
            return []  # what comes by itself is no input: the second run would find it changed
        folders = (_found(Path(self.folder), part) for part in self.parts(split))
        return [path for folder in folders if folder for path in _transcripts(folder)]


def cuts(options: Options, split: str, work: Work) -> Iterator[MonoCut]:
    """The split's cuts, sorted by part, speaker and chapter.

    Raises:
        DataError: a part is not there, or a transcript cannot be used.
    """
    folder = Path(options.folder)
    problems = Problems(f"{folder} ({split})")
    seen: dict[str, str] = {}
    utterances = []
    for part in options.parts(split):
        found = _found(folder, part) or (_download(folder, part) if options.download else None)
        if not found:
            there = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
            raise DataError(
                f"{folder}: no part {part!r} there, only {', '.join(there) or 'nothing'}",
                hint="correct 'folder', or set 'download: true' to fetch it",
            )
        for transcript in _transcripts(found):
            for number, line in text_lines(transcript):
                where = f"{transcript}, line {number}"
                utt_id, *rest = line.split(maxsplit=1)
                check_id(utt_id, where, seen, problems)
                utterances.append(_utterance(utt_id, rest[0].strip() if rest else "", transcript, where))
    problems.check()
    yield from make_cuts(utterances, work, f"{folder} ({split})")


def _found(folder: Path, part: str) -> Path | None:
    for path in (folder / part, folder / "LibriSpeech" / part):
        if path.is_dir():
            return path
    return None


def _transcripts(folder: Path) -> list[Path]:
    # <speaker>/<chapter>/<speaker>-<chapter>.trans.txt; sorted, because file systems give any order
    return sorted(folder.glob("*/*/*.trans.txt"))


def _utterance(utt_id: str, text: str, transcript: Path, where: str) -> Utterance:
    return Utterance(
        id=utt_id,
        audio=str((transcript.parent / f"{utt_id}.flac").absolute()),
        text=text,
        where=where,
        speaker=utt_id.split("-")[0],
        language="English",
    )


def _download(folder: Path, part: str) -> Path:
    """Fetches a part beside its place, and moves it there when it is whole.

    Lhotse deletes a part's folder before it unpacks, and marks it as whole in a file of its own: done in place, that
    could delete what the user had put there.
    """
    from lhotse.recipes.librispeech import download_librispeech

    aside = folder / ".download" / part
    unpacked = download_librispeech(aside, dataset_parts=[part]) / part
    if not unpacked.is_dir():
        raise DataError(f"{part}: the download has no {unpacked}", hint=f"delete {aside} and try again")
    unpacked.replace(folder / part)
    for archive in aside.glob("*.tar.gz"):
        archive.unlink()
    return folder / part
