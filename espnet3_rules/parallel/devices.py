"""Device leases: processes on one machine that nobody has given a device share them out among themselves."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from espnet3_rules.parallel.claims import Claims

#: Of schedulers that give a job devices of its own.
_SCHEDULERS = ("SLURM_JOB_ID", "PBS_JOBID", "JOB_ID", "LSB_JOBID", "OAR_JOB_ID", "MOAB_JOBID", "_CONDOR_JOB_AD")


def lease_folder() -> Path:
    """The folder of this user's leases on this machine."""
    return Path(tempfile.gettempdir()) / f"espnet3-rules-{os.getuid()}" / "devices"


@contextlib.contextmanager
def lease_device(
    count: int,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stale_after_s: float = 60.0,
    poll_s: float = 2.0,
) -> Iterator[int]:
    """The number, from 0, of a device that no other process holds a lease on; waits until one is free.

    A scheduler that bound this job to one device has done the sharing already: then it is that one, without a lease.
    Of several devices of an allocation each process leases one, under the job's name: an allocation may count its
    own from 0.

    Args:
        count: devices that this process sees.
        folder: of the leases; the machine's unless given. It must not be shared with other machines.
        environment: of the process unless given.
        stale_after_s: a holder that is frozen for so long loses its lease.
        poll_s: how often to look while waiting.
    """
    environment = os.environ if environment is None else environment
    visible = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    job = next((f"{name}={environment[name]} " for name in _SCHEDULERS if name in environment), "")
    if job and len(visible) == 1:
        yield 0
        return
    # the names that all processes of the machine agree on, whatever part of the devices each of them sees
    names = [job + (visible[i] if i < len(visible) else str(i)) for i in range(count)]
    with Claims(folder or lease_folder(), stale_after_s=stale_after_s) as claims:
        said = False
        while True:
            for number, name in enumerate(names):
                claim = claims.acquire(f"device {name}")
                if claim is not None:
                    yield number
                    return
            if not said:
                owners = {str(owner) for name in names if (owner := claims.owner(f"device {name}"))}
                print(f"waiting for a device: all {count} are leased by {'; '.join(sorted(owners))}", file=sys.stderr)
                said = True
            claims.wait_for_change([f"device {name}" for name in names], 3600, poll_s=poll_s)
