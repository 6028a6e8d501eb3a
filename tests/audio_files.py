"""Small audio files for tests."""

from pathlib import Path

import numpy as np
import soundfile as sf


def write_noise(path, seconds=1.0, rate=16000, channels=1, seed=0) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (round(seconds * rate), channels)
    sf.write(path, np.random.default_rng(seed).uniform(-0.5, 0.5, shape), rate)
    return path


def write_broken(folder) -> tuple[Path, Path]:
    """A zero-byte wav and a text file named .wav."""
    empty, text = Path(folder) / "empty.wav", Path(folder) / "text.wav"
    empty.write_bytes(b"")
    text.write_text("this is no audio\n" * 20)
    return empty, text
