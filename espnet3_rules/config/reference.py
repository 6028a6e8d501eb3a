"""``config/README.md`` and the JSON schema, written from the options themselves.

``python -m espnet3_rules.config.reference`` writes both anew; a test fails when they are not up to date.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from espnet3_rules import corpora
from espnet3_rules.config.blocks import GivenSystem, RootOptions, TrainedSystem
from espnet3_rules.config.resolve import DecodeBlock
from espnet3_rules.decode import DecodeOptions
from espnet3_rules.models.search import SearchOptions
from espnet3_rules.options import Options, type_name
from espnet3_rules.records import write_aside
from espnet3_rules.train import TrainOptions

INTRODUCTION = """\
# The config, key by key

This file is written from the code (`python -m espnet3_rules.config.reference`); a test holds the two together. The
JSON schema for editors is `workflow/schemas/config.schema.json`.

- `snakemake --cores 2` reads `config/config.yaml`; `--configfile other.yaml` replaces it; `--config num_device=2` or
  `--config decode='{shards: 4}'` is laid over it.
- `${other.key}` stands for the value of another key, `${oc.env:NAME}` for a variable of the environment.
- An unknown key, a wrong type or an impossible value is refused before anything runs.
- **sweep**: in a system or a decoder, `sweep: {key.below: [value, value]}` makes one of it for each combination, named
  `<name>-<key>=<value>`. A name does not depend on the other values of the list, so that adding one reruns nothing.
- A key marked ○ can be changed between two runs: it changes how fast or how loudly the same result is made, and makes
  nothing stale. Any other key reruns the stages that it touches, and what follows them.
"""


def corpus_types() -> Iterator[tuple[str, type[Options]]]:
    """Every type of corpus with its options."""
    for name, module in sorted(corpora.CORPORA.items()):
        yield name, importlib.import_module(module).Options


def readme() -> str:
    """The text of ``config/README.md``."""
    parts = [INTRODUCTION, "## Top level\n", _table(RootOptions)]
    parts += ["## `corpora.<name>`\n", "The key `type` says which of the following it is.\n"]
    for name, options in corpus_types():
        module = importlib.import_module(options.__module__)
        parts += [f"### `type: {name}`\n", (module.__doc__ or "").strip() + "\n", _table(options)]
    parts += ["## `systems.<name>`, trained here\n", _table(TrainedSystem), _table(TrainOptions, header=False)]
    parts += ["## `systems.<name>`, given\n", _table(GivenSystem)]
    parts += ["## `decoders.<name>`\n", _table(SearchOptions)]
    parts += ["## `decode`\n", _table(DecodeBlock), _table(DecodeOptions, header=False, without=("search",))]
    text = "\n".join(parts)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    # a table that goes on is one table
    return text.replace("|\n\n|", "|\n|").rstrip() + "\n"


def _table(cls: type, *, header: bool = True, without: tuple[str, ...] = ()) -> str:
    rows = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"] if header else []
    rows += _rows(cls, "", without)
    return "\n".join(rows) + "\n"


def _rows(cls: type, prefix: str, without: tuple[str, ...] = ()) -> Iterator[str]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.name in without:
            continue
        inner = _inner(hints[field.name])
        name = prefix + field.name
        if inner is not None:
            yield from _rows(inner, name + ".")
            continue
        mark = "" if field.metadata.get("affects_result", True) else " ○"
        text = field.metadata.get("doc", "").replace("|", "\\|")
        yield f"| `{name}`{mark} | {_value(field, hints[field.name])} | {_default(field)} | {text} |"


def _inner(kind: Any) -> type | None:
    members = [m for m in typing.get_args(kind) if isinstance(m, type) and issubclass(m, Options)]
    if typing.get_origin(kind) in (typing.Union, types.UnionType) and members:
        return members[0]
    return kind if isinstance(kind, type) and issubclass(kind, Options) else None


def _value(field: dataclasses.Field[Any], kind: Any) -> str:
    found = field.metadata
    if found.get("choices"):
        return " or ".join(f"`{c}`" for c in found["choices"])
    limits = [
        text.format(found[key])
        for key, text in (("minimum", "≥ {:.10g}"), ("above", "> {:.10g}"), ("maximum", "≤ {:.10g}"))
        if found.get(key) is not None
    ]
    return ", ".join([type_name(kind), *limits])


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return "required"
    value = list(value) if isinstance(value, tuple) else value
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace("|", "\\|")


def schema() -> dict[str, Any]:
    """The JSON schema of a config file: closed, apart from the blocks that another library reads."""
    root = _object(RootOptions)
    kinds = []
    for name, options in corpus_types():
        one = _object(options)
        one["properties"] = {"type": {"const": name}, **one["properties"]}
        one["required"] = ["type", *one.get("required", [])]
        kinds.append(one)
    sweep = {"sweep": {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}}
    trained = _joined(_object(TrainedSystem), {**_object(TrainOptions), "required": []}, sweep)
    given = _joined(_object(GivenSystem), {}, sweep)
    decoder = _joined(_object(SearchOptions), {}, sweep)
    decode = _joined(_object(DecodeBlock), _object(DecodeOptions, ("search",)), {})
    root["properties"] |= {
        "corpora": {"type": "object", "additionalProperties": {"oneOf": kinds}},
        "systems": {"type": "object", "additionalProperties": {"anyOf": [trained, given]}},
        "decoders": {"type": "object", "additionalProperties": {"anyOf": [decoder, {"type": "null"}]}},
        "decode": decode,
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "espnet3-rules config", **root}


def _joined(one: Mapping[str, Any], other: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(one)
    joined["properties"] = {**one["properties"], **other.get("properties", {}), **more}
    required = [*one.get("required", []), *other.get("required", [])]
    return {**joined, "required": required} if required else joined


def _object(cls: type, without: tuple[str, ...] = ()) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    fields = [f for f in dataclasses.fields(cls) if f.name not in without]
    found: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {f.name: _field(f, hints[f.name]) for f in fields},
    }
    required = [f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    return {**found, "required": required} if required else found


def _field(field: dataclasses.Field[Any], kind: Any) -> dict[str, Any]:
    found = _kind(kind)
    target = found["items"] if found.get("type") == "array" else found
    if field.metadata.get("choices"):
        choices = list(field.metadata["choices"])
        target.pop("type", None)
        target["enum"] = choices + ([None] if type(None) in typing.get_args(kind) else [])
    for key, name in (("minimum", "minimum"), ("above", "exclusiveMinimum"), ("maximum", "maximum")):
        if field.metadata.get(key) is not None:
            target[name] = field.metadata[key]
    return {**found, "description": field.metadata.get("doc", "")}


def _kind(kind: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_kind(a) for a in arguments]}
    if isinstance(kind, type) and issubclass(kind, Options):
        return _object(kind)
    if origin in (list, tuple):
        return {"type": "array", "items": _kind(arguments[0])}
    if origin in (dict, Mapping) or kind is dict:
        return {"type": "object"}
    # `${...}` may stand for any single value
    reference = {"type": "string", "pattern": "^\\$\\{.*\\}$"}
    simple = {int: "integer", float: "number", bool: "boolean"}
    if kind in simple:
        return {"anyOf": [{"type": simple[kind]}, reference]}
    return {str: {"type": "string"}, type(None): {"type": "null"}}.get(kind, {})


def write(root: Path) -> None:
    """Writes both files into a checkout."""
    with write_aside(root / "config" / "README.md") as stream:
        stream.write(readme())
    with write_aside(root / "workflow" / "schemas" / "config.schema.json") as stream:
        stream.write(json.dumps(schema(), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write(Path(__file__).resolve().parents[2])
