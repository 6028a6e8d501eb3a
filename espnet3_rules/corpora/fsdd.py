"""The Free Spoken Digit Dataset: ten English digits by some speakers, 8 kHz, as single digits or as strings of them.

Recordings are named ``{digit}_{speaker}_{index}.wav``; indices 0 to 4 are its published test split
(https://github.com/Jakobovski/free-spoken-digit-dataset).
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import random
import re
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from espnet3_rules import options as option_module
from espnet3_rules.corpora import Work
from espnet3_rules.corpora.audio import Utterance, make_cuts
from espnet3_rules.errors import DataError, EnvironmentProblem, OptionError
from espnet3_rules.options import opt
from espnet3_rules.records import content_key, disk_errors, file_digest, write_aside

if TYPE_CHECKING:
    from lhotse import MonoCut

#: Raise it where the same options and seed give other strings: the old ones are then left alone.
VERSION = 1

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
#: Indices below this are the published test split.
TEST_INDICES = 5
_LONGEST = 7
_NAME = re.compile(r"(\d)_([^_/]+)_(\d+)\.wav")
_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True)
class Options(option_module.Options):
    """Where the recordings are, and how they are used."""

    path: str | None = opt(None, "the dataset's zip, or its folder")
    url: str | None = opt(None, "where to download the zip, if there is no `path`; needs `sha256`")
    sha256: str | None = opt(None, "checksum of the zip, 64 hexadecimal digits; checked wherever it comes from")
    valid_indices: int = opt(
        5, "so many indices of each digit and speaker, from 5 on, are split valid and not train", minimum=1
    )
    connected: bool = opt(False, "strings of one to seven recordings of a speaker, with pauses; not single digits")
    train_strings: int = opt(3000, "strings in split train, with `connected`", minimum=1)
    valid_strings: int = opt(200, "strings in split valid, with `connected`", minimum=1)
    test_strings: int = opt(320, "strings in split test, with `connected`", minimum=1)
    pause_s: float = opt(0.3, "longest pause between two digits in seconds, with `connected`", minimum=0, maximum=5)

    def check(self) -> None:
        """There is one source, and a download can be checked."""
        if (self.path is None) == (self.url is None):
            raise OptionError(
                "path: give either path or url", hint="path: free-spoken-digit-dataset.zip, or the unpacked folder"
            )
        if self.url is not None and self.sha256 is None:
            raise OptionError(
                "sha256: missing, a download is checked", hint="sha256sum FILE shows that of a file you trust"
            )
        if self.sha256 is not None and not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise OptionError(f"sha256: expected 64 hexadecimal digits in lower case, found {self.sha256!r}")

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits there are."""
        return ("train", "valid", "test")

    def sources(self, split: str) -> list[Path]:
        """The file that a split is made from; a change in it means that the split must be prepared again."""
        return [path for path in (Path(self.path or ""),) if path.is_file()]


@dataclasses.dataclass(frozen=True)
class Take:
    """One recording of one digit."""

    path: Path
    digit: int
    speaker: str
    index: int


@dataclasses.dataclass(frozen=True)
class String:
    """Takes of one speaker that are joined to one recording."""

    path: Path
    takes: tuple[Take, ...]
    #: Pause after each take in seconds; before the first it is ``lead_s``.
    pauses_s: tuple[float, ...]
    lead_s: float
    noise_seed: int


def cuts(options: Options, split: str, work: Work) -> Iterator[MonoCut]:
    """The split's cuts: single digits in the order of their names, or strings.

    Raises:
        DataError: no such file, another checksum, or no recordings in it.
        EnvironmentProblem: the download failed.
    """
    folder = _folder(options, work)
    takes = [take for take in _takes(folder) if _split_of(take, options) == split]
    if not takes:
        raise DataError(
            f"{folder}: no recordings for split {split}",
            hint="index 0-4 of a digit and speaker is test, then come valid_indices for valid, then train",
        )
    if not options.connected:
        utterances = [
            Utterance(
                id=take.path.stem,
                audio=str(take.path),
                text=DIGITS[take.digit],
                where=str(take.path),
                speaker=take.speaker,
                language="English",
            )
            for take in takes
        ]
    else:
        strings = _strings(options, split, takes, work)
        for _ in work.parallel_map(join, strings):
            pass
        utterances = [
            Utterance(
                id=string.path.stem,
                audio=str(string.path),
                text=" ".join(DIGITS[take.digit] for take in string.takes),
                where=str(string.path),
                speaker=string.takes[0].speaker,
                language="English",
            )
            for string in strings
        ]
    return make_cuts(utterances, work, "fsdd")


def _split_of(take: Take, options: Options) -> str:
    if take.index < TEST_INDICES:
        return "test"
    return "valid" if take.index < TEST_INDICES + options.valid_indices else "train"


def _takes(folder: Path) -> list[Take]:
    """All recordings below ``folder`` that are named as the dataset's are, sorted by name."""
    takes: dict[str, Take] = {}
    for path in sorted(folder.rglob("*.wav")):
        match = _NAME.fullmatch(path.name)
        if not match:
            continue
        if path.name in takes:
            raise DataError(
                f"{path}: {takes[path.name].path} has the same name", hint="give the path of one copy of the dataset"
            )
        takes[path.name] = Take(path, int(match[1]), match[2], int(match[3]))
    if not takes:
        raise DataError(
            f"{folder}: no recordings named like 7_jackson_32.wav", hint="give the dataset's folder or zip as path"
        )
    return [takes[name] for name in sorted(takes)]


