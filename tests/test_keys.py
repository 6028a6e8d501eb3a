"""Run keys: everything that can change a text, and nothing else."""

import json
import os
import time

import pytest

from espnet3_rules import keys
from espnet3_rules.errors import DataError, OptionError
from espnet3_rules.keys import BUILT_IN, Digests, describe_run, run_key, version_of

TINY = "tests.tiny_recogniser.WaveText"


@pytest.fixture
def key(tmp_path):
    def of(model, options=None, version=1):
        with Digests(tmp_path / "digests.json") as digests:
            return run_key(describe_run(model, options or {}, version=version, digests=digests))

    return of


def old(path):
    """A file as of an hour ago: one just written is not yet remembered."""
    stamp = time.time() - 3600
    os.utime(path, (stamp, stamp))


def test_the_content_of_the_model_and_not_where_it_lies(key, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
        (tmp_path / name / ".hidden").write_text(name)
    assert key(tmp_path / "one") == key(tmp_path / "two")
    before = key(tmp_path / "one")
    (tmp_path / "one" / "model.safetensors").write_bytes(b"Weights")
    assert key(tmp_path / "one") != before
    (tmp_path / "two" / "tokens.model").write_bytes(b"")
    assert key(tmp_path / "two") != before


def test_options_version_and_files_they_name(key, tmp_path):
    model = {"_target_": TINY}
    lm = tmp_path / "lm.arpa"
    lm.write_text("one")
    keys_seen = [key(model), key(model, {"beam": 2}), key(model, version=2), key(model, {"lm": str(lm)})]
    lm.write_text("two")
    keys_seen += [key(model, {"lm": str(lm)}), key({**model, "noise": 0.1}), key({**model, "weights": str(lm)})]
    assert len(set(keys_seen)) == len(keys_seen)
    moved = tmp_path / "moved.arpa"
    lm.rename(moved)
    assert key(model, {"lm": str(moved)}) == keys_seen[4]


def test_weights_are_read_once(tmp_path, monkeypatch):
    path = tmp_path / "w"
    path.write_bytes(b"123")
    old(path)
    cache = tmp_path / "cache.json"
    with Digests(cache) as digests:
        first = digests(path)
    monkeypatch.setattr(keys, "file_digest", lambda path: pytest.fail("read again"))
    with Digests(cache) as digests:
        assert digests(path) == first
    monkeypatch.undo()
    path.write_bytes(b"456")
    with Digests(cache) as digests:
        assert digests(path) != first
    assert json.loads(cache.read_text())[str(path)][2] == first  # too young to be remembered
    cache.write_text("damaged")
    with Digests(cache) as digests:
        assert digests(path) != first


def test_versions_are_read_off_the_source(monkeypatch):
    monkeypatch.setattr(keys.importlib, "import_module", lambda name: pytest.fail("imported"))
    assert version_of(BUILT_IN) == 1 and version_of(TINY) == 1 and version_of(TINY + ".build") == 1


def test_versions_of_what_has_to_be_imported():
    assert version_of("tests.test_keys.Inherits") == 7
    assert version_of("tests.test_keys.test_no_model") is None


class _Base:
    VERSION = 7


class Inherits(_Base):
    pass


def test_no_model(key, tmp_path):
    with pytest.raises(DataError, match="no model there"):
        key(tmp_path / "nowhere")
    with pytest.raises(OptionError, match="no such module"):
        key({"_target_": "no.such.thing"})
    with pytest.raises(OptionError, match="cannot be imported"):
        key({"_target_": "tests.tiny_recogniser.Nothing"})
    with pytest.raises(OptionError, match="missing"):
        key({"model": 1})


@pytest.mark.parametrize("target", ["raises_when_imported.A", "raises_when_imported.inner.A"])
@pytest.mark.parametrize(("line", "said"), [("1 / 0", "ZeroDivisionError"), ("raise SystemExit(0)", "SystemExit")])
def test_a_module_that_raises_anything_while_it_is_imported(tmp_path, monkeypatch, target, line, said):
    package = tmp_path / "raises_when_imported"
    package.mkdir()
    (package / "__init__.py").write_text(line)
    (package / "inner.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionError, match=rf"{target} cannot be imported: {said}") as caught:
        version_of(target)
    assert caught.value.hint


def test_a_path_of_dots():
    with pytest.raises(OptionError, match=r"_target_: \.\.: no such module"):
        version_of("..")
