"""Samples of a cut: channel, offset, sampling rate, and files that cannot be read."""

import numpy as np
import pytest
import soundfile
from lhotse import MonoCut, Recording
from lhotse.audio.utils import AudioLoadingError

from espnet3_rules.data import load_audio
from espnet3_rules.errors import DataError


@pytest.fixture
def stereo(tmp_path):
    """Two seconds at 8 kHz: a rising ramp on the left, a tone of 500 Hz on the right."""
    time = np.arange(16000) / 8000
    samples = np.stack([time / 2, 0.5 * np.sin(2 * np.pi * 500 * time)], axis=1)
    path = tmp_path / "a file's name.wav"
    soundfile.write(path, samples, 8000, subtype="FLOAT")
    return path


def cut_of(path, start=0.0, duration=2.0, channel=0, **changes):
    recording = Recording.from_file(path) if not changes else Recording.from_dict(changes)
    return MonoCut(id="utt7", start=start, duration=duration, channel=channel, recording=recording)


def test_the_channel_from_the_offset(stereo):
    wave = load_audio(cut_of(stereo, start=0.5, duration=0.25), 8000)
    assert wave.dtype == np.float32
    assert wave.shape == (2000,)
    np.testing.assert_allclose(wave, (np.arange(2000) / 8000 + 0.5) / 2, atol=1e-6)


def test_resampling_keeps_the_tone(stereo):
    wave = load_audio(cut_of(stereo, start=0.5, duration=1.0, channel=1), 16000)
    assert wave.shape == (16000,)
    spectrum = np.abs(np.fft.rfft(wave))
    assert spectrum.argmax() == 500
    assert spectrum[490:511].sum() > 0.95 * spectrum.sum()


@pytest.mark.parametrize(
    "content, reason", [(b"", "0 bytes"), (b"I am not audio. " * 20, "not recognised"), (None, "no such file")]
)
def test_a_bad_file_is_named(stereo, content, reason):
    cut = cut_of(stereo)
    if content is None:
        stereo.unlink()
    else:
        stereo.write_bytes(content)
    with pytest.raises(DataError, match=reason) as caught:
        load_audio(cut, 8000)
    assert "utt7" in str(caught.value)
    assert str(stereo) in str(caught.value)


def test_a_truncated_file_is_refused(stereo):
    cut = cut_of(stereo)
    soundfile.write(stereo, np.zeros((800, 2)), 8000)
    with pytest.raises(DataError, match="utt7"):
        load_audio(cut, 8000)


def test_no_such_channel(stereo):
    with pytest.raises(DataError, match="channel"):
        load_audio(cut_of(stereo, channel=3), 8000)


def test_nan_is_refused(stereo):
    soundfile.write(stereo, np.full((16000, 2), np.nan), 8000, subtype="FLOAT")
    with pytest.raises(DataError, match="not a number"):
        load_audio(cut_of(stereo), 8000)


@pytest.mark.parametrize("rate", [1, 0x0FFFFFFF])
def test_an_absurd_sampling_rate_is_refused_before_it_costs_memory(stereo, rate):
    cut = cut_of(stereo)
    cut.recording.sampling_rate = rate
    with pytest.raises(DataError, match=f"utt7: a sampling rate of {rate} Hz"):
        load_audio(cut, 8000)


@pytest.mark.parametrize(
    "error", [MemoryError(), AudioLoadingError("Exception #0: <class '_ArrayMemoryError'>: Unable to allocate 9 GiB")]
)
def test_too_little_memory_for_one_utterance_is_its_own_failure(stereo, monkeypatch, error):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(Recording, "load_audio", full)
    with pytest.raises(DataError, match="utt7: out of memory while its audio was read: 2 s at 8000 Hz"):
        load_audio(cut_of(stereo), 8000)
