"""Word, character and sentence errors of one test set; counts are added, rates divided last.

How an utterance's errors are counted, `espnet3_rules.alignment` says.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from espnet3_rules.alignment import ErrorCounts, align, count_errors
from espnet3_rules.errors import DataError, IncompleteError
from espnet3_rules.manifest import read_texts
from espnet3_rules.normalise import Normaliser
from espnet3_rules.options import Options, opt
from espnet3_rules.records import FAILED, Hypothesis, read_json, read_jsonl, write_aside, write_json

VERSION = 1

#: Alignments of the worst utterances are written out up to so many cells of `align`'s table (4 bytes each).
_ALIGNED_CELLS = 250_000


@dataclass(frozen=True)
class ScoreOptions(Options):
    """What is compared: both texts pass the same normalisation."""

    normalise: tuple[str, ...] = opt(
        ("nfkc", "whitespace"),
        "normalisation of references and hypotheses, in order: names, or own functions as package.module.function",
    )
    worst: int = opt(20, "how many of the utterances with most word errors to list in scores.json", minimum=0)

    def check(self) -> None:
        """The steps must exist."""
        Normaliser(self.normalise)


class ScoredUtterance(NamedTuple):
    """One utterance's normalised texts (not as lists of words: a million utterances must fit) and its errors."""

    utt_id: str
    reference: str
    hypothesis: str
    words: ErrorCounts
    characters: ErrorCounts
    failed: bool


def score(
    *,
    manifest: Path | str,
    hypotheses: Path | str,
    out: Path | str,
    options: ScoreOptions,
    system: str = "",
    decoder: str = "",
    test_set: str = "",
) -> dict[str, Any]:
    """Publishes ``out`` (scores.json) and beside it ``ref.trn`` and ``hyp.trn``; returns what scores.json holds.

    Failed utterances count as deletions of all their words. Characters are those of the words, without spaces, as
    ``sclite -c`` takes them.

    Args:
        manifest: the test set, for the references.
        hypotheses: the merged hypotheses; ``failed.tsv`` lies beside them.
        out: where scores.json goes.
        options: see `ScoreOptions`.
        system: name of the recogniser, for the table of results.
        decoder: name of the decoder.
        test_set: name of the test set.

    Raises:
        IncompleteError: hypotheses are missing, double, or of utterances that the manifest does not have; nothing
            was written.
        DataError: a file is missing or damaged.
    """
    out, hypotheses = Path(out), Path(hypotheses)
    references = read_texts(manifest)
    found = _by_id(hypotheses, references, manifest)
    scored = list(_utterances(references, found, Normaliser(options.normalise)))
    failed = [one.utt_id for one in scored if one.failed]
    with_errors = sum(one.words.errors > 0 for one in scored)
    result = {
        "version": VERSION,
        "system": system,
        "decoder": decoder,
        "test_set": test_set,
        "normalise": Normaliser(options.normalise).versions,
        "words": sum((one.words for one in scored), ErrorCounts()).to_json(),
        "characters": sum((one.characters for one in scored), ErrorCounts()).to_json(),
        "sentences": {
            "errors": with_errors,
            "reference": len(scored),
            "rate": with_errors / len(scored) if scored else None,
        },
        "failed": {"count": len(failed), "first": failed[:20], "list": str(hypotheses.with_name("failed.tsv"))},
        "coverage": 1 - len(failed) / len(scored) if scored else None,
        "worst": [_worst(one) for one in _most_errors(scored, options.worst)],
    }
    _write_trn(out.with_name("ref.trn"), ((one.reference, one.utt_id) for one in scored))
    _write_trn(out.with_name("hyp.trn"), ((one.hypothesis, one.utt_id) for one in scored))
    write_json(out, result)
    return result


