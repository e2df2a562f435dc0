"""Searches for reference cycles, and memory that stays, in a Python worker."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING

import pytest

from godwit.spark.platform import worker
from godwit.spark.platform.worker import freeze_loaded_objects

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def unsettled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "_tasks", {})
    yield
    gc.unfreeze()


class Cycle:
    def __init__(self) -> None:
        self.me = self


def test_what_is_loaded_is_searched_no_more_and_what_comes_later_is() -> None:
    loaded = [Cycle() for _ in range(100)]
    freeze_loaded_objects("flow")
    assert not any(isinstance(found, Cycle) for found in gc.get_objects())
    left = weakref.ref(Cycle())
    gc.collect()
    assert left() is None
    assert len(loaded) == 100


def test_only_the_first_tasks_of_a_program_settle_anything() -> None:
    for _ in range(3):
        freeze_loaded_objects("flow")
    later = [Cycle() for _ in range(100)]
    freeze_loaded_objects("flow")
    searched = [found for found in gc.get_objects() if isinstance(found, Cycle)]
    assert len(searched) == len(later)


def test_what_an_earlier_program_left_goes_when_another_one_comes() -> None:
    cycle = Cycle()
    left = weakref.ref(cycle)
    freeze_loaded_objects("flow")
    del cycle
    gc.collect()
    assert left() is not None, "it was taken for something that stays"
    freeze_loaded_objects("another")
    assert left() is None


PAGES = """
import resource, runpy, sys
import numpy as np
import pyarrow as pa

worker = runpy.run_path(sys.argv[1])
assert sys.argv[2] == "no" or worker["retain_freed_memory"]()

def epoch():
    columns = [pa.array(np.ones(300_000)) for _ in range(8)]
    rows = pa.array(np.arange(300_000))
    return [column.take(rows) for column in columns]

epoch()
epoch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
epoch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_the_next_epoch_finds_memory_that_the_last_one_freed() -> None:
    faults = {
        retains: int(
            subprocess.run(
                [sys.executable, "-c", PAGES, worker.__file__, retains],
                capture_output=True,
                check=True,
                text=True,
                timeout=60,
            ).stdout
        )
        for retains in ("yes", "no")
    }
    assert faults["no"] > 1000
    assert faults["yes"] < faults["no"] / 4
