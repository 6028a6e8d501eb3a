"""How the tests are spread over processes: those of a file together, since they share what takes long to make."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # whole runs of the workflow share nothing, and are what takes longest: each on its own
    for item in items:
        if "tests/workflow" not in item.nodeid:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
