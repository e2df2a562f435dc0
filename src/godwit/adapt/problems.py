"""Planning problems, from observed statistics.

Problem: planners ask for one load per key group, in one unit, whatever executor it was measured
on; statistics are seconds, rows and bytes on executors that may be slow.

Invariant: load is the share of its time that a lane of a *standard* executor would be busy with a
key group, and an executor's capacity is its lanes times its speed; so a load index is the share of
its time that an executor's lanes are busy, in [0, 1] while it keeps up, and a load distance the
difference of two such shares.  Network and memory are measured as shares of what one executor has,
so that the bottleneck (paper 2 §3) is found by comparing like with like.

What is planned together is what runs at the same time: one *stage* (see `Topology`), since lanes
wait for each other between two stages.  A planner that collocates key groups of neighbouring
components, as ALBIC does, gets all stages at once, as in paper 2.

State is what a move would carry: nothing, where a key group turns to an empty slot at its
destination (instant migration, paper 3 §4.5).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.adapt.statistics import AssignmentPeriod, ComponentStatistics
from godwit.migration.placement import with_newcomers
from godwit.model.errors import InvalidControlError
from godwit.model.frames import user_class
from godwit.model.naming import insist_on_number
from godwit.planning import Limits, Problem, metrics
from godwit.planning.planner import a_load_range, one_range_each, some_tau
from godwit.planning.running import ComponentFacts, joint_problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.adapt.ports import Topology
    from godwit.adapt.statistics import PeriodStatistics
    from godwit.migration import ProtocolView
    from godwit.model.assignment import Assignment
    from godwit.planning.arrays import FloatArray
    from godwit.planning.planner import Planner

__all__ = ["Means", "Question", "fill_limits", "planning_question", "usage"]


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Resources of one executor beside lanes; ``None``: so much that it is never short of it.

    Attributes
    ----------
    link_bytes_per_s
        What it can take in over the network.
    memory_bytes
        State that it can hold.

    Raises
    ------
    InvalidControlError
        If one of them is no number, or less than one byte.
    """

    link_bytes_per_s: float | None = 125e6
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        for name in ("link_bytes_per_s", "memory_bytes"):
            value = getattr(self, name)
            if value is not None:
                what = f"What an executor has, {name},"
                insist_on_number(what, value, least=1, error=InvalidControlError, whole=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """A problem over the key groups of some components, and whose they are."""

    problem: Problem  # key groups are numbered component after component
    components: tuple[str, ...]  # their names, in that order
    first: Mapping[str, int]  # component → number of its first key group
    rows_per_s: FloatArray  # shape ``(m,)``: rows that reach each key group
    link_bytes_per_s: float  # what a load of 1 on the network stands for
    # shape ``(m,)``: state of each key group, also of those that would move without it
    held_bytes: FloatArray

    def part(self, component: str) -> slice:
        """Where a component's key groups are."""
        first = self.first[component]
        later = [at for at in self.first.values() if at > first]
        return slice(first, min(later, default=self.problem.num_key_groups))


def planning_question(
    components: Sequence[str],  # those that are planned together
    *,
    statistics: PeriodStatistics,  # statistics, speeds: What they cost, and how fast executors are
    view: ProtocolView,  # where they are, and which executors there are and drain
    speeds: Mapping[str, float],
    means: Means,  # means, limits: What executors have, and what a plan may cost
    limits: Limits,
    # executors to be emptied beside those that the view says drain
    draining: frozenset[str] = frozenset(),
    # component → loads of past periods, oldest first, as many for each
    history: Mapping[str, Sequence[FloatArray]] | None = None,
    topology: Topology,  # who sends to whom
    seconds_per_byte: float = 0.0,  # what moving state costs, for planners that mind
) -> Question:
    """Ask where key groups of some components should be."""
    period_s, seen = statistics.covered_s, statistics.components
    parts = {
        name: seen.get(name) or _nothing(view.components[name].assignment) for name in components
    }
    busy = {name: part.standard_s(speeds) / period_s for name, part in parts.items()}
    windows = _windows(busy, history or {})
    problem = joint_problem(
        {
            name: ComponentFacts(
                assignment=with_newcomers(view.components[name].assignment, view.executors),
                load=windows[name],
                state_bytes=part.state_bytes,
            )
            for name, part in parts.items()
        },
        {
            (up, name): pairs.times(part.row_bytes / period_s)
            for name, part in parts.items()
            for up, pairs in part.pairs.items()
        },
        draining=(view.draining | draining) & view.executors.keys(),
        limits=limits,
    )
    speed = np.array([speeds.get(name, 1.0) for name in problem.executors])
    each = np.ones(problem.num_executors)
    resources = {"time": (np.concatenate(list(busy.values())), problem.cores * speed)}
    sent = np.concatenate([part.in_bytes for part in parts.values()]) / period_s
    if means.link_bytes_per_s and sent.any():
        resources["network"] = (sent / means.link_bytes_per_s, each)
    if means.memory_bytes:
        resources["memory"] = (problem.state_bytes / means.memory_bytes, each)
    sizes = [len(part.in_bytes) for part in parts.values()]
    first = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(int).tolist()
    turns = np.zeros(problem.num_key_groups, np.bool_)
    for name, at in zip(parts, first, strict=True):
        turns[[at + g for g in view.components[name].instant]] = True
    # Both slots of a key group have to leave an executor that is to go.
    turns &= ~problem.draining[problem.current]
    return Question(
        problem=replace(
            problem,
            resources=tuple(resources),
            load=np.stack([load for load, _ in resources.values()], axis=1),
            capacity=np.stack([capacity for _, capacity in resources.values()], axis=1),
            state_bytes=np.where(turns, 0.0, problem.state_bytes),
            seconds_per_byte=seconds_per_byte,
            downstream=tuple(
                (components.index(up), components.index(down))
                for up, down in topology.downstream
                if up in parts and down in parts
            ),
        ),
        components=tuple(components),
        first=dict(zip(components, first, strict=True)),
        rows_per_s=np.concatenate([part.rows for part in parts.values()]) / period_s,
        link_bytes_per_s=means.link_bytes_per_s or 1.0,
        held_bytes=problem.state_bytes,
    )


def _nothing(assignment: Assignment) -> ComponentStatistics:
    """Statistics of a component that nothing is known of."""
    zeros = np.zeros(assignment.num_key_groups)
    return ComponentStatistics(
        by_assignment=(AssignmentPeriod.empty(assignment),),
        in_bytes=zeros,
        crossed_bytes=0.0,
        state_bytes=zeros,
    )


def _windows(
    busy: Mapping[str, FloatArray], history: Mapping[str, Sequence[FloatArray]]
) -> dict[str, FloatArray]:
    """Component → shape ``(windows, G)``: past periods that all have, or this one alone."""
    count = min(len(history.get(name, ())) for name in busy)
    if not count:
        return {name: load[None, :] for name, load in busy.items()}
    return {name: np.stack(list(history[name])[-count:]) for name in busy}


def fill_limits(planner: Planner | None, question: Question, even_enough: float) -> Question:
    """Give a planner that needs a range or a threshold for loads the one that is wanted here.

    A function of the user's (``None``) gets what there is. `even_enough` is the share of the mean
    by which an executor's load may differ from it.
    """
    if planner is None:
        return question
    problem, limits = question.problem, question.problem.limits
    if a_load_range in planner.requires and limits.load_low is None:
        fair = metrics.mean_index(problem)
        limits = replace(
            limits, load_low=(1 - even_enough) * fair, load_high=(1 + even_enough) * fair
        )
    if some_tau in planner.requires and limits.tau is None:
        limits = replace(limits, tau=even_enough)
    if limits.theta is None:
        limits = replace(limits, theta=1 + even_enough)
    # What a planner does not keep to is seen to when its plan is cut down to the budget.
    limits = replace(limits, **dict.fromkeys(planner.refuses))
    intervals = planner.plans_intervals and not one_range_each(problem)
    return replace(question, problem=replace(problem, limits=limits, intervals=intervals))


def usage(problem: Problem) -> Mapping[str, float]:
    """Resource → share of all there is of it that is used, over executors that stay."""
    total = problem.load.sum(axis=0) / problem.capacity[problem.available].sum(axis=0)
    return dict(zip(problem.resources, total.tolist(), strict=True))
