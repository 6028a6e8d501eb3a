"""The commands that serve the config itself: show it, and install the SLURM profile."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

from espnet3_rules.config.resolve import load
from espnet3_rules.errors import DataError, OptionError


def show(*, config: Path = Path("config/config.yaml"), override: list[str] | None = None) -> None:
    """Prints the config as the stages see it: checked, resolved, defaults filled in, as JSON.

    Args:
        config: the YAML file.
        override: ``key.key=value`` settings laid over it.

    Raises:
        OptionError: as `resolve`.
    """
    from espnet3_rules.options import lay_over, nested

    overrides: dict[str, Any] = {}
    for text in override or []:
        key, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"--override {text}: expected KEY=VALUE")
        overrides = lay_over(overrides, nested(key.split("."), value))
    print(json.dumps(load(config, overrides).to_dict(), indent=2, ensure_ascii=False))


def profile(*, action: Literal["install"], source: Path | None = None, target: Path | None = None) -> None:
    """Copies the SLURM profile to where Snakemake looks for it from any folder.

    Args:
        action: ``install``.
        source: the profile's folder; as a rule the one of the project that this package was installed from.
        target: where to; as a rule ``slurm`` in the user's own folder of Snakemake profiles.

    Raises:
        OptionError: another profile of that name is there already; it is left as it is.
    """
    from platformdirs import user_config_dir

    del action  # the only one there is
    source = source or Path(__file__).resolve().parents[2] / "profiles" / "slurm"
    target = target or Path(user_config_dir("snakemake")) / "slurm"
    if not (source / "config.yaml").is_file():
        raise DataError(f"{source}: no profile there", hint="name the folder with --source, or run from a clone")
    if target.exists():
        if _same(source, target):
            print(f"{target}: installed already")
            return
        raise OptionError(
            f"{target}: there is another profile of that name, which was left as it is",
            hint=f"install beside it: --target {target.with_name('espnet3-slurm')}, then --profile espnet3-slurm",
        )
    shutil.copytree(source, target)
    print(f"{target}: installed; use `snakemake --profile {target.name}`")


def _same(one: Path, other: Path) -> bool:
    names = {p.relative_to(one) for p in one.rglob("*") if p.is_file()}
    return names == {p.relative_to(other) for p in other.rglob("*") if p.is_file()} and all(
        (one / n).read_bytes() == (other / n).read_bytes() for n in names
    )
