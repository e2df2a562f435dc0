"""Assignment of machines' cores to executors, once their numbers are decided (paper 5 §4.2).

Invariant: no machine gives more cores than it has; no core is taken from an executor that then has
fewer than it needs, unless that executor is not data-intensive and gets another core later.

Algorithm 1, made definite where the paper is silent: unassigned cores are taken at no cost;
remote cores of data-intensive executors are given back first, since constraint (c) wants all of
theirs local; an executor that lost a core joins the queue again; when φ exceeds every data
intensity no executor is bound to its machine and the doubling ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from godwit.placement.arrays import (
    FloatArray,
    freeze_array,
    require_index,
    require_load,
    wrong_value,
)

IntArray = npt.NDArray[np.integer[Any]]

DEFAULT_PHI_BYTES_PER_S = 512.0 * 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CoreAssignmentProblem:
    """n machines with cores, m executors that need some.

    Raises `InvalidProblemError` if shapes differ, a number is negative, a machine does not exist,
    or more of its cores are held than it has.
    """

    current: IntArray  # shape ``(n, m)``: cores of machine i that executor j holds, x̃_ij
    machine_cores: IntArray  # shape ``(n,)``: c_i
    cores: IntArray  # shape ``(m,)``: cores each executor needs, k_j
    state_bytes: FloatArray  # shape ``(m,)``: s_j
    # shape ``(m,)``: input plus output of each executor; divided by k_j it is the data intensity
    data_bytes_per_s: FloatArray
    home: IntArray  # shape ``(m,)``: machine of each executor's main process, I(j)

    def __post_init__(self) -> None:
        shape = np.shape(self.current)
        if len(shape) != 2 or 0 in shape:
            raise wrong_value("current", f"shape {shape}", "give machines x executors")
        n, m = shape
        for name, dtype, size in (
            ("current", np.int32, shape),
            ("machine_cores", np.int32, (n,)),
            ("cores", np.int32, (m,)),
            ("state_bytes", np.float64, (m,)),
            ("data_bytes_per_s", np.float64, (m,)),
            ("home", np.int32, (m,)),
        ):
            freeze_array(self, name, dtype, shape=size)
            require_load(getattr(self, name), name)
        require_index(self.home, n, "home", "machines")
        used = self.current.sum(axis=1)
        if (used > self.machine_cores).any():
            i = int((used > self.machine_cores).argmax())
            raise wrong_value(
                f"current[{i}]",
                int(used[i]),
                f"machine {i} has {int(self.machine_cores[i])} cores; do not hold more",
            )

    @property
    def intensity(self) -> FloatArray:
        """Shape ``(m,)``: data intensity of each executor, in bytes per second and core."""
        return self.data_bytes_per_s / np.maximum(self.cores, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CoreAssignment:
    """Cores per machine and executor."""

    cores: IntArray  # shape ``(n, m)``: x_ij
    migration_bytes: float  # C(X|X̃): bytes of state that leave a machine
    remote_bytes_per_s: float  # data exchanged with cores away from executors' homes
    phi_bytes_per_s: float  # the φ that was feasible
    # ``feasible``, or ``infeasible``: there are not enough cores for all
    status: Literal["feasible", "infeasible"]
    reason: str = ""  # why it is infeasible; empty otherwise


def core_migration_bytes(state_bytes: FloatArray, current: IntArray, cores: IntArray) -> float:
    """Return C(X|X̃), the bytes that leave a machine if every core has an equal share of state.

    An executor without cores today has no state anywhere, so it moves none; one that loses all of
    its cores moves all of its state away.
    """
    before = current / np.maximum(current.sum(axis=0), 1)
    after = cores / np.maximum(cores.sum(axis=0), 1)
    return float((state_bytes * np.maximum(before - after, 0.0)).sum())


def remote_bytes_per_s(problem: CoreAssignmentProblem, cores: IntArray) -> float:
    """Return the data rate between executors and their cores on other machines.

    All cores of an executor are taken to receive the same rate.
    """
    total = cores.sum(axis=0)
    local = cores[problem.home, np.arange(len(total))]
    share = np.where(total > 0, (total - local) / np.maximum(total, 1), 0.0)
    return float((problem.data_bytes_per_s * share).sum())


def reachable_cores(problem: CoreAssignmentProblem) -> tuple[IntArray, str]:
    """Return the cores of each executor, reduced to those that exist, and the reason (empty: none).

    One core at a time is taken from the executor with most; ties: the lower executor.
    """
    available, needed = int(problem.machine_cores.sum()), int(problem.cores.sum())
    if needed <= available:
        return problem.cores, ""
    cores = problem.cores.copy()
    for _ in range(needed - available):
        cores[int(cores.argmax())] -= 1
    return cores, f"{needed} cores are needed; the machines have {available}"


def plan_core_assignment(
    problem: CoreAssignmentProblem, *, phi_bytes_per_s: float = DEFAULT_PHI_BYTES_PER_S
) -> CoreAssignment:
    """Plan cores with little state moved and data-intensive executors local (paper 5 §4.2).

    Algorithm 1. Executors above φ bytes per second and core use cores of their home machine only;
    while that is not feasible φ doubles. If the machines have too few cores in total, infeasible
    with all cores in use. Ties: the lower machine, the lower executor. O(moves · (n + m)) time per
    φ.
    """
    if not 0 < phi_bytes_per_s < np.inf:
        raise wrong_value("phi_bytes_per_s", phi_bytes_per_s, "give a finite number above 0")
    needed, reason = reachable_cores(problem)
    phi = phi_bytes_per_s
    while True:
        cores = _Attempt(problem, needed, problem.intensity > phi).assign()
        if cores is not None:
            return _assignment_of(problem, cores, phi, reason)
        phi *= 2


class _Attempt:
    """Algorithm 1 with one φ."""

    def __init__(
        self, problem: CoreAssignmentProblem, needed: IntArray, intensive: npt.NDArray[np.bool_]
    ) -> None:
        self._state, self._home = problem.state_bytes.tolist(), problem.home.tolist()
        self._needed, self._intensive = needed.tolist(), intensive.tolist()
        self._x = problem.current.copy()
        n, m = self._x.shape
        remote = np.arange(n)[:, None] != problem.home
        self._x[remote & intensive] = 0
        self._free = (problem.machine_cores - self._x.sum(axis=1)).tolist()
        self._total = self._x.sum(axis=0).tolist()
        order = np.lexsort((np.arange(m), -problem.intensity, ~intensive))
        self._queue = [j for j in order.tolist() if self._total[j] < self._needed[j]]
        self._cheapest: list[tuple[float, int]] = [self._find_spare(i) for i in range(n)]

    def assign(self) -> IntArray | None:
        """Return the cores of each executor on each machine; ``None`` if this φ is not feasible.

        Data-intensive executors are assigned first.
        """
        local = [j for j in self._queue if self._intensive[j]]
        for j in local:
            while self._total[j] < self._needed[j]:
                i = self._home[j]
                donor = self._local_donor(i, j)
                if donor is None:
                    return None
                self._give_core(i, donor, j)
        queue = [j for j in self._queue if not self._intensive[j]]
        waiting = set(queue)
        queue += [
            j
            for j in range(len(self._total))
            if not self._intensive[j] and j not in waiting and self._total[j] < self._needed[j]
        ]
        for j in queue:
            while self._total[j] < self._needed[j]:
                i, donor = self._any_donor(j)
                if i < 0:
                    return None
                self._give_core(i, donor, j)
        return self._x

    def _local_donor(self, i: int, j: int) -> int | None:
        """Return the executor that gives executor j a core of machine i.

        -1: a core is free; ``None``: no executor can.
        """
        if self._free[i] > 0:
            return -1
        best, lowest_cost = None, np.inf
        for other in np.flatnonzero(self._x[i]).tolist():
            if other == j:
                continue
            if self._intensive[other] and self._total[other] <= self._needed[other]:
                continue
            # Spare cores first: what an executor still needs has to be found again elsewhere.
            cost = self._bytes_leaving(i, other)
            if self._total[other] <= self._needed[other]:
                cost += self._state[other]
            if cost < lowest_cost:
                best, lowest_cost = other, cost
        return best

    def _any_donor(self, j: int) -> tuple[int, int]:
        """Return machine and owner (-1: free) of the cheapest core for executor j."""
        total, state = self._total[j], self._state[j]
        best_i, best_donor, lowest_cost = -1, -1, np.inf
        column = self._x[:, j].tolist()
        for i, (cost, donor) in enumerate(self._cheapest):
            if cost == np.inf:
                continue
            arriving = state * (total - column[i]) / (total * (total + 1)) if total else 0.0
            # Prefer the home machine among equals: its data stays local.
            price = cost + arriving
            closer = price == lowest_cost and i == self._home[j]
            if price < lowest_cost or closer:
                best_i, best_donor, lowest_cost = i, donor, price
        return best_i, best_donor

    def _find_spare(self, i: int) -> tuple[float, int]:
        """Return cost and owner (-1: free) of the cheapest core of machine i."""
        if self._free[i] > 0:
            return 0.0, -1
        best, lowest_cost = -1, np.inf
        for j in np.flatnonzero(self._x[i]).tolist():
            if self._total[j] > self._needed[j]:
                cost = self._bytes_leaving(i, j)
                if cost < lowest_cost:
                    best, lowest_cost = j, cost
        return lowest_cost, best

    def _bytes_leaving(self, i: int, j: int) -> float:
        """Return C⁻_ij, the bytes that executor j moves when machine i takes a core from it."""
        total = self._total[j]
        if total == 1:
            return float(self._state[j])
        return float(self._state[j] * (total - int(self._x[i, j])) / (total * (total - 1)))

    def _give_core(self, i: int, donor: int, j: int) -> None:
        """Give executor j a core of machine i, from executor `donor` or a free one (-1)."""
        if donor < 0:
            self._free[i] -= 1
        else:
            self._x[i, donor] -= 1
            self._total[donor] -= 1
        self._x[i, j] += 1
        self._total[j] += 1
        touched = {i}
        if donor >= 0:
            touched.update(np.flatnonzero(self._x[:, donor]).tolist())
        for machine in touched:
            self._cheapest[machine] = self._find_spare(machine)


def plan_naive_core_assignment(problem: CoreAssignmentProblem) -> CoreAssignment:
    """Reassign all cores, in order, round robin over machines (naive-EC: paper 5 §5.4).

    The baseline: the scheduler without its optimisations of migration cost and locality. The paper
    does not say which cores are taken. No executor is bound to its machine, so φ is infinite. O(Σk)
    time.
    """
    needed, reason = reachable_cores(problem)
    n, m = problem.current.shape
    cores = np.zeros((n, m), np.int64)
    free = problem.machine_cores.tolist()
    i = 0
    for j, count in enumerate(needed.tolist()):
        for _ in range(count):
            while free[i] == 0:
                i = (i + 1) % n
            cores[i, j] += 1
            free[i] -= 1
            i = (i + 1) % n
    return _assignment_of(problem, cores, np.inf, reason)


def _assignment_of(
    problem: CoreAssignmentProblem, cores: IntArray, phi_bytes_per_s: float, reason: str
) -> CoreAssignment:
    """Return a core assignment with its costs; it is infeasible if there is a `reason`."""
    return CoreAssignment(
        cores=cores,
        migration_bytes=core_migration_bytes(problem.state_bytes, problem.current, cores),
        remote_bytes_per_s=remote_bytes_per_s(problem, cores),
        phi_bytes_per_s=phi_bytes_per_s,
        status="infeasible" if reason else "feasible",
        reason=reason,
    )
