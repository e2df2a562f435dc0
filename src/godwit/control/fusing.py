"""Fusing: operators with much traffic between them share a component.

Problem: fusing two operators saves the exchange between them, and ties their key groups together;
what it saves is known only while the stream runs.

Invariants: only chained operators whose rows surely stay in their lane are fused; components that
the user chose are not changed.  The threshold for parting is below the one for fusing, so
that a stream that is steady is decided upon once.

Source: fusion by traffic and by common partition attributes, Madsen et al. (Enorm) §4.4.1,
Algorithm 1 (`godwit.control.planners.fusion`); deciding at run time is its §8.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from godwit.control.planners.fusion import FusionProblem, plan_fusion
from godwit.control.policy import Hysteresis, check_epoch_settings, reversed_by_regrouping
from godwit.engine.policies import Proposal, Regroup
from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_class
from godwit.plan.grouping import in_lane_inputs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from godwit.control.policy import ManualOverrides
    from godwit.engine.policies import FlowEpoch
    from godwit.plan.compiled import CompiledFlow, UpstreamInput

_FUSION = "fusion"


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """Settings for fusing operators automatically: fused operators run in the same tasks.

    Pass it as ``gw.control.Adaptation(fusion=...)``. Between fused operators (operators of one
    component) with the same keys there is no shuffle.

    Attributes
    ----------
    by
        ``"traffic"``: fuse operators that are measured to send each other many rows.
        ``"attributes"``: fuse all operators that can be fused, from the start of the query; the
        rows of new operators whose keys have columns in common are placed by the hash of these
        columns alone, if `cardinality` says that they have enough values.
    epochs
        Number of epochs with input from one decision to the next, which uses their measurements.
    fuse_above, part_below
        Shares of all rows that lanes receive, in [0, 1]: two operators are fused if the rows
        between them are more than `fuse_above`, and separated again if they are less than
        `part_below`.
    confirm
        Number of consecutive decisions that must agree before components change.
    payback_epochs
        Number of epochs within which the bytes that are no longer sent between the operators must
        exceed the bytes of state that have to move.
    cardinality
        Key column → approximate number of its values, as in ``{"area": 10_000}``; the numbers of
        several columns are multiplied, and a column that is not named counts as one value.
    max_imbalance
        Maximum load of the busiest lane if rows are placed by the common columns, as a multiple of
        its load if they are placed by all key columns. It decides how many values are enough.
    repartition
        ``True``: if `confirm` consecutive comparisons say that epochs would be shorter if an
        operator with state were placed by the key columns of one that it feeds, the running query
        rewrites its state between two epochs. No epoch runs meanwhile, so the time that epochs save
        within `payback_epochs` must exceed the pause. Operators for which the program has
        ``partition_by=`` stay as they are.

    Raises
    ------
    InvalidFlowError
        If a setting has a wrong value.

    Examples
    --------
    >>> gw.control.Adaptation(fusion=gw.control.Fusion(fuse_above=0.1)).fusion.fuse_above
    0.1
    """

    by: Literal["traffic", "attributes"] = "traffic"
    epochs: int = 16
    fuse_above: float = 0.05
    part_below: float = 0.01
    confirm: int = 2
    payback_epochs: int = 500
    cardinality: Mapping[str, int] = field(default_factory=dict)
    max_imbalance: float = 1.1
    repartition: bool = False

    def __post_init__(self) -> None:
        numbers_of = self.cardinality
        if not isinstance(numbers_of, Mapping) or not all(
            isinstance(column, str) and type(values) is int and values >= 1
            for column, values in numbers_of.items()
        ):
            raise InvalidFlowError(
                f"gw.control.Fusion has cardinality={numbers_of!r}.",
                remedy='Give column → number of values, as in cardinality={"area": 10_000}.',
            )
        if type(self.max_imbalance) not in (int, float) or not 1 < self.max_imbalance < math.inf:
            raise InvalidFlowError(
                f"gw.control.Fusion has max_imbalance={self.max_imbalance!r}.",
                remedy="Give a number above 1, such as 1.1: the busiest lane may then have 10 % "
                "more load than if all key columns place rows.",
            )
        if not (isinstance(self.by, str) and self.by in ("traffic", "attributes")):
            raise InvalidFlowError(
                f"gw.control.Fusion has by={self.by!r}.",
                remedy='Give "traffic" or "attributes".',
            )
        if type(self.repartition) is not bool:
            raise InvalidFlowError(
                f"gw.control.Fusion has repartition={self.repartition!r}.",
                remedy="Give True if a running query may rewrite state, else False.",
            )
        check_epoch_settings(self)
        shares = (self.part_below, self.fuse_above)
        numbers = all(type(share) in (int, float) for share in shares)
        if not numbers or not 0 <= self.part_below < self.fuse_above <= 1:
            raise InvalidFlowError(
                f"gw.control.Fusion has part_below={self.part_below!r} and "
                f"fuse_above={self.fuse_above!r}.",
                remedy="Give shares between 0 and 1, the first below the second; between the "
                "two, nothing changes.",
            )


class Fusing:
    """Policy that measures the rows between operators, and proposes components."""

    def __init__(self, flow: CompiledFlow, settings: Fusion, *, overrides: ManualOverrides) -> None:
        self._streams = in_lane_inputs(flow)
        self._settings, self._overrides = settings, overrides
        self._hysteresis = Hysteresis(confirm=settings.confirm)
        self._rows: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._num_evaluations = self._epochs = 0
        self._standing_proposal: Proposal | None = None

    def observe(self, epoch: FlowEpoch) -> None:
        """Add an epoch to the period.

        After `Fusion.epochs` epochs with input, evaluate the period.
        """
        outcome, standing = epoch.outcome, self._standing_proposal
        if standing is not None and standing.change.plan != epoch.flow.physical_plan:
            self._standing_proposal = None  # of components that are others by now
        if outcome.batch is None:
            return
        self._epochs += 1
        self._num_evaluations += outcome.rows_in
        for (sender, receiver), (rows, size) in outcome.streams.items():
            self._rows[sender, receiver] += rows
            self._bytes[sender, receiver] += size
            self._num_evaluations += rows
        if self._epochs < self._settings.epochs:
            return
        self._standing_proposal = self._evaluate_fusion(
            epoch.flow, self._overrides.operators(epoch.flow, epoch.at_s)
        )
        self._rows.clear()
        self._bytes.clear()
        self._num_evaluations = self._epochs = 0

    def propose(self, now_s: float) -> Iterator[Proposal]:  # noqa: ARG002
        """Yield the proposal of the last evaluation, until it is answered."""
        if self._standing_proposal is not None:
            yield self._standing_proposal

    def answered(self, proposal: Proposal) -> None:
        """Drop a proposal that was carried out or rejected."""
        self._standing_proposal = None
        self._hysteresis.reset(proposal.subject)

    def _evaluate_fusion(self, flow: CompiledFlow, left_alone: frozenset[str]) -> Proposal | None:
        """Return a proposal of components by the period's rows; ``None``: no change.

        `left_alone`: operators whose components were chosen by hand.
        """
        left_alone_operators = left_alone | _fused_by_user(flow, self._streams)
        streams = [
            stream
            for stream in self._streams
            if not left_alone_operators & {stream.upstream, stream.operator}
        ]
        shares = {
            (stream.upstream, stream.operator): self._rows[stream.upstream, stream.operator]
            / max(self._num_evaluations, 1)
            for stream in streams
        }
        fused = {
            edge for edge in shares if flow.component_of(edge[0]) is flow.component_of(edge[1])
        }
        counts = {
            edge: share
            for edge, share in shares.items()
            if share >= (self._settings.part_below if edge in fused else self._settings.fuse_above)
        }
        groups = _fuse_greedily(flow, streams, counts)
        groups_before = {
            component.operators[0].name: tuple(operator.name for operator in component.operators)
            for component in flow.components
        }
        present_groups = {
            group for group in groups_before.values() if not left_alone_operators & set(group)
        }
        new_groups = {group for group in groups if not left_alone_operators & set(group)}
        changed = tuple(sorted(new_groups - present_groups))
        if not self._hysteresis.is_confirmed(_FUSION, changed):
            return None
        newly_fused = {
            edge
            for edge in shares
            if any(set(edge) <= set(group) for group in changed) and edge not in fused
        }
        newly_separated = {
            edge for edge in fused if not any(set(edge) <= set(group) for group in groups)
        }
        saved_bytes = sum(self._bytes[edge] for edge in newly_fused) / self._settings.epochs
        shown = {edge: shares[edge] for edge in (*sorted(newly_fused), *sorted(newly_separated))}
        return Proposal(
            subject=_FUSION,
            change=Regroup(
                components={_name_of(group): group for group in changed}, plan=flow.physical_plan
            ),
            reason="; ".join(
                f"{sender} → {receiver} is {share:.1%} of all rows"
                for (sender, receiver), share in shown.items()
            ),
            # In bytes: rows that are no longer sent, against the state that moves for it.
            gain=self._settings.payback_epochs * saved_bytes if saved_bytes else math.inf,
            numbers={
                f"{sender_}→{receiver_}": share for (sender_, receiver_), share in shown.items()
            },
            reverses=reversed_by_regrouping(flow, *(name for group in changed for name in group)),
        )


def by_attributes(
    flow: CompiledFlow, left_alone: Collection[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return component → operators, with as many operators fused as possible.

    Those in `left_alone` keep their components.
    """
    all_streams = in_lane_inputs(flow)
    left_alone_operators = set(left_alone) | _fused_by_user(flow, all_streams)
    streams = [
        stream
        for stream in all_streams
        if not {stream.upstream, stream.operator} & left_alone_operators
    ]
    groups = _fuse_greedily(
        flow, streams, {(stream.upstream, stream.operator): 1.0 for stream in streams}
    )
    return {_name_of(group): group for group in groups if len(group) > 1}


