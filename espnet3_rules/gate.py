"""The last stage: a run in which too many utterances failed does not pass, though its scores are there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3_rules.errors import GateError, OptionError
from espnet3_rules.options import Options, opt
from espnet3_rules.records import write_json
from espnet3_rules.score import read_scores

VERSION = 1
#: Beside a scores.json that did not pass. The workflow takes it as an input of decoding, so that the same command
#: tries the failed utterances again, and only those: the others are in the journal.
RETRY = "retry.json"


@dataclass(frozen=True)
class GateOptions(Options):
    """How many utterances may fail."""

    max_failed: int | float = opt(
        0,
        "how many utterances of a test set may fail: a whole number is a count, one with a point a share (0.01 is 1 %)",
        minimum=0,
        affects_result=False,
    )

    def check(self) -> None:
        """A share is at most one."""
        if isinstance(self.max_failed, float) and self.max_failed > 1:
            raise OptionError(
                f"max_failed: a share of {self.max_failed} is more than all",
                hint=f"write {self.max_failed:.0f} for a number of utterances",
            )

    def allowed(self, utterances: int) -> float:
        """How many of so many utterances may fail."""
        return self.max_failed * utterances if isinstance(self.max_failed, float) else self.max_failed


def gate(*, scores: list[Path], out: Path, options: GateOptions) -> None:
    """Publishes ``out``, a record of what passed, if no test set has more failed utterances than allowed.

    Args:
        scores: the scores.json of each system, decoder and test set.
        out: the record; taken away where the run does not pass.
        options: see `GateOptions`.

    Raises:
        GateError: names each test set that has too many, its first failed utterances, and where all are listed.
        DataError: a scores file is missing or damaged.
    """
    results = [read_scores(path) for path in scores]
    refused = [one for one in results if one["failed"]["count"] > options.allowed(one["sentences"]["reference"])]
    if refused:
        Path(out).unlink(missing_ok=True)
        for path, one in zip(scores, results, strict=True):
            if one in refused:
                write_json(Path(path).with_name(RETRY), {"failed": one["failed"]["count"], "at": time.time()})
        raise GateError(
            f"more utterances failed than max_failed: {options.max_failed} allows\n" + "\n".join(map(_told, refused)),
            hint="the lists say why each failed; the same command tries them again, and decode.max_failed allows more",
        )
    passed = [
        {
            **{key: one[key] for key in ("system", "decoder", "test_set")},
            "failed": one["failed"]["count"],
            "utterances": one["sentences"]["reference"],
        }
        for one in results
    ]
    write_json(out, {"max_failed": options.max_failed, "passed": passed})


def _told(one: dict[str, Any]) -> str:
    name = " / ".join(filter(None, (one["system"], one["decoder"], one["test_set"]))) or "test set"
    failed, first = one["failed"], one["failed"]["first"][:5]
    more = ", ..." if failed["count"] > len(first) else ""
    return (
        f"  {name}: {failed['count']} of {one['sentences']['reference']} failed: {', '.join(first)}{more}"
        f" (all in {failed['list']})"
    )
