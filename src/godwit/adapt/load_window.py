r"""Load of key groups since it last changed, and how well it is known.

A period of few rows tells little: of 60 rows on an executor chance alone makes one eighth more or
less.  More periods tell more, but only as long as nothing changes.  So a *load window* reaches back
to the last change of the load's distribution over key groups, as in adaptive windowing (Bifet and
Gavaldà, "Learning from time-changing data with adaptive windowing", SDM 2007): after every epoch
its latest part is compared with all before, for parts of several lengths, and where the two differ
by more than noise, what is before is forgotten.  Statistics of a stream that stays as it is become
ever more exact; those of one that shifts are of the new load alone, two epochs later.

What is compared is *shares* of the component's load, so a rate that rises or falls is no change.

Noise is counted, and measured.  A key group that had :math:`N` rows and :math:`B` seconds has by
chance (Poisson) a variance of :math:`B^2 / N`; from epoch to epoch it strays from its share by what
is seen, which includes rows of unequal cost.  The more epochs, the more the second counts.  What
all key groups of an executor have in common, a machine that does other things besides, makes sums
over executors stray by more than their parts; that factor is measured too.  Both are remembered
when the window is cut.

Invariants: blocks of the window are few (their lengths grow in powers of two), so an epoch costs a
few operations on arrays of as many numbers as there are key groups; nothing is older than
`_LONGEST_S`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.migration import KeyGroupLoad
    from godwit.model.assignment import Assignment
    from godwit.planning.arrays import FloatArray, IntArray

_LONGEST_S = 600.0
_SINGLE = 16
"""Blocks at the end of the window that are single epochs."""
_PARTS = (2, 3, 4, 6, 8, 12, 16)
"""Lengths of the latest part that is compared with all before; older blocks are tried besides."""
_BEFORE = 4
"""Epochs that there must be before it."""
_CHANGED = 5.5
"""Standard errors that are a change: by chance one in a year of epochs on a hundred executors."""
_MATERIAL = 0.05
"""Share of an executor's mean load by which it must change to end a period early."""
_ROWS = 20
"""Rows of a key group in the latest part from which it is looked at by itself."""
_TRUST = 8.0
"""Epochs after which measured noise counts as much as counted noise."""
_MOST_TOGETHER = 25.0
_OUTLIER = 4.0
"""Standard errors, by the noise that is known, above which an epoch counts no more."""


