"""Committed epochs, as the controller, policies and the journal observe them, and proposals.

Policies propose changes of a running flow: other components, or other key columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.records import PhysicalPlan
    from godwit.migration.outcome import EpochOutcome
    from godwit.migration.state import ComponentView
    from godwit.plan.compiled import CompiledFlow


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedEpoch:
    """One committed epoch, as the controller observes it."""

    outcome: EpochOutcome  # what it did
    component_views: Mapping[str, ComponentView]  # component → how it ran
    took_s: float  # from its start to its commit, in seconds
    # rows that the sources had beside those that it took; ``None`` where they do not say
    backlog_rows: int | None = None
    # when they had them, by the controller's clock; ``None``: when the epoch began
    backlog_s: float | None = None
    # when it was committed, by the controller's clock; ``None``: just now
    committed_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEpoch(CommittedEpoch):
    """A committed epoch with its flow, for policies about operators and the journal."""

    at_s: float = 0.0  # when it was committed, in Unix time
    flow: CompiledFlow  # under the plan that it ran under
    # state that copies brought of late from the quicker side; ``None`` where none was measured
    copies_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proposal:
    """A change that a policy proposes, or its reason against any."""

    subject: str  # what it is about, for people
    change: Any = None  # what the actor is to do; ``None``: nothing
    reason: str = ""
    gain: float = math.inf  # in the unit of the cost; infinite: it must be, whatever it costs
    cost: float = 0.0  # as far as the policy knows it; the actor may know more
    numbers: Mapping[str, float] = field(default_factory=dict)  # what it rests on
    reverses: frozenset[str] = frozenset()  # manual changes that it would, texts of `ManualChange`


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup:
    """Change of the components that operators belong to."""

    components: Mapping[str, tuple[str, ...]]  # component → its operators
    plan: PhysicalPlan  # that it was decided under


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """Change of the key columns that place an operator's rows."""

    operator: str
    columns: tuple[str, ...]
