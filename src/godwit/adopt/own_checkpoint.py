"""The checkpoint of an adopted query: its location, and the query that it belongs to."""

from __future__ import annotations

import tempfile
import uuid
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException

from godwit.adopt.targets import refused_setting
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.ownership import stored_identity
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointMismatchError
from godwit.model.naming import listing
from godwit.plan.lineage import flow_version

if TYPE_CHECKING:
    from collections.abc import Collection

    from godwit.checkpoint.evolution import FlowVersion, OperatorVersion
    from godwit.spark.flow import Flow

_REMEDY: Final = "Give a new checkpointLocation, or start the unchanged query."


def chosen_checkpoint(
    given: str | None, session: Any, *, query_name: str | None, may_be_temporary: bool
) -> tuple[str, bool]:
    """Return a query's checkpoint directory, chosen as by Spark, and whether it is temporary.

    `given`: ``checkpointLocation``. Raises `UnsupportedQueryError` if there has to be one.
    """
    if given is not None:
        return given, False
    parent = session.conf.get("spark.sql.streaming.checkpointLocation", None)
    if parent:
        return f"{parent.rstrip('/')}/{query_name or uuid.uuid4()}", False
    if may_be_temporary and session.sparkContext.master.startswith("local"):
        return tempfile.mkdtemp(prefix="temporary-"), True
    raise refused_setting(
        "The query has no checkpointLocation.",
        'Set it, as in .option("checkpointLocation", "checkpoints/counts").',
        AnalysisException,
        "_LEGACY_ERROR_TEMP_1298",
    )


def has_begun(checkpoint: str) -> bool:
    """Return whether a checkpoint has epochs."""
    return _last_version(checkpoint) is not None


def check_same_operators(checkpoint: str, flow: Flow) -> None:
    """Raise `CheckpointMismatchError` if a query has other stateful operators than before.

    Spark refuses that too: a new operator would begin in the middle of its input, and a removed one
    would lose its state. The same holds for an aggregate that replaces another; where both have
    buffers of one type, Spark continues one with the values of the other.
    """
    version = _last_version(checkpoint)
    if version is None:
        return
    stored_operators = {
        name: stored_operator
        for name, stored_operator in version.operators.items()
        if not stored_operator.part_of
    }
    current_names = {operator.name for operator in flow.operators}
    changes = _changed_names(stored_operators.keys(), current_names)
    if changes:
        raise _mismatch_error(
            f"The query's stateful operators differ from those of its checkpoint {checkpoint!r}: "
            f"{', '.join(changes)}. Spark also refuses this.",
            checkpoint,
        )
    for name, operator in flow_version(flow.compiled()).operators.items():
        changes = _changed_names(*map(_aggregate_names, (stored_operators.get(name), operator)))
        if len(changes) == 2:
            raise _mismatch_error(
                f"The query's aggregates differ from those of its checkpoint {checkpoint!r}: "
                f"{', '.join(changes)}, so the state of one aggregate would be read as that of "
                "another.",
                checkpoint,
            )


def as_of_query(error: CheckpointMismatchError) -> CheckpointMismatchError:
    """Return the error with a remedy for a query, whose operators have no names to choose."""
    if "name=" not in error.remedy:
        return error
    return CheckpointMismatchError(error.message, remedy=_REMEDY, **error.context)


def _mismatch_error(message: str, checkpoint: str) -> CheckpointMismatchError:
    """Return the error that a query does not fit its checkpoint."""
    return CheckpointMismatchError(message, remedy=_REMEDY, uri=checkpoint)


def _changed_names(before: Collection[str], now: Collection[str]) -> list[str]:
    """Return new and removed names, as text."""
    changed = ((set(now) - set(before), "is new"), (set(before) - set(now), "is gone"))
    return [f"{listing(sorted(names))} {text}" for names, text in changed if names]


def _aggregate_names(operator: OperatorVersion | None) -> set[str]:
    """Return the names of the aggregates of an operator."""
    states = () if operator is None else operator.states.values()
    return {
        name
        for state in states
        if isinstance(state.type, dict)
        for name, result in state.type.items()
        if isinstance(result, dict) and "aggregate" in result
    }


def _last_version(checkpoint: str) -> FlowVersion | None:
    """Return the flow version of the last epoch; ``None`` if there is no epoch."""
    storage = CheckpointStorage.open(checkpoint)
    if stored_identity(storage) is None:
        return None
    log = CommitLog.open_read_only(storage)
    return None if log.latest is None else log.version(log.latest.flow)