def _strings(options: Options, split: str, takes: list[Take], work: Work) -> list[String]:
    """The strings of a split, each drawn from (seed, split, index) over the split's takes alone."""
    by_speaker: dict[str, dict[int, list[Take]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for take in takes:
        by_speaker[take.speaker][take.digit].append(take)
    # its name changes with all that its files depend on, so a file that is there is the right one
    stamps = [[str(take.path), take.path.stat().st_size, take.path.stat().st_mtime_ns] for take in takes]
    key = content_key([VERSION, work.seed, options.pause_s, stamps])[:12]
    folder = work.audio_dir / f"fsdd-strings-{key}" / split
    strings = []
    for index in range(getattr(options, f"{split}_strings")):
        draw = random.Random(f"{work.seed}/{split}/{index}")
        speaker = by_speaker[draw.choice(sorted(by_speaker))]
        digits = draw.choices(sorted(speaker), k=draw.randint(1, _LONGEST))
        strings.append(
            String(
                path=folder / f"{split}-{index:05d}.wav",
                takes=tuple(draw.choice(speaker[digit]) for digit in digits),
                pauses_s=tuple(draw.uniform(0, options.pause_s) for _ in digits),
                lead_s=draw.uniform(0, options.pause_s),
                noise_seed=draw.getrandbits(64),
            )
        )
    return strings


def join(string: String) -> None:
    """Writes the string's recording, if it is not there yet.

    Raises:
        DataError: a take cannot be read, or is of another sampling rate than the first.
    """
    import numpy as np
    import soundfile

    if string.path.exists():  # written aside and renamed, so it is whole
        return
    parts: list[np.ndarray] = []
    rate = 0
    for take in string.takes:
        try:
            samples, take_rate = soundfile.read(take.path, dtype="float32")
        except (OSError, soundfile.LibsndfileError) as error:
            raise DataError(f"{take.path}: cannot be read ({error})", hint="unpack the dataset again") from error
        rate = rate or take_rate
        if samples.ndim != 1 or take_rate != rate:
            raise DataError(
                f"{take.path}: {samples.ndim} channels at {take_rate} Hz, expected one at {rate} Hz as in "
                f"{string.takes[0].path.name}",
                hint="unpack the dataset again",
            )
        parts.append(samples)
    pauses = [np.zeros(round(pause * rate), np.float32) for pause in (string.lead_s, *string.pauses_s)]
    samples = np.concatenate([pauses[0], *(x for pair in zip(parts, pauses[1:], strict=True) for x in pair)])
    # real pauses are never digital silence
    noise = np.random.default_rng(string.noise_seed).standard_normal(len(samples)).astype(np.float32)
    samples += noise * max(1e-4, 0.003 * float(np.std(np.concatenate(parts))))
    samples /= max(1.0, float(np.abs(samples).max()) / 0.99)
    with write_aside(string.path, "wb") as stream:
        soundfile.write(stream, samples, rate, format="WAV", subtype="PCM_16")


def _folder(options: Options, work: Work) -> Path:
    """The folder with the recordings, downloaded and unpacked where needed."""
    path = _download(options, work) if options.url else Path(options.path or "").absolute()
    if path.is_dir():
        return path
    if not path.is_file():
        raise DataError(f"{path}: no such file", hint="path is the dataset's zip or folder")
    digest = file_digest(path)
    if options.sha256 is not None and digest != options.sha256:
        raise DataError(
            f"{path}: SHA-256 {digest}, expected {options.sha256}",
            hint="the file is damaged or another version: delete it and get it again, or correct sha256",
        )
    folder = work.audio_dir / f"fsdd-{digest[:12]}"
    try:
        with zipfile.ZipFile(path) as archive:
            _unpack(archive, folder)
    except (zipfile.BadZipFile, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, zipfile.BadZipFile):
            raise
        raise DataError(f"{path}: not a whole zip file ({error})", hint="get it again, and compare its size") from error
    return folder


def _unpack(archive: zipfile.ZipFile, folder: Path) -> None:
    """Puts the recordings of the zip into ``folder``, each whole or not at all."""
    there: Mapping[str, int] = {path.name: path.stat().st_size for path in folder.glob("*.wav")}
    for member in archive.infolist():
        name = member.filename.rpartition("/")[2]
        # only the last part of a name is used, so that none leads out of the folder
        if _NAME.fullmatch(name) and there.get(name) != member.file_size:
            with write_aside(folder / name, "wb") as stream:
                stream.write(archive.read(member))


def _download(options: Options, work: Work) -> Path:
    """The zip from ``options.url``, checked; what was downloaded once is not downloaded again."""
    assert options.url is not None and options.sha256 is not None
    path = work.audio_dir / f"fsdd-{options.sha256[:12]}.zip"
    if path.exists():
        return path
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(options.url, timeout=60) as source, write_aside(path, "wb") as stream:
            while block := source.read(_BLOCK):
                digest.update(block)
                with disk_errors(path):
                    stream.write(block)
            if digest.hexdigest() != options.sha256:
                raise DataError(
                    f"{options.url}: SHA-256 {digest.hexdigest()}, expected {options.sha256}",
                    hint="the download broke off, or the file there is another version: try again or correct sha256",
                )
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        raise EnvironmentProblem(
            f"{options.url}: cannot be downloaded ({error})",
            hint="download the zip elsewhere and give it as path",
        ) from error
    return path
