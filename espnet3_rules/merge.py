"""Shard publications -> the hypotheses of the whole test set in the manifest's order, or an error and no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from espnet3_rules.errors import DataError, IncompleteError
from espnet3_rules.manifest import Entry, ItemHasher, read_index
from espnet3_rules.records import FAILED, OK, canonical_json, read_jsonl, write_aside
from espnet3_rules.shards import read_plan, read_shard, shard_path

#: Of the files that are written here.
VERSION = 1
_SHOWN = 10
_AGAIN = "delete the shard files named here and give the same command again: they are made anew from the journal"
_REPLAN = (
    "delete what is named here of the plan and give the same `snakemake` command again (by hand: `espnet3-rules plan`, "
    "then decode): what is decoded is kept"
)


@dataclass
class _Problems:
    """What is wrong, by kind: how many, the first ids, and the files."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, dict[str, None]] = field(default_factory=dict)
    hint: str = _AGAIN

    def add(self, kind: str, what: str, file: Path) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        shown = self.first.setdefault(kind, [])
        if len(shown) < _SHOWN:
            shown.append(what)
        self.files.setdefault(kind, {})[str(file)] = None

    def raise_any(self) -> None:
        if not self.counts:
            return
        lines = []
        for kind, count in self.counts.items():
            more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
            files = list(self.files[kind])
            where = ", ".join(files[:_SHOWN]) + (f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else "")
            lines.append(f"{count} {kind}: {', '.join(self.first[kind])}{more} (in {where})")
        raise IncompleteError("nothing was written; " + "\n".join(lines), hint=self.hint)


def merge(*, manifest: Path, plan: Path, shards: list[Path], out: Path) -> None:
    """Writes ``hypotheses.jsonl``, ``failed.tsv`` and Kaldi's ``text`` to ``out``, if every utterance is there once.

    ``failed.tsv`` has a header and ``utt_id``, ``duration_s``, ``reason``; ``text`` has ``utt_id`` and the words, an
    empty text for a failed utterance. All three are the same bytes for any number of shards.

    Args:
        manifest: of the test set.
        plan: folder of its plan.
        shards: the files of all shards, ``<i>-of-<n>.jsonl``, in any order.
        out: folder.

    Raises:
        IncompleteError: utterances missing, double, unknown, in another shard or order than planned, decoded from
            another recording or by another run than the rest, damaged lines or missing files; names them.
    """
    paths = _by_number(shards, plan)
    entries = read_index(manifest)
    shard_of = _check_plan(entries, plan, len(paths))
    _check_lines(paths, plan)
    out = Path(out)
    with ExitStack() as stack:
        # all three are published or none, apart from a kill between two renames, which the next run puts right
        hypotheses, failed, text = (
            stack.enter_context(write_aside(out / name)) for name in ("hypotheses.jsonl", "failed.tsv", "text")
        )
        failed.write("utt_id\tduration_s\treason\n")
        streams = [read_jsonl(path) for path in paths]
        for entry in entries:
            record = next(streams[shard_of[entry.id] - 1])
            assert record["utt_id"] == entry.id  # the files were checked, and a shard is in the manifest's order
            hypotheses.write(canonical_json(record) + "\n")
            text.write(f"{entry.id} {record.get('text', '')}".rstrip() + "\n")
            if record["status"] == FAILED:
                reason = " ".join(str(record.get("error", "")).split())
                failed.write(f"{entry.id}\t{entry.duration_s:.3f}\t{reason}\n")


def _by_number(shards: Sequence[Path], plan: Path) -> list[Path]:
    """The shards' files in the order of their numbers."""
    count = int(read_plan(plan)["shards"])
    given = {Path(path).name: Path(path) for path in shards}
    names = [shard_path(Path(), number, count).name for number in range(1, count + 1)]
    problems = _Problems(hint="give the same command again: the shards that are missing are decoded or published")
    folder = Path(shards[0]).parent if shards else Path(plan)
    for name in names:
        if name not in given:
            problems.add("shard files not given", name, folder)
        elif not given[name].exists():
            problems.add("shard files missing", name, given[name].parent)
    for name, path in given.items():
        if name not in names:
            problems.add(f"files that are no shard of the plan, which has {count}", name, path.parent)
    problems.raise_any()
    return [given[name] for name in names]


def _check_plan(entries: Sequence[Entry], plan: Path, count: int) -> dict[str, int]:
    """The shard of each utterance; an error where the plan is not one of this manifest."""
    problems = _Problems(hint=_REPLAN)
    items: dict[str, str] = {}
    shard_of: dict[str, int] = {}
    for number in range(1, count + 1):
        for block in read_shard(plan, number, count):
            for row in block.rows:
                if row.utt_id in items:
                    problems.add("utterances twice in the plan", row.utt_id, shard_path(plan, number, count))
                items[row.utt_id], shard_of[row.utt_id] = row.item, number
    hasher = ItemHasher(hash_audio=bool(read_plan(plan).get("hash_audio")))
    known = set()
    for entry in entries:
        known.add(entry.id)
        if entry.id not in items:
            problems.add("utterances missing in the plan", entry.id, plan)
        elif hasher(entry) != items[entry.id]:
            problems.add("recordings replaced after the plan was made", entry.id, plan)
    for utt_id in items.keys() - known:
        problems.add("utterances of the plan unknown to the manifest", utt_id, plan)
    problems.raise_any()
    return shard_of


def _check_lines(paths: Sequence[Path], plan: Path) -> None:
    """An error unless every shard's file holds exactly its shard's utterances, in order, all of one run."""
    problems = _Problems()
    planned = [
        {row.utt_id: row.item for block in read_shard(plan, number, len(paths)) for row in block.rows}
        for number in range(1, len(paths) + 1)
    ]
    runs: dict[str, list[Path]] = {}
    for path, expected in zip(paths, planned, strict=True):
        seen: dict[str, None] = {}
        for record in _records(path, problems):
            utt_id = record.get("utt_id")
            if not isinstance(utt_id, str) or record.get("status") not in (OK, FAILED):
                problems.add("lines that are no hypotheses", canonical_json(record)[:60], path)
            elif utt_id in seen:
                problems.add("utterances double", utt_id, path)
            elif utt_id in expected:
                seen[utt_id] = None
                if record.get("item") != expected[utt_id]:
                    problems.add("utterances decoded from another recording than planned", utt_id, path)
            else:
                home = next((i for i, other in enumerate(planned, 1) if utt_id in other), None)
                if home:
                    problems.add("utterances in the wrong shard", f"{utt_id} (of shard {home})", path)
                else:
                    problems.add("utterances unknown", utt_id, path)
            files = runs.setdefault(str(record.get("run")), [])
            if path not in files:
                files.append(path)
        for utt_id in expected.keys() - seen.keys() if len(seen) < len(expected) else ():
            problems.add("utterances missing", utt_id, path)
        if len(seen) == len(expected) and list(seen) != list(expected):
            moved = [got for got, want in zip(seen, expected, strict=True) if got != want]
            for utt_id in moved:
                problems.add("utterances in another order than planned", utt_id, path)
    if len(runs) > 1:
        for run, files in runs.items():
            for path in files:
                problems.add(f"runs ({len(runs)} different run keys) mixed", f"{run} in {path.name}", path)
    problems.raise_any()


def _records(path: Path, problems: _Problems) -> Iterator[dict[str, Any]]:
    try:
        yield from read_jsonl(path)
    except DataError as error:
        problems.add("damaged lines", error.message, path)
