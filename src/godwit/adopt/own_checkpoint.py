"""The checkpoint that an adopted query runs on: where it is, and which query it is of."""

from __future__ import annotations

import tempfile
import uuid
from typing import TYPE_CHECKING, Any

from godwit.adopt.targets import refused_setting
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.ownership import stored_identity
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointMismatchError
from godwit.model.naming import listing

if TYPE_CHECKING:
    from godwit.checkpoint.evolution import FlowVersion
    from godwit.spark.flow import Flow


def chosen_checkpoint(
    given: str | None, session: Any, *, query_name: str | None, may_be_temporary: bool
) -> tuple[str, bool]:
    """Return the directory of a query's checkpoint, as Spark chooses it; whether it is temporary.

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
    )


def has_begun(checkpoint: str) -> bool:
    """Return whether a checkpoint has epochs."""
    return _last_version(checkpoint) is not None


def check_same_operators(checkpoint: str, flow: Flow) -> None:
    """Raise `CheckpointMismatchError` if a query has other stateful operators than before.

    Spark refuses that too: a new operator would begin in the middle of its input, and a removed one
    would lose its state.
    """
    version = _last_version(checkpoint)
    if version is None:
        return
    before = {name for name, operator in version.operators.items() if not operator.part_of}
    now = {operator.name for operator in flow.operators}
    if before == now:
        return
    changes = [
        f"{listing(sorted(names))} {text}"
        for names, text in ((now - before, "is new"), (before - now, "is gone"))
        if names
    ]
    raise CheckpointMismatchError(
        f"The query has other stateful operators than its checkpoint {checkpoint!r}: "
        f"{', '.join(changes)}. Spark refuses that too.",
        remedy="Give a new checkpointLocation, or start the query as it was.",
        uri=checkpoint,
    )


def _last_version(checkpoint: str) -> FlowVersion | None:
    """Return the flow version of the last epoch; ``None`` if there is no epoch."""
    storage = CheckpointStorage.open(checkpoint)
    if stored_identity(storage) is None:
        return None
    log = CommitLog.open_read_only(storage)
    return None if log.latest is None else log.version(log.latest.flow)
