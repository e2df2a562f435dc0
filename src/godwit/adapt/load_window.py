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

from dataclasses import dataclass, replace
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
_UNEQUAL_ROWS = float(np.e)
"""Measured over counted noise until it is measured: of rows whose log-normal costs deviate by 1."""
_TRUST = 8.0
"""Epochs after which measured noise counts as much as counted noise."""
_MOST_TOGETHER = 25.0
_OUTLIER = 4.0
"""Standard errors, by the noise that is known, above which an epoch counts no more."""


@dataclass(slots=True, kw_only=True)
class _Sums:
    """Sums over some epochs; vectors have one entry per key group."""

    # shape ``(3, G)``: rows, busy seconds, and squares of what each key group strayed from its
    # share, in standard seconds
    vectors: FloatArray
    epochs: int = 0
    apart: float = 0.0  # sum of these squares
    together: float = 0.0  # the same of sums over executors
    strayed: int = 0  # epochs of which it is known

    def add(self, other: _Sums) -> None:
        """Add the sums over other epochs."""
        self.vectors += other.vectors
        self.epochs += other.epochs
        self.apart += other.apart
        self.together += other.together
        self.strayed += other.strayed

    def plus(self, blocks: Sequence[_Block], speeds: Mapping[str, float]) -> _Sums:
        """Return the sums over these epochs and over those of blocks, in standard seconds."""
        total = replace(self, vectors=self.vectors.copy())
        for block in blocks:
            total.add(block.standard(speeds))
        return total

    def forget_deviations(self) -> None:
        """Forget the deviations from a load that is another now: they were no noise."""
        self.squares[:] = 0.0
        self.apart = self.together = 0.0
        self.strayed = 0

    @property
    def rows(self) -> FloatArray:
        """Rows of each key group."""
        rows: FloatArray = self.vectors[0]
        return rows

    @property
    def busy_s(self) -> FloatArray:
        """Seconds that each key group kept its lane busy."""
        busy_s: FloatArray = self.vectors[1]
        return busy_s

    @property
    def squares(self) -> FloatArray:
        """Sum of squares of what each key group strayed from its share."""
        squares: FloatArray = self.vectors[2]
        return squares

    @property
    def counted(self) -> FloatArray:
        """Variance of each key group's seconds by chance."""
        return self.busy_s * self.busy_s / np.maximum(self.rows, 1.0)


