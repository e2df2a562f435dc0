"""The migration transition matrix: how the number of executors changes with each migration.

Paper 1 §5.2: entry (n, n') is the probability of migrating from n to n' executors, estimated from a
log of past numbers.  Invariant: rows sum to 1, sizes ascend.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import InvalidProblemError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.planning.arrays import FloatArray

__all__ = ["Transitions", "estimate_transitions"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transitions:
    """A migration transition matrix (MTM).

    Raises `InvalidProblemError` if sizes do not ascend from 1 or more, or a row is not a
    distribution.
    """

    sizes: tuple[int, ...]  # numbers of executors, ascending
    # shape ``(s, s)``: entry (i, j) is the probability to go from ``sizes[i]`` to ``sizes[j]``
    probability: FloatArray

    def __post_init__(self) -> None:
        sizes = tuple(int(n) for n in self.sizes)
        probability = np.array(self.probability, np.float64)
        if not sizes or sizes[0] < 1 or sorted(set(sizes)) != list(sizes):
            raise _wrong("transitions.sizes", sizes, "Give ascending numbers of at least 1.")
        if probability.shape != (len(sizes), len(sizes)):
            raise _wrong("transitions.probability", probability.shape, "Give a row for each size.")
        sums = probability.sum(axis=1)
        bad = ~((probability >= 0).all(axis=1) & (np.abs(sums - 1) <= 1e-6))
        if bad.any():
            i = int(bad.argmax())
            raise _wrong(
                f"transitions.probability[{i}]",
                probability[i].tolist(),
                "Give probabilities that sum to 1.",
            )
        probability /= sums[:, None]
        probability.setflags(write=False)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "probability", probability)


def _wrong(name: str, value: object, remedy: str) -> InvalidProblemError:
    return InvalidProblemError(
        f"{name} = {value!r} is wrong.", remedy=remedy, field=name, value=value
    )


def estimate_transitions(
    log: Sequence[int], *, sizes: Sequence[int] | None = None, stays: bool = False
) -> Transitions:
    """Estimate the matrix from a log of numbers of executors.

    Parameters
    ----------
    log
        Executors in use in each past period, oldest first.
    sizes
        Numbers to have rows for; default: those that occur.
    stays
        Whether two equal numbers in a row count as a migration from n to n. The paper counts only
        changes (§6), which is the default.

    Returns
    -------
    Transitions
        A number that no migration was seen to leave goes to itself with probability 1.

    Raises
    ------
    InvalidProblemError
        If the log is empty or holds a number that is not in `sizes`.

    Examples
    --------
    >>> estimate_transitions([2, 3, 3, 2, 4, 2, 3]).probability.tolist()
    [[0.0, 0.6666666666666666, 0.3333333333333333], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    if len(log) == 0:
        raise _wrong("log", [], "Give at least one number of executors.")
    wanted = tuple(sorted(set(log))) if sizes is None else tuple(sizes)
    place = {n: i for i, n in enumerate(wanted)}
    for i, n in enumerate(log):
        if n not in place:
            raise _wrong(f"log[{i}]", n, f"Give one of the sizes {wanted}.")
    counts = np.zeros((len(wanted), len(wanted)))
    for before, after in itertools.pairwise(log):
        if stays or before != after:
            counts[place[before], place[after]] += 1
    silent = counts.sum(axis=1) == 0
    counts[np.flatnonzero(silent), np.flatnonzero(silent)] = 1
    return Transitions(sizes=wanted, probability=counts / counts.sum(axis=1, keepdims=True))
