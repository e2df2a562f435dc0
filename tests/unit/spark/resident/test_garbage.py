"""Garbage collection of a driver whose lanes stay."""

from __future__ import annotations

import gc

from godwit.spark.resident.lanes import pause_collection, resume_collection


def test_objects_stay_out_of_searches_until_the_last_query_ends() -> None:
    before = gc.get_freeze_count()
    pause_collection("a")
    pause_collection("a")  # its lanes have started again
    pause_collection("b")
    assert gc.get_freeze_count() > before
    resume_collection("a")
    assert gc.get_freeze_count() > before
    resume_collection("b")
    assert gc.get_freeze_count() == 0
    resume_collection("b")  # once too often, which changes nothing
    pause_collection("a")
    assert gc.get_freeze_count() > 0
    resume_collection("a")
    assert gc.get_freeze_count() == 0
