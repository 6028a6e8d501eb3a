from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3_rules.errors import DataError, EnvironmentProblem
from espnet3_rules.records import (
    Hypothesis,
    content_key,
    read_json,
    read_jsonl,
    write_aside,
    write_json,
    write_jsonl,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.fixed_dictionaries({"utt_id": texts, "text": texts, "n": st.integers()}), max_size=5))
def test_what_is_written_is_read(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("r") / "a.jsonl"
    write_jsonl(path, records)
    assert list(read_jsonl(path)) == records


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), write_aside(path) as stream:
        stream.write("new")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_is_killed_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    code = (
        "import os, sys; from espnet3_rules.records import write_aside\n"
        "with write_aside(sys.argv[1]) as s: s.write('new'); s.flush(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    assert path.read_text() == "old"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_is_named_and_loses_nothing(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        path = disk / "a.json"
        write_json(path, {"old": 1})
        with pytest.raises(EnvironmentProblem, match=r"a\.json: No space left") as found:
            write_json(path, {"new": "x" * 200_000})
        assert "same command again" in str(found.value)
        assert read_json(path) == {"old": 1}
        assert [p.name for p in disk.iterdir()] == ["a.json"]
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("content", [b'{"a": 1}\n{"b": ', b'{"a": 1}\n[1]\n', b'{"a": 1}\n\xff\n'])
def test_a_damaged_line_is_named(tmp_path, content):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.jsonl, line 2"):
        list(read_jsonl(path))


def test_a_cut_off_gzip_file_is_named(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wt") as stream:
        stream.writelines(f'{{"n": {n}, "x": "{os.urandom(20).hex()}"}}\n' for n in range(500))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"a\.jsonl\.gz, line \d+: the gzip file is cut off"):
        list(read_jsonl(path))


def test_missing_files_are_named(tmp_path):
    for read in (read_json, lambda path: list(read_jsonl(path))):
        with pytest.raises(DataError, match=r"none\.json: no such file"):
            read(tmp_path / "none.json")


def test_a_hypothesis_goes_through_json():
    whole = Hypothesis("u1", "abc", "one two", -1.5, (("one two", -1.5), ("one", -3.0)), 1.25, 0.1)
    assert Hypothesis.from_json(whole.to_json()) == whole
    assert "decode_s" not in whole.to_json(timings=False)
    with pytest.raises(DataError, match="x:3: no item"):
        Hypothesis.from_json({"utt_id": "u"}, source="x:3")


def test_a_content_key_depends_on_the_value_alone():
    assert content_key({"a": 1, "b": [1.5, "é"]}) == content_key({"b": [1.5, "é"], "a": 1})
    assert content_key({"a": 1}) != content_key({"a": 1.5})


def test_one_import_costs_no_heavy_library():
    code = "import sys, espnet3_rules.options; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    assert done.stdout.strip() == "[]"


def test_a_path_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for name in ("file/a.json", "file/b/a.json", "folder", "gone/a.json", "x" * 300 + "/a.json"):
        with pytest.raises(EnvironmentProblem, match="cannot be created") as caught:
            write_json(tmp_path / name, {})
        assert caught.value.hint


def test_a_file_read_meanwhile_is_not_taken_for_the_one_written(tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(FileNotFoundError), write_aside(tmp_path / "out" / "a"):
        (tmp_path / "in" / "b").open()


def test_half_a_surrogate_pair_cannot_be_written(tmp_path):
    with pytest.raises(DataError, match=r"a.jsonl, line 2 \(u2\): .*ud800"):
        write_jsonl(tmp_path / "a.jsonl", [{"utt_id": "u1"}, {"utt_id": "u2", "text": "x\ud800"}])
    with pytest.raises(DataError, match=r"a\.json: .*ud800"):
        write_json(tmp_path / "a.json", ["x\ud800"])
    assert not list(tmp_path.iterdir())


def test_json_nested_too_deeply(tmp_path):
    (tmp_path / "a.jsonl").write_text("{}\n" + "[" * 100_000 + "\n")
    with pytest.raises(DataError, match=r"a\.jsonl, line 2: not a whole"):
        list(read_jsonl(tmp_path / "a.jsonl"))
    with pytest.raises(DataError, match=r"a\.jsonl: not JSON"):
        read_json(tmp_path / "a.jsonl")
