"""What the user holds of a migration that was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.model.errors import MigrationError

if TYPE_CHECKING:
    from godwit.migration import EndMigration
    from godwit.spark.conducting import Conducting

__all__ = ["Migration"]


class Migration:
    """A migration that was asked for."""

    def __init__(self, migration: str, component: str, conducting: Conducting) -> None:
        self.id, self.component, self._conducting = migration, component, conducting

    def __repr__(self) -> str:
        return (
            f"<Migration {self.id} of {self.component!r}: {'done' if self.done else 'under way'}>"
        )

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._conducting.ended(self.id, 0) is not None

    def wait(self, timeout: float | None = None) -> EndMigration:
        """Wait for its end and return how it ended.

        Parameters
        ----------
        timeout
            Seconds.

        Raises
        ------
        MigrationError
            If it has not ended by then, or the query stopped first.
        """
        ended = self._conducting.ended(self.id, timeout)
        if ended is None:
            raise MigrationError(
                f"Migration {self.id} of {self.component!r} has not ended"
                + ("." if timeout is None else f" after {timeout} s."),
                remedy="Look at query.status and query.events: copies may still be warming.",
            )
        return ended

    def cancel(self, reason: str = "cancelled by the user") -> None:
        """End it: what has switched stays, the rest does not move."""
        with self._conducting.turn() as conductor:
            conductor.cancel(self.id, reason)