def _fuse_greedily(
    flow: CompiledFlow,
    streams: Collection[UpstreamInput],
    rates: Mapping[tuple[str, str], float],
) -> list[tuple[str, ...]]:
    """Return groups of operators, fused along the busiest streams (paper 3, Algorithm 1).

    `streams`: inputs along which operators may be fused. `rates`: (sender, receiver) → rows.
    """
    names = [operator.name for operator in flow.operators]
    number = {name: index for index, name in enumerate(names)}
    attributes = _partition_attributes(names, streams)
    edges = [
        (stream.upstream, stream.operator) for name in names for stream in flow.inputs_fed_by(name)
    ]
    problem = FusionProblem(
        operators=tuple(names),
        attributes=tuple(attributes[name] for name in names),
        source=np.array([number[sender] for sender, _ in edges], np.int32),
        target=np.array([number[receiver] for _, receiver in edges], np.int32),
        rate=np.array([rates.get(edge, 0.0) for edge in edges], np.float64),
    )
    members: dict[int, list[str]] = {}
    for name, component in zip(names, plan_fusion(problem).component_of.tolist(), strict=True):
        members.setdefault(component, []).append(name)
    return [tuple(group) for group in members.values()]


def _partition_attributes(
    names: Iterable[str], streams: Iterable[UpstreamInput]
) -> dict[str, frozenset[str]]:
    """Return operator → one partition attribute, equal for operators connected by `streams`.

    `names`: all operators.
    """
    root = {name: name for name in names}

    def top(name: str) -> str:
        """Return the representative of the operators that are joined with this one."""
        while root[name] != name:
            name = root[name]
        return name

    for stream in streams:
        root[top(stream.operator)] = top(stream.upstream)
    return {name: frozenset({top(name)}) for name in root}


def _fused_by_user(flow: CompiledFlow, streams: Collection[UpstreamInput]) -> set[str]:
    """Return the operators of components that the user has fused."""
    members: set[str] = set()
    for component in flow.components:
        names = [operator.name for operator in component.operators]
        inner = [s for s in streams if s.upstream in names and s.operator in names]
        if (
            len(
                {
                    a
                    for attributes in _partition_attributes(names, inner).values()
                    for a in attributes
                }
            )
            > 1
        ):
            members.update(names)
    return members


def _name_of(group: tuple[str, ...]) -> str:
    """Return the name of a group's component: the names of its operators, joined by "+"."""
    return "+".join(group)
