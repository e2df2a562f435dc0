"""Whatever happens to key groups with two slots, windows are those of a batch."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.contract.flow import NUM_KEY_GROUPS
from tests.contract.scenario import Warming
from tests.contract.splitting import Decided
from tests.contract.windows_apart import History, WindowsApart, expected

from godwit.control.windows import ExchangeCosts, Splitting
from godwit.migration import Bounds, Strategy
from godwit.model.errors import MigrationError

LONG = "GODWIT_LONG" in os.environ
PARTS = ("w", "w_second", "w_windows")
GROUPS = st.integers(0, NUM_KEY_GROUPS - 1)


class SlotsMachine(RuleBasedStateMachine):
    """A stream, its real coordinator, lanes and checkpoint, and plain Python in the end."""

    @initialize(seed=st.integers(0, 99), share=st.sampled_from([None, None, "always", "never"]))
    def start(self, seed: int, share: str | None) -> None:
        self.directory = TemporaryDirectory(prefix="godwit-")
        self.ordered = share is None
        options = {} if share is None else {"share": share}
        self.run = WindowsApart(Path(self.directory.name), **options)
        self.history = History(self.run, seed)

    @rule(
        count=st.integers(1, 30),
        misfortune=st.sampled_from([None, None, None, "aborted", "planned", "staged", "committed"]),
    )
    def epoch(self, count: int, misfortune: Any) -> None:
        self.history.epoch(count, misfortune)
        if misfortune in ("planned", "staged", "committed"):
            self.history.restart()

    @rule(
        part=st.sampled_from(PARTS),
        strategy=st.sampled_from([*Strategy, Strategy.INSTANT, Strategy.SMOOTH]),
        moves=st.dictionaries(GROUPS, st.integers(0, 9), min_size=1, max_size=NUM_KEY_GROUPS),
        most=st.integers(1, 8),
    )
    def migrate(self, part: str, strategy: Strategy, moves: dict[int, int], most: int) -> None:
        component = self.run.view.components.get(part)
        if component is None or component.migration is not None:
            return
        here = sorted(self.run.view.executors)
        to = {group: here[which % len(here)] for group, which in moves.items()}
        try:
            self.run.send(part, to, strategy, Bounds(max_moves=most))
        except MigrationError as error:
            if "is being regrouped" not in error.message:
                assert strategy.activates_standby
                assert component.takes is None

    @precondition(lambda self: all(c.migration is None for c in self.run.view.components.values()))
    @rule(together=st.booleans())
    def regroup(self, *, together: bool) -> None:
        if together == (len(self.run.view.components) == 1):
            return
        self.run.regroup({"w": PARTS} if together else {part: (part,) for part in PARTS})
        self.run.settle()

    @rule()
    def kill(self) -> None:
        self.history.kill()

    @rule(goes=st.sampled_from(["works", "fails", "lost", "held"]))
    def warm(self, goes: Any) -> None:
        self.run.warming(Warming(goes=goes))

    @rule()
    def restart(self) -> None:
        self.history.restart()

    def teardown(self) -> None:
        if not hasattr(self, "history"):
            return
        self.history.end()
        assert self.run.windows == expected(self.history.rows, ordered=self.ordered)
        self.directory.cleanup()


class FormsMachine(SlotsMachine):
    """The same, of windows that are split and combined as costs say, hastily."""

    @initialize(
        seed=st.integers(0, 99),
        share=st.sampled_from([None, "never"]),
        bound=st.sampled_from([None, "0 seconds", "3 milliseconds"]),
        lane_ms=st.sampled_from([0.1, 5.0]),
    )
    def start(self, seed: int, share: str | None, bound: str | None, lane_ms: float) -> None:
        self.directory = TemporaryDirectory(prefix="godwit-")
        self.ordered = share is None
        self.run = Decided(
            Path(self.directory.name),
            Splitting(period="3 seconds", epochs=1, confirm=1, max_latency=bound),
            exchange=ExchangeCosts(lane_ms=lane_ms),
            **({} if share is None else {"share": share}),
        )
        self.history = History(self.run, seed)


@pytest.mark.parametrize(
    ("machine", "histories"), [(SlotsMachine, 6 if LONG else 3), (FormsMachine, 3 if LONG else 2)]
)
def test_windows_are_those_of_a_batch_whatever_happens_to_their_slots(
    machine: type[SlotsMachine], histories: int
) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            derandomize=True,
            database=None,
            deadline=None,
            max_examples=histories,
            stateful_step_count=16,
            phases=(Phase.generate,),  # a history takes a second, so a failing one is not shrunk
            suppress_health_check=list(HealthCheck),
        ),
    )
