"""The lanes' reports and the commit of an epoch, made into its one outcome and its one record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.checkpoint.records import CommitRecord
from godwit.engine.event_time import arrivals_of
from godwit.engine.slots import empty_slots
from godwit.migration import ComponentLoad, ComponentTraffic, EpochOutcome
from godwit.model.key_groups import KeyGroupPairs, PerKeyGroup
from godwit.plan.compiled import SourceInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.chains import Chains
    from godwit.checkpoint.records import BatchRef, SinkRecord, StateId
    from godwit.engine.event_time import Times
    from godwit.engine.lane.messages import LaneReport, OperatorReport
    from godwit.migration import Copies, EpochPlan
    from godwit.plan.compiled import CompiledFlow, Component

__all__ = [
    "counted_inputs",
    "left_out_of",
    "outcome_of",
    "reach_of",
    "record_of",
    "state_bytes",
    "told_left_out",
    "traffic_to",
]


def counted_inputs(flow: CompiledFlow) -> frozenset[tuple[str, int]]:
    """Operators and numbers of their inputs whose rows are the source's.

    Of operators that read the same source after the same maps, it is the one declared first, with
    those that take some of its rows in its place.
    """
    declared = {operator: number for number, operator in enumerate(flow.actions)}
    first: list[SourceInput] = []
    for source in sorted(flow.inputs, key=lambda i: declared.get(i.operator, 0)):
        if isinstance(source, SourceInput) and all(
            (source.source, source.maps) != (other.source, other.maps) for other in first
        ):
            first.append(source)
    return frozenset(
        (name, source.number)
        for source in first
        for sharing in flow.inputs_of(source.operator)
        for name in sharing.others
    ) | {(source.operator, source.number) for source in first}


def record_of(
    # epoch, reports, plans: The epoch, what its lanes did, and the plans that they did it under
    epoch: int,
    reports: Sequence[LaneReport],
    plans: Mapping[str, EpochPlan],
    *,
    run_id: str,  # whose epoch
    batch: BatchRef | None,  # the micro-batch that it covers, if any
    before: BatchRef | None,  # the last one that was covered before
    times: Times,  # event time as the epoch leaves it
    # what the sinks are; ``None`` where there are none
    sinks: Mapping[str, SinkRecord] | None = None,
) -> CommitRecord:
    """Name everything that the lanes of an epoch wrote."""
    ordered = sorted(reports, key=lambda r: (r.level, r.place))
    consumed: dict[str, list[int]] = {}
    for report in ordered:
        for operator_report in report.operators:
            if operator_report.consumed:
                consumed.setdefault(operator_report.operator, []).extend(operator_report.consumed)
    return CommitRecord(
        epoch=epoch,
        run_id=run_id,
        batch=batch,
        before=before if batch is None else None,
        segments=tuple(s for r in ordered for s in r.segments),
        snapshots=tuple(s for r in ordered for s in r.snapshots),
        outputs=tuple(o for r in ordered for o in r.outputs),
        consumed=consumed,
        assignments={name: plan.assignment.to_dict() for name, plan in plans.items()},
        watermarks=dict(times.watermarks),
        newest=dict(times.newest),
        expired=dict(times.closed),
        reached=dict(times.reached),
        slots={name: told for name, of in times.slots.items() if (told := of.recorded())},
        sinks=dict(sinks or {}),
    )


def outcome_of(
    record: CommitRecord,  # record, reports: What was committed, and what the lanes reported
    reports: Sequence[LaneReport],
    *,
    flow: CompiledFlow,  # whose epoch
    chains: Chains,  # as of the commit
    copies: Copies,  # who held what before
    # operators and numbers of their inputs whose rows are the source's: one for each feed
    counting: frozenset[tuple[str, int]],
) -> EpochOutcome:
    """Say what an epoch did."""
    parts: dict[str, dict[StateId, list[PerKeyGroup]]] = {}
    done_for: dict[str, list[OperatorReport]] = {}
    waited: dict[str, list[int]] = {}
    lane_ms: dict[str, float] = {}
    executor_cpu_ms: dict[str, float] = {}
    executor_busy_ms: dict[str, float] = {}
    sink_rows: dict[str, int] = {}
    for ref in record.outputs:
        sink_rows[ref.sink] = sink_rows.get(ref.sink, 0) + ref.rows
    of_operator = {o.name: c for c in flow.components for o in c.operators}
    for report in reports:
        for phase, spent in report.took_ms.items():
            lane_ms[phase] = lane_ms.get(phase, 0.0) + spent
        for operator_report in report.operators:
            component = of_operator[operator_report.operator].name
            done_for.setdefault(component, []).append(operator_report)
            waited.setdefault(component, []).extend(operator_report.waited)
            for sums, ms in (
                (executor_cpu_ms, operator_report.load.cpu_ms),
                (executor_busy_ms, operator_report.load.busy_ms),
            ):
                sums[report.executor] = sums.get(report.executor, 0.0) + float(np.sum(ms))
            here = parts.setdefault(report.executor, {})
            for state, versions in operator_report.versions.items():
                here.setdefault(state, []).append(versions)
    tables = {
        executor: {state: PerKeyGroup.joined(versions) for state, versions in states.items()}
        for executor, states in parts.items()
    }
    return EpochOutcome(
        epoch=record.epoch,
        batch=None if record.batch is None else record.batch.number,
        rows_in=sum(
            rows
            for report in reports
            for operator_report in report.operators
            for number, rows in operator_report.rows_in.items()
            if (operator_report.operator, number) in counting
        ),
        rows_out=sum(r.rows_out for r in reports),
        sink_rows=sink_rows,
        loads={c.name: _load(c, done_for.get(c.name, ()), chains) for c in flow.components},
        traffic=traffic_to(flow, reports),
        streams=streams_of(reports),
        executor_cpu_ms=executor_cpu_ms,
        executor_busy_ms=executor_busy_ms,
        waited={name: tuple(sorted(set(key_groups))) for name, key_groups in waited.items()},
        reach={c.name: reach_of(c.states, tables, chains, copies) for c in flow.components},
        tables=tables,
        watermarks=dict(record.watermarks),
        left_out=left_out_of(reports),
        hot_keys=hot_keys_of(reports),
        held_twice=held_twice_of(reports),
        empty=empty_slots(flow, chains),
        changelog_bytes=sum(s.block.length for s in record.segments),
        snapshot_bytes=sum(s.block.length for s in record.snapshots),
        lane_ms=lane_ms,
    )


def streams_of(reports: Iterable[LaneReport]) -> dict[tuple[str, str], tuple[int, int]]:
    """(Operator, operator that it feeds) → rows that it made for it, and their bytes."""
    streams: dict[tuple[str, str], tuple[int, int]] = {}
    for report in reports:
        for passed in report.passed_on:
            edge = (passed.sender, passed.operator)
            rows, size = streams.get(edge, (0, 0))
            streams[edge] = (rows + passed.rows, size + passed.size_bytes)
    return streams


def held_twice_of(reports: Iterable[LaneReport]) -> dict[str, int]:
    """Operator → partials of windows that were over whose key was held in two slots."""
    twice: dict[str, int] = {}
    for operator_report in (
        operator_report
        for report in reports
        for operator_report in report.operators
        if operator_report.twice
    ):
        twice[operator_report.operator] = (
            twice.get(operator_report.operator, 0) + operator_report.twice
        )
    return twice


def hot_keys_of(reports: Iterable[LaneReport]) -> dict[str, dict[str, float]]:
    """Operator → key, as JSON → share of its rows, of keys of which some sender had many."""
    rows: dict[str, int] = {}
    hot: dict[str, dict[str, int]] = {}
    for operator_report in (
        operator_report for report in reports for operator_report in report.operators
    ):
        rows[operator_report.operator] = rows.get(operator_report.operator, 0) + sum(
            operator_report.rows_in.values()
        )
        for key, count in operator_report.hot_keys.items():
            of = hot.setdefault(operator_report.operator, {})
            of[key] = of.get(key, 0) + count
    return {
        operator: {
            key: count / rows[operator]
            for key, count in sorted(of.items(), key=lambda item: (-item[1], item[0]))
        }
        for operator, of in hot.items()
    }


def left_out_of(reports: Iterable[LaneReport]) -> dict[str, dict[str, int]]:
    """Operator → reason → rows that it left out, of those that left any out."""
    counts = {
        operator: {
            "late": event_times.late,
            "ahead": event_times.ahead,
            "untimed": event_times.untimed,
        }
        for operator, event_times in arrivals_of(reports).items()
    }
    return {operator: of for operator, of in counts.items() if any(of.values())}


def told_left_out(
    left_out: Mapping[str, Mapping[str, int]], flow: CompiledFlow
) -> list[dict[str, Any]]:
    """Say, for each operator that left rows out in an epoch, what `events.RowsLeftOut` says."""
    return [
        {
            "operator": operator,
            **counts,
            "sink": next((o.name for o in flow.outputs_of(operator) if o.left_out), ""),
            "no_slack": tuple(
                source
                for source in flow.sources_of(operator)
                if source in flow.times and not flow.times[source].slack_us
            ),
        }
        for operator, counts in left_out.items()
    ]


def state_bytes(states: Iterable[StateId], chains: Chains) -> npt.NDArray[np.int64]:
    """Shape ``(num_key_groups,)``: what an empty copy reads to come to the committed version."""
    sizes = [chains.snapshot_bytes(s) + chains.changelog_bytes(s) for s in states]
    total: npt.NDArray[np.int64] = np.sum(sizes, axis=0, dtype=np.int64)
    return total


def _load(component: Component, reports: Iterable[OperatorReport], chains: Chains) -> ComponentLoad:
    sums = np.zeros((4, chains.num_key_groups))
    touched = np.zeros(chains.num_key_groups, np.bool_)
    for load in (operator_report.load for operator_report in reports):
        touched[load.key_groups] = True
        sums[:, load.key_groups] += (load.rows, load.keys, load.cpu_ms, load.busy_ms)
    key_groups = np.flatnonzero(touched)
    rows, keys, cpu_ms, busy_ms = sums[:, key_groups]
    return ComponentLoad(
        key_groups=key_groups,
        rows=rows.astype(np.int64),
        keys=keys.astype(np.int64),
        cpu_ms=cpu_ms,
        busy_ms=busy_ms,
        state_bytes=state_bytes(component.states, chains)[key_groups],
    )


def traffic_to(flow: CompiledFlow, reports: Iterable[LaneReport]) -> dict[str, ComponentTraffic]:
    """Component → what operators upstream sent to it."""
    of_operator = {o.name: c.name for c in flow.components for o in c.operators}
    sums: dict[str, npt.NDArray[np.float64]] = {}
    crossed: dict[str, int] = {}
    spent: dict[str, float] = {}
    pairs: dict[str, dict[str, list[KeyGroupPairs]]] = {}
    for report in reports:
        for sent in report.sent:
            name = of_operator[sent.operator]
            both = sums.setdefault(name, np.zeros((2, flow.num_key_groups)))
            both[:, sent.key_groups] += (sent.rows, sent.size_bytes)
            crossed[name] = crossed.get(name, 0) + sent.crossed_bytes
            spent[name] = spent.get(name, 0.0) + sent.cpu_ms
            upstream = of_operator[sent.sender]
            pairs.setdefault(name, {}).setdefault(upstream, []).append(sent.pairs)
    traffic = {}
    for name, (rows, size_bytes) in sums.items():
        key_groups = np.flatnonzero(rows)
        traffic[name] = ComponentTraffic(
            key_groups=tuple(key_groups.tolist()),
            rows=tuple(rows[key_groups].astype(np.int64).tolist()),
            size_bytes=tuple(np.rint(size_bytes[key_groups]).astype(np.int64).tolist()),
            crossed_bytes=crossed[name],
            cpu_ms=spent[name],
            pairs={up: KeyGroupPairs.total(parts) for up, parts in pairs[name].items()},
        )
    return traffic


def reach_of(
    states: Sequence[StateId],
    tables: Mapping[str, Mapping[StateId, Mapping[int, int]]],
    chains: Chains,
    copies: Copies,
) -> dict[str, PerKeyGroup]:
    """Executor → key group → epoch up to which the copy there misses nothing, in all states.

    A state whose table misses nothing does not hold the others back, however long ago it changed.
    """
    committed = np.stack([chains.versions(state) for state in states])
    reach: dict[str, PerKeyGroup] = {}
    for executor, reported in tables.items():
        named = np.zeros(committed.shape[1], np.bool_)
        held_versions = np.stack([copies.held(executor, s, committed.shape[1]) for s in states])
        for row, state in zip(held_versions, states, strict=True):
            versions = PerKeyGroup.of(reported.get(state, {}))
            named[versions.key_groups] = True
            row[versions.key_groups] = versions.numbers
        key_groups = np.flatnonzero(named)
        if not len(key_groups):
            continue
        misses = held_versions < committed
        lowest = np.where(misses, held_versions, held_versions.max(axis=0)).min(axis=0)
        reach[executor] = PerKeyGroup(key_groups, lowest[key_groups])
    return reach
