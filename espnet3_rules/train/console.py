"""What the stage says while it runs."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Prints a line where logs are expected, at once."""
    print(line, file=sys.stderr, flush=True)
