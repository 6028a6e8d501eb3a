import gzip
import json
import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet3_rules import manifest
from espnet3_rules.errors import DataError
from espnet3_rules.manifest import (
    CUTS_PER_MEMBER,
    Entry,
    ItemHasher,
    ManifestReader,
    changed_audio,
    id_problem,
    index_path,
    item_hash,
    read_cut_records,
    read_index,
    read_texts,
    write_manifest,
)


def record(utt_id, audio="/nowhere.wav", text="a text", start=0.0, duration=1.5, rate=16000, channel=0, **custom):
    return {
        "id": utt_id,
        "start": start,
        "duration": duration,
        "channel": channel,
        "supervisions": [
            {"id": utt_id, "recording_id": "r", "start": 0.0, "duration": duration, "channel": channel, "text": text}
        ],
        "recording": {
            "id": "r",
            "sources": [{"type": "file", "channels": [0, 1], "source": str(audio)}],
            "sampling_rate": rate,
            "num_samples": rate * 100,
            "duration": 100.0,
            "channel_ids": [0, 1],
        },
        "type": "MonoCut",
        **({"custom": custom} if custom else {}),
    }


def many(count, audio="/nowhere.wav"):
    return [record(f"utt/{i:04d}", audio, text=f"text {i} äß漢") for i in range(count)]


@pytest.mark.parametrize("count", [0, 1, CUTS_PER_MEMBER, CUTS_PER_MEMBER + 1, 3 * CUTS_PER_MEMBER + 7])
def test_what_is_written_is_read_in_order_and_at_random(tmp_path, count):
    path, cuts = tmp_path / "data" / "test.jsonl.gz", many(count)
    assert write_manifest(path, iter(cuts)) == count
    assert list(read_cut_records(path)) == cuts
    assert [e.id for e in read_index(path)] == [c["id"] for c in cuts]
    assert read_texts(path) == {c["id"]: c["supervisions"][0]["text"] for c in cuts}
    reader = ManifestReader(path)
    assert len(reader) == count and list(reader) == [c["id"] for c in cuts]
    for cut in reversed(cuts):
        assert reader.record(cut["id"]) == cut
    assert sorted(p.name for p in path.parent.iterdir()) == ["test.index.jsonl", "test.jsonl.gz"]


def test_lhotse_reads_our_manifests_and_we_give_its_cuts(tmp_path):
    from lhotse import CutSet, MonoCut

    path = tmp_path / "test.jsonl.gz"
    write_manifest(path, many(150))
    eager, lazy = list(CutSet.from_file(path)), list(CutSet.from_jsonl_lazy(path))
    assert [c.id for c in eager] == [c.id for c in lazy] == [e.id for e in read_index(path)]
    cut = ManifestReader(path)["utt/0140"]
    assert isinstance(cut, MonoCut) and cut == lazy[140]
    # and cut objects are written as their records are
    again = tmp_path / "again.jsonl.gz"
    write_manifest(again, lazy)
    assert [ManifestReader(again)[c.id] for c in lazy] == lazy


def test_random_access_survives_fork_and_pickle(tmp_path):
    path = tmp_path / "test.jsonl.gz"
    write_manifest(path, many(200))
    reader = ManifestReader(path)
    reader.record("utt/0000")
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.record("utt/0199") == reader.record("utt/0199")
    with pytest.raises(DataError, match="no utterance 'nobody' among its 200"):
        reader.record("nobody")


def test_a_reader_keeps_to_the_manifest_it_was_opened_on(tmp_path):
    path = tmp_path / "test.jsonl.gz"
    write_manifest(path, many(200))
    reader = ManifestReader(path)
    write_manifest(path, [record("other", text="x" * 1000)])
    assert reader.record("utt/0199")["id"] == "utt/0199"


def test_the_same_cuts_leave_both_files_untouched(tmp_path):
    path = tmp_path / "test.jsonl.gz"
    write_manifest(path, many(100))
    before = [(p.stat().st_mtime_ns, p.stat().st_ino) for p in (path, index_path(path))]
    write_manifest(path, many(100))
    assert [(p.stat().st_mtime_ns, p.stat().st_ino) for p in (path, index_path(path))] == before
    write_manifest(path, many(101))
    assert [(p.stat().st_mtime_ns, p.stat().st_ino) for p in (path, index_path(path))] != before
    assert len(read_index(path)) == 101


def test_a_replaced_recording_leaves_the_manifest_and_renews_the_index(tmp_path):
    audio, path = tmp_path / "a.wav", tmp_path / "test.jsonl.gz"
    audio.write_bytes(b"one")
    write_manifest(path, [record("a", audio)])
    before = path.stat().st_mtime_ns
    audio.write_bytes(b"other")
    assert changed_audio(path) == [str(audio)]
    write_manifest(path, [record("a", audio)])
    assert path.stat().st_mtime_ns == before
    assert changed_audio(path) == []
    assert read_index(path)[0].stamp == ((5, audio.stat().st_mtime_ns),)


