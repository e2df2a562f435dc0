"""Slots of key groups, one of them active: windows that migrate without their state.

Two-phase windows have two *slots* per key group, each a state with a place of its own.  The
*active* slot takes the rows.  An instant migration activates an empty slot at the destination
between two epochs.  The state in the other slot stays where it is, is merged into its windows when
they close, and is dropped with the last of them.  In a smooth migration, the new slot gets only
panes that have no row yet.

Invariant: a row is in one slot, and the consolidate part merges both slots, so results do not
depend on the slot.

Source: instant and smooth migration, Madsen et al. (Enorm) §4.5; temporary key expansion, §4.4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from godwit.time.grid import BEGINNING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from godwit.time.grid import PaneGrid


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slots:
    """The slots of an operator's key groups; arrays of shape ``(num_key_groups,)``."""

    active: npt.NDArray[np.int8]  # which slot takes rows, 0 or 1
    # It takes rows of panes from this moment on, the other one those of earlier panes.
    # Microseconds.
    since: npt.NDArray[np.int64]
    # Windows that hold anything of the other slot end by this moment. Microseconds.
    over: npt.NDArray[np.int64]

    @classmethod
    def of(cls, recorded: Iterable[Iterable[int]], num_key_groups: int) -> Slots:
        """Read from a commit record which of its two states each key group writes (slots)."""
        slots = cls(
            active=np.zeros(num_key_groups, np.int8),
            since=np.full(num_key_groups, BEGINNING, np.int64),
            over=np.full(num_key_groups, BEGINNING, np.int64),
        )
        for key_group, active, since, over in recorded:
            slots.active[key_group] = active
            slots.since[key_group], slots.over[key_group] = since, over
        return slots

    def without_expired(self, closed: int) -> Slots:
        """Return the slots; inactive ones whose windows ended by `closed` count as empty."""
        over = np.where(self.over <= closed, BEGINNING, self.over)
        return Slots(active=self.active, since=self.since, over=over)

    def recorded(self) -> list[tuple[int, int, int, int]]:
        """Return (key group, active slot, `since`, `over`) for a commit record.

        Key groups that only used the first slot are left out.
        """
        used = np.flatnonzero((self.active != 0) | (self.over > BEGINNING))
        columns = (used, self.active[used], self.since[used], self.over[used])
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def with_second(
        self, second: Collection[int], smooth: Collection[int], newest: int, grid: PaneGrid
    ) -> Slots:
        """Return the slots once the second slot is active for exactly the key groups `second`.

        `smooth`: key groups whose earlier panes stay with the slot that has them. `newest`: maximum
        event time so far, in microseconds.
        """
        active = np.zeros_like(self.active)
        active[list(second)] = 1
        switched = np.flatnonzero(active != self.active)
        if not len(switched):
            return self
        since, over = self.since.copy(), self.over.copy()
        since[switched] = over[switched] = BEGINNING
        if newest > BEGINNING:
            over[switched] = grid.end_of(newest)
            later = int(grid.panes(np.array([newest]))[0]) + grid.width_us
            since[[key_group for key_group in switched.tolist() if key_group in smooth]] = later
        return Slots(active=active, since=since, over=over)

    def slot_of(
        self, key_groups: npt.NDArray[np.integer], panes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int8]:
        """Return the slot (0 or 1) that takes the rows of each key group and pane."""
        active = self.active[key_groups]
        slot: npt.NDArray[np.int8] = active ^ (panes < self.since[key_groups])
        return slot

    def is_drained(self, slot: int, closed: int) -> npt.NDArray[np.bool_]:
        """Return a mask of key groups for which a slot takes no rows and has no open window."""
        drained: npt.NDArray[np.bool_] = (self.active != slot) & (self.over <= closed)
        return drained
