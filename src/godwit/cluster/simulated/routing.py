"""Rows from one component to the next: to which key groups, and how many change executor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from godwit.model.pairs import OTHERS, KeyGroupPairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.cluster.simulated.components import Feed
    from godwit.migration import EpochPlan
    from godwit.model.assignment import Assignment
    from godwit.planning.arrays import FloatArray

__all__ = ["Processed", "Routed", "deal_out", "route"]


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
    """What comes in at a component; vectors have one entry per key group of it.

    Attributes
    ----------
    rows, size_bytes
        What is sent to each.
    crossed_rows
        Rows that come from another executor.
    crossed_bytes
        Bytes that change executor, in all.
    pairs
        Component upstream → rows from its key groups to those of this one.
    """

    rows: np.ndarray
    size_bytes: FloatArray
    crossed_rows: FloatArray
    crossed_bytes: float
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
    _component: str,
    feeds: Sequence[tuple[Feed, Processed]],
    assignment: Assignment,
    share: FloatArray,
    rng: np.random.Generator,
) -> Routed:
    """Send rows on.

    Parameters
    ----------
    _component
        The receiver.
    feeds
        Each with what the component upstream did.
    assignment
        Where the receiver's key groups are.
    share
        Shape ``(m,)``: where its keys are.
    rng
        Draws what is left of a row, and where rows go that are not paired.
    """
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
