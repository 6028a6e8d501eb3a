import dataclasses
import random
import re
import shutil
import subprocess
import sys

import pytest

from espnet3_rules.alignment import ErrorCounts
from espnet3_rules.errors import DataError, IncompleteError, OptionError
from espnet3_rules.manifest import write_manifest
from espnet3_rules.records import FAILED, Hypothesis, read_json, write_json, write_jsonl
from espnet3_rules.score import ScoreOptions, read_scores, score, trn_id
from tests.test_report import scores_file

needs_sclite = pytest.mark.skipif(not shutil.which("sctk"), reason="needs NIST's sclite (Debian: apt install sctk)")


def cut(utt_id: str, text: str) -> dict:
    sources = [{"type": "file", "channels": [0], "source": "/nowhere/a.wav"}]
    recording = {"id": "a", "sources": sources, "sampling_rate": 8000, "num_samples": 8000, "duration": 1.0}
    supervision = {"id": utt_id, "recording_id": "a", "start": 0.0, "duration": 1.0, "text": text}
    return {
        "id": utt_id, "type": "MonoCut", "start": 0.0, "duration": 1.0, "channel": 0,
        "recording": recording, "supervisions": [supervision],
    }  # fmt: skip


class Case:
    """A test set of (id, reference, hypothesis); None for a hypothesis is a failed utterance."""

    def __init__(self, folder, rows):
        self.manifest, self.hypotheses = folder / "test.jsonl.gz", folder / "dec" / "hypotheses.jsonl"
        self.out = folder / "dec" / "scores.json"
        self.records = [
            Hypothesis(utt_id, item="0", text=text)
            if text is not None
            else Hypothesis(utt_id, item="0", status=FAILED, error="unreadable")
            for utt_id, _, text in rows
        ]
        self.write_references({utt_id: reference for utt_id, reference, _ in rows})
        self.write_hypotheses(self.records)

    def write_references(self, texts):
        write_manifest(self.manifest, (cut(utt_id, text) for utt_id, text in texts.items()))

    def write_hypotheses(self, records):
        write_jsonl(self.hypotheses, (one.to_json() for one in records))

    def score(self, **options):
        return score(
            manifest=self.manifest, hypotheses=self.hypotheses, out=self.out, options=ScoreOptions(**options),
            system="small", decoder="beam", test_set="clean",
        )  # fmt: skip


def errors(counts):
    return tuple(counts[key] for key in ("substitutions", "deletions", "insertions", "reference"))


def test_counts_of_a_test_set(tmp_path):
    case = Case(
        tmp_path,
        [
            ("u1", "one two three", "one too three"),
            ("u2", "four", "four five"),
            ("u3", "six", ""),
            ("u4", "ten", "ten"),
        ],
    )
    result = case.score()
    assert read_json(case.out) == result
    assert errors(result["words"]) == (1, 1, 1, 6)
    assert result["words"]["rate"] == pytest.approx(3 / 6)
    # w -> o; -six; +five. Spaces are no characters.
    assert errors(result["characters"]) == (1, 3, 4, 11 + 4 + 3 + 3)
    assert result["sentences"] == {"errors": 3, "reference": 4, "rate": 0.75}
    assert result["coverage"] == 1
    assert (result["system"], result["decoder"], result["test_set"]) == ("small", "beam", "clean")
    assert result["failed"] == {"count": 0, "first": [], "list": str(tmp_path / "dec" / "failed.tsv")}


def test_rates_are_divided_last(tmp_path):
    words = " ".join(f"w{i}" for i in range(20))
    result = Case(tmp_path, [("short", "yes", "no"), ("long", words, words)]).score()
    assert result["words"]["rate"] == 1 / 21


