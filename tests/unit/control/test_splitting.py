"""In which form windows are consolidated is decided by what lanes and component_views tell."""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.control.fusing import by_attributes
from godwit.control.policy import ManualOverrides
from godwit.control.windows import (
    ExchangeCosts,
    SplitOrCombine,
    components_for,
    layout_of,
    splitting_of,
)
from godwit.engine.policies import FlowEpoch
from godwit.library.windows.two_phase import ConsolidatePart
from godwit.migration.outcome import ComponentTraffic, EpochOutcome
from godwit.migration.state import ComponentView
from godwit.model import events
from godwit.model.errors import InvalidFlowError
from godwit.model.key_groups import KeyGroupLoad
from godwit.plan.explain import explain
from godwit.plan.grouping import regrouped

if TYPE_CHECKING:
    from godwit.engine.policies import Proposal
    from godwit.plan.compiled import CompiledFlow

COLUMNS = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])
GROUPS = 8
MINUTE = 60_000_000
SETTINGS = gw.control.Splitting(epochs=2, confirm=2)
COSTS = ExchangeCosts(row_ms=0.01, byte_ms=0, lane_ms=1.0)


def flow(consolidate: Any = "measured", *, behind: bool = False, windows: int = 1) -> CompiledFlow:
    """Windows of a minute, and operators in a row behind them if wanted."""
    made = LogicalFlow("flow", GROUPS)
    frame: Any = FakeDataFrame(COLUMNS)
    rows = made.source("rows", frame, event_time="ts", slack="1 second")
    for name in "wvu"[:windows]:
        stream = (
            rows.key_by("k")
            .window(gw.tumbling("1 minute"), consolidate=consolidate, name=name)
            .compute(n=gw.count())
        )
        if behind:
            stream = stream.key_by("k").compute(name=f"{name}_all", n=gw.sum("n"))
        made.sink(f"out_{name}", stream, FakeSink())
    return made.compile(resolver(made))


def consolidates(of: CompiledFlow, name: str = "w") -> ConsolidatePart:
    part = of.operator(f"{name}_windows")
    assert isinstance(part, ConsolidatePart)
    return part


