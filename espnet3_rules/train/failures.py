"""How an error gets from one rank to the process that started it."""

from __future__ import annotations

import json
import time
import traceback
from pathlib import Path

from espnet3_rules import errors
from espnet3_rules.errors import EnvironmentProblem, RulesError
from espnet3_rules.records import write_json


def record_failure(path: Path, error: BaseException) -> None:
    """Writes an error down for the process that started this one."""
    known = isinstance(error, RulesError)
    write_json(
        path,
        {
            "kind": type(error).__name__,
            "known": known,
            "time": time.time(),
            "message": error.message if isinstance(error, RulesError) else str(error),
            "hint": error.hint if isinstance(error, RulesError) else None,
            "traceback": "".join(traceback.format_exception(error)),
        },
    )


def raise_recorded(folder: Path) -> None:
    """Raises what a rank has written down, if one has; rather a user's error than what it caused in other ranks."""
    records = {int(path.stem): json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    # where one rank is gone, the connection of the others breaks a moment later
    for rank, record in sorted(records.items(), key=lambda item: (not item[1]["known"], item[1]["time"])):
        if record["known"]:
            raise getattr(errors, record["kind"])(record["message"], hint=record["hint"])
        raise EnvironmentProblem(f"rank {rank} failed:\n{record['traceback'].rstrip()}")
