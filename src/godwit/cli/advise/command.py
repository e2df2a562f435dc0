"""`godwit advise`: read an event log, say what balancing would have saved."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from godwit.cli.advise.advice import Advice
from godwit.cli.advise.event_log import EventLogError, open_event_log
from godwit.cli.advise.stages import StageReader
from godwit.model.errors import GodwitError
from godwit.model.wording import counted, human_bytes, printable

if TYPE_CHECKING:
    import argparse

    from godwit.cli.advise.advice import StageAdvice
    from godwit.cli.advise.event_log import EventLog

__all__ = ["add_advise_command"]

_WIDE = 160


def add_advise_command(subparsers: Any) -> None:
    """Add ``advise`` to the command line; the function to run is left in ``args.run``."""
    parser = subparsers.add_parser(
        "advise",
        help="what an ordinary Spark streaming run lost to unbalanced state, from its event log",
        description="Read the event log of a Spark Structured Streaming application (not of "
        "Godwit) and say how unbalanced its stateful stages were: per micro-batch, what the stage "
        "took, what the same partitions would have taken on the same slots had they been placed "
        "freely (longest first), and the mean, which key groups finer than partitions come close "
        "to. The log may be compressed, rolled, cut short or still being written. Exit status 0; "
        "2 if there is nothing to advise on.",
    )
    parser.add_argument(
        "path",
        metavar="EVENTLOG",
        help="a file, or a directory eventlog_v2_*, that Spark wrote under spark.eventLog.dir",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the stages (.png, .svg, .pdf)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=_advise)


def _advise(args: argparse.Namespace) -> int:
    log, reader, advice = open_event_log(args.path), StageReader(), Advice()
    for run in reader.read(log.lines()):
        advice.add(run)
    if not advice.stages:
        raise _nothing(args.path, reader, log.notes)
    notes = _notes(log, reader)
    if args.plot is not None:
        _draw(reader, advice, args.plot)
    if args.json:
        print(json.dumps(_plain(reader, advice, notes), indent=2))
    else:
        _tell(reader, advice, notes)
    return 0


def _nothing(path: str, reader: StageReader, notes: list[str]) -> EventLogError:
    if reader.events == 0:
        why, remedy = "holds no event that can be read", "Give a log that is whole."
    elif not reader.queries:
        why, remedy = (
            "is of an application without streaming queries",
            "Give the log of one that runs a stateful streaming query.",
        )
    elif any(figures.operators for figures in reader.queries.values()):
        why, remedy = (
            "has a stateful query, but no stateful stage that is complete",
            "Look again when a micro-batch has ended; rolled files that were deleted are missed.",
        )
    else:
        why, remedy = (
            "has streaming queries, but none of them has run a stateful stage",
            "There is no state to balance. Of a query by Godwit, `godwit top` shows the balance.",
        )
    said = " ".join([f"The event log {path!r} {why}.", *notes])
    return EventLogError(said, remedy=remedy, path=path)


def _notes(log: EventLog, reader: StageReader) -> list[str]:
    notes = list(log.notes)
    if log.unfinished:
        notes.append("The application was still running: these are its figures until then.")
    if reader.bad_lines:
        notes.append(f"{counted(reader.bad_lines, 'line')} could not be read, and is left out.")
    return notes


def _plain(reader: StageReader, advice: Advice, notes: list[str]) -> dict[str, Any]:
    return {
        "application": reader.application,
        "spark_version": reader.spark_version,
        "queries": {key: asdict(figures) for key, figures in reader.queries.items()},
        "stages": [
            {
                **asdict(stage),
                "name": stage.label,
                "imbalance": stage.imbalance,
                "hottest_partition": stage.hottest[0],
                "hottest_share": stage.hottest[1],
                "executor_distance": stage.executor_distance,
                "verdict": stage.verdict(),
            }
            for stage in advice.ordered()
        ],
        "notes": notes,
    }


def _tell(reader: StageReader, advice: Advice, notes: list[str]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    whose = reader.application or "an application"
    version = f", Spark {reader.spark_version}" if reader.spark_version else ""
    console.print(Text(printable(f"{whose}{version}: {advice.told()}")), soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, title_justify="left")
    table.add_column("stage", overflow="fold")
    for column in (
        "batches",
        "slots",
        "partitions",
        "as it ran",
        "partitions moved",
        "mean",
        "longest / mean",
        "executors ±",
    ):
        table.add_column(column, justify="right")
    for stage in advice.ordered():
        table.add_row(
            Text(printable(_title(reader, stage))),
            str(stage.batches),
            _range(*stage.slots),
            str(len(stage.partitions)),
            f"{stage.as_run_s:.1f} s",
            f"{stage.moved_s:.1f} s",
            f"{stage.mean_s:.1f} s",
            f"{stage.imbalance:.1f}",
            f"{stage.executor_distance:.0%}",
        )
    console.print(table)
    for stage in advice.ordered():
        _tell_stage(console, reader, stage)
    for note in notes:
        console.print(Text(printable(f"note: {note}"), style="yellow"), soft_wrap=True)


def _tell_stage(console: Console, reader: StageReader, stage: StageAdvice) -> None:
    console.print(Text(printable(_title(reader, stage)), style="bold"), soft_wrap=True)
    console.print(Text(f"  {stage.verdict()}"), soft_wrap=True)
    trigger_s = reader.queries[stage.query].trigger_s if stage.query in reader.queries else 0.0
    if trigger_s > 0:
        share = f"  It was {stage.as_run_s / trigger_s:.0%} of the query's {trigger_s:.1f} s."
        console.print(Text(share), soft_wrap=True)
    number, work = stage.hottest
    hot = stage.partitions[number]
    rows = sum(p.shuffle_rows for p in stage.partitions.values()) or 1
    size_bytes = sum(p.shuffle_bytes for p in stage.partitions.values()) or 1
    states = sum(p.state_rows for p in stage.partitions.values()) or 1
    console.print(
        Text(
            f"  Partition {number}: {work:.0%} of the work, {hot.shuffle_rows / rows:.0%} of the "
            f"rows and {hot.shuffle_bytes / size_bytes:.0%} of the bytes "
            f"({human_bytes(hot.shuffle_bytes)}) from the exchange, "
            f"{hot.state_rows / states:.0%} of the rows of state."
        ),
        soft_wrap=True,
    )
    figures = ", ".join(
        f"{batch} ({saved_s:.1f} of {as_run_s:.1f} s)"
        for batch, as_run_s, saved_s in stage.worst
        if saved_s > 0
    )
    if figures:
        line = f"  Micro-batches that would have saved most: {figures}."
        console.print(Text(line), soft_wrap=True)


def _title(reader: StageReader, stage: StageAdvice) -> str:
    figures = reader.queries.get(stage.query)
    return f"{(figures and figures.name) or stage.query[:8]}: {stage.label}"


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _draw(reader: StageReader, advice: Advice, path: Path) -> None:
    try:
        from godwit.cli import plots  # noqa: PLC0415  matplotlib is slow to import
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("matplotlib"):
            raise
        raise GodwitError(
            "--plot needs the package matplotlib, which is not installed.",
            remedy="pip install 'godwit-streams[planning]'",
        ) from None
    stages = [(printable(_title(reader, stage)), stage) for stage in advice.ordered()]
    try:
        with warnings.catch_warnings(action="ignore"):  # of characters that the font lacks
            plots.figure_of(stages).savefig(path, dpi=150)
    except (ValueError, OSError) as error:
        raise GodwitError(
            f"--plot {path} cannot be written: {error}.",
            remedy="Give a file ending in .png, .svg or .pdf in a directory that exists.",
            path=str(path),
        ) from None
