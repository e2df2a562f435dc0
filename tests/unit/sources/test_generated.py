"""Rows made of their numbers: the same whichever range they are made with; rates; shares."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import pyarrow as pa
import pytest

import godwit as gw
from godwit.sources.simple_sources import RateSource

START = "2024-05-01T08:00:00Z"
START_US = int(dt.datetime.fromisoformat(START).timestamp() * 1e6)
OPTIONS: dict[str, Any] = {"start": START, "seed": 7, "max_rows_per_epoch": None, "num_rows": None}


class Clock:
    def __init__(self) -> None:
        self.now_us = START_US

    def __call__(self) -> int:
        return self.now_us


def rows_of(source: gw.sources.Source, first: int, stop: int, parallelism: int = 1) -> pa.Table:
    begin = {**source.start(), "rows": first}
    splits = source.splits(begin, {**begin, "rows": stop}, parallelism)
    batches = [batch for split in splits for batch in source.read(split, source.schema.names)]
    return pa.Table.from_batches(batches, source.schema)


def test_rate_keeps_the_contract() -> None:
    source = gw.sources.rate(1000, num_keys=5, paced=False, num_rows=10_000, start=START)
    gw.testing.check_source(source, max_rows=700)


def test_a_paced_rate_keeps_the_contract_while_its_clock_goes_on() -> None:
    clock = Clock()
    source = RateSource(rows_per_s=100, num_keys=3, paced=True, now_us=clock, **OPTIONS)
    clock.now_us += 5_000_000

    def add() -> None:
        clock.now_us += 1_000_000

    gw.testing.check_source(source, add=add, max_rows=800)


def test_any_range_of_rows_is_what_it_is_within_all_of_them() -> None:
    source = gw.sources.rate(3.7, num_keys=9, start=START)
    everything = rows_of(source, 0, 70_000)
    assert everything.num_rows == 70_000
    for first, stop in ((0, 1), (49, 51), (65_530, 65_540), (69_999, 70_000)):
        assert rows_of(source, first, stop) == everything.slice(first, stop - first)
    assert rows_of(source, 0, 70_000, parallelism=13) == everything


def test_a_paced_source_has_the_rows_that_are_due_and_keeps_limits() -> None:
    clock = Clock()
    source = RateSource(rows_per_s=10, paced=True, now_us=clock, **OPTIONS)
    start = source.start()
    assert start == {"start_us": START_US, "rows": 0}
    clock.now_us -= 1
    assert source.latest(start) == start
    clock.now_us += 1
    assert source.latest(start)["rows"] == 1
    clock.now_us += 999_999
    assert source.latest(start)["rows"] == 10
    assert source.latest(start, limit=4)["rows"] == 4
    end = source.end(start)
    clock.now_us += 1_000_000
    assert source.latest(start, until=end)["rows"] == 10
    assert source.lag({**start, "rows": 15}).rows == 5
    assert source.lag({**start, "rows": 15}).oldest_us == START_US + 1_500_000
    timestamps = rows_of(source, 0, 20)["timestamp"].to_pylist()
    assert [b - a for a, b in itertools.pairwise(timestamps)] == [dt.timedelta(seconds=0.1)] * 19


def test_a_start_that_is_not_given_is_the_first_start_and_stays_in_the_position() -> None:
    clock = Clock()
    source = RateSource(rows_per_s=1, paced=True, now_us=clock, **{**OPTIONS, "start": None})
    start = source.start()
    clock.now_us += 10_000_000
    first = rows_of(source, 0, 1)["timestamp"][0].as_py()
    assert source.latest(start)["start_us"] == start["start_us"] == START_US
    assert first.timestamp() * 1e6 == START_US + 10_000_000  # of a start of its own


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: gw.sources.rate(0), "rows_per_s=0"),
        (lambda: gw.sources.rate(float("nan")), "nan"),
        (lambda: gw.sources.rate(paced=False), "max_rows_per_epoch="),
        (lambda: gw.sources.rate(start="tomorrow"), "'tomorrow'"),
        (lambda: gw.sources.rate(num_keys=0), "num_keys is 0"),
        (lambda: gw.sources.rate(max_rows_per_epoch=0), "max_rows_per_epoch is 0"),
        (lambda: gw.sources.rate(per_second=1), "has no argument 'per_second'"),  # type: ignore[call-arg]
    ],
)
def test_options_that_make_no_sense_are_refused(make: Any, said: str) -> None:
    with pytest.raises(gw.errors.GodwitError, match=said):
        make()


def test_few_rows_are_known_to_be_few_so_that_the_driver_reads_them() -> None:
    source: Any = gw.sources.rate(paced=False, num_rows=10_000)
    begin = source.start()
    end = source.latest(begin, limit=1000)
    splits = source.splits(begin, end, 2)
    assert sum(split.rows for split in splits) == 1000
    assert 8_000 <= sum(split.size_bytes for split in splits) <= 2**20
