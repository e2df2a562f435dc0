"""A measured stream, as a checkpoint's journal tells it: what `godwit what-if` plays again.

The journal has loads of key groups and figures of epochs (`godwit.engine.run_record`), measured
latencies, and decisions with their expected and measured effect.  From these come the numbers
of a simulated flow:

- An epoch's time beside its busiest lanes is fixed, or grows with rows over lanes; non-negative
  least squares over the epochs tell, where the number of rows varied.  Where it did not, all of it
  is assumed to be fixed.
- The time of a lane for a key group is that of its rows, and a little for every key group touched,
  by the same fit.  Where it cannot be told, all of it is of rows, so that a higher rate is not
  taken for cheaper than it is.
- A component has one row for each row of the sources: what it in fact has is in the cost of one.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from godwit.checkpoint.journal import read_tail
from godwit.engine.run_record import STREAM, EpochColumns, StreamSummary
from godwit.migration.outcome import LoadSummary
from godwit.model.errors import CheckpointError, InvalidControlError
from godwit.model.key_groups import KeyGroupLoad
from godwit.model.latency import LatencyHistogram
from godwit_lab.simulator import CostModel, MeasuredKeyGroups, SimulatedComponent, UpstreamFeed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.policies import Topology
    from godwit.model.assignment import Assignment
    from godwit.placement.arrays import FloatArray

_T = TypeVar("_T")
_ENTRIES = 1_000_000
"""More than a journal holds."""
_SHORTEST_S = 10.0
"""The controller's default statistics period."""
_FEWEST_PLAYED, _MOST_PLAYED = 60, 600
"""Epochs that are played."""
_CHEAP = 2048
"""Max. number of key groups for which `_MOST_PLAYED` epochs are played."""
_PARTS = 4
"""Parts of the steady time that are looked at by themselves."""
_BEFORE_STEADY = 0.25
"""First share of the epochs with other executors than before that are not steady."""
_LOADS = 8
"""Last summaries of loads that are added up."""
_IDLE = 5
"""Usual intervals after which nothing is taken to have come before an epoch took rows."""
_VARIES = 0.15
"""Standard deviation over mean of the rows of epochs from which on a fit tells costs apart."""
_TRIMMED = 0.1
"""Share of the epochs, those that a fit explains least, that it leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredTime:
    """A stretch of the stream's time: the rows that came in it, and how long they took."""

    rate_per_s: float  # mean
    # (seconds from its beginning, times the mean): the rate since then
    steps: tuple[tuple[float, float], ...]
    duration_s: float
    # (from, to, latency) of parts of it, in seconds from its beginning; none if not measured
    parts: tuple[tuple[float, float, LatencyHistogram], ...] = ()

    @property
    def latency(self) -> LatencyHistogram:
        """Measured latency of all rows of this time."""
        return LatencyHistogram.merged(latency for _, _, latency in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredStream:
    """One stream as it was, ready to be simulated."""

    topology: Topology
    assignments: Mapping[str, Assignment]  # as the last epochs had them
    executors: Mapping[str, int]  # executor → lanes
    components: tuple[SimulatedComponent, ...]
    costs: CostModel
    lane_ms: float  # by which every lane lengthens an epoch, besides
    played: MeasuredTime  # the period that is played with other executors
    steady: MeasuredTime  # the end of it, since executors are as they are
    # natural logarithms of measured over expected latency, of decisions that were judged
    misses: tuple[float, ...]

    @property
    def key_groups(self) -> int:
        """Number of key groups of all components."""
        return sum(component.key_groups for component in self.components)

    @property
    def lanes_each(self) -> int:
        """Number of lanes of one executor, as most of them have."""
        counts = sorted(self.executors.values())
        return max(counts, key=counts.count)

    def costs_at(self, lanes: int) -> CostModel:
        """Return the cost model of an epoch with this number of lanes."""
        return replace(self.costs, fixed_ms=self.costs.fixed_ms + self.lane_ms * lanes)

    @property
    def state_bytes(self) -> float:
        """Bytes of state of all components."""
        measured = (component.measured for component in self.components)
        return float(sum(m.state_bytes.sum() for m in measured if m is not None))


def measured_stream(storage: CheckpointStorage, *, last_s: float) -> MeasuredStream:
    """Return the measurements at the end of a checkpoint's journal.

    `last_s`: number of seconds, before the last epoch, that are used at most. Raises
    `CheckpointError` if the checkpoint has no journal, one of another version, or too short a one.
    """
    entries = read_tail(storage, _ENTRIES)
    loads, summaries = _read(storage.uri, entries)
    latest = summaries[-1]
    same = [s for s in summaries if s.assignments.keys() == latest.assignments.keys()]
    epochs = EpochColumns.joined([summary.epochs for summary in same])
    span_s = float(epochs.ended_s[-1] - epochs.ended_s[0])
    if span_s < _SHORTEST_S:
        raise CheckpointError(
            f"The journal of {storage.uri!r} tells of {len(epochs)} epochs with input in "
            f"{span_s:.3g} s, which is less than a period of {_SHORTEST_S:g} s.",
            remedy="Let the stream run for some minutes, and ask again.",
        )
    lanes = np.concatenate(
        [np.full(len(summary.epochs), sum(summary.lanes.values())) for summary in same]
    )
    costs, lane_ms = _costs(epochs, lanes)
    key_groups = sum(a.num_key_groups for a in latest.assignments.values())
    most = max(_FEWEST_PLAYED, min(_MOST_PLAYED, _MOST_PLAYED * _CHEAP // key_groups))
    recent = epochs.ended_s >= epochs.ended_s[-1] - last_s
    recent[: max(0, len(epochs) - most)] = False
    if (asked_s := min(last_s, span_s)) < _SHORTEST_S:
        raise InvalidControlError(
            f"To play {asked_s:.3g} s is to play less than a period of {_SHORTEST_S:g} s.",
            remedy="Give a longer time with --last.",
        )
    return MeasuredStream(
        topology=latest.topology,
        assignments=latest.assignments,
        executors=latest.lanes,
        components=_components(loads, same, costs.key_group_ms),
        costs=costs,
        lane_ms=lane_ms,
        played=_time(epochs.where(recent)),
        steady=_time(_since_change(same, last_s=last_s, most=most), _latencies(entries)),
        misses=tuple(_misses(entries)),
    )


def _read(
    uri: str, entries: Sequence[Mapping[str, Any]]
) -> tuple[list[LoadSummary], list[StreamSummary]]:
    """Return the summaries of loads and of epochs, oldest first; raise if either is missing."""
    if not entries:
        raise CheckpointError(
            f"The checkpoint {uri!r} has no journal that can be read.",
            remedy="A query writes it from its first second on: run it, and ask again. A backup "
            "has none.",
        )
    loads = _without_none(LoadSummary.from_dict(e["load"]) for e in entries if "load" in e)
    summaries = _without_none(StreamSummary.from_dict(e[STREAM]) for e in entries if STREAM in e)
    has_loads = any("load" in entry for entry in entries)
    if has_loads and not (loads and summaries):
        raise CheckpointError(
            f"The journal of {uri!r} is of another version of Godwit: it has loads of key groups, "
            "and not what else is needed to play the stream.",
            remedy="Let the stream run for some minutes under this version, and ask again.",
        )
    if not has_loads:
        raise CheckpointError(
            f"The journal of {uri!r} is too short: it tells of no load yet.",
            remedy="Loads are written every 16 epochs with input, rarer for more than 32,768 key "
            "groups: let the stream run on, and ask again.",
        )
    return loads, summaries


def _without_none(values: Iterable[_T | None]) -> list[_T]:
    """Return the values that are not ``None``."""
    return [value for value in values if value is not None]


# -- rates ----------------------------------------------------------------------------------------


def _time(
    epochs: EpochColumns,
    latencies: Mapping[int, LatencyHistogram] | None = None,
) -> MeasuredTime:
    """Return consecutive epochs as a stretch of time to simulate.

    An epoch reads the rows that arrived since the one before began. After a pause, rows are taken
    to arrive shortly before the epoch.
    """
    began = np.maximum.accumulate(epochs.ended_s - epochs.took_ms / 1e3)
    between = np.diff(began).clip(min=1e-3)
    total = float(epochs.rows[1:].sum())
    if total <= 0:
        raise CheckpointError(
            "No rows came in the time that is to be played.",
            remedy="Give a longer time with --last, or let the stream run on.",
        )
    usual = float(np.median(between))
    steps: list[tuple[float, float]] = []
    time_s = 0.0
    for passed_s, rows in zip(between.tolist(), epochs.rows[1:].tolist(), strict=True):
        busy_s = min(passed_s, _IDLE * usual)
        if busy_s < passed_s:
            steps.append((time_s, 0.0))
        steps.append((time_s + passed_s - busy_s, rows / busy_s))
        time_s += passed_s
    mean = total / time_s
    return MeasuredTime(
        rate_per_s=mean,
        steps=tuple((since, rate / mean) for since, rate in steps),
        duration_s=time_s,
        parts=tuple(_parts(epochs, latencies or {})),
    )


def _parts(
    epochs: EpochColumns, latencies: Mapping[int, LatencyHistogram]
) -> Iterable[tuple[float, float, LatencyHistogram]]:
    """Yield measured latencies, merged over parts of about equal numbers of epochs.

    With each, the first and the last second of the part.
    """
    since_s = epochs.ended_s - epochs.ended_s[0]
    cuts = np.linspace(1, len(epochs), _PARTS + 1).astype(int).tolist()
    for first, last in pairwise(cuts):
        numbers = epochs.epoch[first:last].astype(int).tolist()
        measured = LatencyHistogram.merged(latencies[n] for n in numbers if n in latencies)
        if measured.rows:
            yield float(since_s[first - 1]), float(since_s[last - 1]), measured


def _since_change(summaries: Sequence[StreamSummary], *, last_s: float, most: int) -> EpochColumns:
    """Return the last epochs with today's executors, without the first of these.

    The effects of a change of executors are over by then. `last_s`: maximum age in seconds, from
    the last epoch back. `most`: maximum number of epochs.
    """
    first_summary = len(summaries) - 1
    while first_summary > 0 and summaries[first_summary - 1].lanes == summaries[-1].lanes:
        first_summary -= 1
    epochs = EpochColumns.joined([summary.epochs for summary in summaries[first_summary:]])
    recent = epochs.ended_s >= epochs.ended_s[-1] - last_s
    first = max(len(epochs) - most, int(_BEFORE_STEADY * len(epochs)) if first_summary else 0)
    recent[:first] = False
    return epochs.where(recent)


# -- costs ----------------------------------------------------------------------------------------


def _costs(epochs: EpochColumns, lanes: FloatArray) -> tuple[CostModel, float]:
    """Fit the cost model of epochs; return it, and the milliseconds that each lane adds.

    `lanes`: number of lanes in each epoch.
    """
    rest = (epochs.took_ms - epochs.busiest_ms).clip(min=0)
    columns = [np.ones(len(epochs))]
    rows_vary, lanes_vary = _is_variable(epochs.rows), _is_variable(lanes)
    if rows_vary:
        columns.append(epochs.rows / lanes)
    if lanes_vary:
        columns.append(lanes)
    fitted = _least_squares(columns, rest).tolist()
    per_touch = 0.0
    if rows_vary and _is_variable(epochs.rows / epochs.touched.clip(min=1)):
        per_touch = float(_least_squares([epochs.touched, epochs.rows], epochs.busy_ms)[0])
    costs = CostModel(
        fixed_ms=fitted[0],
        source_row_ms=fitted[1] if rows_vary else 0.0,
        row_ms=0.0,
        key_ms=0.0,
        key_group_ms=per_touch,
        read_bytes_per_ms=CostModel.calibrated().read_bytes_per_ms,
    )
    return costs, fitted[-1] if lanes_vary else 0.0


def _is_variable(values: FloatArray) -> bool:
    """Return whether measurements deviate by more than a certain share of their mean."""
    mean = float(values.mean())
    return mean > 0 and float(values.std()) > _VARIES * mean


def _least_squares(columns: list[FloatArray], values: FloatArray) -> FloatArray:
    """Return non-negative factors of columns, fitted to values; outliers are left out."""
    from scipy.optimize import nnls  # noqa: PLC0415  slow to import

    matrix = np.column_stack(columns)
    inliers = np.ones(len(values), np.bool_)
    for _ in range(2):
        factors, _ = nnls(matrix[inliers], values[inliers])
        off = np.abs(values - matrix @ factors)
        inliers = off <= np.quantile(off, 1 - _TRIMMED)
    solution: FloatArray = factors
    return solution


def _components(
    loads: Sequence[LoadSummary], summaries: Sequence[StreamSummary], per_touch_ms: float
) -> tuple[SimulatedComponent, ...]:
    """Return components with the last summaries' loads, in the order of the topology.

    `per_touch_ms`: part of a key group's time in an epoch that does not depend on its rows.
    """
    known = {summary.epoch: summary for summary in summaries}
    pairs = [(load, known[load.epoch]) for load in loads if load.epoch in known][-_LOADS:]
    topology = summaries[-1].topology
    # A summary of loads has the last of the epochs that one of epochs has.
    rows = sum(float(stream.epochs.rows[-load.epochs :].sum()) for load, stream in pairs)
    epochs = sum(load.epochs for load, _ in pairs)
    feeds: dict[str, list[str]] = {name: [] for name in topology.components}
    for upstream, downstream in topology.downstream:
        feeds[downstream].append(upstream)
    components = []
    for name, assignment in summaries[-1].assignments.items():
        parts = [load.loads[name] for load, _ in pairs if name in load.loads]
        total = KeyGroupLoad.total(parts) if parts else None
        measured = _key_groups(
            assignment.num_key_groups, total, rows=rows, touch_ms=per_touch_ms * epochs
        )
        ups = feeds[name]
        components.append(
            SimulatedComponent(
                name=name,
                key_groups=assignment.num_key_groups,
                key_bytes=1,
                measured=measured,
                feeds=tuple(UpstreamFeed(upstream=up, selectivity=1 / len(ups)) for up in ups),
            )
        )
    return tuple(components)


def _key_groups(
    number: int, load: KeyGroupLoad | None, *, rows: float, touch_ms: float
) -> MeasuredKeyGroups:
    """Return the loads of a component's `number` key groups per row of the sources.

    `rows`: of the sources in the epochs of `load`. `touch_ms`: CPU time of touching a key group in
    them, which the cost model counts apart.
    """
    share, row_ms, state_bytes = np.zeros((3, number))
    if load is not None and len(load.key_groups):
        share[load.key_groups] = load.rows
        state_bytes[load.key_groups] = load.state_bytes
        per_row = rows * load.rows / max(int(load.rows.sum()), 1)
        own_ms = (load.busy_ms - touch_ms).clip(min=0)
        row_ms[load.key_groups] = own_ms / np.maximum(per_row, 1e-9)
    if not share.sum():
        share[:] = 1.0
    return MeasuredKeyGroups(share=share / share.sum(), row_ms=row_ms, state_bytes=state_bytes)


# -- measurements ---------------------------------------------------------------------------------


def _latencies(entries: Iterable[Mapping[str, Any]]) -> dict[int, LatencyHistogram]:
    """Return epoch → measured latency of its rows; damaged entries are left out."""
    latencies: dict[int, LatencyHistogram] = {}
    for entry in entries:
        with suppress(LookupError, TypeError, ValueError, AttributeError):
            measured = entry["latency"]
            sources = map(LatencyHistogram.from_dict, measured["sources"].values())
            latencies[int(measured["epoch"])] = LatencyHistogram.merged(sources)
    return latencies


def _misses(entries: Iterable[Mapping[str, Any]]) -> Iterable[float]:
    """Yield the logarithm of measured over predicted latency, for each judged decision."""
    for entry in entries:
        event = entry.get("event")
        if not isinstance(event, dict) or event.get("kind") != "DecisionJudged":
            continue
        with suppress(LookupError, TypeError, ValueError, ZeroDivisionError):
            miss = math.log(float(event["measured"]) / float(event["expected"]))
            if math.isfinite(miss):
                yield miss
