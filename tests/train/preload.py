"""Imported once by the server that the training processes are forked from."""

import importlib

import torch

for name in ("tests.train.tones", "espnet3_rules.data.module", "transformers.models.parakeet"):
    importlib.import_module(name)
for name in ("callbacks", "export", "fit", "module", "progress"):
    importlib.import_module(f"espnet3_rules.train.{name}")
# a thread that has worked before a fork is missing after it
torch.set_num_threads(1)
