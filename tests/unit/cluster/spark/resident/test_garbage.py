"""Garbage collection of a driver whose lanes stay."""

from __future__ import annotations

import gc

from godwit.cluster.spark.resident import garbage


def test_objects_stay_out_of_searches_until_the_last_query_ends() -> None:
    before = gc.get_freeze_count()
    garbage.freeze()
    garbage.freeze()
    assert gc.get_freeze_count() > before
    garbage.unfreeze()
    assert gc.get_freeze_count() > before
    garbage.unfreeze()
    assert gc.get_freeze_count() == 0
    garbage.unfreeze()  # once too often, which changes nothing
    garbage.freeze()
    assert gc.get_freeze_count() > 0
    garbage.unfreeze()
    assert gc.get_freeze_count() == 0
