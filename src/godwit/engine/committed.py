"""A committed epoch, as the controller, policies and the journal observe it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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
