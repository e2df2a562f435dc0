"""Operators in a row give the same rows whatever shares a component, also if that changes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.fake_flow import FakeSink
from tests.support.rounds import rounds
from tests.support.window_flows import WindowedRun

import godwit as gw
from godwit.checkpoint.records import ComponentPlan, PhysicalPlan

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.api.streams import KeyedStream, Stream

SECOND = 1_000_000
KINDS = ("compute", "process", "mapped", "window")


def each(key: tuple[str], rows: Any, state: dict[str, int]) -> Any:
    """Give every row on, with a number that depends on the order in which rows come."""
    for row in rows:
        state["sum"] = 3 * state.get("sum", 0) % 1_000_003 + row.v
        yield key[0], state["sum"]


def shifted(table: pa.Table) -> pa.Table:
    """Change values and leave keys."""
    more = pc.add(table["v"], 7).cast(pa.int64())
    return table.set_column(table.schema.get_field_index("v"), "v", more)


def chain(keyed: KeyedStream, kinds: list[str]) -> Stream:
    """Put operators in a row, all by `k`, with a value `v`."""
    stream: Stream | None = None
    for at, kind in enumerate(kinds):
        name = f"o{at}"
        if stream is not None:
            keyed = (stream.map(shifted) if kind == "mapped" else stream).key_by("k")
        if kind == "process":
            stream = keyed.process(each, state=dict, output="k string, v long", name=name)
        elif kind == "window":
            windows = gw.tumbling(f"{5 * (at + 1)} seconds")
            stream = keyed.window(windows, name=name, late=FakeSink()).compute(v=gw.sum("v"))
        else:
            stream = keyed.compute(name=name, v=gw.sum("v"), n=gw.count())
    assert stream is not None
    return stream


def drawn_kinds(rng: random.Random) -> list[str]:
    """Windows come first, since what other operators give has no event time."""
    windows = rng.randint(0, 2)
    return ["window"] * windows + [rng.choice(KINDS[:3]) for _ in range(rng.randint(2, 3))]


def drawn_plan(rng: random.Random, count: int) -> PhysicalPlan:
    """Let each operator begin a component or share that of the one before it."""
    rows = [["o0"]]
    for at in range(1, count):
        if rng.randint(0, 1):
            rows.append([])
        rows[-1].append(f"o{at}")
    return PhysicalPlan(
        components=tuple(ComponentPlan(name=row[0], operators=tuple(row)) for row in rows)
    )


def drawn_rows(rng: random.Random, epoch: int) -> list[tuple[str, int | None, int]]:
    return [
        (
            f"key {rng.randrange(25)}",
            None if rng.random() < 0.02 else (8 * epoch + rng.randrange(20)) * SECOND,
            rng.randint(-9, 9),
        )
        for _ in range(150)
    ]


@pytest.mark.parametrize("seed", range(rounds(2, 5)))
def test_a_row_of_operators_gives_the_same_under_plans_that_change_with_every_epoch(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    kinds = drawn_kinds(rng)
    options: dict[str, Any] = {"executors": {"a": 1, "b": 1}, "slack": "4 seconds"}
    apart = WindowedRun(lambda keyed: chain(keyed, kinds), tmp_path / "apart", **options)
    fused = WindowedRun(lambda keyed: chain(keyed, kinds), tmp_path / "fused", **options)
    seen = shared = 0
    for epoch in range(6):
        parts = [drawn_rows(rng, epoch), drawn_rows(rng, epoch)]
        fused.run.physical_plan = drawn_plan(rng, len(kinds))
        shared += len(kinds) - len(fused.run.physical_plan.components)
        waits = frozenset(rng.sample(range(16), 4)) if epoch in (2, 3) else frozenset[int]()
        for run in (apart, fused):
            run.run.suspended = waits
        expected = apart.epoch(*parts)
        assert fused.epoch(*parts) == expected, kinds
        assert fused.left_out() == apart.left_out()
        seen += len(expected)
    assert seen
    assert shared
    for index in range(len(kinds)):
        assert fused.run.held(index) == apart.run.held(index), kinds
