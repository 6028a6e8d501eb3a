"""Commands that give audio (Kaldi's pipes, lhotse's ``command`` sources): run once, their output kept as a file.

Run at each reading instead, a pipe would cost its time in every epoch, on every node, and could never be read from
its middle.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from espnet3_rules.corpora import Work
from espnet3_rules.corpora.audio import Header, probe
from espnet3_rules.errors import EnvironmentProblem
from espnet3_rules.records import disk_errors

_LEAST_SPACE = 1 << 20


class Stored(NamedTuple):
    """Where a command's output lies, or would lie, and why it does not."""

    path: str
    problem: str | None


def store_commands(commands: Iterable[str], work: Work, folder: Path) -> dict[str, Stored]:
    """What became of each command, run in ``folder`` on all cores; those whose output is there are not run again.

    The file's name comes from command and folder: to run a command again, delete its file.

    Raises:
        EnvironmentProblem: the disk is full.
    """
    unique = list(dict.fromkeys(commands))
    if not unique:
        return {}
    work.audio_dir.mkdir(parents=True, exist_ok=True)
    run = functools.partial(_store, audio_dir=work.audio_dir.absolute(), folder=folder.absolute())
    return dict(zip(unique, work.parallel_map(run, unique), strict=True))


def _store(command: str, audio_dir: Path, folder: Path) -> Stored:
    name = hashlib.sha256(f"{folder}\n{command}".encode()).hexdigest()[:24]
    # libsndfile goes by the content, whatever the ending
    target = audio_dir / f"pipe-{name}.wav"
    if target.is_file():
        return Stored(str(target), None)
    aside = audio_dir / f".pipe-{name}.{uuid.uuid4().hex[:12]}.tmp"
    try:
        with disk_errors(target), aside.open("wb") as output:
            done = subprocess.run(
                # without pipefail the failure of all but the last command would go unseen
                ["bash", "-o", "pipefail", "-c", command],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, cwd=folder, check=False,
            )  # fmt: skip
            os.fsync(output.fileno())
        if done.returncode:
            _check_space(target)
            said = done.stderr.decode(errors="replace").strip().splitlines()
            return Stored(str(target), _failed(command, f"exit status {done.returncode}", said[-1] if said else ""))
        header = probe(str(aside))
        if not isinstance(header, Header):
            return Stored(str(target), _failed(command, "its output", f"is {header}"))
        aside.replace(target)
        return Stored(str(target), None)
    finally:
        aside.unlink(missing_ok=True)


def _failed(command: str, what: str, said: str) -> str:
    return f"the command {command!r} failed: {what}{': ' if what.startswith('exit') and said else ' '}{said}".rstrip()


def _check_space(target: Path) -> None:
    """A full disk is no fault of one recording: every further command would fail as well."""
    if shutil.disk_usage(target.parent).free < _LEAST_SPACE:
        raise EnvironmentProblem(
            f"{target}: no space left on device",
            hint="make room (or choose another folder) and give the same command again: what is done is kept",
        )
