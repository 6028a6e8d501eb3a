import pickle
import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3_rules.errors import OptionError
from espnet3_rules.normalise import STEPS, Normaliser


@pytest.mark.parametrize(
    ("step", "text", "expected"),
    [
        ("nfkc", "Ｆｕｌｌ ﬁ ｶﾞ e\u0301", "Full fi ガ é"),
        ("nfc", "e\u0301 ﬁ", "é ﬁ"),
        ("lower", "ÀÉ ΣΑΣ", "àé σας"),
        ("upper", "straße", "STRASSE"),
        ("whitespace", " \ta\u3000b \n c\u00a0", "a b c"),
        ("whitespace", " \n ", ""),
        ("punctuation", "Well, don’t stop — (now)!", "Well  don't stop    now  "),
        ("punctuation", "'tis rock 'n' roll's", " tis rock  n  roll's"),
        ("punctuation", "これは、ペンです。", "これは ペンです "),
        ("punctuation", "नमस्ते। क्या؟", "नमस्ते  क्या "),
        ("punctuation", "co-op x_y a/b", "co op x y a b"),
        ("punctuation", "क्'ष", "क्'ष"),  # the mark before the apostrophe belongs to its letter
        ("punctuation", "5 < 6 ~ 7`", "5   6   7 "),
    ],
)
def test_step(step, text, expected):
    assert Normaliser([step])(text) == expected


def test_steps_are_applied_in_order():
    assert Normaliser(["punctuation", "whitespace", "lower"])("A,  b!") == "a b"
    assert Normaliser(["whitespace", "punctuation"])("A, b!") == "A  b "
    assert Normaliser([])(" as it is ") == " as it is "


@given(st.text())
def test_each_step_done_twice_is_done_once(text):
    for step in STEPS:
        once = Normaliser([step])(text)
        assert Normaliser([step])(once) == once


def test_punctuation_leaves_letters_marks_and_digits_of_every_script():
    kept = [chr(i) for i in range(sys.maxunicode + 1) if unicodedata.category(chr(i))[0] in "LMN"]
    text = "".join(c for c in kept if c != "\u02bc")  # a letter by category, an apostrophe by use
    assert Normaliser(["punctuation"])(f"{text} ") == f"{text} "


def test_versions_name_each_step():
    assert Normaliser(["nfkc", "lower"]).versions == [["nfkc", 1], ["lower", 1]]


def test_unknown_step_names_the_nearest():
    with pytest.raises(OptionError, match=r"normalise\[1\]: no normalisation step 'lowr'") as error:
        Normaliser(["nfkc", "lowr"])
    assert "did you mean 'lower'?" in error.value.hint
    assert "whitespace" in error.value.hint


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    path = tmp_path / "own_normalisation_steps.py"
    path.write_text("def shout(text):\n    return text + '!'\n\nNOT_ONE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop("own_normalisation_steps", None)


def test_own_function_by_dotted_path(own_module):
    normaliser = Normaliser(["upper", "own_normalisation_steps.shout"])
    assert normaliser("a") == "A!"
    (_, (name, version)) = normaliser.versions
    assert name == "own_normalisation_steps.shout"
    assert isinstance(version, str) and len(version) == 16
    assert pickle.loads(pickle.dumps(normaliser))("b") == "B!"


@pytest.mark.parametrize(
    "name", ["own_normalisation_steps.nothing", "no_such_package.f", "own_normalisation_steps.NOT_ONE"]
)
def test_own_function_that_is_none(own_module, name):
    with pytest.raises(OptionError, match=name):
        Normaliser([name])


@pytest.mark.parametrize("name", [".", ".f", "raises_at_import.f", "leaves_at_import.f"])
def test_a_module_that_raises_anything_while_it_is_imported(tmp_path, monkeypatch, name):
    (tmp_path / "raises_at_import.py").write_text("1 / 0")
    (tmp_path / "leaves_at_import.py").write_text("import sys; sys.exit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionError, match=re.escape(f"cannot import {name!r}: ")):
        Normaliser([name])
