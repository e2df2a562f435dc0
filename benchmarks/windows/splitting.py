"""Windows split against combined, and which of the two the cost model takes.

    python -m benchmarks.windows.splitting [--cases N ...]

The real coordinator, lanes, stores and checkpoint in one process without Spark, three executors of
a lane each: CPU milliseconds a period (the window), medians over the second half of a run.  An
epoch has ten seconds of event time and a row of every key; in every period some of 16 key groups
migrate, others than in the one before, by the strategy of their layout: instantly
if split, live if combined.
Both forms run side by side, an epoch at a time in turns.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from benchmarks.options import read_options
from tests.contract.flow import NUM_KEY_GROUPS
from tests.contract.splitting import Decided
from tests.contract.windows_apart import S, WindowsApart
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.control.windows import components_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from godwit.control.planners.splitting import WindowLayout
    from godwit.migration.outcome import EpochOutcome
    from godwit.model.events import LayoutsCompared
    from godwit.plan.compiled import CompiledFlow


FORMS: tuple[WindowLayout, ...] = ("split", "combined")
_SILENCE_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Keys of a partial window, windows that overlap, and key groups that migrate in a period."""

    keys: int
    windows: int
    migrations: int
    length: int = 4  # of a run, in eights of epochs

    @property
    def epochs(self) -> int:
        """Epochs of a run: whole periods."""
        return self.length * -(-8 // self.windows) * self.windows


CASES = (
    *(Case(keys=keys, windows=2, migrations=0) for keys in (1_000, 10_000, 50_000)),
    Case(keys=10_000, windows=6, migrations=0),
    *(Case(keys=keys, windows=2, migrations=4) for keys in (10_000, 50_000)),
    *(Case(keys=keys, windows=6, migrations=8) for keys in (1_000, 10_000)),
)


class Measured(Decided):
    """Windows of one case, whose form nobody changes."""

    def __init__(self, directory: Path, case: Case) -> None:
        self._case = case
        super().__init__(directory, gw.control.Splitting(epochs=case.windows, confirm=1_000_000))

    def compiled(self) -> CompiledFlow:
        """Compile the flow."""
        flow = LogicalFlow("contract", num_key_groups=NUM_KEY_GROUPS)
        frame: Any = FakeDataFrame(self.columns)
        keyed = flow.source("rows", frame, event_time="ts", slack="1 second").key_by("k")
        length = f"{10 * self._case.windows} seconds"
        windows = keyed.window(
            gw.hopping(length, every="10 seconds"),
            name="w",
            consolidate="measured",
            share="always",
        )
        flow.sink("out", windows.compute(n=gw.count(), v=gw.sum("v")), FakeSink())
        return flow.compile(resolver(flow))

    def seen(self, outcome: EpochOutcome) -> EpochOutcome:
        """Leave CPU time as it was measured."""
        return outcome

    def now_s(self) -> float:
        """See `Ports.now_s`."""
        return time.perf_counter()

    def migrate_some(self, key_groups: Sequence[int]) -> None:
        """Let key groups take their rows at the next executor, each by its component's default."""
        here = sorted(self.view.executors)
        standing = self.view.components
        for name in standing.keys() & {"w", "w_second"}:
            component = standing[name]
            taken = range(NUM_KEY_GROUPS) if component.takes is None else component.takes
            moves = {
                g: here[(here.index(component.assignment.executor(g)) + 1) % len(here)]
                for g in key_groups
                if g in taken
            }
            if moves:
                self.send(name, moves, component.default_strategy)


def play(case: Case, form: WindowLayout, turns: Connection) -> None:
    """Run a case in a form, an epoch whenever it is this one's turn; tell what each took."""
    with tempfile.TemporaryDirectory() as directory:
        run = Measured(Path(directory), case)
        run.start({"a": 1, "b": 1, "c": 1})
        if form == "split":
            part: Any = run.flow.operator("w_windows")
            WindowsApart.regroup(
                run, components_for(run.flow, part, form)
            )  # nobody is left alone by it
        keys = pa.array(np.arange(case.keys)).cast(pa.string())
        ones = pa.array(np.ones(case.keys, np.int64))
        for epoch in range(case.epochs):
            moments = pa.array(np.full(case.keys, (10 * epoch + 5) * S), pa.timestamp("us", "UTC"))
            batch = pa.RecordBatch.from_arrays([keys, moments, ones], schema=WindowsApart.columns)
            turns.recv()
            cpu = time.process_time()
            period, at = divmod(epoch, case.windows)
            if at == case.windows // 2 and case.migrations:
                # The slots of the others are not free yet.
                first = period * case.migrations % NUM_KEY_GROUPS
                run.migrate_some(range(first, first + case.migrations))
            run.take(batch)
            turns.send((time.process_time() - cpu) * 1e3)
        turns.recv()
        turns.send(run.compared[-1])


def _answer(end: Connection) -> Any:
    """Give a player its turn, and return what it says; raise if it is silent for too long."""
    end.send(None)
    if not end.poll(_SILENCE_S):
        msg = f"an epoch has not ended in {_SILENCE_S} s"
        raise TimeoutError(msg)
    return end.recv()


def measure(case: Case) -> tuple[dict[WindowLayout, float], dict[WindowLayout, LayoutsCompared]]:
    """CPU milliseconds a period in either form, and what the model made of it."""
    fresh = get_context("spawn")
    ends: dict[WindowLayout, Connection] = {}
    players = []
    for form in FORMS:
        ends[form], theirs = fresh.Pipe()
        players.append(fresh.Process(target=play, args=(case, form, theirs), daemon=True))
        players[-1].start()
        theirs.close()  # so that the end of a player is seen
    spent: dict[WindowLayout, list[float]] = {form: [] for form in FORMS}
    for epoch in range(case.epochs):
        for form in FORMS if epoch % 2 else FORMS[::-1]:
            spent[form].append(_answer(ends[form]))
    told = {form: _answer(end) for form, end in ends.items()}
    for player in players:
        player.join()
    periods = {form: np.reshape(of, (-1, case.windows)).sum(axis=1) for form, of in spent.items()}
    return {form: float(np.median(of[len(of) // 2 :])) for form, of in periods.items()}, told


def main() -> None:
    """Measure and print."""
    given = read_options(__doc__, cases=list(range(len(CASES))))
    print("| keys | windows | that migrate | split | combined | cheaper | split saves | taken |")
    print("|---|---|---|---|---|---|---|---|")
    for case in [CASES[number] for number in given.cases]:
        took, told = measure(case)
        cheaper = min(FORMS, key=lambda form: took[form])
        saves = [told[form].combined_ms - told[form].split_ms for form in FORMS]
        print(
            f"| {case.keys:,} | {case.windows} | {case.migrations} of {NUM_KEY_GROUPS} "
            f"| {took['split']:.0f} ms | {took['combined']:.0f} ms | {cheaper} "
            f"| {took['combined'] - took['split']:+.0f} ms, "
            f"by the model {saves[0]:+.0f} (split), {saves[1]:+.0f} (combined) "
            f"| {told['split'].cheaper}, {told['combined'].cheaper} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
