"""Taking up a checkpoint: whose it is, and its assignments on the executors that there are now."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.assignment import Assignment
from godwit.state.records import IDENTITY, FlowIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.dataflow.compiled import CompiledFlow
    from godwit.state.storage import CheckpointStorage

__all__ = ["identity_of", "transplanted"]


def identity_of(flow: CompiledFlow, storage: CheckpointStorage) -> FlowIdentity:
    """Identity to open the checkpoint with; a new checkpoint gets an id of its own."""
    new = all(entry.path != IDENTITY for entry in storage.list(""))
    return FlowIdentity(
        name=flow.name,
        num_key_groups=flow.num_key_groups,
        operators={o.name: dict(o.fingerprint()) for o in flow.operators},
        query_id=uuid.uuid4().hex if new else "",
    )


def transplanted(recorded: Assignment, names: Sequence[str], lanes: Sequence[int]) -> Assignment:
    """Put a recorded assignment onto the executors of this run, which have other names.

    Executors are matched in order; key groups of executors that have no match any more are dealt
    out evenly over all.
    """
    executors = len(recorded.executors)
    of = np.where(recorded.executor_of < len(names), recorded.executor_of, -1).astype(np.int32)
    if executors < len(names):
        of = recorded.executor_of.copy()
    homeless = np.flatnonzero(of < 0)
    of[homeless] = np.arange(len(homeless)) % len(names)
    lane_of = recorded.lane_of % np.asarray(lanes, np.int32)[of]
    return Assignment(
        version=recorded.version + 1,
        executors=tuple(names),
        lanes=tuple(lanes),
        executor_of=of.astype(np.int32),
        lane_of=lane_of.astype(np.int32),
    )
