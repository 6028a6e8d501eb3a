"""Which run a training belongs to, what it publishes, and what it leaves out."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file

from espnet3_rules.errors import DataError, Interrupted, OptionError, RulesError
from espnet3_rules.manifest import write_manifest
from espnet3_rules.models.recogniser import CtcRecogniser
from espnet3_rules.records import read_json
from espnet3_rules.train import train_key
from espnet3_rules.train.run_folder import RunFolder
from tests.train.tones import RATE, Work, cut, make_manifest, options_of, tone


def test_the_published_model_recognises(work):
    work.here(max_epochs=12, scheduler={"name": "constant", "warmup_steps": 5}, checkpoint={"average_n": 2})
    losses = [float(value) for _, value in work.curve("valid/loss")]
    assert losses[-1] < 0.6 * losses[0]
    recogniser = CtcRecogniser.load(work.model)
    assert recogniser.sampling_rate == RATE
    wave = tone("abc", np.random.default_rng(0)).astype(np.float32)
    (log_probs,) = recogniser.log_probs([wave])
    assert log_probs.shape[1] == recogniser.tokens.vocab_size == 5


def test_a_complete_run_is_published_again_without_torch(work):
    work.here(max_epochs=1)
    weights, config = work.weights(), (work.model / "config.json").read_text()
    written = (work.model / "model.safetensors").stat().st_mtime_ns
    script = f"""
import json, sys
from pathlib import Path
from espnet3_rules.train import TrainOptions, train
arguments = json.loads({json.dumps(json.dumps(work.arguments(max_epochs=1)))})
train(train=[Path(p) for p in arguments["train"]], valid=[Path(p) for p in arguments["valid"]],
      model_dir=Path(arguments["model_dir"]), run_dir=Path(arguments["run_dir"]),
      options=TrainOptions.from_dict(arguments["options"]))
