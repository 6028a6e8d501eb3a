import logging
import os
import stat
import struct
from pathlib import Path

import pytest
import soundfile as sf

from espnet3_rules.corpora import Work
from espnet3_rules.corpora.audio import MISSING, Header, Utterance, make_cuts, probe, probe_all, region_of
from espnet3_rules.errors import DataError
from tests.audio_files import write_broken, write_noise


def utterance(utt_id, audio, **fields):
    return Utterance(id=utt_id, audio=str(audio), text="a text", where="list, line 1", **fields)


def made(utterances, tmp_path):
    return list(make_cuts(utterances, Work(tmp_path / "audio"), "corpus"))


def test_probe_gives_the_header_or_the_reason(tmp_path):
    empty, text = write_broken(tmp_path)
    good = write_noise(tmp_path / "good.flac", 0.5, 8000, 2)
    header_only = tmp_path / "header.wav"
    header_only.write_bytes(write_noise(tmp_path / "whole.wav").read_bytes()[:44])
    assert probe(str(good)) == Header(8000, 4000, 2)
    assert probe(str(empty)) == "an empty file (0 bytes)"
    assert probe(str(text)).startswith("no audio that libsndfile can read")
    assert probe(str(header_only)) == "an audio file without samples"
    assert probe(str(tmp_path / "none.wav")) == MISSING
    assert probe(str(tmp_path)) == "not a regular file"
    assert "null byte" in probe("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_probe_says_when_a_file_may_not_be_read(tmp_path):
    good = write_noise(tmp_path / "good.wav")
    good.chmod(0)
    assert "ermission denied" in probe(str(good)) or "System error" in probe(str(good))
    good.chmod(stat.S_IRWXU)


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF])
def test_a_wav_that_was_streamed_and_does_not_know_its_length(tmp_path, length):
    data = bytearray(write_noise(tmp_path / "a.wav").read_bytes())
    at = data.find(b"data") + 4
    data[at : at + 4] = struct.pack("<I", length)
    (tmp_path / "a.wav").write_bytes(data)
    assert probe(str(tmp_path / "a.wav")) == Header(16000, 16000, 1)


HEADER = Header(16000, 32000, 1)  # 2 s


@pytest.mark.parametrize(
    ("start_s", "duration_s", "expected"),
    [
        (0.0, None, (0.0, 2.0)),
        (0.0, 2.0004, (0.0, 2.0)),  # the whole file, its length given with a few digits
        (0.0, 1.9996, (0.0, 2.0)),
        (0.5, None, (0.5, 1.5)),
        (0.5, 1.0, (0.5, 1.0)),
        (1.5, 0.9, (1.5, 0.5)),  # cut short, as Kaldi does
    ],
)
def test_regions_within_the_audio(start_s, duration_s, expected):
    assert region_of(HEADER, start_s, duration_s, None) == expected


@pytest.mark.parametrize(
    ("start_s", "duration_s", "channel", "reason"),
    [
        (2.0, 0.1, None, "starts at 2 s, but the audio ends at 2 s"),
        (1.0, 1.6, None, "ends at 2.6 s, but the audio ends at 2 s"),
        (0.0, 1.0, 1, "channel 1 asked for, but the audio has 1"),
        (1.0, 0.00001, None, "less than one sample"),
    ],
)
def test_regions_that_are_not_there(start_s, duration_s, channel, reason):
    assert region_of(HEADER, start_s, duration_s, channel).startswith(reason)


