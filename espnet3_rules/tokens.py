"""From text to token ids and back: characters of any script, or sentencepiece's BPE and unigram pieces.

Ids: 0 is CTC's blank, 1 the unknown token, the rest are pieces. Whatever was never seen in training becomes the
unknown token, and the unknown token decodes to U+FFFD, so that it shows (and counts as an error) instead of vanishing.
"""

from __future__ import annotations

import base64
import binascii
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espnet3_rules.errors import DataError, OptionError
from espnet3_rules.normalise import Normaliser
from espnet3_rules.options import Options, opt
from espnet3_rules.records import read_json, write_json

VERSION = 1
BLANK, UNKNOWN = 0, 1
#: What the unknown token decodes to.
REPLACEMENT = "\ufffd"
_SPECIAL = ("<blank>", "<unk>")


@dataclass(frozen=True)
class TokenOptions(Options):
    """What the recogniser writes: characters or word pieces, and the text they are made from."""

    kind: str = opt("char", "characters, or sentencepiece's pieces", choices=("char", "bpe", "unigram"))
    vocab_size: int | None = opt(
        None, "number of tokens, blank and unknown included; for bpe and unigram only", minimum=4
    )
    character_coverage: float = opt(
        1.0, "share of the training text whose characters get a token; the rarest become unknown", above=0, maximum=1
    )
    normalise: tuple[str, ...] = opt(
        ("nfkc", "whitespace"), "normalisation steps, in order: names, or own functions as package.module.function"
    )

    def check(self) -> None:
        """Pieces need a size, characters have none of their own choosing."""
        Normaliser(self.normalise)
        if self.kind == "char" and self.vocab_size is not None:
            raise OptionError(
                f"vocab_size: {self.vocab_size} has no effect on kind: char, where each character is a token",
                hint="leave vocab_size out, or set kind: bpe; character_coverage drops rare characters",
            )
        if self.kind != "char" and self.vocab_size is None:
            raise OptionError(f"vocab_size: missing, kind: {self.kind} needs it", hint="200 is fair for small corpora")


@dataclass(frozen=True)
class Tokens:
    """The tokens of one model. `train_tokens` makes them, `load_tokens` reads them back.

    Attributes:
        pieces: what each id writes; a space at the start or the end of a piece is a word boundary.
        model: sentencepiece's serialised model; None for characters.
    """

    options: TokenOptions
    pieces: tuple[str, ...]
    model: bytes | None = None

    @property
    def vocab_size(self) -> int:
        """Number of ids, blank (0) and unknown (1) included: the width of the network's output."""
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, which is normalised first; never a blank. Unseen characters give the unknown id."""
        text = self.normaliser(text)
        if self.model is None:
            return [self._ids.get(character, UNKNOWN) for character in text]
        return [piece + 1 for piece in self._processor.encode(text)]  # sentencepiece has no blank, ours is 0

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids (repeats and blanks as CTC leaves them are not collapsed here; blanks write nothing)."""
        text = "".join(self.pieces[i] for i in ids)
        # Sentencepiece marks the start of each word, so also of the first.
        return text if self.model is None else text.removeprefix(" ")

    @functools.cached_property
    def normaliser(self) -> Normaliser:
        """The chain that every text passes before it is encoded."""
        return Normaliser(self.options.normalise)

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self.pieces) if i > UNKNOWN}

    @functools.cached_property
    def _processor(self) -> Any:
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def save(self, folder: Path | str) -> None:
        """Publishes ``tokens.json`` in ``folder``; sentencepiece's model is in it, in base 64."""
        record = {
            "version": VERSION,
            "options": self.options.to_dict(),
            "normalise": self.normaliser.versions,
            "pieces": [*_SPECIAL, *self.pieces[len(_SPECIAL) :]],
            "model": base64.b64encode(self.model).decode() if self.model is not None else None,
        }
        write_json(Path(folder) / "tokens.json", record)