print([name for name in ("torch", "lightning", "lhotse") if name in sys.modules])
"""
    # untouched, then with a file missing, then with a file of another model
    for damage in (None, "model.safetensors", "config.json"):
        if damage == "model.safetensors":
            (work.model / damage).unlink()
        elif damage:
            (work.model / damage).write_text("{}")
        shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert shown.stdout.strip() == "[]"
        assert work.weights() == weights
        assert (work.model / "config.json").read_text() == config
        if damage is None:
            assert (work.model / "model.safetensors").stat().st_mtime_ns == written
    assert len(work.traces()) == 1


def test_another_config_is_another_run_and_the_keys_are_named(work, capfd):
    work.here(max_epochs=1)
    first = work.run
    capfd.readouterr()
    work.here(max_epochs=1, optimizer={"lr": 0.01}, trainer={"logger": False, "gradient_clip_val": 1.0})
    said = capfd.readouterr().err
    assert "optimizer.lr: 0.005 -> 0.01" in said
    assert "trainer.gradient_clip_val: null -> 1.0" in said
    assert "max_epochs" not in said
    assert sum((run / "complete.json").exists() for run in work.runs.iterdir()) == 2
    # back again: nothing is trained
    work.here(max_epochs=1)
    assert "training" not in capfd.readouterr().err
    assert len(list((first / "trace").iterdir())) == 1


def test_the_key_knows_what_matters(work, data, tmp_path):
    def key(**changes):
        return train_key(options_of(**changes), [work.train], [work.valid])

    base = key()
    for quiet in (
        {"trainer": {"log_every_n_steps": 3, "logger": False, "profiler": "simple"}},
        {"trainer": {"callbacks": [{"_target_": "lightning.pytorch.callbacks.LearningRateMonitor"}]}},
        {"workers": 2, "cache_mb": 0, "log_every_s": 3.0, "max_nonfinite": 3},
        {"checkpoint": {"every_s": 3, "every_n_steps": 1, "keep": 7}},
    ):
        assert key(**quiet) == base, quiet
    loud = (
        {"seed": 1},
        {"num_device": 2},
        {"trainer": {"precision": "bf16-mixed"}},
        {"trainer": {"callbacks": [{"_target_": "lightning.pytorch.callbacks.StochasticWeightAveraging"}]}},
        {"checkpoint": {"average": "last"}},
        {"network": {"dropout": 0.2}},
        {"augment": {"speed": [1.0]}},
        {"tokens": {"normalise": ["nfkc"]}},
    )
    assert len({base, *(key(**changes) for changes in loud)}) == 1 + len(loud)
    other = make_manifest(tmp_path / "other", "train", 3)
    before = train_key(options_of(), [other], [work.valid])
    assert before != base
    cuts = [cut(tmp_path / "other" / f"train-{i}.wav", f"train-{i}", "abc") for i in range(3)]
    write_manifest(other, cuts)
    corrected = train_key(options_of(), [other], [work.valid])
    assert corrected != before
    soundfile.write(tmp_path / "other" / "train-0.wav", np.zeros(3000), RATE)
    write_manifest(other, cuts)
    assert train_key(options_of(), [other], [work.valid]) != corrected


def test_the_model_is_the_mean_of_the_best(work):
    work.here(max_epochs=4, checkpoint={"average": "best", "average_n": 2, "metric": "loss"})
    saved = sorted((work.run / "weights").glob("*.ckpt"))
    assert len(saved) == 2
    losses = dict(work.curve("valid/loss"))
    best = sorted(losses, key=lambda step: float(losses[step]))[:2]
    assert sorted(json.loads(p.with_suffix(".json").read_text())["step"] - 1 for p in saved) == sorted(best)
    first, second = (torch.load(path) for path in saved)
    published = load_file(work.model / "model.safetensors")
    for name, tensor in first.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(published[name], (tensor + second[name]) / 2)
            assert name.endswith("running_mean") or not tensor.any() or (tensor != second[name]).any()


def test_best_needs_a_validation(work):
    with pytest.raises(OptionError, match="'best' needs validation"):
        work.here(trainer={"logger": False, "limit_val_batches": 0})
    work.here(max_epochs=1, checkpoint={"average": "last"}, trainer={"logger": False, "limit_val_batches": 0})
    assert (work.model / "config.json").exists()


def test_what_cannot_be_used_is_named_and_left_out(tmp_path, data, capfd):
    folder = tmp_path / "bad"
    make_manifest(folder, "good", 6)
    generator = np.random.default_rng(5)
    cuts = [cut(folder / f"good-{i}.wav", f"good-{i}", "abc") for i in range(6)]
    for name in ("flagged", "emptied", "replaced", "vanished"):
        soundfile.write(folder / f"{name}.wav", tone("ab", generator), RATE)
        cuts.append(
            cut(folder / f"{name}.wav", name, "ab", **({"unreadable": "no header"} if name == "flagged" else {}))
        )
    soundfile.write(folder / "short.wav", tone("a", generator)[:200], RATE)
    cuts.append(cut(folder / "short.wav", "short", "abc"))
    soundfile.write(folder / "crowded.wav", tone("a", generator), RATE)
    cuts.append(cut(folder / "crowded.wav", "crowded", "a" * 40))
    write_manifest(folder / "train.jsonl.gz", cuts)
    write_manifest(folder / "valid.jsonl.gz", cuts[4:])
    (folder / "emptied.wav").write_bytes(b"")
    (folder / "replaced.wav").write_text("not audio at all")
    (folder / "vanished.wav").unlink()
    work = Work(tmp_path, folder)
    work.here(max_epochs=2)
    (trace,) = work.traces()
    for epoch in (0, 1):
        ids = [utt_id for line in trace if line["epoch"] == epoch for utt_id in line["ids"]]
        assert sorted(ids) == [f"good-{i}" for i in range(6)]
    lines = [json.loads(line) for line in (work.run / "left_out-0.jsonl").read_text().splitlines()]
    reasons = {line["utt_id"]: line["reason"] for line in lines}
    assert len(lines) == len(reasons) == 6
    assert reasons["flagged"] == "no header"
    assert "0 bytes" in reasons["emptied"]
    assert "no such file" in reasons["vanished"]
    assert "frames, 4 are needed" in reasons["short"] or "too short" in reasons["short"]
    assert "79 are needed" in reasons["crowded"]
    assert {value for _, value in work.curve("valid/utterances")} == {"2"}
    assert "utterances were left out" in capfd.readouterr().err


def test_nothing_usable_is_an_error(tmp_path, data):
    folder = tmp_path / "bad"
    make_manifest(folder, "train", 3)
    make_manifest(folder, "valid", 2)
    for path in folder.glob("train-*.wav"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"not one utterance of epoch 1 .* 3 were left out"):
        Work(tmp_path, folder).here(max_epochs=1)


def test_a_second_driver_waits_and_publishes(work, uninterrupted):
    first = work.process()
    work.wait_for_batches(first, 3)
    second = work.process()
    first.finish()
    said = second.finish()
    assert "waiting for it" in said
    assert len(work.traces()) == 1
    assert work.weights() == uninterrupted.weights()


def test_a_second_driver_takes_over_from_a_dead_one(work, uninterrupted):
    first = work.process()
    work.wait_for_batches(first, 6)
    first.signal(signal.SIGSTOP)
    second = work.process()
    end = time.monotonic() + 60
    while "waiting for it" not in second.log.read_text() and time.monotonic() < end:
        time.sleep(0.05)
    first.signal(signal.SIGKILL)
    second.finish()
    assert len(work.traces()) == 2
    assert work.weights() == uninterrupted.weights()


def test_it_gives_up_when_gradients_stay_infinite(work):
    with pytest.raises(RulesError, match=r"the gradient of 3 steps in a row was infinite or not a number, .* train-"):
        work.here(optimizer={"_target_": "torch.optim.SGD", "lr": 1e30}, max_nonfinite=3, max_epochs=9)


def test_options_of_other_libraries(work):
    work.here(
        max_epochs=1,
        optimizer={"_target_": "torch.optim.SGD", "lr": 0.1, "momentum": 0.9},
        scheduler={"_target_": "torch.optim.lr_scheduler.OneCycleLR", "max_lr": 0.1},
        trainer={
            "precision": "bf16-mixed",
            "gradient_clip_val": 1.0,
            "log_every_n_steps": 1,
            "val_check_interval": 5,
            "callbacks": [{"_target_": "lightning.pytorch.callbacks.LearningRateMonitor"}],
            "logger": {"_target_": "lightning.pytorch.loggers.CSVLogger", "save_dir": str(work.model.parent)},
        },
    )
    rates = [float(value) for _, value in work.curve("lr-SGD")]
    assert max(rates) > 10 * rates[0]
    assert [step for step, _ in work.curve("valid/loss")] == [4, 9]
    assert list(work.model.parent.rglob("metrics.csv"))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"optimizer": {"_target_": "torch.optim.Adan", "lr": 1}}, "optimizer: torch.optim.Adan cannot be built"),
        ({"optimizer": {"learning_rate": 1}}, "optimizer: torch.optim.AdamW cannot be built"),
        ({"trainer": {"gradient_clip_algorithm": "nrom", "logger": False}}, "trainer: "),
        ({"scheduler": {"_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau"}}, "does not go by the step"),
    ],
)
def test_what_cannot_be_built_is_an_option_error(work, changes, message):
    with pytest.raises(OptionError, match=message):
        work.here(**changes)


def test_max_steps_ends_training(work):
    work.here(max_steps=5, max_epochs=None)
    assert [line["step"] for line in work.traces()[0]] == [1, 2, 3, 4, 5]
    assert [step for step, _ in work.curve("valid/loss")] == [4]


def test_the_last_steps_are_in_the_model_though_no_validation_followed_them(work):
    work.here(
        max_steps=5,
        trainer={"logger": False, "val_check_interval": 3},
        checkpoint={"every_n_steps": 4, "average": "none"},
    )
    assert read_json(RunFolder(work.run).complete)["steps"] == [5]


def test_a_training_of_other_options_does_not_replace_a_newer_model(work):
    orphan = work.process(max_epochs=12)
    work.wait_for_batches(orphan, 3)
    work.here(max_epochs=1)
    newer = work.weights()
    assert orphan.wait() == Interrupted.exit_code
    assert "not published" in orphan.log.read_text()
    assert work.weights() == newer
