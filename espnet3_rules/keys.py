"""Run keys: what a decoded text depends on, apart from the utterance itself."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from espnet3_rules.errors import DataError, OptionError, RulesError
from espnet3_rules.records import content_key, file_digest, read_json, write_json

#: The class that reads the folder of a model trained here.
BUILT_IN = "espnet3_rules.models.recogniser.CtcRecogniser"
#: A file younger than this, in seconds, may change again without its time of change showing it.
_YOUNG_S = 2.0


class Digests:
    """SHA-256 of files, remembered by path, size and time of change, so that weights are read once.

    Args:
        cache: where they are remembered; a file that cannot be written costs time, nothing else.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._known: dict[str, list[Any]] = {}
        self._changed = False
        with contextlib.suppress(DataError):
            found = read_json(cache)
            self._known = found if isinstance(found, dict) else {}

    def __enter__(self) -> Digests:
        return self

    def __exit__(self, *_: object) -> None:
        if self._changed:
            with contextlib.suppress(OSError, RulesError):
                write_json(self._cache, self._known)

    def __call__(self, path: Path) -> str:
        """The digest of one file."""
        name, stat = str(path.resolve()), path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns]
        if name in self._known and self._known[name][:2] == stamp:
            return str(self._known[name][2])
        digest = file_digest(path)
        if time.time() - stat.st_mtime > _YOUNG_S:
            self._known[name] = [*stamp, digest]
            self._changed = True
        return digest

    def of_tree(self, path: Path) -> dict[str, str]:
        """The digest of a file, or of each file in a folder by its relative name; hidden ones do not count."""
        if path.is_file():
            return {"": self(path)}
        files = (p.relative_to(path) for p in sorted(path.rglob("*")) if p.is_file())
        return {str(p): self(path / p) for p in files if not any(part.startswith(".") for part in p.parts)}


def describe_run(
    model: Path | Mapping[str, Any], options: Mapping[str, Any], *, version: int, digests: Digests
) -> dict[str, Any]:
    """All that the texts of a run depend on; `run_key` of it names the journal.

    Args:
        model: a folder, or a ``_target_`` block. Of the folder the files count; of the block its values, the
            ``VERSION`` of its class, and the content of files and folders that it names.
        options: those of decoding that can change a text; the content of the files that they name counts.
        version: of the decoding stage.
        digests: of files.

    Raises:
        DataError: there is no such model; OptionError: its class cannot be found.
    """
    if isinstance(model, Mapping):
        target = model.get("_target_")
        if not isinstance(target, str):
            raise OptionError("_target_: missing", hint="the import path of the recogniser's class")
        what = _described(model, digests)
    else:
        target = BUILT_IN
        tree = digests.of_tree(Path(model)) if Path(model).is_dir() else {}
        if not tree:
            raise DataError(f"{model}: no model there", hint="train the system first, or give its `_target_`")
        what = {"files": {"": tree}}
    return {
        "model": {**what, "class": target, "version": version_of(target)},
        "options": _described(options, digests),
        "version": version,
    }


def run_key(described: Mapping[str, Any]) -> str:
    """32 hexadecimal digits for what `describe_run` gave."""
    return content_key(described)[:32]


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), inner)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _flat(f"{path}[{number}]", inner)
    else:
        yield path, value


def _described(values: Mapping[str, Any], digests: Digests) -> dict[str, Any]:
    """Plain values as they are; for each text that names a file or folder the digests of what is in it instead."""
    plain, files = {}, {}
    for key, value in _flat("", values):
        plain[key] = value
        if key != "_target_" and (path := _named(value)):
            files[key] = digests.of_tree(path)
            del plain[key]
    return {"values": plain, "files": files}


def _named(value: Any) -> Path | None:
    """The file or folder that a value names; a mere word names none, though a folder may happen to have its name."""
    if isinstance(value, str) and ("/" in value or Path(value).suffix):
        with contextlib.suppress(OSError, ValueError):  # texts that cannot be a path
            if Path(value).exists():
                return Path(value)
    return None


def named_files(values: Mapping[str, Any]) -> list[str]:
    """The files that the values of a block name, those of folders too: what a run key has the content of."""
    found: list[str] = []
    for key, value in _flat("", values):
        if key != "_target_" and (path := _named(value)):
            tree = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
            found += [str(p) for p in tree if not any(part.startswith(".") for part in p.relative_to(path).parts)]
    return found


def version_of(target: str) -> int | None:
    """``VERSION`` of the class (or of the class around the method) that ``target`` names; None where there is none.

    Read off the source where it stands there as a number: importing a model's module can take seconds.

    Raises:
        OptionError: there is no such module or class.
    """
    parts = target.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            continue
        except (Exception, SystemExit) as error:  # it imports the packages around the module
            raise _not_imported(target, error) from error
        if spec is None:
            continue
        if spec.origin and spec.origin.endswith(".py"):
            with contextlib.suppress(OSError, SyntaxError, ValueError):
                tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
                version = _written_version(tree, parts[end])
                if version is not None:
                    return version
        try:
            found: Any = importlib.import_module(module)
            for name in parts[end:]:
                found = getattr(found, name)
                if isinstance(getattr(found, "VERSION", None), int):
                    return int(found.VERSION)
        except (Exception, SystemExit) as error:  # a user's module may raise anything while it is imported
            raise _not_imported(target, error) from error
        return None
    raise OptionError(
        f"_target_: {target}: no such module", hint="an import path such as mypackage.models.MyRecogniser, installed"
    )


def _not_imported(target: str, error: BaseException) -> OptionError:
    said = error if isinstance(error, ImportError | AttributeError) else repr(error)
    return OptionError(
        f"_target_: {target} cannot be imported: {said}", hint="see that `python -c 'import ...'` of its module works"
    )


def _written_version(tree: ast.Module, name: str) -> int | None:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for line in node.body:
                targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
                value = getattr(line, "value", None)
                if any(isinstance(t, ast.Name) and t.id == "VERSION" for t in targets) and isinstance(
                    value, ast.Constant
                ):
                    return int(value.value) if isinstance(value.value, int) else None
    return None
