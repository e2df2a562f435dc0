"""Problem of a planner: assign key groups to executors, with loads, sizes and limits.

A planner is a pure function ``plan_<method>(problem, **options) -> Solution``; the answer is in
`godwit.placement.solution`.  Two kinds of assignment are first-class: arbitrary maps, and
contiguous intervals (``intervals=True``, paper 1 §4.1), where every executor owns one range of key
groups.

Invariant: a `Problem` that exists is valid.  Every array has the size that the others imply, every
number is finite and not negative, and every index points at something; so no planner checks its
input again.

Words: the papers' node is our executor; task (1), substream (4) and shard (5) are our key group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import InvalidProblemError
from godwit.placement.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    freeze_array,
    is_contiguous,
    require_index,
    require_load,
    set_field,
    wrong_value,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from godwit.model.assignment import Assignment
    from godwit.model.key_groups import KeyGroupPairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on a plan's cost and imbalance; ``None`` means no limit.

    Attributes
    ----------
    max_moves
        Most key groups that may change executor (paper 2 §5.1, ``maxMigrations``).
    max_bytes
        Most bytes of state that may change executor (paper 2 §4.3.1, ``maxMigrCost`` / alpha).
    tau
        τ ≥ 0: no executor's load may exceed (1 + τ) times its fair share (paper 1 §4.1).
    theta
        θ ≥ 1: the busiest lane may have at most θ times the mean (paper 5 §3.1).
    load_low, load_high
        [v, u]: the range wanted for the load of every executor (paper 4 §3).
    max_usage
        Per resource, the most load per unit of capacity an executor may have (paper 2 §4.3.1,
        several resources); same order as `Problem.resources`.
    target_executors
        n': how many executors may own key groups after the plan (paper 1 §4.1). ``None``: all that
        are not draining.
    """

    max_moves: int | None = None
    max_bytes: float | None = None
    tau: float | None = None
    theta: float | None = None
    load_low: float | None = None
    load_high: float | None = None
    max_usage: tuple[float, ...] | None = None
    target_executors: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_moves", "max_bytes", "tau", "load_low", "load_high"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < np.inf:
                raise wrong_value(
                    f"limits.{name}", value, "give a finite number that is at least 0"
                )
        if self.theta is not None and not 1 <= self.theta < np.inf:
            raise wrong_value("limits.theta", self.theta, "give a finite number that is at least 1")
        if self.target_executors is not None and self.target_executors < 1:
            raise wrong_value("limits.target_executors", self.target_executors, "give at least 1")
        if (
            self.load_low is not None
            and self.load_high is not None
            and self.load_low > self.load_high
        ):
            raise wrong_value(
                "limits.load_low",
                self.load_low,
                f"it contradicts limits.load_high = {self.load_high}: give v ≤ u",
            )
        for i, value in enumerate(self.max_usage or ()):
            if not value >= 0:
                raise wrong_value(
                    f"limits.max_usage[{i}]", value, "give a number that is at least 0"
                )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Rate of rows (or bytes) between key groups, as a sparse matrix in coordinates.

    Attributes
    ----------
    source, target
        Shape ``(e,)``: key groups that send and receive.
    rate
        Shape ``(e,)``: rows per second (any unit that is the same for all) sent.
    """

    source: IntArray
    target: IntArray
    rate: FloatArray

    def __post_init__(self) -> None:
        for name, dtype in (("source", np.int32), ("target", np.int32), ("rate", np.float64)):
            freeze_array(self, name, dtype, ndim=1, prefix="traffic.")
        if not len(self.source) == len(self.target) == len(self.rate):
            raise InvalidProblemError(
                f"traffic.source, traffic.target and traffic.rate have {len(self.source)}, "
                f"{len(self.target)} and {len(self.rate)} values.",
                remedy="Give one of each per pair of key groups.",
                field="traffic",
            )
        require_load(self.rate, "traffic.rate")


_NONE = np.empty(0, np.int32)
NO_TRAFFIC = Traffic(source=_NONE, target=_NONE, rate=np.empty(0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """A planner's whole input: m key groups, n executors, r resources.

    A vector stands for `load` when there is one resource, and for `capacity` when all resources
    share it; the fields are read-only copies with the shapes below.

    Attributes
    ----------
    executors
        n distinct names.
    load
        Shape ``(m, r)``: load of each key group per resource, in percent of one standard executor
        or any other additive unit.
    state_bytes
        Shape ``(m,)``: size of each key group's state, in bytes.
    current
        Shape ``(m,)``: index into `executors` of each key group's owner today.
    resources
        r names, such as ``("cpu", "memory", "network")``.
    capacity
        Shape ``(n, r)``: speed of each executor relative to a standard one; default 1. An
        executor's load *index* is its load divided by its capacity.
    cores
        Shape ``(n,)``: cores of each executor; default 1.
    draining
        Shape ``(n,)``: executors marked for removal (paper 2's set B); default none. No plan moves
        a key group onto one.
    intervals
        Whether every executor must own one contiguous range of key groups.
    limits
        What a plan may cost and how even it must be.
    traffic
        Rates between key groups; default none.
    operators, operator_of
        Names of operators, and shape ``(m,)``: the operator of each key group; default one
        operator.
    downstream
        Pairs ``(upstream, downstream)`` of operator indices; empty means: those that the traffic
        shows.
    history
        Shape ``(windows, m)``: load of every key group in each past statistic window, oldest first
        (paper 4 §2.2); default none.
    seconds_per_byte
        alpha of paper 2's migration cost alpha·|state|: seconds to move one byte of state.

    Raises
    ------
    InvalidProblemError
        Names the field and the value that is wrong.

    Examples
    --------
    >>> problem = Problem(
    ...     executors=("a", "b"),
    ...     load=np.array([3.0, 1.0]),
    ...     state_bytes=np.array([10.0, 20.0]),
    ...     current=np.array([0, 0], np.int32),
    ... )
    >>> problem.num_key_groups, problem.num_executors, problem.weight.tolist()
    (2, 2, [3.0, 1.0])
    """

    executors: tuple[str, ...]
    load: FloatArray
    state_bytes: FloatArray
    current: IntArray
    resources: tuple[str, ...] = ("cpu",)
    capacity: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    cores: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    draining: BoolArray = field(default_factory=lambda: np.empty(0, np.bool_))
    intervals: bool = False
    limits: Limits = field(default_factory=Limits)
    traffic: Traffic = NO_TRAFFIC
    operators: tuple[str, ...] = ("operator",)
    operator_of: IntArray = field(default_factory=lambda: np.empty(0, np.int32))
    downstream: tuple[tuple[int, int], ...] = ()
    history: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    seconds_per_byte: float = 0.0
    _bottleneck: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_executors()
        self._check_key_groups()
        self._check_relations()
        self._check_limits()
        # Planners ask for it with every assignment that they try.
        total = self.load.sum(axis=0) / self.capacity[self.available].sum(axis=0)
        set_field(self, "_bottleneck", int(total.argmax()))

    def __repr__(self) -> str:
        return (
            f"<Problem: {self.num_key_groups} key groups on {self.num_executors} executors, "
            f"load {float(self.load.sum()):.4g}>"
        )

    # -- sizes and derived vectors ---------------------------------------------------------------

    @property
    def num_key_groups(self) -> int:
        """m, the number of key groups."""
        return len(self.current)

    @property
    def num_executors(self) -> int:
        """n, the number of executors, draining ones included."""
        return len(self.executors)

    @property
    def available(self) -> IntArray:
        """Indices of the executors that are not draining (paper 2's set A), ascending."""
        return np.flatnonzero(~self.draining).astype(np.int32)

    @property
    def target_executors(self) -> int:
        """n', the number of executors that may own key groups after the plan."""
        target = self.limits.target_executors
        return len(self.available) if target is None else target

    @property
    def bottleneck(self) -> int:
        """Index of the resource with the greatest total use per capacity; ties: the first.

        Paper 2 §3 takes the greatest total usage; dividing by capacity makes that comparable when
        executors differ.
        """
        return self._bottleneck

    @property
    def weight(self) -> FloatArray:
        """Shape ``(m,)``: load of each key group on the bottleneck resource."""
        return self.load[:, self.bottleneck]

    @property
    def speed(self) -> FloatArray:
        """Shape ``(n,)``: capacity of each executor for the bottleneck resource."""
        return self.capacity[:, self.bottleneck]

    @property
    def homogeneous(self) -> bool:
        """True if all executors that are not draining have the same capacity."""
        capacity = self.capacity[self.available]
        return bool((capacity == capacity[0]).all())

    # -- validation ------------------------------------------------------------------------------

    def _check_executors(self) -> None:
        """Check the fields about executors, and make their arrays read-only."""
        set_field(self, "executors", tuple(self.executors))
        set_field(self, "resources", tuple(self.resources))
        num_executors, num_resources = len(self.executors), len(self.resources)
        if num_executors == 0:
            raise wrong_value("executors", (), "name at least one")
        if len(set(self.executors)) != num_executors:
            duplicate = next(e for e in self.executors if self.executors.count(e) > 1)
            raise wrong_value("executors", duplicate, "name every executor once")
        if num_resources == 0 or len(set(self.resources)) != num_resources:
            raise wrong_value("resources", self.resources, "name at least one, each once")
        if np.ndim(self.capacity) == 1 and np.size(self.capacity):
            set_field(
                self,
                "capacity",
                np.repeat(np.asarray(self.capacity)[:, None], num_resources, axis=1),
            )
        freeze_array(self, "capacity", np.float64, shape=(num_executors, num_resources), default=1)
        is_invalid = ~((self.capacity > 0) & np.isfinite(self.capacity))
        if is_invalid.any():
            index = int(np.flatnonzero(is_invalid.any(axis=1))[0])
            raise wrong_value(
                f"capacity[{index}]", self.capacity[index].tolist(), "give finite numbers above 0"
            )
        freeze_array(self, "cores", np.int32, shape=(num_executors,), default=1)
        if (self.cores < 1).any():
            index = int((self.cores < 1).argmax())
            raise wrong_value(f"cores[{index}]", int(self.cores[index]), "give at least 1")
        freeze_array(self, "draining", np.bool_, shape=(num_executors,), default=0)
        if self.draining.all():
            raise wrong_value(
                "draining", "all executors", "leave at least one to take the key groups"
            )

    def _check_key_groups(self) -> None:
        """Check the fields about key groups, and make their arrays read-only."""
        num_key_groups, num_executors, num_resources = (
            len(self.current),
            len(self.executors),
            len(self.resources),
        )
        if num_key_groups == 0:
            raise wrong_value("current", [], "there must be at least one key group")
        freeze_array(self, "current", np.int32, shape=(num_key_groups,))
        require_index(self.current, num_executors, "current", "executors")
        if np.ndim(self.load) == 1 and num_resources == 1:
            set_field(self, "load", np.asarray(self.load)[:, None])
        freeze_array(self, "load", np.float64, shape=(num_key_groups, num_resources))
        require_load(self.load, "load")
        freeze_array(self, "state_bytes", np.float64, shape=(num_key_groups,))
        require_load(self.state_bytes, "state_bytes")
        if self.intervals and not is_contiguous(self.current, num_executors):
            raise wrong_value(
                "intervals",
                True,
                "an executor owns more than one range of key groups in `current`; give a "
                "contiguous assignment, or intervals=False",
            )

    def _check_relations(self) -> None:
        """Check operators, their links, traffic and history, and make their arrays read-only."""
        num_key_groups = self.num_key_groups
        set_field(self, "operators", tuple(self.operators))
        freeze_array(self, "operator_of", np.int32, shape=(num_key_groups,), default=0)
        require_index(self.operator_of, len(self.operators), "operator_of", "operators")
        pairs = []
        for number, pair in enumerate(self.downstream):
            ends = tuple(pair) if isinstance(pair, tuple | list) else ()
            if not (
                len(ends) == 2
                and all(0 <= operator < len(self.operators) for operator in ends)
                and ends[0] != ends[1]
            ):
                raise wrong_value(
                    f"downstream[{number}]", pair, "give pairs of two different operators' indices"
                )
            pairs.append((int(ends[0]), int(ends[1])))
        set_field(self, "downstream", tuple(pairs))
        for name in ("source", "target"):
            require_index(
                getattr(self.traffic, name), num_key_groups, f"traffic.{name}", "key groups"
            )
        if np.size(self.history) == 0:
            set_field(self, "history", np.empty((0, num_key_groups)))
        freeze_array(self, "history", np.float64, ndim=2)
        if self.history.shape[1] != num_key_groups:
            raise wrong_value(
                "history",
                f"shape {self.history.shape}",
                f"give {num_key_groups} loads in every window",
            )
        require_load(self.history, "history")
        if not 0 <= self.seconds_per_byte < np.inf:
            raise wrong_value("seconds_per_byte", self.seconds_per_byte, "give a finite number ≥ 0")

    def _check_limits(self) -> None:
        """Raise `InvalidProblemError` if limits contradict the problem."""
        target, usage = self.limits.target_executors, self.limits.max_usage
        if target is not None and target > len(self.available):
            raise wrong_value(
                "limits.target_executors",
                target,
                f"it contradicts `draining`: only {len(self.available)} executors stay",
            )
        if usage is not None and len(usage) != len(self.resources):
            raise wrong_value(
                "limits.max_usage", usage, f"give one number for each of {self.resources}"
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
    """Return the planning problem of one or several components, whose traffic can be collocated.

    Key groups are numbered through, component after component; `Problem.operators` are the
    components. Executors without key groups are in the problem, so a plan may use them. An
    executor's capacity is the most lanes that a component has there.

    All components have loads of the same windows. `pairs`: (sender, receiver) → rows between their
    key groups; others are left out, since they cost the same wherever these are. `draining`: names
    of executors.
    """
    lanes: dict[str, int] = {}
    first_key_group: dict[str, int] = {}
    count = 0
    for name, facts in components.items():
        first_key_group[name] = count
        count += facts.assignment.num_key_groups
        for executor, num_lanes in zip(
            facts.assignment.executors, facts.assignment.lanes, strict=True
        ):
            lanes[executor] = max(lanes.get(executor, 0), num_lanes)
    executors = sorted(lanes, key=lambda name: (len(name), name))
    index = {name: number for number, name in enumerate(executors)}
    current = [
        np.array([index[executor_] for executor_ in facts.assignment.executors], np.int32)[
            facts.assignment.executor_of
        ]
        for facts in components.values()
    ]
    history = np.hstack([facts.load for facts in components.values()])
    known_pairs = {
        between: rows.known
        for between, rows in pairs.items()
        if set(between) <= first_key_group.keys()
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
        draining=_draining_mask(draining, executors),
        limits=limits or Limits(),
        traffic=Traffic(
            source=_concatenate(
                [
                    known_pair.source + first_key_group[sender]
                    for (sender, _), known_pair in known_pairs.items()
                ],
                np.int32,
            ),
            target=_concatenate(
                [
                    known_pair.target + first_key_group[receiver]
                    for (_, receiver), known_pair in known_pairs.items()
                ],
                np.int32,
            ),
            rate=_concatenate([pair.rows for pair in known_pairs.values()], np.float64),
        ),
        operators=tuple(names),
        operator_of=np.repeat(
            np.arange(len(names), dtype=np.int32),
            [facts.assignment.num_key_groups for facts in components.values()],
        ),
        downstream=tuple(
            (names.index(sender), names.index(receiver)) for sender, receiver in known_pairs
        ),
        history=history if len(history) else np.empty((0, 0)),
    )


def _draining_mask(draining: Collection[str], executors: Sequence[str]) -> BoolArray:
    """Return a mask of `executors` among `draining`, shape ``(n,)``; refuse unknown names."""
    unknown = sorted(set(draining) - set(executors))
    if unknown:
        known = ", ".join(executors)
        raise wrong_value("draining", unknown[0], f"there is no such executor; there are {known}")
    return np.isin(executors, list(draining))


def _concatenate(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    """Concatenate arrays to one of this type; there may be none."""
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype)
