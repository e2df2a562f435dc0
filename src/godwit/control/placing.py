"""Placement of operators by common key columns, so that rows between them stay in their lane.

Problem: an operator by (area, user) and one by (area) share a component if area places the rows of
both.  That saves an exchange, and costs evenness: all users of an area are in one lane.  Which of
the two is more depends on how many areas there are, and how large they are.

`place_by_attributes` decides for operators that have no state yet, by numbers of values that the
user states.  `ComparePlacing` measures what a running query would gain or lose, tells it, and
proposes it where `Fusion.repartition` allows that.  A start that may change the columns of state
uses earlier measurements (`place_as_measured`).  Either way the state is rewritten by
`godwit.engine.repartition`.

Invariant: no operator is placed by fewer columns unless the numbers say that lanes stay as evenly
loaded as the settings ask; what the program states is left alone.

Source: fusion by common partition attributes, Madsen et al. (Enorm) §4.3, §4.4.1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.checkpoint.evolution import partitioned_anew
from godwit.control.planners.fusion import FusionProblem, plan_fusion
from godwit.control.planners.placing import compare_placing, imbalance_of, min_values
from godwit.control.policy import Hysteresis, reversed_by_regrouping
from godwit.engine.policies import Proposal, Repartition
from godwit.model import events
from godwit.model.naming import listing
from godwit.operators.hot_keys import PART
from godwit.placement.metrics import busiest_lane
from godwit.plan.grouping import in_lane_inputs, keeps_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from godwit.control.fusing import Fusion
    from godwit.control.policy import Announce
    from godwit.control.windows import ExchangeCosts
    from godwit.engine.policies import FlowEpoch
    from godwit.model.event import Event
    from godwit.model.key_groups import KeyGroupLoad
    from godwit.placement.arrays import FloatArray
    from godwit.plan.compiled import CompiledFlow, UpstreamInput


_LANES_RESERVE = 2
"""Multiple of the initial lanes that key values must suffice for, so that a query can scale out."""


def partly_common_inputs(flow: CompiledFlow) -> tuple[UpstreamInput, ...]:
    """Return inputs between operators whose keys have some columns in common.

    The columns come unchanged: no user's function stands between.
    """
    edges = []
    for sender in flow.operators:
        for edge in flow.inputs_fed_by(sender.name):
            receiver = flow.operator(edge.operator)
            names = tuple(receiver.user_keys.names)
            if edge.others or receiver.consolidates or not keeps_keys(sender, edge):
                continue
            if sender.two_phase is not None:  # its other phase has to have the same key groups
                continue
            hashed = (*sender.hash_columns.names, *receiver.hash_columns.names)
            if PART in hashed or edge.keys != names:
                continue
            common = [name for name in sender.keys.names if name in names]
            alike = all(sender.keys.field(n).type == receiver.keys.field(n).type for n in common)
            placed_alike = sender.placed_by.names == receiver.placed_by.names
            if common and alike and not placed_alike:
                edges.append(edge)
    return tuple(edges)


def place_by_attributes(
    flow: CompiledFlow, free: Collection[str], settings: Fusion, num_lanes: int
) -> list[dict[str, Any]]:
    """Partition operators by columns in common; return the fields of each `PartitioningCompared`.

    `free`: operators without state. Operators whose columns the program states stay as they are,
    and so do phases of windows, which must have the same key groups.
    """

    def is_free(edge: UpstreamInput) -> bool:
        """Return true if both ends of a stream may be placed by other columns."""
        operators = [flow.operator(name) for name in (edge.upstream, edge.operator)]
        return all(
            operator.name in free and not operator.partition_stated and operator.two_phase is None
            for operator in operators
        )

    streams = [edge for edge in partly_common_inputs(flow) if is_free(edge)]
    if not streams:
        return []
    edges = [*streams, *(edge for edge in in_lane_inputs(flow) if is_free(edge))]
    lanes = _LANES_RESERVE * num_lanes
    needed = min_values(flow.num_key_groups, lanes, settings.max_imbalance)
    names = [operator.name for operator in flow.operators]
    plan = plan_fusion(_fusion_problem(flow, edges, settings, needed), score="attributes")
    component_of = dict(zip(names, plan.component_of.tolist(), strict=True))
    for component, shared in enumerate(plan.shared):
        members = [flow.operator(name) for name in names if component_of[name] == component]
        orders = [
            tuple(column for column in member.keys.names if column in shared) for member in members
        ]
        # As the operator has them that is keyed by them alone, so that it stays as it is.
        order = min(orders, key=lambda columns: len(members[orders.index(columns)].keys))
        for member in members if len(members) > 1 else ():
            member.partition_by = () if tuple(member.keys.names) == order else order
    compared = []
    for edge in streams:
        is_fused = component_of[edge.upstream] == component_of[edge.operator]
        shared_columns = plan.shared[component_of[edge.upstream]] if is_fused else None
        keys = flow.operator(edge.upstream).keys.names
        columns = [
            column
            for column in edge.keys
            if (column in keys if shared_columns is None else column in shared_columns)
        ]
        cardinalities = [
            settings.cardinality[column] for column in columns if column in settings.cardinality
        ]
        values = math.prod(cardinalities)
        compared.append(
            {
                "operator": edge.upstream,
                "downstream": edge.operator,
                "columns": tuple(columns),
                "chosen": is_fused,
                "imbalance": imbalance_of(values, flow.num_key_groups, lanes)
                if cardinalities
                else None,
                "reason": f"{listing(columns)} has {values:,} values, but {lanes} lanes need "
                f"{needed:,}"
                if cardinalities
                else f"cardinality= does not say how many values {listing(columns)} has",
            }
        )
    return compared


def place_as_measured(
    flow: CompiledFlow, past: Iterable[Event], confirm: int
) -> list[dict[str, Any]]:
    """Partition operators with state as earlier runs have measured to be better.

    `past`: events of these runs, oldest first. `confirm`: number of last comparisons of an
    operator, since its state was written, that must agree. Returns the fields of a
    `PartitioningCompared` for each operator that changes.
    """
    measured: dict[tuple[str, str], list[events.PartitioningCompared]] = {}
    for event in past:
        if isinstance(event, events.PartitioningCompared) and event.apart_ms is not None:
            measured.setdefault((event.operator, event.downstream), []).append(event)
        elif isinstance(event, events.FlowChanged):
            for pair in list(measured):
                if partitioned_anew(pair[0]) in event.results:
                    del measured[pair]  # of another placement

    def saved_ms(event: events.PartitioningCompared) -> float:
        """Return the milliseconds an epoch that placing both operators alike saves."""
        return (event.apart_ms or 0.0) - (event.together_ms or 0.0)

    best: dict[str, events.PartitioningCompared] = {}
    for edge in partly_common_inputs(flow):
        last = measured.get((edge.upstream, edge.operator), [])[-confirm:]
        is_stated = flow.operator(edge.upstream).partition_stated
        is_agreed = len(last) == confirm and all(
            event.better and event.columns == edge.keys for event in last
        )
        if (
            is_agreed
            and not is_stated
            and set(edge.keys) <= {*flow.operator(edge.upstream).keys.names}
        ):
            best_event = best.setdefault(edge.upstream, last[-1])
            best[edge.upstream] = max(best_event, last[-1], key=saved_ms)
    for name, event in best.items():
        flow.operator(name).partition_by = event.columns
    return [
        {
            "operator": event.operator,
            "downstream": event.downstream,
            "columns": event.columns,
            "chosen": True,
            "better": True,
            "imbalance": event.imbalance,
            "apart_ms": event.apart_ms,
            "together_ms": event.together_ms,
            "reason": f"as measured until epoch {event.epoch}",
        }
        for event in best.values()
    ]


def _fusion_problem(
    flow: CompiledFlow, edges: Collection[UpstreamInput], settings: Fusion, needed: int
) -> FusionProblem:
    """Return the fusion problem of operators by their key columns (paper 3).

    `edges`: inputs between operators with key columns in common. `needed`: minimum number of values
    that partition attributes must have.
    """
    names = [operator.name for operator in flow.operators]
    number = {name: index for index, name in enumerate(names)}
    ends = {name for edge in edges for name in (edge.upstream, edge.operator)}
    columns = {name: frozenset(flow.operator(name).keys.names) for name in ends}
    return FusionProblem(
        operators=tuple(names),
        attributes=tuple(columns.get(name, frozenset()) for name in names),
        source=np.array([number[edge.upstream] for edge in edges], np.int32),
        target=np.array([number[edge.operator] for edge in edges], np.int32),
        rate=np.ones(len(edges)),
        attribute_values={
            column: math.log(settings.cardinality.get(column, 1))
            for column in frozenset().union(*columns.values())
        },
        min_value=math.log(needed),
    )


class ComparePlacing:
    """Policy that measures and announces the cost of placing an operator by fewer columns.

    It proposes the change where settings allow it and the program does not name the columns.
    """

    def __init__(
        self, flow: CompiledFlow, settings: Fusion, exchange: ExchangeCosts, *, announce: Announce
    ) -> None:
        # If several operators feed a receiver, its rows cannot be attributed to one of them.
        self._streams = [
            edge for edge in partly_common_inputs(flow) if len(flow.inputs_of(edge.operator)) == 1
        ]
        self._settings, self._exchange, self._announce = settings, exchange, announce
        self._sums: dict[tuple[str, str], _Sums] = {}
        self._hysteresis = Hysteresis(confirm=settings.confirm)
        self._standing_proposals: dict[str, Proposal] = {}  # by subject

    def observe(self, epoch: FlowEpoch) -> None:
        """Add an epoch to the period.

        After `Fusion.epochs` epochs with input, compare placements.
        """
        flow, outcome = epoch.flow, epoch.outcome
        if outcome.batch is None:
            return
        for edge in self._streams:
            sender, receiver = map(flow.component_of, (edge.upstream, edge.operator))
            ends = edge.upstream, edge.operator
            traffic = outcome.traffic.get(receiver.name)
            alone = len(sender.operators) == len(receiver.operators) == 1
            if not alone or traffic is None:
                self._sums.pop(ends, None)
                continue
            sums = self._sums.setdefault(ends, _Sums(flow.num_key_groups))
            sums.epochs += 1
            sums.sender += _per_key_group(outcome.loads.get(sender.name), flow.num_key_groups)
            sums.receiver += _per_key_group(outcome.loads.get(receiver.name), flow.num_key_groups)
            np.add.at(sums.rows, list(traffic.key_groups), traffic.rows)
            lanes = sum(epoch.component_views[sender.name].assignment.lanes)
            sums.exchange_ms += traffic.cpu_ms + sum(traffic.size_bytes) * self._exchange.byte_ms
            sums.exchange_ms += lanes * self._exchange.lane_ms
            if sums.epochs == self._settings.epochs:
                self._compare_placing(edge, self._sums.pop(ends), lanes, flow)

    def _compare_placing(
        self, edge: UpstreamInput, sums: _Sums, lanes: int, flow: CompiledFlow
    ) -> None:
        """Compare and announce a period's costs of both placements of the sender.

        If comparisons in a row favour the receiver's columns, and settings allow it, they will be
        proposed. `edge`: the input between the two. `sums`: measurements of the period.
        """
        costs = compare_placing(
            sums.sender / sums.epochs,
            sums.receiver / sums.epochs,
            sums.rows,
            exchange_ms=sums.exchange_ms / sums.epochs,
            lanes=lanes,
        )
        total = float(sums.rows.sum())
        self._announce(
            events.PartitioningCompared,
            operator=edge.upstream,
            downstream=edge.operator,
            columns=tuple(edge.keys),
            chosen=False,
            better=costs.pays,
            imbalance=busiest_lane(sums.rows, lanes) * lanes / total if total else None,
            apart_ms=costs.apart_ms,
            together_ms=costs.together_ms,
            reason=f"over {sums.epochs} epochs, of which an exchange takes "
            f"{costs.exchange_ms:.1f} ms",
        )

        subject = f"columns that place {edge.upstream}, as {edge.operator}"
        saved_ms = costs.apart_ms - costs.together_ms
        pays = (
            costs.pays
            and self._settings.repartition
            and not flow.operator(edge.upstream).partition_stated
        )
        if not self._hysteresis.is_confirmed(subject, pays):
            self._standing_proposals.pop(subject, None)
            return
        self._standing_proposals[subject] = Proposal(
            subject=subject,
            change=Repartition(operator=edge.upstream, columns=tuple(edge.keys)),
            reason=f"an epoch takes {costs.together_ms:.1f} ms instead of {costs.apart_ms:.1f} ms",
            # In milliseconds: what epochs take less, against the pause.
            gain=self._settings.payback_epochs * saved_ms,
            numbers={"apart_ms": costs.apart_ms, "together_ms": costs.together_ms},
            reverses=reversed_by_regrouping(flow, edge.upstream),
        )

    def propose(self, now_s: float) -> Iterator[Proposal]:  # noqa: ARG002
        """Propose the columns that the last comparisons agree on, until it is answered."""
        yield from tuple(self._standing_proposals.values())

    def answered(self, proposal: Proposal) -> None:
        """Drop a proposal that was carried out or rejected."""
        self._standing_proposals.pop(proposal.subject, None)
        self._hysteresis.reset(proposal.subject)


class _Sums:
    """Measurements of a period."""

    def __init__(self, num_key_groups: int) -> None:
        self.epochs = 0
        self.exchange_ms = 0.0
        self.sender, self.receiver, self.rows = np.zeros((3, num_key_groups))


def _per_key_group(load: KeyGroupLoad | None, num_key_groups: int) -> FloatArray:
    """Return the busy milliseconds of each key group; 0 without load."""
    busy_ms = np.zeros(num_key_groups)
    if load is not None:
        busy_ms[load.key_groups] = load.busy_ms
    return busy_ms
