"""Batches as tensors: speeds, the cache, too little room, and ids over several manifests."""

import itertools

import numpy as np
import pytest
import torch

from espnet3_rules.data.corpus import Corpus
from espnet3_rules.data.loading import Utterances
from espnet3_rules.data.sampler import BatchPlan
from espnet3_rules.errors import DataError
from espnet3_rules.models.network import build_network
from espnet3_rules.train.module import CtcRoom
from tests.train.tones import RATE, make_manifest, options_of


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return make_manifest(tmp_path_factory.mktemp("loading"), "train", 4)


def utterances(manifest, **changes):
    defaults = {"encode": lambda text: [ord(c) for c in text], "sampling_rate": RATE, "room": lambda *_: None}
    return Utterances(Corpus([manifest]), **{**defaults, **changes})


def test_a_batch(manifest):
    ids = ("train-2", "train-0")
    batch = utterances(manifest)[BatchPlan(0, 0, ids)]
    assert batch.ids == ids
    assert batch.waves.dtype == torch.float32
    assert batch.waves.shape == (2, int(batch.wave_lengths.max()))
    shorter = int(batch.wave_lengths.argmin())
    assert not batch.waves[shorter, int(batch.wave_lengths[shorter]) :].any()
    texts = ["".join(map(chr, row[:n])) for row, n in zip(batch.targets.tolist(), batch.target_lengths, strict=True)]
    corpus = Corpus([manifest])
    assert texts == [corpus.entry(utt_id).text for utt_id in ids]
    assert batch.weight == sum(map(len, texts))
    moved = batch.to("cpu")
    assert moved.ids == ids
    assert torch.equal(moved.waves, batch.waves)


def test_an_empty_batch(manifest):
    batch = utterances(manifest)[BatchPlan(0, 0, ())]
    assert (len(batch), batch.weight, batch.waves.shape) == (0, 0.0, (0, 0))


def test_speed_changes_length_and_pitch(manifest):
    normal = utterances(manifest).wave("train-0", 1.0)
    fast = utterances(manifest).wave("train-0", 1.25)
    assert len(fast) == pytest.approx(len(normal) / 1.25, abs=2)
    peak, fast_peak = (np.abs(np.fft.rfft(w, 1 << 15)).argmax() for w in (normal, fast))
    assert fast_peak / peak == pytest.approx(1.25, rel=0.05)


def test_speeds_are_drawn_from_seed_epoch_and_utterance(manifest):
    drawn = utterances(manifest, speeds=(0.9, 1.0, 1.1), seed=3)
    speeds = [drawn.speed(epoch, f"u{i}") for epoch in range(3) for i in range(100)]
    assert set(speeds) == {0.9, 1.0, 1.1}
    assert min(speeds.count(s) for s in set(speeds)) > 60
    assert speeds == [drawn.speed(epoch, f"u{i}") for epoch in range(3) for i in range(100)]
    assert speeds[:100] != speeds[100:200]


def test_the_cache_holds_what_fits(manifest, monkeypatch):
    from espnet3_rules.data import loading

    calls = []
    original = loading.load_audio
    monkeypatch.setattr(loading, "load_audio", lambda cut, rate: calls.append(cut.id) or original(cut, rate))
    size = utterances(manifest).wave("train-0", 1.0).nbytes
    calls.clear()
    cached = utterances(manifest, cache_bytes=size)
    for _ in range(3):
        cached.wave("train-0", 1.0)
        cached.wave("train-1", 1.0)
    assert calls.count("train-0") == 1
    assert calls.count("train-1") == 3


def test_room_is_what_the_network_gives():
    options = options_of()
    room = CtcRoom(options, 5)
    network = build_network(options.network, 5, options.features).eval()
    for samples in range(50, 3000, 97):
        frames = options.features.frames(samples)
        outputs = 0
        if frames:
            logits, lengths = network(torch.zeros(1, frames, options.features.mel_bins), torch.tensor([frames]))
            outputs = int(lengths[0])
            assert outputs == logits.shape[1]
        for tokens in ([], [2] * 3, [2, 3, 4], list(range(2, 12))):
            needed = len(tokens) + sum(a == b for a, b in itertools.pairwise(tokens))
            assert (room(samples, tokens) is None) == (outputs >= max(2, needed)), (samples, tokens)


def test_the_same_id_in_two_manifests(manifest, tmp_path):
    other = make_manifest(tmp_path, "train", 1)
    with pytest.raises(DataError, match=r"train-0: an utterance of .* and of"):
        Corpus([manifest, other])
    assert len(Corpus([manifest, make_manifest(tmp_path, "more", 2)])) == 6