def test_double_ids_are_refused_with_both_places_and_nothing_is_written(tmp_path):
    path = tmp_path / "test.jsonl.gz"
    with pytest.raises(DataError, match="the id 'utt/0003' of cut 8 is that of cut 4 too"):
        write_manifest(path, [*many(7), record("utt/0003")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "bad", ["two words", "tab\there", "line\n", "nbsp\xa0x", "\u2028", "nul\0", "del\x7f", "", 7, None]
)
def test_ids_that_other_formats_cannot_carry_are_refused(tmp_path, bad):
    assert id_problem(bad)
    with pytest.raises(DataError, match="cut 1: the id") as raised:
        write_manifest(tmp_path / "test.jsonl.gz", [record(bad)])
    assert "rename" in raised.value.hint


@pytest.mark.parametrize("good", ["a/b/c", "a-b_c.d", "ü漢字", "..", "(a)", "a'b\"c", "*"])
def test_ids_may_hold_anything_else(tmp_path, good):
    assert id_problem(good) is None
    write_manifest(tmp_path / "test.jsonl.gz", [record(good)])
    assert ManifestReader(tmp_path / "test.jsonl.gz").record(good)["id"] == good


def test_what_is_no_cut_of_a_recording_is_refused(tmp_path):
    for cut in (record("a") | {"type": "MixedCut"}, record("a") | {"recording": None}, {"id": "a"}):
        with pytest.raises(DataError, match="expected a MonoCut with a recording"):
            write_manifest(tmp_path / "test.jsonl.gz", [cut])
    with pytest.raises(DataError, match="cannot be written as JSON"):
        write_manifest(tmp_path / "test.jsonl.gz", [record("a", duration=float("nan"))])


def damage_nothing(path):
    pass


def remove_index(path):
    index_path(path).unlink()


def cut_index(path):
    data = index_path(path).read_bytes()
    index_path(path).write_bytes(data[: len(data) // 2])


def cut_index_at_a_line(path):
    lines = index_path(path).read_bytes().splitlines(True)
    index_path(path).write_bytes(b"".join(lines[:50]))


def empty_index(path):
    index_path(path).write_bytes(b"")


def index_of_another(path):
    other = path.with_name("other.jsonl.gz")
    write_manifest(other, many(30))
    index_path(path).write_bytes(index_path(other).read_bytes())


def index_of_the_same_size(path):
    # same number of cuts and bytes: only the digest tells
    text = index_path(path).read_text().splitlines()
    last = json.loads(text[-1])
    last["manifest_sha256"] = "0" * 64
    text[0] = text[0].replace("utt/0000", "utt/xxxx")
    index_path(path).write_text("\n".join([*text[:-1], json.dumps(last)]) + "\n")


@pytest.mark.parametrize(
    "damage",
    [damage_nothing, remove_index, cut_index, cut_index_at_a_line, empty_index, index_of_another,
     index_of_the_same_size],
)  # fmt: skip
def test_an_index_that_does_not_fit_is_made_anew(tmp_path, damage):
    path = tmp_path / "test.jsonl.gz"
    write_manifest(path, many(100))
    good = index_path(path).read_bytes()
    damage(path)
    assert [e.id for e in read_index(path)] == [c["id"] for c in many(100)]
    assert index_path(path).read_bytes() == good
    assert ManifestReader(path).record("utt/0099") == many(100)[99]


def test_the_index_is_read_and_not_made_anew_when_audio_is_missing(tmp_path, monkeypatch):
    path = tmp_path / "test.jsonl.gz"
    write_manifest(path, [record("a", "/nowhere.wav", unreadable="no such file")])
    monkeypatch.setattr(manifest, "_index_of", lambda path: pytest.fail("parsed the manifest"))
    assert read_index(path)[0].stamp == (None,)
    assert read_index(path)[0].unreadable == "no such file"


def test_an_index_is_made_in_memory_where_the_folder_cannot_be_written(tmp_path):
    path = tmp_path / "test.jsonl.gz"
    write_manifest(path, many(10))
    index_path(path).unlink()
    index_path(path).mkdir()  # no file can be put there, whoever tries
    assert len(read_index(path)) == 10


def test_foreign_manifests_are_read_at_random_too(tmp_path):
    cuts = many(150)
    one_member, plain = tmp_path / "one.jsonl.gz", tmp_path / "plain.jsonl"
    text = "".join(json.dumps(c) + "\n\n" for c in cuts)
    with gzip.open(one_member, "wt", encoding="utf-8") as stream:
        stream.write(text)
    plain.write_text(text)
    for path in (one_member, plain):
        reader = ManifestReader(path)
        assert [reader.record(c["id"]) for c in cuts[::-7]] == cuts[::-7]
        assert list(reader) == [c["id"] for c in cuts]


def test_a_cut_off_manifest_is_an_error_that_says_what_to_do(tmp_path):
    path = tmp_path / "test.jsonl.gz"
    write_manifest(path, many(100))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"test.jsonl.gz: the compressed file is cut off") as raised:
        read_index(path)
    assert "prepare" in raised.value.hint
    with pytest.raises(DataError, match="cut off or damaged"):
        list(read_cut_records(path))
    for reader in (read_index, ManifestReader, read_texts, lambda p: list(read_cut_records(p))):
        with pytest.raises(DataError, match="no such manifest"):
            reader(tmp_path / "none.jsonl.gz")


def test_changed_audio_names_what_was_replaced_came_or_went(tmp_path):
    names = [tmp_path / f"{i}.wav" for i in range(5)]
    for name in names[:4]:
        name.write_bytes(b"sound")
    path = tmp_path / "test.jsonl.gz"
    assert changed_audio(path) == []  # nothing to compare
    write_manifest(path, [record(f"{name.stem}-{i}", name) for i in range(2) for name in names])
    assert changed_audio(path) == []
    os.utime(names[0], ns=(1, 1))
    names[1].write_bytes(b"longer sound")
    names[2].unlink()
    names[4].write_bytes(b"came")
    assert sorted(changed_audio(path)) == sorted(map(str, (names[0], names[1], names[2], names[4])))
    # an index that cannot be compared counts as changed, so that prepare makes both anew
    other = tmp_path / "other.jsonl.gz"
    write_manifest(other, many(10))
    index_path(path).write_bytes(index_path(other).read_bytes())
    assert changed_audio(path) == [str(index_path(path))]
    index_path(path).unlink()
    assert changed_audio(path) == [str(index_path(path))]


def entry(**changes):
    known = {"offset": 0, "line": 0, "text": "", "unreadable": None, "stamp": (None,)}
    return Entry(**{"id": "a", "duration_s": 1.0, "cut": "c", "audio": ("/nowhere",), **known, **changes})


def test_item_hash_follows_cut_and_audio_and_nothing_else(tmp_path):
    audio = tmp_path / "a.wav"
    audio.write_bytes(b"sound")
    path = tmp_path / "test.jsonl.gz"

    def hashed(hash_audio=False, **changes):
        write_manifest(path, [record("a", audio) | changes])
        return item_hash(read_index(path)[0], hash_audio=hash_audio)

    first = hashed()
    assert len(first) == 32
    other_text = [{**record("a")["supervisions"][0], "text": "other"}]
    assert hashed(supervisions=other_text) == first
    slower = record("a", audio, rate=8000)["recording"]
    changes = ({"start": 0.5}, {"duration": 1.0}, {"channel": 1}, {"recording": slower})
    changed = [hashed(**c) for c in changes]
    assert len({first, *changed}) == 5
    # the audio counts as it is now, not as it was when the manifest was written
    old = read_index(path)[0]
    by_content = item_hash(old, hash_audio=True)
    before = item_hash(old)
    os.utime(audio, ns=(5, 5))
    assert item_hash(old) != before
    assert item_hash(old, hash_audio=True) == by_content
    audio.write_bytes(b"noise")
    assert item_hash(old, hash_audio=True) != by_content
    audio.unlink()
    assert item_hash(old) != before and item_hash(old, hash_audio=True) != by_content


def test_an_item_hasher_looks_at_each_file_once(tmp_path):
    audio = tmp_path / "a.wav"
    audio.write_bytes(b"sound")
    hasher = ItemHasher()
    first = hasher(entry(audio=(str(audio),)))
    audio.unlink()
    assert hasher(entry(audio=(str(audio),))) == first
    assert hasher(entry(audio=(str(audio),), cut="d")) != first
    assert ItemHasher()(entry(audio=(str(audio),))) != first


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ids = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=8)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(ids.filter(lambda i: not id_problem(i)), texts, max_size=2 * CUTS_PER_MEMBER))
def test_any_ids_and_texts_come_back(tmp_path_factory, wanted):
    path = tmp_path_factory.mktemp("m") / "test.jsonl.gz"
    write_manifest(path, (record(i, text=t) for i, t in wanted.items()))
    assert list(read_texts(path).items()) == list(wanted.items())
    reader = ManifestReader(path)
    for utt_id, text in reversed(wanted.items()):
        assert reader.record(utt_id)["supervisions"][0]["text"] == text


def test_importing_costs_no_heavy_library():
    code = (
        "import sys, espnet3_rules.manifest, espnet3_rules.prepare, espnet3_rules.corpora.tsv, espnet3_rules.validate;"
        "heavy = {'torch', 'lhotse', 'numpy', 'soundfile', 'yaml', 'pandas'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[1]", "expected a cut as a JSON object"),
        ("[" * 100_000, "not JSON"),
        ('{"id": "a", "type": "MonoCut", "duration": 1, "recording": [1]}', "not a whole cut"),
        ('{"id": "a", "type": "MonoCut", "duration": 1, "recording": {"id": "r"}}', "not a whole cut"),
        (
            '{"id": "a", "type": "MonoCut", "duration": 1, "channel": 0, "recording": {"sources": [], '
            '"sampling_rate": 8000}, "supervisions": [{"text": "x\\ud800"}]}',
            "ud800",
        ),
    ],
)
def test_a_line_that_is_no_cut_is_named(tmp_path, line, reason):
    (tmp_path / "m.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=f"m.jsonl, line 1.*{reason}"):
        read_index(tmp_path / "m.jsonl")
