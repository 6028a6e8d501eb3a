"""One attempt at a run: tokens, the ranks, and the export; whatever an earlier attempt has left is taken up."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from espnet3_rules.errors import EnvironmentProblem, Interrupted, RulesError
from espnet3_rules.records import write_json
from espnet3_rules.train.console import say
from espnet3_rules.train.failures import raise_recorded, record_failure
from espnet3_rules.train.fit import Job, fit, starts_its_own_ranks
from espnet3_rules.train.options import TrainOptions
from espnet3_rules.train.run_folder import RunFolder
from espnet3_rules.train.world import ParentLives, World, end_with_parent

#: How long rank 0 has to notice by itself that another rank is gone, in seconds. A GPU's collective may wait for
#: ever.
_GRACE_S = 20.0


def run_attempt(
    run: RunFolder, train: Sequence[str], valid: Sequence[str], options: TrainOptions, owned: Callable[[], bool]
) -> list[int]:
    """Trains from the last saved state to the end, exports, and returns the steps whose weights were averaged."""
    if options.num_nodes > 1:
        raise EnvironmentProblem(
            f"num_nodes: {options.num_nodes}, and this command was started on one machine",
            hint="set num_nodes: 1",
        )
    if not (run.tokens / "tokens.json").exists():
        _make_tokens(run, train, options)
    state = run.newest_state(warn=lambda line: say(f"WARNING: {line}"))
    if state is None or not state.record["finished"]:
        job = Job(
            options=options,
            train=tuple(train),
            valid=tuple(valid),
            run=str(run.path),
            attempt=run.new_attempt(),
            state=str(state.path) if state else None,
            step=state.record["step"] if state else 0,
        )
        _fit_all_ranks(job, owned)
    from espnet3_rules.train.export import export_average

    return export_average(run, options)


def _make_tokens(run: RunFolder, train: Sequence[str], options: TrainOptions) -> None:
    from espnet3_rules.manifest import read_texts
    from espnet3_rules.tokens import train_tokens

    train_tokens((text for path in train for text in read_texts(path).values()), options.tokens).save(run.tokens)


def _fit_all_ranks(job: Job, owned: Callable[[], bool]) -> None:
    """Trains as rank 0 in this process, with the other ranks as its children."""
    run, options = RunFolder(job.run), job.options
    failures = run.path / "failures"
    for old in failures.glob("*.json"):
        old.unlink()
    if starts_its_own_ranks(options):
        _fit_spawning(job, failures)
        return
    size = options.num_device
    world = World(size=size, port=_free_port() if size > 1 else 0)
    children = Children(job, world) if size > 1 else None
    try:
        fit(job, world, owned)
    except BaseException as error:
        if children:
            children.explain(failures, error)
        raise
    finally:
        if children:
            children.end()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Children:
    """The other ranks of this node: started, watched, and ended."""

    def __init__(self, job: Job, world: World) -> None:
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        spec = Path(job.run) / "job.json"
        write_json(spec, {"job": job.to_dict(), "address": world.address, "port": world.port, "size": world.size})
        for rank in range(1, world.size):
            # the path as it is here: a config may name classes that only this process's script can import
            code = f"import sys; sys.path[:] = {sys.path!r}; from espnet3_rules.train.driver import child; "
            code += f"sys.exit(child({str(spec)!r}, {rank}))"
            self.processes[rank] = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def _dead(self) -> dict[int, int]:
        """Exit codes of ranks that failed; below 0 for those that a signal ended."""
        codes = {rank: process.poll() for rank, process in self.processes.items()}
        return {rank: code for rank, code in codes.items() if code not in (None, 0, Interrupted.exit_code)}

    def _watch(self) -> None:
        """Ends this process where a rank died and the collective that waits for it does not notice."""
        since = None
        while not self._ended.wait(0.5):
            if since is None and self._dead():
                since = time.monotonic()
            if since is not None and time.monotonic() - since > _GRACE_S:
                for rank, code in self._dead().items():
                    say(f"ERROR: rank {rank} ended with {_code(code)}, and this one waits for it: giving up")
                self._kill()
                os._exit(EnvironmentProblem.exit_code)

    def explain(self, failures: Path, error: BaseException) -> None:
        """Raises what another rank failed of, where that is why this one failed."""
        if isinstance(error, RulesError):
            return
        end = time.monotonic() + 2.0
        while not self._dead() and time.monotonic() < end:
            time.sleep(0.05)
        for rank, code in self._dead().items():
            raise_recorded(failures)
            raise EnvironmentProblem(
                f"rank {rank} of {len(self.processes) + 1} ended with {_code(code)}",
                hint="the same command continues from the last saved state",
            ) from error

    def end(self) -> None:
        """Waits for the ranks, and kills those that do not end."""
        self._ended.set()
        end = time.monotonic() + 5.0
        while any(p.poll() is None for p in self.processes.values()) and time.monotonic() < end:
            time.sleep(0.02)
        self._kill()

    def _kill(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()


def _code(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"


def child(spec: str, rank: int) -> int:
    """What a rank other than 0 exits with; it leaves the reason where it fails."""
    end_with_parent()
    given = json.loads(Path(spec).read_text(encoding="utf-8"))
    job = Job.from_dict(given["job"])
    world = World(rank=rank, local_rank=rank, size=given["size"], address=given["address"], port=given["port"])
    try:
        fit(job, world, lambda: True)
    except Interrupted:
        return Interrupted.exit_code
    except BaseException as error:
        record_failure(Path(job.run) / "failures" / f"{rank}.json", error)
        # no shutdown handlers: they would wait for the other ranks
        os._exit(1)
    return 0


def _fit_spawning(job: Job, failures: Path) -> None:
    """Trains with a strategy that starts its processes itself, and passes signals and errors on to and from them."""
    import multiprocessing

    from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

    from espnet3_rules.train.ranks import StopRequest

    def pass_on(number: int, _frame: object) -> None:
        for process in multiprocessing.active_children():
            if process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, pass_on) for number in StopRequest.SIGNALS} if main else {}
    try:
        fit(job, World(size=job.options.num_device), ParentLives())
    except (ProcessRaisedException, ProcessExitedException) as error:
        raise_recorded(failures)
        raise EnvironmentProblem(
            f"a rank died: {error}", hint="the same command continues from the last saved state"
        ) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
