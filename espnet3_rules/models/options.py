"""What a user can set of the built-in recogniser; free of torch, so that checking a config costs nothing."""

from __future__ import annotations

import dataclasses

from espnet3_rules.errors import OptionError
from espnet3_rules.options import Options, opt


@dataclasses.dataclass(frozen=True)
class FeatureOptions(Options):
    """How a waveform becomes log mel features."""

    sampling_rate: int = opt(16000, "sampling rate of the waveforms in Hz; other audio is resampled", minimum=1000)
    mel_bins: int = opt(80, "number of mel filters", minimum=4, maximum=512)
    window_s: float = opt(0.025, "length of the analysis window in seconds", above=0, maximum=1)
    shift_s: float = opt(0.01, "distance between two windows in seconds", above=0, maximum=1)
    low_hz: float = opt(20.0, "lowest frequency of the mel filters in Hz", minimum=0)
    high_hz: float | None = opt(None, "highest frequency of the mel filters in Hz; null: half the sampling rate")

    def check(self) -> None:
        """The band lies below half the sampling rate, and the windows are at least a few samples long."""
        if not self.low_hz < self.top_hz <= self.sampling_rate / 2:
            raise OptionError(
                f"high_hz: the mel filters go from {self.low_hz:g} to {self.top_hz:g} Hz, "
                f"and the audio from 0 to {self.sampling_rate / 2:g} Hz"
            )
        if self.shift < 1 or self.window < 2:
            raise OptionError(f"shift_s: {self.shift_s:g} s is less than a sample at {self.sampling_rate} Hz")

    @property
    def top_hz(self) -> float:
        """The highest frequency of the filters in Hz."""
        return self.sampling_rate / 2 if self.high_hz is None else self.high_hz

    @property
    def window(self) -> int:
        """Length of the window in samples."""
        return round(self.window_s * self.sampling_rate)

    @property
    def shift(self) -> int:
        """Distance between two windows in samples."""
        return round(self.shift_s * self.sampling_rate)

    def frames(self, samples: int) -> int:
        """How many frames a waveform of so many samples gives; 0 where it is shorter than one window."""
        return max(0, (samples - self.window) // self.shift + 1)


@dataclasses.dataclass(frozen=True)
class NetworkOptions(Options):
    """Size and regularisation of the FastConformer (https://arxiv.org/abs/2305.05084)."""

    layers: int = opt(6, "number of conformer blocks", minimum=1)
    width: int = opt(128, "size of the hidden states; a multiple of `heads`", minimum=4)
    heads: int = opt(4, "attention heads a block", minimum=1)
    feed_forward: int = opt(512, "inner size of the feed-forward layers", minimum=4)
    kernel: int = opt(9, "frames that a block's convolution sees; odd", minimum=1)
    subsampling: int = opt(4, "input frames per output frame", choices=(2, 4, 8))
    subsampling_channels: int = opt(64, "channels of the convolutions that subsample", minimum=1)
    dropout: float = opt(0.1, "dropout on activations, attention and the blocks' input", minimum=0, maximum=0.9)
    layer_dropout: float = opt(0.0, "probability that a block is skipped in training", minimum=0, maximum=0.9)

    def check(self) -> None:
        """The heads share the width evenly, and the convolution is centred."""
        if self.width % (2 * self.heads):
            raise OptionError(
                f"width: {self.width} is not a multiple of twice the {self.heads} heads",
                hint=f"take {-(-self.width // (2 * self.heads)) * 2 * self.heads}",
            )
        if self.kernel % 2 == 0:
            raise OptionError(f"kernel: {self.kernel} is even", hint=f"take {self.kernel + 1}")


def check_mel_bins(features: FeatureOptions, network: NetworkOptions) -> None:
    """Raises `OptionError` where halving the mel bins at each step of the subsampling leaves a rest."""
    bins, factor = features.mel_bins, network.subsampling
    if bins % factor:
        fitting = [str(n) for n in (bins // factor * factor, (bins // factor + 1) * factor) if n]
        raise OptionError(
            f"mel_bins: {bins} is not a multiple of the subsampling, {factor}", hint=f"take {' or '.join(fitting)}"
        )


@dataclasses.dataclass(frozen=True)
class AugmentOptions(Options):
    """Which parts of a training utterance are hidden (SpecAugment, https://arxiv.org/abs/1904.08779)."""

    frequency_masks: int = opt(2, "bands of mel bins that are hidden", minimum=0)
    frequency_width: int = opt(15, "a band is narrower than this, in bins", minimum=1)
    time_masks: int = opt(4, "most stretches of time that are hidden", minimum=0)
    time_width: int = opt(20, "a stretch is shorter than this, in frames", minimum=1)
    time_fraction: float = opt(0.2, "most of an utterance that is hidden, as a fraction", above=0, maximum=1)
