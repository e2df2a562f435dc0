"""`godwit checkpoint`: look into a checkpoint, and check every byte of it, without Spark.

Each further action is a file of its own (``checkpoint_<action>.py``) that adds its parser.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from godwit.checkpoint.collection import CheckpointSummary, inspect
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.journal import read_tail
from godwit.checkpoint.records import IDENTITY
from godwit.checkpoint.repair import plan_record_repair
from godwit.checkpoint.storage import CheckpointStorage
from godwit.checkpoint.verification import Finding, verify
from godwit.cli.checkpoint_copy import add_copy_action
from godwit.cli.checkpoint_edit import add_edit_actions
from godwit.cli.checkpoint_lease import add_unlock_action
from godwit.cli.checkpoint_repair import add_repair_action
from godwit.cli.progress import verify_watched, watcher_on
from godwit.cluster.spark.run.log_repair import plan_log_repair
from godwit.model.errors import CheckpointError, GodwitError
from godwit.model.events import event_from_dict
from godwit.model.wording import counted, human_bytes, printable
from godwit.sinks.target_check import TargetReport, check_targets

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from godwit.checkpoint.verification import VerificationReport

__all__ = ["add_checkpoint_command", "opened_checkpoint"]

_JOURNAL_LINES = 20
_REPAIR = "Run: godwit checkpoint repair."
_PATH = "a path, or a URI that pyarrow.fs opens (s3://, gs://, hdfs://)"


def add_checkpoint_command(subparsers: Any) -> None:
    """Add ``checkpoint`` to the command line; the function to run is left in ``args.run``."""
    parser = subparsers.add_parser(
        "checkpoint",
        help="what is in a checkpoint, whether it is whole; copy it, rename and drop its state",
        description="Look into a checkpoint, copy it, or change what its next run takes up. "
        "`inspect`, `verify` and `copy` only read it, so a query may be running on it.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    shown = actions.add_parser(
        "inspect",
        help="whose it is, what can be read from it, how large it is",
        description="Sum up a checkpoint from its records; state is not read. Exit status 0; 2 if "
        "it is no checkpoint.",
    )
    shown.set_defaults(run=_inspect)
    checked = actions.add_parser(
        "verify",
        help="check every record, block and reference that the retained epochs need",
        description="Read everything that the retained epochs need and check it: checksums, "
        "references, chains, key groups; Spark's log; and whether the targets of sinks on this "
        "machine go on from the checkpoint and have the files of an epoch yet to be delivered. "
        "Exit status 0 if it is whole, 1 if not, 2 if it is no "
        "checkpoint.",
    )
    checked.set_defaults(run=_verify)
    add_copy_action(actions)
    add_edit_actions(actions)
    add_repair_action(actions)
    add_unlock_action(actions)
    for action in (shown, checked):
        action.add_argument("path", metavar="PATH", help=_PATH)
        action.add_argument("--json", action="store_true", help="print JSON instead of tables")


def opened_checkpoint(path: str) -> CheckpointStorage:
    """Open a checkpoint to look at; refuse what is none."""
    storage = CheckpointStorage.open(path)
    if all(entry.path != IDENTITY for entry in storage.list("")):
        raise CheckpointError(
            f"{path!r} is not a checkpoint of Godwit: it has no file {IDENTITY!r}.",
            remedy="Give the directory that was given to flow.start(checkpoint=...).",
            path=path,
        )
    return storage


def _inspect(args: argparse.Namespace) -> int:
    storage = opened_checkpoint(args.path)
    summary = inspect(storage)
    journal = read_tail(storage, _JOURNAL_LINES)
    if args.json:
        print(json.dumps({**_plain(summary), "journal": journal}, indent=2))
        return 0
    console = _wide_console()
    identity = summary.identity
    epochs = "none" if summary.epochs is None else f"{summary.epochs[0]} to {summary.epochs[1]}"
    head = _grid(
        [
            ("flow", identity.name),
            ("query", identity.query_id),
            ("last run", summary.run_id or "none"),
            ("key groups", str(identity.num_key_groups)),
            ("retained epochs", epochs),
            *([("physical plan", _plan(summary))] if summary.components else []),
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
        console.print(_states(summary))
    for entry in journal:
        told = _told(entry)
        if told:
            console.print(Text(printable(told)), soft_wrap=True)
    return 0


def _plan(summary: CheckpointSummary) -> str:
    """Tell the number of the plan, and what its components are, as far as that is not plain."""
    shared = [
        f"{name} = {', '.join(operators)}"
        for name, operators in summary.components.items()
        if operators != (name,)
    ]
    told = "; ".join(shared) or "each operator is a component of its own"
    return f"{summary.plan}: {told}"


def _told(entry: dict[str, Any]) -> str:
    """Tell an entry of the journal in one line; empty where it is of no interest to people."""
    if not isinstance(entry.get("event"), dict):
        return ""
    try:
        event = event_from_dict(entry["event"])
        at = datetime.fromtimestamp(event.at_s, UTC).isoformat(timespec="milliseconds")
        return f"{at} {event.describe()}"
    except (GodwitError, AttributeError, OverflowError, OSError, TypeError, ValueError):
        return ""  # of another version, or not ours


def _states(summary: CheckpointSummary) -> Table:
    table = Table(title="state after the last epoch", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("operator", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for column in (
        "key groups",
        "snapshot rows",
        "snapshots",
        "changelog",
        "segments: mean",
        "most",
        "waiting",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for state in summary.states:
        table.add_row(
            Text(printable(state.operator) + (" (removed)" if state.removed else "")),
            Text(printable(state.state)),
            str(state.key_groups),
            f"{state.snapshot_rows:,}",
            human_bytes(state.snapshot_bytes),
            human_bytes(state.changelog_bytes),
            f"{state.mean_segments:.1f}",
            str(state.max_segments),
            str(len(state.waiting)),
        )
    return table


def _plain(summary: CheckpointSummary) -> dict[str, Any]:
    identity = summary.identity
    return {
        "flow": identity.name,
        "query_id": identity.query_id,
        "run_id": summary.run_id,
        "num_key_groups": identity.num_key_groups,
        "epochs": summary.epochs,
        "pending": summary.pending,
        "plan": summary.plan,
        "components": dict(summary.components),
        "states": [asdict(state) for state in summary.states],
        "files": summary.files,
        "file_bytes": summary.file_bytes,
        "unneeded_files": summary.unneeded_files,
        "unneeded_bytes": summary.unneeded_bytes,
    }


def _verify(args: argparse.Namespace) -> int:
    storage = opened_checkpoint(args.path)
    if args.json:
        report, targets = _with_surroundings(storage, verify(storage))
        values = asdict(report) | {"ok": report.ok, "targets": asdict(targets)}
        print(json.dumps(values, indent=2))
    else:
        # Progress goes to standard error: the report is what is piped on.
        with watcher_on(Console(stderr=True, highlight=False)) as watcher:
            report = verify_watched(storage, watcher)
        report, targets = _with_surroundings(storage, report)
        _tell(args.path, report, targets)
    return 0 if report.ok else 1


def _with_surroundings(
    storage: CheckpointStorage, report: VerificationReport
) -> tuple[VerificationReport, TargetReport]:
    """Add what is wrong with Spark's log and at the targets."""
    try:
        targets = check_targets(storage)
        findings = (*_log_findings(storage), *targets.findings)
    except GodwitError:  # the checkpoint itself cannot be opened, and the report says why
        return report, TargetReport(findings=(), refused=(), unseen=())
    return replace(report, findings=tuple(sorted({*report.findings, *findings}))), targets


