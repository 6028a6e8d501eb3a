"""Log mel features from waveforms, batched, in torch: the same code trains and decodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from espnet3_rules.models.options import FeatureOptions

#: Added before the logarithm, so that digital silence is quiet and not minus infinity (NeMo's value).
_FLOOR = 2.0**-24


class LogMel(nn.Module):
    """Log mel features of a batch of waveforms, each bin normalised to mean 0 and variance 1 over the utterance.

    Windows lie wholly inside the utterance, so that no frame depends on what it is padded with.
    """

    window: Tensor
    filters: Tensor

    def __init__(self, options: FeatureOptions) -> None:
        super().__init__()
        from transformers.audio_utils import mel_filter_bank

        self.options = options
        # a power of two is fast; at least 512, or the lowest of 80 filters fall between two bins
        self.fft = max(512, 1 << (options.window - 1).bit_length())
        filters = mel_filter_bank(
            num_frequency_bins=self.fft // 2 + 1,
            num_mel_filters=options.mel_bins,
            min_frequency=options.low_hz,
            max_frequency=options.top_hz,
            sampling_rate=options.sampling_rate,
            norm="slaney",
            mel_scale="slaney",
        )
        # not in the checkpoint: the options say all of it
        self.register_buffer("window", torch.hann_window(options.window, periodic=False), persistent=False)
        self.register_buffer("filters", torch.from_numpy(filters).float(), persistent=False)

    @torch.no_grad()
    def forward(self, waves: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features (batch, frames, mel_bins) as float32, zero after each utterance's end, and their lengths (batch,).

        Args:
            waves: (batch, samples), padded at the end with anything.
            lengths: (batch,) samples of each; one shorter than a window has 0 frames.
        """
        window, shift = self.options.window, self.options.shift
        if waves.shape[1] < window:
            waves = nn.functional.pad(waves, (0, window - waves.shape[1]))
        frames = waves.float().unfold(1, window, shift)  # (batch, frames, window)
        frame_counts = ((lengths - window).div(shift, rounding_mode="floor") + 1).clamp(min=0)
        frames = frames[:, : max(1, int(frame_counts.max()))]
        with torch.autocast(waves.device.type, enabled=False):  # bfloat16 would lose the quiet bins
            spectrum = torch.fft.rfft(frames * self.window, n=self.fft)
            power = spectrum.real.square() + spectrum.imag.square()
            mels = torch.log(power @ self.filters + _FLOOR)
        return _normalise(mels, frame_counts), frame_counts


def _normalise(mels: Tensor, lengths: Tensor) -> Tensor:
    """``mels`` (batch, frames, mel) with mean 0 and variance 1 a bin over each one's own frames, zero after them."""
    inside = (torch.arange(mels.shape[1], device=mels.device) < lengths[:, None])[:, :, None]
    count = lengths.clamp(min=1)[:, None, None]
    centred = (mels - (mels * inside).sum(1, keepdim=True) / count) * inside
    deviation = (centred.square().sum(1, keepdim=True) / count).sqrt()
    return centred / (deviation + 1e-5)