def read_scores(path: Path | str) -> dict[str, Any]:
    """What `score` published as ``path``.

    Raises:
        DataError: the file is missing, or is none of this version's.
    """
    result = read_json(path, made_by="score")
    again = "delete it and give the same command again: the scores are made anew"
    if not isinstance(result, dict) or result.get("version") != VERSION:
        raise DataError(f"{path}: not a scores file of version {VERSION}", hint=again)
    for name, fits in _NEEDED.items():
        value: Any = result
        for key in name.split("."):
            if not isinstance(value, dict) or key not in value:
                raise DataError(f"{path}: a damaged scores file: no {name}", hint=again)
            value = value[key]
        if not fits(value):
            raise DataError(f"{path}: a damaged scores file: {name} is {value!r:.80}", hint=again)
    return result


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_rate(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


#: What report and gate need of a scores file: each value, by its keys, and what it must be.
_NEEDED: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("system", "decoder", "test_set", "failed.list"), _is_text),
    **{
        f"{unit}.{name}": _is_count
        for unit in ("words", "characters")
        for name in ("substitutions", "deletions", "insertions", "reference")
    },
    **dict.fromkeys(("sentences.reference", "sentences.errors", "failed.count"), _is_count),
    **dict.fromkeys(("words.rate", "characters.rate", "coverage"), _is_rate),
    "failed.first": _are_texts,
}


def _by_id(path: Path, references: dict[str, str], manifest: Path | str) -> dict[str, Hypothesis]:
    """The hypotheses by id; exactly one for each reference, or an error that names the ids."""
    found: dict[str, Hypothesis] = {}
    double, unknown = [], []
    for number, record in enumerate(read_jsonl(path, made_by="merge"), 1):
        one = Hypothesis.from_json(record, source=f"{path}, line {number}")
        if one.utt_id in found:
            double.append(one.utt_id)
        elif one.utt_id not in references:
            unknown.append(one.utt_id)
        found[one.utt_id] = one
    missing = [utt_id for utt_id in references if utt_id not in found]
    problems = [
        f"{len(ids)} {what}: {', '.join(ids[:10])}{', ...' if len(ids) > 10 else ''}"
        for what, ids in (("missing", missing), ("unknown", unknown), ("double", double))
        if ids
    ]
    if problems:
        raise IncompleteError(
            f"{path}: not one hypothesis for each of the {len(references)} utterances of {manifest}: "
            + "; ".join(problems),
            hint="merge the shards again; if the manifest has changed since, plan and decode first",
        )
    return found


def _utterances(
    references: dict[str, str], found: dict[str, Hypothesis], normaliser: Normaliser
) -> Iterator[ScoredUtterance]:
    for utt_id, text in references.items():
        one = found[utt_id]
        failed = one.status == FAILED
        reference = normaliser(text).split()
        hypothesis = [] if failed else normaliser(one.text).split()
        words = count_errors(reference, hypothesis)
        characters = count_errors("".join(reference), "".join(hypothesis))
        yield ScoredUtterance(utt_id, " ".join(reference), " ".join(hypothesis), words, characters, failed)


def _most_errors(scored: Iterable[ScoredUtterance], number: int) -> list[ScoredUtterance]:
    """Those with most word errors, most first, equals in the manifest's order; none without an error."""
    wrong = (one for one in scored if one.words.errors)
    return heapq.nsmallest(number, wrong, key=lambda one: -one.words.errors)


def _worst(one: ScoredUtterance) -> dict[str, Any]:
    reference, hypothesis = one.reference.split(), one.hypothesis.split()
    short = (len(reference) + 1) * (len(hypothesis) + 1) <= _ALIGNED_CELLS
    return {
        "utt_id": one.utt_id,
        "reference": one.reference,
        "hypothesis": one.hypothesis,
        "failed": one.failed,
        "words": one.words.to_json(),
        "alignment": [list(pair) for pair in align(reference, hypothesis)] if short else None,
    }


def _write_trn(path: Path, lines: Iterable[tuple[str, str]]) -> None:
    """sclite's transcript format: ``words (utt_id)``."""
    with write_aside(path) as stream:
        stream.writelines(f"{text} ({trn_id(utt_id)})\n".lstrip(" ") for text, utt_id in lines)


def trn_id(utt_id: str) -> str:
    """The id as a trn file can hold it: brackets, which end an id there, written as %28 and %29 (and % as %25)."""
    return utt_id.replace("%", "%25").replace("(", "%28").replace(")", "%29")
