import gzip
import json

import numpy as np
import pytest
import soundfile as sf

from espnet3_rules.errors import DataError
from espnet3_rules.manifest import write_manifest
from espnet3_rules.validate import ValidateOptions, report_problems, validate
from tests.audio_files import write_broken, write_noise


@pytest.fixture
def good(tmp_path):
    return write_noise(tmp_path / "good.wav", 2.0)


def record(utt_id, audio, text="a text", **changes):
    """A cut of 2 s at 16 kHz; keys of the recording are given as recording_<key>."""
    supervision = {"id": utt_id, "recording_id": "r", "start": 0.0, "duration": 2.0, "channel": 0, "text": text}
    recording = {
        "id": "r",
        "sources": [{"type": "file", "channels": [0], "source": str(audio)}],
        "sampling_rate": 16000,
        "num_samples": 32000,
        "duration": 2.0,
        "channel_ids": [0],
    }
    cut = {"id": utt_id, "start": 0.0, "duration": 2.0, "channel": 0, "type": "MonoCut", "supervisions": [supervision]}
    recording |= {k.removeprefix("recording_"): v for k, v in changes.items() if k.startswith("recording_")}
    return {**cut, "recording": recording, **{k: v for k, v in changes.items() if not k.startswith("recording_")}}


def found(tmp_path, *records, ending="jsonl"):
    path = tmp_path / f"foreign.{ending}"
    data = "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records).encode()
    path.write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    return [(p.line, p.what, p.message) for p in validate(path)]


def only(problems, what, part):
    assert len(problems) == 1, problems
    assert problems[0][1] == what and part in problems[0][2], problems


def test_a_good_manifest_has_no_problem_ours_or_foreign(tmp_path, good):
    cuts = [record("a", good), record("b/c", good, start=0.5, duration=1.0)]
    assert found(tmp_path, *cuts) == found(tmp_path, *cuts, ending="jsonl.gz") == []
    write_manifest(tmp_path / "ours.jsonl.gz", cuts)
    assert validate(tmp_path / "ours.jsonl.gz") == []
    assert found(tmp_path) == []


def test_ids(tmp_path, good):
    problems = found(tmp_path, record("a", good), record("a b", good), record("a", good), record("", good))
    assert [(line, what) for line, what, _ in problems] == [(2, "id"), (3, "id"), (4, "id")]
    assert "the id of line 1 too" in problems[1][2]


def test_audio_that_is_missing_empty_no_audio_or_cut_off(tmp_path, good):
    empty, text = write_broken(tmp_path)
    flac = write_noise(tmp_path / "a.flac", 2.0)
    flac.write_bytes(flac.read_bytes()[:20000])  # the header still says 2 s
    only(found(tmp_path, record("a", empty)), "audio", "an empty file (0 bytes)")
    only(found(tmp_path, record("a", text)), "audio", "no audio that libsndfile can read")
    only(found(tmp_path, record("a", tmp_path / "none.wav")), "audio", "no such file")
    assert sf.info(flac).frames == 32000
    only(found(tmp_path, record("a", flac)), "audio", "cannot be decoded after 0 s of the cut: ")
    mp3 = write_noise(tmp_path / "a.mp3", 2.0)
    mp3.write_bytes(mp3.read_bytes()[:-3000])  # this one ends early without an error
    only(found(tmp_path, record("a", mp3)), "audio", "s of 2 s can be decoded")


def test_samples_that_are_no_numbers(tmp_path):
    samples = np.zeros(32000, np.float32)
    samples[31000] = np.nan
    sf.write(tmp_path / "nan.wav", samples, 16000, subtype="FLOAT")
    only(found(tmp_path, record("a", tmp_path / "nan.wav")), "audio", "infinite or not a number")


def test_durations(tmp_path, good):
    only(
        found(tmp_path, record("a", good, recording_num_samples=48000, recording_duration=3.0)),
        "duration", "declared as 3 s, has 2 s",
    )  # fmt: skip
    only(found(tmp_path, record("a", good, recording_duration=2.5)), "duration", "2.5 s and 32000 samples of 16000 Hz")
    only(found(tmp_path, record("a", good, duration=0)), "duration", "for 0 s")
    only(found(tmp_path, record("a", good, start=0.5, duration=1.6)), "duration", "the cut ends at 2.1 s")
    assert found(tmp_path, record("a", good, recording_num_samples=32200, recording_duration=32200 / 16000)) == []
    problems = found(tmp_path, record("a", good, start=1.5, duration=1.5))
    assert [p[1] for p in problems] == ["duration", "audio"]


