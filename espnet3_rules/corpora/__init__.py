"""One module per corpus and format: audio and transcripts become Lhotse cuts.

Each module has a frozen ``Options`` whose ``splits`` names what it can give (a property, or a block whose keys
are the names), and ``cuts(options, split, work) -> Iterator[MonoCut]`` in the corpus's order. A module is
imported only when a config names its type.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from espnet3_rules.errors import OptionError
from espnet3_rules.options import Options, join, nearest

#: The ``type`` of a corpus block -> the module that reads it (``lhotse`` would hide the library of that name).
CORPORA: dict[str, str] = {
    "digits": "espnet3_rules.corpora.digits",
    "fsdd": "espnet3_rules.corpora.fsdd",
    "kaldi": "espnet3_rules.corpora.kaldi",
    "lhotse": "espnet3_rules.corpora.lhotse_manifest",
    "librispeech": "espnet3_rules.corpora.librispeech",
    "nemo": "espnet3_rules.corpora.nemo",
    "tsv": "espnet3_rules.corpora.tsv",
}

A = TypeVar("A")
B = TypeVar("B")


class ParallelMap(Protocol):
    """``map`` over many processes: results in the order of the items; function and items must pickle."""

    def __call__(self, function: Callable[[A], B], items: Iterable[A], /) -> Iterator[B]:
        """The results of ``function`` for each item."""
        ...


@dataclasses.dataclass(frozen=True)
class Work:
    """What a corpus may use while it makes its cuts."""

    #: Folder for audio that the corpus makes itself (synthesis, pipes, downloads); made when first needed.
    audio_dir: Path
    #: ``map`` on all cores; the function must be importable by name.
    parallel_map: ParallelMap = map  # type: ignore[assignment]
    #: Seed of everything random.
    seed: int = 0


def corpus_module(kind: str, path: str = "") -> ModuleType:
    """The module that reads corpora of type ``kind``.

    Raises:
        OptionError: no such type; names the nearest and all there are. ``path`` is the block's key in the config.
    """
    if kind not in CORPORA:
        near = nearest(str(kind), CORPORA)
        guess = f"did you mean '{near}'? " if near else ""
        raise OptionError(
            f"{join(path, 'type')}: no corpus type {kind!r}", hint=f"{guess}known here: {', '.join(CORPORA)}"
        )
    return importlib.import_module(CORPORA[kind])


def corpus_options(kind: str, values: Mapping[str, Any] | None, path: str = "") -> Options:
    """The checked options of a corpus block; ``type`` may stand among the values, ``path`` is the block's key.

    Raises:
        OptionError: an unknown type or key, a missing one, or a value that cannot be.
    """
    module = corpus_module(kind, path)
    if isinstance(values, Mapping):
        values = {k: v for k, v in values.items() if k != "type"}
    return module.Options.from_dict(values, path)
