"""Snakemake rules and a small package that train, decode and score speech recognisers."""

__version__ = "0.1.0"
