"""Migrations of a known sequence of numbers of executors, planned together (paper 1 §5.1).

Where the user says beforehand how many executors there will be, the cheapest migration now is not
the first of the cheapest sequence.  `plan_oms` gives the cuts of every step at once; each step
takes the cuts that were planned for it, and only which executor gets which range is decided when
the step is made, since executors that come have no names before.

Invariant: a planned step is taken as it was planned, or the rest of the sequence is planned again,
and an event says why: other numbers of executors than were planned for, or a load that has left τ
by more than noise explains.  Planning again from the present step costs no more than continuing, as
long as loads and sizes stay: the rest of a cheapest path is a cheapest path.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.control.cost_benefit import load_errors
from godwit.control.scaling import Scripted
from godwit.model import events
from godwit.placement import metrics
from godwit_lab.control.ranges import RangePlacement
from godwit_lab.planners.intervals.oms import match_intervals
from godwit_lab.planners.intervals.ssm import present_cuts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.control.interfaces import MeasuredProblem
    from godwit.control.policy import Announce
    from godwit.control.settings import Control
    from godwit.control.styles import Turn
    from godwit.engine.policies import Topology
    from godwit.placement import Problem, Solution
    from godwit.placement.arrays import FloatArray, IntArray

SAMPLE = 256
"""Partitionings of a step that are looked at: within a second, where the paper's OMS tries all."""
_HORIZON = 16
"""Steps that are planned at once; further ones are planned when these are over."""
_FIRST = "it is the first plan"
_ROUNDING = 1e-9
_MARGIN = 2.0
"""Standard errors by which a load may exceed τ: as much as measurements can tell."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Path:
    """Remaining steps of a planned sequence; the present step is the first."""

    executors: tuple[int, ...]  # how many there are in each step
    cuts: tuple[IntArray, ...]  # of each step; fewer where not all could be planned
    tau: float  # that the plan keeps: the limit, or more where nothing is within the limit

    def at(self, wanted: tuple[int, ...]) -> _Path | None:
        """Return the path from its present or next step on, if its executors are `wanted`.

        ``None`` if they are not.
        """
        for path in (self, _Path(executors=self.executors[1:], cuts=self.cuts[1:], tau=self.tau)):
            if path.cuts and path.executors == wanted[: len(path.executors)]:
                return path
        return None


class SequencePlacement(RangePlacement):
    """Ranges by the steps of a known sequence of migrations.

    The sequence is that of the planner's option ``targets``, or of
    ``scaling=gw.control.scripted(...)``.
    """

    def __init__(
        self,
        settings: Control,
        topology: Topology,
        announce: Announce,
        *,
        targets: Sequence[int] | None = None,
    ) -> None:
        super().__init__(settings, topology, announce, targets=targets)
        options = settings.search.options
        self.targets = tuple(options.get("targets", ()) if targets is None else targets)
        self._sample = options.get("sample", SAMPLE)
        self._model = settings.scaling_model
        self._sequence = MigrationSequence(announce)

    def before(self, measured: MeasuredProblem, turn: Turn) -> IntArray | None:
        """Return ranges of about equal load where there are none; a planned sequence then ends."""
        ranges = super().before(measured, turn)
        if ranges is not None and not turn.hypothetical:
            self._sequence.forget(measured.components, "ranges were laid out again")
        return ranges

    def plan(self, measured: MeasuredProblem, turn: Turn) -> IntArray:
        """Return the assignment of the present step."""
        problem = measured.problem
        if turn.waits:
            return problem.current

        def plan(widened: Problem, targets: tuple[int, ...]) -> Solution | None:
            return turn.try_plan(widened, targets=targets, sample=self._sample)

        return self._sequence.assignment(
            measured.components,
            problem,
            self._executors_to_come(len(problem.available), turn),
            measured.variance,
            plan=plan,
            hypothetical=turn.hypothetical,
        )

    def _executors_to_come(self, present: int, turn: Turn) -> tuple[int, ...]:
        """Return the present number of executors, and the later ones that a user planned.

        Unless the decision is hypothetical, later numbers that are reached are forgotten.
        """
        later = self.targets
        if later:
            while later and later[0] == present:
                later = later[1:]
            if not turn.hypothetical:
                self.targets = later
        elif isinstance(self._model, Scripted):
            later = self._model.to_come(turn.running_s)
        numbers = (present, *later)
        changes = [True, *(n != before for before, n in itertools.pairwise(numbers))]
        return tuple(itertools.compress(numbers, changes))


class MigrationSequence:
    """Planned sequences of a run, by the components that are planned together."""

    def __init__(self, announce: Announce) -> None:
        self._announce = announce
        self._paths: dict[tuple[str, ...], _Path] = {}
        self._reasons: dict[tuple[str, ...], str] = {}  # why there is no path

    def forget(self, components: tuple[str, ...], reason: str) -> None:
        """Drop the planned sequence of components, since the stream no longer follows it."""
        if self._paths.pop(components, None) is not None:
            self._reasons[components] = reason

    def assignment(
        self,
        components: tuple[str, ...],
        problem: Problem,
        executors: Sequence[int],
        variance: FloatArray | None,
        *,
        plan: Callable[[Problem, tuple[int, ...]], Solution | None],
        hypothetical: bool = False,
    ) -> IntArray:
        """Return each key group's executor in the present step; replace an outdated sequence.

        `problem`: by ranges; its executors are those of the present step. `executors`: numbers of
        executors to come, that of `problem` first. `variance`: of each key group's measured load,
        shape ``(m,)``. `plan`: plans a problem for such numbers; ``None``: it could not.
        `hypothetical`: for a decision that may not be made, so that the sequence is not replaced.
        """
        wanted = tuple(executors)[:_HORIZON]
        known = self._paths.get(components)
        path = None if known is None else known.at(wanted)
        reason = self._reasons.get(components, _FIRST)
        if known is not None:
            reason = _why_anew(known, path, wanted, problem, variance)
        if reason or path is None:
            solution = plan(_with_executors(problem, wanted), wanted)
            if solution is None:
                return problem.current
            path = _path_of(solution, wanted)
            if not hypothetical and (len(wanted) > 1 or reason != _FIRST):
                self._announce(
                    events.MigrationsPlanned,
                    components=components,
                    executors=wanted[: len(path.cuts)],
                    cuts=tuple(tuple(cuts[1:-1].tolist()) for cuts in path.cuts),
                    moved_bytes=tuple(solution.details.get("moved_bytes", (solution.moved_bytes,))),
                    reason=reason,
                )
        if not hypothetical:
            self._paths[components] = path
        stays = np.array_equal(path.cuts[0], present_cuts(problem))
        if stays and not problem.draining[problem.current].any():
            return problem.current
        return match_intervals(problem, path.cuts[0])


def _why_anew(
    known: _Path,
    path: _Path | None,
    wanted: tuple[int, ...],
    problem: Problem,
    variance: FloatArray | None,
) -> str:
    """Return the reason to plan the rest of a sequence again; empty if it is still valid.

    `known`: the sequence as planned; `path`: its remaining steps. `wanted`: numbers of executors to
    come. `variance`: of key groups' loads; ``None``: these are exact.
    """
    if path is None:
        return f"it was planned for {', '.join(map(str, known.executors))} executors"
    if len(path.executors) == 1 < len(wanted):
        return "the planned steps are over"
    assignment = match_intervals(problem, path.cuts[0])
    excess = metrics.load_index(problem, assignment) - (1 + path.tau) * metrics.mean_index(problem)
    beyond = np.flatnonzero(excess > _MARGIN * load_errors(problem, assignment, variance))
    if len(beyond):
        return f"executor {problem.executors[int(beyond[0])]} would have more load than tau allows"
    return ""


def _path_of(solution: Solution, wanted: tuple[int, ...]) -> _Path:
    """Return the steps of a planned sequence; only the first if the planner returned no others.

    `wanted`: number of executors in each step.
    """
    problem, cuts = solution.problem, solution.details.get("cuts")
    if cuts is None:
        cuts = [present_cuts(replace(problem, current=solution.assignment))]
    steps = tuple(np.unique(np.asarray(of_step, np.int32)) for of_step in cuts)
    loads = np.add.reduceat(problem.weight, steps[0][:-1])
    fair = float(problem.weight.sum()) / wanted[0]
    over = float(loads.max()) / fair - 1 if fair else 0.0
    return _Path(executors=wanted, cuts=steps, tau=max(problem.limits.tau or 0.0, over) + _ROUNDING)


def _with_executors(problem: Problem, wanted: tuple[int, ...]) -> Problem:
    """Return the problem with executors added that will join, equal to the first that stays."""
    missing = max(0, max(wanted) - len(problem.available))
    like = np.append(np.arange(problem.num_executors), np.repeat(problem.available[:1], missing))
    return replace(
        problem,
        executors=(*problem.executors, *(f"(to come: {index})" for index in range(missing))),
        capacity=problem.capacity[like],
        cores=problem.cores[like],
        draining=problem.draining[like],
        limits=replace(problem.limits, target_executors=wanted[0]),
    )
