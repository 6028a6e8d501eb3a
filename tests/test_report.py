import csv
import subprocess
import sys

import pytest

from espnet3_rules.alignment import ErrorCounts
from espnet3_rules.errors import DataError
from espnet3_rules.records import write_json
from espnet3_rules.report import report


def scores_file(path, system="small", decoder="greedy", test_set="digits/test", *, words, failed=0, sentences=(1, 10)):
    """A scores.json such as `score` writes."""
    write_json(
        path,
        {
            "version": 1, "system": system, "decoder": decoder, "test_set": test_set, "words": words.to_json(),
            "characters": ErrorCounts(1, 0, 0, 40).to_json(),
            "sentences": {"errors": sentences[0], "reference": sentences[1], "rate": None},
            "failed": {"count": failed, "first": [f"u{i}" for i in range(failed)][:20], "list": "exp/a/failed.tsv"},
            "coverage": 1 - failed / sentences[1] if sentences[1] else None,
        },
    )  # fmt: skip
    return path


@pytest.fixture
def two(tmp_path):
    return [
        scores_file(tmp_path / "b.json", "small", "beam", words=ErrorCounts(1, 2, 3, 240), failed=1, sentences=(4, 8)),
        scores_file(tmp_path / "a.json", "big|2", "greedy", "é/x y", words=ErrorCounts(0, 0, 1, 7)),
    ]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.replace("\\|", "&#124;").strip("|").split("|")]


def test_one_row_for_each_in_the_order_given(tmp_path, two, capsys):
    table = report(scores=two, out=tmp_path / "exp" / "results.md")
    head, _, *rows = (tmp_path / "exp" / "results.md").read_text().split("\n\n")[1].splitlines()
    assert cells(head) == ["system", "decoder", "test set", "WER %", "CER %", "S", "D", "I", "N",
                           "sentences", "errors", "failed", "coverage %"]  # fmt: skip
    assert [cells(row) for row in rows] == [
        ["small", "beam", "digits/test", "2.50", "2.50", "1", "2", "3", "240", "8", "4", "1", "87.50"],
        ["big&#124;2", "greedy", "é/x y", "14.29", "2.50", "0", "0", "1", "7", "10", "1", "0", "100.00"],
    ]
    assert capsys.readouterr().out == table + "\n"
    assert table in (tmp_path / "exp" / "results.md").read_text()
    assert "1 failed, with reasons: `exp/a/failed.tsv`" in (tmp_path / "exp" / "results.md").read_text()


def test_csv_holds_counts_and_fractions(tmp_path, two):
    report(scores=two, out=tmp_path / "results.md")
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as stream:
        first, second = csv.DictReader(stream)
    assert first["system"] == "small" and second["system"] == "big|2"
    assert float(first["wer"]) == 6 / 240 and float(second["wer"]) == 1 / 7
    counts = ["substitutions", "deletions", "insertions", "words", "sentences", "sentence_errors", "failed"]
    assert [int(first[name]) for name in counts] == [1, 2, 3, 240, 8, 4, 1]
    assert float(first["coverage"]) == 0.875


def test_nothing_to_divide_by(tmp_path, two):
    empty = scores_file(tmp_path / "e.json", words=ErrorCounts(), sentences=(0, 0))
    report(scores=[*two, empty], out=tmp_path / "results.md")
    last = (tmp_path / "results.md").read_text().split("\n\n")[1].splitlines()[-1]
    assert cells(last)[3:] == ["-", "2.50", "0", "0", "0", "0", "0", "0", "0", "-"]
    assert (tmp_path / "results.csv").read_text().splitlines()[-1].split(",")[3] == ""


def test_no_scores_is_a_table_without_rows(tmp_path):
    report(scores=[], out=tmp_path / "results.md")
    assert "system" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "results.csv").read_text().startswith("system,decoder,test_set,wer,cer,")


@pytest.mark.parametrize("content", ["{}", "[]", '{"version": 0, "words": {}}', "{"])
def test_what_is_no_scores_file(tmp_path, two, content):
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(DataError, match=r"c\.json: not"):
        report(scores=[*two, tmp_path / "c.json"], out=tmp_path / "results.md")
    assert not (tmp_path / "results.md").exists()


def test_import_is_cheap():
    code = "import espnet3_rules.report, sys; print({'torch', 'numpy', 'pandas', 'lhotse'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
