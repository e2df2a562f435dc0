"""Runs a drawn flow both ways, epoch by epoch, through misfortunes, and says where they differ."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from tests.streams import reference as ref
from tests.streams.drawing import Drawn, draw
from tests.support.fake_flow import FakeSink
from tests.support.meeting_flows import Feed, MeetingRun

from godwit import testing
from godwit.api.flow import LogicalFlow
from godwit.migration import LossPolicy, Policy, Strategy
from godwit.model.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["differences", "moment", "plain", "play", "play_by_testing"]


def play(seed: int, *, epochs: int = 8) -> list[str]:
    """Play a history; say what differs, or nothing."""
    drawn = draw(seed)
    with tempfile.TemporaryDirectory() as root:
        return _Play(drawn, Path(root)).run(epochs)


class _Play:
    def __init__(self, drawn: Drawn, root: Path) -> None:
        self.drawn, self.rng = drawn, drawn.rng
        feeds = {n: Feed(drawn.types, drawn.options[n]) for n in drawn.sources}
        self.run_ = MeetingRun(drawn.apply, root, feeds, executors={"a": 2, "b": 1})
        self.world = ref.InputClock()
        self.numpy = np.random.default_rng(self.rng.randrange(2**32))
        # A window that may come out again does so once for all rows that waited.
        self.may_wait = not any(getattr(operator, "grows", False) for operator in drawn.operators)
        self.owed: list[tuple[Any, ...]] = []
        self.came: list[tuple[Any, ...]] = []
        self.left_out: Counter[tuple[str, str]] = Counter()

    def run(self, epochs: int) -> list[str]:
        drawn, rng, run = self.drawn, self.rng, self.run_
        at = 0.0
        for number in range(epochs):
            at += rng.choice([0, 1, 3, 6, 12])
            clock = drawn.base + int(at + 10) * drawn.unit
            clock -= rng.choice([0, 0, 0, 5]) * drawn.unit  # it may jump back
            self.world.clock = run.run.clock_us = clock
            found = self.epoch(at)
            if found:
                return [f"epoch {number}: {text}" for text in found] + drawn.text
            self.misfortune()
        self.world.ended = True
        run.times.end_input()
        for number in range(4):
            run.recover()
            found = self.epoch(None)
            if found:
                return [f"end {number}: {text}" for text in found] + drawn.text
        if run.waiting:
            return ["rows wait for ever", *drawn.text]
        due = run.times.is_due(
            clock_us=run.run.clock_us,
            silence_us=run.run.clock_us,
            components=run.run.component_views(),
        )
        return ["something is due for ever", *drawn.text] if due else []

    def epoch(self, at: float | None) -> list[str]:
        drawn, run = self.drawn, self.run_
        given: dict[str, list[tuple[Any, ...]]] = {}
        for name, source in drawn.sources.items():
            rows = []
            if at is not None and self.rng.random() < 0.8:
                rows = drawn.rows(source, at - self.rng.choice([0, 0, 4]), 14)
            source.arrived = [*rows[::2], *rows[1::2]]
            if rows:
                given[name] = [tuple(row[column] for column in drawn.types) for row in rows]
        node = drawn.node
        self.owed += [tuple(row[c] for c in node.columns) for row in node.epoch(self.world)]
        for operator in drawn.operators:
            for why in ("late", "ahead", "untimed"):
                self.left_out[operator.name, why] += getattr(operator, why)
        node.after(self.world)
        self.came += run.epoch(**given)
        for report in run.reports:
            for done in report.operators:
                for why in ("late", "ahead", "untimed"):
                    self.left_out[done.operator, why] -= getattr(done.arrivals, why)
        return [] if run.waiting else self.compare()

    def compare(self) -> list[str]:
        """Say how what came since the last time that no row waited differs from what was due."""
        said = differences(self.owed, self.came)
        wrong = {of: number for of, number in self.left_out.items() if number}
        if wrong:
            said.append(f"left out, more than were counted: {wrong}")
        self.owed, self.came = [], []
        self.left_out.clear()
        return said

    def misfortune(self) -> None:
        run, rng = self.run_, self.numpy
        run.suffer(rng)
        if not self.may_wait:
            run.recover()
        run.run.suspended = frozenset()
        for sharing in run.times.sharing.values():
            sharing.duplicated = bool(rng.random() < 0.5)
        if rng.random() < 0.2:
            idle = [s for s in self.drawn.sources.values() if s.idle is not None]
            run.restart()
            for source in idle:
                source.heard = None  # how long it had been silent is not known any more


def play_by_testing(
    seed: int,
    *,
    epochs: int = 8,
    cluster: Callable[..., testing.Run] = testing.cluster,
    numbers: Sequence[int] = (8,),
    on_demand: bool = False,
) -> list[str]:
    """Play a history by `godwit.testing`, through migrations, deaths and restarts.

    `cluster`: starts a flow with the options of `godwit.testing.cluster`. `numbers`: of key groups,
    of which each restart has the next. `on_demand`: migrations are so where they would be live.
    """
    tested = _Tested(draw(seed), cluster, numbers)
    tested.on_demand = on_demand
    return tested.run(epochs)


class _Tested:
    """A drawn flow that is played as users play theirs."""

    on_demand = False

    def __init__(
        self, drawn: Drawn, cluster: Callable[..., testing.Run], numbers: Sequence[int]
    ) -> None:
        self.drawn, self.rng, self.world = drawn, drawn.rng, ref.InputClock()
        self.numbers, self.restarts = numbers, 0
        flow = self._flow()
        self.world.clock = drawn.base + 10 * drawn.unit
        self.played = cluster(
            flow,
            executors={"1": 2, "2": 1},
            now=moment(self.world.clock),
            policy=Policy(on_loss=LossPolicy.LOAD),
        )
        self.owed: list[tuple[Any, ...]] = []
        self.came: list[tuple[Any, ...]] = []
        self.names = 2

    def run(self, epochs: int) -> list[str]:
        at = 0.0
        for number in range(epochs):
            step = self.rng.choice([0, 1, 3, 6, 12])
            at += step
            self.world.clock += int(step) * self.drawn.unit
            done = len(self.played.epochs)
            out = self.played.advance(dt.timedelta(microseconds=int(step) * self.drawn.unit))
            self._take(out, len(self.played.epochs) - done)
            self._epoch(at)
            found = differences(self.owed, self.came)
            if found:
                return [f"epoch {number}: {text}" for text in found] + self.drawn.text
            self._misfortune()
        self.world.ended = True
        done = len(self.played.epochs)
        out = self.played.end_input()
        self._take(out, len(self.played.epochs) - done)
        found = differences(self.owed, self.came)
        return [*found, *self.drawn.text] if found else []

    def _epoch(self, at: float) -> None:
        inputs: dict[str, list[tuple[Any, ...]]] = {}
        for name, source in self.drawn.sources.items():
            rows = []
            if self.rng.random() < 0.8:
                rows = self.drawn.rows(source, at - self.rng.choice([0, 0, 4]), 14)
            source.arrived = rows
            if rows:
                inputs[name] = [tuple(row[column] for column in self.drawn.types) for row in rows]
        done = len(self.played.epochs)
        out = self.played.epoch(inputs)
        self._take(out, len(self.played.epochs) - done)

    def _take(self, out: dict[str, pa.Table], epochs: int) -> None:
        """Let the reference run as many epochs as the product did, the first with the rows."""
        node = self.drawn.node
        for _ in range(epochs):
            self.owed += [tuple(row[c] for c in node.columns) for row in node.epoch(self.world)]
            node.after(self.world)
            for source in self.drawn.sources.values():
                source.arrived = []
        if "out" in out:
            columns = [
                (c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist()
                for c in out["out"].columns
            ]
            self.came += zip(*columns, strict=True)

    @property
    def groups(self) -> int:
        """Number of key groups now."""
        return self.numbers[self.restarts % len(self.numbers)]

    def _flow(self) -> LogicalFlow:
        drawn, flow = self.drawn, LogicalFlow("flow", self.groups)
        frame = testing.stream(pa.schema(drawn.types))
        streams = {name: flow.source(name, frame, **drawn.options[name]) for name in drawn.sources}
        flow.sink("out", drawn.apply(streams), FakeSink())
        return flow

    def _misfortune(self) -> None:
        chance, played = self.rng.random(), self.played
        if chance < 0.3:
            component = self.rng.choice([*played.placement.assignments])
            here, some_of = [*played.executors], range(self.groups)
            several = self.rng.sample(some_of, min(4, self.groups))
            some = {g: self.rng.choice(here) for g in several}
            strategy = Strategy(self.rng.choice(["live", "disruptive", "stop_the_world"]))
            if self.on_demand and strategy is Strategy.LIVE:
                strategy = Strategy.ON_DEMAND
            done = len(played.epochs)
            with suppress(MigrationError):  # windows in two parts migrate otherwise
                played.migrate(some, component=component, strategy=strategy)
            self._take({}, len(played.epochs) - done)
        elif chance < 0.5:
            self.names += 1
            played.add(str(self.names), lanes=self.rng.choice([1, 2]))
            played.kill(self.rng.choice([*played.executors]))
        elif chance < 0.6 or (len(self.numbers) > 1 and chance < 0.9):
            done = len(played.epochs)
            self.restarts += 1
            if len(self.numbers) > 1:
                out = played.restart(self._flow(), repartition=True)
            else:
                out = played.restart()
            for source in self.drawn.sources.values():
                source.heard = self.world.clock  # a start counts silence anew, from its own clock
            self._take(out, len(played.epochs) - done)


def moment(micros: int) -> dt.datetime:
    """Return a moment of Unix time."""
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=micros)


def differences(expected: list[tuple[Any, ...]], found: list[tuple[Any, ...]]) -> list[str]:
    """Say which rows there should be and are not, and the other way round, or nothing."""
    mine, theirs = (
        sorted(map(plain, expected), key=_order),
        sorted(map(plain, found), key=_order),
    )
    if _same(mine, theirs):
        return []
    only = [row for row in mine if row not in theirs]
    more = [row for row in theirs if row not in mine]
    return [f"wanted {only[:6]}, came {more[:6]} of {len(mine)} and {len(theirs)}"]


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row's values so that equal ones are equal to Python."""
    return tuple(_value(value) for value in row)


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(v) for v in value)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, decimal.Decimal):
        return decimal.Decimal(value).normalize()
    return value


def _order(row: tuple[Any, ...]) -> str:
    return repr(tuple(f"{v:.4g}" if isinstance(v, float) else v for v in row))


def _same(mine: list[Any], theirs: list[Any]) -> bool:
    if len(mine) != len(theirs):
        return False
    for one, other in zip(mine, theirs, strict=True):
        for a, b in zip(one, other, strict=True):
            if isinstance(a, float) and isinstance(b, float):
                if not math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9):
                    return False
            elif a != b:
                return False
    return True
