"""Port that a cluster implements so that every scenario can be played on it.

The contract: whatever is done through these few methods, in whatever order, the rows that came out
are what `tests.contract.verdict` says.  To join, a realization gives

- a **view** and **events**, which are the coordinator's own values if it drives the coordinator;
- the **rows out** of every sink by epoch; a realization that has no rows, as a simulator of their
  numbers, gives ``None`` and is judged by its view and events alone.

A realization runs one flow, `tests.contract.flow.add_operators`, in one directory.  It does nothing
by itself between the calls, or what it carries out may happen at any time: scenarios must not
depend on which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.contract.scenario import Misfortune, Warming

    from godwit.migration import Bounds, Strategy
    from godwit.migration.messages import EndMigration
    from godwit.migration.state import ProtocolView
    from godwit.model.assignment import Assignment
    from godwit.model.events import Event

__all__ = ["Realization", "RowsOut"]

RowsOut = "Mapping[str, Mapping[int, Sequence[tuple[int, ...]]]]"
"""Sink → epoch → rows as delivered."""


class Realization(Protocol):
    """One flow, and what may happen to it."""

    def start(self, executors: Mapping[str, int]) -> None:
        """Start on executors (name → lanes), from the checkpoint if there is one."""

    def executor(self, name: str) -> str:
        """Return what the executor is called here that a scenario calls by this name."""

    def epoch(
        self,
        rows: Sequence[tuple[int, int]],
        misfortune: Misfortune | None = None,
        loses: str | None = None,
    ) -> None:
        """Take in rows (key, number), and carry out their epoch until it is committed.

        If the driver dies in it, the rows are still there for the next start, and come first.
        """

    def quiet(self) -> None:
        """Let whatever is due without rows happen once."""

    def settle(self) -> None:
        """Continue without rows until none waits and no migration is under way."""

    def see(self, executors: Mapping[str, int]) -> None:
        """Let there be these executors: name → lanes."""

    def forget_store(self, executor: str) -> None:
        """Remove what an executor holds, without telling anybody."""

    def warming(self, goes: Warming) -> None:
        """Let warming be held up, fail, lose its reports, or work again."""

    def migrate(
        self, component: str, target: Assignment, strategy: Strategy, bounds: Bounds
    ) -> str:
        """Ask for a migration; returns its name."""

    def change_lanes(
        self, component: str, lanes: Mapping[str, int], lane_of: Mapping[int, int]
    ) -> None:
        """Have key groups change lane within their executors."""

    def component_of(self, operator: str) -> str:
        """Name the component that an operator is of."""

    def regroup(self, components: Mapping[str, tuple[str, ...]]) -> None:
        """Have components made anew."""

    def drain(self, executor: str) -> None:
        """Let nothing move onto an executor any more."""

    def cancel(self, migration: str) -> None:
        """Cancel a migration, if it is under way."""

    def ended(self, migration: str) -> EndMigration | None:
        """Outcome of a migration, once it has ended."""

    def stop(self) -> None:
        """End, as it stands; may be called where nothing runs."""

    @property
    def view(self) -> ProtocolView:
        """State of the migration protocol."""

    @property
    def events(self) -> Sequence[Event]:
        """Events of all starts so far."""

    @property
    def rows_out(self) -> Mapping[str, Mapping[int, Sequence[tuple[int, ...]]]] | None:
        """Sink → epoch → rows as delivered, over all starts; ``None`` where there are no rows."""
