"""What a batch of utterances goes through in decoding: from the rows of a plan to the records of a journal."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from espnet3_rules.attempts import Attempts, Failed
from espnet3_rules.errors import DataError
from espnet3_rules.manifest import Entry, ManifestReader, item_hash
from espnet3_rules.models.search import SearchOptions
from espnet3_rules.records import FAILED, OK, Hypothesis
from espnet3_rules.shards import Row

if TYPE_CHECKING:
    import numpy as np

    from espnet3_rules.models.recogniser import Recogniser


def batches(rows: Sequence[Row], duration_s: float, most: int) -> list[list[Row]]:
    """Rows in batches of similar length, longest first: what does not fit into memory shows at once.

    Args:
        rows: in any order.
        duration_s: of a batch at most, each row counted as long as the longest; a single row may be longer.
        most: rows in a batch.
    """
    made: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: -row.cost):
        if made and len(made[-1]) < most and (len(made[-1]) + 1) * made[-1][0].cost <= duration_s:
            made[-1].append(row)
        else:
            made.append([row])
    return made


class BatchDecoder:
    """What a batch goes through: loading, in a second thread, and the recogniser.

    Args:
        recogniser: the model.
        reader: of the manifest.
        search: how texts are found.
        hash_audio: whether items were hashed over the content of the audio.
        proven: whether the model is known to have decoded something.
        shortest: the row to try the model on before giving it up.
    """

    def __init__(
        self,
        recogniser: Recogniser,
        reader: ManifestReader,
        search: SearchOptions,
        *,
        hash_audio: bool,
        proven: bool,
        shortest: Row,
    ) -> None:
        self._recogniser = recogniser
        self._reader = reader
        self._search = search
        self._hash_audio = hash_audio
        self._attempts = Attempts(self._call, size=_padded, proven=proven, probe=lambda: self._wave(shortest))

    def load(self, rows: list[Row]) -> list[np.ndarray | Failed]:
        """The samples of each row, or why there are none."""
        return [self._load_one(row, self._reader.entries[row.utt_id]) for row in rows]

    def _load_one(self, row: Row, entry: Entry) -> np.ndarray | Failed:
        from espnet3_rules.data import load_audio

        if entry.unreadable:
            return Failed(entry.unreadable)
        loaded: np.ndarray | Failed
        try:
            loaded = load_audio(self._reader[row.utt_id], self._recogniser.sampling_rate)
        except DataError as error:
            loaded = Failed(error.message)
        except MemoryError:
            loaded = Failed("out of memory while its audio was read")
        # after the reading, so that what was read is what the hash is of
        if item_hash(entry, hash_audio=self._hash_audio) != row.item:
            raise DataError(
                f"{row.utt_id}: its recording was replaced while this shard was decoded",
                hint="give the same command again: what is decoded is kept",
            )
        return loaded

    def _wave(self, row: Row) -> np.ndarray:
        loaded = self._load_one(row, self._reader.entries[row.utt_id])
        if isinstance(loaded, Failed):
            raise DataError(loaded.reason)
        return loaded

    def _call(self, waves: Sequence[np.ndarray]) -> list[list[tuple[str, float | None]]]:
        name = type(self._recogniser).__name__
        try:
            found = self._recogniser.recognise(waves, self._search)
        except SystemExit as error:  # it would end decoding as if all were done
            raise RuntimeError(f"{name}.recognise called sys.exit({error.code!r})") from error
        if len(found) != len(waves):
            raise TypeError(f"{name}.recognise gave {len(found)} results for {len(waves)} waveforms")
        return [[(_tidy(text), _finite(score)) for text, score in nbest] for nbest in found]

    def recognise(self, rows: list[Row], loaded: list[np.ndarray | Failed]) -> list[dict[str, Any]]:
        """The journal's record of each row."""
        start = time.perf_counter()
        waves = [wave for wave in loaded if not isinstance(wave, Failed)]
        outcomes = iter(self._attempts(waves))
        results = [wave if isinstance(wave, Failed) else next(outcomes) for wave in loaded]
        taken_s = time.perf_counter() - start
        whole = sum(row.cost for row in rows)
        return [
            _record(row, result, taken_s * row.cost / whole, self._search.nbest)
            for row, result in zip(rows, results, strict=True)
        ]


def _padded(waves: Sequence[np.ndarray]) -> float:
    """Samples of a batch, padding included."""
    return float(len(waves) * max(map(len, waves)))


def _record(row: Row, result: Any, decode_s: float, nbest: int) -> dict[str, Any]:
    if not isinstance(result, Failed) and not result:
        result = Failed(f"too short for one frame of output ({row.duration_s:g} s)")
    blank = Hypothesis(row.utt_id, row.item, duration_s=row.duration_s, decode_s=round(decode_s, 6))
    if isinstance(result, Failed):
        return dataclasses.replace(blank, status=FAILED, error=result.reason).to_json()
    text, score = result[0]
    many = tuple(result) if nbest > 1 else None
    return dataclasses.replace(blank, status=OK, text=text, score=score, nbest=many).to_json()


def _tidy(text: str) -> str:
    """White space made single: trn, Kaldi's text and tables are made of lines and words."""
    text.encode()  # half a surrogate pair cannot be written anywhere
    return " ".join(text.split())


def _finite(score: float | None) -> float | None:
    return float(score) if score is not None and math.isfinite(score) else None
