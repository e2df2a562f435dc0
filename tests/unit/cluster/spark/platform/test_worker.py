"""Searches for reference cycles in a Python worker."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from godwit.cluster.spark.platform import worker
from godwit.cluster.spark.platform.worker import freeze_loaded_objects

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
