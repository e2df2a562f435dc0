"""Components of a simulated flow, in levels, and how their rows reach key groups downstream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from godwit.model.errors import InvalidFlowError
from godwit.model.key_groups import OTHERS, KeyGroupPairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.migration import EpochPlan
    from godwit.model.assignment import Assignment
    from godwit.planning.arrays import FloatArray

__all__ = ["Component", "Feed", "Processed", "Routed", "deal_out", "levels_of", "route"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Rows that a component gets from another one."""

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
class Component:
    """One keyed component.

    Raises `InvalidFlowError` if it has no key groups, or a cost or size is negative.
    """

    name: str  # its name
    key_groups: int = 128  # number of its key groups
    # row_ms, key_ms: What the user's function takes for a row and for a distinct key of an epoch,
    # on a core of speed 1, beside the runtime's own part
    row_ms: float = 0.0
    key_ms: float = 0.0
    key_bytes: int = 100  # state of one key
    feeds: tuple[Feed, ...] = ()  # where its rows come from; none: the source

    def __post_init__(self) -> None:
        if self.key_groups < 1 or min(self.row_ms, self.key_ms, self.key_bytes) < 0:
            raise InvalidFlowError(
                f"Component {self.name!r} has {self.key_groups} key groups, {self.row_ms} ms a row,"
                f" {self.key_ms} ms a key and {self.key_bytes} bytes a key.",
                remedy="Give at least one key group, and costs that are not negative.",
                component=self.name,
            )


def levels_of(components: Sequence[Component]) -> tuple[tuple[Component, ...], ...]:
    """Put components in levels: 1 if the source feeds them, else one more than what feeds them.

    Raises `InvalidFlowError` if there is none, two have one name, one is fed by nobody there is, or
    they feed each other in a circle.
    """
    named: Mapping[str, Component] = {c.name: c for c in components}
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
        tuple(c for c in components if level[c.name] == at)
        for at in range(1, max(level.values()) + 1)
    )


class Processed(Protocol):
    """What a component upstream did: its plan, and the rows that it processed per key group."""

    @property
    def plan(self) -> EpochPlan:
        """How it ran."""

    @property
    def processed(self) -> np.ndarray:
        """Shape ``(m,)``: rows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routed:
    """What comes in at a component; vectors have one entry per key group of it."""

    rows: np.ndarray  # rows, size_bytes: What is sent to each
    size_bytes: FloatArray
    crossed_rows: FloatArray  # rows that come from another executor
    crossed_bytes: float  # bytes that change executor, in all
    # component upstream → rows from its key groups to those of this one
    pairs: Mapping[str, KeyGroupPairs] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Mean:
    rows: FloatArray


def route(sent: FloatArray, feed: Feed, share: FloatArray) -> _Mean:
    """Rows that key groups get on average, of those that each key group upstream sends."""
    m = len(share)
    paired = np.bincount(np.arange(len(sent)) % m, weights=sent * feed.paired, minlength=m)
    return _Mean(rows=paired + sent.sum() * (1 - feed.paired) * share)


def deal_out(
    _component: str,  # the receiver
    feeds: Sequence[tuple[Feed, Processed]],  # each with what the component upstream did
    assignment: Assignment,  # where the receiver's key groups are
    share: FloatArray,  # shape ``(m,)``: where its keys are
    rng: np.random.Generator,  # draws what is left of a row, and where rows go that are not paired
) -> Routed:
    """Send rows on."""
    m, rows = assignment.num_key_groups, np.zeros(assignment.num_key_groups, np.int64)
    size, crossed_rows, crossed_bytes = np.zeros(m), np.zeros(m), 0.0
    pairs: dict[str, KeyGroupPairs] = {}
    for feed, upstream in feeds:
        sent = _whole(upstream.processed * feed.selectivity, rng)
        paired = _whole(sent * feed.paired, rng).clip(max=sent)
        there = upstream.plan.assignment
        target = np.arange(len(sent)) % m
        number = {name: at for at, name in enumerate(assignment.executors)}
        places = np.array([number.get(name, -1) for name in there.executors])
        sender = places[there.executor_of]
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
        crossed_bytes += float(crossed.sum()) * feed.row_bytes
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
        crossed_bytes=crossed_bytes,
        pairs=pairs,
    )


def _whole(rows: FloatArray, rng: np.random.Generator) -> np.ndarray:
    """Round at random, so that the mean stays."""
    whole: np.ndarray = np.floor(rows + rng.random(len(rows))).astype(np.int64)
    return whole
