import random
import re
import shutil
import subprocess
import tracemalloc
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from espnet3_rules import alignment, score
from espnet3_rules.alignment import ErrorCounts, align, count_errors
from espnet3_rules.score import ScoredUtterance

needs_sclite = pytest.mark.skipif(not shutil.which("sctk"), reason="needs NIST's sclite (Debian: apt install sctk)")
words = st.lists(st.sampled_from("abcd"), max_size=12)


def any_words(test):
    """Without a deadline: a busy machine, or the first import of a library, is no error."""
    return settings(deadline=None)(given(words, words)(test))


def counts(reference: str, hypothesis: str) -> tuple[int, int, int, int]:
    c = count_errors(reference.split(), hypothesis.split())
    return c.substitutions, c.deletions, c.insertions, c.reference


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("a b c", "a b c", (0, 0, 0, 3)),
        ("a b c", "a x c", (1, 0, 0, 3)),
        ("a b c", "a c", (0, 1, 0, 3)),
        ("a c", "a b c", (0, 0, 1, 2)),
        ("", "", (0, 0, 0, 0)),
        ("", "a b", (0, 0, 2, 0)),
        ("a b", "", (0, 2, 0, 2)),
        ("a b", "c", (1, 1, 0, 2)),
        ("one one one", "one", (0, 2, 0, 3)),
        ("日本 語", "日本 誤", (1, 0, 0, 2)),
        ("a", "A", (1, 0, 0, 1)),  # case counts
        # A deletion and an insertion (6) are dearer than one substitution (4), cheaper than two (8).
        ("a b", "b c", (0, 1, 1, 2)),
        ("a b", "c d", (2, 0, 0, 2)),
    ],
)
def test_counts(reference, hypothesis, expected):
    assert counts(reference, hypothesis) == expected


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [  # cost 29 both: S 5, I 3 has 8 errors, and S 2, D 2, I 5 has 9; sclite says the latter
        ("a d don't c x1 don't x1 don't", "n x1 e c a d a don't x1 e n", (2, 2, 5, 8)),
        # cost 31: S 4, D 5 has 9 errors
        ("d d e d é zwei d c d don't", "c a don't don't zwei", (1, 7, 2, 10)),
    ],
)
def test_equal_costs_are_decided_as_sclite_decides(reference, hypothesis, expected):
    assert counts(reference, hypothesis) == expected


def check_pairs(reference, hypothesis, pairs):
    assert [a for a, _ in pairs if a is not None] == list(reference)
    assert [b for _, b in pairs if b is not None] == list(hypothesis)
    assert (None, None) not in pairs


@any_words
@example(list("aab"), list("b"))
def test_counts_are_those_of_the_alignment(reference, hypothesis):
    pairs = align(reference, hypothesis)
    check_pairs(reference, hypothesis, pairs)
    deletions, insertions = sum(b is None for _, b in pairs), sum(a is None for a, _ in pairs)
    substitutions = sum(a != b for a, b in pairs) - deletions - insertions
    assert count_errors(reference, hypothesis) == ErrorCounts(substitutions, deletions, insertions, len(reference))


def least_cost(reference, hypothesis):
    row = [3 * j for j in range(len(hypothesis) + 1)]
    for i, word in enumerate(reference, 1):
        new = [3 * i]
        for j, other in enumerate(hypothesis, 1):
            new.append(min(row[j - 1] + 4 * (word != other), row[j] + 3, new[-1] + 3))
        row = new
    return row[-1]


@any_words
def test_no_alignment_is_cheaper(reference, hypothesis):
    c = count_errors(reference, hypothesis)
    assert 4 * c.substitutions + 3 * c.deletions + 3 * c.insertions == least_cost(reference, hypothesis)
    assert c.deletions - c.insertions == len(reference) - len(hypothesis)


@any_words
def test_words_are_only_compared(reference, hypothesis):
    """Another name for each word changes nothing, and a string of letters is a list of words."""
    names = {"a": "日本語", "b": "", "c": "a a", "d": "d"}
    renamed = count_errors([names[w] for w in reference], [names[w] for w in hypothesis])
    assert renamed == count_errors(reference, hypothesis) == count_errors("".join(reference), "".join(hypothesis))


def test_counts_add_up_and_the_rate_is_divided_last():
    total = sum([count_errors(["a"], ["b"]), count_errors(["w"] * 20, ["w"] * 20)], ErrorCounts())
    assert total == ErrorCounts(1, 0, 0, 21)
    assert total.rate == 1 / 21
    assert ErrorCounts(1, 2, 3, 4) + ErrorCounts(10, 20, 30, 40) == ErrorCounts(11, 22, 33, 44)
    assert ErrorCounts(1, 2, 3, 4).errors == 6
    assert ErrorCounts(1, 2, 3, 4).rate == 1.5
    assert ErrorCounts(insertions=3).rate is None
    assert ErrorCounts(0, 1, 0, 4).to_json() == {
        "substitutions": 0, "deletions": 1, "insertions": 0, "reference": 4, "errors": 1, "rate": 0.25
    }  # fmt: skip


