"""A lane that runs where its state is not, for one epoch, costs no row and passes no duplicate.

Rows wait for such state, unless event time passes what they would meet in the same epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.contract.flow import NUM_KEY_GROUPS
from tests.contract.one_process import OneProcess
from tests.contract.scenario import Policy, Warming
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.checkpoint.records import ComponentPlan, PhysicalPlan
from godwit.operators.window_specs import tumbling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from godwit.api.streams import Stream
    from godwit.plan.compiled import CompiledFlow

S = 1_000_000
KEYS = [f"k{i}" for i in range(20)]


class Timed(OneProcess):
    """Real coordinator, instructor, lanes, stores and checkpoint of one flow over event time."""

    columns = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])

    def __init__(
        self,
        directory: Path,
        build: Callable[[Stream], Stream],
        *,
        together: bool = False,
        executors: Mapping[str, int] = {"a": 2},
    ) -> None:
        self._build = build
        super().__init__(directory, deep=False, policy=Policy())
        if together:
            names = tuple(operator.name for operator in self.compiled().operators)
            self._plan = PhysicalPlan(components=(ComponentPlan(name="one", operators=names),))
        self.start(dict(executors))

    def compiled(self) -> CompiledFlow:
        """Compile the flow."""
        flow = LogicalFlow("contract", num_key_groups=NUM_KEY_GROUPS)
        frame: Any = FakeDataFrame(self.columns)
        stream = flow.source("rows", frame, event_time="ts", max_ahead="100 days")
        flow.sink("out", self._build(stream), FakeSink())
        return flow.compile(resolver(flow))

    def rows(self, *moments: int, keys: list[str] = KEYS) -> None:
        """Run an epoch with a row of every key at each moment, in seconds."""
        self.epoch([(key, moment * S, moment) for moment in moments for key in keys])

    def quiet_epoch(self) -> None:
        """Run an epoch without rows."""
        self.run_epoch(None)

    def end_input(self) -> None:
        """No row comes any more."""
        self.event_times.end_input()

    @property
    def out(self) -> list[tuple[Any, ...]]:
        """All rows that came out."""
        return sorted((r for rows in self.rows_out["out"].values() for r in rows), key=repr)


def each(key: tuple[str], rows: Any, state: dict[str, int]) -> Any:
    for row in rows:
        state["n"] = state.get("n", 0) + 1
        yield key[0], row.ts, row.v


def pairs(stream: Stream) -> Stream:
    return stream.key_by("k").join(
        stream.key_by("k"), between=("1 second", "10 seconds"), suffix="_later"
    )


def unique(stream: Stream) -> Stream:
    return stream.drop_duplicates("k", within="10 seconds")


@pytest.mark.parametrize(("build", "number"), [(pairs, len(KEYS)), (unique, len(KEYS) + 1)])
def test_what_a_row_meets_is_not_gone_when_the_row_goes_on(
    tmp_path: Path, build: Callable[[Stream], Stream], number: int
) -> None:
    run = Timed(tmp_path, build)
    run.rows(0)
    run.rows(1000, keys=KEYS[:1])  # the watermark is past what the rows at 0 can meet
    run.forget_store("a")
    run.rows(5)
    run.settle()
    assert len(run.out) == number


def test_a_window_holds_the_rows_of_a_function_whose_state_was_not_there(tmp_path: Path) -> None:
    def windows_over_function(stream: Stream) -> Stream:
        rows = stream.key_by("k").process(
            each, state=dict, output="k string, ts timestamp, v long", name="each"
        )
        return rows.key_by("k").window(tumbling("10 seconds"), name="w").compute(n=gw.count())

    run = Timed(tmp_path, windows_over_function, together=True)
    assert len(run.view.components) == 1
    run.rows(0)
    run.rows(1000, keys=KEYS[:1])
    run.forget_store("a")
    run.rows(5)
    run.settle()
    assert [row[-1] for row in run.out] == [2] * len(KEYS)


def windows(stream: Stream) -> Stream:
    return stream.key_by("k").window(tumbling("10 seconds")).compute(n=gw.count())


def test_windows_are_pending_while_their_key_groups_are_suspended(tmp_path: Path) -> None:
    run = Timed(tmp_path, windows, executors={"a": 1, "b": 1})
    for _ in range(12):  # more than a copy may lack
        run.rows(0)
    run.warming(Warming(goes="held"))
    run.see({"a": 1})  # after the last row
    run.end_input()
    assert not run.run.epochs.is_due(run.view)
    assert run.run.epochs.is_pending(run.view)
    run.warming(Warming(goes="works"))
    run.settle()
    assert run.run.epochs.is_due(run.view)
    run.quiet_epoch()
    assert not run.run.epochs.is_pending(run.view)
    assert len(run.out) == len(KEYS)


def test_windows_are_pending_while_epochs_are_held(tmp_path: Path) -> None:
    run = Timed(tmp_path, windows, executors={"a": 1, "b": 1})
    run.rows(0)
    run.see({})  # nobody is there to run an epoch
    run.end_input()
    assert run.view.holds
    assert not run.run.epochs.is_due(run.view)
    assert run.run.epochs.is_pending(run.view)
    run.see({"c": 2})
    run.settle()
    run.quiet_epoch()
    assert not run.run.epochs.is_pending(run.view)
    assert len(run.out) == len(KEYS)
