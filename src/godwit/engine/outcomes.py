"""Outcome, commit record and progress of an epoch, computed from its lanes' reports."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.checkpoint.records import CommitRecord
from godwit.engine.event_time import event_times_of
from godwit.engine.latency import latency_figures
from godwit.migration.outcome import ComponentTraffic, EpochOutcome
from godwit.model.key_groups import KeyGroupLoad, KeyGroupPairs, OperatorWork, PerKeyGroup
from godwit.plan.compiled import SourceInput
from godwit.plan.feedback import is_fed_back

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.chains import Chains
    from godwit.checkpoint.records import BatchRef, SinkRecord, StateId
    from godwit.engine.event_time import Times
    from godwit.engine.lane.messages import LaneReport, OperatorReport, PassedOn
    from godwit.engine.latency import SourceLatency
    from godwit.engine.loop import Stopwatch
    from godwit.migration.copies import Copies
    from godwit.migration.state import ComponentView, ProtocolView
    from godwit.plan.compiled import CompiledFlow


def counted_inputs(flow: CompiledFlow) -> dict[tuple[str, int], str]:
    """Return (operator, input) → source, for the inputs at which every source row counts once.

    Of operators that read the same source after the same maps, only the one declared first counts,
    with the operators that take some of its rows instead of it (`SourceInput.others`).
    """
    declared = {operator: number for number, operator in enumerate(flow.actions)}
    first: list[SourceInput] = []
    for source in sorted(flow.inputs, key=lambda i: declared.get(i.operator, 0)):
        if isinstance(source, SourceInput) and all(
            (source.source, source.maps) != (other.source, other.maps) for other in first
        ):
            first.append(source)
    return {
        (name, source.number): source.source
        for source in first
        for sharing in flow.inputs_of(source.operator)
        for name in sharing.others
    } | {(source.operator, source.number): source.source for source in first}


def rows_by_source(
    reports: Iterable[LaneReport], counting: Mapping[tuple[str, int], str]
) -> dict[str, int]:
    """Return source → number of its rows after its maps; `counting`: see `counted_inputs`."""
    rows: dict[str, int] = {}
    for of_lane in _operator_reports(reports):
        for number, count in of_lane.rows_in.items():
            source = counting.get((of_lane.operator, number))
            if source is not None:
                _add_to(rows, source, count)
    return rows


def build_commit_record(
    epoch: int,
    reports: Sequence[LaneReport],
    component_views: Mapping[str, ComponentView],
    *,
    run_id: str,
    batch: BatchRef | None,
    before: BatchRef | None,
    times: Times,
    sinks: Mapping[str, SinkRecord] | None = None,
) -> CommitRecord:
    """Return the commit record of an epoch, from its lanes' reports.

    `component_views`: component → how it ran. `batch`: micro-batch of the epoch, if any; `before`:
    the last one covered earlier. `times`: event time after the epoch. `sinks`: sink → its
    description.
    """
    ordered = sorted(reports, key=lambda r: (r.level, r.place))
    consumed: dict[str, list[int]] = {}
    for report in _operator_reports(ordered):
        if report.consumed:
            consumed.setdefault(report.operator, []).extend(report.consumed)
    return CommitRecord(
        epoch=epoch,
        run_id=run_id,
        batch=batch,
        before=before if batch is None else None,
        segments=tuple(s for r in ordered for s in r.segments),
        snapshots=tuple(s for r in ordered for s in r.snapshots),
        outputs=tuple(operator for r in ordered for operator in r.outputs),
        consumed=consumed,
        assignments={name: view.assignment.to_dict() for name, view in component_views.items()},
        watermarks=dict(times.watermarks),
        newest=dict(times.newest),
        query_watermark=times.query,
        expired=dict(times.closed),
        reached=dict(times.reached),
        retained=dict(times.retained),
        slots={n: recorded for n, slots in times.slots.items() if (recorded := slots.recorded())},
        spreads={n: keys for n, spreads in times.spreads.items() if (keys := spreads.recorded())},
        sinks=dict(sinks or {}),
    )


def _operator_reports(reports: Iterable[LaneReport]) -> Iterator[OperatorReport]:
    """Iterate over the lanes' reports of operators."""
    return (of_operator for report in reports for of_operator in report.operators)


