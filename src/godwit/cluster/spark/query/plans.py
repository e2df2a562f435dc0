"""What a user may hand to ``query.migrate``, checked and as plain values."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING

from godwit.migration.strategy import Bounds, Strategy
from godwit.model.assignment import Assignment
from godwit.model.errors import InvalidPlanError
from godwit.model.naming import listing, type_name
from godwit.planning import Solution
from godwit.planning.carrying_out import CarryingOut, carry_out

if TYPE_CHECKING:
    from typing import Any

__all__ = ["checked_bounds", "checked_moves", "checked_strategy", "target_of"]


def target_of(
    plan: Assignment | Mapping[int, str] | Solution | CarryingOut, places: Assignment
) -> tuple[Assignment, tuple[int, ...]]:
    """Return the assignment that a plan leads to, and the order in which it wants moves made.

    Parameters
    ----------
    plan
        As ``query.migrate`` takes it.
    places
        Where key groups are, executors included that own none.

    Raises
    ------
    InvalidPlanError
        If it is no plan, is outdated, or is of several components.
    """
    if isinstance(plan, Solution):
        if len(plan.problem.operators) > 1:
            raise InvalidPlanError(
                f"The solution moves key groups of {listing(plan.problem.operators)}.",
                remedy="Carry it out for all of them, with query.carry_out(solution).",
            )
        plan = carry_out(plan)
    if isinstance(plan, CarryingOut):
        return plan.target(places), tuple(plan.places)
    if isinstance(plan, Assignment):
        return plan, ()
    return places.moved(checked_moves(plan)), ()


def checked_moves(plan: Any) -> dict[int, str]:
    """Return the moves of `plan`: key group → executor.

    Parameters
    ----------
    plan
        What the user gave that is not an `Assignment`. Whole numbers of any kind (NumPy's too)
        name key groups; whether they and the executors exist is for the assignment to say.

    Raises
    ------
    InvalidPlanError
        If it is no mapping, names no move, a key group is not a whole number, or an executor is
        not text.
    """
    if not isinstance(plan, Mapping):
        raise InvalidPlanError(
            f"migrate was given a plan of type {type_name(plan)}.",
            remedy='Give the moves, as in {0: "2", 1: "2"} (key group → executor), or a '
            "gw.Assignment.",
        )
    if not plan:
        raise InvalidPlanError(
            "migrate was given a plan without moves.",
            remedy='Name at least one, as in {0: "2"} (key group → executor).',
        )
    return {_key_group(number): _executor(number, name) for number, name in plan.items()}


def _key_group(number: Any) -> int:
    try:
        if isinstance(number, bool):
            raise TypeError  # noqa: TRY301  it would be taken for 0 or 1
        return operator.index(number)
    except TypeError:
        raise InvalidPlanError(
            f"The plan names key group {number!r}, of type {type_name(number)}.",
            remedy='Key groups are whole numbers, as in {0: "2"}.',
            key_group=number,
        ) from None


def _executor(number: object, name: object) -> str:
    if not isinstance(name, str):
        raise InvalidPlanError(
            f"The plan sends key group {number!r} to {name!r}, of type {type_name(name)}.",
            remedy='Name executors by text, as in {0: "2"}; query.executors lists them.',
            key_group=number,
        )
    return name


def checked_bounds(bounds: Any) -> Bounds:
    """Return `bounds`, or the default ones for ``None``.

    Raises
    ------
    InvalidPlanError
        If it is anything else.
    """
    if bounds is None:
        return Bounds()
    if not isinstance(bounds, Bounds):
        raise InvalidPlanError(
            f"migrate was given bounds of type {type_name(bounds)}.",
            remedy="Give gw.Bounds, as in bounds=gw.Bounds(max_moves=8).",
        )
    return bounds


def checked_strategy(strategy: Any) -> Strategy:
    """Return the strategy of that name.

    Raises
    ------
    InvalidPlanError
        If there is none.
    """
    try:
        return Strategy(strategy)
    except ValueError:
        raise InvalidPlanError(
            f"There is no strategy {strategy!r}.",
            remedy=f"Use one of {', '.join(s.value for s in Strategy)}.",
        ) from None
