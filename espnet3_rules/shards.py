"""Plans: a test set cut into blocks of similar cost, and the blocks dealt out to shards.

Blocks are runs of consecutive utterances, cut the same way whatever the number of shards, so that two runs with
different numbers of shards claim the same blocks, and utterances appended to the manifest leave the blocks before
them as they are.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from espnet3_rules.errors import DataError
from espnet3_rules.manifest import ItemHasher, read_index
from espnet3_rules.options import Options, opt
from espnet3_rules.records import content_key, read_json, read_jsonl, write_json, write_jsonl

#: Of the files of a plan.
VERSION = 1
#: A test set has between half as many blocks and these, given enough utterances: with 64 shards the costs are still
#: within 1 % of each other.
BLOCKS = 1024
#: Longest block in seconds, however large the test set: what a claim costs is then nothing beside the decoding.
LONGEST_BLOCK_S = 1024.0
#: What an utterance costs at least, in seconds: one that cannot be read still has to be looked at.
LEAST_COST_S = 0.1
_AGAIN = (
    "delete that file and give the same command again: the workflow makes it anew (by hand: `espnet3-rules plan` first)"
)


@dataclass(frozen=True)
class PlanOptions(Options):
    """How a test set is planned."""

    hash_audio: bool = opt(
        False,
        "Tell a changed recording by its content, not by size and time of change: slow, but an audio folder that was "
        "copied keeps its results.",
    )


class Row(NamedTuple):
    """One utterance of a plan."""

    utt_id: str
    #: The item hash when the plan was made.
    item: str
    duration_s: float

    @property
    def cost(self) -> float:
        """What it is expected to cost, in seconds of audio."""
        return max(self.duration_s, LEAST_COST_S)


@dataclass(frozen=True)
class Block:
    """Consecutive utterances that are claimed together."""

    #: Hash of the ids: workers of an older plan, which knows other recordings under them, claim the same name.
    name: str
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Block:
        """The block of these rows, with its name."""
        rows = tuple(rows)
        return cls(content_key([row.utt_id for row in rows])[:32], rows)

    @property
    def cost(self) -> float:
        """Sum of its rows' costs."""
        return sum(row.cost for row in self.rows)


def plan(*, manifest: Path, out: Path, shards: int, options: PlanOptions = PlanOptions()) -> None:
    """Publishes ``out/<i>-of-<shards>.jsonl``, the blocks of each shard, and then ``out/plan.json``.

    Shards are of similar cost (duration; the most expensive block goes first, each to the shard that has least).
    There may be more shards than utterances: a shard may be empty, and so may the test set.

    Args:
        manifest: of the test set.
        out: folder of the plan.
        shards: how many.
        options: how recordings are told apart.

    Raises:
        DataError: the manifest is missing or damaged, or ``shards`` is below 1.
    """
    if shards < 1:
        raise DataError(f"--shards {shards}: expected at least 1")
    hasher = ItemHasher(hash_audio=options.hash_audio)
    rows = [Row(entry.id, hasher(entry), entry.duration_s) for entry in read_index(manifest)]
    blocks = cut(rows)
    dealt = deal([block.cost for block in blocks], shards)
    for number, mine in enumerate(dealt, 1):
        write_jsonl(
            shard_path(out, number, shards),
            ({"name": blocks[i].name, "rows": [list(row) for row in blocks[i].rows]} for i in mine),
        )
    write_json(
        plan_path(out),
        {
            "version": VERSION,
            "shards": shards,
            "hash_audio": options.hash_audio,
            "utterances": len(rows),
            "duration_s": round(sum(row.duration_s for row in rows), 3),
            "blocks": [len(mine) for mine in dealt],
            "counts": [sum(len(blocks[i].rows) for i in mine) for mine in dealt],
            "costs": [round(sum(blocks[i].cost for i in mine), 3) for mine in dealt],
        },
    )


def cut(rows: Sequence[Row]) -> list[Block]:
    """Blocks of consecutive rows, none above the limit unless it is a single row."""
    limit = _limit(sum(row.cost for row in rows))
    blocks: list[Block] = []
    current: list[Row] = []
    cost = 0.0
    for row in rows:
        if current and cost + row.cost > limit:
            blocks.append(Block.of(current))
            current, cost = [], 0.0
        current.append(row)
        cost += row.cost
    if current:
        blocks.append(Block.of(current))
    return blocks


def _limit(total_s: float) -> float:
    """Highest cost of a block: a power of two, so that a few utterances more do not move every cut."""
    if total_s <= 0:
        return LEAST_COST_S
    return min(2.0 ** math.ceil(math.log2(total_s / BLOCKS)), LONGEST_BLOCK_S)


def deal(costs: Sequence[float], shards: int) -> list[list[int]]:
    """The indices for each shard, in their order: longest processing time first (Graham 1969, at most 4/3 of the best).

    Args:
        costs: of each block.
        shards: how many.
    """
    heap = [(0.0, number) for number in range(shards)]
    dealt: list[list[int]] = [[] for _ in range(shards)]
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, number = heapq.heappop(heap)
        dealt[number].append(index)
        heapq.heappush(heap, (load + costs[index], number))
    return [sorted(mine) for mine in dealt]


def shard_path(folder: Path, shard: int, shards: int) -> Path:
    """The file of one shard in the folder of a plan."""
    return Path(folder) / f"{shard}-of-{shards}.jsonl"


def plan_path(folder: Path) -> Path:
    """The file that describes a whole plan."""
    return Path(folder) / "plan.json"


def read_plan(folder: Path) -> dict:
    """What ``plan.json`` says.

    Raises:
        DataError: missing, damaged, or of another version.
    """
    path = plan_path(folder)
    found = read_json(path, made_by="plan")
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise DataError(f"{path}: not a plan of version {VERSION}", hint=_AGAIN)
    shards = found.get("shards")
    if isinstance(shards, bool) or not isinstance(shards, int) or shards < 1:
        raise DataError(f"{path}: damaged: shards is {shards!r}", hint=_AGAIN)
    return found


def read_shard(folder: Path, shard: int, shards: int) -> list[Block]:
    """The blocks of shard ``shard`` of ``shards``, in the manifest's order.

    Raises:
        DataError: there is no such shard in the plan, or its file is damaged.
    """
    if not 1 <= shard <= shards:
        raise DataError(f"shard {shard} of {shards}: shards are numbered from 1 to {shards}")
    path = shard_path(folder, shard, shards)
    if not path.exists():
        raise DataError(
            f"{path}: no such shard; the plan has {read_plan(folder)['shards']}",
            hint=f"run `espnet3-rules plan --shards {shards}` first",
        )
    blocks = []
    for number, line in enumerate(read_jsonl(path), 1):
        try:
            blocks.append(Block(line["name"], tuple(Row(i, item, float(s)) for i, item, s in line["rows"])))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}, line {number}: not a block", hint=_AGAIN) from error
    return blocks
