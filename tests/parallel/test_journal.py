"""The journal: what was appended is there, whatever else is in the files."""

import json
import os

import pytest

from espnet3_rules.errors import RulesError
from espnet3_rules.parallel.journal import Journal


def line(utt_id, item="x", status="ok", **more):
    return {"utt_id": utt_id, "item": item, "status": status, **more}


def test_appended_and_read_back(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.refresh()
    assert journal.results() == {} and not journal.any_ok
    with journal.open_writer() as one, journal.open_writer() as two:
        one.append([])
        assert not (tmp_path / "j").exists()
        one.append([line("a", text="ä\u2028"), line("b", status="failed", error="no")])
        two.append([line("c")])
        assert one.path != two.path
    journal.refresh()
    assert (journal.result("a", "x") or {})["text"] == "ä\u2028" and journal.is_ok("c", "x") and journal.any_ok
    assert not journal.is_ok("b", "x") and journal.failures("b", "x") == 1
    assert journal.result("a", "another item") is None


def test_ok_wins_over_failed_and_the_latest_of_each(tmp_path):
    (tmp_path / "20260101T000000Z-a.jsonl").write_text(
        "".join(json.dumps(line("u", n=n, status=s)) + "\n" for n, s in enumerate(["failed", "ok", "ok", "failed"]))
    )
    (tmp_path / "20250101T000000Z-z.jsonl").write_text(json.dumps(line("u", n=9)) + "\n")
    journal = Journal(tmp_path)
    journal.refresh()
    assert (journal.result("u", "x") or {})["n"] == 2 and journal.failures("u", "x") == 2


def test_only_what_is_wanted_is_kept(tmp_path):
    with Journal(tmp_path).open_writer() as writer:
        writer.append([line("a"), line("b"), line("c", item="old")])
    journal = Journal(tmp_path, wanted={"a": "x", "c": "new"})
    journal.refresh()
    assert journal.results().keys() == {("a", "x")}


def test_a_cut_off_last_line_is_left_until_it_is_whole(tmp_path):
    path = tmp_path / "f.jsonl"
    whole = json.dumps(line("a")) + "\n" + json.dumps(line("b")) + "\n"
    journal = Journal(tmp_path)
    for end in range(len(whole) + 1):
        path.write_text(whole[:end])
        journal.refresh()
        assert not journal.problems
    assert len(journal.results()) == 2
    path.write_text(whole[:-5])
    again = Journal(tmp_path)
    again.refresh()
    assert again.results().keys() == {("a", "x")} and not again.problems


def test_a_damaged_line_is_reported_and_the_others_count(tmp_path):
    (tmp_path / "f.jsonl").write_bytes(
        json.dumps(line("a")).encode()
        + b'\n{"utt_id": "b", "it\n\0\0\0\n[1]\n'
        + json.dumps(line("c")).encode()
        + b"\n"
    )
    journal = Journal(tmp_path)
    journal.refresh()
    assert journal.results().keys() == {("a", "x"), ("c", "x")}
    assert [problem.split(": ")[0] for problem in journal.problems] == [
        f"{tmp_path / 'f.jsonl'}, line {n}" for n in (2, 3, 4)
    ]


def test_a_write_that_fails_half_way_leaves_no_half_line(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    writer = journal.open_writer()
    writer.append([line("a")])
    real, calls = os.write, []

    def half(descriptor, data):
        calls.append(data)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(RulesError, match="No space left"):
        writer.append([line("b"), line("c")])
    monkeypatch.undo()
    writer.append([line("d")])
    writer.close()
    journal.refresh()
    assert journal.results().keys() == {("a", "x"), ("d", "x")} and not journal.problems


def test_only_ok_and_failed(tmp_path):
    with pytest.raises(RulesError, match="ok or failed"), Journal(tmp_path).open_writer() as writer:
        writer.append([line("a", status="perhaps")])


def test_described_once(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.describe({"beam": 5})
    journal.describe({"beam": 6})
    assert json.loads((tmp_path / "j" / "key.json").read_text()) == {"beam": 5}


def test_a_line_that_is_json_but_no_result_is_a_damaged_one(tmp_path):
    deep = "[" * 100_000
    odd = [json.dumps(line(["a"])), json.dumps(line("a", item={})), json.dumps(line(None)), deep]
    (tmp_path / "f.jsonl").write_text("\n".join([*odd, json.dumps(line("c"))]) + "\n")
    for wanted in (None, {"c": "x"}):
        journal = Journal(tmp_path, wanted)
        journal.refresh()
        assert len(journal.problems) == 4 and journal.results().keys() == {("c", "x")}
