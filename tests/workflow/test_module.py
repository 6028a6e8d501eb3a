"""The rules inside somebody else's workflow."""

from __future__ import annotations

import subprocess
import sys

import yaml

from tests.workflow.conftest import ROOT


def test_the_rules_are_a_module_of_another_workflow(project):
    (project.folder / "mine.yaml").write_text(yaml.safe_dump({"asr": project.config, "threshold": 3}))
    (project.folder / "Snakefile").write_text(
        f"""
configfile: "mine.yaml"

module asr:
    snakefile: {str(ROOT / "workflow/Snakefile")!r}
    config: config["asr"]

use rule * from asr as asr_*

rule words:
    default_target: True
    input: "exp/tones/decode/plain/tones/test/text"
    output: "words.txt"
    shell: "wc -w < {{input:q}} > {{output}}"
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "2", "--config", "threshold=4"],
        cwd=project.folder, env=project.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    text = (project.experiment() / "text").read_text()
    assert int((project.folder / "words.txt").read_text()) == len(text.split())
    assert not (project.folder / "exp/results.md").exists(), "only what was asked for"
