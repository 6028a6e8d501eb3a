# What the rules share: the checked config and the names of files.
import os
import sys

from espnet3_rules import config as rules_config
from espnet3_rules import gate as gate_stage
from espnet3_rules import merge as merge_stage
from espnet3_rules import prepare as prepare_stage
from espnet3_rules import report as report_stage
from espnet3_rules import shards as plan_stage
from espnet3_rules.errors import RulesError
from snakemake.exceptions import WorkflowError

ENV = "../envs/espnet3-rules.yaml"

# a user's own classes (`_target_`) may lie in the folder that snakemake runs in; last, so that they hide nothing
sys.path.append(os.getcwd())

try:
    if AS_MODULE:
        CFG = rules_config.resolve(config)
    else:
        for path in workflow.configfiles:
            rules_config.check_file(path)
        CFG = rules_config.resolve(config, workflow.config_settings.config)
except RulesError as error:
    raise WorkflowError(str(error)) from None

DATA, EXP = CFG.root.data_dir, CFG.root.exp_dir
MANIFEST = f"{DATA}/{{corpus}}/{{split}}.jsonl.gz"
INDEX = f"{DATA}/{{corpus}}/{{split}}.index.jsonl"
EXPERIMENT = f"{EXP}/{{system}}/decode/{{decoder}}/{{corpus}}/{{split}}"
SHARDS = CFG.decode.shards
SHARD_FILES = [f"{number}-of-{SHARDS}.jsonl" for number in range(1, SHARDS + 1)]


wildcard_constraints:
    corpus=r"[^/]+",
    split=r"[^/]+",
    system=r"[^/]+",
    decoder=r"[^/]+",


def files_of(experiment) -> list[str]:
    """All files between the test set and its hypotheses.

    Targets ask for each of them: Snakemake removes what a failed job should have made, and would not make it again
    where later files are there from before.
    """
    folder = experiment.folder_in(EXP)
    shards = [f"{folder}/{kind}/{name}" for kind in ("plan", "shards") for name in SHARD_FILES]
    return [
        f"{folder}/plan/plan.json",
        *shards,
        *(f"{folder}/{name}" for name in ("hypotheses.jsonl", "failed.tsv", "text")),
    ]


def existing(path: str) -> list[str]:
    """The file where it is there: an input that only comes with a reason to run again."""
    return [path] if os.path.exists(path) else []


def manifest(name: str) -> str:
    return f"{DATA}/{name}.jsonl.gz"


def index(name: str) -> str:
    return f"{DATA}/{name}.index.jsonl"


def trained_model(system: str) -> list[str]:
    """The files of a model; none for a system that is only given."""
    if system not in CFG.trained():
        return []
    return [f"{EXP}/{system}/model/{name}" for name in ("config.json", "tokens.json", "model.safetensors")]
