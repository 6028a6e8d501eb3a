"""From a plan of utterances to the tensors of a batch; what cannot be used is left out by name."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from espnet3_rules.data.audio import load_audio
from espnet3_rules.data.corpus import Corpus
from espnet3_rules.data.sampler import BatchPlan
from espnet3_rules.errors import DataError


@dataclasses.dataclass
class Batch:
    """Utterances as tensors; a batch without any has a batch dimension of 0."""

    plan: BatchPlan
    ids: tuple[str, ...]
    waves: Tensor  # (batch, samples) float32, zero after each one's end
    wave_lengths: Tensor  # (batch,)
    targets: Tensor  # (batch, tokens), blank after each one's end
    target_lengths: Tensor  # (batch,)
    #: What the batch's loss is divided by: its tokens, one at least for each utterance.
    weight: float = 0.0
    #: (utterance, reason) of those that could not be used.
    skipped: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return dataclasses.replace(
            self,
            waves=change(self.waves),
            wave_lengths=change(self.wave_lengths),
            targets=change(self.targets),
            target_lengths=change(self.target_lengths),
        )

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """The batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The batch in memory that a GPU can fetch from by itself."""
        return self._map(lambda tensor: tensor.pin_memory())


class Utterances(torch.utils.data.Dataset[Batch]):
    """Batches by their plan: audio read (or remembered), played at another speed, and text as tokens.

    Args:
        corpus: where the cuts are.
        encode: text -> token ids.
        sampling_rate: of the waves in Hz.
        room: (samples, token ids) -> why they do not go together, or None; a CTC network gives so many frames.
        speeds: one is drawn for each utterance, from the seed, the epoch and the utterance.
        seed: where the speeds start.
        cache_bytes: most audio that is remembered, by each process that loads.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        encode: Callable[[str], list[int]],
        sampling_rate: int,
        room: Callable[[int, list[int]], str | None],
        speeds: tuple[float, ...] = (1.0,),
        seed: int = 0,
        cache_bytes: int = 0,
    ) -> None:
        self.corpus, self.encode, self.sampling_rate, self.room = corpus, encode, sampling_rate, room
        self.speeds, self.seed, self.cache_left = speeds, seed, cache_bytes
        self._waves: dict[tuple[str, float], np.ndarray] = {}

    def __getitem__(self, plan: BatchPlan) -> Batch:
        loaded: list[tuple[str, np.ndarray, list[int]]] = []
        skipped: list[tuple[str, str]] = []
        for utt_id in plan.ids:
            try:
                wave = self.wave(utt_id, self.speed(plan.epoch, utt_id))
            except DataError as error:
                skipped.append((utt_id, error.message.removeprefix(f"{utt_id}: ")))
                continue
            tokens = self.encode(self.corpus.entry(utt_id).text)
            reason = self.room(len(wave), tokens)
            if reason is None:
                loaded.append((utt_id, wave, tokens))
            else:
                skipped.append((utt_id, reason))
        return _collate(plan, loaded, tuple(skipped))

    def speed(self, epoch: int, utt_id: str) -> float:
        """At which speed an utterance is played in an epoch."""
        if len(self.speeds) == 1:
            return self.speeds[0]
        return random.Random(f"{self.seed} {epoch} {utt_id}").choice(self.speeds)

    def wave(self, utt_id: str, speed: float) -> np.ndarray:
        """An utterance's samples, (samples,) float32, at a speed."""
        key = (utt_id, speed)
        if key in self._waves:
            return self._waves[key]
        if speed == 1.0:
            wave = load_audio(self.corpus.cut(utt_id), self.sampling_rate)
        else:
            wave = _resampled(self.wave(utt_id, 1.0), speed)
        # what is full stays as it is: each epoch asks for everything once, so the oldest is the next to be needed
        if wave.nbytes <= self.cache_left:
            self.cache_left -= wave.nbytes
            self._waves[key] = wave
        return wave


def _resampled(wave: np.ndarray, speed: float) -> np.ndarray:
    """The samples played ``speed`` times as fast, pitch and all."""
    from fractions import Fraction

    from scipy.signal import resample_poly

    ratio = Fraction(1 / speed).limit_denominator(100)
    return np.asarray(resample_poly(wave, ratio.numerator, ratio.denominator), dtype=np.float32)


def _collate(
    plan: BatchPlan, loaded: list[tuple[str, np.ndarray, list[int]]], skipped: tuple[tuple[str, str], ...]
) -> Batch:
    wave_lengths = [len(wave) for _, wave, _ in loaded]
    target_lengths = [len(tokens) for _, _, tokens in loaded]
    waves = torch.zeros(len(loaded), max(wave_lengths, default=0))
    targets = torch.zeros(len(loaded), max(target_lengths, default=0), dtype=torch.long)
    for row, (_, wave, tokens) in enumerate(loaded):
        waves[row, : len(wave)] = torch.from_numpy(wave)
        targets[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
    return Batch(
        plan=plan,
        ids=tuple(utt_id for utt_id, _, _ in loaded),
        waves=waves,
        wave_lengths=torch.tensor(wave_lengths, dtype=torch.long),
        targets=targets,
        target_lengths=torch.tensor(target_lengths, dtype=torch.long),
        weight=float(sum(max(1, n) for n in target_lengths)),
        skipped=skipped,
    )
