"""The Lightning module: one training step of the CTC recogniser, and validation by counts."""

from __future__ import annotations

import itertools
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from espnet3_rules.data.loading import Batch
from espnet3_rules.models.augment import SpecAugment
from espnet3_rules.models.features import LogMel
from espnet3_rules.models.network import BLANK, build_network
from espnet3_rules.models.options import FeatureOptions
from espnet3_rules.tokens import Tokens
from espnet3_rules.train.options import TrainOptions
from espnet3_rules.train.ranks import Agreement
from espnet3_rules.train.schedules import build_optimizer, build_scheduler

#: What validation adds up over utterances and ranks.
_COUNTS = ("loss", "weight", "utterances", "token_errors", "tokens", "word_errors", "words")


class CtcRoom:
    """Says why so many samples and these tokens do not go together, or None: CTC needs a frame for each token."""

    def __init__(self, options: TrainOptions, vocab_size: int) -> None:
        self.features: FeatureOptions = options.features
        with torch.device("meta"):  # only its shapes are asked for
            self.network = build_network(options.network, vocab_size, options.features)

    def __call__(self, samples: int, tokens: list[int]) -> str | None:
        """Why they do not go together, or None."""
        frames = self.features.frames(samples)
        outputs = int(self.network.output_lengths(torch.tensor([frames]))) if frames else 0
        # the same token twice needs a blank between; batch normalisation cannot train on a single frame
        needed = max(2, len(tokens) + sum(a == b for a, b in itertools.pairwise(tokens)))
        if outputs >= needed:
            return None
        return f"too short: {samples / self.features.sampling_rate:.3g} s give {outputs} frames, {needed} are needed"


class CtcTraining(pl.LightningModule):
    """The network with its features, its loss, its optimiser, and what is counted in validation.

    The loss is in nats per token: summed over the utterances of all ranks, divided once, so that two ranks do what
    one with both batches would do. ``step_weight`` is that divisor, set before each step.
    """

    def __init__(self, options: TrainOptions, tokens: Tokens, total_steps: int, agreement: Agreement) -> None:
        super().__init__()
        self.options, self.tokens, self.total_steps, self.agreement = options, tokens, total_steps, agreement
        torch.manual_seed(options.seed)
        self.features = LogMel(options.features)
        self.augment = SpecAugment(options.augment)
        self.network = build_network(options.network, tokens.vocab_size, options.features)
        self.step_weight = 1.0
        self.counts = dict.fromkeys(_COUNTS, 0.0)
        #: Steps in a row that were left out because a gradient was not finite.
        self.nonfinite = 0

    def losses(self, batch: Batch, *, augment: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Negative log likelihoods (batch,) in nats, logits (batch, frames, vocab) and their lengths (batch,)."""
        features, lengths = self.features(batch.waves, batch.wave_lengths)
        if augment:
            features = self.augment(features, lengths)
        logits, lengths = self.network(features, lengths)
        losses = nn.functional.ctc_loss(
            logits.float().log_softmax(-1).transpose(0, 1),
            batch.targets,
            lengths,
            batch.target_lengths,
            blank=BLANK,
            reduction="none",
            zero_infinity=True,
        )
        return losses, logits, lengths

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """This rank's part of the loss; zero, over all weights, where it has no utterance in this step."""
        if not len(batch):
            # the other ranks wait for this one's gradients
            return torch.stack([p.sum() for p in self.network.parameters()]).sum() * 0.0
        losses, _, _ = self.losses(batch, augment=True)
        loss = losses.sum() * (self.trainer.world_size / self.step_weight)
        self.log("train/loss", loss.detach(), on_step=True, on_epoch=False, batch_size=len(batch))
        return loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Leaves the step out on all ranks where the gradient of any is not finite."""
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        bad = not bool(torch.isfinite(norm))
        if self.agreement.sum([float(bad)])[0]:
            optimizer.zero_grad(set_to_none=True)  # an optimiser passes over weights without a gradient
            self.nonfinite += 1
            return
        self.nonfinite = 0
        self.log("train/gradient", norm, on_step=True, on_epoch=False)

    def on_validation_epoch_start(self) -> None:
        """Starts to count."""
        self.counts = dict.fromkeys(_COUNTS, 0.0)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a batch to the counts; greedy decoding."""
        if not len(batch):
            return
        losses, logits, lengths = self.losses(batch, augment=False)
        self.counts["loss"] += float(losses.double().sum())
        self.counts["weight"] += batch.weight
        self.counts["utterances"] += len(batch)
        best = logits.argmax(-1).cpu()
        targets = batch.targets.cpu()
        for row, (frames, tokens) in enumerate(zip(lengths.tolist(), batch.target_lengths.tolist(), strict=True)):
            self._count(_collapsed(best[row, :frames]), targets[row, :tokens].tolist())

    def _count(self, hypothesis: list[int], reference: list[int]) -> None:
        from rapidfuzz.distance import Levenshtein

        from espnet3_rules.alignment import count_errors

        said, meant = self.tokens.decode(hypothesis).split(), self.tokens.decode(reference).split()
        self.counts["token_errors"] += Levenshtein.distance(hypothesis, reference)
        self.counts["tokens"] += len(reference)
        self.counts["word_errors"] += count_errors(meant, said).errors
        self.counts["words"] += len(meant)

    def on_validation_epoch_end(self) -> None:
        """Adds up over the ranks, divides once, and logs."""
        total = dict(zip(_COUNTS, self.agreement.sum([self.counts[name] for name in _COUNTS]), strict=True))
        for name, errors, of in (
            ("loss", "loss", "weight"),
            ("ter", "token_errors", "tokens"),
            ("wer", "word_errors", "words"),
        ):
            self.log(f"valid/{name}", total[errors] / max(1.0, total[of]), prog_bar=True, rank_zero_only=False)
        self.log("valid/utterances", total["utterances"])

    def configure_optimizers(self) -> Any:
        """The optimiser, and the schedule by the step."""
        optimizer = build_optimizer(self.options.optimizer, self.network.parameters())
        scheduler = build_scheduler(self.options.scheduler, optimizer, self.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Steps the schedule, but not past the end of one that refuses that: the number of steps is an estimate."""
        total = getattr(scheduler, "total_steps", None)
        if total is None or scheduler.last_epoch < total - 1:
            scheduler.step()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Makes Lightning's loops start at the position as if the epoch began there; the sampler does the rest.

        Lightning's own restart inside an epoch repeats and drops batches with a sampler that has no length.
        """
        state = self.trainer.datamodule.state  # type: ignore[attr-defined]
        loops = checkpoint["loops"]["fit_loop"]
        _set_progress(loops["epoch_progress"], state["epoch"], state["epoch"])
        _set_progress(loops["epoch_loop.batch_progress"], state["total_batches"], 0)
        loops["epoch_loop.batch_progress"]["is_last_batch"] = False
        _set_progress(loops["epoch_loop.val_loop.batch_progress"], 0, 0)
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] = self.trainer.global_step


def _set_progress(progress: dict[str, Any], total: int, current: int) -> None:
    for part, count in (("total", total), ("current", current)):
        progress[part].update(dict.fromkeys(progress[part], count))


def _collapsed(best: Tensor) -> list[int]:
    """The tokens of a CTC path: repeats as one, without blanks."""
    return [token for token in torch.unique_consecutive(best).tolist() if token != BLANK]
