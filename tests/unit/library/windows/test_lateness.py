"""Facts about allowed lateness and lengths of windows as a column, against plain Python."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.oracles.windows import BEGINNING, windows_of
from tests.support.fake_flow import FakeSink
from tests.support.window_flows import WindowedRun

from godwit.library import aggregates as gw
from godwit.library.windows.operator import first_needed_pane
from godwit.model.errors import CheckpointMismatchError, InvalidFlowError
from godwit.operators.window_specs import hopping, session, tumbling

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000
KINDS = {
    "one": ([tumbling("10 seconds")], [(10 * S, 10 * S)]),
    "two": (
        [hopping("20 seconds", every="5 seconds"), tumbling("30 seconds")],
        [(20 * S, 5 * S), (30 * S, 30 * S)],
    ),
}


def test_a_window_comes_out_again_with_rows_that_are_late_but_allowed(tmp_path: Path) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(
            tumbling("10 seconds"), allowed_lateness="20 seconds", late=FakeSink()
        ).compute(n=gw.count(), v=gw.sum("v")),
        tmp_path,
    )
    assert run.epoch([("a", 1 * S, 1), ("b", 2 * S, 2), ("a", 12 * S, 4)]) == []
    assert run.epoch([]) == [("a", 0, 10 * S, 1, 1), ("b", 0, 10 * S, 1, 2)]
    assert run.epoch([("a", 3 * S, 7)]) == [("a", 0, 10 * S, 2, 8)]
    assert run.epoch([("a", 29 * S, 9)]) == []
    assert run.epoch([("b", 9 * S, 9)]) == [("a", 10 * S, 20 * S, 1, 4), ("b", 0, 10 * S, 2, 11)]
    assert run.epoch([("a", 31 * S, 9)]) == []
    assert run.epoch([]) == [("a", 20 * S, 30 * S, 1, 9)]
    assert run.epoch([("a", 3 * S, 7)]) == []
    assert run.left_out() == [("a", 3 * S, 7, "late")]


@pytest.mark.parametrize("output", ["append", "update"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_allowed_lateness_is_that_of_plain_python(
    tmp_path: Path, output: Any, kind: str, seed: int
) -> None:
    specs, spans = KINDS[kind]
    lateness = 25 * S
    run = WindowedRun(
        lambda keyed: keyed.window(
            *specs, output=output, allowed_lateness="25 seconds", length_as="length"
        ).compute(n=gw.count(), v=gw.sum("v")),
        tmp_path,
        slack="3 seconds",
        num_key_groups=4,
        max_ahead="1000 days",
    )
    rng = np.random.default_rng(seed)
    windows: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    watermark = closed = newest = BEGINNING
    late = 0
    for epoch in range(24):
        times = (epoch * 6 + 6 - rng.exponential(14, 12)).round(3)
        rows = [(f"k{rng.integers(0, 3)}", int(t * S), int(rng.integers(0, 9))) for t in times]
        rows = [] if rng.random() < 0.1 else rows
        out = run.epoch(rows)
        until = max(closed, watermark)
        touched = set()
        for key, moment, value in rows:
            newest = max(newest, moment)
            of_row = {span for n, e in spans for span in windows_of(moment, n, e)}
            open_ = [span for span in of_row if span[1] > closed - lateness]
            late += not open_
            for span in open_:
                windows[key, *span].append(value)
                touched.add((key, *span))
        over = {at for at in windows if closed < at[2] <= until}
        expected = over | {at for at in touched if output == "update" or at[2] <= closed}
        if output == "update":
            expected = touched
        lengths = {10 * S: "10 seconds", 20 * S: "20 seconds", 30 * S: "30 seconds"}
        assert sorted(out) == sorted(
            (*at, lengths[at[2] - at[1]], len(windows[at]), sum(windows[at])) for at in expected
        )
        closed, watermark = until, max(watermark, newest - 3 * S)
    assert late


def test_another_lateness_is_refused_by_name(tmp_path: Path) -> None:
    def described(lateness: str) -> Any:
        run = WindowedRun(
            lambda keyed: keyed.window(tumbling("1 day"), allowed_lateness=lateness).compute(
                n=gw.count()
            ),
            tmp_path / lateness,
        )
        return run.compiled.operators[0]

    some, more, none = map(described, ("1 hour", "2 hours", "0 seconds"))
    for other in (more, none):
        with pytest.raises(CheckpointMismatchError, match="lateness_us"):
            other.upgrade_from(some.describe_states()["state"])
    with pytest.raises(CheckpointMismatchError, match="lateness_us"):
        some.upgrade_from(none.describe_states()["state"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"allowed_lateness": "1 hour", "share": "never"}, "share='never'"),
        ({"allowed_lateness": "1 hour", "consolidate": "apart"}, "consolidate='apart'"),
        ({"allowed_lateness": "soon"}, "not a duration"),
        ({"length_as": 3}, "length_as="),
        ({"length_as": "n"}, "'n'"),
        ({"length_as": "window_end"}, "'window_end'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, options: Any, says: str
) -> None:
    with pytest.raises(InvalidFlowError, match=says):
        WindowedRun(
            lambda keyed: keyed.window(tumbling("1 hour"), **options).compute(n=gw.count()),
            tmp_path,
        )


@pytest.mark.parametrize("options", [{"allowed_lateness": "1 hour"}, {"length_as": "length"}])
def test_sessions_and_functions_have_neither(tmp_path: Path, options: Any) -> None:
    with pytest.raises(InvalidFlowError, match="session"):
        WindowedRun(
            lambda keyed: keyed.window(session("1 hour"), **options).compute(n=gw.count()), tmp_path
        )
    with pytest.raises(InvalidFlowError, match="has a function"):
        WindowedRun(
            lambda keyed: keyed.window(tumbling("1 hour"), **options).process(
                lambda key, rows, window: None,
                output="n long",
            ),
            tmp_path,
        )


@pytest.mark.parametrize(
    ("windows", "options"),
    [
        ([tumbling("1 day", zone="Asia/Beirut")], {}),
        ([hopping("3 months", every="1 month", zone="UTC")], {"allowed_lateness": "9 days"}),
        ([tumbling("1 hour"), tumbling("90 minutes")], {"allowed_lateness": "100 minutes"}),
    ],
)
def test_readers_of_state_know_which_panes_are_gone(
    tmp_path: Path, windows: Any, options: Any
) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(*windows, **options).compute(n=gw.count()), tmp_path
    )
    operator: Any = run.compiled.operators[0]
    described = operator.describe_states()["state"]
    for closed in range(1_600_000_000 * S, 1_640_000_000 * S, 7_777_777 * S):
        assert first_needed_pane(described, closed) == operator.first_needed_pane(closed)
