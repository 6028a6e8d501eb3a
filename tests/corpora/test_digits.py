import dataclasses
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from espnet3_rules.corpora import Work, digits
from espnet3_rules.errors import EnvironmentProblem, OptionError
from espnet3_rules.prepare import process_map

SMALL = {"train": 4, "valid": 2, "test_seen": 2, "test_unseen": 3}


def make(folder, split="train", parallel_map=map, seed=0, **options):
    return list(digits.cuts(digits.Options(**{**SMALL, **options}), split, Work(folder, parallel_map, seed)))


def audio(cuts):
    return {c.id: hashlib.sha256(Path(c.recording.sources[0].source).read_bytes()).hexdigest() for c in cuts}


def backwards(function, items):
    return reversed([function(item) for item in reversed(list(items))])


def drawn(split, count, seed, folder):
    options = digits.Options()
    return [digits._draw(options, split, i, seed, folder) for i in range(count)]


def test_a_cut_says_what_is_spoken_by_whom(tmp_path):
    cuts = make(tmp_path, "test_unseen")
    assert [c.id for c in cuts] == ["test_unseen-00000", "test_unseen-00001", "test_unseen-00002"]
    for cut in cuts:
        (supervision,) = cut.supervisions
        words = supervision.text.split()
        assert 1 <= len(words) <= 7 and set(words) <= set(digits.DIGITS)
        base, variant = supervision.speaker.split("+")
        assert base in digits.UNSEEN_BASES and variant in digits.UNSEEN_VARIANTS
        samples, rate = soundfile.read(cut.recording.sources[0].source)
        assert rate == 16000 and cut.num_samples == len(samples) and 0.1 < np.abs(samples).max() < 1
        # from a hurried digit without a pause, to a slow one with the longest and the margins
        assert 0.15 * len(words) < cut.duration < 1.2 * len(words) + 0.5
        assert np.std(samples[:400]) > 1e-5  # never digital silence


def test_recordings_are_the_same_bytes_in_any_order_and_on_any_number_of_cores(tmp_path):
    alone = audio(make(tmp_path / "1"))
    assert len(set(alone.values())) == 4
    assert audio(make(tmp_path / "2", parallel_map=backwards)) == alone
    with process_map(2) as parallel_map:
        assert audio(make(tmp_path / "3", parallel_map=parallel_map)) == alone
    more = audio(make(tmp_path / "4", train=6))
    assert {k: more[k] for k in alone} == alone
    assert not set(audio(make(tmp_path / "5", seed=1)).values()) & set(alone.values())


def test_what_is_spoken_is_not_spoken_again(tmp_path):
    cuts = make(tmp_path)
    paths = [Path(c.recording.sources[0].source) for c in cuts]
    bytes_before = audio(cuts)
    paths[1].unlink()
    before = {p: p.stat().st_mtime_ns for p in paths if p.exists()}
    assert audio(make(tmp_path)) == bytes_before
    assert {p: p.stat().st_mtime_ns for p in before} == before
    # what depends on other options lies elsewhere, and the old is left alone
    other = make(tmp_path, pause_s=0.0)
    assert not {c.recording.sources[0].source for c in other} & {str(p) for p in paths}
    assert audio(cuts) == bytes_before


@pytest.mark.parametrize("seed", range(3))
def test_the_default_splits_share_neither_strings_nor_unseen_voices(tmp_path, seed):
    options = digits.Options()
    splits = {s: drawn(s, getattr(options, s), seed, tmp_path) for s in options.splits}
    strings = {s: {u.digits for u in utterances} for s, utterances in splits.items()}
    assert not strings["test_seen"] & (strings["train"] | strings["valid"])
    assert not strings["test_unseen"] & (strings["train"] | strings["valid"])
    assert not strings["train"] & strings["valid"]
    for utterances in splits.values():
        assert {len(u.digits) for u in utterances} == {1, 2, 3, 4, 5, 6, 7}
        assert {d for u in utterances for d in u.digits} == set("0123456789")
    heard = [u.voice.split("+") for s in ("train", "valid") for u in splits[s]]
    unseen = [u.voice.split("+") for u in splits["test_unseen"]]
    for part in (0, 1):
        assert not {voice[part] for voice in heard} & {voice[part] for voice in unseen}
    assert {u.voice for u in splits["test_seen"]} <= {u.voice for u in splits["train"]}
    for split in ("test_seen", "test_unseen"):
        assert sum(len(u.digits) for u in splits[split]) >= 1000


