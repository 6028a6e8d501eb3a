"""Errors between two sequences of words (or characters), counted exactly as NIST's sclite counts them.

An alignment minimises 4 S + 3 D + 3 I (substitutions, deletions, insertions). Where several have the same cost, sclite
walks back from the end and takes a pair before an insertion before a deletion; so do we, because then S, D and I are
the same for every pair of texts, not only for most.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

#: What sclite pays for an error.
_SUBSTITUTION, _GAP = 4, 3
#: Above any number of errors: cost * _SCALE +- errors is one number that orders by cost, then by errors.
_SCALE = 1 << 32
#: Above any cost.
_NEVER = 1 << 60


@dataclass(frozen=True)
class ErrorCounts:
    """Errors against ``reference`` words (or characters). Counts add up; the rate is divided last."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    reference: int = 0

    @property
    def errors(self) -> int:
        """S + D + I."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float | None:
        """Errors per reference word, above 1 where there are many insertions; None without a reference word."""
        return self.errors / self.reference if self.reference else None

    def __add__(self, other: ErrorCounts) -> ErrorCounts:
        return ErrorCounts(
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
            self.reference + other.reference,
        )

    def to_json(self) -> dict[str, Any]:
        """The counts with what follows from them."""
        return {**asdict(self), "errors": self.errors, "rate": self.rate}


def count_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> ErrorCounts:
    """The errors of a hypothesis: words in two lists, or characters in two strings. Case counts.

    The cost and the number of errors fix S, D and I, since D - I is the difference in length. A weighted edit distance
    in C++ gives both; only where two alignments of the least cost differ in errors (one random pair in a thousand)
    must the alignment itself be found.
    """
    if reference == hypothesis:
        return ErrorCounts(reference=len(reference))
    a, b = _numbered(reference, hypothesis)
    cost, errors = _cost_and_fewest_errors(a, b)
    # One error more at the same cost means three substitutions less, so with less than three there is no choice.
    if cost - 3 * errors >= 3 and errors != _most_errors(a, b):
        return _counts(align(reference, hypothesis), len(reference))
    gaps, longer = 4 * errors - cost, len(a) - len(b)
    return ErrorCounts(errors - gaps, (gaps + longer) // 2, (gaps - longer) // 2, len(a))


def _numbered(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[Sequence[Hashable], Sequence[Hashable]]:
    """Words as small numbers, so that the library compares them exactly and not by a hash; strings as they are."""
    if isinstance(reference, str) and isinstance(hypothesis, str):
        return reference, hypothesis
    numbers: dict[str, int] = {}
    a = [numbers.setdefault(word, len(numbers)) for word in reference]
    return a, [numbers.setdefault(word, len(numbers)) for word in hypothesis]


def _cost_and_fewest_errors(a: Sequence[Hashable], b: Sequence[Hashable]) -> tuple[int, int]:
    from rapidfuzz.distance import Levenshtein

    gap, substitution = _GAP * _SCALE + 1, _SUBSTITUTION * _SCALE + 1
    return divmod(Levenshtein.distance(a, b, weights=(gap, gap, substitution)), _SCALE)


def _most_errors(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The most errors that an alignment of the least cost has."""
    from rapidfuzz.distance import Levenshtein

    gap, substitution = _GAP * _SCALE - 1, _SUBSTITUTION * _SCALE - 1
    return -Levenshtein.distance(a, b, weights=(gap, gap, substitution)) % _SCALE


def _counts(pairs: list[tuple[str | None, str | None]], reference: int) -> ErrorCounts:
    deletions = sum(b is None for _, b in pairs)
    insertions = sum(a is None for a, _ in pairs)
    return ErrorCounts(sum(a != b for a, b in pairs) - deletions - insertions, deletions, insertions, reference)


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Pairs of reference and hypothesis words in order; None stands across a deleted or an inserted word.

    Time and memory grow with the length times the cost: 10 ms for 200 words with 40 errors.

    Source: sclite's `net_dp.c`, whose order of preference this keeps.
    """
    cost, _ = _cost_and_fewest_errors(*_numbered(reference, hypothesis))
    n, m = len(reference), len(hypothesis)
    # No alignment of this cost has more gaps, so none leaves a band of diagonals.
    deletions, insertions = (cost // _GAP + n - m) // 2, (cost // _GAP + m - n) // 2
    # rows[i][k] is the cost of the first i reference words against the first j = i + k - deletions hypothesis words.
    rows = [[_NEVER] * deletions + [_GAP * j for j in range(min(m, insertions) + 1)]]
    for i, word in enumerate(reference, 1):
        above, j = rows[-1], max(0, i - deletions)
        row, left = [_NEVER] * (j - i + deletions), _NEVER
        if j == 0:
            row.append(left := _GAP * i)
            j = 1
        k = j - i + deletions
        others = hypothesis[j - 1 : min(m, i + insertions)]
        for other, pair, deletion in zip(others, above[k:], [*above[k + 1 :], _NEVER], strict=False):
            cost = pair if other == word else pair + _SUBSTITUTION
            gap = (deletion if deletion < left else left) + _GAP
            row.append(left := cost if cost < gap else gap)
        rows.append(row)
    for row in rows:
        row.extend([_NEVER] * (deletions + insertions + 2 - len(row)))
    return _walk_back(rows, reference, hypothesis, deletions)


def _walk_back(
    rows: list[list[int]], reference: Sequence[str], hypothesis: Sequence[str], deletions: int
) -> list[tuple[str | None, str | None]]:
    pairs: list[tuple[str | None, str | None]] = []
    i, j = len(reference), len(hypothesis)
    while i or j:
        k = j - i + deletions
        pair = deletion = insertion = _NEVER
        if i and j:
            pair = rows[i - 1][k] + (0 if reference[i - 1] == hypothesis[j - 1] else _SUBSTITUTION)
        if i:
            deletion = rows[i - 1][k + 1] + _GAP
        if j and k:
            insertion = rows[i][k - 1] + _GAP
        if pair <= deletion and pair <= insertion:
            i, j = i - 1, j - 1
            pairs.append((reference[i], hypothesis[j]))
        elif deletion < insertion:
            i -= 1
            pairs.append((reference[i], None))
        else:
            j -= 1
            pairs.append((None, hypothesis[j]))
    return pairs[::-1]
