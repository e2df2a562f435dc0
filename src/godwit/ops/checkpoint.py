"""`godwit checkpoint`: inspect, verify, copy, edit, unlock and repair a checkpoint, without Spark.

What a verification has to read is counted beforehand from the records, which are small; if they
are damaged the total is unknown, and progress goes without it.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeAlias
from uuid import uuid4

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from godwit.checkpoint.collection import CheckpointSummary, inspect
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.epochs import keep_epoch, release_epoch, resolve_epoch, take_back
from godwit.checkpoint.journal import read_tail
from godwit.checkpoint.ownership import acquire_lease, break_lease, lease_owner
from godwit.checkpoint.records import padded
from godwit.checkpoint.repair import execute_repair, plan_log_repair
from godwit.checkpoint.spark_log import keep_offsets
from godwit.checkpoint.storage import CheckpointStorage
from godwit.columns.python_values import rows_as_tuples
from godwit.connect.files.directory import describe_position
from godwit.model.errors import GodwitError
from godwit.model.events import event_from_dict
from godwit.model.text import counted, human_bytes, printable
from godwit.ops.arguments import CHECKPOINT_PATH, opened_checkpoint
from godwit.ops.console import figures_table, tell, wide_console
from godwit.ops.copying import copy_checkpoint
from godwit.ops.edits import drop_operator, keep_position, remove_key, rename_operator
from godwit.ops.targets import TargetReport, check_targets
from godwit.ops.verification import (
    Finding,
    plan_record_repair,
    start_problems,
    verify,
)
from godwit.sinks.carried_files import carry_files

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from godwit.checkpoint.repair import RepairStep
    from godwit.ops.verification import VerificationReport

_Action: TypeAlias = "Callable[[argparse.Namespace], int]"
_JOURNAL_LINES = 20
_POSITION = 120  # characters of a position that are shown
_REPAIR = "Run: godwit checkpoint repair."
_WHEN = (
    "No query may be running on the checkpoint. It takes effect with the next epoch: until a run "
    "commits one, nothing changes."
)


def add_checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit checkpoint`, and its function as ``run``."""
    parser.description = (
        "Inspect, copy or change a checkpoint; changes apply to its next run. `inspect`, "
        "`verify` and `copy` only read it, so a query may be running on it."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(
        name: str, run: _Action, help_: str, description: str, **names: str
    ) -> argparse.ArgumentParser:
        """Add an action with its positional arguments and their help."""
        added: argparse.ArgumentParser = actions.add_parser(
            name, help=help_, description=description
        )
        for argument, about in names.items():
            added.add_argument(argument.lower(), metavar=argument, help=about)
        added.set_defaults(run=run)
        return added

    _add_looks_and_copies(action)
    _add_epochs(action)
    _add_changes(action)


def _add_looks_and_copies(action: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``inspect``, ``verify`` and ``copy``, which are allowed while a query runs."""
    shown = action(
        "inspect",
        _run_inspect,
        "its query, its epochs and its size",
        "Summarize a checkpoint from its records; state is not read. Exit status 0; 2 if there "
        "is no checkpoint.",
        PATH=CHECKPOINT_PATH,
    )
    checked = action(
        "verify",
        _run_verify,
        "check every record, block and reference that the retained epochs need",
        "Read everything that the retained epochs need and check it: checksums, references, "
        "chains, key groups; Spark's log; and whether the targets of sinks on this machine go on "
        "from the checkpoint and have the files of an epoch yet to be delivered. Exit status 0 if "
        "it is whole, 1 if not, 2 if there is not a checkpoint.",
        PATH=CHECKPOINT_PATH,
    )
    for reading in (shown, checked):
        reading.add_argument("--json", action="store_true", help="print JSON instead of tables")
    action(
        "copy",
        _run_copy,
        "a consistent copy, to be resumed as a separate query",
        "Copy a checkpoint as of its last epoch, with Spark's part. A query may be running on it "
        "and is not disturbed. The copy can be started like any checkpoint: it goes on after that "
        "epoch, as a query of its own, which knows nothing of what the other one does afterwards. "
        "Its flow needs targets of its own for its sinks: each query delivers its epochs, and the "
        "copy delivers its last epoch first. Exit status 0; 2 if SRC has no checkpoint, or DST "
        "is not empty.",
        SRC="the checkpoint",
        DST="an empty or new directory, or a URI",
    ).add_argument(
        "--same-query",
        action="store_true",
        help="keep the query's id, for a backup or a move: sinks then know its epochs, and only "
        "one of the two may ever be started again",
    )


def _add_epochs(action: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommands for kept epochs, and for a start from one."""
    action(
        "keep",
        _run_keep,
        "keep an epoch under a name: a savepoint",
        "Keep an epoch under NAME, by default the last one, with all files that it needs, until it "
        "is released: retention and clean-up leave it. flow.start(from_epoch=NAME) starts from it, "
        "and gw.read_state(epoch=...) reads it. A query may be running on the checkpoint. Exit "
        "status 0; 2 if the name is in use or the epoch is not retained.",
        PATH="the checkpoint",
        NAME="letters, digits, '.', '_' and '-', not digits alone",
    ).add_argument("--epoch", type=int, metavar="N", help="a retained epoch; default: the last")
    action(
        "kept",
        _run_kept,
        "list the kept epochs",
        "List the kept epochs with their names. Exit status 0.",
        PATH="the checkpoint",
    )
    action(
        "release",
        _run_release,
        "release a kept epoch",
        "Release a kept epoch; the running or the next query deletes its files. Exit status 0; 2 "
        "if there is no such name.",
        PATH="the checkpoint",
        NAME="name of the kept epoch",
    )
    action(
        "take-back",
        _run_take_back,
        "make an earlier epoch the last one",
        "Make EPOCH the last epoch, as flow.start(from_epoch=...) does: later epochs are taken "
        "back permanently. Targets that have them are rolled back, or refused, by the next start "
        "(on_divergence=). No query may be running on the checkpoint. Exit status 0; 2 if that is "
        "impossible.",
        PATH="the checkpoint",
        EPOCH="number or name of the epoch",
    )


def _add_changes(action: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the subcommands that change the checkpoint for the next run."""
    action(
        "rename",
        _run_rename,
        "move an operator's state to another name",
        "Let the operator NEW of the flow find the state that OLD left, with the rows that wait "
        "for it. Saying formerly='OLD' where the flow builds NEW does the same. " + _WHEN,
        PATH="the checkpoint",
        OLD="name of the operator in the checkpoint",
        NEW="its name in the flow from now on",
    )
    dropped = action(
        "drop",
        _run_drop,
        "drop the state of an operator that the flow no longer has",
        "Drop the state of an operator, and the rows that wait for it. Operators that are "
        "removed from a flow keep their state until then; `inspect` lists them. " + _WHEN,
        PATH="the checkpoint",
        OPERATOR="its name in the checkpoint",
    )
    dropped.add_argument(
        "--reset",
        action="store_true",
        help="drop it even if it was part of the flow in the last run; it then starts empty",
    )
    dropped.add_argument(
        "--key",
        metavar="KEY",
        help="drop only the state of this key, at once: a tuple as in messages, such as "
        "\"('ABC', 1)\"; for a key whose state cannot be read",
    )
    offsets = action(
        "keep-offsets",
        _run_keep_offsets,
        "let a source continue from its position, although it now reads other data",
        "Let the next start take what SOURCE reads then for what it read before, up to the same "
        "offsets: topics or tables of another name that hold the same data. Files are known by "
        "their paths: at another path, all of them are read. No query may be running on the "
        "checkpoint.",
        PATH="the checkpoint",
        SOURCE="the source's name in the flow",
    )
    for edit in (dropped, offsets):
        edit.add_argument(
            "--delivered",
            action="store_true",
            help="confirm that every sink has the rows of the last epoch, although the journal "
            "does not show it; otherwise they would be lost",
        )
    repair = action(
        "repair",
        _run_repair,
        "show the problems that prevent a start, and repair them with --apply",
        "Find what keeps a checkpoint from being resumed: Spark's newest log entries lost, torn or "
        "planned again after a power failure; stray records above the last epoch; a manifest that "
        "is missing; a record that is missing between others. Says what it would do, and which "
        "epochs it would take back; does it with --apply, and keeps what it replaces in "
        "set-aside/. Ends with a trial start, without a row. Exit status 0 if the checkpoint can "
        "be started, 1 if it cannot as it is, 2 if there is not a checkpoint.",
        PATH="the checkpoint; no query may run on it",
    )
    repair.add_argument("--apply", action="store_true", help="do it")
    repair.add_argument(
        "--back-to",
        type=int,
        metavar="EPOCH",
        help="give up the epoch after EPOCH, whose commit record is the last one and is damaged; "
        "targets have its output already",
    )
    action(
        "unlock",
        _run_unlock,
        "show the query that holds the checkpoint, and release it",
        "Show the query that holds the checkpoint. With --force, release it: only if that "
        "query's process is certainly dead. Exit status 0; 1 if it is held and not released.",
        PATH="the checkpoint",
    ).add_argument("--force", action="store_true", help="release it from its owner")


def _run_keep(args: argparse.Namespace) -> int:
    """Keep an epoch under a name; return the exit status."""
    kept_epoch = keep_epoch(opened_checkpoint(args.path), args.name, args.epoch)
    _print_safely(f"{args.path}: epoch {kept_epoch.epoch} is kept as {kept_epoch.name}")
    return 0


def _run_kept(args: argparse.Namespace) -> int:
    """Print the kept epochs; return the exit status."""
    epochs_by_name = CommitLog.open_read_only(opened_checkpoint(args.path)).kept_epochs()
    for name, kept_epoch in epochs_by_name.items():
        when = datetime.fromtimestamp(kept_epoch.at_s, UTC).isoformat(timespec="seconds")
        _print_safely(f"{name}: epoch {kept_epoch.epoch}, kept since {when}")
    if not epochs_by_name:
        _print_safely(f"{args.path}: no epoch is kept")
    return 0


def _run_release(args: argparse.Namespace) -> int:
    """Release a kept epoch; return the exit status."""
    released_epoch = release_epoch(opened_checkpoint(args.path), args.name)
    _print_safely(
        f"{args.path}: epoch {released_epoch.epoch} is no longer kept as {released_epoch.name}"
    )
    return 0


def _run_take_back(args: argparse.Namespace) -> int:
    """Make an earlier epoch the last one; return the exit status."""
    storage = opened_checkpoint(args.path)
    requested = int(args.epoch) if args.epoch.isdecimal() else args.epoch
    lease = acquire_lease(storage, "godwit checkpoint take-back")
    try:
        take_back(storage, None, "take-back")
        epoch = resolve_epoch(CommitLog.open_read_only(storage), requested)
        taken_back = take_back(storage, requested, "take-back", repeat=True)
    finally:
        lease.release()
    if taken_back is None or taken_back.last == epoch:
        _print_safely(f"{args.path}: epoch {epoch} is already the last one")
        return 0
    _print_safely(
        f"{args.path}: epochs {epoch + 1} to {taken_back.last} are taken back; pass "
        "on_divergence= to the next start for targets that have them"
    )
    return 0


def _run_inspect(args: argparse.Namespace) -> int:
    """Print the summary of the checkpoint ``args.path``; return the exit status."""
    storage = opened_checkpoint(args.path)
    summary = inspect(storage)
    journal = read_tail(storage, _JOURNAL_LINES)
    if args.json:
        print(json.dumps({**_summary_json(summary), "journal": journal}, indent=2))
        return 0
    console = wide_console()
    identity = summary.identity
    epochs = "none" if summary.epochs is None else f"{summary.epochs[0]} to {summary.epochs[1]}"
    head = _label_table(
        [
            ("flow", identity.name),
            ("query", identity.query_id),
            ("last run", summary.run_id or "none"),
            ("key groups", str(summary.num_key_groups)),
            ("retained epochs", epochs),
            *([("physical plan", _plan_text(summary))] if summary.components else []),
            *(
                (f"source {name}", f"{reads}, read {_position_text(position)}")
                for name, (reads, position) in summary.positions.items()
            ),
            *((f"kept as {name}", f"epoch {epoch}") for name, epoch in summary.kept_epochs.items()),
            *(("with the next epoch", change) for change in summary.pending),
            ("files", f"{summary.files} ({human_bytes(summary.file_bytes)})"),
            (
                "to be collected",
                f"{summary.unneeded_files} ({human_bytes(summary.unneeded_bytes)})",
            ),
        ]
    )
    console.print(head)
    if summary.states:
        console.print(_table_of_states(summary))
    for entry in journal:
        line = _line_of(entry)
        if line:
            tell(console, line)
    return 0


def _position_text(position: Any) -> str:
    """Return a source's position in one line: files in words, others as JSON, shortened."""
    shown = describe_position(position)
    if shown is not position:
        num_files = counted(shown["files"], "file")
        return f"{num_files} whole, {shown['reading']}" if "reading" in shown else num_files
    text = _position_json(position)
    if len(text) > _POSITION:
        text = f"{text[:_POSITION]}… ({human_bytes(len(text))})"
    return f"up to {text}"


def _position_json(position: Any) -> str:
    """Return a source's position as JSON."""
    return msgspec.json.encode(position).decode()


def _plan_text(summary: CheckpointSummary) -> str:
    """Return the physical plan as text: its identifier, and components of several operators."""
    shared = [
        f"{name} = {', '.join(operators)}"
        for name, operators in summary.components.items()
        if operators != (name,)
    ]
    text = "; ".join(shared) or "each operator is a component of its own"
    return f"{summary.plan}: {text}"


def _line_of(entry: dict[str, Any]) -> str:
    """Return a journal entry as one line of text; empty unless it is a readable event."""
    if not isinstance(entry.get("event"), dict):
        return ""
    try:
        event = event_from_dict(entry["event"])
        time_text = datetime.fromtimestamp(event.at_s, UTC).isoformat(timespec="milliseconds")
        return f"{time_text} {event.describe()}"
    except (GodwitError, AttributeError, OverflowError, OSError, TypeError, ValueError):
        return ""  # of another version, or not ours


def _table_of_states(summary: CheckpointSummary) -> Table:
    """Return a table of the checkpoint's states."""
    head = (
        *("operator", "state", "key groups", "snapshot rows", "snapshots", "changelog"),
        *("segments: mean", "most", "waiting"),
    )
    rows = [
        (
            state.operator + (" (removed)" if state.removed else ""),
            state.state,
            str(state.key_groups),
            f"{state.snapshot_rows:,}",
            human_bytes(state.snapshot_bytes),
            human_bytes(state.changelog_bytes),
            f"{state.mean_segments:.1f}",
            str(state.max_segments),
            str(len(state.waiting)),
        )
        for state in summary.states
    ]
    return figures_table(head, rows, texts=2, title="state after the last epoch")


def _summary_json(summary: CheckpointSummary) -> dict[str, Any]:
    """Return the summary of a checkpoint as plain values for JSON."""
    values, identity = asdict(summary), summary.identity
    del values["identity"], values["positions"]
    return {
        "flow": identity.name,
        "query_id": identity.query_id,
        "num_key_groups": values.pop("num_key_groups"),
        "sources": {
            name: {
                "reads": reads,
                "position": json.loads(_position_json(describe_position(position))),
            }
            for name, (reads, position) in summary.positions.items()
        },
        **values,
    }


def _run_verify(args: argparse.Namespace) -> int:
    """Verify the checkpoint ``args.path`` and print its damage; return the exit status."""
    storage = opened_checkpoint(args.path)
    if args.json:
        report, targets = _with_surroundings(storage, verify(storage))
        values = asdict(report) | {"ok": report.ok, "targets": asdict(targets)}
        print(json.dumps(values, indent=2))
    else:
        # Progress goes to standard error, since the report may be piped on.
        with VerificationDisplay(Console(stderr=True, highlight=False)) as display:
            report = verify_watched(storage, display.begin, display.advance)
        report, targets = _with_surroundings(storage, report)
        _print_verification(args.path, report, targets)
    return 0 if report.ok else 1


def _with_surroundings(
    storage: CheckpointStorage, report: VerificationReport
) -> tuple[VerificationReport, TargetReport]:
    """Return a report with findings about Spark's log added, and the report on sinks' targets."""
    try:
        targets = check_targets(storage)
        findings = (*_log_findings(storage), *targets.findings)
    except GodwitError:  # the checkpoint itself cannot be opened, and the report says why
        return report, TargetReport(findings=(), refused=(), unseen=())
    return replace(report, findings=tuple(sorted({*report.findings, *findings}))), targets


def _log_findings(storage: CheckpointStorage) -> tuple[Finding, ...]:
    """Return the contradictions between Spark's log and the commit records."""
    while True:
        latest = CommitLog.open_read_only(storage).latest_epoch
        steps = plan_log_repair(storage, plan_record_repair(storage).records)
        if not steps or CommitLog.open_read_only(storage).latest_epoch == latest:
            return tuple(
                Finding(file=step.path, problem=step.problem, remedy=_REPAIR) for step in steps
            )


def _print_verification(path: str, report: VerificationReport, targets: TargetReport) -> None:
    """Print the findings of a verification."""
    console = wide_console()
    checked = (
        f"{report.records} records and {report.blocks} blocks ({human_bytes(report.checked_bytes)})"
    )
    if report.collected:
        checked += f"; {counted(report.collected, 'file')} collected by the running query meanwhile"
    epochs_text = (
        "no epoch" if report.epochs is None else f"epochs {report.epochs[0]} to {report.epochs[1]}"
    )
    if targets.unseen:
        checked += f"; targets not checked: {', '.join(targets.unseen)}"
    for refused in targets.refused:
        tell(console, f"A start is refused: {refused.problem} {refused.remedy}")
    problems = "whole" if report.ok else counted(len(report.findings), "problem")
    tell(console, f"{path}: {problems}; {epochs_text}; checked {checked}")
    if report.ok:
        return
    table = Table("file", "problem", "what to do", show_lines=True)
    for finding in report.findings:
        table.add_row(
            *(Text(printable(cell)) for cell in (finding.file, finding.problem, finding.remedy))
        )
    console.print(table)


def _label_table(rows: Sequence[tuple[str, str]]) -> Table:
    """Return a table of labels and values."""
    grid = Table.grid(padding=(0, 2))
    for label, value in rows:
        grid.add_row(Text(label, style="bold"), Text(printable(value)))
    return grid


def _print_safely(text: str, file: TextIO | None = None) -> None:
    """Print a text without control characters."""
    print(printable(text), file=file)


def _run_copy(args: argparse.Namespace) -> int:
    """Copy the checkpoint ``args.src`` to ``args.dst``; return the exit status."""
    target, source = CheckpointStorage.open(args.dst), CheckpointStorage.open(args.src)
    report = copy_checkpoint(source, target, same_query=args.same_query)
    latest = CommitLog.open_read_only(target).latest
    for not_carried in carry_files(target, () if latest is None else latest.outputs, source=source):
        _print_safely(
            f"Not copied: {not_carried}. Keep them until the copy has been started and has "
            "delivered them.",
            file=sys.stderr,
        )
    position_text = "before its first epoch" if report.epoch < 0 else f"as of epoch {report.epoch}"
    _print_safely(
        f"{args.dst}: copied {position_text}, {counted(report.files, 'file')} "
        f"({human_bytes(report.file_bytes)}), query {report.query_id}"
    )
    return 0


def _run_rename(args: argparse.Namespace) -> int:
    """Rename an operator's state in a checkpoint; return the exit status."""
    with _locked_log(args.path) as log:
        rename_operator(log, args.old, args.new)
    _print_safely(
        f"{args.path}: from the next epoch on, the state of {args.old} is that of {args.new}"
    )
    return 0


def _run_drop(args: argparse.Namespace) -> int:
    """Drop the state of an operator or of one key; return the exit status."""
    if args.key is not None:
        return _drop_key(args)
    with _locked_log(args.path) as log:
        drop_operator(log, args.operator, reset=args.reset)
    _print_safely(f"{args.path}: from the next epoch on, the state of {args.operator} is dropped")
    return 0


def _run_keep_offsets(args: argparse.Namespace) -> int:
    """Allow a source that now reads other data to keep its offsets; return the exit status."""
    with _locked_log(args.path) as log:
        latest = None if log.latest is None else log.latest.last_batch
        of_spark = latest is not None and latest.of_spark and args.source not in latest.identities
        if latest is not None and latest.identities and not of_spark:
            keep_position(_log_for_change(log, "keep"), args.source, delivered=args.delivered)
        else:
            keep_offsets(log.storage, args.source)
    _print_safely(
        f"{args.path}: the next start continues from where {args.source} was "
        "read, whatever it reads then"
    )
    return 0


def _drop_key(args: argparse.Namespace) -> int:
    """Drop the state of the key in ``args``, given as its repr; return the exit status."""

    def is_key(keys: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        return np.array([repr(key) == args.key for key in rows_as_tuples(keys)], np.bool_)

    with _locked_log(args.path) as log:
        writing = _log_for_change(log, "drop")
        counts = remove_key(writing, args.operator, is_key, key=args.key, delivered=args.delivered)
    for state, count in counts.items():
        _print_safely(
            f"{args.path}: {state} has no state of key {args.key} "
            f"any more ({counted(count, 'row')} removed); committed as epoch "
            f"{writing.latest_epoch}"
        )
    return 0


def _log_for_change(log: CommitLog, does: str) -> CommitLog:
    """Return a commit log opened for one more epoch, which changes the checkpoint.

    `does`: name of the command, for the id of the run.
    """
    return CommitLog.create_or_open(
        log.storage,
        log.identity,
        f"{does}-{uuid4().hex[:8]}",
        retain_epochs=len(log.retained_epochs) + 1,
    )


@contextmanager
def _locked_log(path: str) -> Iterator[CommitLog]:
    """Context with a checkpoint's commit log, under the lease, so that no query can start."""
    storage = CheckpointStorage.open(path)
    CommitLog.open_read_only(storage)  # before a lease would create the directory
    lease = acquire_lease(storage, f"edit-{uuid4().hex[:8]}")
    try:
        yield CommitLog.open_read_only(storage)
    finally:
        lease.release()


def _run_unlock(args: argparse.Namespace) -> int:
    """Remove the lease of a checkpoint whose query is dead; return the exit status."""
    storage = CheckpointStorage.open(args.path)
    owner = lease_owner(storage)
    if owner is None:
        _print_safely(f"{args.path}: no query holds it")
        return 0
    if not args.force:
        _print_safely(f"{args.path}: held by {owner}; --force releases it")
        return 1
    break_lease(storage)
    _print_safely(f"{args.path}: released from {owner}")
    return 0


_DOES = {
    "write": "put back the committed rows",
    "set aside": "move it to set-aside/",
    "none": "nothing: restore it from a copy of the checkpoint",
}


def _run_repair(args: argparse.Namespace) -> int:
    """Repair a checkpoint and Spark's log, or print the plan; return the exit status."""
    storage = CheckpointStorage.open(args.path)
    steps, taken_back = _repair_plan(storage, args.back_to)  # before a lease would make a directory
    if not args.apply:
        _print_repair(args.path, steps, taken_back, applied=False)
        return 1 if steps else _print_start_check(args.path, storage)
    lease = acquire_lease(storage, "godwit checkpoint repair")
    try:
        steps, taken_back = _repair_plan(storage, args.back_to)
        execute_repair(storage, steps)
        _print_repair(args.path, steps, taken_back, applied=True)
        remaining_steps, _ = _repair_plan(storage)
        if remaining_steps:
            _print_safely("Left to do:")
            _print_repair(args.path, remaining_steps, (), applied=False)
            return 1
        return _print_start_check(args.path, storage)
    finally:
        lease.release()


def _repair_plan(
    storage: CheckpointStorage, back_to: int | None = None
) -> tuple[tuple[RepairStep, ...], tuple[int, ...]]:
    """Return the steps of a repair, and the epochs that it removes; `back_to`: see the option."""
    records = plan_record_repair(storage, back_to)
    steps = (*records.steps, *plan_log_repair(storage, records.records))
    return steps, records.taken_back


def _print_start_check(path: str, storage: CheckpointStorage) -> int:
    """Print whether a query can start on the checkpoint; return the exit status."""
    problems = start_problems(storage)
    for problem in problems:
        _print_safely(f"{path}: cannot be started: {problem.file}")
        _print_safely(f"  {problem.problem} {problem.remedy}")
    if problems:
        return 1
    refused = check_targets(storage).refused
    how = ", if on_divergence= says how its targets continue" if refused else ""
    _print_safely(f"{path}: can be started{how}")
    for target in refused:
        _print_safely(f"  {target.problem} {target.remedy}")
    return 0


def _print_repair(
    path: str, steps: Sequence[RepairStep], taken_back: Sequence[int], *, applied: bool
) -> None:
    """Print the steps of a repair, planned or `applied`; `taken_back`: epochs that it removes."""
    if not steps:
        _print_safely(f"{path}: nothing to repair")
        return
    repairs = [step for step in steps if step.action != "none"]
    if repairs:
        outcome = "done" if applied else "found"
        _print_safely(f"{path}: {counted(len(repairs), 'step')} {outcome}")
    else:
        _print_safely(
            f"{path}: nothing was done, since nothing can be repaired. Restore the files from a "
            "copy (`godwit checkpoint copy` makes one while a query runs); if only the last "
            "commit record is damaged, give up its epoch by --back-to and the previous epoch; or "
            "start with a new checkpoint."
        )
    for step in steps:
        _print_safely(f"  {step.path}: {step.problem}")
        _print_safely(f"    -> {_DOES[step.action]}")
    if taken_back:
        first, last = taken_back[0], taken_back[-1]
        epochs = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        _print_safely(
            f"This takes back {epochs}, whose output was delivered. Spark reads their rows again, "
            f"and sinks refuse the checkpoint until their targets are rolled back to epoch "
            f"{first - 1}. A copy of the missing files is better."
        )
    if not applied and any(step.action != "none" for step in steps):
        _print_safely("Nothing was changed; use --apply to do it.")


_LINE_EVERY_S = 5.0


def verify_watched(
    storage: CheckpointStorage,
    on_totals: Callable[[int | None, int | None], None],
    on_block: Callable[[int], None],
) -> VerificationReport:
    """Verify a checkpoint, with callbacks for its progress.

    `on_totals`: called with the number of blocks to check, and their bytes; ``None`` if that is
    unknown. `on_block`: called with the bytes of each block read.
    """
    on_totals(*_blocks_to_read(storage))
    return verify(storage, on_block)


class VerificationDisplay:
    """Progress of a verification: a bar on a terminal, else lines.

    Elsewhere a line every few seconds, so that a log tells a slow verification from one that hangs.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._progress_bar: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), TimeRemainingColumn())
            self._progress_bar = Progress(
                TextColumn("verifying"), BarColumn(), *columns, console=console, transient=True
            )
            self._task = self._progress_bar.add_task("reading records", total=None)
        self._last_shown_s = clock()
        self.begin(None, None)

    def __enter__(self) -> Self:
        if self._progress_bar is not None:
            self._progress_bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress_bar is not None:
            self._progress_bar.stop()

    def begin(self, blocks: int | None, size_bytes: int | None) -> None:
        """Set the number of blocks to check, and their bytes; ``None`` if unknown."""
        self._of_blocks = "" if blocks is None else f" of {blocks}"
        self._of_bytes = "" if size_bytes is None else f" of {human_bytes(size_bytes)}"
        self._blocks = self._bytes = 0
        if self._progress_bar is not None:
            self._progress_bar.update(self._task, total=size_bytes)

    def advance(self, size_bytes: int) -> None:
        """Count a block that was checked, and update the display."""
        self._blocks += 1
        self._bytes += size_bytes
        text = f"blocks {self._blocks}{self._of_blocks}, {human_bytes(self._bytes)}{self._of_bytes}"
        if self._progress_bar is not None:
            self._progress_bar.update(self._task, advance=size_bytes, description=text)
        elif (now_s := self._clock()) - self._last_shown_s >= _LINE_EVERY_S:
            self._last_shown_s = now_s
            tell(self._console, f"verified {text}")


def _blocks_to_read(storage: CheckpointStorage) -> tuple[int | None, int | None]:
    """Return the number of blocks that the retained epochs need, and their bytes."""
    try:
        log = CommitLog.open_read_only(storage)
        retained = log.retained_epochs
        blocks = set(log.replay_chains(retained.start).blocks()) if retained else set()
        for epoch in retained:
            blocks.update(log.load_record(epoch).blocks())
    except GodwitError:  # verification reports it
        return None, None
    sizes = [padded(block.length) for block in blocks if block.file and not block.data]
    return len(sizes), sum(sizes)
