"""The n best texts of a CTC recogniser's output: the best path, or prefix beam search with an optional n-gram LM.

Works on numpy log probabilities of one utterance at a time, in double precision and in a fixed order, so that the
result depends neither on the batch nor on the device.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet3_rules.errors import DataError, EnvironmentProblem, OptionError
from espnet3_rules.options import Options, opt
from espnet3_rules.tokens import BLANK

if TYPE_CHECKING:
    import numpy as np

    from espnet3_rules.tokens import Tokens

#: Goes into the run key: changes whenever the same options can give another text.
VERSION = 1

_BEAM_SIZE = 8
_LM_WEIGHT = 0.5


@dataclass(frozen=True)
class SearchOptions(Options):
    """How texts are found in the network's output. `lm` is a file: a key needs its content, not its name."""

    method: str = opt("greedy", "the best path, or prefix beam search", choices=("greedy", "beam"))
    beam_size: int | None = opt(None, f"prefixes kept after each frame; null is {_BEAM_SIZE}; beam only", minimum=1)
    nbest: int = opt(1, "how many texts to give, best first; at most beam_size", minimum=1)
    token_min_logp: float = opt(
        -7.0, "tokens less likely than this in a frame (natural log) are not tried there; beam only", maximum=0
    )
    lm: str | None = opt(None, "word n-gram language model, KenLM ARPA or binary; beam only")
    lm_weight: float | None = opt(
        None, f"weight of the language model's log probability; null is {_LM_WEIGHT}; needs lm", minimum=0
    )
    length_bonus: float = opt(0.0, "added to the score (natural log) for each word; beam only")

    def check(self) -> None:
        """Refuses keys that would do nothing."""
        if self.method == "greedy":
            given = {"beam_size": self.beam_size, "lm": self.lm, "lm_weight": self.lm_weight}
            idle = [name for name, value in given.items() if value is not None]
            idle += ["nbest"] * (self.nbest > 1) + ["length_bonus"] * (self.length_bonus != 0)
            if idle:
                raise OptionError(
                    f"{idle[0]}: has no effect on method: greedy, which gives one text and asks no language model",
                    hint="set method: beam, or leave out " + ", ".join(idle),
                )
        elif self.nbest > self.beam:
            raise OptionError(
                f"nbest: {self.nbest} texts cannot come from a beam_size of {self.beam}",
                hint=f"set beam_size to {self.nbest} or more",
            )
        if self.lm_weight is not None and self.lm is None:
            raise OptionError("lm_weight: has no effect without a language model", hint="set lm to its file")

    @property
    def beam(self) -> int:
        """Prefixes kept after each frame."""
        return 1 if self.method == "greedy" else self.beam_size or _BEAM_SIZE


class LanguageModel:
    """Word log probabilities of a KenLM n-gram model (ARPA, or KenLM's binary format), natural logs.

    Raises:
        EnvironmentProblem: kenlm is not installed.
        DataError: the file is missing or is no language model.
    """

    def __init__(self, path: Path | str) -> None:
        try:
            import kenlm
        except ImportError as error:
            raise EnvironmentProblem(
                f"{path}: a language model needs kenlm, which is not installed",
                hint="pip install 'espnet3-rules[lm]'",
            ) from error
        if not Path(path).is_file():
            raise DataError(f"{path}: no such file", hint="decode.lm is a KenLM ARPA or binary file")
        config = kenlm.Config()
        config.show_progress = False
        config.arpa_complain = kenlm.ARPALoadComplain.NONE
        try:
            self._model = kenlm.Model(str(path), config)
        except (OSError, RuntimeError) as error:
            raise DataError(
                f"{path}: KenLM cannot read it ({error})", hint="it reads ARPA and its own binary"
            ) from error
        self._new_state = kenlm.State

    def start(self) -> Any:
        """The state at the start of a sentence."""
        state = self._new_state()
        self._model.BeginSentenceWrite(state)
        return state

    def score(self, state: Any, word: str) -> tuple[float, Any]:
        """Log probability of ``word`` after ``state``, and the state after it."""
        after = self._new_state()
        return self._model.BaseScore(state, word, after) * _LN10, after

    def end(self, state: Any) -> float:
        """Log probability that the sentence ends after ``state``."""
        return self.score(state, "</s>")[0]


_LN10 = math.log(10)


