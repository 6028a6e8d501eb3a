"""Text normalisation as a chain of named, versioned steps: what tokens are trained on and what scores compare.

A step's version goes into keys and into ``tokens.json``, so that a changed step makes results stale, not silently
different.
"""

from __future__ import annotations

import functools
import importlib
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet3_rules.errors import OptionError
from espnet3_rules.options import nearest
from espnet3_rules.records import file_digest


@dataclass(frozen=True)
class Step:
    """One step of a chain. ``version`` changes whenever the function gives another text for any input."""

    name: str
    version: int | str
    function: Callable[[str], str]
    doc: str


STEPS: dict[str, Step] = {}


def _step(version: int) -> Callable[[Callable[[str], str]], Callable[[str], str]]:
    def register(function: Callable[[str], str]) -> Callable[[str], str]:
        name = function.__name__.strip("_")
        STEPS[name] = Step(name, version, function, (function.__doc__ or "").strip())
        return function

    return register


@_step(1)
def _nfkc(text: str) -> str:
    """one form for each character (Unicode NFKC): full-width letters, ligatures, composed accents, half-width kana"""
    return unicodedata.normalize("NFKC", text)


@_step(1)
def _nfc(text: str) -> str:
    """accents composed with their letters (Unicode NFC); changes nothing that can be seen"""
    return unicodedata.normalize("NFC", text)


@_step(1)
def _lower(text: str) -> str:
    """lower case"""
    return text.lower()


@_step(1)
def _upper(text: str) -> str:
    """upper case"""
    return text.upper()


@_step(1)
def _punctuation(text: str) -> str:
    """punctuation becomes a space, in any script; apostrophes between letters or digits stay, as a plain '"""
    if text.isalnum():
        return text
    # An apostrophe is part of the word (don't, l'eau); typographic ones are the same character to a listener.
    text = _APOSTROPHE.sub("'", text)
    kept = [
        " " if (c in _MARKS or unicodedata.category(c)[0] == "P") and not (c == "'" and _inside_word(text, i)) else c
        for i, c in enumerate(text)
    ]
    return "".join(kept)


@_step(1)
def _whitespace(text: str) -> str:
    """runs of white space become one space; none at the ends"""
    return " ".join(text.split())


_APOSTROPHE = re.compile("[\u2018\u2019\u02bc\uff07]")
# Unicode calls these symbols, but they stand in texts as punctuation does.
_MARKS = frozenset("`´<>|~^")


def _inside_word(text: str, index: int) -> bool:
    return 0 < index < len(text) - 1 and _of_word(text[index - 1]) and _of_word(text[index + 1])


def _of_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LMN"  # letters, marks on letters, numbers


class Normaliser:
    """A function from text to text: the steps of a chain, one after the other.

    Args:
        chain: names of steps, or dotted paths of own functions (``package.module.function``, str -> str).

    Raises:
        OptionError: no such step or function.
    """

    def __init__(self, chain: Sequence[str]) -> None:
        self.chain = tuple(chain)
        self.steps = tuple(_find(name, f"normalise[{i}]") for i, name in enumerate(self.chain))

    def __call__(self, text: str) -> str:
        """The normalised text."""
        for step in self.steps:
            text = step.function(text)
        return text

    @property
    def versions(self) -> list[list[str | int]]:
        """``[name, version]`` of each step: what belongs in a key, and in a file that depends on the chain."""
        return [[step.name, step.version] for step in self.steps]

    def __reduce__(self) -> tuple[type[Normaliser], tuple[tuple[str, ...]]]:  # own functions are found anew
        return Normaliser, (self.chain,)

    def __repr__(self) -> str:
        return f"Normaliser({list(self.chain)})"


def _find(name: str, path: str) -> Step:
    if name in STEPS:
        return STEPS[name]
    if "." in name:
        return _own(name, path)
    near = nearest(name, STEPS)
    raise OptionError(
        f"{path}: no normalisation step {name!r}",
        hint=(f"did you mean '{near}'? " if near else "")
        + f"there are {', '.join(sorted(STEPS))}, and own functions as package.module.function",
    )


@functools.cache
def _own(name: str, path: str) -> Step:
    module_name, _, function_name = name.rpartition(".")
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, function_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
        said = error if isinstance(error, ImportError | AttributeError) else repr(error)
        raise OptionError(
            f"{path}: cannot import {name!r}: {said}",
            hint="give package.module.function of a package that is installed, or put its folder on PYTHONPATH",
        ) from error
    if not callable(function):
        raise OptionError(f"{path}: {name!r} is not a function, but {function!r}")
    # We cannot know what the function depends on; its file's content is the best simple sign of a change.
    source = getattr(module, "__file__", None)
    version = file_digest(Path(source))[:16] if source else "builtin"
    return Step(name, version, function, (function.__doc__ or "").strip())