def test_no_variant_has_a_sibling_on_the_other_side():
    def stem(name):  # steph, steph2 and steph3 are one speaker with small changes; f1 and f2 are two
        return name if len(name) == 2 else re.sub(r"\d+$", "", name)

    assert not {stem(v) for v in digits.SEEN_VARIANTS} & {stem(v) for v in digits.UNSEEN_VARIANTS}


def test_every_voice_speaks_and_sounds_like_no_other(tmp_path):
    one = dataclasses.replace(drawn("train", 1, 0, tmp_path)[0], digits="25", pauses_ms=(0, 0))
    voices = [f"{base}+m1" for base in digits.SEEN_BASES + digits.UNSEEN_BASES]
    voices += [f"en+{variant}" for variant in digits.SEEN_VARIANTS + digits.UNSEEN_VARIANTS]
    voices.remove("en+m1")
    spoken = {voice: digits._speak(dataclasses.replace(one, voice=voice)) for voice in voices}
    assert len({samples.tobytes() for samples in spoken.values()}) == len(voices)
    assert all(0.3 * 22050 < len(samples) < 2.5 * 22050 for samples in spoken.values())


def test_rate_pitch_and_pauses_are_heard(tmp_path):
    one = dataclasses.replace(drawn("train", 1, 0, tmp_path)[0], digits="111", pauses_ms=(0, 0, 0), voice="en+m1")
    length = {rate: len(digits._speak(dataclasses.replace(one, rate=rate))) for rate in (130, 220)}
    assert length[130] > 1.3 * length[220]
    paused = len(digits._speak(dataclasses.replace(one, pauses_ms=(300, 300, 300))))
    assert paused - len(digits._speak(one)) > 0.4 * 22050
    assert not np.array_equal(*(digits._speak(dataclasses.replace(one, pitch=p))[:2000] for p in (30, 70)))


def test_noise_is_as_loud_as_drawn(tmp_path):
    one = dataclasses.replace(drawn("train", 1, 0, tmp_path)[0], margins_s=(1.0, 0.5), snr_db=20.0)
    speech = digits._speak(one)
    samples = digits._with_noise(one, speech)
    assert 20 * np.log10(np.std(speech) / np.std(samples[:16000])) == pytest.approx(20, abs=1)
    assert np.abs(samples).max() <= 0.99


def test_other_sampling_rates(tmp_path):
    (first, *_) = make(tmp_path, sampling_rate=8000)
    assert first.sampling_rate == 8000 and first.load_audio().shape == (1, first.num_samples)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 0}, "train: 0 is below 1"),
        ({"rate": [220, 130]}, "rate: expected the least and the most, found"),
        ({"pitch": [50]}, "pitch: expected the least and the most, found"),
        ({"rate": [10, 200]}, "rate: 10 is below 80"),
    ],
)
def test_impossible_options(options, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        digits.Options(**options)


def test_without_the_wheel_it_says_what_to_install(tmp_path, monkeypatch):
    def version(name):
        raise digits.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(digits.metadata, "version", version)
    with pytest.raises(EnvironmentProblem, match=re.escape("pip install 'espnet3-rules[demo]'")):
        make(tmp_path)


def test_a_voice_that_espeak_does_not_have_is_named(tmp_path):
    one = dataclasses.replace(drawn("train", 1, 0, tmp_path)[0], voice="en-nowhere+m1")
    with pytest.raises(EnvironmentProblem, match=r"espeak_SetVoiceByName answered .* en-nowhere\+m1"):
        digits._speak(one)
