"""The samples of one cut."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3_rules.errors import DataError

if TYPE_CHECKING:
    import numpy as np

_HINT = "`espnet3-rules validate` on its manifest lists every such recording; mend the file, or leave the cut out"


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
    try:
        wave = cut.resample(sampling_rate).load_audio()
    except MemoryError:
        raise
    except Exception as error:  # every audio backend has its own errors, assertions among them
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


def _sources(cut: Any) -> list[Any]:
    """The audio sources of a cut, also of one mixed from several."""
    tracks = [track.cut for track in getattr(cut, "tracks", [])] or [cut]
    recordings = [track.recording for track in tracks if getattr(track, "recording", None) is not None]
    return [source for recording in recordings for source in recording.sources]


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
