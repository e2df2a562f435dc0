"""Epochs of a simulated flow: the rows of every component, and the time and bytes they cost.

`SimulatedFlow.work` is pure: it says what an attempt at an epoch would do and how long it would
take.  `SimulatedFlow.commit` makes it so.  An attempt that is broken off has therefore done
nothing, as on the real runtime.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from godwit.migration import LossPolicy
from godwit.migration.outcome import ComponentTraffic, EpochOutcome
from godwit.model.errors import InvalidFlowError
from godwit.model.key_groups import OTHERS, KeyGroupLoad, KeyGroupPairs, PerKeyGroup, key_group_mask
from godwit_lab.simulator.holdings import Holdings, WaitBuffers
from godwit_lab.simulator.workload import KeySpread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from godwit.migration.copies import Copies
    from godwit.migration.state import ComponentView
    from godwit.model.assignment import Assignment
    from godwit.placement.arrays import BoolArray, FloatArray
    from godwit_lab.simulator.costs import CostModel
    from godwit_lab.simulator.workload import Batch, Keys, MeasuredKeyGroups, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamFeed:
    """Rows from one component to another."""

    upstream: str  # the component that sends
    selectivity: float = 1.0  # rows sent for every row that it processes
    # share of them, in [0, 1], that key group *g* sends to one key group only, ``g`` modulo their
    # number; the others go where the receiver's keys are. (Paper 2 §5.3: "1-1 communication".)
    paired: float = 0.0
    row_bytes: int = 100  # size of a row on its way

    def __post_init__(self) -> None:
        if self.selectivity < 0 or not 0 <= self.paired <= 1 or self.row_bytes < 0:
            raise InvalidFlowError(
                f"The feed from {self.upstream!r} has selectivity {self.selectivity}, paired "
                f"{self.paired} and {self.row_bytes} bytes a row.",
                remedy="Give numbers that are not negative, and paired between 0 and 1.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedComponent:
    """One keyed component.

    Raises `InvalidFlowError` if it has no key groups, or a cost or size is negative.
    """

    name: str  # its name
    key_groups: int = 128  # number of its key groups
    # the user's function on a core of speed 1, beside the runtime's own part
    row_ms: float = 0.0
    key_ms: float = 0.0  # for a distinct key of an epoch
    key_bytes: int = 100  # state of one key
    feeds: tuple[UpstreamFeed, ...] = ()  # where its rows come from; none: the source
    # what its key groups cost and hold, if measured: `row_ms` and the scenario's keys are not used
    measured: MeasuredKeyGroups | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.key_groups < 1 or min(self.row_ms, self.key_ms, self.key_bytes) < 0:
            raise InvalidFlowError(
                f"Component {self.name!r} has {self.key_groups} key groups, {self.row_ms} ms a row,"
                f" {self.key_ms} ms a key and {self.key_bytes} bytes a key.",
                remedy="Give at least one key group, and costs that are not negative.",
                component=self.name,
            )


def levels_of(
    components: Sequence[SimulatedComponent],
) -> tuple[tuple[SimulatedComponent, ...], ...]:
    """Return the components by level: 1 if the source feeds them, else one more than upstream.

    Raises `InvalidFlowError` if there is no component, two have one name, an upstream component
    does not exist, or components form a cycle.
    """
    named: Mapping[str, SimulatedComponent] = {c.name: c for c in components}
    if not components or len(named) < len(components):
        raise InvalidFlowError(
            f"Components are {[c.name for c in components]}.",
            remedy="Give at least one, each with a name of its own.",
        )
    for c in components:
        for feed in c.feeds:
            if feed.upstream not in named:
                raise InvalidFlowError(
                    f"Component {c.name!r} is fed by {feed.upstream!r}, which does not exist.",
                    remedy=f"Components are {', '.join(named)}.",
                )
    level: dict[str, int] = {}
    for _ in components:
        for c in components:
            if c.name not in level and all(f.upstream in level for f in c.feeds):
                level[c.name] = 1 + max((level[f.upstream] for f in c.feeds), default=0)
    circle = sorted(named.keys() - level.keys())
    if circle:
        raise InvalidFlowError(
            f"Components {', '.join(circle)} feed each other in a circle.",
            remedy="Let rows flow one way.",
        )
    return tuple(
        tuple(c for c in components if level[c.name] == depth)
        for depth in range(1, max(level.values()) + 1)
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routed:
    """Rows that enter a component from upstream; vectors have one entry per key group of it."""

    rows: np.ndarray
    size_bytes: FloatArray
    crossed_rows: FloatArray  # rows that come from another executor
    crossed_bytes: float  # bytes that change executor, in all
    # executor → bytes that it sends to others, and gets from others
    link_bytes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # component upstream → rows from its key groups to those of this one
    pairs: Mapping[str, KeyGroupPairs] = field(default_factory=dict)


def expected_rows(sent: FloatArray, feed: UpstreamFeed, share: FloatArray) -> FloatArray:
    """Return the mean number of rows that each key group gets from an upstream component.

    `sent`: rows that each key group upstream sends. A share `feed.paired` of them goes to the key
    group of the same number, the others are distributed by `share`.
    """
    m = len(share)
    paired = np.bincount(np.arange(len(sent)) % m, weights=sent * feed.paired, minlength=m)
    mean: FloatArray = paired + sent.sum() * (1 - feed.paired) * share
    return mean


def distribute_rows(
    _component: str,  # the receiver
    feeds: Sequence[
        tuple[UpstreamFeed, ComponentWork]
    ],  # each with what the component upstream did
    assignment: Assignment,  # where the receiver's key groups are
    share: FloatArray,  # shape ``(m,)``: share of each key group in the receiver's rows
    rng: np.random.Generator,  # rounds fractions of rows, and chooses the targets of unpaired rows
) -> Routed:
    """Draw the key groups that rows of upstream components go to; return rows and bytes.

    `feeds`: each with the work of the component upstream. `share`: distribution, over key groups,
    of rows that are not sent one-to-one.
    """
    m, rows = assignment.num_key_groups, np.zeros(assignment.num_key_groups, np.int64)
    size, crossed_rows = np.zeros(m), np.zeros(m)
    sent_bytes, received_bytes = np.zeros((2, len(assignment.executors)))
    pairs: dict[str, KeyGroupPairs] = {}
    for feed, upstream in feeds:
        sent = _round_randomly(upstream.processed * feed.selectivity, rng)
        paired = _round_randomly(sent * feed.paired, rng).clip(max=sent)
        source = upstream.plan.assignment
        target = np.arange(len(sent)) % m
        number = {name: index for index, name in enumerate(assignment.executors)}
        places = np.array([number.get(name, -1) for name in source.executors])
        sender = places[source.executor_of]
        arrives = np.bincount(target, weights=paired, minlength=m)
        away = sender != assignment.executor_of[target]
        crossed = np.bincount(target, weights=paired * away, minlength=m)
        free = sent - paired
        spread = rng.multinomial(int(free.sum()), share)
        local = np.bincount(
            sender[sender >= 0], weights=free[sender >= 0], minlength=len(assignment.executors)
        )
        crossed += spread * (1 - local / max(free.sum(), 1))[assignment.executor_of]
        rows += arrives.astype(np.int64) + spread
        size += (arrives + spread) * feed.row_bytes
        crossed_rows += crossed
        received_bytes += feed.row_bytes * _sum_per_executor(crossed, assignment)
        elsewhere = 1 - _sum_per_executor(spread, assignment) / max(spread.sum(), 1)
        leaves = paired * away + free * elsewhere[sender]
        sent_bytes += feed.row_bytes * np.bincount(
            sender[sender >= 0], weights=leaves[sender >= 0], minlength=len(sent_bytes)
        )
        senders = np.flatnonzero(sent)
        pairs[feed.upstream] = KeyGroupPairs.counted(
            np.concatenate((senders, senders)),
            np.concatenate((target[senders], np.full(len(senders), OTHERS))),
            np.concatenate((paired[senders], free[senders])).astype(np.float64),
        )
    return Routed(
        rows=rows,
        size_bytes=size,
        crossed_rows=crossed_rows,
        crossed_bytes=float(received_bytes.sum()),
        link_bytes=dict(
            zip(
                assignment.executors,
                zip(sent_bytes.tolist(), received_bytes.tolist(), strict=True),
                strict=True,
            )
        ),
        pairs=pairs,
    )


def _sum_per_executor(values: np.ndarray, assignment: Assignment) -> FloatArray:
    """Sum key groups' values by owner; return an array in the order of the executors."""
    count = len(assignment.executors)
    sums: FloatArray = np.bincount(assignment.executor_of, values, count).astype(np.float64)
    return sums


