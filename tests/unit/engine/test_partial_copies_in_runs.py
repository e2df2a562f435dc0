"""Runs whose copies of state are partial after a restart or a loss give what other runs give."""

from __future__ import annotations

import datetime as dt
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.bounds import evict_always
from tests.support.lane_flows import flow_of, rows_of, summed
from tests.support.manual_run import ManualRun

import godwit as gw
from godwit.checkpoint import partial_copies
from godwit.checkpoint.partial_copies import PartialCopies
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.lane import lane
from godwit.engine.lane.lane_flow import LaneInput
from godwit.engine.settings import Lanes
from godwit.local import LocalRun
from godwit.migration import Strategy
from godwit.migration.messages import MigrationRequested

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pyarrow as pa

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def count_calls(key: tuple[int], rows: Any, state: dict[str, int]) -> Any:
    state["n"] = state.get("n", 0) + len(rows)
    yield key[0], state["n"]


def remember(key: tuple[int], rows: Any, states: Any) -> Any:
    """Count rows, and gather their values in a map and a list."""
    for row in rows:
        states.seen[row.v] = states.seen.get(row.v, 0) + 1
        states.latest.append(row.v)
        states.count.value = (states.count.value or 0) + 1
    yield key[0], states.count.value, str(sorted(states.seen.items())), str([*states.latest])


def flow() -> gw.Flow:
    """Make a flow with operators that read touched keys alone, and some that do not."""
    flow = gw.Flow("partial", num_key_groups=8)
    rows = flow.source(
        "rows", gw.testing.stream("k bigint, v bigint, ts timestamp"), event_time="ts"
    )
    keyed = rows.key_by("k")
    flow.sink("totals", keyed.compute(n=gw.count(), v=gw.sum("v"), name="totals"), gw.sinks.noop())
    calls = keyed.process(
        count_calls,
        state=gw.ValueState(dict, ttl="20 minutes"),
        output="k bigint, n bigint",
        name="calls",
    )
    flow.sink("calls", calls, gw.sinks.noop())
    flow.sink("firsts", rows.drop_duplicates("k", within="forever", name="firsts"), gw.sinks.noop())
    top = keyed.compute(top=gw.top_k("v", 2), name="top", output="complete")
    flow.sink("top", top, gw.sinks.noop())
    hourly = keyed.window(gw.tumbling("1 hour"), name="hourly").compute(n=gw.count())
    flow.sink("hourly", hourly, gw.sinks.noop())
    growing = keyed.window(gw.hopping("2 hours", every="1 hour"), output="update", name="growing")
    flow.sink("growing", growing.compute(n=gw.count()), gw.sinks.noop())
    within = rows.drop_duplicates("k", within="50 minutes", name="within")
    flow.sink("within", within, gw.sinks.noop())
    pairs = keyed.join(
        rows.key_by("k"), between=("0 minutes", "40 minutes"), suffix="_r", name="pairs"
    )
    flow.sink("pairs", pairs, gw.sinks.noop())
    named = keyed.process(
        remember,
        state={
            "seen": gw.MapState(int, int),
            "latest": gw.ListState(int, ttl="70 minutes"),
            "count": gw.ValueState(int),
        },
        output="k bigint, n bigint, seen string, latest string",
        name="named",
    )
    flow.sink("named", named, gw.sinks.noop())
    newest = keyed.latest(name="newest")
    by_value = newest.key_by("v").compute(n=gw.count(), most=gw.max("k"), name="by_value")
    flow.sink("by_value", by_value, gw.sinks.noop())
    other = rows.key_by("v").latest(name="other").key_by("v")
    tables = newest.key_by("v").join(other, suffix="_r", name="tables")
    flow.sink("tables", tables, gw.sinks.noop())
    return flow


MIGRATED = ("totals", "calls", "firsts", "hourly", "growing", "within", "pairs", "named", "newest")


def outcome(seed: int, strategy: Any = "live", epochs: int = 10) -> list[Any]:
    """Play a drawn history; return the rows of every epoch, and the state at the end."""
    rng = random.Random(seed)
    policy = gw.migration.Policy(on_loss=gw.migration.LossPolicy.LOAD)
    run = gw.testing.cluster(flow(), executors=2, now=START, policy=policy)
    seen: list[Any] = []
    for number in range(epochs):
        chance = rng.random()
        names = sorted(run.executors)
        if chance < 0.35:
            run.restart(executors=rng.choice((1, 2)))
        elif chance < 0.5 and len(names) > 1:
            run.kill(rng.choice(names))
        elif chance < 0.6:
            run.add(f"more{number}")
        elif chance < 0.8 and len(names) > 1:
            for component in rng.sample(MIGRATED, 3):
                places = {g: rng.choice(names) for g in rng.sample(range(8), 4)}
                run.migrate(places, component=component, strategy=strategy)
        elif chance < 0.85:
            run.advance("15 minutes")
        now = START + dt.timedelta(minutes=20 * number)
        rows = [
            {"k": rng.randrange(40), "v": rng.randrange(9), "ts": now}
            for _ in range(rng.randrange(1, 25))
        ]
        seen.append(plain(run.epoch({"rows": rows})))
    seen.append([plain({name: run.state(name)}) for name in ("totals", "calls", "firsts", "top")])
    seen.append([plain({name: run.state("named", name)}) for name in ("seen", "latest", "count")])
    run.close()
    return seen


