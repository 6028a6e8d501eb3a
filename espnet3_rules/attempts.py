"""Batches that fail as a whole, brought down to the utterances that really cannot be decoded."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from espnet3_rules.errors import EnvironmentProblem, RulesError

In = TypeVar("In")
Out = TypeVar("Out")

#: So many different utterances that fail alone, before any was decoded, are no accident: it stops.
HOPELESS = 8


@dataclass(frozen=True)
class Failed:
    """Why one utterance could not be decoded."""

    reason: str


class Attempts(Generic[In, Out]):
    """Calls ``function`` on batches; gives a result or the reason for each element, whatever goes wrong.

    Out of memory halves the batch, down to one. Any other error repeats the batch one by one. Errors that are
    none of the utterances' fault are raised: those that name what the user has to change, and one that `HOPELESS`
    utterances meet, while not one is decoded, as with a fault in the model's code.

    Args:
        function: from a batch to one result for each of its elements.
        size: of a batch, in memory: what was too much once is halved at once the next time. None: every batch is
            tried.
        proven: whether it is known to have worked before.
        probe: the easiest element there is, asked for before it stops: what works on that is no fault of the
            function, though all of the hardest fail.
    """

    def __init__(
        self,
        function: Callable[[Sequence[In]], Sequence[Out]],
        *,
        size: Callable[[Sequence[In]], float] | None = None,
        proven: bool = False,
        probe: Callable[[], In] | None = None,
    ) -> None:
        self._function = function
        self._probe = probe
        self._size = size or (lambda batch: 0.0)
        self._too_much = float("inf")
        self._proven = proven
        self._failed_alone = 0

    def __call__(self, batch: Sequence[In]) -> list[Out | Failed]:
        """For each element its result or why there is none, in order."""
        if not batch:
            return []
        if len(batch) > 1 and self._size(batch) >= self._too_much:
            return self._halves(batch)
        try:
            results = list(self._function(batch))
            self._proven = True
            return list(results)
        except Exception as error:
            if isinstance(error, RulesError) and error.exit_code in (2, 6):  # options, environment
                raise
            memory = is_out_of_memory(error)
            if len(batch) == 1:
                return [self._alone(error, memory)]
        # outside of the handler: its error holds on to the memory of the failed attempt
        if not memory:
            return [result for element in batch for result in self([element])]
        give_memory_back()
        if self._size(batch) > 0:
            self._too_much = min(self._too_much, self._size(batch))
        return self._halves(batch)

    def _halves(self, batch: Sequence[In]) -> list[Out | Failed]:
        half = (len(batch) + 1) // 2
        return [*self(batch[:half]), *self(batch[half:])]

    def _alone(self, error: Exception, memory: bool) -> Failed:
        self._failed_alone += 1
        if self._failed_alone == HOPELESS and not self._proven:
            self._proven = self._works_on_the_easiest()
        if not self._proven and self._failed_alone >= HOPELESS:
            if memory:
                raise EnvironmentProblem(
                    f"out of memory on each of the first {HOPELESS} utterances, one by one: {first_line(error)}",
                    hint="see whether another process uses the device; else it needs more memory, or a smaller model",
                ) from error
            error.add_note(f"Stopped: each of the first {HOPELESS} utterances fails, decoded one by one.")
            raise error
        return Failed("out of memory, decoded on its own" if memory else first_line(error))

    def _works_on_the_easiest(self) -> bool:
        if self._probe is None:
            return False
        with contextlib.suppress(Exception):
            self._function([self._probe()])
            return True
        return False


def first_line(error: BaseException) -> str:
    """An error in one line, for a table of failures."""
    text = error.message if isinstance(error, RulesError) else str(error)
    line = " ".join(text.split("\n")[0].split())
    return line if isinstance(error, RulesError) else f"{type(error).__name__}: {line}".rstrip(": ")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory of the host or of a device ran out, in any of the ways of saying it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        words in text for words in ("out of memory", "can't allocate memory", "cannot allocate memory")
    )


def give_memory_back() -> None:
    """Frees what a failed attempt left behind on a device."""
    torch = sys.modules.get("torch")
    if torch is not None:
        with contextlib.suppress(RuntimeError, AssertionError):
            torch.cuda.empty_cache()