@functools.lru_cache(maxsize=1)
def load_lm(path: str) -> LanguageModel:
    """The language model in a file, read once for all utterances; call it before the first for early errors."""
    return LanguageModel(path)


def search(log_probs: np.ndarray, tokens: Tokens, options: SearchOptions) -> list[tuple[str, float]]:
    """The best texts with their scores (natural logs), best first; at least one, at most ``options.nbest``.

    Args:
        log_probs: natural log probabilities, (frames, vocab); blank is id 0.
        tokens: what the ids write. White space in texts is made single, and texts that then are the same are one.
        options: ``method: greedy`` gives the text of the best path, and its score is that path's log probability
            alone. ``beam`` scores a text by the sum over its alignments, times the language model's probability to the
            power of its weight, and the bonus for each word.

    Raises:
        DataError: the language model's file is missing or is none.
        DataError: a frame has no probabilities (NaN), as after a training that diverged.
    """
    import numpy as np

    assert log_probs.ndim == 2 and log_probs.shape[1] == tokens.vocab_size, (log_probs.shape, tokens.vocab_size)
    best = log_probs.max(axis=1)
    if not np.isfinite(best).all():
        raise DataError(
            f"frame {int(np.flatnonzero(~np.isfinite(best))[0])} of the network's output has no probabilities",
            hint="the model may have diverged in training: look at its loss",
        )
    if options.method == "greedy":
        return [_greedy(log_probs, tokens)]
    words = _Words(tokens, load_lm(options.lm) if options.lm else None, options)
    return _texts(_beams(log_probs.astype("float64"), words, options), words, tokens)[: options.nbest]


def _greedy(log_probs: np.ndarray, tokens: Tokens) -> tuple[str, float]:
    best = log_probs.argmax(axis=1)
    ids = [int(i) for t, i in enumerate(best) if i != BLANK and (t == 0 or i != best[t - 1])]
    return _tidy(tokens.decode(ids)), float(log_probs.max(axis=1).astype("float64").sum()) if len(best) else 0.0


def _tidy(text: str) -> str:
    return " ".join(text.split())


class _Prefix:
    """A token sequence, as a node of a tree: each sequence is one object, so that its alignments meet in it.

    ``bonus`` is what its finished words add to its score, ``word`` the unfinished one, ``state`` the language
    model's after the finished ones.
    """

    __slots__ = ("bonus", "children", "finished", "parent", "state", "token", "word")

    def __init__(self, parent: _Prefix | None, token: int, word: str, bonus: float, state: Any) -> None:
        self.parent, self.token, self.word, self.bonus, self.state = parent, token, word, bonus, state
        self.children: dict[int, _Prefix] = {}
        self.finished: tuple[float, Any] | None = None

    def ids(self) -> list[int]:
        ids, node = [], self
        while node.parent is not None:
            ids.append(node.token)
            node = node.parent
        return ids[::-1]


class _Words:
    """What the words of a prefix add to its score, and its extensions."""

    def __init__(self, tokens: Tokens, lm: LanguageModel | None, options: SearchOptions) -> None:
        self.pieces, self.lm, self.bonus = tokens.pieces, lm, options.length_bonus
        self.weight = _LM_WEIGHT if options.lm_weight is None else options.lm_weight
        #: Which pieces end the word before them; white space stands at the start of a piece, or nowhere.
        self.ending = [piece[:1].isspace() for piece in self.pieces]

    def root(self) -> _Prefix:
        return _Prefix(None, BLANK, "", 0.0, self.lm.start() if self.lm else None)

    def extend(self, prefix: _Prefix, token: int) -> _Prefix:
        """The prefix with one token more: always the same object."""
        child = prefix.children.get(token)
        if child is None:
            piece, word = self.pieces[token].strip(), prefix.word
            bonus, state = prefix.bonus, prefix.state
            if self.ending[token]:
                word, (bonus, state) = "", self.finish(prefix)
            child = prefix.children[token] = _Prefix(prefix, token, word + piece, bonus, state)
        return child

    def finish(self, prefix: _Prefix) -> tuple[float, Any]:
        """The bonus, and the language model's state, once the last word of the prefix is finished."""
        if not prefix.word:
            return prefix.bonus, prefix.state
        if prefix.finished is None:
            bonus, state = prefix.bonus + self.bonus, prefix.state
            if self.lm is not None:
                logp, state = self.lm.score(state, prefix.word)
                bonus += self.weight * logp
            prefix.finished = bonus, state
        return prefix.finished

    def end(self, prefix: _Prefix) -> float:
        """All that words add to the score of the prefix as a whole sentence."""
        bonus, state = self.finish(prefix)
        return bonus + (self.weight * self.lm.end(state) if self.lm else 0.0)


