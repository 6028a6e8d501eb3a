from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from espnet3_rules.config import reference
from espnet3_rules.config.blocks import RootOptions
from tests.config.test_resolve import CONFIGS, SMALL, small

ROOT = Path(__file__).parents[2]


def test_readme_and_schema_are_those_of_the_code():
    hint = "write them anew: python -m espnet3_rules.config.reference"
    assert (ROOT / "config/README.md").read_text() == reference.readme(), hint
    assert json.loads((ROOT / "workflow/schemas/config.schema.json").read_text()) == reference.schema(), hint


def test_every_key_has_a_meaning():
    for line in reference.readme().splitlines():
        if line.startswith("| `"):
            assert len(line.split(" | ")[3].strip(" |")) > 8, line
    assert {f.name for f in dataclasses.fields(RootOptions)} <= set(reference.schema()["properties"])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_schema_takes_every_config_in_the_project(path):
    jsonschema.validate(yaml.safe_load(path.read_text()), reference.schema())


@pytest.mark.parametrize(
    "keys",
    [
        {"num_devices": 2},
        {"num_device": 0},
        {"corpora__fsdd__conected": True},
        {"systems__ctc__max_epoch": 1},
        {"decoders__beam__method": "bean"},
        {"decode__shard": 2},
    ],
)
def test_the_schema_is_closed(keys):
    jsonschema.validate(SMALL, reference.schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(small(**keys), reference.schema())