def test_sampling_rates(tmp_path, good):
    slow = write_noise(tmp_path / "slow.wav", 2.0, 8000)
    problems = found(tmp_path, record("a", slow))
    assert ("sampling rate", True) in [(p[1], "declared as 16000 Hz, has 8000 Hz" in p[2]) for p in problems]
    narrow = record("n", slow, recording_sampling_rate=8000, recording_num_samples=16000)
    path = tmp_path / "mixed.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in (narrow, record("a", good), record("b", good))))
    (problem,) = validate(path)
    assert problem.harmless and problem.utt_id == "n" and "8000 Hz, where most have 16000 Hz" in problem.message


def test_channels(tmp_path, good):
    stereo = write_noise(tmp_path / "stereo.wav", 2.0, channels=2)
    only(found(tmp_path, record("a", good, channel=1)), "channel", "channel 1 of a recording with channels [0]")
    only(found(tmp_path, record("a", stereo)), "channel", "declared with 1 channels, has 2")
    both = [{"type": "file", "channels": [0, 1], "source": str(stereo)}]
    assert found(tmp_path, record("a", stereo, channel=1, recording_sources=both)) == []


def test_texts(tmp_path, good):
    only(found(tmp_path, record("a", good, text="")), "text", "empty")
    only(found(tmp_path, record("a", good, supervisions=[])), "text", "no supervision")
    only(found(tmp_path, record("a", good, text="tab\there")), "text", "'\\t'")
    only(found(tmp_path, record("a", good, text="gr\ufffd\ufffd")), "text", "holds the character")
    only(found(tmp_path, record("a", good, text=7)), "text", "not a text")


def test_what_is_no_cut(tmp_path, good):
    only(found(tmp_path, "{broken"), "file", "not JSON")
    only(found(tmp_path, "[1]"), "file", "not a JSON object")
    only(found(tmp_path, {"id": "a", "start": 0}), "cut", "found keys id, start")
    only(found(tmp_path, record("a", good, type="MixedCut")), "cut", "found MixedCut")
    half = record("a", good)
    del half["recording"]["num_samples"]
    only(found(tmp_path, half), "cut", "not a whole cut: KeyError 'num_samples'")
    far = [{"type": "url", "channels": [0], "source": "http://localhost/a.wav"}]
    only(found(tmp_path, record("a", good, recording_sources=far)), "audio", "source of type 'url'")


def test_a_manifest_that_is_cut_off_is_looked_at_as_far_as_it_goes(tmp_path, good):
    path = tmp_path / "test.jsonl.gz"
    write_manifest(path, [record(f"u{i}", good, text="" if i == 3 else "x") for i in range(200)])
    path.write_bytes(path.read_bytes()[:-30])
    first, last = validate(path)
    assert (first.line, first.what) == (4, "text")
    assert last.what == "file" and "cut off" in last.message
    with pytest.raises(DataError, match="no such manifest"):
        validate(tmp_path / "none.jsonl.gz")


def test_what_prepare_marked_is_listed_once_with_its_reason(tmp_path):
    marked = record("a", tmp_path / "none.wav", custom={"unreadable": "no such file"})
    only(found(tmp_path, marked), "audio", "marked by prepare as unreadable: no such file")


def test_the_command_prints_every_problem_and_says_by_its_code(tmp_path, good, capsys):
    empty, _ = write_broken(tmp_path)
    path = tmp_path / "test.jsonl.gz"
    options = ValidateOptions(workers=2)
    write_manifest(path, [record("a", good, text=""), record("b", empty), record("c", empty, text="\x00")])
    assert report_problems(manifest=path, options=options) == 3
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and "line 1 (a): text: an empty reference text (harmless)" in lines
    assert lines[-1].endswith("3 problems, and 1 things to know")
    write_manifest(path, [record("a", good, text="")])
    assert report_problems(manifest=path, options=options) == 0
