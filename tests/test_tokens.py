import json
import pickle
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3_rules.errors import DataError, OptionError
from espnet3_rules.records import read_json, write_json
from espnet3_rules.tokens import BLANK, REPLACEMENT, UNKNOWN, TokenOptions, load_tokens, train_tokens

SCRIPTS = [
    "the quick brown fox",
    "日本語の 音声認識",
    "مرحبا بالعالم كلنا",
    "नमस्ते दुनिया क्षत्रिय",
    "한국어 음성 인식",
    "भारत 👩‍👩‍👧 🇩🇪 👍🏽",
    "ไทย Ελληνικά кириллица",
]
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def digit_strings(number: int = 200, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(DIGITS, k=rng.randint(1, 7))) for _ in range(number)]


def make(kind: str, texts=SCRIPTS, **options):
    sizes = {"char": None, "bpe": 110, "unigram": 80}
    return train_tokens(texts, TokenOptions(kind=kind, **{"vocab_size": sizes[kind], **options}))


KINDS = pytest.mark.parametrize("kind", ["char", "bpe", "unigram"])


@KINDS
def test_text_of_any_script_survives_encoding(kind):
    tokens = make(kind)
    for text in SCRIPTS:
        ids = tokens.encode(text)
        assert BLANK not in ids and UNKNOWN not in ids
        assert max(ids) < tokens.vocab_size
        assert tokens.decode(ids) == text


@KINDS
def test_same_texts_give_the_same_tokens(kind):
    assert make(kind) == make(kind)


def test_order_of_the_texts_does_not_change_characters():
    assert make("char") == make("char", reversed(SCRIPTS))


@KINDS
def test_saved_and_loaded_tokens_are_the_same(kind, tmp_path):
    tokens = make(kind)
    tokens.save(tmp_path / "model")
    loaded = load_tokens(tmp_path / "model")
    assert loaded == tokens
    assert loaded.encode("quick 日本") == tokens.encode("quick 日本")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"tokens.json"}


@KINDS
def test_tokens_reach_a_worker_process(kind):
    tokens = make(kind)
    ids = tokens.encode("fox")  # after first use, when sentencepiece's processor is loaded
    assert pickle.loads(pickle.dumps(tokens)).encode("fox") == ids


@KINDS
def test_unseen_characters_become_unknown_and_show(kind):
    tokens = make(kind, digit_strings(), **({} if kind == "char" else {"vocab_size": 26}))
    ids = tokens.encode("one Ж two")
    assert ids.count(UNKNOWN) == 1
    assert tokens.decode(ids) == f"one {REPLACEMENT} two"


def test_characters_are_ids_in_code_point_order_after_blank_and_unknown():
    tokens = train_tokens(["ba b"], TokenOptions())
    assert tokens.pieces == ("", REPLACEMENT, " ", "a", "b")
    assert tokens.vocab_size == 5
    assert tokens.encode("a b") == [3, 2, 4]
    assert tokens.decode([BLANK, 3, BLANK, 4, UNKNOWN]) == f"ab{REPLACEMENT}"


@KINDS
def test_empty_text_is_no_ids(kind):
    tokens = make(kind)
    assert tokens.encode("") == tokens.encode("  ") == []
    assert tokens.decode([]) == ""


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_vocab_size_counts_blank_and_unknown(kind):
    assert make(kind, digit_strings(), vocab_size=26).vocab_size == 26


def test_text_is_normalised_in_training_and_in_use():
    tokens = train_tokens(["Ｏne,  Two!"], TokenOptions(normalise=["nfkc", "lower", "punctuation", "whitespace"]))
    assert tokens.decode(tokens.encode("TWO... ONE")) == "two one"
    assert UNKNOWN not in tokens.encode("TWO... ONE")


def test_rare_characters_can_be_left_out():
    texts = ["aaaa bbbb"] * 24 + ["c"]
    tokens = train_tokens(texts, TokenOptions(character_coverage=0.99))
    assert "c" not in tokens.pieces and {"a", "b", " "} < set(tokens.pieces)
    assert "c" in train_tokens(texts, TokenOptions()).pieces


