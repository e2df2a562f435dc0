"""Facts about lanes over many epochs: wherever they run, the state is what the rows say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.lane_flows import Model, flow_of, rows_of, summed
from tests.support.manual_run import ManualRun
from tests.support.rounds import rounds

from godwit.library import aggregates as gw
from godwit.migration import LossPolicy, Policy
from godwit.model.assignment import even_assignment

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.api.streams import KeyedStream, Stream


@pytest.mark.parametrize(("num_key_groups", "lanes"), [(1, 1), (7, 2), (64, 3), (1024, 2)])
def test_state_is_what_the_rows_say(tmp_path: Path, num_key_groups: int, lanes: int) -> None:
    run, model = ManualRun(flow_of(summed, num_key_groups), tmp_path, {"a": lanes}), Model()
    rng = np.random.default_rng(0)
    for _ in range(6 if num_key_groups < 1000 else 3):
        rows = rows_of(rng, 400, 150)
        run.play({0: rows})
        model.add(rows)
        assert model.agrees_with(run.held())


@pytest.mark.parametrize("seed", range(rounds(1, 3)))
def test_it_does_not_matter_where_key_groups_run(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    executors = {"a": 2, "b": 3}
    run, model = ManualRun(flow_of(summed, 32), tmp_path, executors), Model()
    for _ in range(12):
        executor_of = rng.integers(0, 2, 32).astype(np.int32)
        lane_of = (rng.integers(0, 6, 32) % np.array([2, 3])[executor_of]).astype(np.int32)
        run.assignment = replace(run.assignment, executor_of=executor_of, lane_of=lane_of)
        if rng.random() < 0.2:
            run.lose("a")
        rows = rows_of(rng, 200, 100)
        run.play({0: rows})
        model.add(rows)
    assert model.agrees_with(run.held())


def test_a_change_of_lanes_moves_no_state(tmp_path: Path) -> None:
    run, rng = ManualRun(flow_of(summed, 16), tmp_path, {"a": 2}), np.random.default_rng(0)
    run.play({0: rows_of(rng, 400, 100)})
    run.play({0: rows_of(rng, 400, 100)})
    tables = sorted((tmp_path / "local").rglob("*.table"))
    before = [path.stat().st_ino for path in tables]
    run.assignment = replace(run.assignment, lane_of=1 - run.assignment.lane_of)
    _, reports = run.play({0: rows_of(rng, 400, 100)})
    assert [path.stat().st_ino for path in tables] == before
    assert sum(len(report.operators[0].load.key_groups) for report in reports) == 16


def test_lanes_keep_up_with_key_groups_that_they_do_not_touch(tmp_path: Path) -> None:
    run, rng = ManualRun(flow_of(summed, 256), tmp_path, {"a": 2}), np.random.default_rng(0)
    for _ in range(5):
        run.play({0: rows_of(rng, 60, 1000)})
    (state,) = run.instruction().operators[0].states
    assert {segment.epoch for segment in state.segments} == {4}


def test_a_lane_without_rows_keeps_up(tmp_path: Path) -> None:
    run, rng = ManualRun(flow_of(summed, 8), tmp_path, {"a": 2}), np.random.default_rng(0)
    run.play({0: rows_of(rng, 60, 100)})
    _, reports = run.play({})
    (versions,) = next(report.operators[0].versions for report in reports).values()
    assert set(versions.values()) == {0}


def test_what_a_lane_lost_waits_until_it_is_loaded_and_comes_first(tmp_path: Path) -> None:
    run, model = ManualRun(flow_of(summed, 8), tmp_path, {"a": 2}), Model()
    rng = np.random.default_rng(0)
    for lost in (False, False, True, False):
        if lost:
            run.forget_store("a")  # the driver believes that the copies are there
        rows = rows_of(rng, 200, 50)
        run.play({0: rows})
        model.add(rows)
        if lost:
            assert run.waiting() == list(range(8))
            assert not model.agrees_with(run.held())
            run.copies.forget_executor("a")
            run.suspended = frozenset({0, 1})
    assert run.waiting() == [0, 1]
    run.suspended = frozenset()
    run.play({})
    assert run.waiting() == []
    assert model.agrees_with(run.held())


def test_what_a_lane_lost_is_loaded_if_it_is_told_to(tmp_path: Path) -> None:
    loading = Policy(on_loss=LossPolicy.LOAD)
    run, model = ManualRun(flow_of(summed, 8), tmp_path, {"a": 2}, policy=loading), Model()
    rng = np.random.default_rng(0)
    for lost in (False, False, True, False):
        if lost:
            run.forget_store("a")
        rows = rows_of(rng, 200, 50)
        run.play({0: rows})
        model.add(rows)
        assert run.waiting() == []
    assert model.agrees_with(run.held())


def test_nothing_is_restored_before_it_is_needed(tmp_path: Path) -> None:
    run, rng = ManualRun(flow_of(summed, 64), tmp_path, {"a": 1}), np.random.default_rng(0)
    for _ in range(4):
        run.play({0: rows_of(rng, 600, 200)})
    run.lose("a")
    _, reports = run.play({0: rows_of(rng, 6, 200)})
    (versions,) = reports[0].operators[0].versions.values()
    assert 0 < len(versions) <= 6


def test_snapshots_of_many_key_groups_hold_what_each_had(tmp_path: Path) -> None:
    run, model = ManualRun(flow_of(summed, 32), tmp_path, {"a": 2}), Model()
    rng = np.random.default_rng(0)
    for epoch in range(6):
        rows = rows_of(rng, 400, 300)
        run.snapshots = tuple(range(32)) if epoch == 3 else None
        record, _ = run.play({0: rows})
        model.add(rows)
        if epoch == 3:
            assert len(record.snapshots) == 32
            run.lose("a")
    assert model.agrees_with(run.held())


def test_complete_output_is_every_key(tmp_path: Path) -> None:
    def complete(keyed: KeyedStream) -> Stream:
        return keyed.compute(n=gw.count(), total=gw.sum("v"), output="complete")

    run, model = ManualRun(flow_of(complete, 8), tmp_path, {"a": 2}), Model()
    rng = np.random.default_rng(0)
    for _ in range(4):
        rows = rows_of(rng, 60, 100)
        _, reports = run.play({0: rows})
        model.add(rows)
        assert sum(report.rows_out for report in reports) == len(model.counts)


def test_load_is_counted_where_it_is_spent(tmp_path: Path) -> None:
    run = ManualRun(flow_of(summed, 16), tmp_path, {"a": 2})
    rows = rows_of(np.random.default_rng(0), 400, 100)
    _, reports = run.play({0: rows})
    loads = [report.operators[0].load for report in reports]
    assert sorted(g for load in loads for g in load.key_groups) == list(range(16))
    assert sum(sum(load.keys) for load in loads) == len(
        {r["k"] for b in rows for r in b.to_pylist()}
    )
    assert all(ms >= 0 for load in loads for ms in load.cpu_ms)
    # Nothing here waits for anything, so it is busy for as long as it computes.
    assert all((load.busy_ms == load.cpu_ms).all() for load in loads)


def test_lanes_that_are_added_take_over(tmp_path: Path) -> None:
    run, model = ManualRun(flow_of(summed, 16), tmp_path, {"a": 1, "b": 4}), Model()
    rng = np.random.default_rng(0)
    for lanes in ([1, 1], [1, 4], [1, 2]):
        run.assignment = even_assignment(16, ["a", "b"], lanes)
        rows = rows_of(rng, 200, 100)
        run.play({0: rows})
        model.add(rows)
    assert model.agrees_with(run.held())


def test_a_snapshot_of_key_groups_whose_keys_are_all_gone_is_empty(tmp_path: Path) -> None:
    def forget(key: tuple[str], rows: Any, state: dict[str, int]) -> Any:
        state["n"] = 1
        if any(row.v < 0 for row in rows):
            rows.drop_state()
        return []

    def forgetting(keyed: KeyedStream) -> Stream:
        return keyed.process(forget, state=dict, output="k string")

    run = ManualRun(flow_of(forgetting, 4), tmp_path, {"a": 1})
    for value in (1, -1):
        names = [f"key {i}" for i in range(20)]
        run.play({0: [pa.record_batch({"k": names, "v": pa.array([value] * 20)})]})
    run.snapshots = (0, 1, 2, 3)
    record, _ = run.play({})
    assert [snapshot.rows for snapshot in record.snapshots] == [0] * 4
    assert run.held() == {}
