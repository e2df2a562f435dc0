"""From what was observed to what planners are asked.

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
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.planning import Limits, Problem, metrics
from godwit.planning.planner import a_load_range, one_range_each, some_tau
from godwit.planning.problem import NO_TRAFFIC

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.control.ports import Topology
    from godwit.control.statistics import ComponentStatistics, PeriodStatistics
    from godwit.migration import ProtocolView
    from godwit.planning import Traffic
    from godwit.planning.arrays import FloatArray, IntArray
    from godwit.planning.planner import Planner

__all__ = ["Means", "Question", "fill_limits", "question", "usage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What one executor has beside lanes; ``None``: so much that it is never short of it.

    Attributes
    ----------
    link_bytes_per_s
        What it can take in over the network.
    memory_bytes
        State that it can hold.
    """

    link_bytes_per_s: float | None = 125e6
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """A problem over the key groups of some components, and whose they are.

    Attributes
    ----------
    problem
        Key groups are numbered component after component.
    components
        Their names, in that order.
    first
        Component → number of its first key group.
    rows_per_s
        Shape ``(m,)``: rows that reach each key group.
    link_bytes_per_s
        What a load of 1 on the network stands for.
    """

    problem: Problem
    components: tuple[str, ...]
    first: Mapping[str, int]
    rows_per_s: FloatArray
    link_bytes_per_s: float

    def part(self, component: str) -> slice:
        """Where a component's key groups are."""
        first = self.first[component]
        later = [at for at in self.first.values() if at > first]
        return slice(first, min(later, default=self.problem.num_key_groups))


def question(
    components: Sequence[str],
    *,
    statistics: PeriodStatistics,
    view: ProtocolView,
    speeds: Mapping[str, float],
    means: Means,
    limits: Limits,
    draining: frozenset[str] = frozenset(),
    history: Mapping[str, Sequence[FloatArray]] | None = None,
    topology: Topology,
    traffic: Traffic = NO_TRAFFIC,
    seconds_per_byte: float = 0.0,
) -> Question:
    """Ask where key groups of some components should be.

    Parameters
    ----------
    components
        Those that are planned together.
    statistics, speeds
        What they cost, and how fast executors are.
    view
        Where they are, and which executors there are and drain.
    means, limits
        What executors have, and what a plan may cost.
    draining
        Executors to be emptied beside those that the view says drain.
    history
        Component → loads of past periods, oldest first, as many for each.
    topology
        Who sends to whom.
    traffic
        Between key groups, numbered as in the problem.
    seconds_per_byte
        What moving state costs, for planners that mind.
    """
    executors = tuple(sorted(view.executors, key=lambda name: (len(name), name)))
    number = {name: i for i, name in enumerate(executors)}
    lanes = np.array([view.executors[name] for name in executors], np.int32)
    parts = [_Part.of(name, statistics, view, number, speeds) for name in components]
    sizes = [len(part.current) for part in parts]
    first = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(int).tolist()
    speed = np.array([speeds.get(name, 1.0) for name in executors])
    resources = {"time": (np.concatenate([p.busy for p in parts]), lanes * speed)}
    each = np.ones(len(executors))
    sent = np.concatenate([p.bytes_per_s for p in parts])
    if means.link_bytes_per_s and sent.any():
        resources["network"] = (sent / means.link_bytes_per_s, each)
    state_bytes = np.concatenate([p.state_bytes for p in parts])
    if means.memory_bytes:
        resources["memory"] = (state_bytes / means.memory_bytes, each)
    index = {name: i for i, name in enumerate(components)}
    windows = _windows(components, history or {}, sizes)
    problem = Problem(
        executors=executors,
        resources=tuple(resources),
        load=np.stack([load for load, _ in resources.values()], axis=1),
        capacity=np.stack([capacity for _, capacity in resources.values()], axis=1),
        cores=lanes,
        state_bytes=state_bytes,
        current=np.concatenate([p.current for p in parts]),
        draining=np.isin(executors, list(view.draining | draining)),
        limits=limits,
        operators=tuple(components),
        operator_of=np.repeat(np.arange(len(components), dtype=np.int32), sizes),
        downstream=tuple(
            (index[a], index[b]) for a, b in topology.downstream if a in index and b in index
        ),
        traffic=traffic,
        seconds_per_byte=seconds_per_byte,
        history=np.empty((0, 0)) if windows is None else windows,
    )
    return Question(
        problem=problem,
        components=tuple(components),
        first=dict(zip(components, first, strict=True)),
        rows_per_s=np.concatenate([p.rows_per_s for p in parts]),
        link_bytes_per_s=means.link_bytes_per_s or 1.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """What one component adds to a problem; shapes ``(G,)``."""

    busy: FloatArray
    rows_per_s: FloatArray
    bytes_per_s: FloatArray
    state_bytes: FloatArray
    current: IntArray

    @classmethod
    def of(
        cls,
        name: str,
        statistics: PeriodStatistics,
        view: ProtocolView,
        number: Mapping[str, int],
        speeds: Mapping[str, float],
    ) -> _Part:
        assignment = view.components[name].assignment
        current = np.array([number.get(e, -1) for e in assignment.executors], np.int32)
        seen: ComponentStatistics | None = statistics.components.get(name)
        nothing = np.zeros(assignment.num_key_groups)
        period_s = statistics.covered_s
        return cls(
            busy=nothing if seen is None else seen.standard_s(speeds) / period_s,
            rows_per_s=nothing if seen is None else seen.rows / period_s,
            bytes_per_s=nothing if seen is None else seen.in_bytes / period_s,
            state_bytes=nothing if seen is None else seen.state_bytes,
            current=current[assignment.executor_of],
        )


def _windows(
    components: Sequence[str], history: Mapping[str, Sequence[FloatArray]], sizes: Sequence[int]
) -> FloatArray | None:
    """Shape ``(windows, m)``: as many as all of the components have."""
    count = min((len(history.get(name, ())) for name in components), default=0)
    if not count or any(
        len(history[n][-1]) != size for n, size in zip(components, sizes, strict=True)
    ):
        return None
    latest = [list(history[name])[-count:] for name in components]
    return np.stack([np.concatenate(window) for window in zip(*latest, strict=True)])


def fill_limits(planner: Planner | None, asked: Question, even_enough: float) -> Question:
    """Give a planner that needs a range or a threshold for loads the one that is wanted here.

    Parameters
    ----------
    planner
        Of the registry; ``None`` for a function of the user's, which gets what there is.
    asked
        The question.
    even_enough
        By what share of the mean an executor's load may differ from it.
    """
    if planner is None:
        return asked
    problem, limits = asked.problem, asked.problem.limits
    if a_load_range in planner.requires and limits.load_low is None:
        fair = metrics.mean_index(problem)
        limits = replace(
            limits, load_low=(1 - even_enough) * fair, load_high=(1 + even_enough) * fair
        )
    if some_tau in planner.requires and limits.tau is None:
        limits = replace(limits, tau=even_enough)
    # What a planner does not keep to is seen to when its plan is cut down to the budget.
    limits = replace(limits, **dict.fromkeys(planner.refuses))
    intervals = planner.family == "intervals" and not one_range_each(problem)
    return replace(asked, problem=replace(problem, limits=limits, intervals=intervals))


def usage(problem: Problem) -> Mapping[str, float]:
    """Resource → share of all there is of it that is used, over executors that stay."""
    total = problem.load.sum(axis=0) / problem.capacity[problem.available].sum(axis=0)
    return dict(zip(problem.resources, total.tolist(), strict=True))
