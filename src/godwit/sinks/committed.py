"""Committed epochs of a checkpoint, as sinks ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from godwit.checkpoint.ownership import HistoryPoint, Relation

__all__ = ["CommittedEpochs"]


class CommittedEpochs(Protocol):
    """The committed epochs of a checkpoint: `godwit.checkpoint.commit_log.CommitLog`."""

    @property
    def latest_epoch(self) -> int:
        """The last one; -1 before the first."""

    @property
    def retained_epochs(self) -> range:
        """Those whose records are there."""

    def point(self, epoch: int) -> HistoryPoint:
        """Digest of a retained epoch, and whose history it is."""

    def relation(self, point: HistoryPoint) -> Relation:
        """Relation of a point to this history."""

    def shared_with(self, point: HistoryPoint) -> int:
        """Last epoch in common with the history of a point, as far as is known; -1 for none."""
