"""Limit on the rows of an epoch: an overloaded stream's epochs stay bounded."""

from __future__ import annotations

from godwit.engine.row_limit import RowLimit


def lengths(capacity_per_s: float, rate_per_s: float, *, limited: bool, epochs: int) -> list[float]:
    """Lengths of epochs that follow each other at once, with a fixed part of 0.2 s."""
    limit, took_s, waiting, seen = RowLimit(5.0), 1.5, 0.0, []
    for _ in range(epochs):
        waiting += rate_per_s * took_s
        most = limit.rows if limited else None
        rows = int(waiting if most is None else min(waiting, most))
        waiting -= rows
        took_s = 0.2 + rows / capacity_per_s
        limit.record_epoch(rows, took_s)
        seen.append(took_s)
    return seen


def test_epochs_of_an_overloaded_stream_last_no_longer_than_they_may() -> None:
    assert lengths(1000, 4000, limited=False, epochs=5)[-1] > 500
    grown, *rest = lengths(1000, 4000, limited=True, epochs=12)
    assert grown < 7
    assert max(rest) <= 5.3
    assert min(rest) > 4  # and they are as long as they may be, so little is lost by it


def test_a_stream_that_keeps_up_is_not_limited_whatever_a_burst_brings() -> None:
    limit = RowLimit(10.0)
    for rows in (1, 100, 5000):
        limit.record_epoch(rows, 0.3)
    assert limit.rows is None


def test_executors_that_came_raise_the_limit_within_a_few_epochs() -> None:
    limit = RowLimit(5.0)
    limit.record_epoch(20_000, 20.0)
    assert limit.rows == 5000
    for _ in range(4):  # twenty times as fast since
        limit.record_epoch(limit.rows, 0.1 + limit.rows / 20_000)
    assert limit.rows > 80_000


def test_it_says_of_an_epoch_that_it_was_cut_short() -> None:
    limit, cut = RowLimit(5.0), []
    for rows, took_s in ((20_000, 20.0), (4999, 1.0), (100, 0.2), (0, 0.1)):
        limit.record_epoch(rows, took_s)
        cut.append(limit.cut)
    assert cut == [False, True, False, False]


def test_one_odd_epoch_lowers_it_by_so_much_and_no_more() -> None:
    limit = RowLimit(5.0)
    limit.record_epoch(20_000, 5.0)
    limit.record_epoch(100, 40.0)
    assert limit.rows == 5000
    limit.record_epoch(None, 40.0)
    limit.record_epoch(0, 40.0)
    assert limit.rows == 5000


def test_several_sources_share_it() -> None:
    limit = RowLimit(5.0)
    assert limit.per_source(3) is None
    limit.record_epoch(900, 5.0)
    assert (limit.per_source(0), limit.per_source(3)) == (900, 300)
    limit.record_epoch(1, 5000.0)
    assert limit.per_source(1000) == 1