def test_trn_files_match_by_id_in_the_manifest_order(tmp_path):
    rows = [("b/2", "two  two", "two"), ("a(1)", "één", "een"), ("c%", "", "noise"), ("d", "gone", None)]
    case = Case(tmp_path, rows)
    case.write_hypotheses(case.records[::-1])
    result = case.score()
    ref, hyp = ((tmp_path / "dec" / f"{name}.trn").read_text().splitlines() for name in ("ref", "hyp"))
    assert ref == ["two two (b/2)", "één (a%281%29)", "(c%25)", "gone (d)"]
    assert hyp == ["two (b/2)", "een (a%281%29)", "noise (c%25)", "(d)"]
    assert errors(result["words"]) == (1, 2, 1, 4)


def test_trn_ids_stay_distinct():
    ids = ["a(1)", "a%281%29", "a%25281%2529", "a%281)"]
    assert len({trn_id(utt_id) for utt_id in ids}) == len(ids)
    assert not re.search(r"[()]", "".join(map(trn_id, ids)))


def test_empty_references_and_hypotheses_count(tmp_path):
    result = Case(tmp_path, [("u1", "", "a b"), ("u2", "c d e", ""), ("u3", "", "")]).score()
    assert errors(result["words"]) == (0, 3, 2, 3)
    assert result["sentences"]["errors"] == 2
    nothing = Case(tmp_path / "more", [("u1", "", "a")]).score()
    assert errors(nothing["words"]) == (0, 0, 1, 0)
    assert nothing["words"]["rate"] is None


def test_empty_test_set(tmp_path):
    case = Case(tmp_path, [])
    result = case.score()
    assert errors(result["words"]) == (0, 0, 0, 0)
    assert result["words"]["rate"] is result["sentences"]["rate"] is result["coverage"] is None
    assert (case.out.with_name("ref.trn")).read_text() == ""


def test_failed_utterances_are_deletions_and_listed(tmp_path):
    case = Case(tmp_path, [("u1", "one two", None), ("u2", "three", "three"), ("u3", "", None), ("u4", "a", "a")])
    case.records[0] = dataclasses.replace(case.records[0], text="left over from before")
    case.write_hypotheses(case.records)
    result = case.score()
    assert errors(result["words"]) == (0, 2, 0, 4)
    assert result["failed"]["count"] == 2 and result["failed"]["first"] == ["u1", "u3"]
    assert result["coverage"] == 0.5


def test_both_sides_are_normalised_alike(tmp_path):
    case = Case(tmp_path, [("u1", "Well, DON’T!", "ｗｅｌｌ don't")])
    assert errors(case.score(normalise=["nfkc", "lower", "punctuation", "whitespace"])["words"]) == (0, 0, 0, 2)
    plain = case.score()
    assert errors(plain["words"]) == (2, 0, 0, 2)
    assert plain["normalise"] == [["nfkc", 1], ["whitespace", 1]]


def test_corrected_transcript_changes_the_score(tmp_path):
    case = Case(tmp_path, [("u1", "one too", "one two"), ("u2", "three", "three")])
    assert case.score()["words"]["errors"] == 1
    case.write_references({"u1": "one two", "u2": "three"})
    assert case.score()["words"]["errors"] == 0
    assert read_json(case.out)["words"]["errors"] == 0


def test_worst_utterances_are_listed_with_their_alignment(tmp_path):
    rows = [("u1", "a b", "a"), ("u2", "a", "a"), ("u3", "a b c", "x y"), ("u4", "q r", None), ("u5", "a b", "b")]
    case = Case(tmp_path, rows)
    worst = case.score()["worst"]
    assert [one["utt_id"] for one in worst] == ["u3", "u4", "u1", "u5"]  # most errors first, then by order
    assert worst[0]["alignment"] == [["a", None], ["b", "x"], ["c", "y"]]
    assert worst[1]["failed"] and worst[1]["alignment"] == [["q", None], ["r", None]]
    assert worst[2]["reference"] == "a b" and worst[2]["hypothesis"] == "a"
    assert read_json(case.out)["worst"] == worst
    assert len(case.score(worst=2)["worst"]) == 2
    assert case.score(worst=0)["worst"] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda records: records[1:], "1 missing: u0"),
        (lambda records: [*records, records[2]], "1 double: u2"),
        (lambda records: [*records, Hypothesis("other", item="0")], "1 unknown: other"),
        (lambda records: [], "30 missing: u0, u1, .*u9, ..."),
        (lambda records: [*records[3:], records[3], Hypothesis("x", item="0")], "3 missing.*1 unknown.*1 double"),
    ],
)
def test_incomplete_hypotheses_are_refused_by_name(tmp_path, change, message):
    case = Case(tmp_path, [(f"u{i}", "a", "a") for i in range(30)])
    case.write_hypotheses(change(case.records))
    with pytest.raises(IncompleteError, match=message) as error:
        case.score()
    assert "hypotheses.jsonl" in str(error.value) and error.value.hint
    assert {path.name for path in case.out.parent.iterdir()} == {"hypotheses.jsonl"}


