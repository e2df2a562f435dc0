"""A migration under way: what of its plan is still to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.migration.commands import EndMigration, MigrationOutcome
from godwit.migration.strategy import UNBOUNDED, Bounds, Strategy

if TYPE_CHECKING:
    from godwit.migration.inputs import MigrationRequested
    from godwit.model.assignment import Move

__all__ = ["OngoingMigration"]


@dataclass(slots=True, kw_only=True)
class OngoingMigration:
    """A migration under way.

    Attributes
    ----------
    moves
        Key group → move not yet in flight, in the order in which they are to be made.
    opened
        Whether the target's lanes and executors are in force (since the first boundary).
    turned
        Whether key groups that can have turned to their other slots.
    settles_after
        The migration may end once a later epoch than this is committed: one that started under the
        last assignment.
    """

    request: MigrationRequested
    moves: dict[int, Move]
    opened: bool = False
    turned: bool = False
    settles_after: int = -2
    moved: int = 0
    withdrawn: int = 0
    reason: str = ""

    @property
    def strategy(self) -> Strategy:
        """The strategy asked for."""
        return self.request.strategy

    def end(self, outcome: MigrationOutcome) -> EndMigration:
        """Return what is told at its end."""
        return EndMigration(
            id=self.request.id,
            component=self.request.component,
            outcome=outcome,
            moved=self.moved,
            withdrawn=self.withdrawn,
            reason=self.reason,
        )

    @property
    def bounds(self) -> Bounds:
        """The bounds asked for; none where the stream stands still."""
        return UNBOUNDED if self.strategy.holds_epochs else self.request.bounds
