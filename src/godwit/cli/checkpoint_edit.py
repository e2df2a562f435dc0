"""`godwit checkpoint rename`, `drop`, `keep-offsets`: what the next run is to take for what."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.edits import drop_operator, remove_key, rename_operator
from godwit.checkpoint.ownership import acquire_lease
from godwit.checkpoint.spark_log import keep_offsets
from godwit.checkpoint.storage import CheckpointStorage
from godwit.columns.python_values import rows_as_tuples
from godwit.model.wording import counted, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    import numpy.typing as npt
    import pyarrow as pa

__all__ = ["add_edit_actions"]

_WHEN = (
    "No query may be running on the checkpoint. It takes effect with the next epoch: until a run "
    "has committed one, nothing has changed."
)


def add_edit_actions(actions: Any) -> None:
    """Add ``rename``, ``drop`` and ``keep-offsets`` to the actions of ``checkpoint``."""
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
    dropped.add_argument(
        "--key",
        metavar="KEY",
        help="forget the state of this key alone, at once: a tuple as messages show it, such as "
        "\"('ABC', 1)\"; the way out where one key's state cannot be read",
    )
    dropped.set_defaults(run=_drop)
    kept = actions.add_parser(
        "keep-offsets",
        help="let a source go on from where it was read, though it reads something else now",
        description="Let the next start take what SOURCE reads then for what it read before, up to "
        "the same offsets: topics or tables of another name that hold the same data. Files are "
        "known by their paths: at another path, all of them are read. No query may be running on "
        "the checkpoint.",
    )
    kept.add_argument("path", metavar="PATH", help="the checkpoint")
    kept.add_argument("source", metavar="SOURCE", help="the source's name in the flow")
    kept.set_defaults(run=_keep_offsets)


def _rename(args: argparse.Namespace) -> int:
    with _alone(args.path) as log:
        rename_operator(log, args.old, args.new)
    print(
        f"{printable(args.path)}: from the next epoch on, the state of {printable(args.old)} is "
        f"that of {printable(args.new)}"
    )
    return 0


def _drop(args: argparse.Namespace) -> int:
    if args.key is not None:
        return _drop_key(args)
    with _alone(args.path) as log:
        drop_operator(log, args.operator, reset=args.reset)
    print(
        f"{printable(args.path)}: from the next epoch on, the state of {printable(args.operator)} "
        "is gone"
    )
    return 0


def _keep_offsets(args: argparse.Namespace) -> int:
    with _alone(args.path) as log:
        keep_offsets(log.storage, args.source)
    print(
        f"{printable(args.path)}: the next start goes on from where {printable(args.source)} was "
        "read, whatever it reads then"
    )
    return 0


def _drop_key(args: argparse.Namespace) -> int:
    def is_key(keys: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        return np.array([repr(key) == args.key for key in rows_as_tuples(keys)], np.bool_)

    with _alone(args.path) as log:
        writing = CommitLog.create_or_open(
            log.storage,
            log.identity,
            f"drop-{uuid4().hex[:8]}",
            retain_epochs=len(log.retained_epochs) + 1,
        )
        counts = remove_key(writing, args.operator, is_key, key=args.key)
    for state, count in counts.items():
        print(
            f"{printable(args.path)}: {printable(state)} has no state of key {printable(args.key)} "
            f"any more ({counted(count, 'row')} removed); committed as epoch "
            f"{writing.latest_epoch}"
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
