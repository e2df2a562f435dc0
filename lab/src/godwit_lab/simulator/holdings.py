"""Simulated state: sizes per key group, copies on executors, and wait buffers.

A snapshot and the changelog after it are durable; a copy on an executor is a committed version,
brought up to date by reading the rest of the changelog.  So one number per key group says how much
changelog there has ever been, and one per copy how much of it the copy has seen.

Rows of a key group are numbered as they come, and those that are processed or wait are ranges of
these numbers: that nothing is lost, doubled or overtaken is checked by a few vector operations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.model.assignment import Assignment
    from godwit.placement.arrays import BoolArray, FloatArray
    from godwit_lab.simulator.workload import Phase


@dataclass(slots=True, kw_only=True)
class Copy:
    """Copies of one component's key groups on one executor."""

    exists: BoolArray  # shape ``(m,)``: whether there is a copy
    # shape ``(m,)``: how much of the changelog, since the beginning, is in it
    seen_bytes: FloatArray


class SimulatedCopies:
    """Copies of one component's key groups on all executors, a row of two matrices each."""

    def __init__(self, key_groups: int) -> None:
        self._row: dict[str, int] = {}
        self._exists = np.zeros((0, key_groups), np.bool_)
        self._seen = np.zeros((0, key_groups))
        self._groups = np.arange(key_groups)
        self._last: tuple[Assignment | None, np.ndarray] = None, self._groups

    def get(self, executor: str) -> Copy | None:
        """Return the copies of an executor, to be read or changed; ``None`` if it has none."""
        row = self._row.get(executor)
        if row is None:
            return None
        return Copy(exists=self._exists[row], seen_bytes=self._seen[row])

    def add(self, executor: str) -> None:
        """Add an executor without copies, if it is not there."""
        if executor in self._row:
            return
        self._row[executor] = row = len(self._row)
        if row == len(self._exists):
            more = max(8, row), len(self._groups)
            self._exists = np.vstack((self._exists, np.zeros(more, np.bool_)))
            self._seen = np.vstack((self._seen, np.zeros(more)))

    def pop(self, executor: str) -> None:
        """Delete an executor with its copies."""
        row = self._row.pop(executor, None)
        if row is None:
            return
        self._last = None, self._groups
        last = len(self._row)
        self._exists[row], self._seen[row] = self._exists[last], self._seen[last]
        self._exists[last], self._seen[last] = False, 0.0
        for name, position in self._row.items():
            if position == last:
                self._row[name] = row

    def clear(self) -> None:
        """Delete all copies."""
        self._row.clear()
        self._exists[:], self._seen[:] = False, 0.0
        self._last = None, self._groups

    def owners(self, assignment: Assignment) -> tuple[np.ndarray, np.ndarray]:
        """Return row (executor) and column (key group), in both matrices, of each owner's copy."""
        if self._last[0] is not assignment:
            for executor in assignment.executors:
                self.add(executor)
            rows = np.array([self._row[executor] for executor in assignment.executors])
            self._last = assignment, rows[assignment.executor_of]
        return self._last[1], self._groups

    def exists(self, assignment: Assignment) -> BoolArray:
        """Return a mask of the key groups whose owner has a copy, shape ``(m,)``."""
        entries = self.owners(assignment)  # which may make room for others, so it comes first
        exists: BoolArray = self._exists[entries]
        return exists

    def seen_bytes(self, assignment: Assignment) -> FloatArray:
        """Return the bytes of changelog that each owner's copy includes, shape ``(m,)``."""
        entries = self.owners(assignment)
        seen: FloatArray = self._seen[entries]
        return seen

    def catch_up(self, assignment: Assignment, used: BoolArray, seen: FloatArray) -> None:
        """Record that owners' copies of `used` key groups (a mask) include `seen` bytes of log."""
        rows, groups = self.owners(assignment)
        entries = rows[used], groups[used]
        self._exists[entries] = True
        self._seen[entries] = np.maximum(self._seen[entries], seen[used])