@dataclass(slots=True, kw_only=True)
class _Block:
    """Some consecutive epochs under one placement."""

    executors: tuple[str, ...]
    executor_of: IntArray
    ended_s: float
    sums: _Sums

    def add(self, other: _Block) -> None:
        """Add the epochs of a later block that has the same assignment."""
        self.ended_s = other.ended_s
        self.sums.add(other.sums)

    def follows(self, other: _Block) -> bool:
        """Return whether key groups are on the same executors as in block `other`."""
        return self.executors == other.executors and (
            self.executor_of is other.executor_of
            or bool((self.executor_of == other.executor_of).all())
        )

    def standard(self, speeds: Mapping[str, float]) -> _Sums:
        """Return the sums with the seconds that executors of speed 1 would have been busy."""
        if not speeds:  # of executors whose speed is another than 1
            return self.sums
        vectors = self.sums.vectors.copy()
        vectors[1] *= np.array([speeds.get(name, 1.0) for name in self.executors])[self.executor_of]
        return replace(self.sums, vectors=vectors)


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
        self._no_epochs = _Sums(vectors=np.zeros((3, num_key_groups)))
        self._blocks: list[_Block] = []
        # measured noise over counted noise, and noise of sums over that of their parts, as known
        # from before the window
        self._dispersion, self._together = _UNEQUAL_ROWS, 1.0
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
        speeds = {name: speed for name, speed in speeds.items() if speed != 1.0}
        self._drop_before(now_s - _LONGEST_S)
        earlier, last = self._blocks[: -_PARTS[0]], self._blocks[-_PARTS[0] :]
        usual = self._no_epochs.plus(earlier, speeds)
        window = usual.plus(last, speeds)
        vectors = np.zeros((3, self._size))
        vectors[:2, load.key_groups] = load.rows, load.busy_s
        block = _Block(
            executors=assignment.executors,
            executor_of=assignment.executor_of,
            ended_s=now_s,
            sums=_Sums(vectors=vectors, epochs=1),
        )
        self._add_deviations(block, window, speeds)
        self._blocks.append(block)
        self._cut_at_change(usual, window.plus([block], speeds), speeds)
        self._merge_blocks()

    def shares(self, speeds: Mapping[str, float]) -> LoadShares | None:
        """Return the shares of load of key groups; ``None`` if nothing was measured."""
        speeds = {name: speed for name, speed in speeds.items() if speed != 1.0}
        every = self._no_epochs.plus(self._blocks, speeds)
        total_s = float(every.busy_s.sum())
        if not total_s:
            return None
        dispersion, together = self._noise(every)
        counted = _TRUST * dispersion * every.counted
        variance = (every.epochs * every.squares + counted) / (every.strayed + _TRUST)
        return LoadShares(
            share=every.busy_s / total_s,
            variance=variance * together / total_s**2,
            epochs=every.epochs,
        )

    # -- changes ----------------------------------------------------------------------------------

    def _cut_at_change(self, usual: _Sums, every: _Sums, speeds: Mapping[str, float]) -> None:
        """Drop the epochs before the last significant change of the distribution of load.

        `usual`: sums over all blocks but the last three, `every` over all.
        """
        blocks = self._blocks
        if every.epochs < _BEFORE + _PARTS[0]:
            return
        # the latest parts of the window, from the last block on
        epochs = np.cumsum([block.sums.epochs for block in blocks[:0:-1]])
        parts = np.cumsum([b.standard(speeds).vectors[:2] for b in blocks[:0:-1]], axis=0)
        late_s = parts[:, 1]
        late, total_s = late_s.sum(axis=1), float(every.busy_s.sum())
        tried = np.isin(epochs, (1, *_PARTS)) | (epochs >= _PARTS[-1])
        tried &= (epochs <= every.epochs - _BEFORE) & (np.minimum(late, total_s - late) > 0)
        if not tried.any():
            return
        at, epochs, late, late_s = np.flatnonzero(tried), epochs[tried], late[tried], late_s[tried]
        seen = parts[tried, 0] >= _ROWS
        early = total_s - late
        differs = late_s / late[:, None] - (every.busy_s - late_s) / early[:, None]
        # variance of a second's load, by the counts in the whole window and by noise as it was
        # before what may be a change
        dispersion, together = self._noise(usual)
        rate = dispersion * together * every.counted / total_s
        known = np.sqrt(1 / late + 1 / early)[:, None]
        owner, num_executors = blocks[-1].executor_of, len(blocks[-1].executors)
        places = owner + num_executors * np.arange(len(differs))[:, None]
        sums = np.bincount(places.ravel(), differs.ravel(), num_executors * len(differs))
        sums = np.abs(sums.reshape(len(differs), num_executors))
        by_executor = sums / (np.sqrt(np.bincount(owner, rate, num_executors)) * known + 1e-12)
        alone = np.where(seen, np.abs(differs), 0.0) / (np.sqrt(rate) * known + 1e-12)
        scores = np.maximum(by_executor.max(axis=1), alone.max(axis=1))
        worst = int(np.argmax(np.where(epochs > 1, scores, 0.0)))
        half = int(np.argmax(2 * epochs >= epochs[worst]))
        # What the last epoch alone shows may pass, or go on: the next one will tell. What the
        # later half of the part does not show was one odd epoch.
        last = scores[0] if epochs[0] == 1 else 0.0  # an epoch of no time was not tried
        if max(_CHANGED, last) < scores[worst] <= 2 * scores[half]:
            cut = len(blocks) - 1 - int(at[worst])
            before = self._no_epochs.plus(blocks[:cut], speeds)
            self._dispersion, self._together = self._noise(before)
            del blocks[:cut]
            for block in blocks:
                block.sums.forget_deviations()
            moved = (by_executor > _CHANGED) & (sums * num_executors > _MATERIAL)
            self.shifted = bool(moved[worst].any())

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
            if one.sums.epochs <= later.sums.epochs and later.follows(one):
                one.add(later)
                del blocks[at + 1]
            at -= 1

    # -- noise ------------------------------------------------------------------------------------

    def _add_deviations(self, block: _Block, window: _Sums, speeds: Mapping[str, float]) -> None:
        """Add to an epoch's sums its squared deviations from the shares of the window before it.

        Very large deviations are capped, since they are not noise: such as loading of state, or an
        executor that has become slow.
        """
        epoch_s = block.standard(speeds).busy_s
        total_s, window_s = float(epoch_s.sum()), float(window.busy_s.sum())
        if not (total_s > 0 and window_s > 0):
            return
        dispersion, together = self._noise(window)
        strayed = epoch_s - window.busy_s * (total_s / window_s)
        # The share that it strays from has an error of its own.
        own = 1 / (1 + total_s / window_s)
        usual = window.counted * (total_s / window_s) * _OUTLIER**2 * max(dispersion, 1.0)
        of, sums = block.executor_of, block.sums
        by_executor = np.minimum(
            np.bincount(of, strayed) ** 2, np.bincount(of, usual) * max(together, 1.0)
        )
        sums.squares[:] = np.minimum(strayed * strayed, np.maximum(usual, usual.mean())) * own
        sums.apart, sums.together = float(sums.squares.sum()), float(by_executor.sum()) * own
        sums.strayed = 1

    def _noise(self, sums: _Sums) -> tuple[float, float]:
        """Return smoothed ratios: measured over counted noise, noise of sums over that of parts."""
        trust = sums.strayed / (sums.strayed + _TRUST)
        dispersion, factor = self._dispersion, self._together
        if (counted := float(sums.counted.sum())) > 0:
            measured = float(sums.squares.sum()) * sums.epochs / max(sums.strayed, 1)
            dispersion += trust * (measured / counted - dispersion)
        if sums.apart > 0:
            together = min(max(sums.together / sums.apart, 1.0), _MOST_TOGETHER)
            factor += trust * (together - factor)
        return dispersion, factor
