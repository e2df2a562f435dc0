"""Copies that are warmed beside the epochs hold what is committed, and nothing once dropped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from tests.support.lane_flows import flow_of, rows_of, summed
from tests.support.manual_run import ManualRun

from godwit.checkpoint.records import StateId
from godwit.engine.copies import warm_copies, warm_states
from godwit.engine.instructions import state_instruction
from godwit.migration.messages import PeerCopies, StartWarming
from godwit.migration.sources import Delivery
from godwit.model.key_groups import key_group_mask
from godwit.store.local_store import LocalState

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.engine.lane.messages import StateInstruction

N = 8


def told(run: ManualRun, floor: int) -> StateInstruction:
    (state,) = run.flow.operators[0].states
    return state_instruction(
        state=state,
        recorded_as=state,
        chains=run.log.chains,
        floor=np.full(N, floor),
        needed=key_group_mask(range(N), N),
    )


def local_in(path: Path, run: ManualRun) -> LocalState:
    operator = run.flow.operators[0]
    return LocalState(path / "elsewhere", str(operator.states[0]), operator.schema, N)


def warm(run: ManualRun, local: LocalState, key_groups: list[int], floor: int) -> dict[int, int]:
    instruction, layout = told(run, floor), run.lane_flow.operators[0].states["state"]
    return warm_copies(
        local,
        key_groups,
        instruction,
        layout=layout,
        storage=run.log.storage,
        committed=run.log.latest_epoch,
        lanes=2,
    )


def test_a_copy_is_warmed_from_nothing_and_brought_forward_later(tmp_path: Path) -> None:
    run, rng = ManualRun(flow_of(summed, N), tmp_path, {"a": 2}), np.random.default_rng(0)
    for snapshots in ((), (3,), ()):
        run.snapshots = snapshots
        run.play({0: rows_of(rng, 200, 60)})
    local = local_in(tmp_path, run)
    assert warm(run, local, [3, 5], -1) == {3: 2, 5: 2}
    run.play({0: rows_of(rng, 200, 60)})
    assert warm(run, local, [5], 2) == {5: 3}
    assert local.versions.tolist() == [-1, -1, -1, 2, -1, 3, -1, -1]
    rows = local.scan(np.array([5])).rows
    found = dict(zip(rows.keys["k"].to_pylist(), rows.values["n"].to_pylist(), strict=True))
    expected = {key[0]: values[0] for key, values in run.held().items()}
    assert found
    assert found.items() <= expected.items()


def test_a_copy_that_is_dropped_is_gone_and_the_others_stay(tmp_path: Path) -> None:
    run, rng = ManualRun(flow_of(summed, N), tmp_path, {"a": 1}), np.random.default_rng(0)
    run.play({0: rows_of(rng, 200, 60)})
    local = local_in(tmp_path, run)
    warm(run, local, [1, 2], -1)
    local.drop(np.array([1, 7]))
    assert np.flatnonzero(local.versions >= 0).tolist() == [2]


def test_key_groups_that_a_peer_did_not_send_count_as_read_from_the_checkpoint() -> None:
    state = StateId("op", "state")
    peers = [
        PeerCopies(executor=executor, key_groups=key_groups)
        for executor, key_groups in (("b", (1, 2)), ("c", (3,)))
    ]
    order = StartWarming(
        component="op", executor="a", key_groups=(1, 2, 3), attempt="x", states=(state,)
    )
    instructor: Any = SimpleNamespace(catching_up=lambda *_: (None, 7))
    warmed = warm_states(
        order,
        instructor,
        held_versions=lambda _: np.full(N, -1),
        transfers=peers,
        fetch=lambda asked: {state: {1: 7}} if asked.executor == "b" else {},
        catch_up=lambda *_: {1: 7, 2: 7, 3: 7},
        now_s=lambda: 0.0,
    )
    assert warmed.deliveries == tuple(
        Delivery(source=source, key_groups=key_groups, duration_ms=0.0)
        for source, key_groups in (("b", (1,)), ("c", ()), (None, (2, 3)))
    )