def _log_findings(storage: CheckpointStorage) -> tuple[Finding, ...]:
    """Find where Spark's log and the records do not go together."""
    while True:
        latest = CommitLog.open_read_only(storage).latest_epoch
        steps = plan_log_repair(storage, plan_record_repair(storage).records)
        if not steps or CommitLog.open_read_only(storage).latest_epoch == latest:
            return tuple(
                Finding(file=step.path, problem=step.problem, remedy=_REPAIR) for step in steps
            )


def _tell(path: str, report: VerificationReport, targets: TargetReport) -> None:
    console = _wide_console()
    checked = (
        f"{report.records} records and {report.blocks} blocks ({human_bytes(report.checked_bytes)})"
    )
    if report.collected:
        checked += f"; {counted(report.collected, 'file')} collected by the running query meanwhile"
    span = (
        "no epoch" if report.epochs is None else f"epochs {report.epochs[0]} to {report.epochs[1]}"
    )
    if targets.unseen:
        checked += f"; targets not looked at: {printable(', '.join(targets.unseen))}"
    for refused in targets.refused:
        told = f"A start is refused: {refused.problem} {refused.remedy}"
        console.print(Text(printable(told)), soft_wrap=True)
    if report.ok:
        console.print(Text(f"{printable(path)}: whole; {span}; checked {checked}"), soft_wrap=True)
        return
    problems = counted(len(report.findings), "problem")
    console.print(Text(f"{printable(path)}: {problems}; {span}; checked {checked}"), soft_wrap=True)
    table = Table("file", "problem", "what to do", show_lines=True)
    for finding in report.findings:
        table.add_row(
            *(Text(printable(said)) for said in (finding.file, finding.problem, finding.remedy))
        )
    console.print(table)


def _wide_console() -> Console:
    """Give tables room where no terminal limits them."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)


def _grid(rows: Sequence[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for label, value in rows:
        grid.add_row(Text(label, style="bold"), Text(printable(value)))
    return grid
