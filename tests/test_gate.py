import pytest

from espnet3_rules.alignment import ErrorCounts
from espnet3_rules.errors import DataError, GateError, OptionError
from espnet3_rules.gate import GateOptions, gate
from espnet3_rules.records import read_json
from tests.test_report import scores_file


def files(folder, *failed, sentences=100):
    return [
        scores_file(folder / f"{i}.json", test_set=f"set{i}", words=ErrorCounts(), failed=n, sentences=(n, sentences))
        for i, n in enumerate(failed)
    ]


@pytest.mark.parametrize(
    ("failed", "allowed", "passes"),
    [(0, 0, True), (1, 0, False), (3, 3, True), (4, 3, False), (1, 0.01, True), (2, 0.01, False), (100, 1.0, True),
     (2, 1, False), (1, 0.0, False)],
)  # fmt: skip
def test_count_or_share(tmp_path, failed, allowed, passes):
    options, out = GateOptions(max_failed=allowed), tmp_path / "gate.json"
    if passes:
        gate(scores=files(tmp_path, 0, failed), out=out, options=options)
        assert [one["failed"] for one in read_json(out)["passed"]] == [0, failed]
        assert read_json(out)["passed"][1]["utterances"] == 100
    else:
        with pytest.raises(GateError):
            gate(scores=files(tmp_path, 0, failed), out=out, options=options)
        assert not out.exists()


def test_refusal_names_sets_utterances_and_lists(tmp_path):
    with pytest.raises(GateError) as error:
        gate(scores=files(tmp_path, 2, 0, 12), out=tmp_path / "gate.json", options=GateOptions())
    text = str(error.value)
    assert "small / greedy / set0: 2 of 100 failed: u0, u1 (all in exp/a/failed.tsv)" in text
    assert "set2: 12 of 100 failed: u0, u1, u2, u3, u4, ... (all in" in text
    assert "set1" not in text
    assert "decode.max_failed" in (error.value.hint or "")
    assert error.value.exit_code == 5


def test_earlier_pass_does_not_outlive_a_refusal(tmp_path):
    out = tmp_path / "gate.json"
    gate(scores=files(tmp_path, 0), out=out, options=GateOptions())
    with pytest.raises(GateError):
        gate(scores=files(tmp_path, 1), out=out, options=GateOptions())
    assert not out.exists()


def test_empty_test_set_passes(tmp_path):
    gate(scores=files(tmp_path, 0, sentences=0), out=tmp_path / "gate.json", options=GateOptions(max_failed=0.5))
    assert (tmp_path / "gate.json").exists()


@pytest.mark.parametrize("value", [-1, 1.5, "all", True])
def test_options_that_cannot_be(value):
    with pytest.raises(OptionError, match=r"decode\.max_failed"):
        GateOptions.from_dict({"max_failed": value}, "decode")


def test_missing_scores(tmp_path):
    with pytest.raises(DataError, match=r"no\.json: no such file"):
        gate(scores=[tmp_path / "no.json"], out=tmp_path / "gate.json", options=GateOptions())
