"""Drawn flows over event time under the real coordinator, and what becomes of their key groups.

`tests.streams` draws flows, and says in plain Python what they give; here they run as they do on a
cluster, in one process, while key groups migrate, executors die, the driver dies and components are
regrouped.  Which windows close in which epoch is taken from the product, since it waits for key
groups that are suspended; what they hold, and which rows are late, is not.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.contract.flow import NUM_KEY_GROUPS
from tests.contract.scenario import Warming
from tests.contract.windows_apart import History, WindowsApart
from tests.streams import reference as ref
from tests.streams.drawing import Drawn, draw
from tests.streams.playing import differences, plain
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

from godwit.api.flow import LogicalFlow
from godwit.engine.event_time import event_times_of
from godwit.local import lane_inputs
from godwit.migration import Strategy
from godwit.model.errors import InvalidPlanError, MigrationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from godwit.engine.lane.messages import LaneReport
    from godwit.plan.compiled import CompiledFlow
    from godwit.time.event_time import EpochTime

__all__ = ["play"]

_MOST_EPOCHS_AT_THE_END = 30
Rows = dict[str, list[dict[str, Any]]]


def play(seed: int, directory: Path, *, epochs: int = 8) -> list[str]:
    """Play a history of a drawn flow; say what differs, or nothing.

    A window that may come out again does so more rarely where its rows wait: of such windows the
    last result counts, and flows that have something behind them are left alone.
    """
    drawn = draw(seed, most_operators=2)
    used = _operators(drawn.node)
    drawn.operators = [one for one in drawn.operators if one.name in used]
    if any(getattr(one, "grows", False) and one is not drawn.node for one in drawn.operators):
        return []
    history = _DrawnHistory(run=_DrawnRun(drawn, directory), seed=seed)
    for _ in range(epochs):
        history.step()
    history.end()
    found = history.differences()
    return [*found, *drawn.text] if found else []


def _operators(node: ref.Node) -> set[str]:
    if isinstance(node, ref.Operator):
        return {node.name}.union(*map(_operators, node.feeds()))
    return set().union(*map(_operators, node.streams)) if isinstance(node, ref.Union) else set()


class _DrawnRun(WindowsApart):
    """The real coordinator, lanes, stores and checkpoint of a drawn flow."""

    def __init__(self, drawn: Drawn, directory: Path) -> None:
        self.drawn = drawn
        super().__init__(directory)
        self.taken: list[Rows] = []
        self.left_out: Counter[str] = Counter()
        self.told: list[tuple[int | None, int, dict[str, EpochTime]]] = []

    def compiled(self) -> CompiledFlow:
        """Compile the flow; every run has its columns and results in another order and zone."""
        self.drawn.reorder()
        flow = LogicalFlow("contract", num_key_groups=NUM_KEY_GROUPS)
        frame: Any = FakeDataFrame(pa.schema(self.drawn.types))
        given = self.drawn.options
        streams = {name: flow.source(name, frame, **given[name]) for name in self.drawn.sources}
        flow.sink("out", self.drawn.apply(streams), FakeSink())
        return flow.compile(resolver(flow))

    def row_of(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a row in the order of the reference's columns, whatever order it came in."""
        return tuple(values[column] for column in self.drawn.node.columns)

    def send_rows(self, rows: Rows, misfortune: Any, loses: str | None) -> None:
        """Run an epoch of rows of several sources, of two partitions each."""
        schema = pa.schema(self.drawn.types)
        in_order = {name: [*of[::2], *of[1::2]] for name, of in rows.items()}
        self.taken.append(in_order)
        tables = {
            name: pa.Table.from_pylist(of, schema=schema) for name, of in in_order.items() if of
        }
        self.offer(tables, misfortune, loses)

    def rows_of_batch(self, number: int) -> Mapping[Any, list[pa.RecordBatch]]:
        return lane_inputs(self.flow, self.batches[number], partitions=2)

    def noted(
        self, number: int | None, told: Mapping[str, EpochTime], reports: Sequence[LaneReport]
    ) -> None:
        self.told.append((number, self.clock_us, dict(told)))
        for name, found in event_times_of(reports).items():
            self.left_out[name] += found.late + found.ahead + found.untimed

    def end_input(self) -> None:
        self.settle()
        self.event_times.end_input()
        for _ in range(_MOST_EPOCHS_AT_THE_END):
            if not self.is_due:
                return
            self.run_epoch(None)

    @property
    def is_due(self) -> bool:
        """True if there is work without input."""
        return self.event_times.is_due(
            clock_us=self.clock_us, silence_us=self.clock_us, components=self.view.components
        )


