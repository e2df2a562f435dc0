"""Correlation-based load balancing: one plan for many windows, from how loads vary together.

Problem: an assignment with a small imbalance summed over the last m windows,
``ħ = Σ_t var(L_t)``, made once every m windows so that its state movement is amortised.

Invariant: starting from one set of all substreams (our key groups), each run splits the set of the
substream that contributes most to the cross covariance: those that vary with it leave, so
substreams whose loads rise together end up apart.

Source: paper 4 §4, Algorithm 2, with two changes.  Equations 4 and 5 make ħ equal to the variances
of the executors' loads only if their mean loads are equal, which the algorithm does not see to; so
the sets are then evened out by moving substreams that lower ħ itself (``refine``; 0 gives the
paper's sets).  And sets are given to executors so that most state stays (a maximum-weight
matching), which ħ does not notice where executors are equal.  The covariance matrix is never
stored: it is made in blocks, each pair of substreams at most twice.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from godwit.planning import metrics
from godwit.planning.arrays import FloatArray, IndexArray, IntArray, wrong_value
from godwit.planning.validation import make_solution

if TYPE_CHECKING:
    from godwit.planning.arrays import Clock
    from godwit.planning.problem import Problem
    from godwit.planning.solution import Solution

__all__ = ["plan_clb", "split_by_covariance"]

_BLOCK = 512
"""Rows of the covariance matrix made at a time: a block stays in the processor's cache."""


def plan_clb(
    problem: Problem,
    *,
    threshold: float = 0.0,
    refine: int = 2,
    clock: Clock = time.perf_counter,
) -> Solution:
    """Low imbalance over the history's windows (paper 4, Algorithm 2).

    Minimises ħ heuristically; knows no limit on moves. O(p²·m) time and O(p·m) space for p key
    groups and m windows.

    Parameters
    ----------
    problem
        Needs a history of at least two windows.
    threshold
        θ: two substreams are kept apart when their covariance is at least θ times the mean
        variance; 0 ≤ θ < 1.
    refine
        Passes over the key groups that move each to where ħ is least; 0: none, as in the paper.
        With any, today's assignment is kept where its ħ is no worse.

    Returns
    -------
    Solution
        `objective` is ħ.

    Raises
    ------
    InvalidProblemError
        If the history is too short or an option is out of range.
    """
    if len(problem.history) < 2:
        raise wrong_value("history", f"{len(problem.history)} windows", "clb needs at least 2")
    if not 0 <= threshold < 1:
        raise wrong_value("options.threshold", threshold, "give 0 ≤ θ < 1")
    if refine < 0:
        raise wrong_value("options.refine", refine, "give at least 0")
    start = clock()
    available = problem.available
    series = np.ascontiguousarray(problem.history.T)
    group = split_by_covariance(series, len(available), threshold=threshold)
    speed = problem.speed[available]
    if refine:
        _even_out(series, group, speed, refine)
    place = _match(problem, group, available)
    assignment = place[group].astype(np.int32)
    if not problem.homogeneous and refine:
        _even_out(series, assignment, problem.speed, 1, among=available)
    kept = not problem.draining[problem.current].any()
    if (
        refine
        and kept
        and metrics.history_imbalance(problem, problem.current)
        <= (metrics.history_imbalance(problem, assignment))
    ):
        assignment = problem.current
    return make_solution(
        problem,
        assignment,
        method="clb",
        objective=metrics.history_imbalance(problem, assignment),
        elapsed_s=clock() - start,
    )


def split_by_covariance(series: FloatArray, num_sets: int, *, threshold: float = 0.0) -> IntArray:
    """Set of each substream after num_sets - 1 splits (paper 4, Algorithm 2, lines 2-23).

    Ties: the lowest substream. A substream whose set cannot be split any more (nothing varies with
    it) is passed over; if none can, fewer sets come out.

    Parameters
    ----------
    series
        Shape ``(p, m)``: load of each substream in each window.
    num_sets
        n.
    threshold
        θ as a share of the substreams' mean variance.
    """
    centred = series - series.mean(axis=1, keepdims=True)
    windows = series.shape[1]
    centred /= np.sqrt(windows)
    bar = threshold * float((centred**2).sum(axis=1).mean())
    size = len(series)
    group = np.zeros(size, np.int32)
    contribution = _all_sums(centred, bar)
    for new in range(1, num_sets):
        k, leaving, staying = _next_split(centred, group, contribution, bar)
        if k < 0:
            break
        group[leaving] = new
        # Each pair that is parted no longer counts on either side.
        of_leaving, of_staying = _sums_between(centred, leaving, staying, bar)
        contribution[leaving] -= of_leaving
        contribution[staying] -= of_staying
    return group


