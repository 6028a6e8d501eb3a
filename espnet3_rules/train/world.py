"""A process's place among all that train together; free of Lightning, so that the others start before it is loaded."""

from __future__ import annotations

import dataclasses
import os
import threading


@dataclasses.dataclass(frozen=True)
class World:
    """One process's place among all that train together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    node_rank: int = 0
    #: Where rank 0 listens.
    address: str = "127.0.0.1"
    port: int = 0


class ParentLives:
    """Says, in a process that Lightning started, whether the one that made this still lives and watches it."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __call__(self) -> bool:
        """True as well in the process that made it."""
        return self.pid in (os.getpid(), os.getppid())


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it is gone: nobody would watch it or stop it."""
    parent = os.getppid()

    def watch() -> None:
        tick = threading.Event()
        while os.getppid() == parent:
            tick.wait(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
