"""Port to the committed epochs of a checkpoint, for sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from godwit.checkpoint.ownership import HistoryPoint, Relation


class CommittedEpochs(Protocol):
    """Port: committed epochs of a checkpoint (`godwit.checkpoint.commit_log.CommitLog`)."""

    @property
    def latest_epoch(self) -> int:
        """Number of the last committed epoch; -1 before the first."""

    @property
    def retained_epochs(self) -> range:
        """Epochs whose commit records are still there."""

    def point(self, epoch: int) -> HistoryPoint:
        """Return a retained epoch with its history and the digest of its commit record."""

    def relation(self, point: HistoryPoint) -> Relation:
        """Compare an epoch of some history, as a target has it, with this history."""

    def last_shared_epoch(self, point: HistoryPoint) -> int:
        """Return the last epoch shared with the history of a point; -1 if none is known."""
