r"""Load of key groups since its last change, and the accuracy of the estimate.

A period of few rows tells little: of 60 rows on an executor chance alone makes one eighth more or
less.  More periods tell more, but only as long as nothing changes.  So a *load window* reaches back
to the last change of the load's distribution over key groups, as in adaptive windowing (Bifet and
Gavaldà, "Learning from time-changing data with adaptive windowing", SDM 2007): after every epoch
its latest part is compared with all before, for parts of several lengths, and where the two differ
by more than noise, the earlier part is dropped.  Statistics of a stream that stays as it is become
ever more exact; those of one that shifts are of the new load alone, two epochs later, or one.

The compared values are *shares* of the component's load, so a changed rate does not count.

Noise is counted, and measured.  A key group that had :math:`N` rows and :math:`B` seconds has by
chance (Poisson) a variance of :math:`B^2 / N`; its deviation from its share from epoch to epoch is
measured, which includes rows of unequal cost.  The more epochs, the more the second counts.  What
all key groups of an executor have in common, a machine that does other things besides, makes sums
over executors stray by more than their parts; that factor is measured too.  Both are remembered
when the window is cut.

One epoch may be odd by a burst of rows or a pause of a machine, and so the next one has to agree.
Not so where the last odd epoch was the first of a change: then a change is believed after one
epoch, since waiting would cost another epoch at the wrong places.  If the next epoch disagrees, the
earlier part is taken back, and the next odd epoch is waited for again.

Invariants: blocks of the window are few (their lengths grow in powers of two), so an epoch costs a
few operations on arrays of as many numbers as there are key groups; nothing is older than
`_LONGEST_S`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.model.assignment import Assignment
    from godwit.model.key_groups import KeyGroupLoad
    from godwit.placement.arrays import BoolArray, FloatArray, IntArray

_LONGEST_S = 600.0
_SINGLE_EPOCHS = 16
"""Number of blocks of single epochs at the end of the window."""
_PARTS = (2, 3, 4, 6, 8, 12, 16)
"""Lengths of the latest part that is compared with the rest; older blocks are tried, too."""
_IS_TRIED = np.isin(np.arange(_PARTS[-1] + 1), (1, *_PARTS))
_MIN_EPOCHS_BEFORE = 4
"""Min. number of epochs before that part."""
_MIN_EPOCHS_BEFORE_AGAIN = 2
"""The same if the last odd epoch was a change, since noise is known from before."""
_CHANGE_SIGMAS = 6.0
"""Standard errors that are a change.

An hour of epochs is looked at in parts of many lengths on every executor, and pauses of executors
are not normally distributed: at 5.5 one in fifty streams of an hour had such a change by chance.
"""
_SKEW = (_CHANGE_SIGMAS**2 - 1) / (6 * _CHANGE_SIGMAS)
"""Increase of that with the skewness of an error (the expansion of Cornish and Fisher)."""
_MATERIAL_SHARE = 0.05
"""Min. change of an executor's load, as a share of its mean, that ends a period early."""
_ROWS = 20
"""Min. number of a key group's rows in the latest part for a separate test."""
_UNEQUAL_ROWS = float(np.e)
"""Ratio of measured to counted noise before measurements: for log-normal costs with deviation 1."""
_NOISE_PRIOR_EPOCHS = 8.0
"""Number of epochs after which measured noise has the same weight as counted noise."""
_MOST_TOGETHER = 25.0
_OUTLIER = 4.0
"""Standard errors, by the known noise, at which the weight of an epoch is capped."""


_EPOCHS, _APART, _TOGETHER, _STRAYED = range(4)
"""Columns of a block's numbers: epochs; squares of what key groups strayed, and of what executors
did, both summed; epochs of which these are known."""


