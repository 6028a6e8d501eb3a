import shlex
import sys

import pytest

from espnet3_rules.corpora import Work, kaldi
from espnet3_rules.errors import DataError
from tests.audio_files import write_broken, write_noise


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data" / "test"


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / name.replace("_scp", ".scp")).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read(folder, tmp_path, work=None, **options):
    chosen = kaldi.Options(splits={"test": str(folder)}, **options)
    return list(kaldi.cuts(chosen, "test", work or Work(tmp_path / "made")))


def refused(folder, tmp_path):
    with pytest.raises(DataError) as raised:
        read(folder, tmp_path)
    return str(raised.value)


def test_recordings_that_are_utterances(folder, tmp_path):
    spaced = write_noise(tmp_path / "my 'old' \"wavs\"" / "b c.wav", 0.5, 8000)
    write(
        folder,
        wav_scp=[f"utt-1 {write_noise(tmp_path / 'a.flac')}", f"utt/2   {spaced}  "],
        text=["utt/2 zwei  Wörter", "utt-1"],
        utt2spk=["utt-1 s1", "utt/2 s2"],
        spk2utt=["s1 utt-1", "s2 utt/2"],
    )
    first, second = read(folder, tmp_path)
    assert (first.id, first.duration, first.supervisions[0].text, first.supervisions[0].speaker) == (
        "utt-1", 1.0, "", "s1",
    )  # fmt: skip
    assert (second.id, second.duration, second.sampling_rate) == ("utt/2", 0.5, 8000)
    assert second.supervisions[0].text == "zwei  Wörter"
    assert second.recording.sources[0].source == str(spaced)


def test_segments_give_regions_channels_and_the_order(folder, tmp_path):
    write(
        folder,
        wav_scp=[f"rec {write_noise(tmp_path / 'a.wav', 4.0, channels=2)}", f"more {tmp_path / 'a.wav'}", "unused /x"],
        segments=["b rec 1.5 2.25", "a rec 0.00 4.00 1", "c more 3.0 -1", "d rec 3.5 4.2 -1"],
        text=["a one", "b two", "c three", "d four"],
        spk2utt=["s a b", "t c d"],
    )
    cuts = read(folder, tmp_path)
    assert [(c.id, c.start, c.duration, c.channel) for c in cuts] == [
        ("b", 1.5, 0.75, 0), ("a", 0.0, 4.0, 1), ("c", 3.0, 1.0, 0), ("d", 3.5, 0.5, 0),
    ]  # fmt: skip
    assert [c.recording.id for c in cuts] == ["rec", "rec", "more", "rec"]
    assert [c.supervisions[0].speaker for c in cuts] == ["s", "s", "t", "t"]
    assert [c.channel for c in read(folder, tmp_path, channel=1)] == [1, 1, 1, 1]


def test_relative_paths_and_pipes_start_from_the_root(folder, tmp_path, monkeypatch):
    write_noise(tmp_path / "wav" / "a.wav")
    write(folder, wav_scp=["a wav/a.wav", "b cat wav/a.wav |"], text=["a one", "b two"])
    for cut in read(folder, tmp_path, root=str(tmp_path)):
        assert cut.duration == 1.0 and cut.load_audio().shape == (1, 16000)
    monkeypatch.chdir(tmp_path)
    first, second = read("data/test", tmp_path)
    assert first.recording.sources[0].source == str(tmp_path / "wav" / "a.wav")
    assert second.custom is None


def test_a_pipe_runs_once_and_its_audio_is_kept(folder, tmp_path):
    source, log = write_noise(tmp_path / "it's.wav", 2.0), tmp_path / "log"
    command = f"echo ran >> {log}; cat {shlex.quote(str(source))} | cat - |"
    write(
        folder,
        wav_scp=[f"one {command}", f"other {command}"],
        segments=["a one 0 1", "b one 1 2", "c other 0 2"],
        text=["a x", "b y", "c z"],
    )
    asked = []

    def parallel_map(function, items):
        asked.append(list(items))
        return map(function, asked[-1])

    first = read(folder, tmp_path, Work(tmp_path / "made", parallel_map))
    assert log.read_text() == "ran\n" and asked == [[command[:-1].strip()]]
    assert [c.duration for c in first] == [1.0, 1.0, 2.0]
    (stored,) = (tmp_path / "made").iterdir()
    assert stored.read_bytes() == source.read_bytes()
    assert read(folder, tmp_path) == first and log.read_text() == "ran\n"
    # another command is another file
    write(folder, wav_scp=[f"one {command}", f"other cat {shlex.quote(str(source))} |"])
    assert [c.recording.sources[0].source for c in read(folder, tmp_path)][:2] == [str(stored)] * 2
    assert len(list((tmp_path / "made").iterdir())) == 2


