"""A run on one cluster of two executors, whose parts several tests look at: JVMs start slowly."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.chaos.results import run_program

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PLAYS", "SEED", "two_executors"]

SEED = 31
"""Of the rows under which a lane and an executor are killed."""
PLAYS: list[dict[str, Any]] = [
    {
        "own": True,
        "resident": True,
        "moments": ["record", "after"],
    },
    {"own": False, "resident": False, "moments": ["recovered"]},
]
"""Changes of columns, each with an executor that is killed about it."""
if "GODWIT_LONG" in os.environ:
    PLAYS[0]["moments"] += ["before", "at once", "recovered"]
    PLAYS[1]["moments"] += ["record", "at once"]
    PLAYS += [
        {"own": True, "resident": False, "moments": ["before"]},
        {"own": False, "resident": True, "moments": ["recovered"]},
    ]


@pytest.fixture(scope="session")
def two_executors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the run; what its programs judge themselves was right."""
    directory = tmp_path_factory.mktemp("two-executors")
    config = {
        "directory": str(directory),
        "seeds": {"killed": SEED, "plays": 3},
        "contract": "a live migration on two levels",
        "plays": PLAYS,
    }
    status = run_program("two_executors", config, timeout_s=1200)
    assert status == 0, (directory / "two_executors.log").read_text()[-4000:]
    return directory
