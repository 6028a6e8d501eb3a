"""The built-in recogniser's network: a small FastConformer CTC made of transformers' Parakeet classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from espnet3_rules.models.options import FeatureOptions, NetworkOptions, check_mel_bins

BLANK = 0


class CtcNetwork(nn.Module):
    """Features to logits over the tokens; token 0 is CTC's blank.

    No output depends on padding: Parakeet masks it in attention and convolutions, and `LogMel` leaves zeros there.
    """

    def __init__(self, options: NetworkOptions, vocab_size: int, mel_bins: int) -> None:
        super().__init__()
        from transformers import ParakeetCTCConfig, ParakeetEncoderConfig, ParakeetForCTC

        encoder = ParakeetEncoderConfig(
            hidden_size=options.width,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            intermediate_size=options.feed_forward,
            conv_kernel_size=options.kernel,
            subsampling_factor=options.subsampling,
            subsampling_conv_channels=options.subsampling_channels,
            num_mel_bins=mel_bins,
            dropout=options.dropout,
            activation_dropout=options.dropout,
            attention_dropout=options.dropout,
            layerdrop=options.layer_dropout,
        )
        self.ctc = ParakeetForCTC(ParakeetCTCConfig(vocab_size=vocab_size, pad_token_id=BLANK, encoder_config=encoder))
        # Parakeet draws all weights with a deviation of 0.02, made for widths of 1,024: a small network that starts
        # from there does not learn at all. Torch's own way scales with the layer's inputs.
        for module in self.ctc.modules():
            if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
                module.reset_parameters()

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (batch, frames', vocab) as float32 and their lengths (batch,).

        Args:
            features: (batch, frames, mel), zero after each utterance's end.
            lengths: (batch,) frames of each utterance, at least 1.
        """
        mask = torch.arange(features.shape[1], device=features.device) < lengths[:, None]
        logits = self.ctc(input_features=features, attention_mask=mask).logits
        return logits.float(), self.output_lengths(lengths)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """How many output frames (batch,) inputs of ``lengths`` frames give."""
        return self.ctc._get_subsampling_output_length(lengths).long()


def build_network(options: NetworkOptions, vocab_size: int, features: FeatureOptions) -> CtcNetwork:
    """A network with fresh weights (from torch's global generator) over ``vocab_size`` tokens, the blank included."""
    check_mel_bins(features, options)
    return CtcNetwork(options, vocab_size, features.mel_bins)
