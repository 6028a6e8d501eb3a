from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import time
from pathlib import Path

import pytest

from espnet3_rules import cli
from espnet3_rules.errors import RulesError

LIGHT = ("plan", "merge", "score", "report", "gate")


def run(*arguments, **keys):
    return subprocess.run(
        [sys.executable, "-m", "espnet3_rules.cli", *map(str, arguments)],
        capture_output=True, text=True, check=False, **keys,
    )  # fmt: skip


def test_help_lists_every_stage_and_imports_nothing_heavy():
    code = (
        "import sys; from espnet3_rules.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print([m for m in ('torch', 'numpy', 'pandas', 'yaml') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr.strip() == "[]"
    for stage in cli.STAGES:
        assert f"  {stage}" in done.stdout


@pytest.mark.parametrize("stage", sorted(cli.STAGES))
def test_every_stage_has_the_options_of_its_function(stage):
    module, name, _ = cli.STAGES[stage]
    function = getattr(importlib.import_module(module), name)
    done = run(stage, "--help")
    assert done.returncode == 0, done.stderr
    for parameter in inspect.signature(function).parameters:
        assert parameter.replace("_", "-") in done.stdout or parameter in done.stdout
    assert "exit codes:" in done.stdout


@pytest.mark.parametrize("stage", LIGHT)
def test_light_stages_import_no_torch(stage):
    module, *_ = cli.STAGES[stage]
    code = f"import sys, {module}; print([m for m in ('torch', 'lhotse', 'lightning', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_stage_is_refused_with_the_nearest():
    done = run("scroe")
    assert done.returncode == 2 and "did you mean 'score'?" in done.stderr
    assert run().returncode == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--options", "{"], "not JSON"),
        (["--options", '{"hash_audo": true}'], "hash_audo: unknown key\nHINT: did you mean 'hash_audio'?"),
        (["--set", "hash_audio=maybe"], "hash_audio: expected true or false, found 'maybe'"),
        (["--set", "hash_audio"], "expected KEY=VALUE"),
    ],
)
def test_options_that_cannot_be_exit_with_2(tmp_path, options, message):
    done = run("plan", "--manifest", tmp_path / "x.jsonl.gz", "--out", tmp_path, "--shards", 2, *options)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_errors_of_users_have_no_traceback_and_their_own_exit_code(tmp_path):
    done = run("plan", "--manifest", tmp_path / "none.jsonl.gz", "--out", tmp_path / "p", "--shards", 2)
    assert done.returncode == 3 and "none.jsonl.gz" in done.stderr and "Traceback" not in done.stderr
    codes = {error.exit_code: error for error in RulesError.__subclasses__()}
    assert len(codes) == len(RulesError.__subclasses__())
    for code in codes:
        assert str(code) in cli.EXIT_CODES


def test_the_log_has_everything_and_the_terminal_a_copy(tmp_path):
    log = tmp_path / "logs" / "a b.log"
    for _ in range(2):
        done = run("plan", "--manifest", tmp_path / "none.gz", "--out", tmp_path / "p", "--shards", 2, "--log", log)
        assert done.returncode == 3
    text = log.read_text()
    assert text.count("== ") == 2 and text.count("none.gz") == 2, "a second run adds to the log"
    assert done.stderr.count("none.gz") == 1


def test_a_log_outlives_a_terminal_that_has_gone(tmp_path):
    log = tmp_path / "a.log"
    code = (
        "import sys, time; from espnet3_rules import cli\n"
        "with cli._logged_to(cli._usable_log(__import__('pathlib').Path(sys.argv[1]), 'x')):\n"
        "    for n in range(8): print('line', n, flush=True); time.sleep(0.1)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, log],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=Path(__file__).parents[1],
    )
    time.sleep(0.2)
    process.stdout.close()
    assert process.wait(20) == 0
    assert log.read_text().splitlines()[1:] == [f"line {n}" for n in range(8)]


def test_profile_install_leaves_another_profile_alone(tmp_path):
    target = tmp_path / "snakemake" / "slurm"
    assert run("profile", "install", "--target", target).returncode == 0
    assert "executor: slurm" in (target / "config.yaml").read_text()
    assert "installed already" in run("profile", "install", "--target", target).stdout
    (target / "config.yaml").write_text("mine: true\n")
    done = run("profile", "install", "--target", target)
    assert done.returncode == 2 and "left as it is" in done.stderr and "--target" in done.stderr
    assert (target / "config.yaml").read_text() == "mine: true\n"


@pytest.mark.parametrize(("code", "exits"), [(None, 1), (0, 1), (256, 1), (3, 3)])
def test_no_stage_ends_well_because_something_in_it_left(tmp_path, monkeypatch, capsys, code, exits):
    def leaves(*, scores: list[Path], out: Path):
        raise SystemExit(code)

    monkeypatch.setattr("espnet3_rules.report.report", leaves)
    arguments = ["report", "--scores", "a.json", "--out", str(tmp_path / "results.md")]
    try:
        found = cli.main(arguments)
    except SystemExit as error:
        found = error.code
    assert found == exits
    assert ("called sys.exit" in capsys.readouterr().err) == (exits == 1)
