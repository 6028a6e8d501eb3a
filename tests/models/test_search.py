import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet3_rules.errors import DataError, EnvironmentProblem, OptionError
from espnet3_rules.models.search import LanguageModel, SearchOptions, search
from espnet3_rules.tokens import TokenOptions, Tokens, train_tokens

CHARACTERS = Tokens(TokenOptions(), ("", "\ufffd", " ", "a", "b"))
PIECES = Tokens(TokenOptions(kind="bpe", vocab_size=6), ("", "\ufffd", " a", "a", "aa", " b"), b"unused to decode")

ARPA = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-2.0\t<unk>
0\t<s>\t-0.3
-1.0\t</s>
-1.5\ta\t-0.3
-0.5\tb\t-0.3

\\2-grams:
-0.2\t<s> b
-0.1\ta b
-0.4\tb </s>

\\end\\
"""


@pytest.fixture(scope="session")
def arpa(tmp_path_factory):
    path = tmp_path_factory.mktemp("lm") / "two words.arpa"
    path.write_text(ARPA)
    return path


def exhaustive(**options) -> SearchOptions:
    """Options with which nothing is pruned in the small examples here."""
    return SearchOptions(method="beam", beam_size=5000, nbest=1000, token_min_logp=-1e9, **options)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return (x - np.log(np.exp(x).sum(axis=1, keepdims=True))).astype(np.float32)


def matrices(vocab: int = 5, frames: int = 4) -> st.SearchStrategy:
    row = st.lists(st.floats(-4, 4, width=16), min_size=vocab, max_size=vocab)
    return st.lists(row, min_size=1, max_size=frames).map(lambda rows: log_softmax(np.array(rows)))


def all_alignments(log_probs: np.ndarray, tokens: Tokens, bonus=lambda text: 0.0) -> dict[str, float]:
    """Each text with its log probability, by writing down every alignment."""
    sums: dict[str, float] = {}
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        ids = [token for token, _ in itertools.groupby(path) if token]
        text = " ".join(tokens.decode(ids).split())
        logp = sum(float(log_probs[t, token]) for t, token in enumerate(path))
        sums[text] = sums.get(text, 0.0) + math.exp(logp)
    return {text: math.log(p) + bonus(text) for text, p in sums.items()}


def check_all(found: list[tuple[str, float]], expected: dict[str, float]) -> None:
    assert dict(found) == pytest.approx(expected, abs=1e-4)
    assert len(found) == len(expected)
    assert found == sorted(found, key=lambda item: (-item[1], item[0]))


@pytest.mark.parametrize("tokens", [CHARACTERS, PIECES], ids=["characters", "pieces"])
def test_beam_sums_over_all_alignments(tokens):
    @given(matrices(tokens.vocab_size))
    def run(log_probs):
        check_all(search(log_probs, tokens, exhaustive()), all_alignments(log_probs, tokens))

    run()


@pytest.mark.parametrize("tokens", [CHARACTERS, PIECES], ids=["characters", "pieces"])
def test_language_model_and_bonus_count_for_every_word_and_the_end(tokens, arpa):
    kenlm = pytest.importorskip("kenlm")
    reference = kenlm.Model(str(arpa))

    def bonus(text):
        return 0.7 * reference.score(text, bos=True, eos=True) * math.log(10) + 0.3 * len(text.split())

    @given(matrices(tokens.vocab_size))
    def run(log_probs):
        found = search(log_probs, tokens, exhaustive(lm=str(arpa), lm_weight=0.7, length_bonus=0.3))
        check_all(found, all_alignments(log_probs, tokens, bonus))

    run()


def test_language_model_changes_the_winner(arpa):
    pytest.importorskip("kenlm")
    # "a" is a little more likely than "b" by sound, and ten times less likely by the model.
    log_probs = np.log(np.array([[0.1, 0.01, 0.01, 0.48, 0.40]], dtype=np.float32))
    assert search(log_probs, CHARACTERS, exhaustive())[0][0] == "a"
    options = exhaustive(lm=str(arpa), lm_weight=0.5)
    assert search(log_probs, CHARACTERS, options)[0][0] == "b"
    # log10 P(b </s> | <s>) is -0.2 - 0.4
    assert search(log_probs, CHARACTERS, options)[0][1] == pytest.approx(
        math.log(0.40) + 0.5 * -0.6 * math.log(10), abs=1e-4
    )


def test_length_bonus_changes_the_winner():
    log_probs = np.log(
        np.array([[0.01, 0.01, 0.01, 0.96, 0.01], [0.55, 0.01, 0.40, 0.02, 0.02], [0.01, 0.01, 0.01, 0.01, 0.96]])
    )
    assert search(log_probs, CHARACTERS, SearchOptions(method="beam"))[0][0] == "ab"
    assert search(log_probs, CHARACTERS, SearchOptions(method="beam", length_bonus=1.0))[0][0] == "a b"


@given(matrices(frames=12))
def test_greedy_is_the_best_path_collapsed(log_probs):
    ((text, score),) = search(log_probs, CHARACTERS, SearchOptions())
    path = log_probs.argmax(axis=1)
    assert text == " ".join(CHARACTERS.decode(int(t) for t, _ in itertools.groupby(path) if t).split())
    assert score == pytest.approx(float(log_probs.max(axis=1).sum()), abs=1e-3)


def test_greedy_needs_a_blank_between_double_letters():
    def text(path):
        return search(log_softmax(np.eye(5)[path] * 9), CHARACTERS, SearchOptions())[0][0]

    assert text([3, 3, 0, 3, 4, 0, 0]) == "aab"
    assert text([3, 3, 3, 3]) == "a"
    assert text([0, 0]) == ""
    assert text([2, 3, 2, 0, 2, 4, 2]) == "a b"


@given(matrices(), st.integers(1, 6))
def test_a_narrow_beam_finds_a_part_of_everything(log_probs, width):
    everything = dict(search(log_probs, CHARACTERS, exhaustive()))
    for text, score in search(log_probs, CHARACTERS, SearchOptions(method="beam", beam_size=width, nbest=width)):
        assert score <= everything[text] + 1e-6
    text, score = search(log_probs, CHARACTERS, SearchOptions())[0]
    assert score <= everything[text] + 1e-6  # one alignment of many


def textbook(log_probs, tokens, width, word_bonus):
    """The same search as a textbook has it: prefixes are tuples, masses lie in dictionaries, logs are added."""

    def bonus(ids):
        text = tokens.decode(ids)
        return word_bonus * len(text.split() if text.endswith(" ") else text.split()[:-1])

    beams = {(): (0.0, -np.inf)}
    for frame in log_probs.astype(float):
        blank, label = {}, {}
        for ids, (b, t) in beams.items():
            blank[ids] = np.logaddexp(b, t) + frame[0]
            if ids:
                label[ids] = t + frame[ids[-1]]
        for ids, (b, t) in beams.items():
            for token in range(1, len(frame)):
                mass = b if ids and ids[-1] == token else np.logaddexp(b, t)
                longer = (*ids, token)
                label[longer] = np.logaddexp(label.get(longer, -np.inf), mass + frame[token])
        grown = {ids: (blank.get(ids, -np.inf), label.get(ids, -np.inf)) for ids in [*blank, *label]}
        best = sorted(grown, key=lambda ids: -(np.logaddexp(*grown[ids]) + bonus(ids)))[:width]
        beams = {ids: grown[ids] for ids in best}
    texts = {}
    for ids, masses in beams.items():
        text = " ".join(tokens.decode(ids).split())
        score = np.logaddexp(*masses) + word_bonus * len(text.split())
        texts[text] = np.logaddexp(texts.get(text, -np.inf), score)
    return texts


@pytest.mark.parametrize("word_bonus", [0.0, 2.0, -2.0])
@pytest.mark.parametrize("width", [1, 2, 3, 7, 20])
def test_pruning_is_that_of_the_textbook(width, word_bonus):
    rng = np.random.default_rng(width)
    options = SearchOptions(method="beam", beam_size=width, nbest=width, length_bonus=word_bonus, token_min_logp=-1e9)
    for _ in range(15):
        log_probs = log_softmax(rng.normal(size=(10, 5)) * 2)
        found = search(log_probs, CHARACTERS, options)
        assert dict(found) == pytest.approx(textbook(log_probs, CHARACTERS, width, word_bonus), abs=1e-4)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20))
def test_one_prefix_is_enough_where_the_network_is_sure(path):
    log_probs = np.log(np.full((len(path), 5), 0.02))
    log_probs[np.arange(len(path)), path] = math.log(0.92)
    greedy = search(log_probs, CHARACTERS, SearchOptions())[0][0]
    assert search(log_probs, CHARACTERS, SearchOptions(method="beam", beam_size=1))[0][0] == greedy


def test_equal_texts_come_in_a_fixed_order():
    uniform = np.log(np.full((3, 5), 0.2, dtype=np.float32))
    found = search(uniform, CHARACTERS, exhaustive())
    assert found[0][0] == "a" and found[1][0] == "b"  # equal by symmetry
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-9)
    # Of equal prefixes those survive that were there first, then those with the smaller token id.
    vocabulary = Tokens(TokenOptions(), ("", *(chr(ord("a") + i) for i in range(25))))
    uniform = np.log(np.full((1, 26), 1 / 26, dtype=np.float32))
    found = search(uniform, vocabulary, SearchOptions(method="beam", beam_size=20, nbest=20))
    assert [text for text, _ in found] == ["", *(chr(ord("a") + i) for i in range(19))]


def test_nbest_are_distinct_and_at_most_as_many():
    rng = np.random.default_rng(1)
    log_probs = log_softmax(rng.normal(size=(12, 6)))
    found = search(log_probs, PIECES, SearchOptions(method="beam", beam_size=20, nbest=7))
    assert 1 < len(found) <= 7
    assert len({text for text, _ in found}) == len(found)


def test_improbable_tokens_are_not_tried_but_the_best_always():
    log_probs = np.log(np.array([[0.9, 0.02, 0.02, 0.05, 0.01], [0.2] * 5]))
    texts = dict(search(log_probs, CHARACTERS, SearchOptions(method="beam", nbest=8, token_min_logp=math.log(0.5))))
    # Frame 1: the blank alone is likely enough. Frame 2: none is, so the best, five equals.
    assert set(texts) == {"", "\ufffd", "a", "b"}
    assert texts["a"] == pytest.approx(math.log(0.9 * 0.2))


def test_impossible_tokens_do_no_harm():
    log_probs = np.array([[-np.inf, -np.inf, -np.inf, 0.0, -np.inf], [0.0, *[-np.inf] * 4]])
    assert search(log_probs, CHARACTERS, exhaustive()) == [("a", 0.0)]
    assert search(log_probs, CHARACTERS, SearchOptions()) == [("a", 0.0)]


@pytest.mark.parametrize("options", [SearchOptions(), SearchOptions(method="beam")])
def test_long_input_does_not_underflow(options):
    log_probs = log_softmax(np.random.default_rng(0).normal(size=(3000, 5)))
    ((text, score),) = search(log_probs, CHARACTERS, options)
    assert len(text) > 500 and -1e5 < score < -500


@pytest.mark.parametrize("options", [SearchOptions(), SearchOptions(method="beam")])
def test_network_that_diverged(options):
    log_probs = np.full((2, 5), math.log(0.2))
    log_probs[1] = np.nan
    with pytest.raises(DataError, match="frame 1 of the network's output"):
        search(log_probs, CHARACTERS, options)


@pytest.mark.parametrize("options", [SearchOptions(), SearchOptions(method="beam")])
def test_no_frames_is_the_empty_text(options):
    assert search(np.zeros((0, 5)), CHARACTERS, options) == [("", 0.0)]


def test_trained_tokens_decode_the_text_they_encoded():
    texts = ["one two three", "two two", "अब तक", "three one"] * 5
    for options in (TokenOptions(), TokenOptions(kind="bpe", vocab_size=24)):
        tokens = train_tokens(texts, options)
        for text in texts[:4]:
            path = [i for token in tokens.encode(text) for i in (token, 0)]
            log_probs = log_softmax(np.eye(tokens.vocab_size)[path] * 12)
            for method in ("greedy", "beam"):
                assert search(log_probs, tokens, SearchOptions(method=method))[0][0] == text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "greedy", "lm": "x.arpa"}, "lm: has no effect on method: greedy"),
        ({"beam_size": 5}, "beam_size: has no effect on method: greedy"),
        ({"nbest": 2}, "nbest: has no effect on method: greedy"),
        ({"length_bonus": 0.5}, "length_bonus: has no effect on method: greedy"),
        ({"method": "beam", "lm_weight": 0.5}, "lm_weight: has no effect without a language model"),
        ({"method": "beam", "beam_size": 5, "nbest": 6}, "nbest: 6 texts cannot come from a beam_size of 5"),
        ({"method": "beem"}, "method: 'beem' is not one of greedy, beam"),
        ({"method": "beam", "beam_size": 0}, "beam_size: 0 is below 1"),
        ({"method": "beam", "token_min_logp": 1.0}, "token_min_logp: 1.0 is above 0"),
    ],
)
def test_options_that_do_nothing_are_refused(values, message):
    with pytest.raises(OptionError, match=rf"decode\.{message}"):
        SearchOptions.from_dict(values, "decode")


def test_language_model_that_is_none(tmp_path, arpa, monkeypatch):
    pytest.importorskip("kenlm")
    with pytest.raises(DataError, match=r"no\.arpa: no such file"):
        LanguageModel(tmp_path / "no.arpa")
    (tmp_path / "text.arpa").write_text("not a model\n" * 20)
    with pytest.raises(DataError, match=r"text\.arpa: KenLM cannot read it"):
        LanguageModel(tmp_path / "text.arpa")
    with pytest.raises(DataError, match=r"no\.arpa: no such file"):
        search(np.zeros((1, 5)), CHARACTERS, SearchOptions(method="beam", lm="no.arpa"))
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(EnvironmentProblem, match="not installed") as error:
        LanguageModel(arpa)
    assert "espnet3-rules[lm]" in error.value.hint