@dataclass(slots=True, kw_only=True)
class Holdings:
    """State of one component: sizes, changelog and copies."""

    key_groups: int
    key_bytes: int  # state of one key
    keys: FloatArray = field(init=False)  # shape ``(m,)``: keys that have state
    snapshot_bytes: FloatArray = field(init=False)  # shape ``(m,)``: of the last snapshot
    changelog_bytes: FloatArray = field(init=False)  # shape ``(m,)``: of the changelog after it
    written_bytes: FloatArray = field(init=False)  # shape ``(m,)``: changelog ever written
    copies: SimulatedCopies = field(init=False)  # by executor
    _phase: int = field(init=False, default=-1)
    _before: FloatArray = field(init=False)
    _rows: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        m = self.key_groups
        self.keys, self.snapshot_bytes = np.zeros(m), np.zeros(m)
        self.changelog_bytes, self.written_bytes = np.zeros(m), np.zeros(m)
        self._before, self._rows = np.zeros(m), np.zeros(m)
        self.copies = SimulatedCopies(m)

    @property
    def state_bytes(self) -> FloatArray:
        """Shape ``(m,)``: bytes of checkpoint that an empty copy reads to be up to date."""
        return self.snapshot_bytes + self.changelog_bytes

    @property
    def copied_bytes(self) -> FloatArray:
        """Shape ``(m,)``: bytes that an executor sends when a key group is copied from it."""
        return self.keys * self.key_bytes

    def copy(self, executor: str) -> Copy:
        """Return an executor's copies, to be read or changed; empty at first."""
        self.copies.add(executor)
        copies = self.copies.get(executor)
        assert copies is not None
        return copies

    def missing_bytes(self, executor: str) -> FloatArray:
        """Return the bytes that an executor reads to bring its copies up to date, per key group."""
        copy = self.copy(executor)
        return self._missing(copy.exists, copy.seen_bytes)

    def missing_at_owners(self, assignment: Assignment) -> FloatArray:
        """Return the bytes that each owner reads to bring its copy of a key group up to date."""
        return self._missing(self.copies.exists(assignment), self.copies.seen_bytes(assignment))

    def _missing(self, exists: BoolArray, seen_bytes: FloatArray) -> FloatArray:
        """Return the bytes to read per copy: the rest of the changelog, at most all state.

        `exists`: mask of copies that exist. `seen_bytes`: bytes of changelog that they include.
        """
        state_bytes = self.state_bytes
        behind = self.written_bytes - seen_bytes
        return np.where(exists, np.minimum(behind, state_bytes), state_bytes)

    def catch_up(self, executor: str, key_groups: np.ndarray, seen_bytes: FloatArray) -> None:
        """Record that an executor's copies include `seen_bytes` bytes of the changelog."""
        copy = self.copy(executor)
        copy.exists[key_groups] = True
        copy.seen_bytes[key_groups] = np.maximum(copy.seen_bytes[key_groups], seen_bytes)

    def drop(self, executor: str, key_groups: Iterable[int]) -> None:
        """Delete an executor's copies of key groups."""
        copy = self.copy(executor)
        copy.exists[list(key_groups)] = False
        copy.seen_bytes[list(key_groups)] = 0

    def set_initial_state(self, keys: FloatArray) -> None:
        """Set the state from before the run: a snapshot of `keys` keys in each key group."""
        self.keys = keys.copy()
        self.snapshot_bytes = keys * self.key_bytes

    def commit_epoch(
        self,
        rows: FloatArray,
        keys: FloatArray,
        *,
        phase: Phase,  # frequencies during the epoch
        number: int,  # of the phase
        known: FloatArray,  # shape ``(m,)``: keys that there are
    ) -> tuple[float, float]:
        """Commit an epoch of `rows` rows with `keys` distinct keys per key group.

        Returns the bytes of changelog and of snapshots written. The keys of a new phase are new to
        the state unless an earlier phase had them, which, since shifts are random, is equally
        likely for each.
        """
        if number != self._phase:
            self._phase, self._before = number, self.keys.copy()
            self._rows = np.zeros(self.key_groups)
        self._rows += rows
        share_unseen = 1 - self._before / np.maximum(known, 1)
        self.keys = np.maximum(
            self.keys, self._before + phase.keys_among(self._rows) * share_unseen
        )
        written = keys * self.key_bytes
        touched = rows > 0
        self.changelog_bytes += written
        self.written_bytes += written
        full = self.keys * self.key_bytes
        due = touched & (self.changelog_bytes > np.maximum(self.snapshot_bytes, 64 * 1024))
        self.snapshot_bytes[due] = full[due]
        self.changelog_bytes[due] = 0
        return float(written.sum()), float(full[due].sum())


@dataclass(slots=True, kw_only=True)
class _Waiting:
    rows: np.ndarray
    arrived: FloatArray


@dataclass(slots=True, kw_only=True)
class WaitBuffers:
    """Wait buffers of one component."""

    component: str
    key_groups: int
    arrived: np.ndarray = field(init=False)  # shape ``(m,)``: rows so far
    processed: np.ndarray = field(init=False)  # shape ``(m,)``: rows so far
    _entries: list[_Waiting] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.arrived = np.zeros(self.key_groups, np.int64)
        self.processed = np.zeros(self.key_groups, np.int64)

    @property
    def waiting(self) -> np.ndarray:
        """Shape ``(m,)``: number of waiting rows."""
        waiting: np.ndarray = self.arrived - self.processed
        return waiting

    def commit(
        self, new: np.ndarray, runs: np.ndarray, consume: np.ndarray, arrived: FloatArray
    ) -> FloatArray:
        """Add an epoch's rows, and remove those of key groups that process them.

        `new`: shape ``(m,)``: rows that arrived. `runs`, `consume`: shape ``(m,)``: key groups that
        run, and those of them that process waiting rows first. `arrived`: arrivals of the new rows,
        as `godwit_lab.simulator.workload.RowArrivals.pieces` returns them. Returns the arrivals
        of the processed rows, in the same form. Raises `MigrationError` if new rows would overtake
        waiting ones.
        """
        waiting = self.waiting
        if not self._entries and runs.all():
            # Nothing waits, as in most epochs: input equals output.
            self.processed += new
            self.arrived += new
            return arrived if new.any() else np.empty((0, 3))
        overtaken = np.flatnonzero(runs & ~consume & (waiting > 0) & (new > 0))
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
        self.processed += np.where(runs, new, 0) + np.where(takes, waiting, 0)
        self.arrived += new
        return np.concatenate([np.empty((0, 3)), *left])


def _scaled(pieces: FloatArray, share: float) -> FloatArray:
    """Return pieces of arrivals with their row counts multiplied by a share."""
    scaled: FloatArray = pieces * np.array([share, 1.0, 1.0])
    return scaled
