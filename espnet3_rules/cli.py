"""The command line: every stage as ``espnet3-rules STAGE``, with the options of its function.

A stage's flags are read off its function's signature, so that the two cannot differ; its module is imported only
when it is called, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import inspect
import json
import os
import signal
import sys
import threading
import time
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from espnet3_rules import __version__
from espnet3_rules.errors import EnvironmentProblem, OptionError, RulesError
from espnet3_rules.options import Options, nearest, type_name

#: command -> (module, function, what it does)
STAGES = {
    "prepare": ("espnet3_rules.prepare", "prepare", "corpus -> manifest of cuts"),
    "validate": ("espnet3_rules.validate", "report_problems", "every problem of a manifest"),
    "train": ("espnet3_rules.train", "train", "manifests -> model"),
    "plan": ("espnet3_rules.shards", "plan", "manifest -> shards of similar cost"),
    "decode": ("espnet3_rules.decode", "decode", "one shard -> hypotheses, each utterance once"),
    "merge": ("espnet3_rules.merge", "merge", "shards -> hypotheses in the manifest's order, or an error"),
    "score": ("espnet3_rules.score", "score", "hypotheses -> error counts"),
    "report": ("espnet3_rules.report", "report", "scores -> results table"),
    "gate": ("espnet3_rules.gate", "gate", "fails when too many utterances failed"),
    "config": ("espnet3_rules.config.commands", "show", "the checked config, or what one stage is given of it"),
    "profile": ("espnet3_rules.config.commands", "profile", "makes `snakemake --profile slurm` work anywhere"),
}

EXIT_CODES = """\
exit codes:
  0 done    1 error    2 option or config    3 data    4 something missing, double or unknown
  5 too many failed utterances    6 disk, device or process    75 interrupted, saved: run it again
