"""Frozen options that check themselves: the one description of every key that a user can set.

A stage's options are a frozen dataclass whose fields are made by `opt`. From these fields come the closed
schema, the command-line flags, ``config/README.md`` and what a result depends on, so that they cannot differ.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from espnet3_rules.errors import OptionError

T = TypeVar("T")
_REQUIRED: Any = dataclasses.MISSING


def opt(
    default: Any = _REQUIRED,
    doc: str = "",
    *,
    choices: Iterable[Any] | None = None,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    affects_result: bool = True,
) -> Any:
    """A dataclass field with its documentation and its limits.

    Args:
        default: the value where the user gives none; a list or dict is copied; none makes the key required.
        doc: what it does, with its unit; goes to ``config/README.md`` and to ``--help``.
        choices: the only values there are.
        minimum: smallest value allowed.
        above: the value must be larger than this.
        maximum: largest value allowed.
        affects_result: False for what changes only how fast or how loudly the same result is made; such a
            key is in no content key, so that changing it makes nothing stale.
    """
    metadata = {
        "doc": doc,
        "choices": tuple(choices) if choices is not None else None,
        "minimum": minimum,
        "above": above,
        "maximum": maximum,
        "affects_result": affects_result,
    }
    if isinstance(default, list | dict):
        value = default
        return dataclasses.field(default_factory=lambda: type(value)(value), metadata=metadata)
    if dataclasses.is_dataclass(default) and isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Options:
    """Base of all options: a subclass is a ``@dataclass(frozen=True)``; building one checks it.

    A subclass may define ``check(self)`` for rules between keys; it raises `OptionError`.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(typing.cast(Any, self)):
            wanted = _hints(typing.cast(Any, type(self)))[field.name]
            value = convert(getattr(self, field.name), wanted, field.name)
            object.__setattr__(self, field.name, value)
            _check_limits(value, field)
        self.check()

    def check(self) -> None:
        """Rules between keys; the base has none."""

    @classmethod
    def from_dict(cls: type[T], values: Mapping[str, Any] | None, path: str = "") -> T:
        """The options in ``values``; ``path`` is the key under which they stand in the config.

        Raises:
            OptionError: an unknown key (with the nearest known one), a missing one, a wrong type or an
                impossible value, each with the path of the key.
        """
        values = {} if values is None else values
        if not isinstance(values, Mapping):
            raise OptionError(f"{path or 'config'}: expected a block of keys, found {values!r}")
        fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, cls))}
        for key in values:
            if key not in fields:
                raise unknown_key(join(path, str(key)), str(key), fields)
        for name, field in fields.items():
            if name not in values and field.default is _REQUIRED and field.default_factory is _REQUIRED:
                raise OptionError(f"{join(path, name)}: missing", hint=field.metadata.get("doc") or None)
        try:
            return cls(**values)
        except OptionError as error:
            raise type(error)(join(path, error.message), hint=error.hint) from None

    def to_dict(self, *, only_result: bool = False) -> dict[str, Any]:
        """The options as plain values; with ``only_result`` without the keys that cannot change the result."""
        return _plain(self, only_result)

    def quiet_dict(self) -> dict[str, Any]:
        """The rest of ``to_dict(only_result=True)``: the keys that cannot change the result."""
        quiet: dict[str, Any] = {}
        for field in dataclasses.fields(typing.cast(Any, self)):
            value = getattr(self, field.name)
            if not field.metadata.get("affects_result", True):
                quiet[field.name] = _plain(value, False)
            elif isinstance(value, Options) and (inner := value.quiet_dict()):
                quiet[field.name] = inner
        return quiet


def _plain(value: Any, only_result: bool) -> Any:
    if isinstance(value, Options):
        return {
            f.name: _plain(getattr(value, f.name), only_result)
            for f in dataclasses.fields(typing.cast(Any, value))
            if not only_result or f.metadata.get("affects_result", True)
        }
    if isinstance(value, Mapping):
        return {k: _plain(v, only_result) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, only_result) for v in value]
    return value


