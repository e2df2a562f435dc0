"""Hot keys of joins: where their rows go, what grids become, and what may be asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.unit.library.test_joins import ORDERS, PAYMENTS, compiled, refused, source

from godwit.checkpoint.records import ComponentPlan, Grid, HotKey, PhysicalPlan
from godwit.columns.hashing import hash_keys
from godwit.library.joins.sides import LEFT, RIGHT
from godwit.model.errors import InvalidPlanError
from godwit.model.key_groups import KeyWork, OperatorWork, key_groups_of
from godwit.operators.hot_keys import (
    WHOLE,
    EvenSpread,
    Spreads,
    hash_undivided,
    key_group_of_part,
    measure_work,
)
from godwit.plan.explain import explain

if TYPE_CHECKING:
    from tests.support.fake_flow import Resolve

    from godwit.api.flow import LogicalFlow as Flow

KEYS = pa.record_batch({"k": ["hot", "cold", None]})
HOT, COLD, _ = hash_undivided(KEYS).tolist()
GRID = Grid(rows=2, columns=3, parts=(11, 12, 13, 21, 22, 23))


def routed(
    spreads: Spreads, side: int, values: list[int], key: int = HOT
) -> list[tuple[int, int, bool]]:
    rows = pa.record_batch({"v": values})
    routes = spreads.route_rows(np.full(len(values), key, np.int64), side, rows)
    assert routes is not None
    return list(zip(*(column.tolist() for column in routes), strict=True))


def test_a_row_of_each_side_cross_in_one_part_of_a_grid() -> None:
    spreads = Spreads.of(HotKey(hash=HOT, key='["hot"]', grids=(GRID,)))
    lefts = routed(spreads, LEFT, list(range(40)))
    rights = routed(spreads, RIGHT, list(range(60)))
    for left in range(40):
        for right in range(60):
            mine = {part for row, part, _ in lefts if row == left}
            theirs = {part for row, part, _ in rights if row == right}
            assert (len(mine), len(theirs), len(mine & theirs)) == (3, 2, 1)
    assert {part for _, part, _ in lefts} == {part for _, part, _ in rights} == set(GRID.parts)


def test_rows_of_keys_that_are_not_spread_go_to_part_0() -> None:
    spreads = Spreads.of(HotKey(hash=HOT, key="", grids=(GRID,)))
    assert spreads.route_rows(np.array([COLD]), LEFT, pa.record_batch({"v": [1]})) is None
    hashes, rows = np.array([COLD, HOT, COLD]), pa.record_batch({"v": [1, 2, 3]})
    routes = spreads.route_rows(hashes, LEFT, rows)
    assert routes is not None
    row, parts, probes = routes
    assert row.tolist() == [0, 1, 1, 1, 2]
    assert (parts[0], parts[-1]) == (0, 0)
    assert not probes.any()


def test_a_former_grid_gets_probes_until_the_watermark_has_passed_it() -> None:
    spreads = Spreads().with_grid(HOT, "", GRID, retired_at=50)
    found = routed(spreads, RIGHT, [7])
    assert [(part, probe) for _, part, probe in found if probe] == [(0, True)]
    assert len(found) == 3
    assert spreads.expired_at(49) == spreads
    later = spreads.expired_at(50)
    assert later.keys[HOT].grids == (GRID,)
    assert not any(probe for _, _, probe in routed(later, RIGHT, [7]))


def test_a_key_has_one_change_at_a_time_and_no_part_twice() -> None:
    other = Grid(rows=2, columns=1, parts=(31, 32))
    spreads = Spreads().with_grid(HOT, "", GRID, retired_at=50)
    assert spreads.with_grid(HOT, "", other, retired_at=60) is spreads
    assert spreads.with_grid(COLD, "", other, retired_at=60).grid_of(COLD) == other
    later = spreads.expired_at(50)
    assert later.with_grid(HOT, "", Grid(rows=1, columns=2, parts=(13, 40)), retired_at=60) is later
    assert later.with_grid(HOT, "", other, retired_at=60).grid_of(HOT) == other


def test_a_key_that_is_gathered_is_forgotten_once_its_parts_are() -> None:
    spreads = (
        Spreads()
        .with_grid(HOT, "", GRID, retired_at=50)
        .expired_at(50)
        .with_grid(HOT, "", WHOLE, retired_at=70)
    )
    assert len(spreads.keys[HOT].grids) == 2
    probes = [(part, probe) for _, part, probe in routed(spreads, LEFT, [7])]
    assert sorted(probe for _, probe in probes) == [False, True, True, True]
    assert spreads.expired_at(70) == Spreads()


def test_a_grid_whose_key_had_no_rows_has_no_former_one() -> None:
    assert Spreads().with_grid(HOT, "", GRID, retired_at=-(2**61)).expired_at(-(2**61)).keys[
        HOT
    ].grids == (GRID,)


def test_a_record_has_all_of_it() -> None:
    spreads = Spreads().with_grid(HOT, '["hot"]', GRID, retired_at=50)
    packed = msgspec.msgpack.encode(spreads.recorded())
    assert Spreads.of(*msgspec.msgpack.decode(packed, type=tuple[HotKey, ...])) == spreads


def test_rows_are_divided_by_their_values_alone() -> None:
    spreads = Spreads.of(HotKey(hash=HOT, key="", grids=(GRID,)))
    values = np.random.default_rng(5).permutation(50)
    forth = {values[row]: part for row, part, _ in routed(spreads, LEFT, values.tolist())}
    back = {
        values[::-1][row]: part for row, part, _ in routed(spreads, LEFT, values[::-1].tolist())
    }
    assert forth == back


def test_the_key_group_of_a_part_is_that_of_its_rows() -> None:
    parts = np.arange(200)
    rows = pa.record_batch({"k": ["hot"] * 200, "part": pa.array(parts, pa.int32())})
    expected = key_groups_of(hash_keys(rows), 64)
    assert key_group_of_part(HOT, parts, 64).tolist() == expected.tolist()


def test_an_even_spread_divides_the_left_and_copies_the_right() -> None:
    rows = pa.record_batch({"v": list(range(100))})
    row, parts, _ = EvenSpread(parts=4).route_rows(np.zeros(100, np.int64), LEFT, rows)
    assert row.tolist() == list(range(100))
    assert set(parts.tolist()) == {0, 1, 2, 3}
    row, parts, _ = EvenSpread(parts=4).route_rows(np.zeros(100, np.int64), RIGHT, rows)
    assert np.bincount(row).tolist() == [4] * 100
    assert parts[:4].tolist() == [0, 1, 2, 3]


def test_work_is_told_of_keys_that_have_much_and_of_those_that_are_spread() -> None:
    own = pa.record_batch({"k": ["hot", "cold", "hot", "warm"]})
    left, right, pairs = np.array([[60, 1, 40, 0], [5, 0, 5, 9], [20, 0, 10, 90]])
    work = measure_work(own, np.array([False, True, False, False]), left, right, pairs)
    assert work.total == 240
    assert [(of.key, of.left, of.right, of.pairs) for of in work.keys] == [
        ('["hot"]', 100, 10, 30),
        ('["warm"]', 0, 9, 90),
        ('["cold"]', 1, 0, 0),
    ]
    both = work + work
    assert both.total == 480
    assert both.keys[0] == KeyWork(hash=HOT, key='["hot"]', left=200, right=20, pairs=60)
    none = np.zeros(4, np.int64)
    assert measure_work(own, none > 0, none, none, none) == OperatorWork()


# -- what may be asked for


def test_a_join_that_spreads_keys_has_the_output_of_others(flow: Flow, resolve: Resolve) -> None:
    left, right = source(flow, "orders", ORDERS, "ts"), source(flow, "payments", PAYMENTS, "paid")
    met = left.key_by("id").join(
        right.key_by("order"), between=("0 seconds", "1 hour"), suffix="_paid", spread=8
    )
    found = compiled(flow, resolve, met)
    (operator,) = found.operators
    assert operator.output.names == ["id", "ts", "price", "paid", "price_paid"]
    assert [field.name for field in operator.left_out_schema][:2] == ["id", "side"]
    text = " ".join(explain(found).split())
    assert "hot keys in up to 8 parts" in text
    assert " key id int64 exchange " in text


@pytest.mark.parametrize("spread", [1, 0, 257, "4", 2.0, True])
def test_a_number_of_parts_that_will_not_do_is_refused(flow: Flow, spread: Any) -> None:
    left, right = source(flow, "orders", ORDERS, "ts"), source(flow, "payments", PAYMENTS, "paid")
    refused(
        lambda: left.key_by("id").join_newest(right.key_by("order"), spread=spread),
        f"spread={spread!r}",
        "from 2 to 256",
    )


def test_hot_keys_of_outer_joins_are_not_spread(flow: Flow) -> None:
    left, right = source(flow, "orders", ORDERS, "ts"), source(flow, "payments", PAYMENTS, "paid")
    between = ("0 seconds", "1 hour")
    refused(
        lambda: left.key_by("id").join(
            right.key_by("order"), between=between, how="left", spread=2
        ),
        "spread=2 and how='left'",
        'how="inner"',
    )


def test_a_join_that_spreads_keys_shares_no_component(flow: Flow, resolve: Resolve) -> None:
    left, right = source(flow, "orders", ORDERS, "ts"), source(flow, "payments", PAYMENTS, "paid")
    met = left.key_by("id").join_newest(
        right.key_by("order"), suffix="_paid", spread=2, name="spread"
    )
    flow.sink("all", left.drop_duplicates("id", within="1 hour"), _sink())
    found = compiled(flow, resolve, met)
    names = tuple(operator.name for operator in found.operators)
    together = PhysicalPlan(components=(ComponentPlan(name="one", operators=names),))
    with pytest.raises(InvalidPlanError, match="'spread' may spread rows of a key"):
        found.with_plan(together)


def _sink() -> Any:
    from tests.support.fake_flow import FakeSink

    return FakeSink()
