"""`godwit checkpoint rename` and `drop`: what becomes of an operator's state in the next run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from godwit.model.wording import printable
from godwit.state.commit_log import CommitLog
from godwit.state.edits import drop_operator, rename_operator
from godwit.state.lease import acquire_lease
from godwit.state.storage import CheckpointStorage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

__all__ = ["add_edit_actions"]

_WHEN = (
    "No query may be running on the checkpoint. It takes effect with the next epoch: until a run "
    "has committed one, nothing has changed."
)


def add_edit_actions(actions: Any) -> None:
    """Add ``rename`` and ``drop`` to the actions of ``checkpoint``."""
    renamed = actions.add_parser(
        "rename",
        help="let an operator of another name find the state of one",
        description="Let the operator NEW of the flow find the state that OLD left, with the rows "
        "that wait for it. Saying formerly='OLD' where the flow builds NEW does the same. " + _WHEN,
    )
    renamed.add_argument("path", metavar="PATH", help="the checkpoint")
    renamed.add_argument("old", metavar="OLD", help="name of the operator in the checkpoint")
    renamed.add_argument("new", metavar="NEW", help="its name in the flow from now on")
    renamed.set_defaults(run=_rename)
    dropped = actions.add_parser(
        "drop",
        help="forget the state of an operator that the flow no longer has",
        description="Forget the state of an operator, and the rows that wait for it. Operators "
        "that are removed from a flow keep their state until then; `inspect` lists them. " + _WHEN,
    )
    dropped.add_argument("path", metavar="PATH", help="the checkpoint")
    dropped.add_argument("operator", metavar="OPERATOR", help="its name in the checkpoint")
    dropped.add_argument(
        "--reset",
        action="store_true",
        help="also if it was part of the flow when that ran last; it starts empty then",
    )
    dropped.set_defaults(run=_drop)


def _rename(args: argparse.Namespace) -> int:
    with _alone(args.path) as log:
        rename_operator(log, args.old, args.new)
    print(
        f"{printable(args.path)}: from the next epoch on, the state of {printable(args.old)} is "
        f"that of {printable(args.new)}"
    )
    return 0


def _drop(args: argparse.Namespace) -> int:
    with _alone(args.path) as log:
        drop_operator(log, args.operator, reset=args.reset)
    print(
        f"{printable(args.path)}: from the next epoch on, the state of {printable(args.operator)} "
        "is gone"
    )
    return 0


@contextmanager
def _alone(path: str) -> Iterator[CommitLog]:
    """Open a checkpoint while no query runs on it."""
    storage = CheckpointStorage.open(path)
    CommitLog.open_read_only(storage)  # before a lease would create the directory
    lease = acquire_lease(storage, f"edit-{uuid4().hex[:8]}")
    try:
        yield CommitLog.open_read_only(storage)
    finally:
        lease.release()
