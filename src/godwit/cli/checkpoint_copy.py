"""`godwit checkpoint copy`: a consistent fork or backup of a checkpoint."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.copying import copy_checkpoint
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.wording import counted, human_bytes, printable
from godwit.sinks.carried_files import carry_files

if TYPE_CHECKING:
    import argparse

__all__ = ["add_copy_action"]


def add_copy_action(actions: Any) -> None:
    """Add ``copy`` to the actions of ``checkpoint``."""
    parser = actions.add_parser(
        "copy",
        help="a consistent copy, to be resumed as a query of its own",
        description="Copy a checkpoint as of its last epoch, with Spark's part. A query may be "
        "running on it and is not disturbed. The copy can be started like any checkpoint: it goes "
        "on after that epoch, as a query of its own, which knows nothing of what the other one "
        "does afterwards. Its flow needs targets of its own for its sinks: each query delivers "
        "its epochs, and the copy delivers its last epoch first. Exit status 0; 2 if SRC is no "
        "checkpoint or there is something at DST.",
    )
    parser.add_argument("source", metavar="SRC", help="the checkpoint")
    parser.add_argument("target", metavar="DST", help="an empty or new directory, or a URI")
    parser.add_argument(
        "--same-query",
        action="store_true",
        help="keep the query's id, for a backup or a move: sinks then know its epochs, and only "
        "one of the two may ever be started again",
    )
    parser.set_defaults(run=_copy)


def _copy(args: argparse.Namespace) -> int:
    target = CheckpointStorage.open(args.target)
    source = CheckpointStorage.open(args.source)
    made = copy_checkpoint(source, target, same_query=args.same_query)
    latest = CommitLog.open_read_only(target).latest
    for left in carry_files(target, () if latest is None else latest.outputs, source=source):
        print(
            f"Not carried: {printable(left)}. Leave them there until the copy has been started "
            "and has delivered them.",
            file=sys.stderr,
        )
    upto = "before its first epoch" if made.epoch < 0 else f"as of epoch {made.epoch}"
    print(
        f"{printable(args.target)}: copied {upto}, {counted(made.files, 'file')} "
        f"({human_bytes(made.file_bytes)}), query {made.query_id}"
    )
    return 0