"""


def main(arguments: list[str] | None = None) -> int:
    """What the command exits with; prints errors that a user can cause without a traceback."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = _top_parser()
    if not arguments or arguments[0] not in STAGES:
        if arguments and not arguments[0].startswith("-"):
            near = nearest(arguments[0], STAGES)
            parser.error(f"no stage {arguments[0]!r}" + (f", did you mean '{near}'?" if near else ""))
        parser.parse_args(arguments or ["--help"])
        return 0
    stage = arguments[0]
    try:
        return _run(stage, arguments[1:])
    except RulesError as error:
        print(f"espnet3-rules {stage}: error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"espnet3-rules {stage}: stopped; what is done is kept", file=sys.stderr, flush=True)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # whoever read our output has gone; Python would complain once more when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _top_parser() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:9} {about}" for name, (_, _, about) in STAGES.items())
    parser = argparse.ArgumentParser(
        prog="espnet3-rules",
        usage="espnet3-rules STAGE [--help] [options]",
        description="Train, decode and score speech recognisers; each stage is also a rule of the workflow.",
        epilog=f"stages:\n{lines}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"espnet3-rules {__version__}")
    return parser


def _run(stage: str, arguments: list[str]) -> int:
    module, name, about = STAGES[stage]
    # a user's own classes (`_target_`) may lie beside the config; last, so that they hide nothing
    sys.path.append(str(Path.cwd()))
    function = getattr(importlib.import_module(module), name)
    parameters = _parameters(function)
    parsed = vars(_stage_parser(stage, about, function, parameters).parse_args(arguments))
    log = _usable_log(parsed.pop("log"), stage)
    with _logged_to(log) if log else contextlib.nullcontext():
        try:
            result = _called(function, _values(parameters, parsed))
        except EnvironmentProblem:
            raise  # the log may be on the disk that is full: said below, where the terminal is
        except RulesError as error:
            if log:  # the terminal gets it from the file
                print(f"espnet3-rules {stage}: error: {error}", file=sys.stderr, flush=True)
                return error.exit_code
            raise
        except Exception:
            if not log:
                raise
            import traceback

            traceback.print_exc()
            return 1
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _called(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    """What the stage returns; an error where something in it ended the process as if all were done."""
    try:
        return function(**values)
    except SystemExit as error:
        code = error.code
        if code is not None and not (isinstance(code, int) and code % 256 == 0):
            raise
        raise RulesError(
            f"something called sys.exit({'' if code is None else code}) before this stage was done",
            hint="a class or function of your own that is used here must raise an error instead",
        ) from error


@dataclasses.dataclass(frozen=True)
class _Parameter:
    name: str
    kind: Any
    required: bool
    default: Any

    @property
    def options(self) -> type[Options] | None:
        return self.kind if isinstance(self.kind, type) and issubclass(self.kind, Options) else None


def _parameters(function: Callable[..., Any]) -> list[_Parameter]:
    hints = typing.get_type_hints(function)
    return [
        _Parameter(p.name, _given(hints[p.name]), p.default is p.empty, None if p.default is p.empty else p.default)
        for p in inspect.signature(function).parameters.values()
    ]


def _given(kind: Any) -> Any:
    """The kind that a flag has where it is given: ``list[str]`` for ``list[str] | None``."""
    members = [m for m in typing.get_args(kind) if m is not type(None)]
    return members[0] if _is_union(kind) and len(members) == 1 else kind


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _stage_parser(
    stage: str, about: str, function: Callable[..., Any], parameters: list[_Parameter]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"espnet3-rules {stage}",
        description=f"{about}\n\n{inspect.getdoc(function) or ''}",
        epilog="\n".join([*_option_help(parameters), EXIT_CODES]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for p in parameters:
        flag = "--" + p.name.replace("_", "-")
        if p.options:
            parser.add_argument(
                flag, action="append", default=[], metavar="JSON", help="options as a JSON object; later ones win"
            )
            parser.add_argument(
                "--set", action="append", default=[], metavar="KEY=VALUE", help="one option, such as search.beam_size=8"
            )
        elif typing.get_origin(p.kind) in (list, Sequence):
            one = _converter(typing.get_args(p.kind)[0])
            parser.add_argument(flag, nargs="*", type=one, required=p.required, default=p.default)
        elif typing.get_origin(p.kind) is typing.Literal:
            parser.add_argument(p.name, choices=typing.get_args(p.kind))
        else:
            parser.add_argument(flag, type=_converter(p.kind), required=p.required, default=p.default)
    parser.add_argument("--log", type=Path, help="write everything that is printed to this file as well")
    return parser


def _option_help(parameters: list[_Parameter]) -> Iterator[str]:
    for p in parameters:
        if p.options:
            yield f"keys of --{p.name.replace('_', '-')} and --set:"
            yield from _describe(p.options, "")
            yield ""


def _describe(cls: type[Options], prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(typing.cast(Any, cls)):
        kind = hints[field.name]
        if isinstance(kind, type) and issubclass(kind, Options):
            yield from _describe(kind, f"{prefix}{field.name}.")
        else:
            yield f"  {prefix}{field.name} ({type_name(kind)}): {field.metadata.get('doc', '')}"


def _converter(kind: Any) -> Callable[[str], Any]:
    members = typing.get_args(kind) if _is_union(kind) else (kind,)
    if any(typing.get_origin(m) in (dict, Mapping) or m is dict for m in members):
        return _block_or_path if Path in members else _block
    return Path if Path in members else members[0]


def _block(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not JSON: {text!r} ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, found {text!r}")
    return value


def _block_or_path(text: str) -> Any:
    return _block(text) if text.lstrip().startswith("{") else Path(text)


def _values(parameters: list[_Parameter], parsed: dict[str, Any]) -> dict[str, Any]:
    values = {}
    for p in parameters:
        given = parsed[p.name]
        values[p.name] = p.options.from_dict(_option_values(given, parsed["set"])) if p.options else given
    return values


def _option_values(texts: list[str], settings: list[str]) -> dict[str, Any]:
    from espnet3_rules.options import lay_over, nested

    values: dict[str, Any] = {}
    for text in texts:
        try:
            values = lay_over(values, _block(text))
        except argparse.ArgumentTypeError as error:
            raise OptionError(f"--options: {error}") from error
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise OptionError(f"--set {setting}: expected KEY=VALUE")
        values = lay_over(values, nested(key.split("."), _scalar(text)))
    return values


def _scalar(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _usable_log(path: Path | None, stage: str) -> Path | None:
    """The log, or None where it cannot be written: what the stage itself has to say about the disk matters more."""
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(f"== {time.strftime('%Y-%m-%d %H:%M:%S')} {os.uname().nodename}: {stage}\n")
    except OSError as error:
        print(f"espnet3-rules {stage}: no log: {error}", file=sys.stderr, flush=True)
        return None
    return path


@contextlib.contextmanager
def _logged_to(path: Path) -> Iterator[None]:
    """Sends all output, that of child processes too, to a file, and copies the file to where it went before.

    The file comes first: it has the last words of a process that crashes, and a terminal that has gone away
    (a closed login shell, a killed driver) stops nothing.
    """
    if os.path.samestat(path.stat(), os.fstat(2)):
        # a rank that a launcher started with our own command line: its output goes there already
        yield
        return
    sys.stdout.flush()
    sys.stderr.flush()
    shown, kept_out, kept_err = os.dup(2), os.dup(1), os.dup(2)
    start = path.stat().st_size
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    ended = threading.Event()
    copier = threading.Thread(target=_copy_growing, args=(path, start, shown, ended), daemon=True)
    copier.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a full disk
            sys.stdout.flush()
            sys.stderr.flush()
        ended.set()
        copier.join(5)
        os.dup2(kept_out, 1)
        os.dup2(kept_err, 2)


def _copy_growing(path: Path, start: int, shown: int, ended: threading.Event) -> None:
    with contextlib.suppress(OSError), path.open("rb") as stream:
        stream.seek(start)
        while True:
            last = ended.wait(0.2)
            while block := stream.read(65536):
                os.write(shown, block)
            if last:
                return


if __name__ == "__main__":
    sys.exit(main())
