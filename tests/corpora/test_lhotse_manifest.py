import json

import pytest

from espnet3_rules.corpora import Work, lhotse_manifest
from espnet3_rules.errors import DataError
from tests.audio_files import write_broken, write_noise


def read(path, tmp_path, **options):
    chosen = lhotse_manifest.Options(splits={"test": str(path)}, **options)
    return list(lhotse_manifest.cuts(chosen, "test", Work(tmp_path / "made")))


def recording(path, name):
    from lhotse import Recording

    return Recording.from_file(path, recording_id=name)


def supervision(utt_id, name, start=0.0, duration=1.0, channel=0, text="x"):
    from lhotse import SupervisionSegment

    return SupervisionSegment(utt_id, name, start, duration, channel, text=text, speaker="s", custom={"mood": "good"})


def cut(utt_id, rec, start=0.0, duration=1.0, channel=0, **fields):
    from lhotse import MonoCut

    return MonoCut(utt_id, start, duration, channel, recording=rec, **fields)


def write_lines(path, records):
    path.write_text("".join(json.dumps(r if isinstance(r, dict) else r.to_dict()) + "\n" for r in records))
    return path


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_cuts_stay_as_they_are(tmp_path, ending):
    from lhotse import CutSet

    rec = recording(write_noise(tmp_path / "a.wav", 3.0, channels=2), "r")
    cuts = [
        cut("b", rec, 1.0, 1.5, 1, supervisions=[supervision("b", "r", channel=1)], custom={"note": [1, 2]}),
        cut("a", rec, supervisions=[supervision("a1", "r", 0.0, 0.5), supervision("a2", "r", 0.5, 0.5)]),
    ]
    path = tmp_path / f"test.{ending}"
    CutSet.from_cuts(cuts).to_file(path)
    assert read(path, tmp_path) == cuts


def test_recordings_with_the_supervisions_beside_them(tmp_path):
    from lhotse import RecordingSet, SupervisionSet

    recs = [recording(write_noise(tmp_path / f"{i}.wav", 3.0 + i), f"r{i}") for i in range(2)]
    said = [supervision("u2", "r1", 0.5, 2.0, text="two"), supervision("u1", "r0", 0.0, 3.0, text="one")]
    path = tmp_path / "my_recordings_test.jsonl.gz"
    RecordingSet.from_recordings(recs).to_file(path)
    SupervisionSet.from_segments(said).to_file(tmp_path / "my_supervisions_test.jsonl.gz")
    first, second = read(path, tmp_path)
    assert (first.id, first.start, first.duration, first.recording.id) == ("u2", 0.5, 2.0, "r1")
    assert first.supervisions[0].start == 0.0 and first.supervisions[0].text == "two"
    assert first.supervisions[0].custom == {"mood": "good"}
    assert second.load_audio().shape == (1, 48000)
    options = lhotse_manifest.Options(splits={"test": str(path)})
    assert options.sources("test") == [path, tmp_path / "my_supervisions_test.jsonl.gz"]
    write_lines(tmp_path / "plain_recordings.jsonl", recs)
    write_lines(tmp_path / "plain_supervisions.jsonl", [supervision("u", "r7"), {"id": "v"}])
    with pytest.raises(DataError) as raised:
        read(tmp_path / "plain_recordings.jsonl", tmp_path)
    assert "line 1: supervision 'u' is of recording 'r7'" in str(raised.value)
    assert "line 2: no recording_id, no start, no duration" in str(raised.value)
    (tmp_path / "plain_supervisions.jsonl").unlink()
    with pytest.raises(DataError, match="without one of supervisions beside it"):
        read(tmp_path / "plain_recordings.jsonl", tmp_path)


def test_relative_paths_start_from_the_root_and_come_out_absolute(tmp_path, monkeypatch):
    write_noise(tmp_path / "wav" / "a.wav")
    monkeypatch.chdir(tmp_path)
    path = write_lines(tmp_path / "test.jsonl", [cut("a", recording("wav/a.wav", "r"))])
    assert read("test.jsonl", tmp_path)[0].recording.sources[0].source == str(tmp_path / "wav" / "a.wav")
    monkeypatch.chdir("/")
    assert read(path, tmp_path, root=str(tmp_path))[0].load_audio().shape == (1, 16000)
    with pytest.raises(DataError, match="all 1 utterances") as raised:
        read(path, tmp_path)
    assert "root" in raised.value.hint


def test_commands_run_once_and_become_files(tmp_path):
    from lhotse import AudioSource, Recording

    source = write_noise(tmp_path / "a.wav")
    command = AudioSource("command", [0], f"cat {source}")
    rec = Recording("r", [command], 16000, 16000, 1.0)
    (made,) = read(write_lines(tmp_path / "test.jsonl", [cut("a", rec)]), tmp_path)
    assert made.recording.sources[0].type == "file"
    source.unlink()
    assert made.load_audio().shape == (1, 16000)