def test_broken_and_missing_audio_stays_marked_and_is_named(tmp_path, caplog):
    empty, text = write_broken(tmp_path)
    good = write_noise(tmp_path / "good.wav", 2.0)
    utterances = [
        utterance("good", good),
        utterance("empty", empty, start_s=3.0, duration_s=2.0),
        utterance("text", text, channel=1),
        utterance("missing", tmp_path / "none.wav"),
        utterance("beyond", good, start_s=5.0, duration_s=1.0),
        utterance("pipe", tmp_path / "pipe.wav", problem="the command failed"),
    ]
    cuts = made(utterances, tmp_path)
    assert [c.id for c in cuts] == [u.id for u in utterances]
    reasons = {c.id: (c.custom or {}).get("unreadable") for c in cuts}
    assert reasons["good"] is None and all(reasons[u.id] for u in utterances[1:])
    assert reasons["missing"] == MISSING and reasons["pipe"] == "the command failed"
    assert [c.duration for c in cuts] == [2.0, 2.0, 0.01, 0.01, 1.0, 0.01]  # as declared, or next to nothing
    assert cuts[1].start == 3.0
    for cut in cuts[1:]:  # they must not come out as audio by accident
        with pytest.raises(Exception):  # noqa: B017 - lhotse has many
            cut.load_audio()
        assert cut.end <= cut.recording.duration
    (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "5 of 6 utterances" in warning.getMessage()
    for name in ("empty", "text", "missing", "beyond", "pipe"):
        assert f"  {name}: " in warning.getMessage()


def test_if_no_audio_can_be_read_the_path_is_wrong(tmp_path):
    with pytest.raises(DataError, match="the audio of all 3 utterances cannot be read") as raised:
        made([utterance(f"u{i}", f"/elsewhere/{i}.wav") for i in range(3)], tmp_path)
    assert "/elsewhere/2.wav: no such file" in str(raised.value) and "another folder" in raised.value.hint
    empty, _ = write_broken(tmp_path)
    with pytest.raises(DataError, match="all 1 utterances") as raised:
        made([utterance("a", empty)], tmp_path)
    assert "another folder" not in raised.value.hint
    assert made([], tmp_path) == []


def test_cuts_carry_what_the_corpus_said(tmp_path):
    path = write_noise(tmp_path / 'it\'s a "file".wav', 2.0, 8000, 2)
    spoken = utterance(
        "a/b", path, start_s=0.25, duration_s=0.5, channel=1, speaker="s", language="xx", recording="r"
    )  # fmt: skip
    (cut,) = made([spoken], tmp_path)
    supervision = cut.supervisions[0]
    assert (cut.id, cut.start, cut.duration, cut.channel, cut.sampling_rate) == ("a/b", 0.25, 0.5, 1, 8000)
    assert (supervision.text, supervision.speaker, supervision.language) == ("a text", "s", "xx")
    assert (supervision.start, supervision.duration, supervision.channel) == (0.0, 0.5, 1)
    assert cut.recording.id == supervision.recording_id == "r" and cut.recording.channel_ids == [0, 1]
    assert cut.custom is None
    samples, _ = sf.read(path, start=2000, stop=6000, dtype="float32")
    assert (cut.load_audio()[0] == samples[:, 1]).all()


def test_several_channels_and_none_chosen_is_said(tmp_path, caplog):
    path = write_noise(tmp_path / "a.wav", channels=2)
    (cut,) = made([utterance("a", path)], tmp_path)
    assert cut.channel == 0 and "1 recordings have several channels" in caplog.text
    caplog.clear()
    made([utterance("a", path, channel=1)], tmp_path)
    assert not caplog.text


def test_headers_of_many_files_are_read_in_parallel_each_once(tmp_path):
    good = write_noise(tmp_path / "good.wav", 0.1)
    paths = [str(tmp_path / f"{i}.wav") for i in range(300)]
    for path in paths:
        Path(path).symlink_to(good)
    asked = []

    def parallel_map(function, items):
        asked.extend(items)
        return map(function, items)

    headers = probe_all(paths * 3, Work(tmp_path, parallel_map))
    assert asked == paths and set(headers.values()) == {Header(16000, 1600, 1)}


def test_a_sampling_rate_that_no_audio_has(tmp_path):
    path = write_noise(tmp_path / "a.wav")
    good = path.read_bytes()
    for rate in (1, 99, 1_000_001, 0x0FFFFFFF):
        path.write_bytes(good[:24] + struct.pack("<I", rate) + good[28:])
        assert probe(str(path)) == f"a sampling rate of {rate} Hz, expected 100 to 1000000 Hz"


def test_an_absurd_channel_of_unreadable_audio_costs_nothing(tmp_path):
    good = write_noise(tmp_path / "a.wav")
    _, bad = made([utterance("a", good), utterance("b", good, channel=30_000_000)], tmp_path)
    assert bad.custom["unreadable"].startswith("channel 30000000") and bad.recording.channel_ids == [30_000_000]
