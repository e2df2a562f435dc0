"""NEXMark's rows: the same whichever range they are made with; times; shares."""

from __future__ import annotations

import datetime as dt
import doctest
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import godwit as gw
from godwit_lab.sources.nexmark import SCHEMAS, NexmarkSource, nexmark

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


def unpaced(kind: str, **options: Any) -> gw.sources.Source:
    return nexmark(
        kind,  # type: ignore[arg-type]
        **{"paced": False, "start": START, "num_rows": 100_000, **options},
    )


@pytest.mark.parametrize("kind", list(SCHEMAS))
def test_nexmark_keeps_the_contract(kind: str) -> None:
    gw.testing.check_source(unpaced(kind, seed=3), max_rows=500)


@pytest.mark.parametrize("kind", list(SCHEMAS))
def test_any_range_of_rows_is_the_same_as_within_all_of_them(kind: str) -> None:
    source = unpaced(kind)
    everything = rows_of(source, 0, 70_000)
    assert everything.num_rows == 70_000
    for first, stop in ((0, 1), (49, 51), (65_530, 65_540), (69_999, 70_000)):
        assert rows_of(source, first, stop) == everything.slice(first, stop - first)
    assert rows_of(source, 0, 70_000, parallelism=13) == everything


def test_another_seed_gives_other_rows_and_the_same_moments() -> None:
    one, other = (rows_of(unpaced("bids", seed=seed), 0, 1000) for seed in (1, 2))
    assert one["price"] != other["price"]
    assert one["date_time"] == other["date_time"]


@pytest.mark.parametrize("kind", list(SCHEMAS))
def test_nexmark_has_a_row_when_its_event_has_happened(kind: str) -> None:
    clock = Clock()
    source = NexmarkSource(kind, events_per_s=50, paced=True, now_us=clock, **OPTIONS)
    moments = rows_of(source, 0, 200)["date_time"].cast(pa.int64()).to_numpy()
    for after_us in range(0, 4_000_000, 20_000):
        clock.now_us = START_US + after_us
        there = source.latest(source.start())["rows"]
        assert there == np.count_nonzero(moments <= clock.now_us), after_us


def test_nexmark_has_the_shares_of_its_definition() -> None:
    bids = rows_of(unpaced("bids"), 46_000, 92_000)  # events 50,000 to 100,000
    is_hot_auction = np.mean(bids["auction"].to_numpy() % 100 == 0)
    assert 0.48 < is_hot_auction < 0.53  # one of two, and one of a hundred others
    is_hot_bidder = np.mean(bids["bidder"].to_numpy() % 100 == 1)
    assert 0.73 < is_hot_bidder < 0.78  # three of four
    hot_channels = pc.mean(
        pc.is_in(bids["channel"], pa.array(["Google", "Apple", "Baidu", "Facebook"]))
    )
    assert 0.48 < hot_channels.as_py() < 0.52
    prices = bids["price"].to_numpy()
    assert prices.min() >= 100
    assert prices.max() <= 100_000_000
    assert 8e4 < np.median(prices) < 12e4  # the logarithm is uniform: 10 ** 3 dollars
    persons, auctions = rows_of(unpaced("persons"), 0, 2000), rows_of(unpaced("auctions"), 0, 6000)
    assert persons["id"].to_pylist() == list(range(1000, 3000))
    assert auctions["id"].to_pylist() == list(range(1000, 7000))
    assert pc.all(pc.greater(auctions["expires"], auctions["date_time"])).as_py()
    assert pc.all(pc.greater(auctions["reserve"], auctions["initial_bid"])).as_py()
    assert set(auctions["category"].unique().to_pylist()) == set(range(10, 15))


def test_nexmark_bids_are_for_auctions_that_there_are_or_will_be_soon() -> None:
    bids, auctions = rows_of(unpaced("bids"), 0, 46_000), rows_of(unpaced("auctions"), 0, 3000)
    last = np.searchsorted(
        auctions["date_time"].cast(pa.int64()).to_numpy(),
        bids["date_time"].cast(pa.int64()).to_numpy(),
        side="right",
    )
    ids = bids["auction"].to_numpy() - 1000
    assert (ids <= last + 10).all()
    assert (ids >= np.maximum(last - 201, 0)).all()


def test_an_unknown_kind_is_refused_and_the_source_has_the_name_that_users_write() -> None:
    assert vars(gw)["sources"].nexmark is nexmark
    with pytest.raises(gw.errors.SourceError, match="Did you mean 'bids'"):
        nexmark("bid")


def test_the_example_does_as_it_says() -> None:
    examples = doctest.testmod(sys.modules[NexmarkSource.__module__])
    assert (examples.attempted, examples.failed) == (1, 0)


def test_few_rows_are_known_to_be_few_so_that_the_driver_reads_them() -> None:
    source = unpaced("bids")
    begin = source.start()
    splits = source.splits(begin, source.latest(begin, limit=1000), 2)
    assert sum(split.rows or 0 for split in splits) == 1000
    assert 8_000 <= sum(split.size_bytes or 0 for split in splits) <= 2**20
