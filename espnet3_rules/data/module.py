"""The Lightning data module: training batches that continue where a killed run stopped, and validation once over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from torch.utils.data import DataLoader

from espnet3_rules.data.corpus import Corpus
from espnet3_rules.data.loading import Batch, Utterances
from espnet3_rules.data.sampler import TrainSampler, validation_plans
from espnet3_rules.manifest import Entry


class SpeechData(pl.LightningDataModule):
    """Loaders over manifests, each rank with its own part; rank and number of ranks come from the trainer.

    ``state`` is what a checkpoint holds of the position: ``epoch``, ``batches`` of it that the trainer has completed
    (not those that a loader has handed out), ``total_batches`` since the start, and ``validation_due``. After a
    restart the sampler goes on from there.

    Args:
        train: training utterances; valid: validation utterances, None for no validation.
        encode: text -> token ids.
        sampling_rate: of the waves in Hz.
        room: (samples, token ids) -> why they do not go together, or None.
        batch: ``duration_s``, ``max_cuts``, ``num_buckets``, ``shuffle_buffer`` as in `TrainSampler`.
        longest_s: longer training utterances are left out.
        speeds: at which training utterances are played.
        limit: most batches of an epoch.
        seed: of the order and of the speeds.
        workers: processes that load; cache_bytes: of audio that each of them (or this one) keeps.
    """

    def __init__(
        self,
        train: Corpus,
        valid: Corpus | None,
        *,
        encode: Callable[[str], list[int]],
        sampling_rate: int,
        room: Callable[[int, list[int]], str | None],
        batch: dict[str, Any],
        longest_s: float | None = None,
        speeds: tuple[float, ...] = (1.0,),
        limit: int | None = None,
        seed: int = 0,
        workers: int = 0,
        cache_bytes: int = 0,
    ) -> None:
        super().__init__()
        self.batch, self.limit, self.seed, self.workers = batch, limit, seed, workers
        loading: dict[str, Any] = {
            "encode": encode,
            "sampling_rate": sampling_rate,
            "room": room,
            "cache_bytes": cache_bytes,
        }
        #: (utterance, reason) of training utterances that are known to be of no use before anything is read.
        self.left_out: list[tuple[str, str]] = []
        self.train_entries = [entry for entry in train.entries if self._is_used(entry, longest_s)]
        self.train_set = Utterances(train, speeds=speeds, seed=seed, **loading)
        self.valid_entries: list[Entry] = []
        if valid is not None:
            self.valid_set = Utterances(valid, **loading)
            self.valid_entries = [entry for entry in valid.entries if entry.unreadable is None]
            self.valid_left_out = [(e.id, e.unreadable) for e in valid.entries if e.unreadable is not None]
        self.state = {"epoch": 0, "batches": 0, "total_batches": 0, "validation_due": False}
        self._start = dict(self.state)

    def _is_used(self, entry: Entry, longest_s: float | None) -> bool:
        if entry.unreadable is not None:
            self.left_out.append((entry.id, entry.unreadable))
        elif longest_s is not None and entry.duration_s > longest_s:
            self.left_out.append((entry.id, f"{entry.duration_s:g} s long, more than longest_s: {longest_s:g}"))
        else:
            return True
        return False

    @property
    def start(self) -> dict[str, Any]:
        """The position that this process started from."""
        return self._start

    def position(self) -> tuple[int, int]:
        """The epoch that the trainer is in, and how many of its batches are done when its loader starts."""
        assert self.trainer is not None
        epoch = self.trainer.current_epoch
        return epoch, self._start["batches"] if epoch == self._start["epoch"] else 0

    def state_dict(self) -> dict[str, Any]:
        """The position, for the checkpoint."""
        return dict(self.state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the position from a checkpoint."""
        self.state, self._start = dict(state_dict), dict(state_dict)

    def sampler(self, rank: int = 0, world_size: int = 1, position: Any = None) -> TrainSampler:
        """The sampler of one rank."""
        return TrainSampler(
            self.train_entries,
            **self.batch,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            limit=self.limit,
            position=position or self.position,
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        """This rank's training batches."""
        assert self.trainer is not None
        return self._loader(self.train_set, self.sampler(self.trainer.global_rank, self.trainer.world_size))

    def val_dataloader(self) -> DataLoader[Batch] | list[Any]:
        """This rank's validation batches."""
        assert self.trainer is not None
        if not self.valid_entries:
            return []
        plans = validation_plans(
            self.valid_entries,
            duration_s=self.batch["duration_s"],
            max_cuts=self.batch["max_cuts"],
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )
        return self._loader(self.valid_set, plans)

    def _loader(self, dataset: Utterances, plans: Any) -> DataLoader[Batch]:
        from lightning.pytorch.accelerators import CUDAAccelerator

        assert self.trainer is not None
        return DataLoader(
            dataset,
            batch_size=None,
            sampler=plans,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=isinstance(self.trainer.accelerator, CUDAAccelerator),
        )
