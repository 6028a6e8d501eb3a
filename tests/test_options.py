from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from espnet3_rules.errors import OptionError, RulesError
from espnet3_rules.options import Options, convert, lay_over, nested, opt


@dataclass(frozen=True)
class Inner(Options):
    beam_size: int = opt(1, "Width.", minimum=1)
    workers: int = opt(1, "Processes.", affects_result=False)


@dataclass(frozen=True)
class Outer(Options):
    name: str = opt(doc="A name.")
    inner: Inner = opt(Inner, "A block.")
    rate: float = opt(0.5, "A rate.", above=0, maximum=1)
    kind: str = opt("a", "Which.", choices=("alpha", "a"))
    sizes: list[int] = opt([], "Sizes.", minimum=2)
    limit: int | float | None = opt(None, "A count or a fraction.")
    free: dict[str, Any] = opt({}, "Anything.")
    log: str = opt("", "Quiet.", affects_result=False)


def test_values_are_kept_and_whole_numbers_become_numbers():
    made = Outer.from_dict({"name": "x", "rate": 1, "sizes": [2, 3], "inner": {"beam_size": 4}, "limit": 0.5})
    assert made.rate == 1.0 and isinstance(made.rate, float)
    assert made.sizes == (2, 3)
    assert made.inner == Inner(beam_size=4)
    assert made.limit == 0.5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "top.name: missing"),
        ({"name": "x", "iner": {}}, "top.iner: unknown key\nHINT: did you mean 'inner'?"),
        ({"name": "x", "inner": {"beam_sise": 1}}, "top.inner.beam_sise: unknown key\nHINT: did you mean 'beam_size'?"),
        ({"name": "x", "inner": {"beam_size": 0}}, "top.inner.beam_size: 0 is below 1"),
        ({"name": "x", "inner": {"beam_size": "8"}}, "top.inner.beam_size: expected whole number, found '8'"),
        ({"name": "x", "inner": {"beam_size": True}}, "expected whole number, found True"),
        ({"name": "x", "inner": 3}, "top.inner: expected a block of keys, found 3"),
        ({"name": 3}, "top.name: expected text, found 3"),
        ({"name": "x", "rate": 0}, "top.rate: must be above 0"),
        ({"name": "x", "rate": 1.5}, "top.rate: 1.5 is above 1"),
        ({"name": "x", "rate": float("nan")}, "top.rate: nan is not a number"),
        ({"name": "x", "kind": "alpa"}, "top.kind: 'alpa' is not one of alpha, a\nHINT: did you mean 'alpha'?"),
        ({"name": "x", "sizes": "23"}, "top.sizes: expected list of whole number, found '23'"),
        ({"name": "x", "sizes": [2, "b"]}, "top.sizes[1]: expected whole number, found 'b'"),
        ({"name": "x", "sizes": [2, 1]}, "top.sizes: 1 is below 2"),
        ({"name": "x", "limit": "many"}, "top.limit: expected whole number or number or null, found 'many'"),
        ({"name": "x", "free": [1]}, "top.free: expected block, found [1]"),
    ],
)
def test_what_cannot_be_is_refused_with_its_path(values, message):
    with pytest.raises(OptionError) as found:
        Outer.from_dict(values, "top")
    assert message in str(found.value)
    assert found.value.exit_code == 2


def test_building_directly_checks_as_well():
    with pytest.raises(OptionError, match="beam_size"):
        Inner(beam_size=0)


def test_a_rule_between_keys_keeps_the_path():
    @dataclass(frozen=True)
    class Both(Options):
        a: int = opt(1, "")
        b: int = opt(2, "")

        def check(self):
            if self.a > self.b:
                raise OptionError("a: larger than b", hint="swap them")

    with pytest.raises(OptionError) as found:
        convert({"a": 3}, Both, "x.y")
    assert str(found.value) == "x.y.a: larger than b\nHINT: swap them"


def test_result_and_quiet_keys_part_the_options():
    made = Outer(name="x", inner=Inner(workers=3), log="loud")
    whole, result, quiet = made.to_dict(), made.to_dict(only_result=True), made.quiet_dict()
    assert quiet == {"inner": {"workers": 3}, "log": "loud"}
    assert "log" not in result and result["inner"] == {"beam_size": 1}
    assert lay_over(result, quiet) == whole
    assert Outer.from_dict(whole) == made


def test_lay_over_replaces_a_block_of_another_kind():
    below = {"optimizer": {"_target_": "torch.optim.AdamW", "lr": 1, "betas": [0.9, 0.98]}}
    assert lay_over(below, {"optimizer": {"lr": 2}})["optimizer"]["betas"] == [0.9, 0.98]
    assert lay_over(below, {"optimizer": {"_target_": "torch.optim.SGD", "lr": 2}}) == {
        "optimizer": {"_target_": "torch.optim.SGD", "lr": 2}
    }


def test_nested():
    assert nested(["a", "b"], 1) == {"a": {"b": 1}}


def test_errors_survive_the_way_between_processes():
    error = pickle.loads(pickle.dumps(OptionError("no", hint="yes")))
    assert isinstance(error, RulesError) and str(error) == "no\nHINT: yes"
