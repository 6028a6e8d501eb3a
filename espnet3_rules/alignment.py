"""Errors between two sequences of words (or characters), counted exactly as NIST's sclite counts them.

An alignment minimises 4 S + 3 D + 3 I (substitutions, deletions, insertions). Where several have the same cost, sclite
walks back from the end and takes a pair before an insertion before a deletion; so do we, because then S, D and I are
the same for every pair of texts, not only for most.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

#: What sclite pays for an error.
_SUBSTITUTION, _GAP = 4, 3
#: Above any number of errors: cost * _SCALE +- errors is one number that orders by cost, then by errors.
_SCALE = 1 << 32
#: Above any cost.
_NEVER = 1 << 60
#: Cells of the table that `align` makes at the most.
MAX_CELLS = 4_000_000
#: Up to here the plain table is as fast as starting numpy.
_FEW_CELLS = 40_000


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
    must the errors of the alignment itself be found. Memory grows with the length alone, whatever the texts.
    """
    if reference == hypothesis:
        return ErrorCounts(reference=len(reference))
    a, b = _numbered(reference, hypothesis)
    if not a or not b:
        return ErrorCounts(deletions=len(a), insertions=len(b), reference=len(a))
    cost, errors = _cost_and_fewest_errors(a, b)
    # One error more at the same cost means three substitutions less, so with less than three there is no choice.
    if cost - 3 * errors >= 3 and errors != _most_errors(a, b):
        if (len(a) + 1) * (len(b) + 1) <= _FEW_CELLS:
            return _counts(align(reference, hypothesis), len(reference))
        errors = _errors_walked_back(a, b)
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


def _errors_walked_back(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """The errors of the alignment that `align` finds below `MAX_CELLS`, at any length in memory of one diagonal.

    Which way is taken back from a cell depends on its three neighbours alone, so that the errors on that way can be
    carried forward with the costs; diagonal by diagonal, whose cells depend on those of the two before.
    """
    import numpy as np

    n, m = len(a), len(b)
    numbers: dict[Hashable, int] = {}
    # one in front, so that the words before cell (i, j) are words[i] and others[j]
    words = np.array([-1, *(numbers.setdefault(word, len(numbers)) for word in a)])
    others = np.array([-1, *(numbers.setdefault(word, len(numbers)) for word in b)])
    # entry i + 1 is cell (i, d - i); outside of the table the cost is above any other
    costs = [np.full(n + 2, _NEVER) for _ in range(3)]
    errors = [np.zeros(n + 2, dtype=np.int64) for _ in range(3)]
    costs[1][1] = 0  # cell (0, 0), on the diagonal before the first
    for d in range(1, n + m + 1):
        low, high = max(0, d - m), min(n, d)
        above, here = slice(low, high + 1), slice(low + 1, high + 2)
        different = words[above] != others[d - high : d - low + 1][::-1]
        pair = costs[0][above] + _SUBSTITUTION * different
        deletion, insertion = costs[1][above] + _GAP, costs[1][here] + _GAP
        gap = np.minimum(deletion, insertion)
        after_gap = np.where(deletion < insertion, errors[1][above], errors[1][here]) + 1
        costs[2].fill(_NEVER)
        costs[2][here] = np.minimum(pair, gap)
        errors[2][here] = np.where(pair <= gap, errors[0][above] + different, after_gap)
        costs, errors = [*costs[1:], costs[0]], [*errors[1:], errors[0]]
    return int(errors[1][n + 1])


def _counts(pairs: list[tuple[str | None, str | None]], reference: int) -> ErrorCounts:
    deletions = sum(b is None for _, b in pairs)
    insertions = sum(a is None for a, _ in pairs)
    return ErrorCounts(sum(a != b for a, b in pairs) - deletions - insertions, deletions, insertions, reference)


def align(reference: Sequence[str], hypothesis: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Pairs of reference and hypothesis words in order; None stands across a deleted or an inserted word.

    Time and memory grow with the cells, which are at most (reference + 1) x (hypothesis + 1) and otherwise the length
    times the cost, at 4 bytes each: 10 ms for 200 words with 40 errors. Above `MAX_CELLS` (16 MB) the pairs are those
    of a unit-cost alignment (substitution, deletion and insertion 1), which needs memory for the errors only; they
    may then have other numbers of errors than `count_errors`, which stays sclite's.

    Source: sclite's `net_dp.c`, whose order of preference this keeps.
    """
    n, m = len(reference), len(hypothesis)
    if not n or not m:
        return [(word, None) for word in reference] + [(None, word) for word in hypothesis]
    a, b = _numbered(reference, hypothesis)
    cost, _ = _cost_and_fewest_errors(a, b)
    # No alignment of this cost has more gaps, so none leaves a band of diagonals.
    deletions, insertions = min(n, (cost // _GAP + n - m) // 2), min(m, (cost // _GAP + m - n) // 2)
    if (n + 1) * (min(m, deletions + insertions) + 1) > MAX_CELLS:
        return _unit_cost_pairs(reference, hypothesis, a, b)
    return _walk_back(_table(reference, hypothesis, deletions, insertions), reference, hypothesis, deletions)


def _unit_cost_pairs(
    reference: Sequence[str], hypothesis: Sequence[str], a: Sequence[Hashable], b: Sequence[Hashable]
) -> list[tuple[str | None, str | None]]:
    from rapidfuzz.distance import Levenshtein

    pairs: list[tuple[str | None, str | None]] = []
    for part in Levenshtein.opcodes(a, b):
        words, others = reference[part.src_start : part.src_end], hypothesis[part.dest_start : part.dest_end]
        if part.tag == "delete":
            pairs += [(word, None) for word in words]
        elif part.tag == "insert":
            pairs += [(None, word) for word in others]
        else:
            pairs += zip(words, others, strict=True)
    return pairs


def _table(reference: Sequence[str], hypothesis: Sequence[str], deletions: int, insertions: int) -> list[array[int]]:
    """rows[i][j - max(0, i - deletions)]: cost of the first i reference words against the first j hypothesis words."""
    m = len(hypothesis)
    rows = [array("i", [_GAP * j for j in range(min(m, insertions) + 1)])]
    for i, word in enumerate(reference, 1):
        above, start = rows[-1], max(0, i - deletions)
        row, left = [], _NEVER
        if start == 0:
            row.append(left := _GAP * i)
        others = hypothesis[max(start, 1) - 1 : min(m, i + insertions)]
        for other, pair, deletion in zip(others, above, [*above[1:], _NEVER], strict=False):
            cost = pair if other == word else pair + _SUBSTITUTION
            gap = (deletion if deletion < left else left) + _GAP
            row.append(left := cost if cost < gap else gap)
        rows.append(array("i", row))
    return rows


def _walk_back(
    rows: list[array[int]], reference: Sequence[str], hypothesis: Sequence[str], deletions: int
) -> list[tuple[str | None, str | None]]:
    def cost(i: int, j: int) -> int:
        k = j - max(0, i - deletions)
        return rows[i][k] if i >= 0 and j >= 0 and 0 <= k < len(rows[i]) else _NEVER

    pairs: list[tuple[str | None, str | None]] = []
    i, j = len(reference), len(hypothesis)
    while i or j:
        same = i and j and reference[i - 1] == hypothesis[j - 1]
        pair = cost(i - 1, j - 1) + (0 if same else _SUBSTITUTION)
        deletion, insertion = cost(i - 1, j) + _GAP, cost(i, j - 1) + _GAP
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
