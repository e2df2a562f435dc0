"""Planners of others, kept from doing harm.

Problem: a planner may be a function of the user's.  It may raise, return something that is no plan,
or never return.

Invariant: what comes out is a plan that can be carried out, or `PlannerFailedError` with the reason
in words; nothing else gets out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.model.errors import GodwitError, PlannerFailedError
from godwit.planning import Solution, validate_solution
from godwit.planning.planner import Planner
from godwit.planning.validation import make_solution

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.adapt.ports import PlannerRunner
    from godwit.planning import Problem

__all__ = ["guarded_plan"]


def guarded_plan(
    # of the registry, or a function of a problem that returns a solution or, shape ``(m,)``, the
    # index of each key group's executor
    planner: Planner | Callable[[Problem], Any],
    # problem, name, options: What it is asked, what it is called, and what it is told besides
    problem: Problem,
    *,
    name: str,
    options: Mapping[str, Any],
    run: PlannerRunner,  # run, time_limit_s: Runs it, no longer than this
    time_limit_s: float,
) -> Solution:
    """Ask a planner, and judge what it says.

    Raises `PlannerFailedError` says what went wrong.
    """
    if isinstance(planner, Planner) and (refusal := planner.refusal(problem)):
        raise _failed(name, f"it cannot take this problem: {refusal}")
    try:
        # What it returns may be anything, too, and is read where it may take its time.
        solution = run(
            lambda: _read(planner(problem, **options), problem, name), time_limit_s=time_limit_s
        )
    except TimeoutError:
        raise _failed(name, f"it has not returned after {time_limit_s:g} s") from None
    except PlannerFailedError:
        raise
    except GodwitError as error:
        raise _failed(name, str(error)) from error
    except Exception as error:
        raise _failed(name, f"it raised {type(error).__name__}: {error}") from error
    try:
        validate_solution(solution)
    except GodwitError as error:
        raise _failed(name, error.message) from error
    if solution.split is not None:
        raise _failed(name, "it splits key groups over executors; a key group has one owner")
    return solution


def _read(made: Any, problem: Problem, name: str) -> Solution:
    """Take a solution, or anything that can be read as an assignment."""
    if isinstance(made, Solution):
        if made.problem is not problem:
            raise _failed(name, "its solution is one of another problem")
        return made
    try:
        given = np.asarray(made, np.float64)
    except (TypeError, ValueError):
        raise _failed(name, f"it returned a {type(made).__name__}") from None
    if given.shape != problem.current.shape or not (given == np.floor(given)).all():
        raise _failed(
            name,
            f"it returned a {type(made).__name__} that is no vector of "
            f"{problem.num_key_groups} executors' indices",
        )
    within = np.clip(given, -1, problem.num_executors).astype(np.int32)
    return make_solution(problem, within, method=name)


def _failed(name: str, reason: str) -> PlannerFailedError:
    return PlannerFailedError(
        f"Planner {name!r} gave no plan: {reason}.",
        remedy="The stream goes on with the assignment it has.",
        planner=name,
        reason=reason,
    )