def join(path: str, key: str) -> str:
    """``path.key``, or ``key`` at the top."""
    return f"{path}.{key}" if path else key


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` most likely meant, or None."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def unknown_key(path: str, key: str, known: Iterable[str]) -> OptionError:
    """The error for a key that does not exist: names the nearest known one, and all of them."""
    known = sorted(known)
    near = nearest(key, known)
    guess = f"did you mean '{near}'? " if near else ""
    return OptionError(f"{path}: unknown key", hint=f"{guess}known here: {', '.join(known) or 'none'}")


def lay_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``below`` with ``above`` laid over it, block by block; a block with another ``_target_`` or ``type`` replaces."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and not _another_kind(old, value):
            merged[key] = lay_over(old, value)
        else:
            merged[key] = value
    return merged


def _another_kind(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return any(key in new and key in old and new[key] != old[key] for key in ("_target_", "type"))


def nested(keys: list[str], value: Any) -> dict[str, Any]:
    """``{"a": {"b": value}}`` for the keys ``["a", "b"]``."""
    return {keys[0]: value if len(keys) == 1 else nested(keys[1:], value)}


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def convert(value: Any, wanted: Any, path: str) -> Any:
    """``value`` as type ``wanted``, or an error with ``path``; never guesses beyond int to float."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, arguments, wanted, path)
    if isinstance(wanted, type) and issubclass(wanted, Options):
        return value if isinstance(value, wanted) else typing.cast(Any, wanted).from_dict(value, path)
    if origin in (list, tuple):
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise _wrong(path, value, wanted)
        return tuple(convert(v, arguments[0], f"{path}[{i}]") for i, v in enumerate(value))
    if origin in (dict, Mapping) or wanted is dict:
        if not isinstance(value, Mapping):
            raise _wrong(path, value, wanted)
        inner = arguments[1] if arguments else Any
        return {str(k): convert(v, inner, join(path, str(k))) for k, v in value.items()}
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if wanted is float and isinstance(value, float) and not math.isfinite(value):
        raise OptionError(f"{path}: {value} is not a number that can be used")
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise _wrong(path, value, wanted)
    return value


def _convert_union(value: Any, members: tuple[Any, ...], wanted: Any, path: str) -> Any:
    if value is None and type(None) in members:
        return None
    members = tuple(m for m in members if m is not type(None))
    if len(members) == 1:
        return convert(value, members[0], path)
    for member in members:
        try:
            return convert(value, member, path)
        except OptionError:
            continue
    raise _wrong(path, value, wanted)


def type_name(wanted: Any) -> str:
    """How a type is called in messages and in ``config/README.md``."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(a) for a in arguments)
    if wanted is type(None):
        return "null"
    if origin in (list, tuple):
        return f"list of {type_name(arguments[0])}"
    if origin in (dict, Mapping) or wanted is dict:
        return "block"
    if isinstance(wanted, type) and issubclass(wanted, Options):
        return "block"
    return {int: "whole number", float: "number", str: "text", bool: "true or false", Any: "anything"}.get(
        wanted, getattr(wanted, "__name__", str(wanted))
    )


def _wrong(path: str, value: Any, wanted: Any) -> OptionError:
    return OptionError(f"{path}: expected {type_name(wanted)}, found {value!r}")


def _check_limits(value: Any, field: dataclasses.Field[Any]) -> None:
    if value is None:
        return
    choices, minimum = field.metadata.get("choices"), field.metadata.get("minimum")
    above, maximum = field.metadata.get("above"), field.metadata.get("maximum")
    for one in value if isinstance(value, tuple) else (value,):
        if choices is not None and one not in choices:
            near = nearest(str(one), map(str, choices))
            raise OptionError(
                f"{field.name}: {one!r} is not one of {', '.join(map(str, choices))}",
                hint=f"did you mean '{near}'?" if near else None,
            )
        if isinstance(one, bool) or not isinstance(one, int | float):
            continue
        if minimum is not None and one < minimum:
            raise OptionError(f"{field.name}: {one} is below {minimum:g}, the least that makes sense")
        if above is not None and one <= above:
            raise OptionError(f"{field.name}: must be above {above:g}, found {one}")
        if maximum is not None and one > maximum:
            raise OptionError(f"{field.name}: {one} is above {maximum:.10g}, the most that makes sense")
