"""Planners and elasticities of the papers, in the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tests.oracles.controlled import ControlledCluster, Part
from tests.support.controls import control_of

from godwit.model import events
from godwit.model.assignment import even_assignment

if TYPE_CHECKING:
    from godwit.control.settings import Control

PERIOD_S = 5.0
FOUR = {"e0": 2, "e1": 2, "e2": 2, "e3": 2}


def control(**changed: object) -> Control:
    return control_of(**({"period": f"{PERIOD_S} seconds", "planner": "flux"} | changed))


def skewed(factor: float = 2.0, key_groups: int = 64, rows: float = 30.0) -> np.ndarray:
    """Rows of key groups of which every fourth, all on the first of four executors, has more."""
    per_s = np.full(key_groups, rows)
    per_s[::4] *= factor
    return per_s


def test_a_planner_that_collocates_is_asked_about_all_components_and_brings_pairs_together() -> (
    None
):
    part = {name: Part(rows=np.full(16, 60.0), state_bytes=1000) for name in ("a", "b")}
    start = even_assignment(16, list(FOUR), list(FOUR.values()))
    apart = start.moved({g: f"e{(g + 1) % 4}" for g in range(16)})
    world = ControlledCluster(
        part,
        FOUR,
        chains=[("a", "b")],
        assignments={"a": start, "b": apart},
        settings=control(planner="albic"),
    )

    def crossing() -> int:
        places = [c.assignment for c in world.coordinator.view.components.values()]
        return sum(places[0].executor(g) != places[1].executor(g) for g in range(16))

    before = crossing()
    world.run(8 * PERIOD_S)
    assert before == 16
    assert crossing() < before / 2
    assert max(world.distance("a"), world.distance("b")) < 1.0
    assert not world.told(events.PlannerFailed)


def test_executor_centric_key_groups_keep_their_home_where_it_has_room() -> None:
    settings = control(elasticity="executor_centric")
    world = ControlledCluster({"sum": Part(rows=skewed(4.0))}, FOUR, settings=settings)
    before = world.coordinator.view.components["sum"].assignment
    world.run(6 * PERIOD_S)
    after = world.coordinator.view.components["sum"].assignment
    moved = np.flatnonzero(before.executor_of != after.executor_of)
    assert len(moved)
    from_home = [before.executor(g) for g in moved.tolist()]
    assert from_home.count("e0") > len(from_home) / 2
    assert world.control is not None
    assert world.control.status["remote"] == {"keyGroups": len(moved), "bytesPerS": 0.0}


def test_static_moves_nothing_and_resource_centric_and_executor_centric_even_it_out() -> None:
    worst = {}
    for elasticity in ("static", "resource_centric", "executor_centric", "naive_executor_centric"):
        settings = control(elasticity=elasticity)
        world = ControlledCluster({"sum": Part(rows=skewed(4.0))}, FOUR, settings=settings).run(
            6 * PERIOD_S
        )
        worst[elasticity] = max(world.load_index("sum").values())
        moved = world.told(events.MigrationStarted)
        assert bool(moved) == (elasticity != "static")
        for started in world.told(events.RebalancingStarted):
            assert started.variance_after < started.variance_before
    assert worst["resource_centric"] < 0.75 * worst["static"]
    assert worst["executor_centric"] < 0.85 * worst["static"]