def _round_randomly(rows: FloatArray, rng: np.random.Generator) -> np.ndarray:
    """Return numbers of rows rounded up or down at random, so that their mean stays."""
    whole: np.ndarray = np.floor(rows + rng.random(len(rows))).astype(np.int64)
    return whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComponentWork:
    """Work of one component in an epoch; vectors have one entry per key group."""

    plan: ComponentView  # how it runs
    runs: BoolArray
    consumes: BoolArray  # key groups that run and process what waits
    loads: BoolArray  # key groups that their lanes load first
    waits: BoolArray  # key groups whose rows go to the wait buffer, or stay there
    new: np.ndarray  # rows that come in
    processed: np.ndarray  # rows, those that waited among them
    keys: FloatArray  # distinct
    cpu_ms: FloatArray  # what they cost on the executor where they run
    moved_bytes: FloatArray  # what lanes read to bring state forward
    routed: Routed | None  # what came from operators upstream; ``None`` for what the source feeds

    @property
    def used(self) -> BoolArray:
        """Mask of key groups whose state a lane uses: they process rows, or are loaded."""
        used: BoolArray = (self.processed > 0) | (self.runs & self.loads)
        return used


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochWork:
    """Work of one attempt at an epoch, not committed yet."""

    epoch: int
    batch: Batch
    components: Mapping[str, ComponentWork]  # component → its part, upstream first
    took_s: float  # from its start to its commit
    lane_ms: float  # what all lanes together compute
    used: frozenset[str] = field(init=False)  # executors that own key groups: lanes run there

    def __post_init__(self) -> None:
        assignments = [work.plan.assignment for work in self.components.values()]
        used = {name for a in assignments for name, owned in a.num_owned.items() if owned}
        object.__setattr__(self, "used", frozenset(used))


