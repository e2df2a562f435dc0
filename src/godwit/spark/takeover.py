"""Taking up a checkpoint: whose it is, and its assignments on the executors that there are now."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.assignment import Assignment, even_assignment
from godwit.model.errors import InvalidPlanError
from godwit.state.records import IDENTITY, FlowIdentity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from godwit.dataflow.compiled import CompiledFlow
    from godwit.spark.executors import Executor
    from godwit.state.storage import CheckpointStorage

__all__ = ["first_assignments", "identity_of", "transplanted"]


def identity_of(flow: CompiledFlow, storage: CheckpointStorage) -> FlowIdentity:
    """Identity to open the checkpoint with; a new checkpoint gets an id of its own."""
    new = all(entry.path != IDENTITY for entry in storage.list(""))
    return FlowIdentity(
        name=flow.name,
        num_key_groups=flow.num_key_groups,
        operators={o.name: dict(o.fingerprint()) for o in flow.operators},
        query_id=uuid.uuid4().hex if new else "",
    )


def first_assignments(
    flow: CompiledFlow,
    recorded: Mapping[str, Mapping[str, Any]],
    given: Mapping[str, Assignment],
    executors: Sequence[Executor],
) -> dict[str, Assignment]:
    """Choose the assignment of every component for the beginning of a run.

    Parameters
    ----------
    flow
        The flow.
    recorded
        Component → what the last commit record says; taken up on the executors there are now.
    given
        Component → what the user says; counts where nothing is recorded. The others are dealt out
        evenly.
    executors
        The executors.

    Raises
    ------
    InvalidPlanError
        If the user names a component that does not exist, or places another number of key groups.
    """
    components = [component.name for component in flow.components]
    unknown = sorted(given.keys() - set(components))
    if unknown:
        raise InvalidPlanError(
            f"Assignments were given for components that do not exist: {unknown}.",
            remedy=f"Components are {', '.join(components)}.",
        )
    names, lanes = [e.name for e in executors], [e.lanes for e in executors]
    chosen = {}
    for name in components:
        if name in recorded:
            chosen[name] = transplanted(Assignment.from_dict(recorded[name]), names, lanes)
        elif name not in given:
            chosen[name] = even_assignment(flow.num_key_groups, names, lanes)
        elif given[name].num_key_groups == flow.num_key_groups:
            chosen[name] = given[name]
        else:
            raise InvalidPlanError(
                f"The assignment of {name!r} has {given[name].num_key_groups} key groups.",
                remedy=f"The flow has {flow.num_key_groups}; place every one of them.",
            )
    return chosen


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
