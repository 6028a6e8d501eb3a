"""From what the user wrote to what each stage is given.

A config comes as a file (the command line) or as Snakemake's ``config`` (files and ``--config`` already merged).
It is resolved once: ``${...}``, sweeps, defaults from the top level; then every key is checked before anything runs.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3_rules import corpora, decode, keys, score, tokens, train
from espnet3_rules.config.blocks import GivenSystem, RootOptions, TrainedSystem
from espnet3_rules.decode import DecodeOptions
from espnet3_rules.errors import OptionError
from espnet3_rules.gate import GateOptions
from espnet3_rules.manifest import index_path
from espnet3_rules.models import search
from espnet3_rules.models.search import SearchOptions
from espnet3_rules.normalise import Normaliser
from espnet3_rules.options import join, lay_over, nearest, nested, opt, unknown_key
from espnet3_rules.records import canonical_json
from espnet3_rules.train import TrainOptions

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=+-]*\Z")
_LONGEST_NAME = 150
# what lies beside the systems' folders
_TAKEN = ("results.md", "results.csv", "gate.json", "logs")
# YAML 1.1, which Snakemake reads, takes 1e-3 for text
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+\Z")
# what a system takes from the top level, where it says nothing itself
_INHERITED = ("seed", "num_device", "num_nodes", "trainer")


@dataclasses.dataclass(frozen=True)
class DecodeBlock(GateOptions):
    """The keys of ``decode`` that are the workflow's: the fan-out and what may fail."""

    shards: int = opt(1, "Jobs that a test set is spread over.", minimum=1)


