"""Executor-centric policies: the paradigms that paper 5 compares, over the same two levels.

*Resource-centric*: key groups move to where cores are; a planner says which (paper 5 §2.2, and all
of papers 1, 2 and 4).  *Executor-centric*: key groups have a home, and cores are lent to where the
work is.  Paper 5's elastic executor is here the key groups of one component with one home; it is
given as much of the cores as the queueing network wants (§4.1), on its home as far as possible
(§4.2), and its key groups are shared out over the executors whose cores it has.  The paper's cores
serve one elastic executor each; our lanes serve all components, so where elastic executors are many
a core is divided into *slots*, and a component may need less than a core.  *Naive executor-centric*
reassigns all cores every time, minding neither state nor locality (§5.4).  *Static*: nothing
moves.

Every policy returns a plan for the same problem, with the same budget and execution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from godwit.control.planners.cores.core_allocation import QueueingNetwork, allocate_all_cores
from godwit.control.styles import PlacementStyle
from godwit_lab.planners.cores.core_assignment import (
    CoreAssignmentProblem,
    plan_core_assignment,
    plan_naive_core_assignment,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.control.interfaces import MeasuredProblem
    from godwit.control.styles import Turn
    from godwit.placement.arrays import FloatArray, IntArray

Counts = npt.NDArray[np.integer[Any]]

_IDLE = 1e-9
"""Lanes' worth of work below which an elastic executor counts as idle."""
_SLOTS = 8
"""Slots that an elastic executor has on average, at least: coarser ones could not be lent."""


class ExecutorCentric(PlacementStyle):
    """Key groups have a home executor, which uses cores of others if its own do not suffice."""

    replans = False  # lent cores are planned once at a time
    naive = False

    def __init__(self, settings: Any, topology: Any, announce: Any, **more: Any) -> None:
        super().__init__(settings, topology, announce, **more)
        self.name = settings.elasticity
        self._homes = Homes(naive=self.naive)

    @property
    def status(self) -> Mapping[str, Any]:
        """Use of lent cores, by all components: ``keyGroups`` there, ``bytesPerS`` sent to them."""
        return {"remote": self._homes.remote}

    def plan(self, measured: MeasuredProblem, turn: Turn) -> IntArray:
        """Return the executor of each key group: its home, or one that lends cores."""
        del turn
        return self._homes.plan(measured, measured.rows_per_s)


class NaiveExecutorCentric(ExecutorCentric):
    """The same, ignoring state and locality (paper 5 §5.4)."""

    naive = True


