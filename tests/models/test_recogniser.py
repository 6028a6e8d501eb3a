import functools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet3_rules.errors import DataError, OptionError
from espnet3_rules.models.network import build_network
from espnet3_rules.models.options import FeatureOptions, NetworkOptions
from espnet3_rules.models.recogniser import CtcRecogniser, Recogniser, build_recogniser, export
from espnet3_rules.models.search import SearchOptions
from espnet3_rules.tokens import TokenOptions, train_tokens

FEATURES = FeatureOptions(sampling_rate=8000, mel_bins=16)
NETWORK = NetworkOptions(layers=2, width=16, heads=2, feed_forward=32, subsampling_channels=8)
TOKENS = train_tokens(["one two three", "four"], TokenOptions())
OTHER = train_tokens(["one two"], TokenOptions())


class Refuses:
    def __init__(self, device, reason="no licence"):
        raise DataError(reason, hint="buy one")


class Leaves:
    def __init__(self, device):
        raise SystemExit(0)


def network():
    torch.manual_seed(0)
    built = build_network(NETWORK, TOKENS.vocab_size, FEATURES)
    with torch.no_grad():  # texts that are not all blanks
        built.ctc.ctc_head.weight.mul_(20)
    return built.eval()


def exported(folder):
    export(folder, network(), network_options=NETWORK, feature_options=FEATURES, tokens=TOKENS)
    return folder


@functools.cache
def recogniser():
    return CtcRecogniser(network(), FEATURES, TOKENS)


def wave(samples, seed=0):
    return np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)


def test_what_is_exported_is_loaded_again(tmp_path):
    folder = exported(tmp_path / "exp/a model")
    assert {p.name for p in folder.iterdir()} == {"model.safetensors", "tokens.json", "config.json"}
    loaded = build_recogniser(str(folder), "cpu")
    assert isinstance(loaded, Recogniser) and loaded.sampling_rate == 8000
    waves = [wave(8000), wave(3000, 1)]
    for there, here in zip(loaded.log_probs(waves), recogniser().log_probs(waves), strict=True):
        np.testing.assert_array_equal(there, here)
    assert loaded.recognise(waves, SearchOptions()) == recogniser().recognise(waves, SearchOptions())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 6000), min_size=1, max_size=6))
def test_texts_do_not_depend_on_the_batch(lengths):
    waves = [wave(n, seed) for seed, n in enumerate(lengths)]
    together = recogniser().recognise(waves, SearchOptions())
    for one, nbest in zip(waves, together, strict=True):
        ((alone),) = recogniser().recognise([one], SearchOptions())
        assert [text for text, _ in nbest] == [text for text, _ in alone]
        assert [score for _, score in nbest] == pytest.approx([score for _, score in alone], abs=1e-3)
        assert bool(nbest) == (len(one) >= FEATURES.window)


def test_probabilities_are_probabilities():
    (frames,) = recogniser().log_probs([wave(8000)])
    assert frames.shape == (-(-FEATURES.frames(8000) // 4), TOKENS.vocab_size) and frames.dtype == np.float32
    np.testing.assert_allclose(np.exp(frames).sum(1), 1, atol=1e-5)


def test_the_search_is_the_one_asked_for():
    (best,) = recogniser().recognise([wave(8000)], SearchOptions(method="beam", beam_size=4, nbest=3))
    assert 1 < len(best) <= 3 and [s for _, s in best] == sorted((s for _, s in best), reverse=True)


def test_nothing_to_recognise():
    assert recogniser().recognise([], SearchOptions()) == []
    assert recogniser().recognise([wave(0), wave(10)], SearchOptions()) == [[], []]


def break_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in {**config, **changes}.items() if v is not None}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), r"config\.json: no such file"),
        (lambda f: break_config(f, format=99), "expected a model of format 1, found"),
        (lambda f: break_config(f, network=None), r"config\.json: no network"),
        (lambda f: break_config(f, network={**NETWORK.to_dict(), "width": 32}), "not the weights of the network"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 100), "not the weights of the network"),
        (lambda f: (f / "model.safetensors").unlink(), "not the weights of the network"),
        (lambda f: (f / "tokens.json").unlink(), r"tokens\.json: no such file"),
        (lambda f: OTHER.save(f), f"the network has {TOKENS.vocab_size} tokens"),
    ],
)
def test_a_damaged_model_says_what_is_wrong(tmp_path, damage, message):
    damage(exported(tmp_path))
    with pytest.raises(DataError, match=message) as caught:
        CtcRecogniser.load(tmp_path)
    assert "\n" not in caught.value.message[:60]
    assert caught.value.hint


def test_a_model_that_is_only_given():
    block = {"_target_": "tests.recognisers.ToneReader", "pause_s": 0.5}
    given_one = build_recogniser(block, "cpu")
    assert isinstance(given_one, Recogniser) and given_one.pause_s == 0.5
    assert block == {"_target_": "tests.recognisers.ToneReader", "pause_s": 0.5}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"shout": True}, "_target_: missing"),
        ({"_target_": "tests.recognisers.Nobody"}, r"_target_: tests\.recognisers\.Nobody cannot be built"),
        ({"_target_": "tests.recognisers.ToneReader", "shuot": True}, "unexpected keyword argument 'shuot'"),
        ({"_target_": "tests.models.test_recogniser.Leaves"}, r"cannot be built: it called sys.exit\(0\)"),
        ({"_target_": "builtins.dict"}, "builtins.dict gives a dict without VERSION and sampling_rate and recognise"),
    ],
)
def test_a_model_that_cannot_be_built(block, message):
    with pytest.raises(OptionError, match=message):
        build_recogniser(block)


def test_an_error_of_the_model_itself_comes_through():
    with pytest.raises(DataError, match="no licence") as caught:
        build_recogniser({"_target_": "tests.models.test_recogniser.Refuses"})
    assert caught.value.hint == "buy one"