def test_which_characters_are_left_out_does_not_depend_on_the_order_of_the_texts():
    kept = {train_tokens(texts, TokenOptions(character_coverage=0.5)).pieces for texts in (["ab", "cd"], ["dc", "ba"])}
    assert kept == {("", REPLACEMENT, "a", "b")}


def test_the_sign_of_the_unknown_in_a_transcript_is_unknown():
    tokens = train_tokens([f"a{REPLACEMENT}b"], TokenOptions())
    assert tokens.pieces == ("", REPLACEMENT, "a", "b")
    assert tokens.encode(f"a{REPLACEMENT}") == [2, UNKNOWN]


@KINDS
def test_nothing_is_normalised_but_by_the_chain(kind):
    texts = ["ﬁne Ｆull", "ﬁx Ｆun"] * 3
    tokens = make(kind, texts, normalise=[], **({} if kind == "char" else {"vocab_size": 13}))
    assert tokens.decode(tokens.encode("ﬁne Ｆun")) == "ﬁne Ｆun"


@KINDS
def test_a_long_transcript_is_not_dropped(kind):
    texts = ["ab " * 3000 + "q"]
    tokens = train_tokens(texts, TokenOptions(kind=kind, vocab_size=None if kind == "char" else 6))
    assert UNKNOWN not in tokens.encode("q")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=5))
def test_characters_give_back_whatever_was_trained_on(texts):
    options = TokenOptions(normalise=[])
    if not any(texts):
        with pytest.raises(DataError, match="no text"):
            train_tokens(texts, options)
        return
    tokens = train_tokens(texts, options)
    for text in texts:
        assert tokens.decode(tokens.encode(text)) == text


@KINDS
def test_no_text_at_all(kind):
    with pytest.raises(DataError, match="every transcript of the training set is empty after nfkc, whitespace"):
        make(kind, ["", "  "])


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(("size", "what"), [(100_000, "at most"), (5, "at least")])
def test_vocab_size_that_does_not_fit_names_one_that_does(kind, size, what):
    with pytest.raises(OptionError, match=f"vocab_size: {size} .*{what} (\\d+)") as error:
        make(kind, digit_strings(), vocab_size=size)
    limit = int(str(error.value.message).split()[-1])
    assert make(kind, digit_strings(), vocab_size=limit).vocab_size == limit
    with pytest.raises(OptionError, match="vocab_size"):
        make(kind, digit_strings(), vocab_size=limit + (1 if what == "at most" else -1))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "chars"}, "kind: 'chars' is not one of"),
        ({"kind": "char", "vocab_size": 100}, "vocab_size: 100 has no effect"),
        ({"kind": "bpe"}, "vocab_size: missing"),
        ({"normalise": ["nfkd"]}, r"normalise\[0\]: no normalisation step 'nfkd'"),
        ({"character_coverage": 0}, "character_coverage: must be above 0"),
    ],
)
def test_options_that_cannot_be(values, message):
    with pytest.raises(OptionError, match=rf"tokens\.{message}"):
        TokenOptions.from_dict(values, "tokens")


def test_tokens_of_another_normalisation_are_refused(tmp_path):
    make("char").save(tmp_path)
    record = read_json(tmp_path / "tokens.json")
    record["normalise"][0][1] = 0
    write_json(tmp_path / "tokens.json", record)
    with pytest.raises(DataError, match=r"made by version 1 with normalisation .*'nfkc', 0"):
        load_tokens(tmp_path)


def test_missing_or_damaged_files(tmp_path):
    with pytest.raises(DataError, match=r"tokens\.json: no such file"):
        load_tokens(tmp_path)
    (tmp_path / "tokens.json").write_text("{}")
    with pytest.raises(DataError, match="not a token file"):
        load_tokens(tmp_path)
    make("bpe").save(tmp_path)
    record = json.loads((tmp_path / "tokens.json").read_text())
    (tmp_path / "tokens.json").write_text(json.dumps({**record, "model": record["model"][:-3] + "?"}))
    with pytest.raises(DataError, match="not a token file"):
        load_tokens(tmp_path)


def test_import_is_cheap():
    code = "import espnet3_rules.tokens, sys; print({'torch', 'numpy', 'sentencepiece', 'lhotse'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
