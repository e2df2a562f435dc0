"""Whatever a controller decides, and whatever happens meanwhile, rows are what they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from lab.tests.contract.controlled import Controlled
from tests.contract.scenario import THREE, Executors, Rows, Scenario
from tests.contract.scenarios import drawn
from tests.contract.verdict import play
from tests.support.rounds import rounds

from godwit.model import events
from godwit.placement import Limits

if TYPE_CHECKING:
    from pathlib import Path

ELASTICITIES = ("resource_centric", "executor_centric", "naive_executor_centric")


def played(scenario: Scenario, directory: Path, elasticity: str) -> Controlled:
    realization = Controlled(
        directory, deep=scenario.deep, policy=scenario.policy, control={"elasticity": elasticity}
    )
    play(scenario, realization)
    return realization


@pytest.mark.parametrize("elasticity", ELASTICITIES)
def test_key_groups_move_by_themselves_and_their_rows_stay_in_order(
    tmp_path: Path, elasticity: str
) -> None:
    busy = Scenario(
        name="few keys, many rows",
        executors=dict.fromkeys(THREE, 2),
        steps=(Rows(count=60, keys=5),) * 12,
    )
    realization = played(busy, tmp_path, elasticity)
    told = [type(event) for event in realization.events]
    assert events.RebalancingStarted in told
    assert events.AssignmentSwitched in told


@pytest.mark.parametrize("elasticity", ELASTICITIES)
def test_an_executor_whose_lanes_were_lent_to_others_dies_in_an_epoch_and_no_row_is_lost(
    tmp_path: Path, elasticity: str
) -> None:
    rows = Rows(count=60, keys=5)
    lent = Scenario(
        name="an executor with remote lanes dies",
        executors=THREE,
        steps=(
            *(rows,) * 8,
            Rows(count=60, keys=5, loses="local-1"),
            *(rows,) * 4,
            Executors(there=THREE),
            *(rows,) * 4,
        ),
    )
    realization = played(lent, tmp_path, elasticity)
    assert any(isinstance(event, events.RebalancingStarted) for event in realization.events)


def test_a_known_sequence_of_executors_is_followed_by_ranges(tmp_path: Path) -> None:
    names = ("local-1", "local-2", "local-3", "local-4")
    steps = [Rows(count=200, keys=40)] * 8
    growing = Scenario(
        name="two executors, then three, then four",
        executors=dict.fromkeys(names[:2], 1),
        steps=(
            *steps,
            Executors(there=dict.fromkeys(names[:3], 1)),
            *steps,
            Executors(there=dict.fromkeys(names, 1)),
            *steps,
        ),
    )
    realization = Controlled(
        tmp_path,
        deep=growing.deep,
        policy=growing.policy,
        control={
            "planner": "oms",
            "options": {"targets": (3, 4)},
            "limits": Limits(tau=1.0),
            "gain": "any",
        },
    )
    play(growing, realization)
    told = realization.events
    assert not [event for event in told if isinstance(event, events.PlannerFailed)]
    planned = [event for event in told if isinstance(event, events.MigrationsPlanned)]
    assert {event.executors[-1] for event in planned} == {4}
    for component in realization.view.components.values():
        owners = component.assignment.executor_of
        assert np.count_nonzero(np.diff(owners)) == len(names) - 1
        assert len(np.unique(owners)) == len(names)


@pytest.mark.parametrize("planner", ["elb", "clb"])
def test_planners_of_statistic_windows_balance_a_stream_and_tell_variance_and_bytes(
    tmp_path: Path, planner: str
) -> None:
    rows = (Rows(count=200, keys=12),) * 12
    joins = Scenario(
        name="a third executor joins, and one of the others dies",
        executors={"local-1": 1, "local-2": 1},
        steps=(
            *rows,
            Executors(there=THREE),
            *rows,
            Executors(there={name: 1 for name in THREE if name != "local-1"}),
            *rows,
        ),
    )
    # CLB looks at several windows, and its moves are to pay off over them.
    every = 2 if planner == "clb" else 1
    control = {"planner": planner, "gain": "any", "every": every}
    realization = Controlled(tmp_path, deep=joins.deep, policy=joins.policy, control=control)
    play(joins, realization)
    told = realization.events
    assert not [event for event in told if isinstance(event, events.PlannerFailed)]
    started = [event for event in told if isinstance(event, events.RebalancingStarted)]
    assert {event.planner for event in started} == {planner}
    assert all(event.variance_before > 0 <= event.variance_after for event in started)
    assert any(event.variance_after < event.variance_before / 2 for event in started)
    moved = sum(event.moves for event in started)
    assert moved
    assert sum(event.state_bytes for event in started) > 0
    components = realization.view.components.values()
    owners = np.concatenate([component.assignment.executor_of for component in components])
    assert len(np.unique(owners)) == 2


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(rounds(3, 5)))
def test_whatever_is_drawn_each_row_is_processed_once_and_in_order(
    tmp_path: Path, seed: int
) -> None:
    played(drawn(seed), tmp_path, ELASTICITIES[seed % len(ELASTICITIES)])
