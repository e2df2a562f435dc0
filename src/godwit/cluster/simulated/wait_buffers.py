"""Rows of key groups that do not run wait, in order; nothing is lost, doubled or overtaken.

Rows of a key group are numbered as they come.  What was processed and what waits are ranges of
these numbers, so the three promises of the runtime can be checked at every epoch at the price of a
few vector operations: a range that is processed begins where the last one ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import MigrationError

if TYPE_CHECKING:
    from godwit.planning.arrays import FloatArray

__all__ = ["WaitBuffers"]


@dataclass(slots=True, kw_only=True)
class _Waiting:
    rows: np.ndarray
    arrived: FloatArray


@dataclass(slots=True, kw_only=True)
class WaitBuffers:
    """Rows of one component.

    Attributes
    ----------
    component, key_groups
        Whose, and how many.
    arrived, processed
        Shape ``(m,)``: rows that have come, and that have been processed.
    """

    component: str
    key_groups: int
    arrived: np.ndarray = field(init=False)
    processed: np.ndarray = field(init=False)
    _entries: list[_Waiting] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.arrived = np.zeros(self.key_groups, np.int64)
        self.processed = np.zeros(self.key_groups, np.int64)

    @property
    def waiting(self) -> np.ndarray:
        """Shape ``(m,)``: rows that wait."""
        waiting: np.ndarray = self.arrived - self.processed
        return waiting

    def commit(
        self, new: np.ndarray, runs: np.ndarray, consume: np.ndarray, arrived: FloatArray
    ) -> FloatArray:
        """Take in an epoch's rows and process those of key groups that run.

        Parameters
        ----------
        new
            Shape ``(m,)``: rows that came.
        runs, consume
            Shape ``(m,)``: which key groups run, and which of them process what waits first.
        arrived
            When the new rows came, as `godwit.cluster.simulated.arrivals.Arrivals.pieces` says.

        Returns
        -------
        ndarray
            When the rows came that were processed, in the same form.

        Raises
        ------
        MigrationError
            If new rows would overtake some that wait.
        """
        overtaken = np.flatnonzero(runs & ~consume & (self.waiting > 0) & (new > 0))
        if len(overtaken):
            raise MigrationError(
                f"Rows that wait would be overtaken in key groups {overtaken[:5].tolist()} of "
                f"{self.component!r}.",
                remedy="A plan that runs a key group with rows waiting has to consume them.",
                component=self.component,
            )
        left = []
        takes = runs & consume
        for entry in self._entries:
            total, taken = entry.rows.sum(), entry.rows[takes].sum()
            if taken:
                left.append(_scaled(entry.arrived, taken / total))
                entry.arrived = _scaled(entry.arrived, 1 - taken / total)
                entry.rows = np.where(takes, 0, entry.rows)
        self._entries = [entry for entry in self._entries if entry.rows.any()]
        waits = np.where(runs, 0, new)
        share = waits.sum() / new.sum() if new.any() else 0.0
        if waits.any():
            self._entries.append(_Waiting(rows=waits, arrived=_scaled(arrived, share)))
        if share < 1 and new.any():
            left.append(_scaled(arrived, 1 - share))
        before = self.waiting
        self.processed += np.where(runs, new, 0) + np.where(takes, before, 0)
        self.arrived += new
        return np.concatenate([np.empty((0, 3)), *left])


def _scaled(pieces: FloatArray, share: float) -> FloatArray:
    scaled: FloatArray = pieces * np.array([share, 1.0, 1.0])
    return scaled