def _beams(log_probs: np.ndarray, words: _Words, options: SearchOptions) -> list[tuple[_Prefix, float]]:
    """The best prefixes, each with the log probability of all its alignments (of tried tokens), without its bonus.

    Prefix beam search with a language model at word ends: A. Hannun et al., "First-Pass Large Vocabulary Continuous
    Speech Recognition using Bi-Directional Recurrent DNNs", 2014, algorithm 1. Probabilities are linear and scaled
    by the best after each frame: quicker than adding logs, and what underflows is 1e-300 of the best.
    """
    import numpy as np

    # The best token of a frame is always tried, however unlikely it is.
    tried = log_probs >= np.minimum(options.token_min_logp, log_probs.max(axis=1, keepdims=True))
    probabilities = np.where(tried, np.exp(log_probs), 0.0)
    tried[:, BLANK] = False
    ending = np.array(words.ending)
    prefixes, log_scale = [words.root()], 0.0
    # Alignments of a prefix that end in a blank, and those that end in its last token.  (prefixes,)
    in_blank, in_token = np.ones(1), np.zeros(1)
    for frame, which in zip(probabilities, tried, strict=True):
        ids, total = np.flatnonzero(which), in_blank + in_token  # (tokens,), (prefixes,)
        last = np.array([p.token for p in prefixes])
        # Without a blank between, the same token again writes nothing.
        longer = np.where(last[:, None] == ids, in_blank[:, None], total[:, None]) * frame[ids]  # (prefixes, tokens)
        stay_blank = total * frame[BLANK]
        stay_token = np.where(last == BLANK, 0.0, in_token * frame[last])
        _join(prefixes, ids, longer, stay_token)
        bonus = np.array([p.bonus for p in prefixes])
        finished = np.array([words.finish(p)[0] for p in prefixes])
        with np.errstate(divide="ignore"):
            stay_rank = np.log(stay_blank + stay_token) + bonus
            longer_rank = np.log(longer) + np.where(ending[ids], finished[:, None], bonus[:, None])
        ranks = np.concatenate([stay_rank, longer_rank.ravel()])
        # A stable sort: equals keep the order of the prefixes, then of the token ids.
        kept = np.argsort(-ranks, kind="stable")[: options.beam]
        kept = kept[ranks[kept] > -np.inf]
        in_blank = np.concatenate([stay_blank, np.zeros(longer.size)])[kept]
        in_token = np.concatenate([stay_token, longer.ravel()])[kept]
        pairs = ids.tolist() * len(prefixes)  # the token of each pair in longer.ravel()
        prefixes = [
            prefixes[i] if i < len(last) else words.extend(prefixes[(i - len(last)) // len(ids)], pairs[i - len(last)])
            for i in kept.tolist()
        ]
        scale = (in_blank + in_token).max()
        in_blank, in_token, log_scale = in_blank / scale, in_token / scale, log_scale + math.log(scale)
    return list(zip(prefixes, (np.log(in_blank + in_token) + log_scale).tolist(), strict=True))


def _join(prefixes: list[_Prefix], ids: np.ndarray, longer: np.ndarray, stay_token: np.ndarray) -> None:
    """Moves the mass of extensions that are themselves among the prefixes to these, in place."""
    row = {prefix: i for i, prefix in enumerate(prefixes)}
    column = {token: k for k, token in enumerate(ids.tolist())}
    for j, prefix in enumerate(prefixes):
        i, k = row.get(prefix.parent) if prefix.parent else None, column.get(prefix.token)
        if i is not None and k is not None:
            stay_token[j] += longer[i, k]
            longer[i, k] = 0.0


def _texts(beams: list[tuple[_Prefix, float]], words: _Words, tokens: Tokens) -> list[tuple[str, float]]:
    """Each text once, with the sum over the token sequences that write it, best first, equals by text."""
    scores: dict[str, float] = {}
    for prefix, logp in beams:
        text, score = _tidy(tokens.decode(prefix.ids())), logp + words.end(prefix)
        before = scores.get(text, -math.inf)
        most = max(before, score)
        scores[text] = most + math.log(math.exp(before - most) + math.exp(score - most))
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
