"""Audio and batches: from cuts of a manifest to the tensors that training and decoding read."""

from espnet3_rules.data.audio import load_audio

__all__ = ["load_audio"]
