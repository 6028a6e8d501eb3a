"""The samples of one cut."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3_rules.corpora.audio import RATES
from espnet3_rules.errors import DataError

if TYPE_CHECKING:
    import numpy as np

_HINT = "`espnet3-rules validate` on its manifest lists every such recording; mend the file, or leave the cut out"

_NO_MEMORY = re.compile(r"MemoryError|Unable to allocate|(can't|cannot) allocate memory|out of memory", re.IGNORECASE)


def load_audio(cut: Any, sampling_rate: int) -> np.ndarray:
    """The cut's samples, float32, (samples,), at ``sampling_rate`` Hz: its channel, from its start, resampled.

    Args:
        cut: a Lhotse cut of one channel.
        sampling_rate: in Hz.

    Raises:
        DataError: the audio cannot be read, is empty, or holds infinite samples or NaN; names utterance and file.
    """
    import numpy as np

    # Lhotse refuses to load a cut without a sample with an assertion that names neither
    if cut.duration <= 0:
        raise DataError(f"{cut.id}: a cut of {cut.duration} s of {_files(cut)}", hint=_HINT)
    odd = [rate for rate in (r.sampling_rate for r in _recordings(cut)) if not RATES[0] <= rate <= RATES[1]]
    if odd:
        raise DataError(
            f"{cut.id}: a sampling rate of {odd[0]} Hz in {_files(cut)}, expected {RATES[0]} to {RATES[1]} Hz",
            hint=_HINT,
        )
    try:
        wave = cut.resample(sampling_rate).load_audio()
    except Exception as error:  # every audio backend has its own errors, assertions among them
        if _out_of_memory(error):
            raise DataError(
                f"{cut.id}: out of memory while its audio was read: {cut.duration:g} s at {cut.sampling_rate} Hz of "
                f"{_files(cut)}",
                hint="cut it into shorter utterances, or give the process more memory",
            ) from error
        raise DataError(f"{cut.id}: cannot read {_files(cut)}: {_reason(cut, error)}", hint=_HINT) from error
    if wave.ndim == 2:
        if len(wave) != 1:
            raise DataError(
                f"{cut.id}: {len(wave)} channels of {_files(cut)}, expected a cut of one channel", hint=_HINT
            )
        wave = wave[0]
    if not len(wave):
        raise DataError(f"{cut.id}: no samples in {_files(cut)}", hint=_HINT)
    if not np.isfinite(wave).all():
        raise DataError(f"{cut.id}: samples that are infinite or not a number in {_files(cut)}", hint=_HINT)
    return np.ascontiguousarray(wave, dtype=np.float32)


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, also where Lhotse says so in the text of an error of its own."""
    while error is not None:
        if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _recordings(cut: Any) -> list[Any]:
    """The recordings of a cut, also of one mixed from several."""
    tracks = [track.cut for track in getattr(cut, "tracks", [])] or [cut]
    return [track.recording for track in tracks if getattr(track, "recording", None) is not None]


def _sources(cut: Any) -> list[Any]:
    return [source for recording in _recordings(cut) for source in recording.sources]


def _files(cut: Any) -> str:
    """The names of a cut's audio files, for a message."""
    return ", ".join(str(s.source) if s.type != "memory" else "memory" for s in _sources(cut)) or "no recording"


def _reason(cut: Any, error: Exception) -> str:
    """Why the audio cannot be read, in one line."""
    for source in _sources(cut):
        if source.type == "file":
            path = Path(source.source)
            if not path.exists():
                return "no such file"
            if path.is_file() and path.stat().st_size == 0:
                return "the file is empty (0 bytes)"
    text = str(error)
    for line in text.splitlines():
        # Lhotse tries backend after backend; the first is libsndfile, whose reason is the telling one
        if line.startswith("Exception #0"):
            return line.rsplit(">: ", 1)[-1]
    return text.splitlines()[0] if text else type(error).__name__
