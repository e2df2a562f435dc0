"""Splits of own sources are read by the driver where they are few, else by tasks, each once."""

from __future__ import annotations

import pickle
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.checkpoint.records import POSITIONS, BatchRef
from godwit.engine.cluster import BYTES_HERE, ROWS_HERE, SourceBatch
from godwit.engine.lane.source_side import NumberedSplit
from godwit.sources import Split
from godwit.spark.batch_rows import assign_splits, distribute_splits
from godwit.spark.stages.stages import EpochRows


def numbered(sizes: list[int | None], rows: int | None = 1) -> tuple[NumberedSplit, ...]:
    return tuple(
        NumberedSplit(
            number=number,
            source="rows",
            split=Split(rows=rows, size_bytes=size, what=f"part {number}", payload=number),
        )
        for number, size in enumerate(sizes)
    )


def planned(splits: tuple[NumberedSplit, ...]) -> SourceBatch[Any]:
    return SourceBatch(ref=BatchRef(number=0, digest=POSITIONS), splits=splits)


@given(
    sizes=st.lists(st.one_of(st.none(), st.integers(0, 1000)), max_size=60), cores=st.integers(1, 8)
)
def test_every_split_is_read_once_by_one_task(sizes: list[int | None], cores: int) -> None:
    splits = numbered(sizes)
    tasks = distribute_splits(splits, cores)
    assert all(tasks)
    assert len(tasks) <= 4 * cores
    assert sorted(chain(*tasks), key=lambda split: split.number) == list(splits)
    assert all(list(task) == sorted(task, key=lambda split: split.number) for task in tasks)


def test_many_splits_of_unlike_size_make_tasks_of_like_size() -> None:
    splits = numbered([1000, *[10] * 100])
    sizes = sorted(
        sum(s.split.size_bytes or 0 for s in task) for task in distribute_splits(splits, 2)
    )
    assert sizes == [1000, 1000]


@pytest.mark.parametrize(
    ("rows", "size_bytes", "here"),
    [
        (ROWS_HERE, BYTES_HERE, True),
        (ROWS_HERE + 1, 1, False),
        (1, BYTES_HERE + 1, False),
        (None, 1, False),
        (1, None, False),
    ],
)
def test_the_driver_reads_rows_that_are_known_to_be_few(
    rows: int | None, size_bytes: int | None, *, here: bool
) -> None:
    splits = numbered([size_bytes], rows)
    read = assign_splits(planned(splits), 2)
    if here:
        assert read == EpochRows(here=splits)
    else:
        assert not read.is_here
        assert [pickle.loads(task) for task in read.tasks] == [splits]


def test_an_epoch_without_rows_has_no_tasks() -> None:
    assert assign_splits(planned(()), 2) == EpochRows()


def test_rows_of_both_kinds_keep_their_order_and_a_task_reads_the_driver_s_beside_others() -> None:
    here, there = EpochRows(here=["a"]), EpochRows(tasks=(pickle.dumps(("c",)),))
    assert here.with_others(EpochRows(here=["b"])) == EpochRows(here=["a", "b"])
    assert [pickle.loads(task) for task in here.with_others(there).tasks] == [("a",), ("c",)]
    beside_rdd = EpochRows(rdd="rdd").with_others(here)
    assert (beside_rdd.rdd, len(beside_rdd.tasks), beside_rdd.is_here) == ("rdd", 1, False)
    assert EpochRows(rdd="rdd").with_others(EpochRows()) == EpochRows(rdd="rdd")
