"""`godwit checkpoint repair`: say what keeps a checkpoint from being resumed, and mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.checkpoint.ownership import acquire_lease
from godwit.checkpoint.repair import carry_out, plan_record_repair, start_problems
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cluster.spark.run.log_repair import plan_log_repair
from godwit.model.wording import counted, printable
from godwit.sinks.target_check import check_targets

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from godwit.checkpoint.repair import RepairStep

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
        "manifest that is missing; a record that is missing between others. Says what it would "
        "do, and which epochs it would take back; does it with --apply, and keeps what it replaces "
        "in set-aside/. Ends with a trial start, without a row. Exit status 0 if the checkpoint "
        "can be started, 1 if it cannot as it is, 2 if it is no checkpoint.",
    )
    parser.add_argument("path", metavar="PATH", help="the checkpoint; no query may run on it")
    parser.add_argument("--apply", action="store_true", help="do it")
    parser.set_defaults(run=_repair)


def _repair(args: argparse.Namespace) -> int:
    storage = CheckpointStorage.open(args.path)
    steps, taken_back = _plan(storage)  # before a lease would create the directory
    if not args.apply:
        _tell(args.path, steps, taken_back, done=False)
        return 1 if steps else _try(args.path, storage)
    lease = acquire_lease(storage, "godwit checkpoint repair")
    try:
        steps, taken_back = _plan(storage)
        carry_out(storage, steps)
        _tell(args.path, steps, taken_back, done=True)
        left, _ = _plan(storage)
        if left:
            print("Left to do:")
            _tell(args.path, left, (), done=False)
            return 1
        return _try(args.path, storage)
    finally:
        lease.release()


def _plan(storage: CheckpointStorage) -> tuple[tuple[RepairStep, ...], tuple[int, ...]]:
    """Give what is to be done, and the epochs that are taken back by it."""
    records = plan_record_repair(storage)
    steps = (*records.steps, *plan_log_repair(storage, records.records))
    return steps, records.taken_back


def _try(path: str, storage: CheckpointStorage) -> int:
    problems = start_problems(storage)
    for problem in problems:
        print(f"{printable(path)}: cannot be started: {printable(problem.file)}")
        print(f"  {printable(problem.problem)} {printable(problem.remedy)}")
    if problems:
        return 1
    refused = check_targets(storage).refused
    how = ", once it is said how its targets go on: on_divergence=" if refused else ""
    print(f"{printable(path)}: can be started{how}")
    for target in refused:
        print(f"  {printable(target.problem)} {printable(target.remedy)}")
    return 0


def _tell(path: str, steps: Sequence[RepairStep], taken_back: Sequence[int], *, done: bool) -> None:
    if not steps:
        print(f"{printable(path)}: nothing to repair")
        return
    what = "done" if done else "found"
    print(f"{printable(path)}: {counted(len(steps), 'step')} {what}")
    for step in steps:
        print(f"  {printable(step.path)}: {printable(step.problem)}")
        print(f"    -> {_DOES[step.action]}")
    if taken_back:
        first, last = taken_back[0], taken_back[-1]
        epochs = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        print(
            f"This takes back {epochs}, whose output was delivered. Spark reads their rows again, "
            f"and sinks refuse the checkpoint until their targets are rolled back to epoch "
            f"{first - 1}. A copy of what is missing is better."
        )
    if not done and any(step.action != "none" for step in steps):
        print("Nothing was changed; --apply does it.")