def _next_split(
    centred: FloatArray, group: IntArray, contribution: FloatArray, bar: float
) -> tuple[int, IndexArray, IndexArray]:
    order = np.argsort(-contribution, kind="stable")
    nothing = np.empty(0, np.int64)
    for k in order.tolist():
        if contribution[k] <= 0:
            break
        mine = np.flatnonzero(group == group[k])
        together = centred[mine] @ centred[k] >= bar
        together &= mine != k
        if together.any():
            return k, mine[together], mine[~together]
        contribution[k] = 0.0  # only rounding was left of it
    return -1, nothing, nothing


def _all_sums(centred: FloatArray, bar: float) -> FloatArray:
    """Sum each substream's covariances with all others that are at least `bar`, shape ``(p,)``."""
    size = len(centred)
    sums = np.zeros(size)
    left = centred.astype(np.float32)
    right = np.ascontiguousarray(left.T)
    for at in range(0, size, _BLOCK):
        end = min(at + _BLOCK, size)
        # Covariance is symmetric: what is right of the block's diagonal square counts both ways.
        covariance = _at_least(left[at:end] @ right[:, at:], bar)
        np.fill_diagonal(covariance, 0.0)
        sums[at:end] += covariance @ np.ones(size - at, np.float32)
        sums[end:] += np.ones(end - at, np.float32) @ covariance[:, end - at :]
    return sums


def _sums_between(
    centred: FloatArray, rows: IndexArray, columns: IndexArray, bar: float
) -> tuple[FloatArray, FloatArray]:
    """Sum, for the members of two sets, the covariances with the other set that reach `bar`."""
    of_rows, of_columns = np.zeros(len(rows)), np.zeros(len(columns))
    left = centred[rows].astype(np.float32)
    right = np.ascontiguousarray(centred[columns].T, np.float32)
    for at in range(0, len(rows), _BLOCK):
        covariance = _at_least(left[at : at + _BLOCK] @ right, bar)
        of_rows[at : at + _BLOCK] = covariance @ np.ones(len(columns), np.float32)
        of_columns += np.ones(len(covariance), np.float32) @ covariance
    return of_rows, of_columns


def _at_least(covariance: npt.NDArray[np.float32], bar: float) -> npt.NDArray[np.float32]:
    if bar == 0:
        return np.maximum(covariance, np.float32(0), out=covariance)
    covariance *= covariance >= bar
    return covariance


def _even_out(
    series: FloatArray,
    group: IntArray,
    speed: FloatArray,
    passes: int,
    *,
    among: IntArray | None = None,
) -> None:
    """Move each substream to the set where Σ_t Σ_i (L_it/c_i)² is least, heaviest first, in place.

    ħ falls with that sum wherever the mean load index per window does not depend on the assignment,
    that is where executors are equal; otherwise the fair share is subtracted first.
    """
    among = np.arange(len(speed), dtype=np.int32) if among is None else among
    windows = series.shape[1]
    totals = np.zeros((len(speed), windows))
    np.add.at(totals, group, series)
    fair = series.sum(axis=0) / speed[among].sum()
    # Deviation of the index, D = L/c - fair; adding y to i changes ΣD² by (2·D_i·y + y²/c)/c.
    deviation = totals / speed[:, None] - fair
    square = (series**2).sum(axis=1)
    order = np.argsort(-square, kind="stable")
    inverse = 1.0 / speed
    for _ in range(passes):
        changed = False
        for k in order.tolist():
            own = int(group[k])
            y = series[k]
            deviation[own] -= y * inverse[own]
            rise = (2 * (deviation[among] @ y) + square[k] * inverse[among]) * inverse[among]
            best = int(among[int(rise.argmin())])
            stay = float((2 * (deviation[own] @ y) + square[k] * inverse[own]) * inverse[own])
            if rise.min() >= stay * (1 - 1e-12) - 1e-12:
                best = own
            deviation[best] += y * inverse[best]
            if best != own:
                group[k] = best
                changed = True
        if not changed:
            return


def _match(problem: Problem, group: IntArray, available: IntArray) -> IntArray:
    """Executor of each set, keeping as many bytes as possible where they are."""
    n = problem.num_executors
    kept = np.zeros((len(available), n))
    np.add.at(kept, (group, problem.current), problem.state_bytes + 1.0)
    rows, columns = linear_sum_assignment(kept[:, available], maximize=True)
    place = np.empty(len(available), np.int32)
    place[rows] = available[columns]
    return place
