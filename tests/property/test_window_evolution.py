"""Windows and timers of flows that change between runs on one checkpoint, against plain Python."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.windows import BEGINNING, windows_of
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver
from tests.support.manual_run import ManualRun
from tests.support.rounds import rounds
from tests.support.window_flows import ROWS, batch_of

from godwit.api.declarations import OnTimer
from godwit.api.flow import LogicalFlow
from godwit.library import aggregates as gw
from godwit.operators.window_specs import hopping, tumbling

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

S = 1_000_000
KINDS = ((20 * S, 10 * S), (30 * S, 30 * S))
AGGREGATES: dict[str, Any] = {
    "n": gw.count,
    "total": lambda: gw.sum("v"),
    "high": lambda: gw.max("v"),
    "low": lambda: gw.min("v"),
}
EMPTY = {"n": 0, "total": None, "high": None, "low": None}
OF: dict[str, Any] = {"n": len, "total": sum, "high": max, "low": min}

Row = tuple[str, int, int]


def note(key: tuple[str], rows: Any, seen: dict[str, int]) -> None:
    """Ask to be called ten seconds after each row."""
    from datetime import timedelta

    for row in rows:
        rows.timers.set(row.ts + timedelta(seconds=10))
    seen["n"] = seen.get("n", 0) + len(rows)


def ring(key: tuple[str], timer: Any, seen: dict[str, int]) -> Iterable[tuple[Any, ...]]:
    yield key[0], timer.time, seen["n"]


class Run:
    """One run of a flow with some results."""

    def __init__(self, root: Path, results: Sequence[str]) -> None:
        flow = LogicalFlow("flow", 8)
        frame: Any = FakeDataFrame(ROWS)
        keyed = flow.source("rows", frame, event_time="ts").key_by("k")
        kinds = [hopping("20 seconds", every="10 seconds"), tumbling("30 seconds")]
        if len(results) % 2:  # in which order they are named makes no difference
            kinds.reverse()
        windows = keyed.window(*kinds, name="windows").compute(
            **{name: AGGREGATES[name]() for name in results}
        )
        rings = keyed.process(
            note,
            name="rings",
            state=dict,
            timers=OnTimer(ring, clock="event"),
            output="k string, at timestamp, n long",
        )
        flow.sink("windows", windows, FakeSink())
        flow.sink("rings", rings, FakeSink())
        compiled = flow.compile(resolver(flow))
        self.lanes = ManualRun(compiled, root, {"a": 2}, retain_epochs=3)
        self.times = self.lanes.epochs.times
        self.inputs = {
            index: list(compiled.inputs_of(operator.name)[0].columns)
            for index, operator in enumerate(compiled.operators)
        }

    def epoch(self, rows: Iterable[Row]) -> dict[str, list[tuple[Any, ...]]]:
        """Run an epoch; return what came out, by sink, sorted."""
        batch = batch_of(rows)
        self.lanes.play({i: [batch.select(c)] for i, c in self.inputs.items()})
        sinks = ("windows", "rings")
        return {sink: sorted(self.lanes.output(sink), key=repr) for sink in sinks}


@settings(derandomize=True, deadline=None, max_examples=rounds(2, 6), database=None)
@given(seed=st.integers(0, 10**9))
def test_windows_and_timers_go_on_where_the_flow_before_left_them(seed: int) -> None:
    random = Random(seed)
    open_: dict[tuple[str, int, int], dict[str, list[int]]] = {}
    timers: dict[str, set[int]] = defaultdict(set)
    seen: dict[str, int] = defaultdict(int)
    watermark = newest = closed = BEGINNING
    number = 0
    with TemporaryDirectory() as directory:
        for _ in range(3):
            results = random.sample(list(AGGREGATES), random.randint(1, len(AGGREGATES)))
            for of in open_.values():
                for gone in set(of) - set(results):
                    del of[gone]
            run = Run(Path(directory), results)
            for _ in range(random.randint(1, 3)):
                for sharing in run.times.sharing.values():
                    sharing.duplicated = random.random() < 0.5
                rows = []
                for _ in range(random.randint(0, 15)):
                    number += 1
                    moment = (number + random.randint(0, 5)) * S
                    rows.append((f"k{random.randint(0, 3)}", moment, random.randint(0, 99)))
                due = watermark
                expected: list[tuple[Any, ...]] = []
                for key in sorted(timers):  # those of before, then those that rows set
                    for at in sorted(at for at in timers[key] if at < due):
                        expected.append((key, at, seen[key]))
                        timers[key].discard(at)
                for key, moment, value in rows:
                    for kind in KINDS:
                        for span in windows_of(moment, *kind):
                            if span[1] > closed:
                                of = open_.setdefault((key, *span), {})
                                for result in results:
                                    of.setdefault(result, []).append(value)
                    timers[key].add(moment + 10 * S)
                    seen[key] += 1
                    newest = max(newest, moment)
                for key in sorted(timers):
                    for at in sorted(at for at in timers[key] if at < due):
                        expected.append((key, at, seen[key]))
                        timers[key].discard(at)
                closed = max(closed, due)
                over = sorted(window for window in open_ if window[2] <= closed)
                windows = [
                    (*w, *(OF[r](vs) if (vs := open_[w].get(r)) else EMPTY[r] for r in results))
                    for w in over
                ]
                for window in over:
                    del open_[window]
                found = run.epoch(rows)
                assert found["rings"] == sorted(expected, key=repr)
                assert found["windows"] == sorted(windows, key=repr)
                watermark = max(watermark, newest)