def build_outcome(
    record: CommitRecord,
    reports: Sequence[LaneReport],
    *,
    flow: CompiledFlow,
    chains: Chains,
    copies: Copies,
    counting: Mapping[tuple[str, int], str],
    query_watermark: int | None = None,
) -> EpochOutcome:
    """Return the outcome of a committed epoch.

    `chains`: as of the commit. `copies`: which executor had which before. `counting`: see
    `counted_inputs`. `query_watermark`: before the epoch.
    """
    versions: dict[str, dict[StateId, list[PerKeyGroup]]] = {}
    loads: dict[str, list[KeyGroupLoad]] = {c.name: [] for c in flow.components}
    waited: dict[str, list[int]] = {}
    lane_ms: dict[str, float] = {}
    requests: dict[str, int] = {}
    of_executor: list[tuple[str, KeyGroupLoad]] = []
    sink_rows: dict[str, int] = {}
    for ref in record.outputs:
        if not is_fed_back(ref.sink):
            _add_to(sink_rows, ref.sink, ref.rows)
    of_operator = {operator.name: c for c in flow.components for operator in c.operators}
    for report in reports:
        here = report.executor
        for phase, spent in report.took_ms.items():
            lane_ms[phase] = lane_ms.get(phase, 0.0) + spent
        for kind, count in report.requests.items():
            _add_to(requests, kind, count)
        for of_lane in report.operators:
            component = of_operator[of_lane.operator].name
            loads[component].append(of_lane.load)
            waited.setdefault(component, []).extend(of_lane.waited)
            of_executor.append((here, of_lane.load))
            of_states = versions.setdefault(here, {})
            for state, of_state in of_lane.versions.items():
                of_states.setdefault(state, []).append(of_state)
    tables = {
        executor: {state: PerKeyGroup.joined(parts) for state, parts in states.items()}
        for executor, states in versions.items()
    }
    sizes = {c.name: state_bytes(c.states, chains) for c in flow.components}
    key_work, lanes = key_work_of(reports), len({report.place for report in reports})
    return EpochOutcome(
        epoch=record.epoch,
        batch=None if record.batch is None else record.batch.number,
        rows_in=sum(rows_by_source(reports, counting).values()),
        rows_out=sum(r.rows_out for r in reports),
        sink_rows=sink_rows,
        loads={c.name: _sum_loads(loads[c.name], sizes[c.name]) for c in flow.components},
        total_state_bytes={name: int(size.sum()) for name, size in sizes.items()},
        traffic=traffic_to(flow, reports),
        streams=traffic_between(reports),
        executor_cpu_ms=_sum_by_executor(of_executor, "cpu_ms"),
        executor_busy_ms=_sum_by_executor(of_executor, "busy_ms"),
        waited={name: tuple(sorted(set(key_groups))) for name, key_groups in waited.items()},
        reach={
            c.name: completeness_of_copies(c.states, tables, chains, copies)
            for c in flow.components
        },
        tables=tables,
        watermarks=dict(record.watermarks),
        query_watermark=query_watermark,
        left_out=count_left_out(reports),
        hot_keys={**hot_keys_of(reports), **heavy_keys_of(key_work, lanes)},
        key_work=key_work,
        held_twice=_duplicate_partials(reports),
        unread_bytes=sum(of_lane.unread_bytes for of_lane in _operator_reports(reports)),
        table_bytes=sum({r.place: r.table_bytes for r in reports}.values()),
        evicted=_evicted(reports),
        fetched_keys=sum(of_lane.fetched_keys for of_lane in _operator_reports(reports)),
        empty=empty_slots(flow, chains),
        changelog_bytes=sum(s.block.length for s in record.segments),
        snapshot_bytes=sum(s.block.length for s in record.snapshots),
        lane_ms=lane_ms,
        lane_requests=requests,
    )


def _sum_by_executor(loads: Sequence[tuple[str, KeyGroupLoad]], name: str) -> dict[str, float]:
    """Return executor → sum of the column `name` over the loads of its lanes."""
    number = {executor: i for i, executor in enumerate(dict.fromkeys(e for e, _ in loads))}
    if not number:
        return {}
    columns = [getattr(load, name) for _, load in loads]
    owner = np.repeat([number[executor] for executor, _ in loads], [len(c) for c in columns])
    sums = np.bincount(owner, np.concatenate(columns), len(number))
    return dict(zip(number, sums.tolist(), strict=True))


def _add_to(total: dict[str, Any], name: str, more: float) -> None:
    """Add `more` to an entry of `total`, which counts as 0 if absent."""
    total[name] = total.get(name, 0) + more


