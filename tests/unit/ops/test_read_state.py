"""State read from a checkpoint alone and without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.support.restarted import TIME, Restarted

import godwit as gw
from godwit.checkpoint.entries import BatchCache, read_chain
from godwit.checkpoint.records import StateId
from godwit.ops.state_view import _layouts_without_flow, _Shown

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.api.streams import Stream

S = 1_000_000


def shown(run: Restarted, *operators: str) -> list[dict[str, Any]]:
    """Everything that is shown of operators that are slots of one."""
    log = run.lanes.log
    states = [StateId(name, "state") for name in operators]
    version = log.version(log.flow).operators[operators[0]]
    description = version.states["state"]
    keys = len(version.keys)
    layouts = _layouts_without_flow(log, log.chains, states, keys + len(description.entries))
    show = _Shown.of(description, layouts[states[0]].schema, keys)
    cache = BatchCache(log.storage)
    found: list[dict[str, Any]] = []
    for state in states:
        for key_group in range(log.chains.num_key_groups):
            chain = log.chains.chain(state, key_group)
            rows = read_chain(log.storage, chain, layouts[state], cache=cache)
            found += show(key_group, rows).drop_columns(["key_group"]).to_pylist()
    return found


def test_slots_whose_columns_are_in_another_order_are_shown_by_name(tmp_path: Path) -> None:
    def two_slots(rows: Stream) -> tuple[Stream, ...]:
        keyed = rows.key_by("k")
        return (
            keyed.compute(name="w", low=gw.min("v"), n=gw.sum("v"), last=gw.last("ts")),
            keyed.compute(name="w_second", last=gw.last("ts"), n=gw.sum("v"), low=gw.min("v")),
        )

    run = Restarted(tmp_path, two_slots)
    run.epoch(rows=[("a", S, 1), ("a", 2 * S, 5)])
    first, second = shown(run, "w", "w_second")
    assert first == second
    assert (first["k"], first["low"], first["n"]) == ("a", 1, 6)


def test_state_of_sessions_in_two_time_zones_is_shown_in_utc(tmp_path: Path) -> None:
    def sessions_in_zone(rows: Stream) -> Stream:
        return rows.key_by("k").compute(name="w", newest=gw.max("ts"))

    for zone, row in (("Asia/Tokyo", ("a", S, 1)), ("Europe/Berlin", ("b", 2 * S, 1))):
        moment = pa.timestamp("us", tz=zone)
        columns = pa.schema([("k", pa.string()), ("ts", moment), ("v", pa.int64())])
        run = Restarted(tmp_path, sessions_in_zone, {"rows": {"columns": columns}})
        run.epoch(rows=[row])
    moments = [row["newest"] for row in shown(run, "w")]
    assert pa.array(moments).type == TIME
    assert sorted(pa.array(moments).cast("int64").to_pylist()) == [S, 2 * S]
