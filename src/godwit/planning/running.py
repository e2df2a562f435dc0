"""A planner's problem from what a running query knows.

Problem: loads and state sizes come as arrays per key group, places as an `Assignment` with names
and lanes; planners ask for a `Problem`.

Invariant: executors keep their order, and executors without key groups stay in the problem, so a
plan may use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning.arrays import wrong_value
from godwit.planning.problem import NO_TRAFFIC, Limits, Problem, Traffic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from godwit.model.assignment import Assignment
    from godwit.model.key_groups import KeyGroupPairs
    from godwit.planning.arrays import FloatArray

__all__ = ["ComponentFacts", "joint_problem", "problem_of"]


def problem_of(
    assignment: Assignment,
    *,
    load: FloatArray,
    state_bytes: FloatArray,
    resources: tuple[str, ...] = ("cpu",),
    traffic: Traffic = NO_TRAFFIC,
    history: FloatArray | None = None,
    draining: Collection[str] = (),
    limits: Limits | None = None,
) -> Problem:
    """Ask about one component as it runs.

    `assignment`: where key groups are. An executor's capacity is its number of lanes. `load`: shape
    ``(m,)`` or ``(m, r)``: load of each key group, in any unit (say, milliseconds of CPU per
    second). `state_bytes`: shape ``(m,)``: bytes of state. `resources`: names of the r resources.
    `traffic`: rates between key groups. `history`: shape ``(windows, m)``: load of every key group
    in past windows, oldest first. `draining`: names of executors that are to be emptied. `limits`:
    what a plan may cost. Raises `InvalidProblemError`: names what is wrong, an executor to drain
    that does not exist among others.

    Examples
    --------
    >>> from godwit.model.assignment import even_assignment
    >>> running = even_assignment(4, ["a", "b"], [2, 1])
    >>> problem = problem_of(running, load=np.ones(4), state_bytes=np.zeros(4), draining=["b"])
    >>> problem.capacity[:, 0].tolist(), problem.available.tolist()
    ([2.0, 1.0], [0])
    """
    unknown = sorted(set(draining) - set(assignment.executors))
    if unknown:
        there = ", ".join(assignment.executors)
        raise wrong_value("draining", unknown[0], f"there is no such executor; there are {there}")
    lanes = np.asarray(assignment.lanes, np.int32)
    return Problem(
        executors=assignment.executors,
        load=load,
        state_bytes=state_bytes,
        current=assignment.executor_of,
        resources=resources,
        capacity=lanes.astype(np.float64),
        cores=lanes,
        draining=np.isin(assignment.executors, list(draining)),
        limits=limits or Limits(),
        traffic=traffic,
        history=np.empty((0, 0)) if history is None else history,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComponentFacts:
    """Assignment, loads and state sizes of one component."""

    assignment: Assignment  # where its m key groups are
    load: FloatArray  # shape ``(windows, m)``: load of each key group in past windows, oldest first
    state_bytes: FloatArray  # shape ``(m,)``: bytes of state


def joint_problem(
    components: Mapping[str, ComponentFacts],
    pairs: Mapping[tuple[str, str], KeyGroupPairs],
    *,
    draining: Collection[str] = (),
    limits: Limits | None = None,
) -> Problem:
    """Ask about several components together: what talks to each other may be brought together.

    Key groups are numbered through, component after component; `Problem.operators` are the
    components. An executor's capacity is the most lanes that a component has there.

    `components`: component → what is known of it; all have loads of the same windows. `pairs`:
    (Upstream, downstream) → rows between their key groups. What went to key groups that have no
    entry of their own is left out: it is the same wherever these are. `draining`, `limits`: as for
    `problem_of`. Raises `InvalidProblemError`: as for `problem_of`.
    """
    lanes: dict[str, int] = {}
    first: dict[str, int] = {}
    count = 0
    for name, facts in components.items():
        first[name] = count
        count += facts.assignment.num_key_groups
        for executor, width in zip(facts.assignment.executors, facts.assignment.lanes, strict=True):
            lanes[executor] = max(lanes.get(executor, 0), width)
    executors = sorted(lanes, key=lambda name: (len(name), name))
    unknown = sorted(set(draining) - set(executors))
    if unknown:
        there = ", ".join(executors)
        raise wrong_value("draining", unknown[0], f"there is no such executor; there are {there}")
    index = {name: i for i, name in enumerate(executors)}
    current = [
        np.array([index[e] for e in facts.assignment.executors], np.int32)[
            facts.assignment.executor_of
        ]
        for facts in components.values()
    ]
    history = np.hstack([facts.load for facts in components.values()])
    known = {
        between: found.known for between, found in pairs.items() if set(between) <= first.keys()
    }
    names = list(components)
    cores = np.array([lanes[name] for name in executors], np.int32)
    return Problem(
        executors=tuple(executors),
        load=history.mean(axis=0) if len(history) else np.zeros(count),
        state_bytes=np.concatenate([facts.state_bytes for facts in components.values()]),
        current=np.concatenate(current),
        capacity=cores.astype(np.float64),
        cores=cores,
        draining=np.isin(executors, list(draining)),
        limits=limits or Limits(),
        traffic=Traffic(
            source=_joined([f.source + first[up] for (up, _), f in known.items()], np.int32),
            target=_joined([f.target + first[down] for (_, down), f in known.items()], np.int32),
            rate=_joined([found.rows for found in known.values()], np.float64),
        ),
        operators=tuple(names),
        operator_of=np.repeat(
            np.arange(len(names), dtype=np.int32),
            [facts.assignment.num_key_groups for facts in components.values()],
        ),
        downstream=tuple((names.index(up), names.index(down)) for up, down in known),
        history=history if len(history) else np.empty((0, 0)),
    )


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype)
