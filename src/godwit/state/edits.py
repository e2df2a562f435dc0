"""Changes to a stopped checkpoint that its next epoch makes count.

What is committed never changes, and only an epoch's record can say that something is different.  So
renaming or dropping state from outside leaves an *edit* beside the flow version that it is about;
the next run takes it up into the flow version that it writes.  Until that run commits an epoch,
nothing has changed, and whatever else was read before can still be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from godwit.model.errors import CheckpointError
from godwit.state.flow_changes import edited
from godwit.state.framing import encode_record
from godwit.state.paths import edit_path
from godwit.state.records import EditRecord

if TYPE_CHECKING:
    from godwit.state.commit_log import CommitLog
    from godwit.state.evolution import FlowVersion

__all__ = ["drop_operator", "rename_operator"]


def rename_operator(log: CommitLog, old: str, new: str) -> None:
    """Let the next epoch find the state of `old` under `new`.

    Raises
    ------
    CheckpointError
        If there is no operator `old`, or there is one called `new`.
    """
    version = _current(log)
    _insist_on(log, version, old)
    if version.operator(new) is not None or not new:
        raise CheckpointError(
            f"The checkpoint {log.storage.uri!r} has an operator {new!r} already."
            if new
            else "The new name is empty.",
            remedy="Choose a name that it does not have; drop that operator first if its state is "
            "no longer needed.",
            operator=new,
        )
    _write(log, EditRecord(flow=log.flow, renamed={old: new}))


def drop_operator(log: CommitLog, operator: str, *, reset: bool = False) -> None:
    """Let the next epoch forget the state of an operator, and the rows that wait for it.

    Parameters
    ----------
    log
        The checkpoint.
    operator
        Its name.
    reset
        Do so too if the operator was part of the flow when it ran last.

    Raises
    ------
    CheckpointError
        If there is no such operator, or it is part of the flow and `reset` is not given.
    """
    version = _current(log)
    _insist_on(log, version, operator)
    if operator in version.operators and not reset:
        raise CheckpointError(
            f"Operator {operator!r} was part of the flow when it ran last, and would start empty "
            "if it still is.",
            remedy="Give --reset if that is what you want.",
            operator=operator,
        )
    _write(log, EditRecord(flow=log.flow, dropped=(operator,)))


def _current(log: CommitLog) -> FlowVersion:
    if log.latest is None:
        raise CheckpointError(
            f"No epoch is committed yet in the checkpoint {log.storage.uri!r}, so it has no "
            "operators.",
            remedy="Change the flow; a start that committed nothing has claimed nothing.",
        )
    return edited(log.version(log.flow), log.edits())


def _insist_on(log: CommitLog, version: FlowVersion, operator: str) -> None:
    if version.operator(operator) is None:
        names = sorted({**version.operators, **version.kept})
        raise CheckpointError(
            f"The checkpoint {log.storage.uri!r} has no operator {operator!r}.",
            remedy=f"Its operators are {', '.join(names) or '(none)'}.",
            operator=operator,
        )


def _write(log: CommitLog, edit: EditRecord) -> None:
    number = max(log.edit_numbers(), default=-1) + 1
    edit = msgspec.structs.replace(edit, number=number)
    log.storage.create_exclusive(edit_path(number), encode_record(edit))
