"""Errors that users can cause. Each says what was found, what was expected and what to do."""

from __future__ import annotations


class RulesError(Exception):
    """Base of every error a user can cause; the command line prints it without a traceback.

    Args:
        message: what was found and what was expected, naming the file and the utterance.
        hint: what to do about it; printed on a line of its own after ``HINT:``.
    """

    #: What ``espnet3-rules`` exits with.
    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nHINT: {self.hint}" if self.hint else self.message

    def __reduce__(self):  # the hint must survive the way back from a worker process
        return _rebuild, (type(self), self.message, self.hint)


def _rebuild(cls: type[RulesError], message: str, hint: str | None) -> RulesError:
    return cls(message, hint=hint)


class OptionError(RulesError):
    """A key or value of the configuration, or of a command line, that cannot be."""

    exit_code = 2


class DataError(RulesError):
    """A corpus, manifest, audio file or text that cannot be used."""

    exit_code = 3


class IncompleteError(RulesError):
    """Something is missing, double or unknown between two stages; nothing was written."""

    exit_code = 4


class GateError(RulesError):
    """The run finished, and more utterances failed than ``decode.max_failed`` allows."""

    exit_code = 5


class EnvironmentProblem(RulesError):
    """The machine or the cluster does not give what the run needs (disk, devices, processes)."""

    exit_code = 6


class Interrupted(RulesError):
    """The stage was asked to stop and saved its state; the same command continues it."""

    exit_code = 75  # EX_TEMPFAIL
