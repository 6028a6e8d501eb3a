"""The training stage: manifests become a model. Importing this costs neither torch nor Lightning."""

from espnet3_rules.train.options import TrainOptions
from espnet3_rules.train.stage import VERSION, train, train_key

__all__ = ["VERSION", "TrainOptions", "train", "train_key"]