def test_truncated_line_is_refused(tmp_path):
    case = Case(tmp_path, [("u1", "a", "a"), ("u2", "b", "b")])
    case.hypotheses.write_text(case.hypotheses.read_text()[:-10])
    with pytest.raises(DataError, match=r"hypotheses\.jsonl, line 2: not a whole JSON object"):
        case.score()
    assert not case.out.exists()


def test_missing_files(tmp_path):
    case = Case(tmp_path, [("u1", "a", "a")])
    case.hypotheses.unlink()
    with pytest.raises(DataError, match=r"hypotheses\.jsonl: no such file"):
        case.score()
    with pytest.raises(OptionError, match=r"normalise\[0\]: no normalisation step 'uper'"):
        ScoreOptions(normalise=["uper"])


@needs_sclite
def test_totals_are_those_of_sclite_on_the_written_files(tmp_path):
    rng = random.Random(3)
    known = ["one", "two", "Three", "één", "日本", "don't", "five"]
    rows = []
    for i in range(300):
        reference = rng.choices(known, k=rng.randint(0, 9))
        hypothesis = [rng.choice(known) if rng.random() < 0.2 else w for w in reference if rng.random() > 0.1]
        text = None if rng.random() < 0.05 else " ".join(hypothesis)
        rows.append((f"spk{i % 7}/rec(1)-{i}%", " ".join(reference), text))
    case = Case(tmp_path, rows)
    result = case.score()
    folder = case.out.parent
    files = ["-r", folder / "ref.trn", "trn", "-h", folder / "hyp.trn", "trn"]
    for flags, counts in ([], result["words"]), (["-c"], result["characters"]):
        command = ["sctk", "sclite", *files, "-i", "rm", "-s", "-e", "utf-8", *flags, "-o", "rsum", "stdout"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        # | Sum | #sentences #words | correct sub del ins err sentence-errors |
        numbers = [int(n) for n in re.findall(r"\d+", re.search(r"\| Sum\s+\|.*", output)[0])]
        correct = counts["reference"] - counts["substitutions"] - counts["deletions"]
        assert numbers == [
            300, counts["reference"], correct, counts["substitutions"], counts["deletions"], counts["insertions"],
            counts["errors"], result["sentences"]["errors"],
        ]  # fmt: skip


def test_import_is_cheap():
    code = "import espnet3_rules.score, sys; print({'torch', 'numpy', 'pandas', 'lhotse'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


@pytest.mark.parametrize(
    "key",
    ["words", "words.rate", "characters.insertions", "sentences.reference", "failed.first", "coverage", "system"],
)
def test_damaged_scores_are_named(tmp_path, key):
    """All that report and gate use is checked: each would end in a traceback there."""
    path = scores_file(tmp_path / "scores.json", words=ErrorCounts(), failed=1)
    read_scores(path)
    record = read_json(path)
    *outer, last = key.split(".")
    inner = record
    for name in outer:
        inner = inner[name]
    inner[last] = {}
    write_json(path, record)
    with pytest.raises(DataError, match=f"scores.json: a damaged scores file: (no )?{key}") as caught:
        read_scores(path)
    assert "delete it" in caught.value.hint
    del inner[last]
    write_json(path, record)
    with pytest.raises(DataError, match=f"scores.json: a damaged scores file: no {key}"):
        read_scores(path)
