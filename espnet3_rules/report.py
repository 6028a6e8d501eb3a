"""The table of results: one row for each system, decoder and test set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3_rules.records import write_aside
from espnet3_rules.score import read_scores

if TYPE_CHECKING:
    import pandas as pd

VERSION = 1

_NOTE = """
WER and CER are word and character errors per reference word and character (without spaces), counted as NIST's sclite
counts them; S, D, I: substituted, deleted and inserted words of N. Failed utterances count as deletions of all their
words; coverage is the share of utterances that were decoded.
"""


def report(*, scores: list[Path], out: Path) -> str:
    """Publishes ``out`` (Markdown) and the same as ``.csv`` beside it; prints the table and returns it.

    Rows stand in the order of ``scores``. Rates are percentages in the table, and fractions in the CSV file.

    Args:
        scores: the scores.json of each system, decoder and test set.
        out: such as ``exp/results.md``.

    Raises:
        DataError: a scores file is missing or damaged.
    """
    rows = [read_scores(path) for path in scores]
    import pandas as pd

    frame = pd.DataFrame([_row(row) for row in rows], columns=list(_row(_EMPTY)))
    table = _table(frame)
    with write_aside(out) as stream:
        stream.write(f"# Results\n\n{table}\n{_NOTE}{_failed_lists(rows)}")
    with write_aside(Path(out).with_suffix(".csv")) as stream:
        frame.to_csv(stream, index=False, lineterminator="\n")
    print(table)
    return table


_NOTHING = {"substitutions": 0, "deletions": 0, "insertions": 0, "reference": 0, "errors": 0, "rate": None}
_EMPTY: dict[str, Any] = {
    **dict.fromkeys(("system", "decoder", "test_set"), ""),
    **dict.fromkeys(("words", "characters", "sentences"), _NOTHING),
    "failed": {"count": 0},
    "coverage": None,
}


def _row(scores: dict[str, Any]) -> dict[str, Any]:
    """The columns of the CSV file."""
    words, characters, sentences = scores["words"], scores["characters"], scores["sentences"]
    return {
        "system": scores["system"],
        "decoder": scores["decoder"],
        "test_set": scores["test_set"],
        "wer": words["rate"],
        "cer": characters["rate"],
        "substitutions": words["substitutions"],
        "deletions": words["deletions"],
        "insertions": words["insertions"],
        "words": words["reference"],
        "sentences": sentences["reference"],
        "sentence_errors": sentences["errors"],
        "failed": scores["failed"]["count"],
        "coverage": scores["coverage"],
    }


_TITLES = {
    "system": "system", "decoder": "decoder", "test_set": "test set", "wer": "WER %", "cer": "CER %",
    "substitutions": "S", "deletions": "D", "insertions": "I", "words": "N", "sentences": "sentences",
    "sentence_errors": "errors", "failed": "failed", "coverage": "coverage %",
}  # fmt: skip


def _table(frame: pd.DataFrame) -> str:
    shown = frame.astype(object)
    for name in ("wer", "cer", "coverage"):
        shown[name] = ["-" if rate is None or rate != rate else f"{100 * rate:.2f}" for rate in frame[name]]
    for name in ("system", "decoder", "test_set"):
        shown[name] = [str(value).replace("|", "\\|") for value in frame[name]]
    align = ["left" if name in ("system", "decoder", "test_set") else "right" for name in _TITLES]
    # Without disable_numparse 2.50 would lose its last figure.
    return shown.rename(columns=_TITLES).to_markdown(index=False, colalign=align, disable_numparse=True)


def _failed_lists(rows: list[dict[str, Any]]) -> str:
    failed = [row for row in rows if row["failed"]["count"]]
    lines = [f"- {row['failed']['count']} failed, with reasons: `{row['failed']['list']}`\n" for row in failed]
    return "\n" + "".join(lines) if lines else ""
