"""What a simulated flow does with an epoch: rows through components, and what that costs whom.

`SimulatedFlow.work` is pure: it says what an attempt at an epoch would do and how long it would
take.  `SimulatedFlow.commit` makes it so.  An attempt that is broken off has therefore done
nothing, as on the real runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.cluster.simulated.components import deal_out, levels_of, route
from godwit.cluster.simulated.epoch_work import (
    ComponentWork,
    EpochWork,
    outcome_of,
    slowest_lane_ms,
)
from godwit.cluster.simulated.holdings import Holdings, WaitBuffers
from godwit.cluster.simulated.workload import KeySpread
from godwit.migration import LossPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit.cluster.simulated.components import Component, Routed
    from godwit.cluster.simulated.costs import CostModel
    from godwit.cluster.simulated.workload import Batch, Keys, Phase
    from godwit.migration import Copies, EpochOutcome, EpochPlan
    from godwit.model.assignment import Assignment
    from godwit.planning.arrays import BoolArray, FloatArray

__all__ = ["SimulatedFlow"]


class SimulatedFlow:
    """The components of a scenario, with their state and what waits."""

    # called with a component, what feeds it, its assignment, its keys and a generator: which rows
    # go where. Whoever carries real rows puts something else in its place.
    deal: Callable[..., Routed] = staticmethod(deal_out)

    def __init__(
        self,
        components: Sequence[Component],  # what it is made of
        keys: Keys,  # what its keys are like
        costs: CostModel,  # what an epoch costs
        *,
        seed: int,  # of hashes and shuffles
        rng: np.random.Generator,  # draws which rows go where between components
        # what a lane does that expects state and finds none
        on_loss: LossPolicy = LossPolicy.SUSPEND,
    ) -> None:
        self.levels = levels_of(components)
        self.components = {c.name: c for level in self.levels for c in level}
        self._expected: dict[tuple[float, int], Mapping[str, FloatArray]] = {}
        self._keys, self._costs, self._rng, self._on_loss = keys, costs, rng, on_loss
        self._spread = {
            name: KeySpread(keys=keys, key_groups=c.key_groups, seed=(seed, at))
            for at, (name, c) in enumerate(sorted(self.components.items()))
        }
        self.holdings = {
            name: Holdings(key_groups=c.key_groups, key_bytes=c.key_bytes)
            for name, c in self.components.items()
        }
        self.buffers = {
            name: WaitBuffers(component=name, key_groups=c.key_groups)
            for name, c in self.components.items()
        }

    @property
    def spreads(self) -> Mapping[str, KeySpread]:
        """Component → where its keys are."""
        return self._spread

    def have_run(self, assignments: Mapping[str, Assignment]) -> None:
        """Let every key have state, and executors copies of the key groups that they own."""
        for name, assignment in assignments.items():
            self.holdings[name].fill(self._spread[name].held)
            for at, executor in enumerate(assignment.executors):
                own = np.flatnonzero(assignment.executor_of == at)
                self.holdings[name].bring_forward(executor, own, np.zeros(len(own)))

    # -- an attempt -------------------------------------------------------------------------------

    def work(
        self,
        epoch: int,  # epoch, batch, plans: What runs, and how
        batch: Batch,
        plans: Mapping[str, EpochPlan],
        *,
        copies: Copies,  # where lanes expect state to be
        # speeds, cores: Executor → speed of each of its cores, and how many it has
        speeds: Mapping[str, float],
        cores: Mapping[str, int],
    ) -> EpochWork:
        """Say what an epoch does, and how long it takes."""
        costs, works = self._costs, dict[str, ComponentWork]()
        usable = sum(cores[name] * speeds[name] for name in cores)
        took_ms = costs.fixed_ms + costs.source_row_ms * batch.rows / max(usable, 1e-9)
        lane_ms = 0.0
        for level in self.levels:
            for component in level:
                works[component.name] = self._component(
                    component,
                    batch,
                    works,
                    plans[component.name],
                    copies=copies,
                    speeds=speeds,
                )
            slowest, total = slowest_lane_ms([works[c.name] for c in level], cores)
            took_ms += slowest
            lane_ms += total
        return EpochWork(
            epoch=epoch,
            batch=batch,
            components=works,
            took_s=took_ms / 1000,
            lane_ms=lane_ms,
        )

    def expected_ms(self, rows: float, phase: int) -> Mapping[str, FloatArray]:
        """Component → milliseconds that its key groups cost, on a core of speed 1, on average.

        For an epoch of so many source rows, nothing suspended and nothing to bring forward.
        """
        known = self._expected.get((rows, phase))
        if known is not None:
            return known
        flowing: dict[str, FloatArray] = {}
        cost: dict[str, FloatArray] = {}
        for name, component in self.components.items():
            spread = self._spread[name].phase(phase)
            mean = np.zeros(component.key_groups) if component.feeds else rows * spread.share
            for feed in component.feeds:
                sent = flowing[feed.upstream] * feed.selectivity
                mean += route(sent, feed, spread.share).rows
            flowing[name] = mean
            touched = 1 - np.exp(-mean)
            cost[name] = self._lane_ms(component, mean, spread.keys_among(mean), touched)
        self._expected[rows, phase] = cost
        return cost

    def _component(
        self,
        component: Component,
        batch: Batch,
        works: Mapping[str, ComponentWork],
        plan: EpochPlan,
        *,
        copies: Copies,
        speeds: Mapping[str, float],
    ) -> ComponentWork:
        name, m = component.name, component.key_groups
        phase, routed = self._phase(name, batch.phase), None
        if component.feeds:
            routed = self.deal(
                name,
                [(feed, works[feed.upstream]) for feed in component.feeds],
                plan.assignment,
                phase.share,
                self._rng,
            )
        new = routed.rows if routed else batch.rows_of.get(name, np.zeros(m, np.int64))
        consume, load = _mask(m, plan.consume), _mask(m, plan.load)
        waiting = self.buffers[name].waiting
        runs = _mask(m, plan.suspended, inverted=True)
        runs &= ~self._astray(name, plan, (new > 0) | (consume & (waiting > 0)), copies)
        processed = np.where(runs, new, 0) + np.where(runs & consume, waiting, 0)
        keys = phase.keys_among(processed)
        moved = np.where((processed > 0) | load, self._missing_bytes(name, plan), 0.0)
        cpu_ms = self._lane_ms(component, processed, keys, processed > 0)
        cpu_ms += moved / self._costs.read_bytes_per_ms
        if routed is not None:
            cpu_ms += routed.crossed_rows * self._costs.between_executors_row_ms
        owner = plan.assignment.executor_of
        speed = np.array([speeds[e] for e in plan.assignment.executors])[owner]
        return ComponentWork(
            plan=plan,
            runs=runs,
            consumes=consume,
            loads=load,
            waits=~runs & ((new > 0) | (consume & (waiting > 0))),
            new=new,
            processed=processed,
            keys=keys,
            cpu_ms=cpu_ms / speed,
            moved_bytes=moved,
            routed=routed,
        )

    def _phase(self, name: str, number: int) -> Phase:
        return self._spread[name].phase(number)

    def _lane_ms(
        self,
        component: Component,
        rows: FloatArray,
        keys: FloatArray,
        touched: FloatArray | BoolArray,
    ) -> FloatArray:
        costs = self._costs
        per_row, per_key = costs.row_ms + component.row_ms, costs.key_ms + component.key_ms
        ms: FloatArray = rows * per_row + keys * per_key + touched * costs.key_group_ms
        return ms

    def _astray(self, name: str, plan: EpochPlan, touched: BoolArray, copies: Copies) -> BoolArray:
        """Key groups whose lane expects state and finds none: their rows wait."""
        assignment, holdings = plan.assignment, self.holdings[name]
        astray = np.zeros(assignment.num_key_groups, np.bool_)
        if self._on_loss is LossPolicy.LOAD:
            return astray
        for at, executor in enumerate(assignment.executors):
            gone = touched & (assignment.executor_of == at) & (holdings.state_bytes > 0)
            gone &= ~holdings.copy(executor).there
            for g in np.flatnonzero(gone).tolist():
                expected = copies.reach(name, executor, g) >= 0
                astray[g] = expected and g not in plan.load and g not in plan.suspended
        return astray

    def _missing_bytes(self, name: str, plan: EpochPlan) -> FloatArray:
        assignment, holdings = plan.assignment, self.holdings[name]
        missing = np.zeros(assignment.num_key_groups)
        for at, executor in enumerate(assignment.executors):
            here = assignment.executor_of == at
            missing[here] = holdings.missing_bytes(executor)[here]
        return missing

    # -- a commit ---------------------------------------------------------------------------------

    def commit(self, work: EpochWork) -> tuple[EpochOutcome, FloatArray]:
        """Make it so; return the outcome, and when the source rows came that were processed.

        These are counted once for every component that takes them from the source, in the form of
        `godwit.cluster.simulated.workload.Arrivals.pieces`.
        """
        left = [np.empty((0, 3))]
        changelog = snapshots = 0.0
        for name, part in work.components.items():
            gone = self.buffers[name].commit(part.new, part.runs, part.consumes, work.batch.arrived)
            if not self.components[name].feeds:
                left.append(gone)
            before = self.holdings[name].written_bytes.copy()
            written, rewritten = self.holdings[name].change(
                part.processed,
                part.keys,
                phase=self._phase(name, work.batch.phase),
                number=work.batch.phase,
                known=self._spread[name].held,
            )
            changelog, snapshots = changelog + written, snapshots + rewritten
            self._advance_copies(name, part, before)
        fed = {feed.upstream for c in self.components.values() for feed in c.feeds}
        outcome = outcome_of(
            work,
            self.holdings,
            sinks=self.components.keys() - fed,
            changelog_bytes=int(changelog),
            snapshot_bytes=int(snapshots),
        )
        return outcome, np.concatenate(left)

    def _advance_copies(self, name: str, part: ComponentWork, written_before: FloatArray) -> None:
        """Apply on next: lanes brought their copies forward to the version before this epoch."""
        assignment, used = part.plan.assignment, part.used
        for at, executor in enumerate(assignment.executors):
            here = np.flatnonzero(used & (assignment.executor_of == at))
            self.holdings[name].bring_forward(executor, here, written_before[here])


def _mask(m: int, key_groups: frozenset[int], *, inverted: bool = False) -> BoolArray:
    mask = np.full(m, inverted)
    mask[list(key_groups)] = not inverted
    return mask