def slowest_lane_ms(
    parts: Sequence[ComponentWork], cores: Mapping[str, int]
) -> tuple[float, float]:
    """Return the milliseconds of the level's slowest lane, and of all its lanes together.

    Lanes with the same number on an executor are one task for all components of a level. An
    executor with more lanes than cores cannot end before its cores have done all of the work.
    `parts`: work of each component of the level. `cores`: executor → number of cores.
    """
    number = {name: index for index, name in enumerate(cores)}
    width = max(max(part.plan.assignment.lanes) for part in parts)
    ms = np.zeros(len(number) * width)
    for part in parts:
        assignment = part.plan.assignment
        row = np.array([number[name] for name in assignment.executors])
        lane = row[assignment.executor_of] * width + assignment.lane_of
        ms += np.bincount(lane, weights=part.cpu_ms, minlength=len(ms))
    lanes = ms.reshape(len(number), width)
    shared = lanes.sum(axis=1) / np.array(list(cores.values()))
    return float(max(lanes.max(), shared.max())), float(ms.sum())


def exchange_ms(
    parts: Sequence[ComponentWork],
    cores: Mapping[str, int],
    row_bytes: int,  # of a source row
    links: Mapping[str, float],  # executor → bytes per second of its up- and of its downlink
) -> float:
    """Return the milliseconds of a level's exchange: those of the busiest link.

    The cores of all executors read equal shares of the source. `parts`: work of each component of
    the level. `cores`: executor → number of cores. `row_bytes`: of a source row. `links`: executor
    → bytes per second, up as well as down.
    """
    sent, received = dict.fromkeys(links, 0.0), dict.fromkeys(links, 0.0)
    total = sum(cores.values())
    for part in parts:
        if part.routed is not None:
            for executor, (up, down) in part.routed.link_bytes.items():
                sent[executor] += up
                received[executor] += down
            continue
        assignment = part.plan.assignment
        sizes = row_bytes * _sum_per_executor(part.new, assignment)
        here = dict(zip(assignment.executors, sizes.tolist(), strict=True))
        for executor, count in cores.items():
            own = here.get(executor, 0.0)
            sent[executor] += (sizes.sum() - own) * count / total
            received[executor] += own * (1 - count / total)
    return 1000 * max(max(sent[e], received[e]) / rate for e, rate in links.items())


