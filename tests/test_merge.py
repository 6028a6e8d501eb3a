"""The merge: the manifest's order, and a refusal that names everything that is not as planned."""

import json

import pytest

from espnet3_rules.errors import DataError, IncompleteError
from tests.shard_runs import TestSet, run_cli


@pytest.fixture(scope="module")
def decoded(tmp_path_factory):
    exp = TestSet(tmp_path_factory.mktemp("merge"), 12).exp()
    exp.plan(2)
    exp.decode(1, 2)
    exp.decode(2, 2)
    return exp


@pytest.fixture
def exp(decoded, tmp_path):
    """A copy of the shards, to be damaged."""
    import shutil

    from tests.shard_runs import Experiment

    shutil.copytree(decoded.folder, tmp_path / "exp")
    return Experiment(decoded.test_set, tmp_path / "exp")


def lines(exp, shard):
    return exp.shard(shard, 2).read_text().splitlines(keepends=True)


def put(exp, shard, content):
    exp.shard(shard, 2).write_text("".join(content))


def refused(exp, *patterns):
    with pytest.raises(IncompleteError) as raised:
        exp.merge(2)
    for pattern in patterns:
        assert pattern in str(raised.value)
    assert raised.value.hint
    for name in ("hypotheses.jsonl", "failed.tsv", "text"):
        assert not (exp.folder / name).exists()


def test_merged(exp):
    exp.merge(2)
    assert list(exp.hypotheses()) == [cut["id"] for cut in exp.test_set.cuts]
    text = (exp.folder / "text").read_text().splitlines()
    assert [line.split(" ", 1)[0] for line in text] == list(exp.hypotheses())
    assert text[0].split(" ", 1)[1] == exp.hypotheses()["spk0/utt0"]["text"]


def test_a_line_missing(exp):
    first = json.loads(lines(exp, 1)[1])["utt_id"]
    put(exp, 1, lines(exp, 1)[:1] + lines(exp, 1)[2:])
    refused(exp, "1 utterances missing", first, "1-of-2.jsonl")


def test_a_line_double(exp):
    first = json.loads(lines(exp, 2)[0])["utt_id"]
    put(exp, 2, [lines(exp, 2)[0], *lines(exp, 2)])
    refused(exp, "1 utterances double", first, "2-of-2.jsonl")


def test_two_shards_lines_swapped(exp):
    one, two = lines(exp, 1), lines(exp, 2)
    put(exp, 1, [two[0], *one[1:]])
    put(exp, 2, [one[0], *two[1:]])
    refused(exp, "2 utterances in the wrong shard", "of shard 1", "of shard 2", "2 utterances missing")


def test_two_shards_files_swapped(exp):
    one, two = lines(exp, 1), lines(exp, 2)
    put(exp, 1, two)
    put(exp, 2, one)
    refused(exp, "12 utterances in the wrong shard", "and 2 more")


def test_lines_in_another_order(exp):
    found = lines(exp, 1)
    put(exp, 1, [found[1], found[0], *found[2:]])
    refused(exp, "2 utterances in another order than planned")


def test_an_unknown_id(exp):
    record = json.loads(lines(exp, 1)[0])
    put(exp, 1, [*lines(exp, 1), json.dumps({**record, "utt_id": "stranger"}) + "\n"])
    refused(exp, "1 utterances unknown: stranger")


def test_a_cut_off_line(exp):
    exp.shard(1, 2).write_text(exp.shard(1, 2).read_text()[:-20])
    refused(exp, "1 damaged lines", "1 utterances missing")


def test_two_runs_mixed(exp):
    put(exp, 2, [line.replace('"run":"', '"run":"00') for line in lines(exp, 2)])
    refused(exp, "2 runs (2 different run keys) mixed", "1-of-2.jsonl", "2-of-2.jsonl")


def test_another_item_than_planned(exp):
    record = json.loads(lines(exp, 1)[0])
    put(exp, 1, [json.dumps({**record, "item": "0" * 32}) + "\n", *lines(exp, 1)[1:]])
    refused(exp, "1 utterances decoded from another recording than planned", record["utt_id"])


def test_a_shard_missing(exp):
    exp.shard(2, 2).unlink()
    refused(exp, "1 shard files missing: 2-of-2.jsonl")


def test_a_plan_of_another_manifest(tmp_path):
    data = TestSet(tmp_path, 6)
    exp = data.exp()
    exp.plan(2)
    exp.decode(1, 2)
    exp.decode(2, 2)
    data.add("spk1/utt1", 999, 0.4)  # another recording of utt1
    data.cuts[1] = data.cuts.pop()
    data.add("late", 999, 0.4)
    gone = data.cuts.pop(0)["id"]
    data.publish()
    refused(
        exp,
        "1 utterances missing in the plan: late",
        "1 recordings replaced after the plan was made: spk1/utt1",
        f"1 utterances of the plan unknown to the manifest: {gone}",
    )


def test_no_plan(exp):
    (exp.folder / "plan" / "plan.json").unlink()
    with pytest.raises(DataError, match="no such file"):
        exp.merge(2)


@pytest.mark.parametrize("stage", ["plan", "merge"])
def test_starts_at_once_and_without_torch(exp, stage):
    arguments = {
        "plan": ["--shards", "2", "--out", str(exp.folder / "plan")],
        "merge": [
            *("--plan", str(exp.folder / "plan"), "--out", str(exp.folder)),
            *("--shards", str(exp.shard(1, 2)), str(exp.shard(2, 2))),
        ],
    }[stage]
    seconds, heavy = run_cli(stage, "--manifest", exp.test_set.manifest, *arguments)
    assert seconds < 0.5 and not heavy
