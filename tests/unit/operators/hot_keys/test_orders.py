"""Orders to spread hot keys: carried out once, by the first epoch that is committed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

from godwit.api.flow import LogicalFlow
from godwit.checkpoint.records import Grid
from godwit.operators.hot_key_orders import SpreadOrders
from godwit.operators.hot_keys import WHOLE, Spreads
from godwit.time.grid import BEGINNING

S = 1_000_000
KEY = 7
GRID = Grid(rows=2, columns=1, parts=(5, 6))


def orders() -> SpreadOrders:
    flow = LogicalFlow("flow", 8)
    schema = pa.schema({"k": pa.string(), "ts": pa.timestamp("us", tz="UTC")})
    frames: list[Any] = [FakeDataFrame(schema), FakeDataFrame(schema)]
    left, right = (
        flow.source(name, frame, event_time="ts", slack="1 second").key_by("k")
        for name, frame in zip(("left", "right"), frames, strict=True)
    )
    between = ("-3 seconds", "2 seconds")
    flow.sink("out", left.join(right, between=between, suffix="_r", spread=4), FakeSink())
    (join,) = (o for o in flow.compile(resolver(flow)).operators if o.max_parts)
    return SpreadOrders(join, Spreads())


def test_an_order_stands_until_an_epoch_that_carried_it_out_is_committed() -> None:
    given = orders()
    assert given.order(KEY, "", GRID)
    assert not given.order(KEY, "", Grid(rows=2, columns=1, parts=(8, 9)))
    planned = given.apply(given.spreads, 10 * S)
    assert planned == given.apply(given.spreads, 10 * S)  # an attempt that was given up
    assert given.spreads == Spreads()
    assert given.is_changing(KEY)
    given.committed(planned)
    assert given.spreads.grid_of(KEY) == GRID
    assert given.apply(given.spreads, 20 * S) == planned


def test_an_order_of_while_an_epoch_runs_is_for_the_next_one() -> None:
    given = orders()
    planned = given.apply(given.spreads, 10 * S)
    assert given.order(KEY, "", GRID)
    given.committed(planned)
    assert given.is_changing(KEY)
    assert given.apply(given.spreads, 10 * S).grid_of(KEY) == GRID


def test_former_parts_are_left_once_nothing_can_meet_their_rows() -> None:
    given = orders()
    assert given.order(KEY, "", GRID)
    planned = given.apply(given.spreads, 10 * S)
    given.committed(planned.expired_at(13 * S))
    assert given.is_changing(KEY)
    assert not given.order(KEY, "", WHOLE)
    given.committed(planned.expired_at(13 * S + 1))
    assert not given.is_changing(KEY)
    assert given.order(KEY, "", WHOLE)


def test_a_join_without_rows_has_no_former_parts() -> None:
    given = orders()
    assert given.order(KEY, "", GRID)
    assert len(given.apply(given.spreads, BEGINNING).expired_at(BEGINNING).keys[KEY].grids) == 1


def test_parts_that_a_key_has_are_not_given_to_it_again() -> None:
    given = orders()
    assert not given.order(KEY, "", WHOLE)
