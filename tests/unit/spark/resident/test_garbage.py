"""Garbage collection of a driver whose lanes stay."""

from __future__ import annotations

import gc

from godwit.spark.resident import garbage


def test_objects_stay_out_of_searches_until_the_last_query_ends() -> None:
    before = gc.get_freeze_count()
    garbage.pause_collection("a")
    garbage.pause_collection("a")  # its lanes have started again
    garbage.pause_collection("b")
    assert gc.get_freeze_count() > before
    garbage.resume_collection("a")
    assert gc.get_freeze_count() > before
    garbage.resume_collection("b")
    assert gc.get_freeze_count() == 0
    garbage.resume_collection("b")  # once too often, which changes nothing
    garbage.pause_collection("a")
    assert gc.get_freeze_count() > 0
    garbage.resume_collection("a")
    assert gc.get_freeze_count() == 0
