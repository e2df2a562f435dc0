"""Changes to a stopped checkpoint that its next epoch makes count.

What is committed never changes, and only an epoch's record can say that something is different.  So
renaming or dropping state from outside leaves an *edit* beside the flow version that it is about;
the next run takes it up into the flow version that it writes.  Until that run commits an epoch,
nothing has changed, and whatever else was read before can still be read.  What becomes of an
operator becomes of its parts too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from godwit.checkpoint.flow_changes import edited
from godwit.checkpoint.framing import encode_record
from godwit.checkpoint.paths import edit_path
from godwit.checkpoint.records import EditRecord
from godwit.model.errors import CheckpointError

if TYPE_CHECKING:
    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.evolution import FlowVersion

__all__ = ["drop_operator", "rename_operator"]


def rename_operator(log: CommitLog, old: str, new: str) -> None:
    """Let the next epoch find the state of `old` under `new`."""
    version = _current(log)
    _insist_on(log, version, old)
    renamed = {name: new + name.removeprefix(old) for name in (old, *version.parts_of(old))}
    taken = next((name for name in renamed.values() if version.operator(name) is not None), "")
    if taken or not new:
        raise CheckpointError(
            f"The checkpoint {log.storage.uri!r} has an operator {taken!r} already."
            if new
            else "The new name is empty.",
            remedy="Choose a name that it does not have; drop that operator first if its state is "
            "no longer needed.",
            operator=taken,
        )
    _write(log, EditRecord(flow=log.flow, renamed=renamed))


def drop_operator(log: CommitLog, operator: str, *, reset: bool = False) -> None:
    """Let the next epoch forget the state of an operator, and the rows that wait for it."""
    version = _current(log)
    _insist_on(log, version, operator)
    if operator in version.operators and not reset:
        raise CheckpointError(
            f"Operator {operator!r} was part of the flow when it ran last, and would start empty "
            "if it still is.",
            remedy="Give --reset if that is what you want.",
            operator=operator,
        )
    _write(log, EditRecord(flow=log.flow, dropped=(operator, *version.parts_of(operator))))


def _current(log: CommitLog) -> FlowVersion:
    if log.latest is None:
        raise CheckpointError(
            f"No epoch is committed yet in the checkpoint {log.storage.uri!r}, so it has no "
            "operators.",
            remedy="Change the flow; a start that committed nothing has claimed nothing.",
        )
    return edited(log.version(log.flow), log.edits())


def _insist_on(log: CommitLog, version: FlowVersion, operator: str) -> None:
    found = version.operator(operator)
    if found is not None and found.part_of:
        raise CheckpointError(
            f"Operator {operator!r} is a part of {found.part_of!r}.",
            remedy=f"Name {found.part_of!r}: its parts go the same way.",
            operator=operator,
        )
    if found is None:
        every = {**version.operators, **version.kept}
        names = sorted(name for name, of in every.items() if not of.part_of)
        raise CheckpointError(
            f"The checkpoint {log.storage.uri!r} has no operator {operator!r}.",
            remedy=f"Its operators are {', '.join(names) or '(none)'}.",
            operator=operator,
        )


def _write(log: CommitLog, edit: EditRecord) -> None:
    number = max(log.edit_numbers(), default=-1) + 1
    edit = msgspec.structs.replace(edit, number=number)
    log.storage.create_exclusive(edit_path(number), encode_record(edit))
