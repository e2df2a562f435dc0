"""Facts about windowed aggregates whose partials are consolidated by an operator of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.oracles.windows import Windows
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver
from tests.support.window_flows import ROWS, WindowedRun

from godwit.api.flow import LogicalFlow
from godwit.library import aggregates as gw
from godwit.model.errors import InvalidFlowError
from godwit.operators.window_specs import hopping, session, tumbling

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from godwit.api.streams import KeyedStream, Stream

S = 1_000_000
KINDS = [(20 * S, 10 * S, 0), (30 * S, 30 * S, 0)]


def two_phase_windows(keyed: KeyedStream, **options: Any) -> Stream:
    return keyed.window(
        hopping("20 seconds", every="10 seconds"),
        tumbling("30 seconds"),
        consolidate="apart",
        name="zones",
        **options,
    ).compute(n=gw.count(), v=gw.sum("v"))


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("duplicated", [False, True])
def test_all_configurations_give_the_windows_that_one_operator_gives(
    tmp_path: Path, *, together: bool, duplicated: bool
) -> None:
    """Figure 5: partials shared or of each window, consolidated in the lane or by an exchange."""
    share: Any = "never" if duplicated else "always"
    run = WindowedRun(
        partial(two_phase_windows, share=share, late=FakeSink()),
        tmp_path,
        together=together,
        slack="5 seconds",
    )
    assert run.compiled.levels == (1 if together else 2)
    rng = np.random.default_rng(3)
    oracle = Windows(KINDS, 5 * S)
    out = 0
    for epoch in range(12):
        rows = [
            (f"k{rng.integers(0, 9)}", int((epoch * 7 - rng.exponential(9)) * S), epoch)
            for _ in range(30)
        ]
        found = run.epoch(rows[::2], rows[1::2])
        expected = oracle.epoch([*rows[::2], *rows[1::2]])
        assert found == sorted(
            ((k, *span, len(vs), sum(vs)) for (k, span), vs in expected.items()), key=repr
        )
        out += len(found)
        late = sum(o.arrivals.late for r in run.reports for o in r.operators)
        assert len(run.left_out()) == late
    assert out > 50


def test_windows_of_windows_close_in_one_epoch_behind_a_consolidate_part(tmp_path: Path) -> None:
    def two(keyed: KeyedStream) -> Stream:
        inner = keyed.window(tumbling("10 seconds"), consolidate="apart").compute(n=gw.count())
        outer = inner.key_by("k").window(tumbling("30 seconds"), consolidate="apart", name="outer")
        return outer.compute(most=gw.max("n"), windows=gw.count())

    run = WindowedRun(two, tmp_path)
    assert run.compiled.levels == 4
    assert run.epoch([("a", 1 * S, 1), ("a", 2 * S, 1), ("a", 15 * S, 1)]) == []
    assert run.epoch([("a", 31 * S, 1)]) == []
    assert run.epoch([("a", 32 * S, 1)]) == [("a", 0, 30 * S, 2, 2)]


def test_while_key_groups_of_either_part_are_suspended_neither_closes(tmp_path: Path) -> None:
    for part in ("zones", "zones_windows"):
        run = WindowedRun(two_phase_windows, tmp_path / part)
        run.epoch([("a", 1 * S, 1), ("b", 95 * S, 2)])
        plan = run.run.component_views()[part]
        stands = run.run.component_views() | {part: replace(plan, suspended=frozenset([3]))}
        told = run.times.epoch_times(clock_us=0, silence_us=0, components=stands)
        assert {told[name].until for name in ("zones", "zones_windows")} == {told["zones"].closed}
        told = run.times.epoch_times(clock_us=0, silence_us=0, components=run.run.component_views())
        assert {told[name].until for name in ("zones", "zones_windows")} == {95 * S}


def test_the_compute_part_takes_up_the_state_of_the_whole(tmp_path: Path) -> None:
    """Same name, same columns, same meaning: an old checkpoint continues in two parts and back."""
    from godwit.plan.lineage import flow_version

    def flow(**options: Any) -> Any:
        made = LogicalFlow("flow")
        frame: Any = FakeDataFrame(ROWS)
        keyed = made.source("rows", frame, event_time="ts").key_by("k")
        windows = keyed.window(tumbling("10 seconds"), name="zones", **options)
        made.sink("out", windows.compute(n=gw.count()), FakeSink())
        return flow_version(made.compile(resolver(made))).operators

    assert flow()["zones"] == flow(consolidate="apart")["zones"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda k: k.window(session("5 seconds"), consolidate="apart"), "and a session"),
        (
            lambda k: k.window(tumbling("5 seconds"), output="update", consolidate="apart"),
            "output='update'",
        ),
        (
            lambda k: k.window(tumbling("5 seconds"), consolidate="apart").process(
                print, output="k string"
            ),
            "has a function",
        ),
        (lambda k: k.window(tumbling("5 seconds"), consolidate="a part"), "consolidate='a part'"),
        (lambda k: k.window(tumbling("5 seconds"), share="no"), "share='no'"),
        (lambda k: k.window(tumbling("5 seconds"), share="never", output="update"), "as they grow"),
    ],
)
def test_what_windows_cannot_be_made_in_is_refused_where_it_is_said(
    make: Callable[[KeyedStream], Any], says: str
) -> None:
    frame: Any = FakeDataFrame(ROWS)
    keyed = LogicalFlow("flow").source("rows", frame, event_time="ts").key_by("k")
    with pytest.raises(InvalidFlowError, match=says):
        make(keyed)


def test_windows_of_aggregates_that_mind_the_order_of_rows_share_panes() -> None:
    flow = LogicalFlow("flow")
    frame: Any = FakeDataFrame(ROWS)
    keyed = flow.source("rows", frame, event_time="ts").key_by("k")
    stream = keyed.window(tumbling("5 seconds"), share="never").compute(v=gw.last("v"))
    flow.sink("out", stream, FakeSink())
    with pytest.raises(InvalidFlowError, match="depends on the order of rows"):
        flow.compile(resolver(flow))


@pytest.mark.parametrize("name", ["zones_second", "zones_windows"])
def test_no_operator_can_have_the_name_of_a_part(name: str) -> None:
    flow = LogicalFlow("flow")
    frame: Any = FakeDataFrame(ROWS)
    keyed = flow.source("rows", frame, event_time="ts").key_by("k")
    flow.sink("out", two_phase_windows(keyed), FakeSink())
    flow.sink("other", keyed.compute(name=name, n=gw.count()), FakeSink())
    with pytest.raises(InvalidFlowError, match=f"'{name}'.*the name of a phase of 'zones'"):
        flow.compile(resolver(flow))
