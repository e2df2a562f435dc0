"""What the user holds of a migration that was asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from godwit.model.errors import MigrationError

if TYPE_CHECKING:
    from godwit.engine.shared_conductor import SharedConductor
    from godwit.migration import EndMigration

__all__ = ["Asked", "Migration"]

End = TypeVar("End")


class Asked(ABC, Generic[End]):
    """Something that was asked for, and takes its time.

    Attributes
    ----------
    id
        Its name in events and status.
    """

    def __init__(self, asked: str, conducting: SharedConductor) -> None:
        self.id, self._conducting = asked, conducting

    def __repr__(self) -> str:
        return f"<{self._what}: {'done' if self.done else 'under way'}>"

    @property
    @abstractmethod
    def _what(self) -> str: ...

    @abstractmethod
    def _ended(self, timeout_s: float | None) -> End | None:
        """How it ended, once it has; ``None`` if it has not by then."""

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._ended(0) is not None

    def wait(self, timeout: float | None = None) -> End:
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
        ended = self._ended(timeout)
        if ended is None:
            raise MigrationError(
                f"{self._what} has not ended"
                + ("." if timeout is None else f" after {timeout} s."),
                remedy="Look at query.status and query.events: copies may still be warming.",
            )
        return ended

    def cancel(self, reason: str = "cancelled by the user") -> None:
        """End it: what has switched stays as it is, and the rest stays where it was."""
        with self._conducting.locked() as conductor:
            conductor.cancel(self.id, reason)


class Migration(Asked["EndMigration"]):
    """A migration that was asked for."""

    def __init__(self, migration: str, component: str, conducting: SharedConductor) -> None:
        super().__init__(migration, conducting)
        self.component = component

    @property
    def _what(self) -> str:
        return f"Migration {self.id} of {self.component!r}"

    def _ended(self, timeout_s: float | None) -> EndMigration | None:
        return self._conducting.ended(self.id, timeout_s)
