"""The prepare stage: a corpus becomes a manifest of cuts, on all cores."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from espnet3_rules import corpora
from espnet3_rules.errors import DataError, EnvironmentProblem, OptionError
from espnet3_rules.manifest import Stamp, changed_audio, index_path, stamp_of, write_manifest
from espnet3_rules.options import Options, nearest, opt
from espnet3_rules.records import canonical_json, write_aside

#: Of what this stage writes: raised where the same corpus gives another manifest.
VERSION = 1

A = TypeVar("A")
B = TypeVar("B")


@dataclasses.dataclass(frozen=True)
class PrepareOptions(Options):
    """How a corpus is prepared."""

    workers: int | None = opt(
        None, "processes that synthesise, run pipes and read audio headers; all cores if not given",
        minimum=1, affects_result=False,
    )  # fmt: skip


def prepare(
    *,
    corpus: dict[str, Any] | Options,
    split: str,
    out: Path,
    audio_dir: Path,
    options: PrepareOptions = PrepareOptions(),
) -> None:
    """Publishes a split's manifest and its index.

    Texts are written as the corpus has them: normalising is up to tokens and score. Files whose content would be
    the same are left untouched.

    Args:
        corpus: the corpus's ``type`` and options, and ``seed`` for what is random; or its options.
        split: one of the corpus's splits.
        out: the manifest, ``<split>.jsonl.gz``.
        audio_dir: where audio goes that the corpus makes itself.
        options: how.

    Raises:
        OptionError: an option or split that cannot be.
        DataError: what is wrong with the corpus, all of it; or that it was changed meanwhile.
        EnvironmentProblem: a full disk, or a process that died.
    """
    seed = 0
    if isinstance(corpus, Options):
        chosen: Any = corpus
    else:
        values = dict(corpus)
        seed = values.pop("seed", 0)
        chosen = corpora.corpus_options(values.get("type", ""), values, "corpus")
    if split not in chosen.splits:
        near = nearest(split, chosen.splits)
        raise OptionError(
            f"split: the corpus has no {split!r}",
            hint=f"{f'did you mean {near!r}? ' if near else ''}there are: {', '.join(chosen.splits)}",
        )
    module = importlib.import_module(type(chosen).__module__)
    with process_map(options.workers) as parallel_map:
        # absolute, because the manifest is read from other folders and on other nodes
        work = corpora.Work(audio_dir=Path(audio_dir).absolute(), parallel_map=parallel_map, seed=seed)
        before = _stamps(chosen, split)
        count = write_manifest(out, _while_unchanged(module.cuts(chosen, split, work), chosen, split, before))
    try:
        _check_unchanged(chosen, split, before)
    except DataError:
        for path in (Path(out), index_path(out)):
            path.unlink(missing_ok=True)
        raise
    print(f"{out}: {count} utterances")


def _stamps(corpus: Any, split: str) -> dict[str, Stamp]:
    return {str(path): stamp_of(str(path)) for path in corpus.sources(split)}


def _check_unchanged(corpus: Any, split: str, before: dict[str, Stamp]) -> None:
    """An error where a file of the corpus changed: the manifest, newer than the file, would never be made anew."""
    after = _stamps(corpus, split)
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    if changed:
        more = f" and {len(changed) - 10} more" if len(changed) > 10 else ""
        raise DataError(
            f"changed while {split!r} was prepared from it: {', '.join(changed[:10])}{more}",
            hint="give the same command again",
        )


def _while_unchanged(cuts: Iterator[A], corpus: Any, split: str, before: dict[str, Stamp]) -> Iterator[A]:
    """The cuts, and an error in place of their end where a file of the corpus changed: nothing is published then."""
    yield from cuts
    _check_unchanged(corpus, split, before)


def available_cores() -> int:
    """The cores that this process may use, which on a cluster are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def process_map(workers: int | None = None) -> Iterator[corpora.ParallelMap]:
    """A ``map`` over processes (as many as there are cores, if not said) that start when they are first needed.

    They are spawned, not forked: the calling process may have torch's threads, and a fork of those can hang.
    """
    workers = workers or available_cores()
    with contextlib.ExitStack() as stack:
        started: list[ProcessPoolExecutor] = []

        def parallel_map(function: Callable[[A], B], items: Iterable[A], /) -> Iterator[B]:
            items = list(items)
            if workers == 1 or len(items) <= 1:
                return map(function, items)
            if not started:
                context = multiprocessing.get_context("spawn")
                pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)
                # on an error, what has not begun does not begin
                stack.callback(pool.shutdown, cancel_futures=True)
                started.append(pool)
            # chunks: few enough messages for quick items, small enough that no worker ends long after the others
            chunk = max(1, min(64, len(items) // (workers * 8)))
            return _results(started[0].map(function, items, chunksize=chunk))

        yield parallel_map


def _results(results: Iterator[B]) -> Iterator[B]:
    try:
        yield from results
    except BrokenProcessPool as error:
        raise EnvironmentProblem(
            "a worker process of prepare died, most likely killed for lack of memory",
            hint="give the same command again with fewer workers: what is done is kept",
        ) from error


def _end_with_parent() -> None:
    """Workers end with the process that started them, even if that was killed: they would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent:

        def wait() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=wait, daemon=True).start()


def change_mark(manifest: Path | str) -> Path:
    """The file that says which recordings of a manifest were replaced; the workflow takes it as an input.

    There is none until the first is replaced; it then stays, since a rule whose inputs go would rerun.
    """
    return Path(manifest).with_name(Path(manifest).name.removesuffix(".gz").removesuffix(".jsonl") + ".changed")


def mark_changed_audio(manifest: Path | str) -> list[str]:
    """The recordings that were replaced since the manifest was made; noted in its mark, if there are any.

    The note has their sizes and times, since Snakemake goes by a small file's content and not by its mtime alone.
    """
    changed = changed_audio(manifest)
    if changed:
        note = canonical_json({name: stamp_of(name) for name in changed}) + "\n"
        mark = change_mark(manifest)
        if not mark.exists() or mark.read_text(encoding="utf-8") != note:
            with write_aside(mark) as stream:
                stream.write(note)
    return changed