def traffic_between(reports: Iterable[LaneReport]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (upstream operator, operator) → rows and bytes sent."""
    streams: dict[tuple[str, str], tuple[int, int]] = {}
    for report in reports:
        for passed in report.passed_on:
            edge = (passed.sender, passed.operator)
            rows, size = streams.get(edge, (0, 0))
            streams[edge] = (rows + passed.rows, size + passed.size_bytes)
    return streams


def _duplicate_partials(reports: Iterable[LaneReport]) -> dict[str, int]:
    """Return operator → partials of closed two-phase windows that were in both slots."""
    duplicates: dict[str, int] = {}
    for of_lane in _operator_reports(reports):
        if of_lane.duplicate_partials:
            _add_to(duplicates, of_lane.operator, of_lane.duplicate_partials)
    return duplicates


def _evicted(reports: Iterable[LaneReport]) -> dict[str, int]:
    """Return operator → number of key groups whose entries left the tables."""
    evicted: dict[str, int] = {}
    for report in reports:
        for operator, key_groups in report.evicted.items():
            _add_to(evicted, operator, key_groups)
    return evicted


def hot_keys_of(reports: Iterable[LaneReport]) -> dict[str, dict[str, float]]:
    """Return operator → hot key, as JSON → its share of the rows, by the senders' reports."""
    rows: dict[str, int] = {}
    hot: dict[str, dict[str, int]] = {}
    for operator_report in _operator_reports(reports):
        _add_to(rows, operator_report.operator, sum(operator_report.rows_in.values()))
        for key, count in operator_report.hot_keys.items():
            _add_to(hot.setdefault(operator_report.operator, {}), key, count)
    return {
        operator: {
            key: count / rows[operator]
            for key, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        }
        for operator, counts in hot.items()
    }


def key_work_of(reports: Iterable[LaneReport]) -> dict[str, OperatorWork]:
    """Return operator → its work in an epoch, in total and of the heaviest keys."""
    works: dict[str, list[OperatorWork]] = {}
    for operator_report in _operator_reports(reports):
        if operator_report.key_work is not None:
            works.setdefault(operator_report.operator, []).append(operator_report.key_work)
    return {operator: OperatorWork.summed(lane_works) for operator, lane_works in works.items()}


def heavy_keys_of(works: Mapping[str, OperatorWork], lanes: int) -> dict[str, dict[str, float]]:
    """Return operator → key as JSON → share of the work, for keys above one lane's share."""
    hot = {
        name: {k.key: k.total / work.total for k in work.keys if k.total * lanes > work.total}
        for name, work in works.items()
    }
    return {name: keys for name, keys in hot.items() if keys}


def count_left_out(reports: Iterable[LaneReport]) -> dict[str, dict[str, int]]:
    """Return operator → reason → number of rows left out, for operators that left any out."""
    counts = {
        operator: {"late": rows.late, "ahead": rows.ahead, "untimed": rows.untimed}
        for operator, rows in event_times_of(reports).items()
    }
    return {operator: rows for operator, rows in counts.items() if any(rows.values())}


def rows_left_out(
    left_out: Mapping[str, Mapping[str, int]], flow: CompiledFlow
) -> list[dict[str, Any]]:
    """Return the fields of `events.RowsLeftOut` for each operator that left rows out."""
    return [
        {
            "operator": operator,
            **counts,
            "sink": next((o.name for o in flow.outputs_of(operator) if o.left_out), ""),
            "no_slack": tuple(
                source
                for source in flow.sources_of(operator)
                if source in flow.times
                and source not in flow.loops
                and not flow.times[source].slack_us
            ),
        }
        for operator, counts in left_out.items()
    ]


def deletes_waited(reports: Iterable[LaneReport]) -> list[dict[str, Any]]:
    """Return the fields of `events.DeletesWaited` for each operator with such deletes."""
    counts: dict[str, int] = {}
    for of_lane in _operator_reports(reports):
        if of_lane.waiting_deletes:
            _add_to(counts, of_lane.operator, of_lane.waiting_deletes)
    return [{"operator": operator, "deletes": count} for operator, count in counts.items()]


def rows_unreadable(
    reports: Iterable[LaneReport], missing: Mapping[str, int], flow: CompiledFlow
) -> list[dict[str, Any]]:
    """Return the fields of `events.RowsUnreadable` for each source with such rows.

    `missing`: source → rows that it has lost.
    """
    counts: dict[str, int] = {}
    for report in reports:
        for source, rows in report.unreadable.items():
            _add_to(counts, source, rows)
    sinks = {output.unreadable_of: output.name for output in flow.outputs}
    return [
        *({"source": s, "rows": rows, "sink": sinks.get(s, "")} for s, rows in counts.items()),
        *({"source": s, "rows": rows} for s, rows in missing.items()),
    ]


def state_bytes(states: Iterable[StateId], chains: Chains) -> npt.NDArray[np.int64]:
    """Return the bytes to read from the checkpoint to restore each key group of some states.

    Shape ``(num_key_groups,)``.
    """
    sizes = [
        chains.chains_of(s).snapshot_bytes + chains.chains_of(s).changelog_bytes for s in states
    ]
    total: npt.NDArray[np.int64] = np.sum(sizes, axis=0, dtype=np.int64)
    return total


def _sum_loads(loads: Sequence[KeyGroupLoad], sizes: npt.NDArray[np.int64]) -> KeyGroupLoad:
    """Return the sum of the loads of a component's operators.

    `sizes`: bytes of state by key group.
    """
    total = KeyGroupLoad.total(loads)
    return replace(total, state_bytes=sizes[total.key_groups])


def empty_slots(flow: CompiledFlow, chains: Chains) -> dict[Hashable, frozenset[int]]:
    """Return state of a slot (of two-phase windows) → key groups without entries in it."""
    return {
        state: frozenset(np.flatnonzero(chains.is_empty(state)).tolist())
        for operator in flow.operators
        if operator.two_phase is not None and operator.two_phase.slot is not None
        for state in operator.states
    }


def traffic_to(flow: CompiledFlow, reports: Iterable[LaneReport]) -> dict[str, ComponentTraffic]:
    """Return component → rows that it received through an exchange."""
    component_of_operator = {
        operator.name: component.name
        for component in flow.components
        for operator in component.operators
    }
    sent_to: dict[str, list[PassedOn]] = {}
    for report in reports:
        for shipped in report.passed_on:
            if shipped.exchanged:
                sent_to.setdefault(component_of_operator[shipped.operator], []).append(shipped)
    traffic = {}
    for name, shipments in sent_to.items():
        rows, size_bytes = np.zeros((2, flow.num_key_groups))
        pairs: dict[str, list[KeyGroupPairs]] = {}
        for shipped in shipments:
            key_groups = shipped.sent[0].astype(np.intp)
            rows[key_groups] += shipped.sent[1]
            size_bytes[key_groups] += shipped.sent[2]
            pairs.setdefault(component_of_operator[shipped.sender], []).append(shipped.pairs)
        key_groups = np.flatnonzero(rows)
        traffic[name] = ComponentTraffic(
            key_groups=tuple(key_groups.tolist()),
            rows=tuple(rows[key_groups].astype(np.int64).tolist()),
            size_bytes=tuple(np.rint(size_bytes[key_groups]).astype(np.int64).tolist()),
            crossed_bytes=sum(shipped.crossed_bytes for shipped in shipments),
            cpu_ms=sum(shipped.cpu_ms for shipped in shipments),
            pairs={upstream: KeyGroupPairs.total(parts) for upstream, parts in pairs.items()},
        )
    return traffic


def completeness_of_copies(
    states: Sequence[StateId],
    tables: Mapping[str, Mapping[StateId, Mapping[int, int]]],
    chains: Chains,
    copies: Copies,
) -> dict[str, PerKeyGroup]:
    """Return executor → key group → epoch up to which its copy is complete in all states.

    An up-to-date table does not limit the result, even if its last change is old.
    `tables`: executor → state → key group → version, as reported since `copies` were known.
    """
    committed = np.stack([chains.versions(state) for state in states])
    reach: dict[str, PerKeyGroup] = {}
    for executor, state_tables in tables.items():
        columns = [PerKeyGroup.of(state_tables.get(state, {})) for state in states]
        if len(columns) == 1:
            if len(columns[0]):
                reach[executor] = columns[0]
            continue
        key_groups = np.unique(np.concatenate([column.key_groups for column in columns]))
        if not len(key_groups):
            continue
        versions = np.stack([copies.versions_of(executor, state, key_groups) for state in states])
        for row, state_column in zip(versions, columns, strict=True):
            row[np.searchsorted(key_groups, state_column.key_groups)] = state_column.numbers
        lags = versions < committed[:, key_groups]
        lowest = np.where(lags, versions, versions.max(axis=0)).min(axis=0)
        reach[executor] = PerKeyGroup(key_groups, lowest)
    return reach


def progress_of(
    outcome: EpochOutcome,
    view: ProtocolView,
    watch: Stopwatch,
    latencies: Mapping[str, SourceLatency],
    *,
    sink_s: Mapping[str, float] = MappingProxyType({}),
    requests: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the progress report of an epoch, as `Query.recentProgress` has it.

    ``query.recentProgress``, the journal, Prometheus' metrics and ``godwit top`` have this value.

    outcome, view, watch, latencies, sink_s, requests: Outcome of the epoch, state of the migration
    protocol, times of its phases, latencies of its rows by source, seconds of its delivery by sink,
    and requests to the object store of the checkpoint.

    Returns: The figures that `Query.recentProgress` describes, but for ``sources``.
    """
    took_ms = watch.took_ms()
    return {
        "epoch": outcome.epoch,
        "batchId": outcome.batch,
        "timestamp": watch.began.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "numInputRows": outcome.rows_in,
        "numOutputRows": outcome.rows_out,
        "sinkRows": dict(outcome.sink_rows),
        "sinkMs": {name: round(seconds * 1e3, 1) for name, seconds in sink_s.items()},
        "crossedBytes": sum(sent.crossed_bytes for sent in outcome.traffic.values()),
        "processedRowsPerSecond": outcome.rows_in / took_ms["epoch"] * 1e3,
        "durationMs": {phase: round(ms, 1) for phase, ms in took_ms.items()},
        "latencyMs": latency_figures(latencies),
        "laneMs": {phase: round(ms, 1) for phase, ms in outcome.lane_ms.items()},
        "requests": {path: dict(sorted(counts.items())) for path, counts in requests.items()},
        "changelogBytes": outcome.changelog_bytes,
        "snapshotBytes": outcome.snapshot_bytes,
        "watermarks": {source: _iso(moment) for source, moment in outcome.watermarks.items()},
        "queryWatermark": _iso(outcome.query_watermark) if outcome.query_watermark else None,
        "leftOutRows": {name: dict(counts) for name, counts in outcome.left_out.items()},
        "hotKeys": {
            name: {key: round(share, 4) for key, share in keys.items()}
            for name, keys in outcome.hot_keys.items()
        },
        "heldTwice": dict(outcome.held_twice),
        "stateBytes": sum(int(load.state_bytes.sum()) for load in outcome.loads.values()),
        "totalStateBytes": dict(outcome.total_state_bytes),
        "unreadStateBytes": outcome.unread_bytes,
        "stateTableBytes": outcome.table_bytes,
        "evictedKeyGroups": sum(outcome.evicted.values()),
        "fetchedKeys": outcome.fetched_keys,
        "numKeys": sum(int(load.keys.sum()) for load in outcome.loads.values()),
        "loads": {
            name: {
                "keyGroups": len(load.key_groups),
                "rows": int(load.rows.sum()),
                "keys": int(load.keys.sum()),
                "cpuMs": round(float(load.cpu_ms.sum()), 3),
            }
            for name, load in outcome.loads.items()
        },
        "streams": [
            {"from": sender, "to": receiver, "rows": rows, "sizeBytes": size}
            for (sender, receiver), (rows, size) in outcome.streams.items()
        ],
        "waitingKeyGroups": sum(len(component.waiting) for component in view.components.values()),
        "suspendedKeyGroups": sum(
            len(component.suspended) for component in view.components.values()
        ),
        "plannedMoves": sum(len(component.moves) for component in view.components.values()),
        "inFlightKeyGroups": sum(
            len(component.transfers) for component in view.components.values()
        ),
        "keyGroups": {
            name: component.assignment.num_owned for name, component in view.components.items()
        },
        "executors": {
            name: {
                "lanes": lanes,
                "draining": name in view.draining,
                "cpuMs": round(outcome.executor_cpu_ms.get(name, 0.0), 3),
                "busyMs": round(outcome.executor_busy_ms.get(name, 0.0), 3),
            }
            for name, lanes in view.executors.items()
        },
    }


def _iso(time_us: int) -> str:
    """Return a time as ISO text; as microseconds if it is beyond the calendar."""
    try:
        time = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=time_us)
    except OverflowError:
        return str(time_us)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
