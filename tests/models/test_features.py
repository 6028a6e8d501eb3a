import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet3_rules.errors import OptionError
from espnet3_rules.models.features import LogMel
from espnet3_rules.models.options import FeatureOptions

RATE = 16000
DEFAULT = FeatureOptions()


def noise(samples, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32))


def one(wave, options=DEFAULT):
    features, lengths = LogMel(options)(wave[None], torch.tensor([len(wave)]))
    assert features.shape[1] == max(1, int(lengths[0]))
    return features[0, : lengths[0]]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 9000), min_size=1, max_size=5),
    st.sampled_from([DEFAULT, FeatureOptions(sampling_rate=8000, mel_bins=40), FeatureOptions(window_s=0.032)]),
)
def test_padding_changes_nothing(lengths, options):
    waves = [noise(n, seed) for seed, n in enumerate(lengths)]
    padded = torch.full((len(waves), max(lengths) + 700), 9.0)  # what it is padded with must not matter
    for row, wave in zip(padded, waves, strict=True):
        row[: len(wave)] = wave
    features, frames = LogMel(options)(padded, torch.tensor(lengths))
    assert frames.tolist() == [options.frames(n) for n in lengths]
    for row, count, wave in zip(features, frames.tolist(), waves, strict=True):
        torch.testing.assert_close(row[:count], one(wave, options), atol=2e-5, rtol=0)
        assert not row[count:].any()


@given(st.integers(0, 5000))
def test_frames_are_windows_that_fit(samples):
    assert DEFAULT.frames(samples) == len(range(0, samples - 400 + 1, 160))


def test_each_bin_has_mean_0_and_variance_1():
    features = one(noise(20000))
    torch.testing.assert_close(features.mean(0), torch.zeros(80), atol=1e-5, rtol=0)
    torch.testing.assert_close(features.var(0, correction=0), torch.ones(80), atol=1e-3, rtol=0)


def test_loudness_changes_nothing_and_silence_is_finite():
    wave = noise(8000)
    torch.testing.assert_close(one(wave), one(wave * 0.3), atol=2e-2, rtol=0)
    assert torch.isfinite(one(torch.zeros(8000))).all() and torch.isfinite(one(noise(400))).all()


@pytest.mark.parametrize("hz", [300, 1000, 3000, 6500])
def test_a_tone_is_loud_in_the_bin_around_it(hz):
    time_s = torch.arange(RATE) / RATE
    wave = noise(RATE) * 0.01
    wave[RATE // 2 :] += 0.5 * torch.sin(2 * torch.pi * hz * time_s[RATE // 2 :])
    features = one(wave)
    risen = (features[60:].mean(0) - features[:40].mean(0)).cpu()
    layer = LogMel(DEFAULT)
    centres = (layer.filters * torch.linspace(0, RATE / 2, layer.filters.shape[0])[:, None]).sum(0) / layer.filters.sum(
        0
    )
    loudest = risen > risen.max() - 0.05
    assert (centres[loudest] - hz).abs().min() < 0.08 * hz


def test_every_filter_hears_something():
    for options in (DEFAULT, FeatureOptions(sampling_rate=8000), FeatureOptions(sampling_rate=48000, mel_bins=128)):
        assert (LogMel(options).filters.sum(0) > 0).all()


def test_bfloat16_training_has_the_same_features():
    wave = noise(8000)
    with torch.autocast("cpu", torch.bfloat16):
        features = one(wave)
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, one(wave))


def test_nothing_of_it_is_in_a_checkpoint():
    assert not LogMel(DEFAULT).state_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"high_hz": 9000.0}, "high_hz: the mel filters go from 20 to 9000 Hz, and the audio from 0 to 8000 Hz"),
        ({"low_hz": 100.0, "high_hz": 50.0}, "high_hz: the mel filters go from 100 to 50 Hz"),
        ({"shift_s": 0.00001}, "shift_s: 1e-05 s is less than a sample"),
    ],
)
def test_impossible_options(options, message):
    with pytest.raises(OptionError) as caught:
        FeatureOptions(**options)
    assert caught.value.message.startswith(message)
