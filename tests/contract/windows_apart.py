"""Windows that are consolidated apart, in one process, and what becomes of their key groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.contract.flow import NUM_KEY_GROUPS
from tests.contract.one_process import OneProcess
from tests.contract.scenario import Policy, Warming
from tests.oracles.windows import windows_of
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

from godwit.api.flow import LogicalFlow
from godwit.engine.settings import Lanes
from godwit.library import aggregates as gw
from godwit.migration import Bounds
from godwit.migration.placement import with_newcomers
from godwit.operators.window_specs import hopping, tumbling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from godwit.migration import Strategy
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.state import ComponentView
    from godwit.model.assignment import Assignment
    from godwit.plan.compiled import CompiledFlow

__all__ = ["KINDS", "History", "S", "WindowsApart"]

S = 1_000_000
KINDS = ((20 * S, 10 * S), (30 * S, 30 * S))
PANE = 10 * S
SLACK = 15
Row = tuple[str, int, int]


class WindowsApart(OneProcess):
    """Real coordinator, lanes, stores and checkpoint of one windowed aggregate."""

    columns = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])

    def __init__(self, directory: Path, **options: Any) -> None:
        self._options = options
        super().__init__(
            directory,
            deep=False,
            policy=Policy(patience=8),
            settings=Lanes(inline_bytes=512),
        )
        self.outcomes: list[EpochOutcome] = []

    def compiled(self) -> CompiledFlow:
        """Compile the flow."""
        flow = LogicalFlow("contract", num_key_groups=NUM_KEY_GROUPS)
        frame: Any = FakeDataFrame(self.columns)
        keyed = flow.source("rows", frame, event_time="ts", slack=f"{SLACK} seconds").key_by("k")
        windows = keyed.window(
            hopping("20 seconds", every="10 seconds"),
            tumbling("30 seconds"),
            **{"name": "w", "consolidate": "apart", **self._options},
        )
        results = {"n": gw.count(), "v": gw.sum("v"), "first": gw.first("v"), "last": gw.last("v")}
        if self._options.get("share"):
            del results["first"], results["last"]
        flow.sink("out", windows.compute(**results), FakeSink())
        return flow.compile(resolver(flow))

    def take(self, rows: pa.RecordBatch) -> None:
        """Run an epoch of some rows."""
        self.offer(pa.Table.from_batches([rows]))

    def take_over(self, former: WindowsApart) -> None:
        """Continue from what another flow took in and gave out."""
        self.batches, self.rows_out = former.batches, former.rows_out

    def committed(
        self, outcome: EpochOutcome, component_views: Mapping[str, ComponentView]
    ) -> None:
        """Keep what an epoch did."""
        self.outcomes.append(outcome)

    def moved(self, component: str, moves: Mapping[int, str]) -> Assignment:
        """Give an assignment with some key groups elsewhere."""
        current = self.view.components[component].assignment
        return with_newcomers(current, dict(self.view.executors)).moved(moves)

    def send(
        self,
        component: str,
        moves: Mapping[int, str],
        strategy: Strategy,
        bounds: Bounds | None = None,
    ) -> str:
        """Ask for a migration."""
        return self.migrate(component, self.moved(component, moves), strategy, bounds or Bounds())

    def end_input(self) -> None:
        """Close all windows."""
        self.settle()
        self.event_times.end_input()
        for _ in range(3):
            self.run_epoch(None)

    @property
    def windows(self) -> list[tuple[Any, ...]]:
        """All windows that came out, moments as microseconds."""
        rows: list[tuple[Any, ...]] = [
            row for of_epoch in self.rows_out["out"].values() for row in of_epoch
        ]
        return sorted((k, _micros(start), _micros(end), *rest) for k, start, end, *rest in rows)


def _micros(moment: datetime) -> int:
    return round(moment.timestamp() * S)


def expected(rows: Sequence[Row], *, ordered: bool = True) -> list[tuple[Any, ...]]:
    """Windows of all rows, by plain Python; within a pane in order of arrival, else of time."""
    held: dict[tuple[str, int, int], list[int]] = {}
    for key, moment, value in sorted(rows, key=lambda row: row[1] // PANE):
        for span in {s for kind in KINDS for s in windows_of(moment, *kind)}:
            held.setdefault((key, *span), []).append(value)
    return sorted(
        (*at, len(vs), sum(vs), *((vs[0], vs[-1]) if ordered else ())) for at, vs in held.items()
    )


@dataclass
class History:
    """A stream whose rows are drawn from a seed, and the executors that it runs on."""

    run: WindowsApart
    seed: int
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self._executors = {"a": 2, "b": 1, "c": 1}
        self._names = 3
        self._now = 0
        self.run.start(self._executors)

    def epoch(self, count: int, misfortune: Any = None, loses: str | None = None) -> None:
        """Send some rows, none of which is late."""
        made: list[Any] = []
        for _ in range(count):
            self._now += self._random.randrange(0, S)
            moment = self._now - self._random.randrange(0, SLACK * S - S)
            made.append((f"k{self._random.randrange(12)}", moment, len(self.rows) + len(made)))
        self.rows += made
        self.run.epoch(made, misfortune, loses)

    def kill(self) -> None:
        """An executor dies, and another one comes."""
        gone = self._random.choice(sorted(self._executors))
        del self._executors[gone]
        self._executors[chr(ord("a") + self._names)] = self._random.randint(1, 2)
        self._names += 1
        self.run.see(self._executors)

    def restart(self) -> None:
        """Another run continues, on the executors that there are."""
        self.run.start(self._executors)

    def end(self) -> None:
        """Let it come to rest, and all windows close."""
        self.run.warming(Warming(goes="works"))
        self.epoch(5)
        self.run.end_input()
