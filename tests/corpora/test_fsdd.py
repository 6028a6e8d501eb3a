import collections
import hashlib
import os
import re
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import soundfile

from espnet3_rules.corpora import Work, fsdd
from espnet3_rules.errors import DataError, EnvironmentProblem, OptionError

REAL = os.environ.get("ESPNET3_RULES_FSDD")
real = pytest.mark.skipif(not REAL, reason="ESPNET3_RULES_FSDD does not name the Free Spoken Digit Dataset")


def write_dataset(folder, speakers=("anna", "otto"), takes=8, rate=8000):
    """Each recording is constant, at a level that says which it is, so that a string shows what it was made of."""
    for s, speaker in enumerate(speakers):
        for digit in range(10):
            for index in range(takes):
                path = folder / "fsdd" / "recordings" / f"{digit}_{speaker}_{index}.wav"
                path.parent.mkdir(parents=True, exist_ok=True)
                soundfile.write(path, np.full(400, level(s, digit, index), np.float32), rate, subtype="PCM_16")
    (folder / "fsdd" / "README.md").write_text("about")
    soundfile.write(folder / "fsdd" / "other.wav", np.zeros(100), rate)
    return folder / "fsdd"


def level(speaker, digit, index):
    return 0.1 + 0.4 * speaker + 0.03 * digit + 0.003 * index


def zipped(folder, out):
    with zipfile.ZipFile(out, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder.parent))
    return out


def digest(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def make(work, split, parallel_map=map, seed=0, **options):
    return list(fsdd.cuts(fsdd.Options(**options), split, Work(Path(work), parallel_map, seed)))


def source(cut):
    return Path(cut.recording.sources[0].source)


def test_the_published_split_of_single_digits(tmp_path):
    folder = write_dataset(tmp_path)
    splits = {s: make(tmp_path / "w", s, path=str(folder), valid_indices=2) for s in ("train", "valid", "test")}
    indices = {s: {int(c.id.split("_")[2]) for c in cuts} for s, cuts in splits.items()}
    assert indices == {"test": {0, 1, 2, 3, 4}, "valid": {5, 6}, "train": {7}}
    assert {s: len(cuts) for s, cuts in splits.items()} == {"test": 100, "valid": 40, "train": 20}
    cut = next(c for c in splits["test"] if c.id == "7_otto_3")
    assert (cut.supervisions[0].text, cut.supervisions[0].speaker, cut.sampling_rate) == ("seven", "otto", 8000)
    assert cut.load_audio().mean() == pytest.approx(level(1, 7, 3), abs=1e-3)


def parts(samples):
    """The levels of the stretches in a string, from which one sees the takes."""
    edges = np.flatnonzero(np.abs(np.diff((samples > 0.05).astype(int)))) + 1
    return [float(np.median(x)) for x in np.split(samples, edges) if np.median(x) > 0.05]


def test_strings_are_takes_of_one_speaker_from_their_own_split(tmp_path):
    folder = write_dataset(tmp_path)
    chosen = {"path": str(folder), "valid_indices": 1, "connected": True, "pause_s": 0.2}
    allowed = {"test": range(5), "valid": [5], "train": [6, 7]}
    for split, indices in allowed.items():
        cuts = make(tmp_path / "w", split, **{**chosen, f"{split}_strings": 12})
        assert len(cuts) == 12 and len({c.supervisions[0].text for c in cuts}) > 6
        for cut in cuts:
            words = cut.supervisions[0].text.split()
            speaker = ("anna", "otto").index(cut.supervisions[0].speaker)
            samples = cut.load_audio()[0]
            found = parts(samples)
            assert len(found) == len(words)
            for word, value in zip(words, found, strict=True):
                digit = fsdd.DIGITS.index(word)
                assert any(value == pytest.approx(level(speaker, digit, i), abs=1e-3) for i in indices), (word, value)
            assert len(samples) <= len(words) * 400 + (len(words) + 1) * 0.2 * 8000 + 10
    assert len({len(parts(c.load_audio()[0])) for c in make(tmp_path / "w", "train", **chosen, train_strings=60)}) == 7


def test_strings_depend_on_the_seed_alone_and_are_not_made_twice(tmp_path):
    folder = write_dataset(tmp_path)
    chosen = {"path": str(folder), "valid_indices": 1, "connected": True, "train_strings": 6}

    def content(where, **more):
        return {c.id: digest(source(c)) for c in make(where, "train", **{**chosen, **more})}

    def backwards(function, items):
        return reversed([function(item) for item in reversed(list(items))])

    first = content(tmp_path / "1")
    assert content(tmp_path / "2", parallel_map=backwards) == first
    assert {k: content(tmp_path / "3", train_strings=9)[k] for k in first} == first
    assert not set(content(tmp_path / "4", seed=1).values()) & set(first.values())
    paths = [source(c) for c in make(tmp_path / "1", "train", **chosen)]
    paths[2].unlink()
    before = {p: p.stat().st_mtime_ns for p in paths if p.exists()}
    assert content(tmp_path / "1") == first
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_a_replaced_recording_makes_new_strings(tmp_path):
    folder = write_dataset(tmp_path)
    chosen = {"path": str(folder), "connected": True, "test_strings": 4}
    old = [source(c) for c in make(tmp_path / "w", "test", **chosen)]
    soundfile.write(folder / "recordings" / "1_anna_0.wav", np.full(500, 0.3), 8000, subtype="PCM_16")
    assert not set(old) & {source(c) for c in make(tmp_path / "w", "test", **chosen)}


def test_a_zip_gives_what_its_folder_gives(tmp_path):
    folder = write_dataset(tmp_path)
    archive = zipped(folder, tmp_path / "it's a zip.zip")
    unpacked = make(tmp_path / "w", "test", path=str(archive), sha256=digest(archive))
    assert [c.id for c in unpacked] == [c.id for c in make(tmp_path / "v", "test", path=str(folder))]
    assert all(tmp_path / "w" in source(c).parents for c in unpacked)
    source(unpacked[3]).write_bytes(b"cut off by a kill")
    assert len(make(tmp_path / "w", "test", path=str(archive))[3].load_audio()[0]) == 400


def test_a_zip_cannot_write_outside_its_folder(tmp_path):
    folder = write_dataset(tmp_path)
    archive = zipped(folder, tmp_path / "evil.zip")
    with zipfile.ZipFile(archive, "a") as stream:
        stream.write(folder / "recordings" / "1_anna_0.wav", "../../../1_eve_0.wav")
    cuts = make(tmp_path / "w", "test", path=str(archive))
    (eve,) = [c for c in cuts if c.supervisions[0].speaker == "eve"]
    assert tmp_path / "w" in source(eve).parents and not list(tmp_path.glob("*eve*"))


@pytest.fixture
def server(tmp_path):
    (tmp_path / "www").mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            asked.append(self.path)

    asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "www"))) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}", tmp_path / "www", asked
        http.shutdown()