@dataclass(slots=True, kw_only=True)
class _Sums:
    """Sums over some epochs."""

    # shape ``(3, G)``: rows, busy seconds, and squares of what each key group strayed from its
    # share, in standard seconds
    vectors: FloatArray
    numbers: FloatArray  # shape ``(4,)``: see `_EPOCHS`

    def plus(self, vectors: FloatArray, numbers: FloatArray) -> _Sums:
        """Return these sums with those of another block of epochs added."""
        return _Sums(vectors=self.vectors + vectors, numbers=self.numbers + numbers)

    @property
    def epochs(self) -> int:
        """Number of epochs."""
        return int(self.numbers[_EPOCHS])

    @property
    def busy_s(self) -> FloatArray:
        """Seconds that each key group kept its lane busy."""
        busy_s: FloatArray = self.vectors[1]
        return busy_s

    @property
    def counted(self) -> FloatArray:
        """Variance of each key group's busy seconds if rows arrived at random."""
        rows, busy_s, _ = self.vectors
        counted: FloatArray = busy_s * busy_s / np.maximum(rows, 1.0)
        return counted


class _Blocks:
    """Blocks of consecutive epochs under one placement, oldest first: a row of arrays each."""

    def __init__(self, num_key_groups: int) -> None:
        self._vectors = np.zeros((2 * _SINGLE_EPOCHS, 3, num_key_groups))  # see `_Sums`
        self._numbers = np.zeros((2 * _SINGLE_EPOCHS, 4))
        # executors of each, the executor of each key group, and when it ended
        self._placements: list[tuple[tuple[str, ...], IntArray, float]] = []

    def __len__(self) -> int:
        return len(self._placements)

    @property
    def vectors(self) -> FloatArray:
        """Rows, busy seconds and squared deviations: shape ``(n, 3, G)``, a writable view."""
        return self._vectors[: len(self._placements)]

    @property
    def numbers(self) -> FloatArray:
        """Sums of each block, see `_EPOCHS`: shape ``(n, 4)``, a writable view."""
        return self._numbers[: len(self._placements)]

    def standard(self, speeds: Mapping[str, float]) -> FloatArray:
        """Return `vectors`, with busy seconds as on executors of speed 1.

        `speeds`: executor → its speed, if that is not 1.
        """
        if not speeds:  # of executors whose speed is another than 1
            return self.vectors
        vectors = self.vectors.copy()
        for block, (executors, executor_of, _) in enumerate(self._placements):
            vectors[block, 1] *= np.array([speeds.get(name, 1.0) for name in executors])[
                executor_of
            ]
        return vectors

    def add(self, assignment: Assignment, load: KeyGroupLoad, ended_s: float) -> None:
        """Add a block of one epoch: its loads, its assignment, and the time when it ended."""
        block = self._add_empty_block(assignment.executors, assignment.executor_of, ended_s)
        self._vectors[block], self._numbers[block] = 0.0, (1, 0, 0, 0)
        self._vectors[block, :2, load.key_groups] = np.stack((load.rows, load.busy_s), axis=1)

    def _add_empty_block(
        self, executors: tuple[str, ...], executor_of: IntArray, ended_s: float
    ) -> int:
        """Make room for another block; return its position."""
        block = len(self._placements)
        if block == len(self._vectors):
            self._vectors = np.concatenate((self._vectors, np.zeros_like(self._vectors)))
            self._numbers = np.concatenate((self._numbers, np.zeros_like(self._numbers)))
        self._placements.append((executors, executor_of, ended_s))
        return block

    def remove(self, first: int, stop: int) -> None:
        """Remove some consecutive blocks."""
        count, rest = len(self._placements), len(self._placements) - stop
        self._vectors[first : first + rest] = self._vectors[stop:count]
        self._numbers[first : first + rest] = self._numbers[stop:count]
        del self._placements[first:stop]

    def take_last(self) -> _Blocks:
        """Remove the last block, and return it as a separate sequence."""
        last = _Blocks(self._vectors.shape[2])
        last.append(self)
        self.remove(len(self._placements) - 1, len(self._placements))
        return last

    def append(self, other: _Blocks) -> None:
        """Append the last block of another sequence."""
        executors, executor_of, ended_s = other._placements[-1]
        block = self._add_empty_block(executors, executor_of, ended_s)
        self._vectors[block], self._numbers[block] = other.vectors[-1], other.numbers[-1]

    def forget_deviations(self) -> None:
        """Drop the deviations of key groups: those from an earlier load are not noise."""
        self.vectors[:, 2] = 0.0
        self.numbers[:, _APART:] = 0.0

    def remove_before(self, since_s: float) -> None:
        """Remove the blocks that ended before `since_s`, but not the last one."""
        count = 0
        while count < len(self._placements) - 1 and self._placements[count][2] < since_s:
            count += 1
        if count:
            self.remove(0, count)

    def merge_old(self) -> None:
        """Merge consecutive old blocks of equal lengths under one placement."""
        for block in range(len(self._placements) - _SINGLE_EPOCHS - 2, -1, -1):
            shorter = self._numbers[block, _EPOCHS] <= self._numbers[block + 1, _EPOCHS]
            if shorter and self._same_place(block):
                self._vectors[block] += self._vectors[block + 1]
                self._numbers[block] += self._numbers[block + 1]
                self._placements[block] = self._placements[block + 1]
                self.remove(block + 1, block + 2)

    def _same_place(self, block: int) -> bool:
        """Return whether key groups are on the same executors in a block and the next one."""
        (before, owner, _), (executors, later, _) = (
            self._placements[block],
            self._placements[block + 1],
        )
        return before == executors and (owner is later or bool((owner == later).all()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadShares:
    """Shares of a component's load, shape ``(G,)`` each, and the variances of their estimates."""

    share: FloatArray
    variance: FloatArray
    epochs: int  # that they were measured in


class LoadWindow:
    """Loads of one component's key groups since they last changed."""

    def __init__(self, num_key_groups: int) -> None:
        self._blocks = _Blocks(num_key_groups)
        # measured noise over counted noise, and noise of sums over that of their parts, as known
        # from before the window
        self._usual_dispersion, self._joint_variance_ratio = _UNEQUAL_ROWS, 1.0
        self.shifted = False  # the last epoch showed a change by which executors' loads differ
        # whether the last epoch alone differed, and whether the last one that did was a change
        self._last_differed, self._last_difference_was_change = False, False
        self._blocks_before_change: _Blocks | None = (
            None  # before a change that the last epoch alone showed
        )

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
        blocks = self._blocks
        blocks.remove_before(now_s - _LONGEST_S)
        blocks.add(assignment, load, now_s)
        vectors = blocks.standard(speeds)
        first = max(len(blocks) - 1 - _PARTS[0], 0)
        window = window_before = _sums_over_blocks(vectors[:first], blocks.numbers[:first])
        for block in range(first, len(blocks) - 1):
            window = window.plus(vectors[block], blocks.numbers[block])
        self._note_deviations(vectors[-1], window, assignment)
        whole_window = window.plus(vectors[-1], blocks.numbers[-1])
        if self._blocks_before_change is None:
            self._cut_at_change(vectors, window_before, whole_window, assignment)
        else:
            self._confirm_change(self._blocks_before_change, speeds, assignment)
        self._blocks.merge_old()

    def shares(self, speeds: Mapping[str, float]) -> LoadShares | None:
        """Return the shares of load of key groups; ``None`` if nothing was measured."""
        speeds = {name: speed for name, speed in speeds.items() if speed != 1.0}
        window = _sums_over_blocks(self._blocks.standard(speeds), self._blocks.numbers)
        total_s = float(window.busy_s.sum())
        if not total_s:
            return None
        dispersion, joint_ratio = self._variance_ratios(window)
        counted_variance = _NOISE_PRIOR_EPOCHS * dispersion * window.counted
        strayed = float(window.numbers[_STRAYED])
        variance = (window.epochs * window.vectors[2] + counted_variance) / (
            strayed + _NOISE_PRIOR_EPOCHS
        )
        return LoadShares(
            share=window.busy_s / total_s,
            variance=variance * joint_ratio / total_s**2,
            epochs=window.epochs,
        )

    # -- changes ----------------------------------------------------------------------------------

    def _cut_at_change(
        self, vectors: FloatArray, usual: _Sums, every: _Sums, assignment: Assignment
    ) -> None:
        """Drop the epochs before the last significant change of the distribution of load.

        `vectors`: those of the blocks, in standard seconds. `usual`: sums over all blocks but the
        last three, `every` over all.
        """
        blocks = self._blocks
        min_epochs = (
            _MIN_EPOCHS_BEFORE_AGAIN if self._last_difference_was_change else _MIN_EPOCHS_BEFORE
        )
        if every.epochs < min_epochs + _PARTS[0]:
            return
        # the latest parts of the window, from the last block on
        epochs = np.cumsum(blocks.numbers[:0:-1, _EPOCHS]).astype(np.int64)
        parts = np.cumsum(vectors[:0:-1, :2], axis=0)
        busy_after_s, total_s = parts[:, 1].sum(axis=1), float(every.busy_s.sum())
        is_tried = _IS_TRIED[np.minimum(epochs, _PARTS[-1])]
        is_tried &= (epochs <= every.epochs - min_epochs) & (
            np.minimum(busy_after_s, total_s - busy_after_s) > 0
        )
        if not is_tried.any():
            return
        positions, epochs = np.flatnonzero(is_tried), epochs[is_tried]
        scores, moved = self._compare_with_rest(
            parts[is_tried], every, self._variance_ratios(usual), assignment
        )
        worst = int(np.argmax(np.where(epochs > 1, scores, 0.0)))
        half_as_long = int(np.argmax(2 * epochs >= epochs[worst]))
        # What the last epoch alone shows may pass, or continue: the next one will tell. What the
        # later half of the part does not show was one odd epoch.
        last_score = scores[0] if epochs[0] == 1 else 0.0  # an epoch of no time was not tried
        if max(_CHANGE_SIGMAS, last_score) < scores[worst] <= 2 * scores[half_as_long]:
            cut = len(blocks) - 1 - int(positions[worst])
            self._usual_dispersion, self._joint_variance_ratio = self._variance_ratios(
                _sums_over_blocks(vectors[:cut], blocks.numbers[:cut])
            )
            blocks.remove(0, cut)
            blocks.forget_deviations()
            self._last_difference_was_change |= self._last_differed
            self.shifted, self._last_differed = bool(moved[worst]), False
        elif self._last_difference_was_change and last_score > _CHANGE_SIGMAS:
            self._blocks_before_change, self._blocks = blocks, blocks.take_last()
            self._blocks.forget_deviations()
            self.shifted = bool(moved[0])
        else:
            is_odd = bool(last_score > _CHANGE_SIGMAS)
            self._last_difference_was_change &= is_odd or not self._last_differed
            self._last_differed = is_odd

    def _confirm_change(
        self, former: _Blocks, speeds: Mapping[str, float], assignment: Assignment
    ) -> None:
        """Return to the `former` epochs if the last epoch is like them, not the one before."""
        before = _sums_over_blocks(former.standard(speeds), former.numbers)
        epoch, numbers = self._blocks.standard(speeds)[-1], self._blocks.numbers[-1]
        if not epoch[1].any():
            return  # of no time: the next one tells
        self._blocks_before_change, whole_window = None, before.plus(epoch, numbers)
        scores, _ = self._compare_with_rest(
            epoch[None, :2], whole_window, self._variance_ratios(before), assignment
        )
        self._last_difference_was_change = bool(scores[0] > _CHANGE_SIGMAS)
        if self._last_difference_was_change:
            self._usual_dispersion, self._joint_variance_ratio = self._variance_ratios(before)
        else:
            former.append(self._blocks)
            self._blocks, self.shifted = former, True

    def _compare_with_rest(
        self,
        parts: FloatArray,
        every: _Sums,
        noise: tuple[float, float],
        assignment: Assignment,
    ) -> tuple[FloatArray, BoolArray]:
        """Return the difference of parts of the window from the rest, in standard errors.

        And whether executors' loads differ by that much, and materially. `parts`: rows and standard
        seconds of each, shape ``(n, 2, G)``. `every`: sums over the window. `noise`: as before what
        may be a change.
        """
        rows, late_s = parts[:, 0], parts[:, 1]
        late_total_s, total_s = late_s.sum(axis=1), float(every.busy_s.sum())
        early_total_s = total_s - late_total_s
        share_differences = (
            late_s / late_total_s[:, None] - (every.busy_s - late_s) / early_total_s[:, None]
        )
        # variance of a second's load, by the counts in the whole window
        dispersion, joint_ratio = noise
        rate = dispersion * joint_ratio * every.counted / total_s
        standard_error = np.sqrt(1 / late_total_s + 1 / early_total_s)[:, None]
        owner, num_executors = assignment.executor_of, len(assignment.executors)
        places = owner + num_executors * np.arange(len(share_differences))[:, None]
        sums = np.bincount(
            places.ravel(), share_differences.ravel(), num_executors * len(share_differences)
        )
        sums = np.abs(sums.reshape(len(share_differences), num_executors))
        by_executor = sums / (
            np.sqrt(np.bincount(owner, rate, num_executors)) * standard_error + 1e-12
        )
        # The sum of few rows of unequal cost is skewed, as of log-normal costs of this dispersion.
        skewed = 1 + _SKEW * max(dispersion, 1.0) ** 1.5 / np.sqrt(np.maximum(rows, 1.0))
        by_key_group = np.where(rows >= _ROWS, np.abs(share_differences), 0.0) / (
            np.sqrt(rate) * standard_error * skewed + 1e-12
        )
        is_shifted = (by_executor > _CHANGE_SIGMAS) & (sums * num_executors > _MATERIAL_SHARE)
        return np.maximum(by_executor.max(axis=1), by_key_group.max(axis=1)), is_shifted.any(axis=1)

    # -- noise ------------------------------------------------------------------------------------

    def _note_deviations(self, epoch: FloatArray, window: _Sums, assignment: Assignment) -> None:
        """Add the squared deviations of the last block from the shares of the window before it.

        `epoch`: its vectors, in standard seconds. Very large deviations are capped, since they are
        not noise: such as loading of state, or an executor that has become slow.
        """
        epoch_s = epoch[1]
        total_s, window_s = float(epoch_s.sum()), float(window.busy_s.sum())
        if not (total_s > 0 and window_s > 0):
            return
        dispersion, joint_ratio = self._variance_ratios(window)
        deviations = epoch_s - window.busy_s * (total_s / window_s)
        # The share that it strays from has an error of its own.
        weight = 1 / (1 + total_s / window_s)
        usual_deviation = window.counted * (total_s / window_s) * _OUTLIER**2 * max(dispersion, 1.0)
        executor_of = assignment.executor_of
        by_executor = np.minimum(
            np.bincount(executor_of, deviations) ** 2,
            np.bincount(executor_of, usual_deviation) * max(joint_ratio, 1.0),
        )
        squares = (
            np.minimum(deviations * deviations, np.maximum(usual_deviation, usual_deviation.mean()))
            * weight
        )
        self._blocks.vectors[-1, 2] = epoch[2] = squares
        self._blocks.numbers[-1] = 1, squares.sum(), float(by_executor.sum()) * weight, 1

    def _variance_ratios(self, sums: _Sums) -> tuple[float, float]:
        """Return two smoothed ratios of variances.

        Of key groups' loads, as measured over what chance explains; and of executors' loads over
        the sum of those of their key groups, which is 1 if these are independent.
        """
        epochs, separate_squares, joint_squares, num_deviating = sums.numbers.tolist()
        trust = num_deviating / (num_deviating + _NOISE_PRIOR_EPOCHS)
        dispersion, factor = self._usual_dispersion, self._joint_variance_ratio
        if (counted := float(sums.counted.sum())) > 0:
            measured = float(sums.vectors[2].sum()) * epochs / max(num_deviating, 1)
            dispersion += trust * (measured / counted - dispersion)
        if separate_squares > 0:
            factor += trust * (
                min(max(joint_squares / separate_squares, 1.0), _MOST_TOGETHER) - factor
            )
        return dispersion, factor


def _sums_over_blocks(vectors: FloatArray, numbers: FloatArray) -> _Sums:
    """Return the sums over some blocks."""
    return _Sums(vectors=vectors.sum(axis=0), numbers=numbers.sum(axis=0))
