"""`godwit advise`: time that a Spark streaming run lost to unbalanced state partitions.

Of a checkpoint of Godwit it says what holds the query up, by the controller's last measurements,
and whether the number of key groups is too small.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.journal import read_tail
from godwit.checkpoint.records import IDENTITY
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.text import counted, human_bytes, printable
from godwit.ops.advise.event_log import EventLogError, StageReader, open_event_log
from godwit.ops.advise.stage_advice import advise
from godwit.ops.arguments import save_picture
from godwit.ops.console import figures_table, tell, wide_console
from godwit.ops.entries import count as whole
from godwit.ops.entries import mapping, number, text
from godwit.ops.stories import remedy
from godwit.placement.metrics import too_few_key_groups

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Sequence

    from rich.console import Console

    from godwit.ops.advise.event_log import EventLog
    from godwit.ops.advise.stage_advice import StageAdvice


_JOURNAL_ENTRIES = 2_000
_PERIODS = 9
"""Number of the controller's last periods that determine the bottleneck."""


def add_advise_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit advise`, and its function as ``run``."""
    parser.description = (
        "Read the event log of a Spark Structured Streaming application (not of "
        "Godwit) and say how unbalanced its stateful stages were: per micro-batch, what the stage "
        "took, what the same partitions would have taken on the same slots had they been placed "
        "freely (longest first), and the mean, which key groups finer than partitions come close "
        "to. The log may be compressed, rolled, cut short or still being written. Of a checkpoint "
        "of Godwit: name what holds its query up (executors, one key group, the driver, the source "
        "or a sink), if a controller measured it, and say whether its number of key groups is too "
        "small. Exit status 0; 2 if there is nothing to advise on."
    )
    parser.add_argument(
        "path",
        metavar="EVENTLOG",
        help="a file, or a directory eventlog_v2_*, that Spark wrote under spark.eventLog.dir; or "
        "a checkpoint of Godwit",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the stages (.png, .svg, .pdf)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.set_defaults(run=_run_advise)


def _run_advise(args: argparse.Namespace) -> int:
    """Print the advice on the event log ``args.path``, and plot it if requested; return status 0.

    Raises `EventLogError` if the log has no stateful stages.
    """
    if (Path(args.path) / IDENTITY).is_file():
        return _advise_on_checkpoint(args)
    log, reader = open_event_log(args.path), StageReader()
    stages = advise(reader.read(log.lines()))
    if not stages:
        raise _nothing_to_advise(args.path, reader, log.notes)
    notes = _notes_on_log(log, reader)
    if args.plot is not None:
        titled = [(printable(_stage_title(reader, stage)), stage) for stage in stages]
        save_picture(lambda plots: plots.advice_figure(titled), args.plot, "godwit.ops.plots")
    if args.json:
        print(json.dumps(_advice_json(reader, stages, notes), indent=2))
    else:
        _print_advice(reader, stages, notes)
    return 0


def _advise_on_checkpoint(args: argparse.Namespace) -> int:
    """Print a query's bottleneck, and whether it has too few key groups; return status 0."""
    storage = CheckpointStorage.open(args.path)
    log = CommitLog.open_read_only(storage)
    count = log.chains.num_key_groups
    advice: dict[str, dict[str, Any]] = {}
    held_up: deque[tuple[str, float]] = deque(maxlen=_PERIODS)
    for entry in read_tail(storage, _JOURNAL_ENTRIES):  # what the controller has measured
        event = mapping(entry.get("event"))
        if event.get("kind") == "LoadMeasured":
            held_up.append((text(event.get("held_up_by", "")), number(event.get("held_up"))))
        if event.get("kind") == "KeyGroupsTooFew" and event.get("key_groups") == count:
            advice[text(event.get("component"))] = {
                "reason": text(event.get("reason")),
                "suggested": whole(event.get("suggested")),
            }
    for name, assignment in ({} if log.latest is None else log.latest.assignments).items():
        too_few = too_few_key_groups(count, sum(assignment["lanes"]))
        if too_few is not None:
            advice[name] = asdict(too_few)
    part, share = _usual_bottleneck(held_up)
    if args.json:
        slowest = {"part": part, "share": share, "remedy": remedy(part)} if part else None
        values = {"num_key_groups": count, "components": advice, "bottleneck": slowest}
        print(json.dumps(values, indent=2))
        return 0
    console = wide_console()
    tell(console, f"{log.identity.name}: {counted(count, 'key group')}")
    if part:
        tell(console, f"{part} recently took {share:.0%} of the time: {remedy(part)}.")
    for name, values in sorted(advice.items()):
        tell(console, f"{printable(name)}: too few, since {values['reason']}")
    if advice:
        suggested = max(values["suggested"] for values in advice.values())
        tell(
            console,
            f"Start with gw.Flow(..., num_key_groups={suggested}) and "
            "checkpointing=gw.Checkpointing(repartition=True), which rewrites the state.",
        )
    else:
        tell(console, "They suffice for the lanes and for the loads that were measured.")
    return 0


def _usual_bottleneck(held_up: Collection[tuple[str, float]]) -> tuple[str, float]:
    """Return the most frequent bottleneck of the last periods, and its median share of the time.

    Empty if it is most often none. `held_up`: the bottleneck and its share in each of them.
    """
    parts = Counter(part for part, _ in held_up)
    part = parts.most_common(1)[0][0] if parts else ""
    return part, median([share for name, share in held_up if name == part] or [0.0])


def _nothing_to_advise(path: str, reader: StageReader, notes: list[str]) -> EventLogError:
    """Return the error that a log has no stateful stages; it lists the `notes`."""
    if reader.events == 0:
        reason, remedy = "has no readable event", "Give a complete log."
    elif not reader.queries:
        reason, remedy = (
            "is from an application without streaming queries",
            "Give the log of an application that runs a stateful streaming query.",
        )
    elif any(figures.operators for figures in reader.queries.values()):
        reason, remedy = (
            "has a stateful query, but no complete stateful stage",
            "Try again after a micro-batch has ended; events in deleted rolled files are lost.",
        )
    else:
        reason, remedy = (
            "has streaming queries, but none of them has run a stateful stage",
            "There is no state to balance. For a query of Godwit, `godwit top` shows the balance.",
        )
    message = " ".join([f"The event log {path!r} {reason}.", *notes])
    return EventLogError(message, remedy=remedy, path=path)


def _notes_on_log(log: EventLog, reader: StageReader) -> list[str]:
    """Return sentences about missing parts of the event log."""
    notes = list(log.notes)
    if log.unfinished:
        notes.append("The application was still running, so the figures are incomplete.")
    if reader.bad_lines:
        notes.append(f"{counted(reader.bad_lines, 'line')} could not be read, and is skipped.")
    return notes


def _advice_json(
    reader: StageReader, stages: Sequence[StageAdvice], notes: list[str]
) -> dict[str, Any]:
    """Return the advice on all stages as plain values for JSON."""
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
            for stage in stages
        ],
        "notes": notes,
    }


def _print_advice(reader: StageReader, stages: Sequence[StageAdvice], notes: list[str]) -> None:
    """Print the advice on all stages."""
    console = wide_console()
    whose = reader.application or "an application"
    version = f", Spark {reader.spark_version}" if reader.spark_version else ""
    tell(console, f"{whose}{version}: {counted(len(stages), 'stateful stage')}")
    head = (
        *("stage", "batches", "slots", "partitions", "as it ran", "partitions moved", "mean"),
        *("longest / mean", "executors ±"),
    )
    rows = [
        (
            _stage_title(reader, stage),
            str(stage.batches),
            _range_text(*stage.slots),
            str(len(stage.partitions)),
            f"{stage.as_run_s:.1f} s",
            f"{stage.moved_s:.1f} s",
            f"{stage.mean_s:.1f} s",
            f"{stage.imbalance:.1f}",
            f"{stage.executor_distance:.0%}",
        )
        for stage in stages
    ]
    console.print(figures_table(head, rows))
    for stage in stages:
        _print_stage(console, reader, stage)
    for note in notes:
        tell(console, f"note: {note}", "yellow")


def _print_stage(console: Console, reader: StageReader, stage: StageAdvice) -> None:
    """Print the advice on one stage."""
    tell(console, _stage_title(reader, stage), "bold")
    tell(console, f"  {stage.verdict()}")
    trigger_s = reader.queries[stage.query].trigger_s if stage.query in reader.queries else 0.0
    if trigger_s > 0:
        share = stage.as_run_s / trigger_s
        tell(console, f"  It took {share:.0%} of the query's {trigger_s:.1f} s.")
    number, work = stage.hottest
    hottest = stage.partitions[number]
    rows = sum(partition.shuffle_rows for partition in stage.partitions.values()) or 1
    size_bytes = sum(partition.shuffle_bytes for partition in stage.partitions.values()) or 1
    states = sum(partition.state_rows for partition in stage.partitions.values())
    state_text = (
        f"{hottest.state_rows:,} of {states:,} rows of state ({hottest.state_rows / states:.0%})"
        if states
        else "no rows of state, as all partitions"
    )
    tell(
        console,
        f"  Partition {number}: {work:.0%} of the work, {hottest.shuffle_rows / rows:.0%} of the "
        f"rows and {hottest.shuffle_bytes / size_bytes:.0%} of the bytes "
        f"({human_bytes(hottest.shuffle_bytes)}) from the exchange. "
        f"After its last micro-batch it had {state_text}; work counts all micro-batches.",
    )
    figures = ", ".join(
        f"{batch} ({saved_s:.1f} of {as_run_s:.1f} s)"
        for batch, as_run_s, saved_s in stage.worst
        if saved_s > 0
    )
    if figures:
        tell(console, f"  Micro-batches that would have saved most: {figures}.")


def _stage_title(reader: StageReader, stage: StageAdvice) -> str:
    """Return a stage's label with the name of its query."""
    figures = reader.queries.get(stage.query)
    return f"{(figures and figures.name) or stage.query[:8]}: {stage.label}"


def _range_text(low: int, high: int) -> str:
    """Return a range of whole numbers as text: ``3``, or ``3 to 5``."""
    return str(low) if low == high else f"{low} to {high}"
