from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from godwit.model.errors import InvalidProblemError
from godwit.placement.copy_routes import CopyRoute
from godwit.placement.preview import preview
from godwit.placement.problem import Problem
from godwit.placement.solution import executable_plan, make_solution
from godwit_lab.cli.plan_json import EXAMPLES, problem_from_json
from godwit_lab.planners.intervals.ssm import plan_ssm

if TYPE_CHECKING:
    from godwit.placement.solution import Solution


def _plan() -> Solution:
    problem, _ = problem_from_json(json.dumps(EXAMPLES["assignment"]))
    return plan_ssm(problem)


def test_a_notebook_shows_a_preview_and_the_moves_of_a_plan() -> None:
    solution = _plan()
    shown = preview(solution)._repr_html_()
    assert shown.startswith("<pre")
    assert "load distance" in shown
    plan = executable_plan(solution)
    rows = plan._repr_html_().count("<tr>")
    assert rows == 1 + len(plan.moves) > 1


def test_a_preview_shows_load_and_bytes_of_every_executor() -> None:
    shown = preview(_plan(), bandwidth_bytes_per_s=10.0, changed_share=0.1)
    assert [(e.load_before, e.load_after) for e in shown.executors] == [(36, 24), (24, 24), (0, 12)]
    assert [e.key_groups_after for e in shown.executors] == [5, 5, 2]
    assert [e.bytes_out for e in shown.executors] == [110, 0, 0]
    assert [e.bytes_in for e in shown.executors] == [0, 0, 110]
    assert shown.moved_share == pytest.approx(110 / 540)
    assert (shown.load_distance_before, shown.load_distance_after) == (20, 8)


def test_the_busiest_link_decides_how_long_transfers_take() -> None:
    problem = Problem(
        executors=("a", "b", "c"),
        load=np.ones(3),
        state_bytes=np.array([30.0, 20.0, 5.0]),
        current=np.array([0, 1, 2], np.int32),
        seconds_per_byte=1.0,
    )
    plan = make_solution(problem, np.array([2, 2, 0]), method="test")
    shown = preview(plan, bandwidth_bytes_per_s=10.0, changed_share=0.1)
    assert shown.transfer_s == 5.0
    assert shown.pause_s == {
        "live": 0.5,
        "disruptive": 5.0,
        "on_demand": 0.75,
        "stop_the_world": 65.0,
    }


def test_a_plan_without_moves_pauses_nothing() -> None:
    problem = Problem(
        executors=("a",), load=np.zeros(1), state_bytes=np.zeros(1), current=np.array([0])
    )
    shown = preview(make_solution(problem, problem.current, method="test"))
    assert shown.transfer_s == shown.moved_share == shown.pause_s["stop_the_world"] == 0
    assert "key group  from" not in shown.to_text()


def _route(source: str | None, size: float, rate: float | None, why: str = "") -> CopyRoute:
    return CopyRoute(
        component="sums",
        source=source,
        destination="c",
        key_groups=(1, 2),
        size_bytes=size,
        bytes_per_s=rate,
        why=why,
    )


def test_where_copies_come_from_and_what_was_measured_says_how_long_they_take() -> None:
    routes = [
        _route("a", 100.0, 50.0, "peers give more"),
        _route("b", 100.0, 50.0, "peers give more"),
        _route(None, 30.0, None),
        _route("c", 0.0, 7.0),
    ]
    shown = preview(_plan(), bandwidth_bytes_per_s=10.0, changed_share=0.1, routes=routes)
    assert shown.transfer_s == 2 + 2 + 3
    assert shown.pause_s["live"] == pytest.approx(0.7)
    assert shown.to_text().splitlines()[4:7] == [
        "copies of 4 key groups, 200 B, from other executors at 50 B/s (measured): peers give more",
        "copies of 2 key groups, 30 B, from the checkpoint (never measured)",
        "copies of 2 key groups, 0 B, there already, to be brought forward from the checkpoint",
    ]


def test_text_lists_executors_and_at_most_so_many_moves() -> None:
    text = preview(_plan()).to_text(most_moves=1)
    assert "ssm: optimal" in text
    assert "gap to the bound 0.00%" in text
    assert "a 36 24 7 5 110 B 0 B" in [" ".join(line.split()) for line in text.splitlines()]
    assert "... and 1 more" in text


@pytest.mark.parametrize("options", [{"bandwidth_bytes_per_s": 0.0}, {"changed_share": 1.5}])
def test_impossible_predictions_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidProblemError, match=next(iter(options))):
        preview(_plan(), **options)