def plain(tables: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the rows of tables as text, in order."""
    return {name: sorted(map(repr, tables[name].to_pylist())) for name in sorted(tables)}


@pytest.mark.parametrize("seed", [1])
def test_drawn_runs_give_the_same_rows_and_state(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    expected = outcome(seed)
    begun: list[bool] = []
    begin = PartialCopies.begin

    def counted(copies: PartialCopies, *arguments: Any) -> None:
        begin(copies, *arguments)
        begun.append(copies.began)

    monkeypatch.setattr(PartialCopies, "begin", counted)
    monkeypatch.setattr(partial_copies, "FROM_BYTES", 0)
    assert outcome(seed, "on_demand") == expected
    assert any(begun)


@pytest.mark.parametrize("seed", [1])
def test_drawn_runs_whose_lanes_evict_in_every_epoch_give_the_same_rows_and_state(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    expected = outcome(seed, "on_demand", epochs=5)
    evicted = evict_always(monkeypatch)
    assert outcome(seed, "on_demand", epochs=5) == expected
    assert sum(evicted) > 0


@pytest.mark.parametrize("restore", ["touched", "whole"])
def test_state_that_is_still_to_be_read_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restore: Any
) -> None:
    monkeypatch.setattr(partial_copies, "FROM_BYTES", 0)
    rows: dict[LaneInput | str, list[pa.RecordBatch]] = {
        LaneInput(index=0): rows_of(np.random.default_rng(1), 200, 100)
    }
    flow = flow_of(summed, 8)

    def run() -> ManualRun:
        return ManualRun(flow, tmp_path, {"e": 1}, settings=Lanes(restore=restore))

    run().epoch(rows)
    again, unread = run(), list[int]()
    for _ in range(10):
        unread.append(again.epoch(rows).unread_bytes)
    assert (unread[0] > 0) is (restore == "touched")
    assert unread == sorted(unread, reverse=True)
    assert unread[-2:] == [0, 0]


def test_a_key_group_gets_its_snapshot_once_its_copy_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_copies, "FROM_BYTES", 0)
    monkeypatch.setattr(lane, "_BEHIND", -1.0)  # so one key group is completed in each epoch
    completed_first: list[int] = []
    complete = PartialCopies.complete

    def counted(copies: PartialCopies, key_groups: Any) -> None:
        completed_first.append(int(key_groups.sum()))
        complete(copies, key_groups)

    monkeypatch.setattr(PartialCopies, "complete", counted)

    def run_twice(restore: Any) -> tuple[list[int], dict[Any, Any]]:
        """Return the bytes of snapshots in the epochs of the second run, and its state."""
        rng, written = np.random.default_rng(1), list[int]()
        settings = Lanes(snapshot_growth=1.0, restore=restore)
        for epochs in (1, 12):
            run = ManualRun(flow_of(summed, 8), tmp_path / restore, {"e": 1}, settings=settings)
            written = [
                run.epoch({LaneInput(index=0): rows_of(rng, 2_000, 20_000)}).snapshot_bytes
                for _ in range(epochs)
            ]
        return written, run.held()

    written, state = run_twice("touched")
    assert sum(completed_first) == 0
    assert sum(written) > 0
    assert state == run_twice("whole")[1]


@pytest.mark.parametrize("strategy", ["on_demand", "disruptive"])
def test_only_a_migration_on_demand_leaves_state_to_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    monkeypatch.setattr(partial_copies, "FROM_BYTES", 0)
    run = LocalRun(
        flow_of(summed, 8),
        CheckpointStorage.open(str(tmp_path / "checkpoint")),
        executors={"a": 1, "b": 1},
        settings=Lanes(local_dir=str(tmp_path / "local")),
    )
    rows = rows_of(np.random.default_rng(1), 200, 100)
    unread = [1]
    while any(unread[-3:]):  # in the first epochs a copy that is not there hardly lags
        unread.append(run.epoch({LaneInput(index=0): rows}).unread_bytes)
    assert len(unread) < 20, "each epoch completes a key group"
    (name,) = run.view.components
    here = run.view.components[name].assignment
    target = here.moved(dict.fromkeys(here.key_groups("a").tolist(), "b"))
    run.coordinator.migrate(
        MigrationRequested(id="m", component=name, target=target, strategy=Strategy(strategy))
    )
    if strategy == "on_demand":
        run.epoch({LaneInput(index=0): rows})  # meanwhile the state is indexed
    outcome = run.epoch({LaneInput(index=0): rows})
    assert (outcome.unread_bytes > 0) is (strategy == "on_demand")
    assert run.coordinator.ended("m") is not None
