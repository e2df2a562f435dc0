"""Projected costs as a value: look-up, encoding, and refusal of problems they do not fit.

The table is computed by `pmc` and used by `mtm`.  It is saved as bytes of a NumPy archive without
pickled objects, so opening one is safe.
"""

from __future__ import annotations

import io
import itertools
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from godwit.placement.arrays import wrong_value
from godwit.placement.registry import Number, WholeNumber, read_option
from godwit.placement.solution import RELATIVE_TOLERANCE
from godwit_lab.planners.intervals.ssm import last_cuts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.placement.arrays import FloatArray, IntArray
    from godwit.placement.problem import Problem

FORMAT = 2


def last_cuts_within_tau(problem: Problem, parts: int, gamma: float = 0.0) -> IntArray:
    """Return the last cut within τ of an interval that begins at each cut, for `parts` executors.

    Raises `InvalidProblemError` if τ is missing or gamma is not in [0, 1).
    """
    if problem.limits.tau is None:
        raise wrong_value("limits.tau", None, "give the load balancing threshold")
    if not 0 <= gamma < 1:
        raise wrong_value("gamma", gamma, "give a discount factor of at least 0 and below 1")
    limit = (1 + problem.limits.tau) * float(problem.weight.sum()) / parts
    return last_cuts_of(problem.weight, limit * (1 + RELATIVE_TOLERANCE / 2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transitions:
    """A migration transition matrix (MTM): how the number of executors changes with each migration.

    Paper 1 §5.2: entry (n, n') is the probability of migrating from n to n' executors. Rows sum to
    1, and sizes ascend from 1 or more; `InvalidProblemError` otherwise.
    """

    sizes: tuple[int, ...]  # numbers of executors, ascending
    # shape ``(s, s)``: entry (i, j) is the probability to go from ``sizes[i]`` to ``sizes[j]``
    probability: FloatArray

    def __post_init__(self) -> None:
        sizes = tuple(int(n) for n in self.sizes)
        try:
            probability = np.array(self.probability, np.float64)
        except ValueError:
            remedy = "give numbers, as many in each row"
            raise wrong_value("transitions.probability", self.probability, remedy) from None
        if not sizes or sizes[0] < 1 or sorted(set(sizes)) != list(sizes):
            raise wrong_value("transitions.sizes", sizes, "give ascending numbers of at least 1")
        if probability.shape != (len(sizes), len(sizes)):
            raise wrong_value(
                "transitions.probability", probability.shape, "give a row for each size"
            )
        sums = probability.sum(axis=1)
        bad = ~((probability >= 0).all(axis=1) & (np.abs(sums - 1) <= 1e-6))
        if bad.any():
            i = int(bad.argmax())
            raise wrong_value(
                f"transitions.probability[{i}]",
                probability[i].tolist(),
                "give probabilities that sum to 1",
            )
        probability /= sums[:, None]
        probability.setflags(write=False)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "probability", probability)

    @classmethod
    def from_option(cls, value: Any, name: str) -> Transitions | None:
        """Return the matrix of a planner's option `name`, from a matrix or plain values."""
        if value is None or isinstance(value, Transitions):
            return value
        matrix: _Matrix = read_option(value, _Matrix, name)
        return cls(sizes=matrix.sizes, probability=np.array(matrix.probability, np.float64))


class _Matrix(msgspec.Struct, forbid_unknown_fields=True):
    """Plain values of `Transitions`."""

    sizes: tuple[WholeNumber, ...]
    probability: list[list[Number]]


def estimate_transitions(
    log: Sequence[int], *, sizes: Sequence[int] | None = None, stays: bool = False
) -> Transitions:
    """Estimate transitions from a log: the number of executors in each past period, oldest first.

    Two equal numbers in a row count only if `stays`: the paper counts only changes (§6). A number
    that no migration was seen to leave goes to itself with probability 1. Raises
    `InvalidProblemError` if the log is empty or holds a number that is not in `sizes` (default:
    those that occur).

    Examples
    --------
    >>> estimate_transitions([2, 3, 3, 2, 4, 2, 3]).probability.tolist()
    [[0.0, 0.6666666666666666, 0.3333333333333333], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    if len(log) == 0:
        raise wrong_value("log", [], "give at least one number of executors")
    rows = tuple(sorted(set(log))) if sizes is None else tuple(sizes)
    place = {n: i for i, n in enumerate(rows)}
    for i, n in enumerate(log):
        if n not in place:
            raise wrong_value(f"log[{i}]", n, f"give one of the sizes {rows}")
    counts = np.zeros((len(rows), len(rows)))
    for before, after in itertools.pairwise(log):
        if stays or before != after:
            counts[place[before], place[after]] += 1
    silent = counts.sum(axis=1) == 0
    counts[np.flatnonzero(silent), np.flatnonzero(silent)] = 1
    return Transitions(sizes=rows, probability=counts / counts.sum(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Space:
    """Partitionings that future migrations may pass."""

    transitions: Transitions  # sizes and their probabilities
    gamma: float  # discount factor
    cuts: tuple[IntArray, ...]  # per size n, shape ``(N_n, n + 1)``: partitionings
    state_before: FloatArray  # shape ``(m + 1,)``: bytes of state before each cut

    @classmethod
    def of(
        cls,
        problem: Problem,
        transitions: Transitions,
        *,
        cuts: tuple[IntArray, ...],
        gamma: float,
    ) -> Space:
        """Return the space of the partitionings (`cuts`) of every size of a problem.

        Raises `InvalidProblemError` if a size has none.
        """
        for n, rows in zip(transitions.sizes, cuts, strict=True):
            if len(rows) == 0:
                raise wrong_value(
                    "limits.tau", problem.limits.tau, f"no {n} intervals are within it; raise it"
                )
        state_before = np.concatenate(([0.0], np.cumsum(problem.state_bytes)))
        return cls(transitions=transitions, gamma=gamma, cuts=cuts, state_before=state_before)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProjectedCost:
    """Expected bytes of future migrations from each partitioning."""

    space: Space  # the partitionings it knows
    cost: tuple[FloatArray, ...]  # per size, shape ``(N_n,)``: discounted expected bytes
    weight: FloatArray  # shape ``(m,)``: the loads it was computed for
    tau: float  # the τ it was computed for
    exact: bool  # whether `space` holds every partitioning within τ
    error_bytes: float  # greatest distance of `cost` from the fixed point over `space`
    # what it took
    sweeps: int
    elapsed_s: float
    # of an approximation that was compared with exact costs: by how much a cost is above the exact
    # one at most, relative to the mean of all exact costs
    measured_error: float | None = None
    # the same on average over the partitionings of the table
    measured_mean_error: float | None = None
    partitionings_in_all: int = 0  # how many partitionings within τ there are

    @classmethod
    def from_option(cls, value: Any, name: str) -> ProjectedCost:
        """Return the table of a planner's option `name`; refuse anything else."""
        if not isinstance(value, ProjectedCost):
            raise wrong_value(name, value, "give a table made by `godwit plan precompute`")
        return value

    @classmethod
    def of(cls, problem: Problem, space: Space, **facts: Any) -> ProjectedCost:
        """Return the table of costs over a space, for the loads and τ of a problem.

        `facts`: further fields of the table.
        """
        facts.setdefault("partitionings_in_all", sum(len(rows) for rows in space.cuts))
        assert problem.limits.tau is not None, "a space has a tau"
        return cls(space=space, weight=problem.weight.copy(), tau=problem.limits.tau, **facts)

    @property
    def num_partitionings(self) -> int:
        """Number of partitionings in the table."""
        return sum(len(rows) for rows in self.space.cuts)

    def size_index(self, parts: int) -> int:
        """Return the row of a size (number of intervals) in the transition matrix.

        Raises `InvalidProblemError` if the matrix has no row for it.
        """
        sizes = self.space.transitions.sizes
        if parts not in sizes:
            raise wrong_value(
                "limits.target_executors", parts, f"the transition matrix has only {sizes}"
            )
        return sizes.index(parts)

    def cost_of(self, cuts: IntArray, parts: int) -> float:
        """Return the cost of a partitioning into `parts` intervals.

        Raises `InvalidProblemError` if the table does not have it.
        """
        size = self.size_index(parts)
        rows = np.flatnonzero((self.space.cuts[size] == cuts).all(axis=1))
        if len(rows) == 0:
            raise wrong_value("cuts", cuts.tolist(), "the table does not hold this partitioning")
        return float(self.cost[size][rows[0]])

    def refuse_unless_fits(self, problem: Problem, *, max_drift: float = 0.0) -> None:
        """Raise if the costs were computed for another problem; name the first difference.

        `max_drift` is the greatest sum of absolute differences of loads, and of state sizes,
        relative to their sum. Costs drift with them, so a caller has to say how much is acceptable.
        """
        ours, theirs = len(self.weight), problem.num_key_groups
        if ours != theirs:
            raise wrong_value("projected", f"{ours} key groups", f"the problem has {theirs}")
        if problem.limits.tau != self.tau:
            raise wrong_value(
                "projected", f"tau = {self.tau}", f"the problem has tau = {problem.limits.tau}"
            )
        state = np.diff(self.space.state_before)
        for name, old, new in (
            ("load", self.weight, problem.weight),
            ("state_bytes", state, problem.state_bytes),
        ):
            drift = float(np.abs(old - new).sum()) / max(float(old.sum()), 1e-300)
            if drift > max_drift + RELATIVE_TOLERANCE:
                raise wrong_value(
                    "projected",
                    f"{name} differs by {drift:.3g}",
                    f"compute it again, or allow max_drift of at least {drift:.3g}",
                )

    def to_bytes(self) -> bytes:
        """Encode the table as a NumPy archive without pickled objects."""
        transitions = self.space.transitions
        arrays: dict[str, Any] = {
            f"cuts_{n}": c for n, c in zip(transitions.sizes, self.space.cuts, strict=True)
        }
        arrays |= {f"cost_{n}": c for n, c in zip(transitions.sizes, self.cost, strict=True)}
        errors = [
            np.nan if error is None else error
            for error in (self.measured_error, self.measured_mean_error)
        ]
        numbers = (FORMAT, self.space.gamma, self.tau, self.exact, self.error_bytes, self.sweeps,
                   self.elapsed_s, *errors, self.partitionings_in_all)  # fmt: skip
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            allow_pickle=False,
            sizes=np.array(transitions.sizes),
            probability=transitions.probability,
            kept=self.space.state_before,
            weight=self.weight,
            numbers=np.array(numbers, np.float64),
            **arrays,
        )
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> ProjectedCost:
        """Restore a table from the bytes that `to_bytes` returned.

        Raises `InvalidProblemError` if the bytes are not those of a table, or of another version of
        it.
        """
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                arrays = dict(archive)
            sizes = tuple(arrays["sizes"].tolist())
            cuts = tuple(arrays[f"cuts_{n}"] for n in sizes)
            cost = tuple(arrays[f"cost_{n}"] for n in sizes)
            version, *numbers = arrays["numbers"].tolist()
            if version == FORMAT:
                gamma, tau, exact, bound, sweeps, elapsed, error, mean_error, count = numbers
            probability, state_before, weight = (
                arrays["probability"],
                arrays["kept"],
                arrays["weight"],
            )
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as problem:
            raise wrong_value(
                "projected", "these bytes", f"they are no table: {problem}"
            ) from problem
        if version != FORMAT:
            raise wrong_value(
                "projected", f"format {version}", f"this version reads format {FORMAT}"
            )
        space = Space(
            transitions=Transitions(sizes=sizes, probability=probability),
            gamma=gamma,
            cuts=cuts,
            state_before=state_before,
        )
        return cls(
            space=space,
            cost=cost,
            weight=weight,
            tau=tau,
            exact=bool(exact),
            error_bytes=bound,
            sweeps=int(sweeps),
            elapsed_s=elapsed,
            measured_error=None if np.isnan(error) else error,
            measured_mean_error=None if np.isnan(mean_error) else mean_error,
            partitionings_in_all=int(count),
        )