@dataclasses.dataclass(frozen=True)
class System:
    """One recogniser of the DAG."""

    name: str
    #: ``corpus/split`` names; both empty for a system that is only given.
    train: tuple[str, ...]
    valid: tuple[str, ...]
    #: Options of the training; None for a system that is only given.
    options: TrainOptions | None
    #: The recogniser's ``_target_`` block; None for a system that is trained here.
    model: Mapping[str, Any] | None
    test_sets: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One system, one decoder, one test set: one line of the results."""

    system: str
    decoder: str
    test_set: str

    def folder_in(self, exp_dir: str) -> str:
        """Where its files lie, below the folder of all experiments."""
        return f"{exp_dir}/{self.system}/decode/{self.decoder}/{self.test_set}"


@dataclasses.dataclass(frozen=True)
class Config:
    """A checked config."""

    root: RootOptions
    #: The name of each corpus's type, and its options.
    types: Mapping[str, str]
    corpora: Mapping[str, Any]
    systems: Mapping[str, System]
    decoders: Mapping[str, SearchOptions]
    decode: DecodeBlock
    decode_options: Mapping[str, Any]

    def experiments(self) -> Iterator[Experiment]:
        """Every system with every decoder on every test set, in the config's order."""
        for system in self.systems.values():
            for decoder, test_set in itertools.product(self.decoders, system.test_sets):
                yield Experiment(system.name, decoder, test_set)

    def splits(self) -> list[str]:
        """``corpus/split`` of every manifest that some system needs, each once, in the config's order."""
        wanted = itertools.chain.from_iterable((*s.train, *s.valid, *s.test_sets) for s in self.systems.values())
        return list(dict.fromkeys(wanted))

    def trained(self) -> list[str]:
        """The systems that are trained here."""
        return [name for name, system in self.systems.items() if system.options]

    def sources(self, corpus: str, split: str) -> list[str]:
        """The files that describe a split of a corpus (lists, transcripts); not the audio, which can be millions."""
        # braces would be wildcards to Snakemake
        return [str(p).replace("{", "{{").replace("}", "}}") for p in self.corpora[corpus].sources(split)]

    def corpus_options(self, corpus: str) -> dict[str, Any]:
        """What ``prepare`` is given for a corpus: its type, its options, the seed."""
        return {"type": self.types[corpus], "seed": self.root.seed, **self.corpora[corpus].to_dict()}

    def training(self, system: str) -> dict[str, Any]:
        """The options of a system's training that can change its model."""
        options = self.systems[system].options
        assert options is not None
        return options.to_dict(only_result=True)

    def training_quiet(self, system: str, threads: int) -> dict[str, Any]:
        """The options of a system's training that cannot change its model; ``threads`` where the user gave none."""
        options = self.systems[system].options
        assert options is not None
        # the whole trainer block: laid over the part that can change the model, it completes its lists
        quiet = {**options.quiet_dict(), "trainer": options.trainer}
        return _with_threads(quiet, max(1, threads // options.num_device))

    def decoding(self, decoder: str) -> dict[str, Any]:
        """The options of a decoder that can change a text."""
        return self.options_of_decoder(decoder).to_dict(only_result=True)

    def decoding_quiet(self, decoder: str, threads: int) -> dict[str, Any]:
        """The options of decoding that cannot change a text."""
        return _with_threads(self.options_of_decoder(decoder).quiet_dict(), threads)

    def options_of_decoder(self, decoder: str) -> DecodeOptions:
        """What ``decode`` is given."""
        return DecodeOptions.from_dict({**self.decode_options, "search": self.decoders[decoder]}, "decode")

    def decoder_files(self, decoder: str) -> list[str]:
        """The files that a decoder reads: its language model."""
        return [lm] if (lm := self.decoders[decoder].lm) else []

    def model_files(self, system: str) -> list[str]:
        """The files that the block of a given model names."""
        return keys.named_files(self.systems[system].model or {})

    def training_version(self, system: str) -> str:
        """Everything whose change means that a system is trained again, beside its options and data."""
        options = self.systems[system].options
        assert options is not None
        return canonical_json([train.VERSION, tokens.VERSION, Normaliser(options.tokens.normalise).versions])

    def decoding_version(self, system: str) -> str:
        """Everything whose change means that a system decodes again, beside its model and options.

        Raises:
            OptionError: the class of a given model cannot be found.
        """
        model = self.systems[system].model
        target = model["_target_"] if model else keys.BUILT_IN
        try:
            return canonical_json([decode.VERSION, search.VERSION, keys.version_of(target)])
        except OptionError as error:
            raise OptionError(f"systems.{system}.model.{error.message}", hint=error.hint) from error

    def scoring_version(self) -> str:
        """Everything whose change means that hypotheses are scored again, beside the options."""
        return canonical_json([score.VERSION, Normaliser(self.root.score.normalise).versions])

    def model(self, system: str, files: Sequence[str]) -> str:
        """What ``decode --model`` is given: the folder of a trained model, or the block of a given one."""
        given = self.systems[system].model
        return json.dumps(given, ensure_ascii=False) if given else str(Path(files[0]).parent)

    def gate(self) -> dict[str, Any]:
        """What ``gate`` is given."""
        return {f.name: getattr(self.decode, f.name) for f in dataclasses.fields(GateOptions)}

    def to_dict(self) -> dict[str, Any]:
        """The whole config as plain values, defaults filled in."""
        plain = self.root.to_dict()
        plain["corpora"] = {name: {"type": self.types[name], **c.to_dict()} for name, c in self.corpora.items()}
        plain["systems"] = {name: _plain_system(system) for name, system in self.systems.items()}
        plain["decoders"] = {name: decoder.to_dict() for name, decoder in self.decoders.items()}
        plain["decode"] = {**self.decode.to_dict(), **self.decode_options}
        return plain

    @staticmethod
    def json(value: Any) -> str:
        """``value`` as one command-line argument, the same for the same value."""
        return canonical_json(value)


def _with_threads(options: dict[str, Any], threads: int) -> dict[str, Any]:
    if options.get("threads") is None:
        options["threads"] = threads
    return options


def _plain_system(system: System) -> dict[str, Any]:
    tests = {"test_sets": list(system.test_sets)}
    if system.options is None:
        return {"model": system.model, **tests}
    return {"train": list(system.train), "valid": list(system.valid), **tests, **system.options.to_dict()}


def load(path: Path | str, overrides: Mapping[str, Any] | None = None) -> Config:
    """The checked config in a YAML file, with ``overrides`` laid over it.

    Raises:
        OptionError: the file is not YAML, or a key or value in it cannot be.
    """
    return resolve(_read(Path(path)), overrides)


def check_file(path: Path | str) -> None:
    """Refuses what Snakemake's own reader lets pass: not a block of keys, or a key that stands twice."""
    _read(Path(path))


def _read(path: Path) -> dict[str, Any]:
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not path.is_file():
        raise OptionError(f"{path}: no such config file")
    try:
        found = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError, OSError) as error:
        raise OptionError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise OptionError(f"{path}: expected a block of keys at the top")
    return {str(k): v for k, v in found.items()}


def resolve(config: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Config:
    """The checked config of a mapping.

    Args:
        config: as YAML gives it; ``${...}`` allowed.
        overrides: what came from a command line, where numbers may still be text; laid over ``config``.

    Raises:
        OptionError: an unknown or misspelt key, a wrong type, an impossible value or a name that is not there,
            with the path of the key, what was found, and the nearest known name.
    """
    values = _interpolate(lay_over(config, _from_text(overrides or {})))
    root = RootOptions.from_dict(values)
    found = {name: _corpus(name, block) for name, block in root.corpora.items()}
    systems = {name: _system(name, block, root, found) for name, block in _swept(root.systems, "systems")}
    decoders = {
        name: SearchOptions.from_dict(block, f"decoders.{name}") for name, block in _swept(root.decoders, "decoders")
    }
    block_keys = {f.name for f in dataclasses.fields(DecodeBlock)}
    block = DecodeBlock.from_dict({k: v for k, v in root.decode.items() if k in block_keys}, "decode")
    rest = {k: v for k, v in root.decode.items() if k not in block_keys}
    known = block_keys | {f.name for f in dataclasses.fields(DecodeOptions)} - {"search"}
    for key in rest:
        if key not in known:
            raise unknown_key(f"decode.{key}", key, known)
    DecodeOptions.from_dict(rest, "decode")
    _check_whole(root, found, systems, decoders)
    types = {name: block["type"] for name, block in root.corpora.items()}
    return Config(root, types, found, systems, decoders, block, rest)


def _check_whole(root: RootOptions, found: Mapping, systems: Mapping, decoders: Mapping) -> None:
    if not systems:
        raise OptionError("systems: none given", hint="config/README.md shows a system, trained or given")
    if any(s.test_sets for s in systems.values()) and not decoders:
        raise OptionError("decoders: none given, but there are test sets", hint="decoders: {greedy: {method: greedy}}")
    for index, name in enumerate(root.test_sets):
        _check_split(name, f"test_sets[{index}]", found)
    for name, decoder in decoders.items():
        if decoder.lm is not None and not Path(decoder.lm).is_file():
            raise OptionError(f"decoders.{name}.lm: no such file: {decoder.lm!r}", hint="KenLM's ARPA or binary file")
    for corpus, options in found.items():
        for split in options.splits:
            _check_not_ours(root, corpus, split, options.sources(split))


def _check_not_ours(root: RootOptions, corpus: str, split: str, sources: Sequence[Path]) -> None:
    """Refuses a corpus that is read from where its manifest goes: Snakemake removes a job's outputs before it runs."""
    manifest = Path(root.data_dir, corpus, f"{split}.jsonl.gz")
    made = {manifest.resolve(), index_path(manifest).resolve()}
    for source in sources:
        if Path(source).resolve() in made:
            raise OptionError(
                f"corpora.{corpus}: {source} is the file that the manifest of {corpus}/{split} would replace",
                hint="move it out of data_dir, or set data_dir to another folder",
            )


def _interpolate(values: Mapping[str, Any]) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        resolved = OmegaConf.to_container(OmegaConf.create(_exponents(copy.deepcopy(dict(values)))), resolve=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None)
        raise OptionError(f"{key or 'config'}: {str(error).splitlines()[0]}") from error
    assert isinstance(resolved, dict)
    return {str(k): v for k, v in resolved.items()}


def _exponents(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _exponents(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_exponents(v) for v in value]
    return float(value) if isinstance(value, str) and _EXPONENT.match(value) else value


def _from_text(value: Any) -> Any:
    import yaml

    if isinstance(value, Mapping):
        return {str(k): _from_text(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_from_text(v) for v in value]
    if isinstance(value, str):
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError:
            return value
        return parsed if isinstance(parsed, int | float | bool) or parsed is None else value
    return value


def _check_name(name: str, path: str) -> None:
    if name in _TAKEN:
        raise OptionError(f"{path}: {name!r} cannot be a name: it is that of a file of ours", hint="choose another")
    if not _NAME.match(name) or len(name) > _LONGEST_NAME:
        raise OptionError(
            f"{path}: {name!r} cannot be a name",
            hint="names become folders: letters, digits, '_', '-', '.', '+' and '=', with a letter or digit first, "
            f"{_LONGEST_NAME} at most",
        )


def _corpus(name: str, block: Any) -> Any:
    path = f"corpora.{name}"
    _check_name(name, path)
    if not isinstance(block, Mapping) or "type" not in block:
        raise OptionError(f"{path}.type: missing", hint=f"one of {', '.join(sorted(corpora.CORPORA))}")
    if not isinstance(block["type"], str):
        raise OptionError(f"{path}.type: expected text, found {block['type']!r}")
    options = corpora.corpus_options(block["type"], {k: v for k, v in block.items() if k != "type"}, path)
    for split in options.splits:  # type: ignore[attr-defined]
        _check_name(split, f"{path}.splits")
    return options


def _check_split(name: str, path: str, found: Mapping[str, Any]) -> None:
    corpus, slash, split = name.partition("/")
    if corpus not in found:
        near = nearest(corpus, found)
        guess = f"did you mean '{near}'? " if near else ""
        raise OptionError(
            f"{path}: no corpus {corpus!r} in 'corpora'", hint=f"{guess}there are: {', '.join(found) or 'none'}"
        )
    splits = found[corpus].splits
    if not slash or split not in splits:
        near = nearest(split, splits)
        guess = f"did you mean '{corpus}/{near}'? " if near else ""
        raise OptionError(
            f"{path}: corpus {corpus!r} has no split {split!r}",
            hint=f"{guess}there are: {', '.join(f'{corpus}/{s}' for s in splits)}",
        )


def _system(name: str, block: Mapping[str, Any], root: RootOptions, found: Mapping[str, Any]) -> System:
    path = f"systems.{name}"
    if "model" in block:
        given = GivenSystem.from_dict(block, path)
        tests = root.test_sets if given.test_sets is None else given.test_sets
        system = System(name, (), (), None, given.model, tuple(tests))
    else:
        own = {f.name for f in dataclasses.fields(TrainedSystem)}
        known = own | {f.name for f in dataclasses.fields(TrainOptions)} | {"model", "sweep"}
        for key in block:
            if key not in known:
                raise unknown_key(join(path, key), key, known)
        data = TrainedSystem.from_dict({k: v for k, v in block.items() if k in own}, path)
        if not data.train:
            raise OptionError(f"{path}.train: an empty list", hint="name at least one training set, as corpus/split")
        inherited = {key: getattr(root, key) for key in _INHERITED}
        options = lay_over(inherited, {k: v for k, v in block.items() if k not in own})
        tests = root.test_sets if data.test_sets is None else data.test_sets
        checked = TrainOptions.from_dict(options, path)
        if checked.checkpoint.average == "best" and not data.valid:
            raise OptionError(
                f"{path}.checkpoint.average: 'best' needs validation, and {path}.valid is empty",
                hint="name a validation set, or set checkpoint.average to last",
            )
        system = System(name, tuple(data.train), tuple(data.valid), checked, None, tuple(tests))
    for key in ("train", "valid", "test_sets"):
        for index, split in enumerate(getattr(system, key)):
            _check_split(split, f"{path}.{key}[{index}]", found)
    return system


def _swept(blocks: Mapping[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every block by its name; one with ``sweep`` becomes one for each combination of its lists."""
    seen: set[str] = set()
    for name, block in blocks.items():
        _check_name(name, join(path, name))
        block = {} if block is None else block
        if not isinstance(block, Mapping):
            raise OptionError(f"{join(path, name)}: expected a block of keys, found {block!r}")
        for made, values in _combinations(name, block, join(path, name)):
            if made in seen:
                raise OptionError(f"{join(path, name)}: the name '{made}' is there twice")
            seen.add(made)
            yield made, values


def _combinations(name: str, block: Mapping[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    sweep = block.get("sweep")
    plain = {k: v for k, v in block.items() if k != "sweep"}
    if sweep is None:
        yield name, plain
        return
    if not isinstance(sweep, Mapping):
        raise OptionError(f"{path}.sweep: expected a block of keys with lists, found {sweep!r}")
    for key, choices in sweep.items():
        if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
            raise OptionError(f"{path}.sweep.{key}: expected a list of values, found {choices!r}")
    last = [key.rsplit(".", 1)[-1] for key in sweep]
    for chosen in itertools.product(*sweep.values()):
        values, parts = plain, [name]
        for key, short, value in zip(sweep, last, chosen, strict=True):
            values = lay_over(values, nested(key.split("."), value))
            label = key if last.count(short) > 1 else short
            parts.append(f"{label}={re.sub(r'[^A-Za-z0-9_.+-]+', '_', str(value))}")
        yield "-".join(parts), values
