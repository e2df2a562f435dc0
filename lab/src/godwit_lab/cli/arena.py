"""`godwit arena`: autoscalers side by side on the same streams, in virtual time."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from godwit.model.errors import InvalidProblemError
from godwit.ops.arguments import save_picture
from godwit.placement.preview import table
from godwit_lab.arena.autoscalers import AUTOSCALERS, PERIOD_S
from godwit_lab.arena.match import MECHANISMS, ORACLE, TARGET_S, Match
from godwit_lab.arena.patterns import DURATION_S, PATTERNS, trace
from godwit_lab.arena.queries import QUERIES
from godwit_lab.arena.table import HEADER, cells, compare, losses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit_lab.arena.match import Figures
    from godwit_lab.arena.table import TableRow

_EPILOG = """\
what the figures mean, means over queries and seeds with standard deviations:
  missed             share of the periods in which the mean latency of rows is above the target
  cost               executor-seconds over the least that suffices (the oracle's)
  reconfigurations   decisions that changed the number of executors
  late rows          share of the rows that took more than twice the target
  moved MB           state that was moved, or read again after restarts
  99 % s             99th percentile of the latency of rows
  ranks              among the autoscalers, by missed, cost and reconfigurations

An autoscaler that does nothing is first in reconfigurations, and in cost where it has too few
executors: read the three ranks together.

examples:
  godwit arena --pattern steps                            all autoscalers, query q5, one seed
  godwit arena --pattern steps cosine --autoscaler godwit ds2 --seeds 3
  godwit arena --mechanism restart --pattern crowd        every decision stops the stream
  godwit arena --query q1 q3 q5 q8 q11 rj4 --json > arena.json       everything: about an hour
  godwit arena --rates rates.txt --plot arena.png         a number a line: rows per second

The controller, the statistics and the migration protocol are the real ones; executors, rows and
time are numbers. Equal arguments give equal results. Exit status 0; 2 if an argument makes no
sense.
"""


def add_arena_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit arena`, and its function as ``run``."""
    parser.description = (
        "Let autoscalers of the literature and Godwit's decide on the number of executors of the "
        "same streams, and compare how often they miss the latency target, what they cost, and how "
        "often they reconfigure. An oracle that knows the load shows how much is possible."
    )
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, choices, default, what in (
        ("pattern", PATTERNS, tuple(PATTERNS), "patterns of load"),
        ("autoscaler", AUTOSCALERS, tuple(AUTOSCALERS), "autoscalers"),
        ("query", QUERIES, ("q5",), "queries"),
    ):
        parser.add_argument(
            f"--{name}", nargs="+", choices=[*choices], default=None, metavar=name.upper(),
            help=f"{what}: {', '.join(choices)} (default: "
            f"{'all' if len(default) > 1 else default[0]})",
        )  # fmt: skip
    parser.add_argument("--mechanism", nargs="+", choices=MECHANISMS, default=["live"],
                        help="how decisions are carried out: live migration, or a restart "
                        "(default: live)")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=1, help="seeds, from 0 on (default: 1)")
    parser.add_argument("--target", type=float, default=TARGET_S, metavar="SECONDS",
                        help=f"latency target (default: {TARGET_S:g})")  # fmt: skip
    parser.add_argument("--duration", type=float, default=DURATION_S, metavar="SECONDS",
                        help=f"virtual time of a match (default: {DURATION_S:g})")  # fmt: skip
    parser.add_argument("--rates", type=Path, metavar="FILE",
                        help="also the pattern 'trace': rates of this file, a number a line, "
                        "squeezed into a match")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print every match as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the table into this file")
    parser.set_defaults(run=_run_arena)


def _run_arena(args: argparse.Namespace) -> int:
    """Play the matches of `godwit arena`, and print or draw them; return the exit status."""
    if args.seeds < 1 or not args.target > 0 or not PERIOD_S <= args.duration < math.inf:
        raise InvalidProblemError(
            f"{args.seeds} seeds, a target of {args.target:g} s and matches of {args.duration:g} s "
            "make no arena.",
            remedy="Give at least one seed, a positive target, and matches of a statistics period, "
            f"{PERIOD_S:g} s, or more.",
            field="arguments",
        )
    patterns = [PATTERNS[name] for name in args.pattern or PATTERNS]
    if args.rates is not None:
        patterns.append(trace("trace", _rates_of(args.rates)))
    matches = [
        Match(
            pattern=pattern,
            query=QUERIES[query],
            autoscaler=autoscaler,
            mechanism=mechanism,
            seed=seed,
            duration_s=args.duration,
            target_s=args.target,
        )
        for mechanism, pattern, query, seed, autoscaler in itertools.product(
            args.mechanism,
            patterns,
            args.query or ("q5",),
            range(args.seeds),
            (ORACLE, *(args.autoscaler or AUTOSCALERS)),
        )
    ]
    played = _play(matches)
    rows = compare(played)
    if args.json:
        print(json.dumps([figures.to_dict() for figures in played], indent=2))
    else:
        _print_rows(rows)
    if args.plot is not None:
        save_picture(
            lambda plots: plots.arena_figure(rows),
            args.plot,
            "godwit_lab.cli.plots",
            "--plot",
        )
    return 0


def _rates_of(path: Path) -> list[float]:
    """Return the rates in a file."""
    try:
        return [float(text) for text in path.read_text("utf-8").split()]
    except (OSError, ValueError) as error:
        raise InvalidProblemError(
            f"The rates in {path} cannot be read: {error}.",
            remedy="Name a file with rows per second, a number a line.",
            field="rates",
        ) from error


def _play(matches: Sequence[Match]) -> list[Figures]:
    """Play matches one after another, with progress on the standard error output."""
    began_s, played = time.monotonic(), []
    for number, match in enumerate(matches, 1):
        figures, _ = match.play()
        played.append(figures)
        left_s = (time.monotonic() - began_s) / number * (len(matches) - number)
        print(
            f"{number}/{len(matches)} {match.mechanism} {match.pattern.name} {match.query.name} "
            f"{match.autoscaler}: {figures.violated:.1%} missed, about {left_s:.0f} s left",
            file=sys.stderr,
            flush=True,
        )
    return played


def _print_rows(rows: Sequence[TableRow]) -> None:
    """Print a table for each mechanism, and where Godwit is not first."""
    for mechanism in dict.fromkeys(row.mechanism for row in rows):
        print(f"{mechanism}:")
        print(table(HEADER, [cells(row) for row in rows if row.mechanism == mechanism]))
        print()
    lost = losses(rows)
    if lost:
        print("godwit is not first in:")
        for line in lost:
            print(f"  {line}")