def test_long_texts_take_no_time():
    rng = random.Random(0)
    reference = [str(rng.randrange(50)) for _ in range(3000)]
    hypothesis = [w for w in reference if rng.random() > 0.03]
    pairs = align(reference, hypothesis)
    check_pairs(reference, hypothesis, pairs)
    assert count_errors(reference, hypothesis).deletions == 3000 - len(hypothesis)


def random_pairs(number: int, seed: int) -> list[tuple[list[str], list[str]]]:
    """Pairs of every kind: empty, of one word, alike, unlike, with few words that repeat, of other scripts."""
    rng = random.Random(seed)
    vocabulary = ["a", "b", "c", "dd", "e", "é", "日本", "zwei", "x1", "don't", "हिन्दी", "ß"]
    pairs = [([], []), ([], ["a"]), (["a"], []), (["a"] * 9, ["a"] * 4), (["é"], ["e"]), (["a"], ["A"])]
    while len(pairs) < number:
        known = vocabulary[: rng.choice([2, 3, 5, len(vocabulary)])]
        longest = rng.choice([1, 3, 12, 40])
        reference = rng.choices(known, k=rng.randint(0, longest))
        if rng.random() < 0.6:
            hypothesis = rng.choices(known, k=rng.randint(0, longest))
        else:
            hypothesis = [rng.choice(known) if rng.random() < 0.1 else w for w in reference if rng.random() > 0.1]
        pairs.append((reference, hypothesis))
    return pairs


def sclite(folder, pairs, *flags) -> list[tuple[int, int, int, int]]:
    """sclite's (correct, substitutions, deletions, insertions) of each pair."""
    for name, side in (("ref", 0), ("hyp", 1)):
        lines = [f"{' '.join(pair[side])} (utt-{i:05d})\n" for i, pair in enumerate(pairs)]
        (folder / f"{name}.trn").write_text("".join(lines), encoding="utf-8")
    files = ["-r", folder / "ref.trn", "trn", "-h", folder / "hyp.trn", "trn"]
    command = ["sctk", "sclite", *files, "-i", "rm", "-s", "-e", "utf-8", *flags, "-o", "pralign", "stdout"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^id: \(utt-(\d+)\)\nScores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)", output, re.MULTILINE)
    scores = {int(index): tuple(map(int, rest)) for index, *rest in found}
    return [scores[i] for i in range(len(pairs))]


@needs_sclite
@pytest.mark.parametrize("flags", [[], ["-c"]], ids=["words", "characters"])
def test_counts_are_those_of_sclite(tmp_path, flags):
    pairs = random_pairs(4000, seed=len(flags))
    for pair, expected in zip(pairs, sclite(tmp_path, pairs, *flags), strict=True):
        c = count_errors(*("".join(side) for side in pair)) if flags else count_errors(*pair)
        assert (c.reference - c.substitutions - c.deletions, c.substitutions, c.deletions, c.insertions) == expected


def peak_mb(function, *arguments):
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


@any_words
def test_errors_carried_forward_are_those_of_the_alignment(reference, hypothesis):
    wrong = sum(a != b for a, b in align(reference, hypothesis))
    assert alignment._errors_walked_back(reference, hypothesis) == wrong


@any_words
def test_above_the_limit_all_words_are_still_there(reference, hypothesis):
    with mock.patch.object(alignment, "MAX_CELLS", 1):
        pairs = align(reference, hypothesis)
    check_pairs(reference, hypothesis, pairs)
    assert sum(a != b for a, b in pairs) <= count_errors(reference, hypothesis).errors


@pytest.mark.parametrize(("n", "m"), [(6000, 0), (0, 6000), (33_000, 5), (5, 33_000), (2500, 2400)])
def test_memory_is_bounded_however_long_the_texts(n, m):
    rng = random.Random(n)
    reference, hypothesis = ([str(rng.randrange(300)) for _ in range(k)] for k in (n, m))
    assert peak_mb(align, reference, hypothesis) < 20
    assert (
        peak_mb(count_errors, "".join(reference)[:2000], "".join(hypothesis)[:2000]) < 20
    )  # the import of numpy included
    check_pairs(reference, hypothesis, align(reference, hypothesis))


def test_a_long_text_against_none_is_not_written_out_among_the_worst():
    one = ScoredUtterance("u", "a " * 300_000, "", ErrorCounts(), ErrorCounts(), failed=True)
    assert score._worst(one)["alignment"] is None
