"""The workflow on a real SLURM, as `tests/slurm/cluster.sh` starts one on this machine."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.workflow.conftest import ROOT, project  # noqa: F401 - a fixture

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

# what this small cluster has, in place of what the profile asks for
SMALL = (
    "--default-resources", "runtime=10", "mem_mb=1000", "cpus_per_task=1",
    "--set-resources", "decode_shard:mem_mb=1000", "--set-threads", "prepare_split=2",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cluster():
    was_up = False
    if shutil.which("scontrol"):
        was_up = "UP" in subprocess.run(["scontrol", "ping"], capture_output=True, text=True, check=False).stdout
    started = subprocess.run([ROOT / "tests/slurm/cluster.sh", "up"], capture_output=True, text=True, check=False)
    if started.returncode == 77 or shutil.which("sbatch") is None:
        pytest.skip(f"no SLURM: {started.stderr.strip()}")
    assert started.returncode == 0, started.stdout + started.stderr
    yield
    if not was_up:
        subprocess.run([ROOT / "tests/slurm/cluster.sh", "down"], check=False)


def test_the_profile_gives_the_same_hypotheses_as_one_machine(project):  # noqa: F811
    project.run("--profile", str(ROOT / "profiles/slurm"), *SMALL)
    on_cluster = (project.experiment() / "hypotheses.jsonl").read_bytes()
    assert project.scores()["words"]["rate"] == 0
    project.config["exp_dir"] = "here"
    project.run()
    here = project.folder / "here/tones/decode/plain/tones/test/hypotheses.jsonl"
    assert here.read_bytes() == on_cluster


def test_a_partition_that_does_not_exist_is_said_in_the_schedulers_words(project):  # noqa: F811
    printed = project.run(
        "--profile", str(ROOT / "profiles/slurm"), *SMALL[:4], "slurm_partition=nowhere", *SMALL[4:], fails=True
    )
    assert "nowhere" in printed and "partition" in printed.lower()
