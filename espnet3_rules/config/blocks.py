"""The blocks of the config file that are not a stage's own options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from espnet3_rules.errors import OptionError
from espnet3_rules.options import Options, join, opt
from espnet3_rules.score import ScoreOptions
from espnet3_rules.shards import PlanOptions


@dataclass(frozen=True)
class ParallelOptions(Options):
    """How per-item work outside training and decoding (audio, features) is spread."""

    env: str = opt("local", "Where the workers run; `local`: processes on this machine.", choices=("local",))
    n_workers: int | None = opt(
        None, "Worker processes; null: one a core that Snakemake gives the job.", minimum=1, affects_result=False
    )


@dataclass(frozen=True)
class RootOptions(Options):
    """The top level of the config file."""

    seed: int = opt(
        0,
        "Where all randomness starts: corpora that are synthesised, training, tokens.",
        minimum=0,
        maximum=2**32 - 1,
    )
    num_device: int = opt(1, "Devices (GPUs, or processes on a CPU) per node in training.", minimum=1)
    num_nodes: int = opt(1, "Nodes in training.", minimum=1)
    data_dir: str = opt("data", "Folder of the manifests and of audio that is made.")
    exp_dir: str = opt("exp", "Folder of models, hypotheses, scores and results.")
    watch_audio: bool = opt(
        True,
        "Look at every start whether a recording was replaced (size or time of change). Turn off where looking at "
        "all audio files takes too long.",
        affects_result=False,
    )
    corpora: dict[str, Any] = opt({}, "Name of a corpus: its `type` and the keys of that type, below.")
    systems: dict[str, Any] = opt(
        {}, "Name of a system: the keys of a system that is trained here, or of one that is given, below."
    )
    decoders: dict[str, Any] = opt({}, "Name of a decoder: its search options, below.")
    test_sets: list[str] = opt([], "`corpus/split` of each test set that every system decodes.")
    trainer: dict[str, Any] = opt(
        {}, "Goes to `lightning.Trainer` for every system; a system's own `trainer` is laid over it."
    )
    parallel: ParallelOptions = opt(ParallelOptions, "Workers of `prepare`.")
    plan: PlanOptions = opt(PlanOptions, "How test sets are cut into blocks and shards.")
    decode: dict[str, Any] = opt({}, "How decoding is run, whatever the decoder; below.")
    score: ScoreOptions = opt(ScoreOptions, "How errors are counted.")

    def check(self) -> None:
        """Folders can be created, and say the same to Snakemake as to the file system."""
        for key in ("data_dir", "exp_dir"):
            folder = getattr(self, key)
            if not folder.strip() or folder.startswith("~") or set(folder) & set("{}") or not folder.isprintable():
                raise OptionError(
                    f"{key}: {folder!r} cannot be a folder here",
                    hint="a path without braces and control characters, absolute or from where snakemake runs; "
                    "${oc.env:HOME} stands for the home folder",
                )


@dataclass(frozen=True)
class GivenSystem(Options):
    """A system that is not trained here: it joins at decoding."""

    model: dict[str, Any] = opt(doc="The recogniser's class as `_target_`, and its arguments.")
    test_sets: list[str] | None = opt(None, "Test sets of this system alone, in place of the top level's.")

    def check(self) -> None:
        """A given model is named by its class."""
        if not isinstance(self.model.get("_target_"), str):
            raise OptionError(join("model", "_target_") + ": missing", hint="the import path of the recogniser's class")


@dataclass(frozen=True)
class TrainedSystem(Options):
    """What a system that is trained here says beside its training options."""

    train: list[str] = opt(doc="`corpus/split` of each training set.")
    valid: list[str] = opt(doc="`corpus/split` of each validation set.")
    test_sets: list[str] | None = opt(None, "Test sets of this system alone, in place of the top level's.")
