"""`godwit checkpoint unlock`: take the lease on a checkpoint from an owner that is dead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.checkpoint.ownership import break_lease, lease_owner
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.wording import printable

if TYPE_CHECKING:
    import argparse

__all__ = ["add_unlock_action"]


def add_unlock_action(actions: Any) -> None:
    """Add ``unlock`` to the actions of ``checkpoint``."""
    parser = actions.add_parser(
        "unlock",
        help="say which query is running on it, and let another have it",
        description="Say which query holds the checkpoint. With --force, let another have it: "
        "only if that query's process is surely dead. Exit status 0; 1 if it is held and left "
        "alone.",
    )
    parser.add_argument("path", metavar="PATH", help="the checkpoint")
    parser.add_argument("--force", action="store_true", help="take it from its owner")
    parser.set_defaults(run=_unlock)


def _unlock(args: argparse.Namespace) -> int:
    storage = CheckpointStorage.open(args.path)
    owner = lease_owner(storage)
    if owner is None:
        print(f"{printable(args.path)}: no query holds it")
        return 0
    if not args.force:
        print(f"{printable(args.path)}: held by {printable(str(owner))}; --force takes it from it")
        return 1
    break_lease(storage)
    print(f"{printable(args.path)}: taken from {printable(str(owner))}")
    return 0
