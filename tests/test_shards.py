"""Plans: every utterance once, shards of similar cost, blocks that do not depend on the number of shards."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3_rules.errors import DataError
from espnet3_rules.records import read_json
from espnet3_rules.shards import BLOCKS, LEAST_COST_S, LONGEST_BLOCK_S, Row, cut, deal, read_plan, read_shard
from tests.shard_runs import TestSet

durations = st.lists(st.floats(0, 40), max_size=60)


def rows(durations, start=0):
    return [Row(f"u{start + i}", "x", float(s)) for i, s in enumerate(durations)]


@given(durations)
def test_blocks_are_the_rows_in_order(seconds):
    made = cut(rows(seconds))
    assert [row for block in made for row in block.rows] == rows(seconds)
    assert all(block.rows for block in made)
    assert len({block.name for block in made}) == len(made)


@given(durations, st.integers(1, 9))
def test_the_costs_of_shards_are_bounded(seconds, shards):
    """Graham's bound for any list order, and his 4/3 for the longest first, here against the least possible."""
    costs = [block.cost for block in cut(rows(seconds))]
    dealt = deal(costs, shards)
    assert sorted(itertools.chain(*dealt)) == list(range(len(costs)))
    assert all(mine == sorted(mine) for mine in dealt)
    loads = [sum(costs[i] for i in mine) for mine in dealt]
    mean, longest = sum(costs) / shards, max(costs, default=0)
    assert max(loads) <= mean + longest * (1 - 1 / shards) + 1e-9
    ordered = sorted(costs, reverse=True)
    least = max(mean, longest, ordered[shards - 1] + ordered[shards] if len(ordered) > shards else 0)
    assert max(loads) <= least * 1.5 + 1e-9
    if len(costs) <= 8 and shards <= 3:
        best = min(
            max(sum(c for c, s in zip(costs, where, strict=True) if s == k) for k in range(shards))
            for where in itertools.product(range(shards), repeat=len(costs))
        )
        assert max(loads) <= best * (4 / 3 - 1 / (3 * shards)) + 1e-9


@pytest.mark.parametrize(("count", "shards"), [(2000, 8), (20000, 64), (281_000, 8)])
def test_large_sets_are_balanced(count, shards):
    made = cut(rows([2 + (i * 7919 % 1000) / 40 for i in range(count)]))
    costs = [block.cost for block in made]
    loads = [sum(costs[i] for i in mine) for mine in deal(costs, shards)]
    assert max(loads) <= 1.01 * sum(loads) / shards
    assert BLOCKS / 2 <= len(made) <= 10 * BLOCKS
    assert max(costs) <= LONGEST_BLOCK_S


def test_a_few_utterances_are_spread():
    costs = [block.cost for block in cut(rows([3, 4, 5]))]
    assert sorted(map(len, deal(costs, 8))) == [0] * 5 + [1] * 3
    assert [len(block.rows) for block in cut(rows([0.0] * 5))] == [1] * 5
    assert Row("u", "x", 0.0).cost == LEAST_COST_S


def test_utterances_appended_leave_the_blocks_before_them():
    before = cut(rows([3.0] * 5000))
    after = cut(rows([3.0] * 5050))
    assert [b.name for b in after[: len(before) - 1]] == [b.name for b in before[:-1]]


def test_the_files_of_a_plan(tmp_path):
    data = TestSet(tmp_path, 10)
    exp = data.exp()
    exp.plan(3)
    found = [read_shard(exp.folder / "plan", number, 3) for number in (1, 2, 3)]
    ids = [row.utt_id for blocks in found for block in blocks for row in block.rows]
    assert sorted(ids) == sorted(cut["id"] for cut in data.cuts)
    plan = read_json(exp.folder / "plan" / "plan.json")
    assert plan["counts"] == [sum(len(b.rows) for b in blocks) for blocks in found]
    assert plan["utterances"] == 10 and plan["shards"] == 3 and read_plan(exp.folder / "plan") == plan
    names = {block.name for blocks in found for block in blocks}
    exp.plan(1)
    assert {block.name for block in read_shard(exp.folder / "plan", 1, 1)} == names


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"version":1}', '{"version":1,"shards":"two"}', '{"version":1,"shards":0}']
)
def test_a_damaged_plan_is_to_be_deleted(tmp_path, content):
    with pytest.raises(DataError, match=r"plan\.json: no such file") as caught:
        read_plan(tmp_path)
    assert "espnet3-rules plan" in caught.value.hint
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(DataError, match=r"plan\.json: ") as caught:
        read_plan(tmp_path)
    assert caught.value.hint.startswith("delete ")


@pytest.mark.parametrize("content", ["{", "3", '{"name":"a"}', '{"name":"a","rows":[[1]]}'])
def test_a_damaged_shard_of_a_plan_is_to_be_deleted(tmp_path, content):
    (tmp_path / "1-of-1.jsonl").write_text(content + "\n")
    with pytest.raises(DataError, match=r"1-of-1\.jsonl, line 1: ") as caught:
        read_shard(tmp_path, 1, 1)
    assert caught.value.hint.startswith("delete ")


def test_shards_that_are_not_there(tmp_path):
    exp = TestSet(tmp_path, 2).exp()
    exp.plan(2)
    with pytest.raises(DataError, match=r"no such shard; the plan has 2"):
        read_shard(exp.folder / "plan", 1, 3)
    with pytest.raises(DataError, match="numbered from 1 to 2"):
        read_shard(exp.folder / "plan", 0, 2)
    with pytest.raises(DataError, match="expected at least 1"):
        exp.plan(0)
    (exp.folder / "plan" / "1-of-2.jsonl").write_text('{"name": "a"}\n')
    with pytest.raises(DataError, match="line 1: not a block"):
        read_shard(exp.folder / "plan", 1, 2)
