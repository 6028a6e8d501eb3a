from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from espnet3_rules.config import load, resolve
from espnet3_rules.errors import OptionError
from espnet3_rules.options import lay_over, nested

CONFIGS = sorted((Path(__file__).parents[2] / "config").glob("*.yaml"))

SMALL = {
    "corpora": {"fsdd": {"type": "fsdd", "path": "fsdd.zip"}},
    "systems": {"ctc": {"train": ["fsdd/train"], "valid": ["fsdd/valid"]}},
    "decoders": {"greedy": None, "beam": {"method": "beam"}},
    "test_sets": ["fsdd/test"],
}


def small(**keys):
    """SMALL with keys like ``decode__shards`` laid over it."""
    made = copy.deepcopy(SMALL)
    for key, value in keys.items():
        made = lay_over(made, nested(key.split("__"), value))
    return made


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_in_the_project_is_sound(path):
    assert list(load(path).experiments())


def test_systems_decoders_and_test_sets_multiply():
    config = resolve(small(systems__given={"model": {"_target_": "a.B"}, "test_sets": []}))
    assert [(e.system, e.decoder, e.test_set) for e in config.experiments()] == [
        ("ctc", "greedy", "fsdd/test"),
        ("ctc", "beam", "fsdd/test"),
    ]
    assert config.splits() == ["fsdd/train", "fsdd/valid", "fsdd/test"]
    assert config.trained() == ["ctc"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_devices": 2}, "num_devices: unknown key\nHINT: did you mean 'num_device'?"),
        ({"num_device": 0}, "num_device: 0 is below 1"),
        ({"num_device": "two"}, "num_device: expected whole number, found 'two'"),
        ({"corpora": {"x": {"path": "y"}}}, "corpora.x.type: missing"),
        ({"corpora": {"x": {"type": "fsd"}}}, "corpora.x.type: no corpus type 'fsd'\nHINT: did you mean 'fsdd'?"),
        ({"corpora__fsdd__conected": True}, "corpora.fsdd.conected: unknown key\nHINT: did you mean 'connected'?"),
        ({"corpora": {"a b": {"type": "fsdd"}}}, "corpora.a b: 'a b' cannot be a name"),
        ({"systems__ctc__max_epoch": 3}, "systems.ctc.max_epoch: unknown key\nHINT: did you mean 'max_epochs'?"),
        ({"systems__ctc__train": "fsdd/train"}, "systems.ctc.train: expected list of text, found 'fsdd/train'"),
        ({"systems__ctc__train": ["fsd/train"]}, "systems.ctc.train[0]: no corpus 'fsd' in 'corpora'"),
        (
            {"systems__ctc__train": ["fsdd/trian"]},
            "systems.ctc.train[0]: corpus 'fsdd' has no split 'trian'\nHINT: did you mean 'fsdd/train'?",
        ),
        ({"systems__ctc__network__width": 3}, "systems.ctc.network.width: 3 is below 4"),
        ({"systems": {"x": {"model": {"target": "a.B"}}}}, "systems.x.model._target_: missing"),
        ({"systems": {"../x": {"model": {"_target_": "a.B"}}}}, "'../x' cannot be a name"),
        ({"systems": None}, "systems: expected block, found None"),
        ({"decoders__beam__beam_sise": 3}, "decoders.beam.beam_sise: unknown key\nHINT: did you mean 'beam_size'?"),
        ({"decoders__beam__beam_size": [1, 2]}, "decoders.beam.beam_size: expected whole number, found [1, 2]"),
        ({"decode__shard": 3}, "decode.shard: unknown key\nHINT: did you mean 'shards'?"),
        ({"decode__shards": 0}, "decode.shards: 0 is below 1"),
        ({"decode__search": {}}, "decode.search: unknown key"),
        ({"test_sets": ["fsdd/tset"]}, "corpus 'fsdd' has no split 'tset'\nHINT: did you mean 'fsdd/test'?"),
        ({"trainer__devices": 2}, "trainer.devices: 2, and num_device says 1"),
        ({"trainer__acelerator": "cpu"}, "trainer.acelerator: unknown key\nHINT: did you mean 'accelerator'?"),
        ({"trainer__use_distributed_sampler": True}, "trainer.use_distributed_sampler: True cannot be set"),
        ({"exp_dir": "${no.such}"}, "no.such"),
        ({"exp_dir": ""}, "exp_dir: '' cannot be a folder here"),
        ({"data_dir": "a{x}b"}, "data_dir: 'a{x}b' cannot be a folder here"),
        ({"exp_dir": "~/e"}, "exp_dir: '~/e' cannot be a folder here"),
        ({"decoders__beam__lm": "none.arpa"}, "decoders.beam.lm: no such file: 'none.arpa'"),
        ({"decoders__beam__lm": "/tmp"}, "decoders.beam.lm: no such file: '/tmp'"),
        ({"corpora__t": {"type": "tsv", "splits": {"..": "t.tsv"}}}, "corpora.t.splits: '..' cannot be a name"),
        ({"corpora__t": {"type": "tsv", "splits": {"a/b": "t.tsv"}}}, "corpora.t.splits: 'a/b' cannot be a name"),
        ({"corpora__t": {"type": ["tsv"]}}, "corpora.t.type: expected text, found ['tsv']"),
        ({"systems": {"results.md": {"model": {"_target_": "a.B"}}}}, "'results.md' cannot be a name"),
        ({"systems": {"x" * 200: {"model": {"_target_": "a.B"}}}}, "cannot be a name"),
        ({"systems__ctc": {1: 2}}, "systems.ctc.1: unknown key"),
        ({"decoders__beam__sweep": {1: [2]}}, "decoders.beam-1=2.1: unknown key"),
        ({"systems__ctc__train": []}, "systems.ctc.train: an empty list"),
    ],
)
def test_what_cannot_be_is_refused_with_its_path(keys, message):
    with pytest.raises(OptionError) as found:
        resolve(small(**keys))
    assert message in str(found.value)