def test_a_download_is_checked_and_done_once(tmp_path, server):
    url, www, asked = server
    archive = zipped(write_dataset(tmp_path), www / "fsdd.zip")
    good = {"url": f"{url}/fsdd.zip", "sha256": digest(archive)}
    assert len(make(tmp_path / "w", "test", **good)) == 100
    assert len(make(tmp_path / "w", "valid", **good)) == 60
    assert len(asked) == 1
    with pytest.raises(DataError, match=f"SHA-256 {digest(archive)}, expected {'0' * 64}"):
        make(tmp_path / "x", "test", url=f"{url}/fsdd.zip", sha256="0" * 64)
    assert not list((tmp_path / "x").rglob("*.zip*"))
    with pytest.raises(EnvironmentProblem, match=r"nothing\.zip: cannot be downloaded"):
        make(tmp_path / "x", "test", url=f"{url}/nothing.zip", sha256="0" * 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "path: give either path or url"),
        ({"path": "a", "url": "b", "sha256": "0" * 64}, "path: give either path or url"),
        ({"url": "http://x/y.zip"}, "sha256: missing"),
        ({"path": "a", "sha256": "abc"}, "sha256: expected 64 hexadecimal digits"),
        ({"path": "a", "valid_indices": 0}, "valid_indices: 0 is below 1"),
    ],
)
def test_impossible_options(options, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        fsdd.Options(**options)


def test_what_is_wrong_with_the_source_is_said(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.zip: no such file"):
        make(tmp_path, "test", path=str(tmp_path / "nowhere.zip"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no recordings named like"):
        make(tmp_path, "test", path=str(tmp_path / "empty"))
    (tmp_path / "no.zip").write_text("text")
    with pytest.raises(DataError, match="not a whole zip file"):
        make(tmp_path, "test", path=str(tmp_path / "no.zip"))
    archive = zipped(write_dataset(tmp_path), tmp_path / "fsdd.zip")
    with pytest.raises(DataError, match=r"SHA-256 .*, expected 0000"):
        make(tmp_path, "test", path=str(archive), sha256="0" * 64)
    cut_off = tmp_path / "half.zip"
    cut_off.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(DataError, match="not a whole zip file"):
        make(tmp_path, "test", path=str(cut_off))
    with pytest.raises(DataError, match="no recordings for split train"):
        make(tmp_path, "train", path=str(tmp_path / "fsdd"), valid_indices=10)


def test_a_string_of_unlike_recordings_is_refused(tmp_path):
    folder = write_dataset(tmp_path)
    for path in (folder / "recordings").glob("*_anna_2.wav"):
        soundfile.write(path, np.zeros((400, 2)), 8000)
    with pytest.raises(DataError, match=r"_anna_2\.wav: 2 channels at 8000 Hz, expected one"):
        make(tmp_path / "w", "test", path=str(folder), connected=True, test_strings=40)


@real
@pytest.mark.fsdd
def test_the_real_dataset(tmp_path):
    count = {s: len(make(tmp_path, s, path=REAL)) for s in ("train", "valid", "test")}
    assert count == {"train": 2400, "valid": 300, "test": 300}
    cuts = make(tmp_path, "test", path=REAL, connected=True)
    words = collections.Counter(w for c in cuts for w in c.supervisions[0].text.split())
    assert sum(words.values()) >= 1000 and set(words) == set(fsdd.DIGITS)
    assert len({c.supervisions[0].speaker for c in cuts}) == 6
    assert {c.sampling_rate for c in cuts} == {8000}
    options = fsdd.Options(path=REAL, connected=True)
    takes = [t for t in fsdd._takes(fsdd._folder(options, Work(tmp_path))) if fsdd._split_of(t, options) == "test"]
    used = {t.path for s in fsdd._strings(options, "test", takes, Work(tmp_path)) for t in s.takes}
    assert len(used) > 0.95 * 300