@dataclass(slots=True, kw_only=True)
class _Block:
    """Sums over some epochs under one placement; vectors have one entry per key group."""

    executors: tuple[str, ...]
    executor_of: IntArray
    ended_s: float
    epochs: int
    rows: FloatArray
    busy_s: FloatArray
    squares: FloatArray  # of what each key group strayed from its share, in standard seconds
    apart: float  # sum of these squares
    together: float  # the same of sums over executors
    strayed: int  # epochs of which it is known

    def add(self, other: _Block) -> None:
        """Add the epochs of a later block under the same assignment."""
        self.ended_s = other.ended_s
        self.epochs += other.epochs
        self.rows += other.rows
        self.busy_s += other.busy_s
        self.squares += other.squares
        self.apart += other.apart
        self.together += other.together
        self.strayed += other.strayed

    def follows(self, other: _Block) -> bool:
        """Return true if key groups are on the same executors as in another block."""
        return self.executors == other.executors and (
            self.executor_of is other.executor_of
            or bool((self.executor_of == other.executor_of).all())
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadShares:
    """Shares of a component's load, shape ``(G,)`` each, and the variances of their estimates."""

    share: FloatArray
    variance: FloatArray
    epochs: int  # that they were measured in


class LoadWindow:
    """Loads of one component's key groups since they last changed."""

    def __init__(self, num_key_groups: int) -> None:
        self._size = num_key_groups
        self._blocks: list[_Block] = []
        # measured noise over counted noise, and noise of sums over that of their parts, as known
        # from before the window
        self._dispersion, self._together = 1.0, 1.0
        self.shifted = False  # the last epoch showed a change by which executors' loads differ

    def observe(
        self,
        assignment: Assignment,
        load: KeyGroupLoad | None,
        now_s: float,
        speeds: Mapping[str, float],
    ) -> None:
        """Add an epoch with input; drop earlier ones if the distribution of load has changed."""
        self.shifted = False
        if load is None or not len(load.key_groups):
            return
        rows, busy_s = np.zeros((2, self._size))
        rows[load.key_groups], busy_s[load.key_groups] = load.rows, load.busy_s
        strays = self._deviations(assignment, busy_s, speeds)
        self._blocks.append(
            _Block(
                executors=assignment.executors,
                executor_of=assignment.executor_of,
                ended_s=now_s,
                epochs=1,
                rows=rows,
                busy_s=busy_s,
                squares=np.zeros(self._size) if strays is None else strays[0],
                apart=0.0 if strays is None else strays[1],
                together=0.0 if strays is None else strays[2],
                strayed=int(strays is not None),
            )
        )
        self._drop_before(now_s - _LONGEST_S)
        self._cut_at_change(speeds)
        self._merge_blocks()

    def shares(self, speeds: Mapping[str, float]) -> LoadShares | None:
        """Return the shares of load of key groups; ``None`` if nothing was measured."""
        rows, busy_s, squares = self._sum_blocks(self._blocks, speeds)
        total_s = float(busy_s.sum())
        if not total_s:
            return None
        epochs, strayed, dispersion, together = self._noise_factors(self._blocks, speeds)
        counted = busy_s * busy_s / np.maximum(rows, 1.0)
        measured = squares * (epochs / max(strayed, 1))
        variance = (strayed * measured + _TRUST * dispersion * counted) / (strayed + _TRUST)
        return LoadShares(
            share=busy_s / total_s, variance=variance * together / total_s**2, epochs=epochs
        )

    # -- changes ----------------------------------------------------------------------------------

    def _cut_at_change(self, speeds: Mapping[str, float]) -> None:
        """Drop the epochs before the latest significant change of the load's distribution."""
        blocks = self._blocks
        if sum(block.epochs for block in blocks) < _BEFORE + _PARTS[0]:
            return
        standard = _standard_s(blocks, speeds)
        # noise as it was before what may be a change
        _, _, dispersion, together = self._noise_factors(blocks[: -_PARTS[1]], speeds)
        rows, busy_s, _ = self._sum_blocks(blocks, speeds)
        all_epochs, total_s = sum(block.epochs for block in blocks), float(busy_s.sum())
        # variance of a second's load, by the counts in the whole window
        rate = dispersion * together * busy_s * busy_s / np.maximum(rows, 1.0) / max(total_s, 1e-12)
        owner, num_executors = blocks[-1].executor_of, len(blocks[-1].executors)
        late_rows, late_s, epochs = np.zeros(self._size), np.zeros(self._size), 0
        scores: dict[int, float] = {}
        worst, cut, shifts, half = _CHANGED, 0, False, 0.0
        for at in range(len(blocks) - 1, 0, -1):
            late_rows += blocks[at].rows
            late_s += standard[at]
            epochs += blocks[at].epochs
            if all_epochs - epochs < _BEFORE:
                break
            if epochs not in _PARTS and 1 < epochs < _PARTS[-1]:
                continue
            late = float(late_s.sum())
            early = total_s - late
            if min(late, early) <= 0:
                continue
            differs = late_s / late - (busy_s - late_s) / early
            variance = rate * (1 / late + 1 / early)
            sums = np.bincount(owner, differs, num_executors)
            errors = np.sqrt(np.bincount(owner, variance, num_executors)) + 1e-12
            by_executor = np.abs(sums) / errors
            score = float(by_executor.max())
            seen = late_rows >= _ROWS
            if seen.any():
                alone = np.abs(differs[seen]) / (np.sqrt(variance[seen]) + 1e-12)
                score = max(score, float(alone.max()))
            scores[epochs] = score
            if epochs > 1 and score > worst:
                moved = (by_executor > _CHANGED) & (np.abs(sums) * num_executors > _MATERIAL)
                worst, cut, shifts = score, at, bool(moved.any())
                half = next(s for e, s in scores.items() if 2 * e >= epochs)
        # What the last epoch alone shows may pass, or go on: the next one will tell. What the
        # later half of the part does not show was one odd epoch.
        if cut and scores.get(1, 0.0) <= worst <= 2 * half:
            _, _, self._dispersion, self._together = self._noise_factors(blocks[:cut], speeds)
            del blocks[:cut]
            self.shifted = shifts

    def _drop_before(self, since_s: float) -> None:
        """Drop the blocks that ended before `since_s`."""
        while len(self._blocks) > 1 and self._blocks[0].ended_s < since_s:
            del self._blocks[0]

    def _merge_blocks(self) -> None:
        """Merge consecutive old blocks of equal lengths under one assignment."""
        blocks = self._blocks
        at = len(blocks) - _SINGLE - 2
        while at >= 0:
            one, later = blocks[at], blocks[at + 1]
            if one.epochs <= later.epochs and later.follows(one):
                one.add(later)
                del blocks[at + 1]
            at -= 1

    # -- noise ------------------------------------------------------------------------------------

    def _deviations(
        self, assignment: Assignment, raw_s: FloatArray, speeds: Mapping[str, float]
    ) -> tuple[FloatArray, float, float] | None:
        """Return an epoch's squared deviations from earlier shares, and two sums of them.

        Very large deviations are capped, since they are not noise: such as loading of state, or an
        executor that has become slow.
        """
        rows, busy_s, _ = self._sum_blocks(self._blocks, speeds)
        _, _, dispersion, together = self._noise_factors(self._blocks, speeds)
        speed = np.array([speeds.get(name, 1.0) for name in assignment.executors])
        epoch_s = raw_s * speed[assignment.executor_of]
        total_s, window_s = float(epoch_s.sum()), float(busy_s.sum())
        if not (total_s > 0 and window_s > 0):
            return None
        strayed = epoch_s - busy_s * (total_s / window_s)
        # The share that it strays from has an error of its own.
        own = 1 / (1 + total_s / window_s)
        usual = busy_s * (total_s / window_s) * busy_s / np.maximum(rows, 1.0)
        usual *= _OUTLIER**2 * max(dispersion, 1.0)
        of = assignment.executor_of
        sums = np.minimum(
            np.bincount(of, strayed) ** 2, np.bincount(of, usual) * max(together, 1.0)
        )
        squares = np.minimum(strayed * strayed, np.maximum(usual, usual.mean())) * own
        return squares, float(squares.sum()), float(sums.sum()) * own

    def _noise_factors(
        self, blocks: list[_Block], speeds: Mapping[str, float]
    ) -> tuple[int, int, float, float]:
        """Return epochs, those with measured noise, and the factors: dispersion, and of sums."""
        rows, busy_s, squares = self._sum_blocks(blocks, speeds)
        epochs, strayed = sum(b.epochs for b in blocks), sum(b.strayed for b in blocks)
        counted = float((busy_s * busy_s / np.maximum(rows, 1.0)).sum())
        measured = float(squares.sum()) * epochs / max(strayed, 1)
        apart, together = sum(b.apart for b in blocks), sum(b.together for b in blocks)
        trust = strayed / (strayed + _TRUST)
        dispersion, factor = self._dispersion, self._together
        if counted > 0:
            dispersion += trust * (measured / counted - dispersion)
        if apart > 0:
            factor += trust * (min(max(together / apart, 1.0), _MOST_TOGETHER) - factor)
        return epochs, strayed, dispersion, factor

    def _sum_blocks(
        self, blocks: list[_Block], speeds: Mapping[str, float]
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the sums over blocks: rows, seconds at speed 1, and squared deviations."""
        rows, busy_s, squares = np.zeros((3, self._size))
        for block, standard_s in zip(blocks, _standard_s(blocks, speeds), strict=True):
            rows += block.rows
            busy_s += standard_s
            squares += block.squares
        return rows, busy_s, squares


def _standard_s(blocks: Sequence[_Block], speeds: Mapping[str, float]) -> list[FloatArray]:
    """Return each block's seconds per key group at speed 1, shape ``(G,)``."""
    if all(speed == 1.0 for speed in speeds.values()):
        return [block.busy_s for block in blocks]
    return [
        block.busy_s
        * np.array([speeds.get(name, 1.0) for name in block.executors])[block.executor_of]
        for block in blocks
    ]
