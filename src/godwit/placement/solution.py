"""Solution of a planner: assignment, quality, bound and moves; and its validation.

A solution keeps its problem, so every number about it (load distance, bytes moved, ...) is derived
from the assignment by `godwit.placement.metrics` and cannot disagree with it.

Invariants: `move_order` is the only place that orders moves.  An *illegal* assignment (a key group
without an executor, a move onto a draining executor) is never acceptable; a *broken limit* is, but
only from a solution that says so itself (status infeasible, with the reason), since baselines of
the papers ignore limits, and some problems cannot be solved within theirs.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.model.assignment import Move
from godwit.model.errors import InvalidPlanError
from godwit.model.text import table
from godwit.placement import metrics
from godwit.placement.copy_routes import transfer_phases

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.model.assignment import Assignment
    from godwit.placement.arrays import BoolArray, FloatArray, IntArray
    from godwit.placement.copy_routes import TransferPhase
    from godwit.placement.metrics import SplitKeys
    from godwit.placement.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMove(Move):
    """A move, with its load and state size."""

    load: float  # load of the key group, that its source is relieved of

    @property
    def relief_per_byte(self) -> float:
        """Load that leaves the source executor per byte of state moved."""
        return self.load / max(self.state_bytes, 1)


def move_order(
    current: IntArray,
    after: IntArray,
    *,
    load: FloatArray,
    state_bytes: FloatArray,
    speed: FloatArray,
    draining: BoolArray,
) -> IntArray:
    """Return the key groups that move, in an order that relieves overloaded executors first.

    A migration may be cut short, and its later moves come late; so every move brings as much relief
    as it can, as cheaply as it can, where relief is needed most. Repeatedly takes the executor with
    the highest load index among those with moves left (draining ones after all others; ties: the
    lower index), and of its moves the one with the most load per byte (ties: the lower key group).
    After each move the loads are those that the moves so far would leave behind, so executors take
    turns as they become equal. O(m log m) for m moves.

    `current` and `after` are the executors of each key group; state of no size counts as one byte.
    """
    moved = np.flatnonzero(after != current)
    relief = load[moved] / np.maximum(state_bytes[moved], 1.0)
    queues: dict[int, list[int]] = {}
    for key_group in moved[np.lexsort((moved, -relief))][::-1].tolist():
        queues.setdefault(int(current[key_group]), []).append(key_group)
    loads = np.bincount(current, weights=load, minlength=len(speed)).tolist()
    heap = [
        (bool(draining[executor]), -loads[executor] / speed[executor], executor)
        for executor in queues
    ]
    heapq.heapify(heap)
    order = []
    while heap:
        _, negative_load, executor = heapq.heappop(heap)
        if not queues[executor] or -loads[executor] / speed[executor] != negative_load:
            continue  # it was pushed again when its load changed
        key_group = queues[executor].pop()
        order.append(key_group)
        destination, weight = int(after[key_group]), float(load[key_group])
        loads[executor] -= weight
        loads[destination] += weight
        for touched_executor in (executor, destination):
            if queues.get(touched_executor):
                entry = (
                    bool(draining[touched_executor]),
                    -loads[touched_executor] / speed[touched_executor],
                    touched_executor,
                )
                heapq.heappush(heap, entry)
    return np.asarray(order, np.int32)


def moves_in_order(problem: Problem, assignment: IntArray) -> IntArray:
    """Return the key groups whose executor an assignment changes, in the order of `move_order`."""
    return move_order(
        problem.current,
        assignment,
        load=problem.weight,
        state_bytes=problem.state_bytes,
        speed=problem.speed,
        draining=problem.draining,
    )


def planned_moves(problem: Problem, assignment: IntArray) -> tuple[PlannedMove, ...]:
    """Return the moves from a problem's current assignment to another, in their order."""
    return tuple(
        PlannedMove(
            key_group=k,
            source=problem.executors[problem.current[k]],
            destination=problem.executors[assignment[k]],
            state_bytes=int(problem.state_bytes[k]),
            load=float(problem.weight[k]),
        )
        for k in moves_in_order(problem, assignment).tolist()
    )


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Status(StrEnum):
    """Certainty of a planner about its assignment."""

    OPTIMAL = "optimal"
    """Within all limits, and proved best for the planner's objective."""
    FEASIBLE = "feasible"
    """Within all limits; not proved best (a heuristic, or a solver out of time)."""
    INFEASIBLE = "infeasible"
    """Breaks at least one limit; `Solution.reason` says which. The best that could be had."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """A planner's whole answer.

    Attributes
    ----------
    problem
        The problem that was solved.
    method
        Name of the planner, as in the registry.
    assignment
        Shape ``(m,)``: index into ``problem.executors`` of each key group's owner.
    status
        How sure the planner is.
    reason
        Why the status is not better, in one sentence; empty when there is nothing to say.
    objective, bound
        Value of what the planner minimises, and a proved lower bound of it, if it has them.
    elapsed_s
        Seconds that the planner took, where it was called by the registry; else 0.
    details
        Facts only this planner has (say, the error of an approximation): name → plain value.
    split
        Where rows go if key groups are split over two executors; `assignment` is then today's,
        since no state changes owner, and numbers about load and traffic are those of the split.
    """

    problem: Problem
    method: str
    assignment: IntArray
    status: Status
    reason: str = ""
    objective: float | None = None
    bound: float | None = None
    elapsed_s: float = 0.0
    details: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    split: SplitKeys | None = None

    def __post_init__(self) -> None:
        assignment = np.array(self.assignment, np.int32)
        assignment.setflags(write=False)
        object.__setattr__(self, "assignment", assignment)

    def __repr__(self) -> str:
        return (
            f"<Solution by {self.method}: {self.status}, {self.num_moves} of "
            f"{self.problem.num_key_groups} key groups move>"
        )

    @property
    def gap(self) -> float | None:
        """(objective - bound) / |objective|, 0 when both are 0; ``None`` without a bound."""
        if self.objective is None or self.bound is None:
            return None
        difference = max(0.0, self.objective - self.bound)
        return difference / abs(self.objective) if self.objective else float(difference > 0)

    @property
    def moved(self) -> IntArray:
        """Key groups that change executor, ascending."""
        return np.flatnonzero(self.assignment != self.problem.current).astype(np.int32)

    @property
    def num_moves(self) -> int:
        """Number of key groups that change executor."""
        return int(np.count_nonzero(self.assignment != self.problem.current))

    @property
    def moves(self) -> tuple[PlannedMove, ...]:
        """Moves in the order they should be made, see `move_order`."""
        return planned_moves(self.problem, self.assignment)

    @property
    def load_index(self) -> FloatArray:
        """Load divided by capacity of each executor, shape ``(n,)``."""
        if self.split is not None:
            return self.split.load_index(self.problem)
        return metrics.load_index(self.problem, self.assignment)

    @property
    def load_distance(self) -> float:
        """Largest |load index - mean| over executors that stay; unit of load."""
        if self.split is not None:
            return self.split.load_distance(self.problem)
        return metrics.load_distance(self.problem, self.assignment)

    @property
    def variance(self) -> float:
        """Variance of the load index over executors that stay; unit of load, squared."""
        return float(self.load_index[self.problem.available].var())

    @property
    def moved_bytes(self) -> float:
        """ψ, bytes of state that change executor."""
        return metrics.moved_bytes(self.problem, self.assignment)

    @property
    def migration_cost_s(self) -> float:
        """alpha·ψ in seconds: the time to serialise the state that moves."""
        return self.problem.seconds_per_byte * self.moved_bytes

    @property
    def collocation_factor(self) -> float:
        """Share of the traffic that stays on one executor, in [0, 1]."""
        if self.split is not None:
            return self.split.collocation_factor(self.problem)
        return metrics.collocation_factor(self.problem, self.assignment)


RELATIVE_TOLERANCE = 1e-9
"""Slack for limits on sums of floats, relative to the limit."""


def illegalities(problem: Problem, assignment: IntArray) -> list[str]:
    """Return the reasons why an assignment cannot be carried out, as sentences; empty if it can."""
    num_key_groups, num_executors = problem.num_key_groups, problem.num_executors
    if assignment.shape != (num_key_groups,):
        return [f"the assignment has shape {assignment.shape}, not ({num_key_groups},)"]
    out_of_range = (assignment < 0) | (assignment >= num_executors)
    if out_of_range.any():
        key_group = int(out_of_range.argmax())
        executor = int(assignment[key_group])
        return [f"key group {key_group} is on executor {executor}, but there are {num_executors}"]
    moves_onto_draining = problem.draining[assignment] & (assignment != problem.current)
    if moves_onto_draining.any():
        key_group = int(moves_onto_draining.argmax())
        name = problem.executors[assignment[key_group]]
        return [f"key group {key_group} moves onto executor {name}, which is draining"]
    return []


def broken_limits(
    problem: Problem, assignment: IntArray, split: SplitKeys | None = None
) -> list[str]:
    """Return the limits of the problem that an assignment breaks, as sentences.

    With a `split` of keys, τ is checked against the loads that the split gives.
    """
    limits, broken = problem.limits, []
    slack = 1 + RELATIVE_TOLERANCE
    moves = int(np.count_nonzero(assignment != problem.current))
    if limits.max_moves is not None and moves > limits.max_moves:
        broken.append(f"{moves} moves exceed max_moves = {limits.max_moves}")
    if limits.max_bytes is not None:
        size = metrics.moved_bytes(problem, assignment)
        if size > limits.max_bytes * slack:
            broken.append(f"{size:.6g} bytes moved exceed max_bytes = {limits.max_bytes:.6g}")
    if limits.tau is not None:
        if split is None:
            index, over = (
                metrics.load_index(problem, assignment),
                metrics.overload(problem, assignment),
            )
        else:
            index, mean = split.load_index(problem), split.mean_index(problem)
            over = float(index.max()) / mean - 1 if mean else 0.0
        if 1 + over > (1 + limits.tau) * slack:
            busiest = problem.executors[int(index.argmax())]
            broken.append(
                f"executor {busiest} has {1 + over:.4g} times its fair share, more than "
                f"1 + tau = {1 + limits.tau:.4g}"
            )
    if limits.target_executors is not None:
        used = len(np.unique(assignment))
        if used > limits.target_executors:
            broken.append(
                f"{used} executors own key groups, more than target_executors = "
                f"{limits.target_executors}"
            )
    if limits.max_usage is not None:
        broken.extend(_overused(problem, assignment, limits.max_usage))
    if problem.intervals:
        starts = assignment[np.flatnonzero(np.diff(assignment, prepend=-1))]
        ranges = np.bincount(starts, minlength=problem.num_executors)
        if ranges.max() > 1:
            name = problem.executors[int(ranges.argmax())]
            broken.append(f"executor {name} owns {ranges.max()} ranges, but intervals are wanted")
    return broken


def _overused(problem: Problem, assignment: IntArray, usage: tuple[float, ...]) -> list[str]:
    """Return a sentence for every resource of which an executor uses more than `usage` allows."""
    broken = []
    for r, name in enumerate(problem.resources):
        use = np.bincount(assignment, weights=problem.load[:, r], minlength=problem.num_executors)
        index = np.where(problem.draining, 0.0, use / problem.capacity[:, r])
        if index.max() > usage[r] * (1 + RELATIVE_TOLERANCE):
            executor = problem.executors[int(index.argmax())]
            broken.append(
                f"executor {executor} uses {index.max():.4g} of {name}, more than max_usage = "
                f"{usage[r]:.4g}"
            )
    return broken


def make_solution(
    problem: Problem,
    assignment: IntArray,
    *,
    method: str,
    optimal: bool = False,
    reason: str = "",
    objective: float | None = None,
    bound: float | None = None,
    details: Mapping[str, Any] | None = None,
    split: SplitKeys | None = None,
) -> Solution:
    """Return the solution of a planner: optimal, feasible, or infeasible if it breaks limits.

    `optimal` claims a proof that nothing within the limits is better. Broken limits are appended to
    `reason`. `objective`, `bound`, `details`: see `Solution`. `split`: the keys that the plan
    splits, if it does. Raises `InvalidPlanError` if the assignment is illegal: a fault of the
    planner, not of its input.
    """
    illegal = illegalities(problem, assignment)
    if illegal:
        raise _illegal_plan(method, illegal)
    broken = broken_limits(problem, assignment, split)
    if broken:
        status = Status.INFEASIBLE
        reason = "; ".join(filter(None, (reason, *broken)))
    else:
        status = Status.OPTIMAL if optimal else Status.FEASIBLE
    return Solution(
        problem=problem,
        method=method,
        assignment=assignment,
        status=status,
        reason=reason,
        objective=objective,
        bound=bound,
        details=dict(details or {}),
        split=split,
    )


def validate_solution(solution: Solution) -> None:
    """Refuse a solution that is illegal, or that claims to be within limits it breaks.

    Raises
    ------
    InvalidPlanError
        With every fault in the message and in ``context["faults"]``.
    """
    faults = illegalities(solution.problem, solution.assignment)
    if faults:
        raise _illegal_plan(solution.method, faults)
    broken = broken_limits(solution.problem, solution.assignment, solution.split)
    if broken and solution.status is not Status.INFEASIBLE:
        raise InvalidPlanError(
            f"The plan of {solution.method!r} has status {solution.status.value}, but "
            f"{'; '.join(broken)}.",
            remedy="Give it the status infeasible and the reason, or a plan within the limits.",
            method=solution.method,
            faults=broken,
        )
    if solution.status is Status.INFEASIBLE and not solution.reason:
        raise InvalidPlanError(
            f"The plan of {solution.method!r} is infeasible and does not say why.",
            remedy="Give the reason.",
            method=solution.method,
            faults=["no reason"],
        )


def _illegal_plan(method: str, faults: list[str]) -> InvalidPlanError:
    """Return the error for a plan that cannot be carried out; `faults` are sentences."""
    return InvalidPlanError(
        f"The plan of {method!r} cannot be carried out: {'; '.join(faults)}.",
        remedy="This is a fault of the planner; please report it with the problem's JSON.",
        method=method,
        faults=faults,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutablePlan:
    """Moves in order, and the load they start from and lead to: previewed, printed and executed.

    One that may be executed comes from `executable_plan`, so its solution was judged.
    """

    method: str  # planner that the moves come from
    executors: tuple[str, ...]  # names, in the order of the loads
    moves: tuple[PlannedMove, ...]  # in the order in which they are to be made
    # load index of each executor before the first move and, predicted, after the last
    load_before: tuple[float, ...]
    load_after: tuple[float, ...]

    def __repr__(self) -> str:
        return f"<ExecutablePlan by {self.method}: {len(self.moves)} moves>"

    def _repr_html_(self) -> str:
        """Return a table of the moves as HTML, for notebooks."""
        return table(
            f"Plan by {self.method}: {len(self.moves)} moves",
            ("key group", "from", "to", "bytes of state"),
            [(m.key_group, m.source, m.destination, m.state_bytes) for m in self.moves[:50]],
        )

    @property
    def moved_bytes(self) -> int:
        """Bytes of state that move."""
        return sum(move.state_bytes for move in self.moves)

    @property
    def phases(self) -> tuple[TransferPhase[PlannedMove], ...]:
        """Peer transfers in phases as long as the busiest link needs, see `transfer_phases`."""
        return transfer_phases(self.moves)

    @property
    def places(self) -> Mapping[int, str]:
        """Key group → executor it moves to, in the order of the moves."""
        return {move.key_group: move.destination for move in self.moves}

    def target(self, current: Assignment) -> Assignment:
        """Return the assignment after all moves of the plan.

        Raises `InvalidPlanError` if a key group is no longer on the executor that the plan expects,
        or its destination does not exist.
        """
        for move in self.moves:
            owner = current.executor(move.key_group)
            if owner != move.source:
                raise InvalidPlanError(
                    f"Key group {move.key_group} is on executor {owner!r}; the plan of "
                    f"{self.method!r} found it on {move.source!r}.",
                    remedy="Plan again on the assignment there is now.",
                    key_group=move.key_group,
                )
        return current.moved(self.places)


def executable_plan(solution: Solution) -> ExecutablePlan:
    """Check a solution, and return its moves in order.

    Raises `InvalidPlanError` if the solution is illegal, claims to be within limits it breaks, or
    splits keys.
    """
    validate_solution(solution)
    if solution.split is not None:
        raise InvalidPlanError(
            f"The plan of {solution.method!r} splits {solution.split.num_split} key groups over "
            "two executors each; a key group has one owner.",
            remedy="Use a planner that assigns key groups whole.",
            method=solution.method,
        )
    problem = solution.problem
    return ExecutablePlan(
        method=solution.method,
        executors=problem.executors,
        moves=solution.moves,
        load_before=tuple(metrics.load_index(problem, problem.current).tolist()),
        load_after=tuple(solution.load_index.tolist()),
    )


def executable_plans(solution: Solution) -> dict[str, ExecutablePlan]:
    """Check a solution of several components; return component → its own moves, in order.

    Key groups have their numbers within the component again; loads are those of all components.
    """
    problem, joint = solution.problem, executable_plan(solution)
    parts: dict[str, ExecutablePlan] = {}
    for number, name in enumerate(problem.operators):
        operator_key_groups = np.flatnonzero(problem.operator_of == number)
        position = {
            int(key_group): number_
            for number_, key_group in enumerate(operator_key_groups.tolist())
        }
        moves = tuple(
            replace(move, key_group=position[move.key_group])
            for move in joint.moves
            if move.key_group in position
        )
        if moves:
            parts[name] = replace(joint, moves=moves)
    return parts
