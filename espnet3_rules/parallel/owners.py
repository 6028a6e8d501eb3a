"""Processes as owners: told apart across hosts, reboots, containers and numbers that are used again."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import socket
import time
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Owner:
    """A process that holds claims, told apart from a later one with the same number."""

    host: str
    pid: int
    #: Start of the process in clock ticks since the boot; a number that is used again has another.
    started: str | None = None
    boot: str | None = None
    #: The namespace that the process number belongs to: containers count their own.
    pid_space: str | None = None
    slurm_job: str | None = None
    since: str = ""

    @classmethod
    def this_process(cls) -> Owner:
        """The process that runs this."""
        job, task = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_PROCID")
        return cls(
            host=_here()[0],
            pid=os.getpid(),
            started=process_started(os.getpid()),
            boot=_here()[1],
            pid_space=_here()[2],
            slurm_job=f"{job}.{task}" if job and task else job,
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
        )

    def __str__(self) -> str:
        job = f", SLURM job {self.slurm_job}" if self.slurm_job else ""
        return f"host {self.host}, pid {self.pid}{job}, since {self.since}"


@functools.cache
def _here() -> tuple[str, str | None, str | None]:
    """Host, boot and process namespace: what two processes must share for one to see whether the other lives."""
    boot = space = None
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with contextlib.suppress(OSError):
        space = str(Path("/proc/self/ns/pid").readlink())
    return socket.gethostname(), boot, space


def process_started(pid: int) -> str | None:
    """When process ``pid`` started, in clock ticks since the boot; None where there is none, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return None if fields[0] in "ZX" else fields[19]


def process_is_gone(owner: Owner) -> bool:
    """True where it can be seen from here that the owner's process is no more; False where that is not known."""
    if owner.started is None or owner.boot is None or (owner.host, owner.boot, owner.pid_space) != _here():
        return False
    return process_started(owner.pid) != owner.started