def build_outcome(
    work: EpochWork,
    holdings: Mapping[str, Holdings],  # state after it
    *,
    sinks: Collection[str],  # components without downstream components; their rows are the output
    changelog_bytes: int,
    snapshot_bytes: int,
) -> EpochOutcome:
    """Return a simulated epoch's outcome (rows, loads, traffic), as real clusters report it."""
    traffic, loads, waited, reach = {}, {}, {}, {}
    for name, part in work.components.items():
        assignment = part.plan.assignment
        touched = np.flatnonzero(part.processed)
        loads[name] = KeyGroupLoad(
            key_groups=touched,
            rows=part.processed[touched],
            keys=np.maximum(1, np.rint(part.keys[touched])).astype(np.int64),
            cpu_ms=part.cpu_ms[touched],
            state_bytes=holdings[name].state_bytes[touched].astype(np.int64),
        )
        waits = np.flatnonzero(part.waits)
        if len(waits):
            waited[name] = tuple(waits.tolist())
        used = np.flatnonzero(part.used)
        owner, brought = assignment.executor_of[used], np.full(len(used), work.epoch - 1)
        reach[name] = {
            executor: PerKeyGroup(used[mine := owner == index], brought[mine])
            for index, executor in enumerate(assignment.executors)
        }
        if part.routed is not None:
            sent = np.flatnonzero(part.routed.rows)
            traffic[name] = ComponentTraffic(
                key_groups=tuple(sent.tolist()),
                rows=tuple(part.routed.rows[sent].tolist()),
                size_bytes=tuple(np.rint(part.routed.size_bytes[sent]).astype(int).tolist()),
                crossed_bytes=int(part.routed.crossed_bytes),
                pairs=part.routed.pairs,
            )
    return EpochOutcome(
        epoch=work.epoch,
        batch=work.batch.number,
        rows_in=work.batch.rows,
        rows_out=int(sum(p.processed.sum() for n, p in work.components.items() if n in sinks)),
        loads=loads,
        traffic=traffic,
        waited=waited,
        reach=reach,
        changelog_bytes=changelog_bytes,
        snapshot_bytes=snapshot_bytes,
        lane_ms={"lane": work.lane_ms},
    )


