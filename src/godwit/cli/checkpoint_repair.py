"""`godwit checkpoint repair`: say what keeps a checkpoint from being resumed, and mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.model.wording import counted, printable
from godwit.spark.log_repair import plan_log_repair
from godwit.state.lease import acquire_lease
from godwit.state.repair import carry_out, plan_record_repair
from godwit.state.storage import CheckpointStorage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from godwit.state.repair import RepairStep

__all__ = ["add_repair_action"]

_DOES = {
    "write": "put back what was committed",
    "set aside": "move it to set-aside/",
    "none": "nothing: restore it from a copy of the checkpoint",
}


def add_repair_action(actions: Any) -> None:
    """Add ``repair`` to the actions of ``checkpoint``."""
    parser = actions.add_parser(
        "repair",
        help="say what keeps it from being resumed, and mend it with --apply",
        description="Find what keeps a checkpoint from being resumed: Spark's newest log entries "
        "lost, torn or planned anew after a power failure; stray records above the last epoch; a "
        "manifest that is missing. Says what it would do; does it with --apply, and keeps what it "
        "replaces in set-aside/. Exit status 0 if nothing is left to do, 1 if something is, 2 if "
        "it is no checkpoint.",
    )
    parser.add_argument("path", metavar="PATH", help="the checkpoint; no query may run on it")
    parser.add_argument("--apply", action="store_true", help="do it")
    parser.set_defaults(run=_repair)


def _repair(args: argparse.Namespace) -> int:
    storage = CheckpointStorage.open(args.path)
    steps = _plan(storage)  # before a lease would create the directory
    if not args.apply:
        _tell(args.path, steps, done=False)
        return 1 if steps else 0
    lease = acquire_lease(storage, "godwit checkpoint repair")
    try:
        steps = _plan(storage)
        carry_out(storage, steps)
        _tell(args.path, steps, done=True)
        left = _plan(storage)
        if left:
            print("Left to do:")
            _tell(args.path, left, done=False)
        return 1 if left else 0
    finally:
        lease.release()


def _plan(storage: CheckpointStorage) -> tuple[RepairStep, ...]:
    records = plan_record_repair(storage)
    return (*records.steps, *plan_log_repair(storage, records.records))


def _tell(path: str, steps: Sequence[RepairStep], *, done: bool) -> None:
    if not steps:
        print(f"{printable(path)}: nothing to repair")
        return
    what = "done" if done else "found"
    print(f"{printable(path)}: {counted(len(steps), 'step')} {what}")
    for step in steps:
        print(f"  {printable(step.path)}: {printable(step.problem)}")
        print(f"    -> {_DOES[step.action]}")
    if not done and any(step.action != "none" for step in steps):
        print("Nothing was changed; --apply does it.")