def load_tokens(folder: Path | str) -> Tokens:
    """The tokens that `Tokens.save` wrote.

    Raises:
        DataError: a file is missing or damaged, or a normalisation step has changed since.
    """
    path = Path(folder) / "tokens.json"
    record = read_json(path, made_by="train")
    try:
        version, versions = record["version"], [list(pair) for pair in record["normalise"]]
        pieces, options = tuple(record["pieces"]), TokenOptions.from_dict(record["options"], str(path))
        model = base64.b64decode(record["model"], validate=True) if options.kind != "char" else None
    except (KeyError, TypeError, binascii.Error) as error:
        raise DataError(
            f"{path}: not a token file ({error!r})",
            hint="delete it and give the same command again: it is made anew",
        ) from error
    if version != VERSION or versions != Normaliser(options.normalise).versions:
        raise DataError(
            f"{path}: made by version {version} with normalisation {versions}, "
            f"here are version {VERSION} and {Normaliser(options.normalise).versions}",
            hint="use the version that trained this model, or train it again",
        )
    return Tokens(options, ("", REPLACEMENT, *pieces[len(_SPECIAL) :]), model)


def train_tokens(texts: Iterable[str], options: TokenOptions) -> Tokens:
    """The tokens for ``texts``, the transcripts of the training set; the same texts always give the same tokens.

    Raises:
        DataError: no text at all.
        OptionError: the vocabulary size does not fit the text.
    """
    normaliser = Normaliser(options.normalise)
    normalised = filter(None, map(normaliser, texts))
    first = next(normalised, None)
    if first is None:
        raise DataError(
            "no text to make tokens from: every transcript of the training set is empty"
            + (f" after {', '.join(options.normalise)}" if options.normalise else ""),
            hint="look at the 'text' of the training manifest's supervisions, and at tokens.normalise",
        )
    everything = itertools.chain([first], normalised)
    if options.kind == "char":
        return Tokens(options, ("", REPLACEMENT, *_characters(everything, options.character_coverage)))
    return _train_pieces(everything, options)


def _characters(texts: Iterable[str], coverage: float) -> list[str]:
    """The characters (code points) that make up ``coverage`` of the texts, in code point order.

    Code points, not grapheme clusters: Devanagari, Hangul jamo, or emoji sequences compose from few parts, and
    joining the parts gives the text back.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    counts.pop(REPLACEMENT, None)  # stands for the unknown token
    wanted, covered, kept = coverage * counts.total(), 0, []
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= wanted:
            break
        covered += count
        kept.append(character)
    return sorted(kept)


def _train_pieces(texts: Iterator[str], options: TokenOptions) -> Tokens:
    import io

    import sentencepiece

    assert options.vocab_size is not None
    stream = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=texts,
            model_writer=stream,
            model_type=options.kind,
            vocab_size=options.vocab_size - 1,  # the blank is ours
            character_coverage=options.character_coverage,
            normalization_rule_name="identity",  # the chain has done it
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            max_sentence_length=1 << 20,  # longer ones would be dropped in silence
            num_threads=4,  # fixed: the sums over threads, and so the pieces, depend on it
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _explained(error, options) from error
    model = stream.getvalue()
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces: Sequence[str] = [processor.id_to_piece(i) for i in range(1, processor.get_piece_size())]
    return Tokens(options, ("", REPLACEMENT, *(piece.replace("\u2581", " ") for piece in pieces)), model)


def _explained(error: RuntimeError, options: TokenOptions) -> OptionError:
    """Sentencepiece's complaint about the vocabulary size in our words and numbers (they include the blank)."""
    message, size = " ".join(str(error).split()), options.vocab_size
    if match := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message):
        most = int(match[1]) + 1
        return OptionError(
            f"vocab_size: {size} tokens are more than the training text can give, at most {most}",
            hint=f"set vocab_size to {most} or less, or kind: char",
        )
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        least = int(match[1]) + 1
        return OptionError(
            f"vocab_size: {size} tokens are too few for the characters of the training text, at least {least}",
            hint=f"set vocab_size to {least} or more, or character_coverage below {options.character_coverage:g}",
        )
    return OptionError(f"vocab_size {size}, kind {options.kind}: sentencepiece cannot train on this text: {message}")
