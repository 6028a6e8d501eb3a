import gzip

import pytest

from espnet3_rules.corpora.reading import SHOWN, Problems, existing_file, json_lines, text_lines
from espnet3_rules.errors import DataError


def test_problems_come_together_each_fix_once():
    problems = Problems("corpus")
    problems.check()
    for i in range(SHOWN + 5):
        problems.add(f"list, line {i}: bad", "mend it")
    problems.add("list, line 99: worse", "drop it")
    with pytest.raises(DataError) as raised:
        problems.check()
    message = str(raised.value)
    assert f"{SHOWN + 6} problems" in message and "line 0: bad" in message
    assert "and 6 more" in message and f"line {SHOWN}: bad" not in message
    assert raised.value.hint == "mend it; drop it"


def test_lines_keep_their_numbers_over_blanks_marks_and_carriage_returns(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\r\n  \ntwo\u2028zwei\nthree".encode())
    assert list(text_lines(path)) == [(1, "one"), (4, "two\u2028zwei"), (5, "three")]
    zipped = tmp_path / "a.txt.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert list(text_lines(zipped)) == list(text_lines(path))
    zipped.write_bytes(gzip.compress(path.read_bytes())[:-10])
    with pytest.raises(DataError, match=r"a.txt.gz, line \d: the compressed file is cut off"):
        list(text_lines(zipped))


def test_what_is_not_utf8_is_named_by_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nna\xefve\n")
    with pytest.raises(DataError, match=r"a.txt, line 2: not UTF-8") as raised:
        list(text_lines(path))
    assert "iconv" in raised.value.hint


def test_json_lines_report_what_they_cannot_read_and_go_on(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": \n[1]\n{"a": 2}\n')
    problems = Problems("corpus")
    assert list(json_lines(path, problems)) == [(1, {"a": 1}), (4, {"a": 2})]
    with pytest.raises(DataError, match=r"(?s)line 2: not JSON .*line 3: not a JSON object"):
        problems.check()


def test_a_missing_list_says_what_was_expected(tmp_path):
    with pytest.raises(DataError, match="expected a table, found a folder") as raised:
        existing_file(tmp_path, "a table")
    assert "splits" in raised.value.hint


def test_a_list_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none.txt: No such file"):
        list(text_lines(tmp_path / "none.txt"))
    with pytest.raises(DataError, match="Is a directory"):
        list(text_lines(tmp_path))
