"""Recognisers: what decoding asks of a model, the built-in one, its files on disk, and models only given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from espnet3_rules import tokens as token_module
from espnet3_rules.errors import DataError, OptionError, RulesError
from espnet3_rules.models.options import FeatureOptions, NetworkOptions
from espnet3_rules.records import read_json, write_aside, write_json

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from espnet3_rules.models.search import SearchOptions
    from espnet3_rules.tokens import Tokens

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
#: Of the files in a model's folder; a folder of another format is refused.
FORMAT = 1


@runtime_checkable
class Recogniser(Protocol):
    """What decoding asks of any model."""

    #: Goes into the run key: raise it when the same model and options give another text.
    VERSION: int
    #: Of the waveforms that `recognise` takes, in Hz.
    sampling_rate: int

    def recognise(self, waves: Sequence[np.ndarray], options: SearchOptions) -> list[list[tuple[str, float | None]]]:
        """For each waveform its n-best (text, log probability), best first; an empty list where it is too short.

        Args:
            waves: float32, (samples,) each, at ``sampling_rate``. What they are batched with changes no text.
            options: how to search.
        """
        ...


class CtcRecogniser:
    """The built-in recogniser: log mel features, a CTC network, and a search over its probabilities."""

    VERSION = 1

    def __init__(self, network: nn.Module, features: FeatureOptions, tokens: Tokens, device: str = "cpu") -> None:
        import torch

        from espnet3_rules.models.features import LogMel

        self.device = torch.device(device)
        self.network = network.to(self.device).eval()
        self.features = LogMel(features).to(self.device)
        self.tokens = tokens
        self.sampling_rate = features.sampling_rate

    @classmethod
    def load(cls, model_dir: Path | str, device: str = "cpu") -> CtcRecogniser:
        """The recogniser that `export` wrote to ``model_dir``, on ``device``.

        Raises:
            DataError: a file is missing, damaged, or of another version of this package.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        from espnet3_rules.models.network import build_network

        model_dir = Path(model_dir)
        config = _read_config(model_dir)
        features = FeatureOptions.from_dict(config["features"], "features")
        network = build_network(NetworkOptions.from_dict(config["network"], "network"), config["vocab_size"], features)
        try:
            network.load_state_dict(load_file(model_dir / WEIGHTS))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise DataError(
                f"{model_dir / WEIGHTS}: these are not the weights of the network in {CONFIG} ({error})",
                hint="train the system again, or copy the model's whole folder again",
            ) from error
        tokens = token_module.load_tokens(model_dir)
        if tokens.vocab_size != config["vocab_size"]:
            raise DataError(
                f"{model_dir}: the network has {config['vocab_size']} tokens, and the tokens beside it are "
                f"{tokens.vocab_size}",
                hint="copy the model's whole folder again",
            )
        return cls(network, features, tokens, device)

    def recognise(self, waves: Sequence[np.ndarray], options: SearchOptions) -> list[list[tuple[str, float | None]]]:
        """For each waveform its n-best (text, log probability), best first; an empty list where it is too short."""
        from espnet3_rules.models.search import search

        return [
            [] if frames is None else list(search(frames, self.tokens, options)) for frames in self.log_probs(waves)
        ]

    def log_probs(self, waves: Sequence[np.ndarray]) -> list[np.ndarray | None]:
        """Natural log probabilities (frames', vocab) of each waveform as float32; None where it is too short."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        enough = [i for i, wave in enumerate(waves) if self.features.options.frames(len(wave)) > 0]
        results: list[np.ndarray | None] = [None] * len(waves)
        if not enough:
            return results
        batch = pad_sequence([torch.as_tensor(waves[i], dtype=torch.float32) for i in enough], batch_first=True)
        lengths = torch.tensor([len(waves[i]) for i in enough])
        with torch.inference_mode():
            features, frames = self.features(batch.to(self.device), lengths.to(self.device))
            logits, counts = self.network(features, frames)
            log_probs = logits.log_softmax(-1).cpu().numpy()
        for row, (i, count) in enumerate(zip(enough, counts.tolist(), strict=True)):
            results[i] = log_probs[row, :count]
        return results


def export(
    model_dir: Path | str,
    network: nn.Module,
    *,
    network_options: NetworkOptions,
    feature_options: FeatureOptions,
    tokens: Tokens,
) -> None:
    """Writes all that decoding needs to ``model_dir``; ``config.json`` comes last, so where it is, all is."""
    from safetensors.torch import save

    model_dir = Path(model_dir)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    with write_aside(model_dir / WEIGHTS, "wb") as stream:
        stream.write(save(weights))
    tokens.save(model_dir)
    write_json(
        model_dir / CONFIG,
        {
            "format": FORMAT,
            "vocab_size": tokens.vocab_size,
            "network": network_options.to_dict(),
            "features": feature_options.to_dict(),
        },
    )


def build_recogniser(model: Path | str | Mapping[str, Any], device: str = "cpu") -> Recogniser:
    """The recogniser in a model's folder, or the one that a block with ``_target_`` names.

    Args:
        model: a folder that `export` wrote, or ``_target_`` (import path of a class or function) with its
            keyword arguments. The target gets ``device`` as well, unless the block sets it.
        device: as torch names it, such as ``cpu`` or ``cuda:1``.

    Raises:
        DataError: the folder holds no model.
        OptionError: the target cannot be imported or called, or what it returns is no recogniser.
    """
    if not isinstance(model, Mapping):
        return CtcRecogniser.load(model, device)
    import hydra.errors
    import hydra.utils

    target = model.get("_target_")
    if not isinstance(target, str):
        raise OptionError("_target_: missing", hint="the import path of the model's class, such as mypackage.MyModel")
    try:
        recogniser = hydra.utils.instantiate({"device": device, **model})
    except (hydra.errors.HydraException, ImportError) as error:
        cause = error.__cause__
        if isinstance(cause, RulesError):
            raise cause from None
        raise OptionError(
            f"_target_: {target} cannot be built: {cause or error}",
            hint="it is imported and called with the block's other keys and `device`; "
            "see Recogniser in espnet3_rules/models/recogniser.py",
        ) from error
    except SystemExit as error:  # it would end decoding as if all were done
        raise OptionError(
            f"_target_: {target} cannot be built: it called sys.exit({error.code!r})",
            hint="let it raise an error that says what is wrong",
        ) from error
    if not isinstance(recogniser, Recogniser):
        lacking = [name for name in ("VERSION", "sampling_rate", "recognise") if not hasattr(recogniser, name)]
        raise OptionError(
            f"_target_: {target} gives a {type(recogniser).__name__} without {' and '.join(lacking)}",
            hint="see Recogniser in espnet3_rules/models/recogniser.py",
        )
    return recogniser


def _read_config(model_dir: Path) -> dict[str, Any]:
    config = read_json(model_dir / CONFIG, made_by="train")
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise DataError(
            f"{model_dir / CONFIG}: expected a model of format {FORMAT}, found {str(config)[:80]}",
            hint="train the system again with this version of espnet3-rules, or install the version that wrote it",
        )
    missing = [key for key in ("vocab_size", "network", "features") if key not in config]
    if missing:
        raise DataError(f"{model_dir / CONFIG}: no {' and no '.join(missing)}", hint="copy the model's folder again")
    return config