def test_references_and_small_numbers():
    config = resolve(small(exp_dir="exp/${seed}", seed=7, systems__ctc__optimizer={"lr": "1e-3"}))
    assert config.root.exp_dir == "exp/7"
    assert config.systems["ctc"].options.optimizer["lr"] == 0.001
    assert config.systems["ctc"].options.seed == 7


def test_a_system_lays_its_own_keys_over_the_top():
    config = resolve(
        small(
            num_device=2,
            trainer={"accelerator": "cpu", "precision": "32"},
            systems__ctc__trainer__precision="bf16-mixed",
        )
    )
    options = config.systems["ctc"].options
    assert options.num_device == 2
    assert options.trainer == {"accelerator": "cpu", "precision": "bf16-mixed"}


def test_a_command_line_gives_text_and_the_config_gets_numbers():
    config = resolve(SMALL, {"num_device": "2", "decode": {"shards": "4"}, "watch_audio": "false", "exp_dir": "e"})
    assert (config.root.num_device, config.decode.shards, config.root.watch_audio) == (2, 4, False)


def test_a_sweep_makes_one_of_each_with_stable_names():
    swept = small(decoders={"beam": {"method": "beam", "sweep": {"beam_size": [2, 4], "length_bonus": [0.0, 0.5]}}})
    names = [name for name in resolve(swept).decoders if name != "greedy"]
    assert names == [f"beam-beam_size={size}-length_bonus={bonus}" for size in (2, 4) for bonus in (0.0, 0.5)]
    one = small(decoders={"beam": {"method": "beam", "sweep": {"beam_size": [4], "length_bonus": [0.5]}}})
    assert list(resolve(one).decoders) == ["greedy", "beam-beam_size=4-length_bonus=0.5"]
    rates = small(systems__ctc__sweep={"optimizer.lr": [0.1, 0.2]})
    made = resolve(rates).systems
    assert {name: system.options.optimizer["lr"] for name, system in made.items()} == {
        "ctc-lr=0.1": 0.1,
        "ctc-lr=0.2": 0.2,
    }


@pytest.mark.parametrize("sweep", [3, {"beam_size": 3}, {"beam_size": []}, {"beam_sise": [1]}])
def test_a_sweep_of_nothing_is_refused(sweep):
    with pytest.raises(OptionError, match=r"decoders\.beam"):
        resolve(small(decoders__beam__sweep=sweep))


def test_quiet_keys_are_in_no_parameter_that_reruns_a_stage():
    loud = small(
        systems__ctc__log_every_s=1.0, trainer={"log_every_n_steps": 1}, decode__batch_duration_s=5.0, decode__shards=3
    )
    before, after = resolve(SMALL), resolve(loud)
    assert before.training("ctc") == after.training("ctc")
    assert before.decoding("beam") == after.decoding("beam")
    quiet = after.training_quiet("ctc", 2)
    assert quiet["log_every_s"] == 1.0 and quiet["trainer"] == {"log_every_n_steps": 1}
    assert after.decoding_quiet("beam", 2)["batch_duration_s"] == 5.0


def test_what_a_stage_is_given_makes_its_options_again():
    from espnet3_rules.decode import DecodeOptions
    from espnet3_rules.train import TrainOptions

    config = resolve(small(trainer={"precision": "32", "log_every_n_steps": 1}, systems__ctc__log_every_s=1.0))
    given = lay_over(config.training("ctc"), config.training_quiet("ctc", 2))
    assert TrainOptions.from_dict(given).trainer == {"precision": "32", "log_every_n_steps": 1}
    given = lay_over(config.decoding("beam"), config.decoding_quiet("beam", 2))
    assert DecodeOptions.from_dict(given).search.method == "beam"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "mine.yaml"),
        ("- a\n", "expected a block of keys"),
        ("seed: 1\nseed: 2\n", "mine.yaml.*[Dd]uplicate|mine.yaml.*seed"),
    ],
)
def test_a_file_that_is_no_config_is_named(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(OptionError, match=message):
        load(path)
    with pytest.raises(OptionError, match="no such config file"):
        load(tmp_path / "none.yaml")


def test_the_checked_config_can_be_shown_and_read_again(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    shown = json.loads(
        subprocess.run(
            [sys.executable, "-m", "espnet3_rules.cli", "config", "--config", path, "--override", "decode.shards=3"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    assert shown["decode"]["shards"] == 3
    assert resolve(shown).to_dict() == shown


def test_a_corpus_that_the_manifest_would_replace_is_refused(tmp_path):
    mine = tmp_path / "data/mine/test.jsonl.gz"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"precious")
    blocks = {"type": "lhotse", "splits": {"test": str(mine)}}
    with pytest.raises(OptionError, match="would replace"):
        resolve(small(data_dir=str(tmp_path / "data"), corpora={"mine": blocks}))
    resolve(small(data_dir=str(tmp_path / "elsewhere"), corpora={"mine": blocks}))
