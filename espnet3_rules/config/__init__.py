"""The one config: resolved once, checked before anything runs, handed to each stage in its own part."""

from espnet3_rules.config.resolve import Config, Experiment, check_file, load, resolve

__all__ = ["Config", "Experiment", "check_file", "load", "resolve"]