class ObservedSplitting:
    """A policy that observes epochs: 1,000 rows, 100 partials and 10 ms of CPU each."""

    def __init__(self, settings: gw.control.Splitting = SETTINGS, **of: Any) -> None:
        self.flow = flow(**of)
        self.overrides = ManualOverrides(announce=lambda *_, **__: None)
        self.policy = SplitOrCombine(
            self.flow, settings, COSTS, overrides=self.overrides, announce=self.announce
        )
        self.places = gw.migration.even_assignment(GROUPS, ["a", "b"], [1, 1])
        self.turned: frozenset[int] = frozenset()
        self.at = 0
        self.told: list[events.LayoutsCompared] = []

    @property
    def form(self) -> str | None:
        return layout_of(self.flow, consolidates(self.flow))

    def announce(self, kind: type[events.Event], **values: Any) -> None:
        event = kind(epoch=0, at_s=0.0, **values)
        assert isinstance(event, events.LayoutsCompared)
        self.told.append(event)

    def become(self, proposal: Proposal) -> None:
        self.policy.answered(proposal)
        self.flow = self.flow.with_plan(regrouped(self.flow, proposal.change.components))

    def migrate(self, *key_groups: int, state: bool = False) -> None:
        """Let key groups change executor."""
        to = {g: "b" if self.places.executor(g) == "a" else "a" for g in key_groups}
        self.places = self.places.moved(to)
        if not state:
            self.turned ^= set(key_groups)

    def epoch(
        self, *, state_bytes: int = 0, scale: float = 1.0, seconds: float = 30
    ) -> Proposal | None:
        self.at += round(seconds * 1e6)
        component_views, loads, traffic, streams = {}, {}, {}, {}
        for component in self.flow.components:
            names = [operator.name for operator in component.operators]
            takes = None
            if len(names) == 1 and not names[0].endswith("_windows"):
                takes = self.turned if names[0].endswith("_second") else self.others
            component_views[component.name] = ComponentView(assignment=self.places, takes=takes)
            every = np.arange(GROUPS)
            loads[component.name] = KeyGroupLoad(
                key_groups=every,
                rows=np.full(GROUPS, 1000 // GROUPS),
                keys=every,
                cpu_ms=np.full(GROUPS, 10 / GROUPS),
                state_bytes=np.full(GROUPS, 0 if names[0].endswith("_second") else state_bytes),
            )
            traffic[component.name] = ComponentTraffic(
                key_groups=(0,), rows=(100,), size_bytes=(1000,), crossed_bytes=0, cpu_ms=2.0
            )
            for name in (n for n in names if n.endswith("_windows")):
                streams[name.removesuffix("_windows"), name] = (round(100 * scale), 1000)
        outcome = EpochOutcome(
            epoch=0,
            batch=0,
            rows_in=1000,
            loads=loads,
            traffic=traffic,
            streams=streams,
            watermarks={"rows": self.at},
        )
        self.policy.observe(
            FlowEpoch(outcome=outcome, took_s=0.0, flow=self.flow, component_views=component_views)
        )
        return next(iter(self.policy.propose(0.0)), None)

    @property
    def others(self) -> frozenset[int]:
        return frozenset(range(GROUPS)) - self.turned

    def epochs(self, count: int, *migrating: int, **given: Any) -> Proposal | None:
        """Let epochs pass, in every second of which some key groups migrate."""
        wanted = None
        for at in range(count):
            if at % 2 and migrating:
                self.migrate(*migrating, state=self.form == "combined")
            wanted = self.epoch(**given)
        return wanted


def test_calm_windows_stay_in_one_component_and_that_is_told_once_a_period() -> None:
    story = ObservedSplitting()
    assert story.epochs(12) is None
    assert [(told.layout, told.cheaper) for told in story.told] == [("combined", "combined")] * 5
    assert story.told[0].epochs == 3  # the first one says since when event time counts


def test_windows_whose_key_groups_migrate_with_much_state_are_split_once_periods_agree() -> None:
    story = ObservedSplitting()
    assert story.epochs(4, 0, 1, 2, state_bytes=2**20) is None
    proposal = story.epochs(2, 0, 1, 2, state_bytes=2**20)
    assert proposal is not None
    assert proposal.change.components == {
        "w": ("w",),
        "w_second": ("w_second",),
        "w_windows": ("w_windows",),
    }
    assert proposal.gain == math.inf
    told = story.told[-1]
    assert told.numbers["migrated_key_groups"] == 3
    assert told.numbers["move_latency_ms"] == pytest.approx(11)
    assert told.numbers["move_ms"] == pytest.approx(81)
    assert told.combined_ms == pytest.approx(20 + 3 * 81)
    assert told.numbers["stage_ms"] == 2 * 2 * COSTS.lane_ms
    partial_ms = 200 * COSTS.row_ms / (told.numbers["partial_windows"] * GROUPS)
    assert told.split_ms == pytest.approx(20 + 200 * COSTS.row_ms + 4 + 3 * (partial_ms + 40.5))
    assert told.describe().startswith("w is combined and split would be better: over 2 epochs")
    assert "in which 3 key groups migrated" in proposal.reason


def test_windows_that_were_split_are_combined_when_they_are_calm_and_then_left_so() -> None:
    story = ObservedSplitting()
    proposal = story.epochs(6, 0, 1, 2, state_bytes=2**20)
    assert proposal is not None
    story.become(proposal)
    assert story.form == "split"
    assert story.epochs(6, 0, 1, 2, state_bytes=2**20) is None
    assert story.told[-1].numbers["migrated_with_state"] == 0
    back = story.epochs(6, state_bytes=2**20)
    assert back is not None
    assert back.change.components == {"w": ("w", "w_second", "w_windows")}
    saved_ms = (story.told[-1].split_ms - story.told[-1].combined_ms) / 2
    assert back.gain == pytest.approx(500 * saved_ms / (80 / 2**20))
    story.become(back)
    assert story.epochs(12, state_bytes=2**20) is None


def test_what_lanes_measured_of_the_exchange_is_remembered() -> None:
    story = ObservedSplitting()
    story.flow = story.flow.with_plan(
        regrouped(story.flow, components_for(story.flow, consolidates(story.flow), "split"))
    )
    story.epochs(3)
    per_row = (COSTS.row_ms + 2.0 / 100) / 2
    told = story.told[-1]
    assert told.numbers["partial_ms"] * GROUPS * told.numbers["partial_windows"] == pytest.approx(
        300 * per_row
    )


def test_a_proposal_stands_until_it_is_answered() -> None:
    story = ObservedSplitting()
    proposal = story.epochs(6, 0, 1, 2, state_bytes=2**20)
    assert proposal is not None
    again = story.epoch(seconds=1)  # nobody could do it
    assert again is not None
    assert again.change == proposal.change
    story.policy.answered(proposal)
    assert story.epoch(seconds=1) is None


def test_a_proposal_is_about_the_components_that_there_are_when_it_is_made() -> None:
    story = ObservedSplitting(behind=True)
    part = consolidates(story.flow)
    story.flow = story.flow.with_plan(
        regrouped(story.flow, components_for(story.flow, part, "split"))
    )
    proposal = story.epochs(6)
    assert proposal is not None
    assert proposal.change.components == {"w": ("w", "w_second", "w_windows")}
    fused = regrouped(story.flow, {"row": ("w_windows", "w_all")})
    story.flow = story.flow.with_plan(fused)
    proposal = story.epoch(seconds=1)
    assert proposal is not None
    assert proposal.change.components == {"w": ("w", "w_second", "w_windows", "w_all")}


def test_a_bound_on_latency_splits_what_costs_less_combined() -> None:
    free, bound = (
        ObservedSplitting(),
        ObservedSplitting(gw.control.Splitting(max_latency="5 milliseconds", epochs=2)),
    )
    for story in (free, bound):
        for _ in range(3):
            story.epochs(2, 0, state_bytes=2**18, scale=100)
    proposal = bound.epoch(seconds=1)
    assert free.epoch(seconds=1) is None
    assert proposal is None  # 3.5 ms are within it
    proposal = bound.epochs(6, 0, 1, state_bytes=2**18, scale=100)
    assert proposal is not None
    assert "migrations take 0 ms split and 7 ms combined, of 5 ms allowed" in proposal.reason
    assert bound.told[-1].split_ms > bound.told[-1].combined_ms
    assert free.epochs(6, 0, 1, state_bytes=2**18, scale=100) is None


def test_where_neither_form_keeps_to_the_bound_the_quicker_one_is_taken_and_that_is_told() -> None:
    story = ObservedSplitting(
        gw.control.Splitting(max_latency="5 milliseconds", epochs=2, confirm=1)
    )
    proposal = story.epochs(4, 0, 1, state_bytes=2**20)
    assert proposal is not None
    story.become(proposal)
    story.epochs(3)
    for g in (3, 4):
        story.migrate(g, state=True)  # its other slot was not free
        story.migrate(5, 6)
        story.epoch(state_bytes=2**20)
    told = story.told[-1]
    assert (told.layout, told.cheaper, told.within) == ("split", "split", False)
    assert told.describe().endswith(
        "migrations take 22 ms split, 66 ms combined of 5 ms allowed, which neither keeps to: "
        "split comes closest"
    )


def test_an_aggregate_that_always_takes_its_state_along_is_not_split_again() -> None:
    story = ObservedSplitting()
    proposal = story.epochs(6, 0, 1, 2, state_bytes=2**20)
    assert proposal is not None
    story.become(proposal)
    for _ in range(6):
        story.migrate(0, 1, 2, state=True)  # someone asks for live migrations
        back = story.epoch(state_bytes=2**20)
    assert back is not None
    story.become(back)
    assert story.epochs(12, 0, 1, 2, state_bytes=2**20) is None


def test_key_groups_of_an_executor_that_is_gone_have_not_migrated() -> None:
    story = ObservedSplitting()
    story.epochs(3)
    story.places = gw.migration.even_assignment(GROUPS, ["a"], [1])
    story.epochs(2)
    assert story.told[-1].numbers["migrated_key_groups"] == 0


def test_operators_in_a_row_behind_the_windows_come_along() -> None:
    fused = flow(behind=True)
    assert layout_of(fused, consolidates(fused)) == "combined"
    assert by_attributes(fused) == {}
    apart = fused.with_plan(
        regrouped(fused, {"w": ["w"], "w_second": ["w_second"], "row": ["w_windows", "w_all"]})
    )
    part = consolidates(apart)
    assert layout_of(apart, part) == "split"
    together = components_for(apart, part, "combined")
    assert together == {"w": ("w", "w_second", "w_windows", "w_all")}
    combined = apart.with_plan(regrouped(apart, together))
    assert layout_of(combined, part) == "combined"
    again = components_for(combined, part, "split")
    assert again == {
        "w": ("w",),
        "w_second": ("w_second",),
        "w_windows+w_all": ("w_windows", "w_all"),
    }
    assert layout_of(combined.with_plan(regrouped(combined, again)), part) == "split"


def test_components_that_somebody_has_made_are_in_no_form() -> None:
    two = flow(windows=2)
    part = consolidates(two)
    with_others = two.with_plan(
        regrouped(two, {"all": ["w", "w_second", "w_windows", "v", "v_second", "v_windows"]})
    )
    assert layout_of(with_others, part) is None
    beside = two.with_plan(
        regrouped(
            two,
            {
                "x": ["w_windows", "v"],
                **{name: [name] for name in ("w", "w_second", "v_second", "v_windows")},
            },
        )
    )
    assert layout_of(beside, part) is None


def test_what_somebody_has_named_is_left_alone() -> None:
    story = ObservedSplitting()
    story.overrides.record(["components of w_second"], 0.0)
    assert story.epochs(12, 0, 1, 2, state_bytes=2**20) is None
    assert story.told == []


def test_of_several_aggregates_the_most_beneficial_change_comes_first() -> None:
    story = ObservedSplitting(windows=2)
    proposal = story.epochs(6, 0, 1, 2, state_bytes=2**20)
    assert proposal is not None
    first = "v" if "v" in proposal.change.components else "w"
    story.become(proposal)
    second = story.epoch(state_bytes=2**20, seconds=1)
    assert second is not None
    assert ({"w", "v"} - {first}) <= second.change.components.keys()


def test_settings_without_anything_to_decide_are_refused() -> None:
    assert splitting_of(flow("together"), None) is None
    assert splitting_of(flow("measured"), None) == gw.control.Splitting()
    assert splitting_of(flow("measured"), SETTINGS) is SETTINGS
    with pytest.raises(InvalidFlowError, match="has no effect") as caught:
        splitting_of(flow("together"), SETTINGS)
    assert 'consolidate="measured"' in caught.value.remedy
    with pytest.raises(InvalidFlowError, match="'w': consolidate='apart', which is not changed"):
        splitting_of(flow("apart"), SETTINGS)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_latency": "-1 second"},
        {"max_latency": dt.timedelta(seconds=-1)},
        {"max_latency": 500},
        {"max_latency": "soon"},
        {"period": "0 seconds"},
        {"period": "1 month"},
        {"epochs": 0},
        {"confirm": 1.5},
        {"payback_epochs": True},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidFlowError, match=r"of gw\.control\.Splitting") as caught:
        gw.control.Splitting(**settings)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"consolidate": "auto"}, "Give 'together'"),
        ({"consolidate": "mesured"}, "Did you mean 'measured'"),
        ({"consolidate": "measured", "output": "update"}, "come out once"),
        ({"consolidate": None}, "Give 'together'"),
    ],
)
def test_a_form_that_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    made = LogicalFlow("flow", GROUPS)
    frame: Any = FakeDataFrame(COLUMNS)
    keyed = made.source("rows", frame, event_time="ts", slack="1 second").key_by("k")
    with pytest.raises(InvalidFlowError) as caught:
        keyed.window(gw.tumbling("1 minute"), **options)
    assert says in caught.value.remedy


def test_a_flow_says_that_costs_decide() -> None:
    text = explain(flow())
    assert "Every operator is a component of its own" in text
    assert "consolidate w, with its partials or separate from them, by measured cost" in text
