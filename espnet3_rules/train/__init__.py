"""The training stage: manifests become a model. Importing this costs neither torch nor Lightning."""

from espnet3_rules.train.options import TrainOptions

__all__ = ["TrainOptions"]
