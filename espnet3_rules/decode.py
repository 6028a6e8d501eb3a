"""One shard of a plan -> hypotheses, each utterance once, whatever is killed meanwhile.

Results go to the journal of the run (``journal/<run key>/``) after every batch; the shard's file is published from
it when all is there.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3_rules import keys
from espnet3_rules import shards as _shards
from espnet3_rules.batches import BatchDecoder, batches
from espnet3_rules.errors import DataError, Interrupted
from espnet3_rules.manifest import ItemHasher, ManifestReader
from espnet3_rules.models.search import VERSION as SEARCH_VERSION
from espnet3_rules.models.search import SearchOptions, load_lm
from espnet3_rules.options import Options, opt
from espnet3_rules.parallel.blocks import JOURNALLED, WAITING, BlockWorker, Step
from espnet3_rules.parallel.claims import Claims
from espnet3_rules.parallel.journal import Journal
from espnet3_rules.records import FAILED, Hypothesis, read_json, write_json, write_jsonl
from espnet3_rules.shards import Block, Row

if TYPE_CHECKING:
    from espnet3_rules.models.recogniser import Recogniser

#: In every run key: raised when the same model, options and audio can give another text.
VERSION = 1
#: Blocks are claimed for so many batches at a time: enough to sort them by length.
_BATCHES_AHEAD = 4
#: Decimals of published scores: in batches of another size the last bits differ.
_DECIMALS = 6


@dataclass(frozen=True)
class DecodeOptions(Options):
    """How a shard is decoded."""

    search: SearchOptions = opt(SearchOptions, "How the text is searched; the decoder's own block.")
    batch_duration_s: float = opt(
        120.0, "Audio in one batch in seconds, padding included.", above=0, affects_result=False
    )
    max_batch: int = opt(64, "Utterances in one batch at most.", minimum=1, affects_result=False)
    device: str = opt(
        "auto",
        "Where the model runs, as torch names it; auto: a GPU that no other job here has leased, or the CPU.",
        affects_result=False,
    )
    threads: int | None = opt(
        None, "Threads of the computation on a CPU; null: as many as the job has.", minimum=1, affects_result=False
    )
    stale_after_s: float = opt(
        60.0,
        "A worker that shows no sign of life for so long, in seconds, has its work taken over.",
        minimum=0.5,
        affects_result=False,
    )
    progress_s: float = opt(10.0, "A line of progress every so many seconds.", above=0, affects_result=False)


def decode(
    *,
    manifest: Path,
    plan: Path,
    shard: int,
    shards: int,
    model: Path | dict[str, Any],
    journal: Path,
    out: Path,
    options: DecodeOptions = DecodeOptions(),
) -> None:
    """Publishes the hypotheses of one shard, decoding those that the journal does not hold yet.

    A line of ``out`` is a `records.Hypothesis` without timings, with the run key as ``run``, in the plan's order.
    An utterance that cannot be decoded (unreadable, too short for one frame of output, too long for the memory on
    its own, an error of the model) gets a line with ``status`` ``failed`` and the reason, and is tried again by the
    next run. Any number of these may run at once, on the same shard too.

    Args:
        manifest: of the test set.
        plan: folder of its plan.
        shard: which, from 1.
        shards: of how many.
        model: folder of a trained model, or a block with ``_target_``.
        journal: folder of the journals of all runs.
        out: the shard's file.
        options: how.

    Raises:
        DataError: no such shard or model; recordings that were replaced since the plan (the rest is decoded).
        EnvironmentProblem: full disk; nothing fits into memory.
        Interrupted: another run of the same shard, with other options, has started since.
    """
    blocks = _shards.read_shard(plan, shard, shards)
    rows = [row for block in blocks for row in block.rows]
    described = _describe(model, journal, options)
    run = keys.run_key(described)
    results = Journal(Path(journal) / run, wanted={row.utt_id: row.item for row in rows})
    results.refresh()
    pending = {row for row in rows if not results.is_ok(row.utt_id, row.item)}
    name = f"decode {shard} of {shards}"
    # whoever started last says which run the shard's file is of
    latest = Path(journal) / "latest" / f"{Path(out).name}.json"
    write_json(latest, {"run": run})
    _say(f"{name}: {len(rows) - len(pending)} of {len(rows)} utterances are decoded already (run {run})")
    if pending:
        results.describe(described)
        unchanged = functools.partial(_check_unchanged, described, model, journal, options)
        _decode_pending(_Shard(name, manifest, plan, blocks, pending), model, results, options, unchanged)
    for problem in results.problems:
        _say(f"{name}: warning: {problem}; it was decoded again if it was needed")
    if read_json(latest)["run"] != run:
        raise Interrupted(
            f"{out}: not published, since another run of this shard, with other options or another model, has started",
            hint="what was decoded is kept for when these options are wanted again",
        )
    write_jsonl(out, _published(rows, results, run))


def _describe(model: Path | dict[str, Any], journal: Path, options: DecodeOptions) -> dict[str, Any]:
    with keys.Digests(Path(journal) / "digests.json") as digests:
        return keys.describe_run(
            model,
            {**options.to_dict(only_result=True), "search_version": SEARCH_VERSION},
            version=VERSION,
            digests=digests,
        )


def _check_unchanged(
    described: dict[str, Any], model: Path | dict[str, Any], journal: Path, options: DecodeOptions
) -> None:
    """Raises `DataError` where the model that was loaded may not be the one that the run is named after."""
    if _describe(model, journal, options) != described:
        raise DataError(
            f"{model}: changed while it was loaded", hint="give the same command again: what is decoded is kept"
        )


@dataclass(frozen=True)
class _Shard:
    name: str
    manifest: Path
    plan: Path
    blocks: list[Block]
    pending: set[Row]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _published(rows: Sequence[Row], results: Journal, run: str) -> Iterator[dict[str, Any]]:
    for row in rows:
        found = results.result(row.utt_id, row.item)
        assert found is not None, row
        record = Hypothesis.from_json(found).to_json(timings=False)
        if record.get("score") is not None:
            record["score"] = round(record["score"], _DECIMALS)
        if "nbest" in record:
            record["nbest"] = [[text, score and round(score, _DECIMALS)] for text, score in record["nbest"]]
        yield {**record, "run": run}


def _decode_pending(
    shard: _Shard,
    model: Path | dict[str, Any],
    results: Journal,
    options: DecodeOptions,
    check_unchanged: Callable[[], None],
) -> None:
    reader = ManifestReader(shard.manifest)
    hash_audio = bool(_shards.read_plan(shard.plan).get("hash_audio"))
    _check_ids(shard, reader)
    hasher = ItemHasher(hash_audio=hash_audio)
    changed = {row for row in shard.pending if hasher(reader.entries[row.utt_id]) != row.item}
    # the name of a block stays: it is what other workers know it by
    blocks = [Block(b.name, tuple(row for row in b.rows if row not in changed)) for b in shard.blocks]
    if len(changed) < len(shard.pending):
        with ExitStack() as stack:
            claims = stack.enter_context(Claims(results.folder / "claims", stale_after_s=options.stale_after_s))
            recogniser = _build(model, options, stack)
            check_unchanged()
            decoder = BatchDecoder(
                recogniser,
                reader,
                options.search,
                hash_audio=hash_audio,
                proven=results.any_ok,
                shortest=min(shard.pending - changed, key=lambda row: row.cost),
            )
            worker = BlockWorker(
                blocks,
                journal=results,
                claims=claims,
                batches=lambda rows: batches(rows, options.batch_duration_s, options.max_batch),
                prepare=decoder.load,
                work=decoder.recognise,
                claim_cost=_BATCHES_AHEAD * options.batch_duration_s,
            )
            progress = _Progress(shard, results, claims, options.progress_s)
            worker.run(progress)
            progress.finish()
    if changed:
        raise _changed(sorted(row.utt_id for row in changed), shard)


def _check_ids(shard: _Shard, reader: ManifestReader) -> None:
    unknown = sorted(row.utt_id for row in shard.pending if row.utt_id not in reader)
    if unknown:
        raise DataError(
            f"{shard.manifest}: {len(unknown)} utterances of the plan {shard.plan} are not there: {_some(unknown)}",
            hint="the plan was made for another state of the manifest: run `espnet3-rules plan` again",
        )


def _changed(ids: list[str], shard: _Shard) -> DataError:
    return DataError(
        f"{shard.name}: {len(ids)} recordings were replaced after the plan {shard.plan} was made: {_some(ids)}; "
        "the others are decoded and kept",
        hint="give the same `snakemake` command again (by hand: `espnet3-rules plan`, then decode): only these are "
        "decoded anew; with watch_audio: false add `-R prepare_split`",
    )


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:10]) + (", ..." if len(ids) > 10 else "")


def _build(model: Path | dict[str, Any], options: DecodeOptions, stack: ExitStack) -> Recogniser:
    from espnet3_rules.models.recogniser import build_recogniser

    if options.search.lm:
        load_lm(options.search.lm)  # a damaged one is no utterance's fault
    device = options.device
    if device == "auto" or options.threads is not None:
        import torch

        if options.threads is not None:
            torch.set_num_threads(options.threads)
        if device == "auto":
            from espnet3_rules.parallel.devices import lease_device

            count = torch.cuda.device_count()
            device = f"cuda:{stack.enter_context(lease_device(count))}" if count else "cpu"
    return build_recogniser(model, device)


class _Progress:
    """Lines of progress on the standard error."""

    def __init__(self, shard: _Shard, results: Journal, claims: Claims, every_s: float) -> None:
        self._shard = shard
        self._claims = claims
        self._every_s = every_s
        self._results = results
        self._start = self._last = time.monotonic()
        self._done = self._failed = 0
        self._audio_s = 0.0
        self._left_s = sum(row.cost for row in shard.pending)

    def __call__(self, step: Step) -> None:
        """Counts a step, and prints a line when it is time."""
        if step.kind == JOURNALLED:
            self._done += len(step.records)
            self._failed += sum(record["status"] == FAILED for record in step.records)
            self._audio_s += sum(record["duration_s"] for record in step.records)
        if time.monotonic() - self._last < self._every_s:
            return
        self._last = time.monotonic()
        if step.kind == WAITING:
            owners = sorted({str(owner) for name in step.blocks if (owner := self._claims.owner(name))})
            _say(f"{self._shard.name}: waiting for {len(step.blocks)} blocks held by {_some(owners) or 'nobody now'}")
        elif step.kind == JOURNALLED:
            _say(self._line())

    def _line(self) -> str:
        taken_s = time.monotonic() - self._start
        left_s = taken_s / self._audio_s * (self._left_s - self._audio_s) if self._audio_s else 0.0
        return (
            f"{self._shard.name}: {self._done} of {len(self._shard.pending)} utterances, {self._failed} failed, "
            f"{self._audio_s / taken_s:.1f} s of audio per s, about {max(left_s, 0):.0f} s left"
        )

    def finish(self) -> None:
        """The last line."""
        taken_s = time.monotonic() - self._start
        others = len(self._shard.pending) - self._done
        _say(
            f"{self._shard.name}: decoded {self._done} utterances ({self._audio_s:.1f} s of audio) in {taken_s:.1f} s, "
            f"{self._failed} failed" + (f"; {others} came from other workers" if others > 0 else "")
        )
