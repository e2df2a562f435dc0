"""The carrying-out plan: what is previewed, printed and executed, as one value.

Problem: a plan that is shown by one piece of code and executed by another can differ between the
two: in its moves, in their order, in what is expected of them.

Invariant: a `CarryingOut` that may be executed comes from `carry_out`, so its solution was judged
by `validate_solution`; its moves are in the order in which they are to be made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import InvalidPlanError
from godwit.planning import metrics
from godwit.planning.copy_routes import transfer_phases
from godwit.planning.solution import validate_solution

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.model.assignment import Assignment
    from godwit.planning.copy_routes import TransferPhase
    from godwit.planning.solution import PlannedMove, Solution

__all__ = ["CarryingOut", "carry_out", "carry_out_each"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryingOut:
    """Moves in order, and the load they start from and lead to."""

    method: str  # planner that the moves come from
    executors: tuple[str, ...]  # names, in the order of the loads
    moves: tuple[PlannedMove, ...]  # in the order in which they are to be made
    # load index of each executor before the first move and, predicted, after the last
    load_before: tuple[float, ...]
    load_after: tuple[float, ...]

    @property
    def moved_bytes(self) -> int:
        """State that has to be at its destinations."""
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
        """Apply all moves to an assignment.

        Raises `InvalidPlanError` if a key group is no longer where the plan found it, or its
        destination is not there.
        """
        for move in self.moves:
            there = current.executor(move.key_group)
            if there != move.source:
                raise InvalidPlanError(
                    f"Key group {move.key_group} is on executor {there!r}; the plan of "
                    f"{self.method!r} found it on {move.source!r}.",
                    remedy="Plan again on the assignment there is now.",
                    key_group=move.key_group,
                )
        return current.moved(self.places)


def carry_out(solution: Solution) -> CarryingOut:
    """Judge a solution and put its moves in order.

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
    return CarryingOut(
        method=solution.method,
        executors=solution.problem.executors,
        moves=solution.moves,
        load_before=_floats(metrics.load_index(solution.problem, solution.problem.current)),
        load_after=_floats(solution.load_index),
    )


def carry_out_each(solution: Solution) -> dict[str, CarryingOut]:
    """Judge a solution of several components; give each that moves its own moves, in order.

    Key groups are numbered by component again; loads stay those of all of them together.

    Raises `InvalidPlanError`: as `carry_out`.
    """
    problem, whole = solution.problem, carry_out(solution)
    parts: dict[str, CarryingOut] = {}
    for number, name in enumerate(problem.operators):
        own = np.flatnonzero(problem.operator_of == number)
        position = {int(g): i for i, g in enumerate(own.tolist())}
        moves = tuple(
            replace(move, key_group=position[move.key_group])
            for move in whole.moves
            if move.key_group in position
        )
        if moves:
            parts[name] = replace(whole, moves=moves)
    return parts


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