class SimulatedFlow:
    """Components of a scenario, with their state and wait buffers."""

    # called with a component, what feeds it, its assignment, its keys and a generator: which rows
    # go where. Replaced where real rows are processed.
    deal: Callable[..., Routed] = staticmethod(distribute_rows)

    def __init__(
        self,
        components: Sequence[SimulatedComponent],  # what it is made of
        keys: Keys,  # what its keys are like
        costs: CostModel,  # what an epoch costs
        *,
        seed: int,  # of hashes and shuffles
        rng: np.random.Generator,  # draws which rows go where between components
        # what a lane does that expects state and finds none
        on_loss: LossPolicy = LossPolicy.SUSPEND,
        row_bytes: int | None = None,  # see `Scenario`
    ) -> None:
        self.levels = levels_of(components)
        self.components = {c.name: c for level in self.levels for c in level}
        self._expected: dict[tuple[float, int], Mapping[str, FloatArray]] = {}
        self._keys, self._costs, self._rng, self._on_loss = keys, costs, rng, on_loss
        self._row_bytes = row_bytes
        self._spread: dict[str, KeySpread | MeasuredKeyGroups] = {
            name: c.measured or KeySpread(keys=keys, key_groups=c.key_groups, seed=(seed, index))
            for index, (name, c) in enumerate(sorted(self.components.items()))
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
    def spreads(self) -> Mapping[str, KeySpread | MeasuredKeyGroups]:
        """Component → distribution of its keys over key groups."""
        return self._spread

    def start_warm(self, assignments: Mapping[str, Assignment]) -> None:
        """Start as if epochs had run: every key has state, and executors have copies of it.

        `assignments`: component → executor and lane of each key group.
        """
        for name, assignment in assignments.items():
            self.holdings[name].set_initial_state(self._spread[name].initial_state)
            everything = np.ones(assignment.num_key_groups, np.bool_)
            self.holdings[name].copies.catch_up(assignment, everything, np.zeros(len(everything)))

    # -- an attempt -------------------------------------------------------------------------------

    def work(
        self,
        epoch: int,
        batch: Batch,
        component_views: Mapping[str, ComponentView],
        *,
        copies: Copies,  # where lanes expect state to be
        speeds: Mapping[str, float],  # executor → speed of each of its cores
        cores: Mapping[str, int],  # executor → their number
        links: Mapping[str, float],  # executor → bytes per second of its up- and of its downlink
    ) -> EpochWork:
        """Return the work of each component in one attempt at an epoch, and its duration.

        `component_views`: component → assignment, and key groups to load or to suspend.
        """
        costs, works = self._costs, dict[str, ComponentWork]()
        usable = sum(cores[name] * speeds[name] for name in cores)
        row_ms = costs.source_row_ms / max(usable, 1e-9) + costs.serial_row_ms
        took_ms = costs.fixed_ms + row_ms * batch.rows
        lane_ms = 0.0
        for level in self.levels:
            for component in level:
                works[component.name] = self._component_work(
                    component,
                    batch,
                    works,
                    component_views[component.name],
                    copies=copies,
                    speeds=speeds,
                )
            parts = [works[c.name] for c in level]
            if self._row_bytes is not None:
                took_ms += exchange_ms(parts, cores, self._row_bytes, links)
            slowest, total = slowest_lane_ms(parts, cores)
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
        """Return component → expected milliseconds of each key group on a core of speed 1.

        For an epoch of `rows` source rows after `phase` shifts of keys, with nothing suspended and
        no copies to bring up to date.
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
                mean += expected_rows(sent, feed, spread.share)
            flowing[name] = mean
            touched = 1 - np.exp(-mean)
            cost[name] = self._lane_ms(component, mean, spread.keys_among(mean), touched)
        self._expected[rows, phase] = cost
        return cost

    def _component_work(
        self,
        component: SimulatedComponent,
        batch: Batch,
        works: Mapping[str, ComponentWork],
        plan: ComponentView,
        *,
        copies: Copies,
        speeds: Mapping[str, float],
    ) -> ComponentWork:
        """Return the work of one component in an epoch.

        `works`: component → its work, of those upstream. `plan`: how the component runs. `copies`:
        where lanes expect state to be. `speeds`: executor → speed of each core.
        """
        name, m = component.name, component.key_groups
        phase, routed = self._load_phase(name, batch.phase), None
        if component.feeds:
            routed = self.deal(
                name,
                [(feed, works[feed.upstream]) for feed in component.feeds],
                plan.assignment,
                phase.share,
                self._rng,
            )
        new = routed.rows if routed else batch.rows_of.get(name, np.zeros(m, np.int64))
        consume, load = key_group_mask(plan.consume, m), key_group_mask(plan.load, m)
        waiting = self.buffers[name].waiting
        due = (new > 0) | (consume & (waiting > 0))
        runs = ~(key_group_mask(plan.suspended, m) | self._lacks_state(name, plan, due, copies))
        processed = np.where(runs, new, 0) + np.where(runs & consume, waiting, 0)
        keys = phase.keys_among(processed)
        missing = self.holdings[name].missing_at_owners(plan.assignment)
        moved = np.where((processed > 0) | load, missing, 0.0)
        cpu_ms = self._lane_ms(component, processed, keys, processed > 0)
        cpu_ms += moved / self._costs.read_bytes_per_ms + load * self._costs.load_key_group_ms
        if routed is not None:
            cpu_ms += routed.crossed_rows * self._costs.between_executors_row_ms
        owner = plan.assignment.executor_of
        speed = np.array([speeds[e] for e in plan.assignment.executors])[owner]
        return ComponentWork(
            plan=plan,
            runs=runs,
            consumes=consume,
            loads=load,
            waits=~runs & due,
            new=new,
            processed=processed,
            keys=keys,
            cpu_ms=cpu_ms / speed,
            moved_bytes=moved,
            routed=routed,
        )

    def _load_phase(self, name: str, number: int) -> Phase:
        """Return the distribution of a component's keys after `number` shifts of frequencies."""
        return self._spread[name].phase(number)

    def _lane_ms(
        self,
        component: SimulatedComponent,
        rows: FloatArray,
        keys: FloatArray,
        touched: FloatArray | BoolArray,
    ) -> FloatArray:
        """Return the CPU milliseconds of lanes for the rows and keys of each key group.

        `touched`: mask, or share, of epochs in which the key group has rows.
        """
        costs = self._costs
        row_ms: float | FloatArray = component.row_ms
        if component.measured is not None:
            row_ms = component.measured.row_ms
        per_row, per_key = costs.row_ms + row_ms, costs.key_ms + component.key_ms
        ms: FloatArray = rows * per_row + keys * per_key + touched * costs.key_group_ms
        return ms

    def _lacks_state(
        self, name: str, plan: ComponentView, touched: BoolArray, copies: Copies
    ) -> BoolArray:
        """Return a mask of key groups whose lane lacks the expected state, so that rows wait."""
        assignment, holdings = plan.assignment, self.holdings[name]
        astray = np.zeros(assignment.num_key_groups, np.bool_)
        if self._on_loss is LossPolicy.LOAD:
            return astray
        gone = touched & ~holdings.copies.exists(assignment)
        if gone.any():
            for g in np.flatnonzero(gone & (holdings.state_bytes > 0)).tolist():
                expected = copies.reach(name, assignment.executor(g), g) >= 0
                astray[g] = expected and g not in plan.load and g not in plan.suspended
        return astray

    # -- a commit ---------------------------------------------------------------------------------

    def commit(self, work: EpochWork) -> tuple[EpochOutcome, FloatArray]:
        """Commit an epoch's work; return its outcome, and the arrivals of its source rows.

        Rows count once for every component that reads them from the source. The arrivals are as
        `godwit_lab.simulator.workload.RowArrivals.pieces` returns them.
        """
        arrived, whole, left = work.batch.arrived, 0, []
        changelog = snapshots = 0.0
        for name, part in work.components.items():
            gone = self.buffers[name].commit(part.new, part.runs, part.consumes, arrived)
            if gone is arrived:
                whole += not self.components[name].feeds
            elif not self.components[name].feeds:
                left.append(gone)
            before = self.holdings[name].written_bytes.copy()
            written, rewritten = self.holdings[name].commit_epoch(
                part.processed,
                part.keys,
                phase=self._load_phase(name, work.batch.phase),
                number=work.batch.phase,
                known=self._spread[name].initial_state,
            )
            changelog, snapshots = changelog + written, snapshots + rewritten
            # The lanes' copies are of the version before this epoch.
            self.holdings[name].copies.catch_up(part.plan.assignment, part.used, before)
        fed = {feed.upstream for c in self.components.values() for feed in c.feeds}
        outcome = build_outcome(
            work,
            self.holdings,
            sinks=self.components.keys() - fed,
            changelog_bytes=int(changelog),
            snapshot_bytes=int(snapshots),
        )
        return outcome, np.concatenate([arrived * np.array([whole, 1.0, 1.0]), *left])