class _DrawnHistory(History):
    """Rows, migrations and losses of a drawn flow."""

    run: _DrawnRun
    at = 0.0

    def epoch(self, count: int, misfortune: Any = None, loses: str | None = None) -> None:
        """Send some rows of all sources."""
        drawn = self.run.drawn
        self.at += drawn.rng.choice([0, 1, 3, 6, 12])
        back = drawn.rng.choice([0, 0, 0, 5])  # the clock may jump back
        self.run.clock_us = drawn.base + (int(self.at) + 10 - back) * drawn.unit
        rows = {
            name: drawn.rows(source, self.at - drawn.rng.choice([0, 0, 4]), min(count, 14))
            for name, source in drawn.sources.items()
        }
        self.run.send_rows(rows, misfortune, loses)

    def step(self) -> None:
        """Something happens, and an epoch."""
        drawn, chance = self._random, self._random.random()
        if chance < 0.35:
            self._migrate()
        elif chance < 0.5:
            names = [operator.name for operator in self.run.flow.operators]
            apart = {name: (name,) for name in names}
            with suppress(InvalidPlanError):  # they are not keyed alike
                self.run.regroup(drawn.choice([{"all": tuple(names)}, apart]))
        elif chance < 0.6:
            self.kill()
        elif chance < 0.7:
            goes: Any = drawn.choice(["works", "fails", "lost", "held"])
            self.run.warming(Warming(goes=goes))
        elif chance < 0.8:
            self.restart()
        if drawn.random() < 0.25:  # as where a lane runs elsewhere for an epoch
            self.run.forget_store(drawn.choice(sorted(self.run.view.executors)))
        misfortune: Any = drawn.choice([None] * 5 + ["aborted", "planned", "staged", "committed"])
        self.epoch(14, misfortune)
        if misfortune not in (None, "aborted"):
            self.restart()

    def _migrate(self) -> None:
        """Ask for a migration of any kind, which may be refused."""
        components = self.run.view.components
        name = self._random.choice([*components])
        strategy, here = self._random.choice([*Strategy]), sorted(self.run.view.executors)
        some = self._random.sample(range(NUM_KEY_GROUPS), 8)
        with suppress(MigrationError):  # it cannot migrate so, or is about to be another one
            self.run.send(name, {g: self._random.choice(here) for g in some}, strategy)

    def end(self) -> None:
        """Let it come to rest, and everything close."""
        self.run.warming(Warming(goes="works"))
        self.run.end_input()

    def differences(self) -> list[str]:
        """Compare with the reference, which is told what closes."""
        drawn, world, run = self.run.drawn, ref.InputClock(), self.run
        expected: list[tuple[Any, ...]] = []
        left_out: Counter[str] = Counter()
        for number, clock_us, told in run.told:
            world.clock = clock_us
            for name, source in drawn.sources.items():
                source.arrived = [] if number is None else run.taken[number][name]
            for operator in drawn.operators:
                operator.told = told[operator.name].until
            expected += [
                tuple(row[c] for c in drawn.node.columns) for row in drawn.node.epoch(world)
            ]
            for one in drawn.operators:
                left_out[one.name] += one.late + one.ahead + one.untimed
            drawn.node.after(world)
        found = [tuple(map(_micros, r)) for rows in run.rows_out["out"].values() for r in rows]
        same = +run.left_out == +left_out
        said = [] if same else [f"left out {+run.left_out}, not {+left_out}"]
        said += ["something is due for ever"] if run.is_due else []
        if getattr(drawn.node, "grows", False):
            expected, found = self._last_of_windows(expected), self._last_of_windows(found)
        return [*said, *differences(expected, found)]

    def _last_of_windows(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the last result of each key and window."""
        node = self.run.drawn.node
        window = [i for i, column in enumerate(node.columns) if column not in node.aggregates]
        return list({tuple(plain(row)[i] for i in window): row for row in rows}.values())


def _micros(value: Any) -> Any:
    if not isinstance(value, dt.datetime):
        return value
    moment = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
    return (moment - dt.datetime.fromtimestamp(0, dt.UTC)) // dt.timedelta(microseconds=1)