def test_pipes_that_fail_are_named_and_the_others_go_on(folder, tmp_path, caplog):
    good = write_noise(tmp_path / "good.wav")
    complain = f"{sys.executable} -c \"import sys; print('first'); sys.exit('no such codec')\""
    write(
        folder,
        wav_scp=[
            f"good cat {good} |",
            f"status {complain} |",
            f"middle {complain} | cat {good} - |",  # the last command alone would succeed
            "text echo no audio |",
            "nothing true |",
            "unknown not-a-command-here x |",
        ],
        text=[f"{name} x" for name in ("good", "status", "middle", "text", "nothing", "unknown")],
    )
    cuts = read(folder, tmp_path)
    reasons = {c.id: (c.custom or {}).get("unreadable") for c in cuts}
    assert reasons["good"] is None
    assert reasons["status"].endswith("failed: exit status 1: no such codec")
    assert "exit status 1" in reasons["middle"]
    assert "failed: its output is no audio that libsndfile can read" in reasons["text"]
    assert "its output is an empty file" in reasons["nothing"]
    assert "exit status 127" in reasons["unknown"] and "not-a-command-here" in reasons["unknown"]
    assert "5 of 6 utterances" in caplog.text
    assert len(list((tmp_path / "made").iterdir())) == 1  # what failed leaves nothing, and is tried again
    write(folder, wav_scp=["a false |", "b false |"], text=["a x", "b y"])
    assert "exit status 1" in refused(folder, tmp_path)


def test_broken_audio_among_good(folder, tmp_path, caplog):
    empty, text = write_broken(tmp_path)
    write(
        folder,
        wav_scp=[f"a {write_noise(tmp_path / 'a.wav')}", f"b {empty}", f"c {text}", "d /nowhere/d.wav"],
        segments=["ua a 0 0.5", "ub b 0 2.5", "uc c 0 2.5", "ud d 0 2.5", "ue a 30 31"],
        text=["ua", "ub", "uc", "ud", "ue"],
    )
    cuts = read(folder, tmp_path)
    assert [(c.duration, bool(c.custom)) for c in cuts] == [
        (0.5, False), (2.5, True), (2.5, True), (2.5, True), (1.0, True),
    ]  # fmt: skip
    assert "ue: " in caplog.text and "starts at 30 s, but the audio ends at 1 s" in caplog.text


def test_files_that_do_not_fit_together_are_all_named(folder, tmp_path):
    audio = write_noise(tmp_path / "a.wav")
    write(
        folder,
        wav_scp=[f"a {audio}", "b", f"a {audio}", f"c {audio}", f"e {audio}"],
        text=["a one", "c two", "c three", "d four"],
        utt2spk=["a s1", "c s2", "b s3", "x"],
        spk2utt=["s1 a", "s3 c b a"],
    )
    message = refused(folder, tmp_path)
    for expected in (
        f"{folder / 'wav.scp'}, line 2: 'b' without a path or command",
        f"{folder / 'wav.scp'}, line 3: the id 'a' is that of {folder / 'wav.scp'}, line 1 too",
        f"{folder / 'text'}, line 3: the id 'c' is that of {folder / 'text'}, line 2 too",
        f"{folder / 'text'}, line 4: utterance 'd' has no line in {folder / 'wav.scp'}",
        f"{folder / 'wav.scp'}, line 5: utterance 'e' has no line in {folder / 'text'}",
        f"{folder / 'utt2spk'}, line 2: utterance 'c' is spoken by 's2', in spk2utt by 's3'",
        f"{folder / 'utt2spk'}, line 4: 'x' without a speaker",
        f"{folder / 'spk2utt'}, line 2: utterance 'a' stands under 's1' too",
        f"{folder / 'wav.scp'}, line 5: utterance 'e' is not in utt2spk",
        "HINT: ",
        "fix_data_dir",
    ):
        assert expected in message


@pytest.mark.parametrize(
    "line",
    ["u", "u a", "u a 1", "u a 1 x", "u a 2 1", "u a 1 1", "u a -1 1", "u a 0 1 x", "u a 0 1 0 0", "u a 0 inf"],
)
def test_segments_that_are_no_regions(folder, tmp_path, line):
    write(folder, wav_scp=[f"a {write_noise(tmp_path / 'a.wav')}"], segments=["v a 0 1", line], text=["v x", "u y"])
    message = refused(folder, tmp_path)
    assert f"{folder / 'segments'}, line 2: no region of a recording" in message
    assert "utterance recording start end" in message


def test_a_segment_of_a_recording_that_is_not_there(folder, tmp_path):
    write(folder, wav_scp=[f"a {write_noise(tmp_path / 'a.wav')}"], segments=["u b 0 1"], text=["u y"])
    assert "line 1: utterance 'u' is in recording 'b', which wav.scp does not have" in refused(folder, tmp_path)


def test_what_is_no_data_directory(folder, tmp_path):
    assert "found no such folder" in refused(folder, tmp_path)
    write(folder, wav_scp=["a a.wav"])
    assert "expected a Kaldi data directory with wav.scp and text, found wav.scp" in refused(folder, tmp_path)


def test_an_empty_directory_is_an_empty_split(folder, tmp_path):
    write(folder, wav_scp=[], text=[])
    assert read(folder, tmp_path) == []


def test_sources_are_the_files_that_are_there(folder):
    write(folder, wav_scp=[], text=[], segments=[])
    options = kaldi.Options(splits={"test": str(folder)})
    assert options.sources("test") == [folder / "wav.scp", folder / "segments", folder / "text"]


@pytest.mark.parametrize("region", ["0 1 30000000", "0 1 -5", "0 1e308", "1e308 -1"])
def test_regions_that_no_audio_has(tmp_path, region):
    (tmp_path / "wav.scp").write_text("r a.wav\n")
    (tmp_path / "text").write_text("u x\n")
    (tmp_path / "segments").write_text(f"u r {region}\n")
    options = kaldi.Options(splits={"test": str(tmp_path)})
    with pytest.raises(DataError, match="segments, line 1: no region"):
        list(kaldi.cuts(options, "test", Work(tmp_path / "made")))