def test_a_cut_of_several_channels_needs_a_choice(tmp_path):
    from lhotse import MultiCut

    rec = recording(write_noise(tmp_path / "a.wav", channels=2), "r")
    cuts = [MultiCut("both", 0.0, 1.0, [0, 1], recording=rec), MultiCut("one", 0.0, 1.0, [1], recording=rec)]
    path = write_lines(tmp_path / "test.jsonl", cuts)
    with pytest.raises(DataError, match=r"line 1 \(both\): a cut of channels \[0, 1\]") as raised:
        read(path, tmp_path)
    assert "channel" in raised.value.hint
    assert [(type(c).__name__, c.channel) for c in read(path, tmp_path, channel=0)] == [("MonoCut", 0), ("MonoCut", 1)]


def test_broken_audio_among_good(tmp_path, caplog):
    rec = recording(write_noise(tmp_path / "a.wav"), "r")
    empty, text = write_broken(tmp_path)
    other_rate = write_noise(tmp_path / "b.wav", 2.0, 8000)
    shorter = write_noise(tmp_path / "c.wav", 0.2)

    def on(path):
        source = {**rec.to_dict()["sources"][0], "source": str(path)}
        return {**rec.to_dict(), "sources": [source]}

    records = [cut("good", rec).to_dict()]
    for name, path in [("empty", empty), ("text", text), ("gone", "/no.wav"), ("rate", other_rate), ("short", shorter)]:
        records.append({**cut(name, rec).to_dict(), "recording": on(path)})
    records[1]["custom"] = {"kept": 1}
    cuts = read(write_lines(tmp_path / "test.jsonl", records), tmp_path)
    reasons = {c.id: (c.custom or {}).get("unreadable") for c in cuts}
    assert reasons["good"] is None and all(reasons[c.id] for c in cuts[1:])
    assert reasons["rate"] == "declared as 16000 Hz, but the audio has 8000 Hz"
    assert reasons["short"] == "ends at 1 s, but the audio ends at 0.2 s"
    assert cuts[1].custom["kept"] == 1 and [c.duration for c in cuts] == [1.0] * 6
    assert "5 of 6 utterances" in caplog.text


def test_a_recording_that_is_made_faster_is_not_compared_with_its_file(tmp_path):
    rec = recording(write_noise(tmp_path / "a.wav", 2.0), "r").perturb_speed(0.5)
    (made,) = read(write_lines(tmp_path / "test.jsonl", [cut("a", rec, 0.0, 4.0)]), tmp_path)
    assert made.custom is None and made.load_audio().shape == (1, 64000)


def test_what_cannot_be_used_is_named(tmp_path):
    from lhotse import AudioSource, Recording

    rec = recording(write_noise(tmp_path / "a.wav"), "r")
    far = Recording("r", [AudioSource("url", [0], "http://localhost/a.wav")], 16000, 16000, 1.0)
    records = [
        cut("a", rec),
        cut("a", rec),
        cut("b c", rec),
        supervision("d", "r"),
        cut("e", None),
        cut("f", far),
        cut("g", rec, duration=0.0),
        cut("h", rec).pad(2.0),
    ]
    with pytest.raises(DataError) as raised:
        read(write_lines(tmp_path / "test.jsonl", records), tmp_path)
    message = str(raised.value)
    for expected in (
        "line 2: the id 'a' is that of",
        "line 3: the id 'b c' holds ' '",
        "line 4 (d): expected a cut of one recording, found keys id",
        "line 5 (e): a cut without a recording",
        "line 6 (f): audio in a source of type url",
        "line 7 (g): a cut without a duration above 0",
        ": expected a cut of one recording, found MixedCut",
    ):
        assert expected in message


def test_empty_missing_and_other_kinds_of_files(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    assert read(tmp_path / "empty.jsonl", tmp_path) == []
    (tmp_path / "cuts.yaml").write_text("[]")
    with pytest.raises(DataError, match="expected a manifest in JSON lines") as raised:
        read(tmp_path / "cuts.yaml", tmp_path)
    assert "lhotse copy" in raised.value.hint
    with pytest.raises(DataError, match="found nothing"):
        read(tmp_path / "none.jsonl", tmp_path)


def test_cuts_that_are_not_whole_or_of_no_length_that_audio_has(tmp_path):
    rec = recording(write_noise(tmp_path / "a.wav"), "r")
    whole = cut("a", rec).to_dict()
    records = [
        {**whole, "recording": [1]},
        {**whole, "id": "b", "start": 1e308},
        {**whole, "id": "c", "duration": 10**400},
        {**whole, "id": "d", "start": "now"},
    ]
    with pytest.raises(DataError) as raised:
        read(write_lines(tmp_path / "test.jsonl", records), tmp_path)
    for expected in ("line 1 (a): not a whole cut", "line 2 (b): 1.0 s from 1e+308 s", "line 3 (c):", "line 4 (d):"):
        assert expected in str(raised.value)