class Homes:
    """Home executor of each key group, and the cores that components use (paper 5)."""

    def __init__(self, *, naive: bool) -> None:  # naive: all cores are reassigned every time
        self._naive = naive
        self._homes: dict[str, list[str]] = {}
        # component and home → executor → share of one core, and how many its elastic executor has
        self._cores: dict[tuple[str, str], dict[str, float]] = {}
        # components planned together → key groups away from home, and bytes a second sent to them
        self._remote: dict[tuple[str, ...], tuple[int, float]] = {}

    @property
    def remote(self) -> dict[str, float]:
        """Use of lent cores by the last plans: ``keyGroups``, and ``bytesPerS`` sent to them."""
        counts, rates = zip(*self._remote.values(), strict=True) if self._remote else ((), ())
        return {"keyGroups": sum(counts), "bytesPerS": round(sum(rates), 1)}

    def plan(self, measured: MeasuredProblem, rows_per_s: FloatArray) -> IntArray:
        """Plan the executor of each key group, shape ``(m,)``: its home, or one that lends cores.

        The executors of the measured problem are machines; `rows_per_s`, shape ``(m,)``: rows that
        reach each key group.
        """
        problem = measured.problem
        home = self._home_executors(measured)
        away = home != problem.current
        rates = _data_bytes_per_s(measured, away.astype(np.int64))
        self._remote[tuple(measured.components)] = (
            int(away.sum()),
            float(rates[1]) if away.any() else 0.0,
        )
        elastic = problem.operator_of.astype(np.int64) * problem.num_executors + home
        numbers, executor_of = np.unique(elastic, return_inverse=True)
        names = [
            (
                measured.components[int(n) // problem.num_executors],
                problem.executors[int(n) % problem.num_executors],
            )
            for n in numbers
        ]
        machine_cores = np.where(problem.draining, 0, problem.cores).astype(np.int64)
        slots = max(1, -(-_SLOTS * len(numbers) // max(1, int(machine_cores.sum()))))
        machine_slots = machine_cores * slots
        shares = self._assign(
            names,
            CoreAssignmentProblem(
                current=self._current_slots(names, measured, machine_slots, slots),
                machine_cores=machine_slots,
                cores=_allocate_servers(
                    problem.weight * slots, rows_per_s, executor_of, int(machine_slots.sum())
                ),
                state_bytes=np.bincount(executor_of, problem.state_bytes).astype(np.float64),
                data_bytes_per_s=_data_bytes_per_s(measured, executor_of),
                home=numbers % problem.num_executors,
            ),
            measured,
            slots,
        )
        planned = problem.current.copy()
        for j in range(len(numbers)):
            mine = np.flatnonzero(executor_of == j)
            if shares[:, j].any():
                of_one = problem.speed / np.maximum(problem.cores, 1)
                planned[mine] = share_out(
                    problem.weight[mine], problem.current[mine], shares[:, j] * of_one
                )
        return planned

    def _home_executors(self, measured: MeasuredProblem) -> IntArray:
        """Return the home executor of each key group; the current one if it was lost."""
        problem = measured.problem
        number = {name: i for i, name in enumerate(problem.executors)}
        homes = np.empty_like(problem.current)
        for name in measured.components:
            current = problem.current[measured.parts[name]]
            known = self._homes.setdefault(name, [problem.executors[e] for e in current.tolist()])
            first = measured.parts[name].start
            for k, (home, e) in enumerate(zip(known, current.tolist(), strict=True)):
                if home not in number or problem.draining[number[home]]:
                    known[k] = problem.executors[e]
                homes[first + k] = number[known[k]]
        return homes

    def _current_slots(
        self,
        names: list[tuple[str, str]],
        measured: MeasuredProblem,
        machine_slots: Counts,
        slots: int,
    ) -> Counts:
        """Return the slots (parts of a core) that elastic executors use on each machine today.

        Shape (machines, `names`). `names`: component and home of each elastic executor, which at
        first uses slots of its home. `machine_slots`: slots that each machine has. `slots`: number
        per core.
        """
        executors, components = measured.problem.executors, len(measured.components)
        number = {name: i for i, name in enumerate(executors)}
        current = np.zeros((len(executors), len(names)), np.int64)
        for j, (component, home) in enumerate(names):
            at_home = {home: max(1, int(machine_slots[number[home]]) // components) / slots}
            for name, cores in self._cores.get((component, home), at_home).items():
                if name in number:
                    current[number[name], j] = round(cores * slots)
        for i, most in enumerate(machine_slots.tolist()):
            while current[i].sum() > most:
                current[i, int(current[i].argmax())] -= 1
        return current

    def _assign(
        self,
        names: list[tuple[str, str]],
        problem: CoreAssignmentProblem,
        measured: MeasuredProblem,
        slots: int,
    ) -> Counts:
        """Plan the slots of each elastic executor on each machine; remember and return them.

        `names`, `slots` and result: see `_current_slots`.
        """
        plan = plan_naive_core_assignment if self._naive else plan_core_assignment
        shares, executors = plan(problem).cores, measured.problem.executors
        # Components of other stages are planned by themselves, and keep theirs.
        others = {
            n: shares_now
            for n, shares_now in self._cores.items()
            if n[0] not in measured.components
        }
        self._cores = others | {
            name: {executors[i]: shares[i, j] / slots for i in np.flatnonzero(shares[:, j])}
            for j, name in enumerate(names)
        }
        return shares


def _allocate_servers(
    weight: FloatArray, rows_per_s: FloatArray, executor_of: Counts, available: int
) -> Counts:
    """Return the number of servers of each elastic executor, by the queueing model.

    `weight`, `rows_per_s`, `executor_of`: of each key group, servers that it keeps busy, its
    arrival rate, its elastic executor. If `available` servers cannot keep all stable, they are
    divided in proportion to the work.
    """
    busy, rows = np.bincount(executor_of, weight), np.bincount(executor_of, rows_per_s)
    works = (busy > _IDLE) & (rows > 0)
    if not works.any():
        return np.zeros(len(busy), np.int64)
    network = QueueingNetwork(
        arrival_per_s=np.where(works, rows, 0.0),
        service_per_s=np.where(works, rows / np.maximum(busy, _IDLE), 1.0),
        input_per_s=float(rows[works].sum()),
    )
    if network.least_stable_cores.sum() > available:
        exact = busy / busy.sum() * available
        whole: Counts = exact.astype(np.int64)
        behind = np.argsort(whole - exact, kind="stable")
        whole[behind[: available - int(whole.sum())]] += 1
        return whole
    return allocate_all_cores(network, available, idle_cores=0).cores


def _data_bytes_per_s(measured: MeasuredProblem, executor_of: Counts) -> FloatArray:
    """Return the bytes per second that reach each elastic executor; 0 if unknown.

    `executor_of`: elastic executor of each key group.
    """
    problem = measured.problem
    if "network" not in problem.resources:
        return np.zeros(int(executor_of.max()) + 1)
    column = problem.load[:, problem.resources.index("network")]
    return np.bincount(executor_of, column * measured.link_bytes_per_s).astype(np.float64)


def share_out(weight: FloatArray, current: IntArray, quota: FloatArray) -> IntArray:
    """Return the executor of each key group, so that loads meet quotas with few moves.

    Heaviest first, each stays if its executor's quota has room for half of it, and goes to the
    executor with the most room otherwise. Ties: the lower executor, the lower key group. `weight`,
    `current`: load and executor of each key group, shape ``(m,)``. `quota`: shape ``(n,)``, not all
    0.
    """
    room = quota / quota.sum() * max(float(weight.sum()), 1e-12)
    planned = current.copy()
    for k in np.lexsort((np.arange(len(weight)), -weight)).tolist():
        e, w = int(current[k]), float(weight[k])
        if quota[e] <= 0 or room[e] < w / 2:
            e = int(np.where(quota > 0, room, -np.inf).argmax())
        planned[k] = e
        room[e] -= w
    return planned
