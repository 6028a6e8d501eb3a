"""The processes that train together: how they find each other, what they agree on, and who ends with whom."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Any

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment

from espnet3_rules.train.world import World


class WorldEnvironment(ClusterEnvironment):
    """Tells Lightning the place that we gave a process, whatever the process environment looks like.

    Lightning would believe that a job wrapped in ``srun -n1`` is a SLURM world of one, and it would start further
    ranks by running the caller's own command line again.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    @property
    def creates_processes_externally(self) -> bool:
        """The stage starts the ranks."""
        return True

    @property
    def main_address(self) -> str:
        """Where rank 0 listens."""
        return self.world.address

    @property
    def main_port(self) -> int:
        """The port there."""
        return self.world.port

    @staticmethod
    def detect() -> bool:
        """Never found: always given."""
        return False

    def world_size(self) -> int:
        """Number of processes."""
        return self.world.size

    def set_world_size(self, size: int) -> None:
        """Known already."""

    def global_rank(self) -> int:
        """Rank among all."""
        return self.world.rank

    def set_global_rank(self, rank: int) -> None:
        """Known already."""

    def local_rank(self) -> int:
        """Rank on this node."""
        return self.world.local_rank

    def node_rank(self) -> int:
        """Number of the node."""
        return self.world.node_rank


class Agreement:
    """Sums over all ranks, through a channel on the CPU, so that no GPU has to be waited for."""

    def __init__(self) -> None:
        self._group: Any = None

    def start(self, world_size: int) -> None:
        """Opens the channel; all ranks call it at the same point."""
        if world_size > 1:
            import torch.distributed

            self._group = torch.distributed.new_group(backend="gloo")

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums of each value over all ranks; all ranks call it at the same point."""
        if self._group is None:
            return list(values)
        import torch

        tensor = torch.tensor(values, dtype=torch.float64)
        torch.distributed.all_reduce(tensor, group=self._group)
        return tensor.tolist()


class StopRequest:
    """Whether this process was asked to stop: signals set a flag, and nothing else happens in their handler.

    Lightning's own handler broadcasts from inside, which leaves ranks waiting for each other for ever. A second
    Ctrl-C does not wait for the step to end.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.signal: int | None = None

    def install(self) -> None:
        """Puts the handlers in place; to be called after Lightning's, which puts the former ones back at its end."""
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    def __bool__(self) -> bool:
        return self.signal is not None

    @property
    def name(self) -> str:
        """What asked for it, for the message."""
        return signal.Signals(self.signal).name if self.signal is not None else "another rank"
