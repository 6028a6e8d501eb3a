import json

import pytest

from espnet3_rules.corpora import Work, nemo
from espnet3_rules.errors import DataError
from tests.audio_files import write_broken, write_noise


def manifest(tmp_path, *records):
    path = tmp_path / "lists" / "test.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def read(path, tmp_path, **options):
    chosen = nemo.Options(splits={"test": str(path)}, **options)
    return list(nemo.cuts(chosen, "test", Work(tmp_path / "made")))


def test_a_manifest_as_nemo_writes_it(tmp_path):
    write_noise(tmp_path / "lists" / "wav" / "a b.wav", 3.0, channels=2)
    absolute = write_noise(tmp_path / "b.flac", 1.0, 8000)
    path = manifest(
        tmp_path,
        {"audio_filepath": "wav/a b.wav", "duration": 1.25, "offset": 0.5, "text": "one", "speaker": 7, "lang": "en"},
        {"audio_filepath": "wav/a b.wav", "offset": 2, "text": "", "channel": 1},
        {"audio_filepath": str(absolute), "duration": 1.0, "text": " drei ", "id": "own/id", "pred_text": "x"},
        {"audio_filepath": str(absolute), "text": "whole"},
    )
    cuts = read(path, tmp_path, channel=0)
    assert [(c.start, c.duration, c.channel, c.sampling_rate) for c in cuts] == [
        (0.5, 1.25, 0, 16000), (2.0, 1.0, 1, 16000), (0.0, 1.0, 0, 8000), (0.0, 1.0, 0, 8000),
    ]  # fmt: skip
    ids = [c.id for c in cuts]
    assert ids[:3] == ["wav/a_b-00000500", "wav/a_b-00002000", "own/id"]
    assert ids[3] == str(absolute.with_suffix("")).lstrip("/")
    assert [c.supervisions[0].text for c in cuts] == ["one", "", "drei", "whole"]
    assert (cuts[0].supervisions[0].speaker, cuts[0].supervisions[0].language) == ("7", "en")
    assert cuts[0].recording.sources[0].source == str(tmp_path / "lists" / "wav" / "a b.wav")


def test_ids_stay_when_lines_are_added(tmp_path):
    for name in ("x/a.wav", "y/a.wav"):
        write_noise(tmp_path / "lists" / name)
    one = {"audio_filepath": "x/a.wav", "text": "1"}
    (first,) = read(manifest(tmp_path, one), tmp_path)
    two = read(manifest(tmp_path, {"audio_filepath": "y/a.wav", "text": "2"}, one), tmp_path)
    assert [c.id for c in two] == ["y/a", first.id] == ["y/a", "x/a"]
    absolute = {"audio_filepath": str(tmp_path / "lists" / "x" / "a.wav"), "text": "1"}
    assert read(manifest(tmp_path, absolute), tmp_path)[0].id == "x/a"


def test_every_problem_is_named_with_its_line(tmp_path):
    good = {"audio_filepath": "a.wav", "text": "x"}
    path = manifest(
        tmp_path,
        good,
        good,
        {"text": "x"},
        {"audio_filepath": "c.wav", "text": None},
        {"audio_filepath": "d.wav", "text": "x", "duration": "1"},
        {"audio_filepath": "e.wav", "text": "x", "duration": 0},
        {"audio_filepath": "f.wav", "text": "x", "offset": -1},
        {"audio_filepath": "g.wav", "text": "x", "channel": "left"},
        {"audio_filepath": "h.wav", "text": "x", "id": "a b"},
    )
    with path.open("a") as stream:
        stream.write("{broken\n")
    with pytest.raises(DataError) as raised:
        read(path, tmp_path)
    message = str(raised.value)
    for expected in (
        f"line 2: the id 'a' is that of {path}, line 1 too",
        "line 3: 'audio_filepath' is None",
        "line 4 (c.wav): 'text' is None",
        "line 5 (d.wav): 'duration' is '1'",
        "line 6 (e.wav): a duration of 0 s",
        "line 7 (f.wav): 'offset' is -1",
        "line 8 (g.wav): 'channel' is 'left'",
        "line 9: the id 'a b' holds ' '",
        "line 10: not JSON",
        "9 problems",
    ):
        assert expected in message


def test_broken_audio_keeps_the_declared_duration(tmp_path, caplog):
    path = manifest(
        tmp_path,
        {"audio_filepath": "a.wav", "text": "x", "duration": 1.0},
        {"audio_filepath": "empty.wav", "text": "x", "duration": 2.5},
        {"audio_filepath": "text.wav", "text": "x"},
        {"audio_filepath": "none.wav", "text": "x", "duration": 3.5},
        {"audio_filepath": "a.wav", "text": "x", "duration": 4.5, "id": "too-long"},
    )
    write_noise(path.parent / "a.wav")
    write_broken(path.parent)
    cuts = read(path, tmp_path)
    assert [(c.duration, bool(c.custom)) for c in cuts] == [
        (1.0, False), (2.5, True), (0.01, True), (3.5, True), (4.5, True),
    ]  # fmt: skip
    assert "too-long: " in caplog.text and "ends at 4.5 s, but the audio ends at 1 s" in caplog.text


def test_empty_and_missing_manifests(tmp_path):
    path = manifest(tmp_path)
    assert read(path, tmp_path) == []
    assert nemo.Options(splits={"test": str(path)}).sources("test") == [path]
    with pytest.raises(DataError, match="expected a NeMo manifest, found nothing"):
        read(tmp_path / "none.json", tmp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("channel", 30_000_000), ("duration", 10**400), ("offset", 1e308), ("offset", float("nan"))]
)
def test_numbers_that_no_audio_has(tmp_path, key, value):
    path = manifest(tmp_path, {"audio_filepath": "a.wav", "text": "x", key: value})
    with pytest.raises(DataError, match=rf"line 1 \(a.wav\): '{key}' is"):
        read(path, tmp_path)


@pytest.mark.parametrize("field", ["audio_filepath", "text", "speaker"])
def test_half_a_surrogate_pair_is_named_with_its_line(tmp_path, field):
    good = {"audio_filepath": "a.wav", "text": "\N{GRINNING FACE}"}  # a whole pair
    path = manifest(tmp_path, good, {**good, field: "x\ud83d"})
    with pytest.raises(DataError, match=r"test.json, line 2: .*ud83d") as caught:
        read(path, tmp_path)
    assert "line 1" not in str(caught.value)


def test_a_line_nested_too_deeply(tmp_path):
    path = manifest(tmp_path, {"audio_filepath": "a.wav", "text": "x"})
    path.write_text(path.read_text() + "[" * 100_000 + "\n")
    with pytest.raises(DataError, match="line 2: not JSON"):
        read(path, tmp_path)
