"""What is done to training batches only; all of it draws from torch's global generator."""

from __future__ import annotations

import math

from torch import Tensor, nn

from espnet3_rules.models.options import AugmentOptions


class SpecAugment(nn.Module):
    """Lhotse's SpecAugment, applied to each utterance's own frames in training mode; identity otherwise."""

    def __init__(self, options: AugmentOptions) -> None:
        super().__init__()
        from lhotse.dataset.signal_transforms import SpecAugment as LhotseSpecAugment

        self.options = options
        # Lhotse divides by the number of masks, so none at all is one mask of width 0.
        masks, width = (options.time_masks, options.time_width) if options.time_masks else (1, 1)
        #: Frames below which a stretch would be shorter than one frame, which Lhotse cannot draw.
        self.shortest = math.ceil(masks / options.time_fraction)
        self.mask = LhotseSpecAugment(
            time_warp_factor=None,  # it and p would draw from other generators than torch's
            p=1.0,
            num_feature_masks=options.frequency_masks,
            features_mask_size=options.frequency_width,
            num_frame_masks=masks,
            frames_mask_size=width,
            max_frames_mask_fraction=options.time_fraction,
        )

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """Features (batch, frames, mel) with some bands and stretches set to the utterance's mean."""
        if not self.training:
            return features
        features = features.clone()
        for utterance, length in zip(features, lengths.tolist(), strict=True):
            if length >= self.shortest:
                utterance[:length] = self.mask(utterance[None, :length])[0]
        return features
