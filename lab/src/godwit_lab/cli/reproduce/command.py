"""`godwit reproduce`: redraw figures of the papers, and print where ours agree."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from godwit.model.errors import GodwitError
from godwit.model.text import printable
from godwit.placement.preview import table
from godwit_lab.cli.reproduce import catalogue
from godwit_lab.cli.reproduce.figure import FigureRun, Verdict
from godwit_lab.cli.reproduce.running import Result, no_mechanism, place_of, reproduce, stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit_lab.cli.reproduce.catalogue import Entry

_EPILOG = """\
examples:
  godwit reproduce --list                 every figure and table, and where it runs
  godwit reproduce paper1/figure12        one of them; short: 1/12
  godwit reproduce paper2 --quick         all of a paper, in small
  godwit reproduce --quick                all of all papers
  godwit reproduce 1/12 --off             with the mechanism switched off: it must not agree
  godwit reproduce --quick --gallery lab/docs the page with all of them

A result is a directory with result.json, data.csv, figure.png and figure.svg. Seeds are fixed; only
times depend on the machine. Existing results are not computed again, so a run that was stopped is
resumed. Exit status 0: all agree, at least partly; 1: one does not agree; 2: one could not
be run; 130: stopped by Ctrl-C.
"""


def add_reproduce_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit reproduce`, and its function as ``run``."""
    parser.description = (
        "Run the experiments of the five papers that Godwit rests on, write data and "
        "pictures, and compare the results with what the papers show."
    )
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "figures", nargs="*", metavar="PAPER[/FIGURE]", help="default: all figures of all papers"
    )
    parser.add_argument("--list", action="store_true", help="list figures, and run none")
    parser.add_argument("--quick", action="store_true", help="shorter runs")
    parser.add_argument("--off", action="store_true", help="switch the figure's mechanism off")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="run figures with stored results, too")
    parser.add_argument("--data", type=Path, metavar="DIR",
                        help="directory with tweets.parquet (column text), for paper 4, and "
                        "orders.parquet (columns ts and symbol), for figure 18 of paper 5; without "
                        "it, or where a file is missing, data are generated")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("artifacts/reproduce"), metavar="DIR",
                        help="where results go (default: artifacts/reproduce)")  # fmt: skip
    parser.add_argument("--gallery", type=Path, metavar="DIR",
                        help="write gallery.md and its pictures into this directory")  # fmt: skip
    parser.set_defaults(run=_run_reproduce)


def _run_reproduce(args: argparse.Namespace) -> int:
    """Run, list or draw the figures that ``args`` asks for; return the exit status."""
    chosen = catalogue.choose(args.figures)
    if args.list:
        _print_list(chosen)
        return 0
    if args.data is not None and not args.data.is_dir():
        raise GodwitError(
            f"--data {args.data} is not a directory.",
            remedy="Name the directory with the data sets, or leave --data out to generate them.",
        )
    if args.seed < 0:
        raise GodwitError(f"--seed {args.seed} is negative.", remedy="Give 0 or more.")
    runnable = [entry for entry in chosen if not entry.reason]
    if not runnable:
        raise GodwitError(
            f"{chosen[0].name} ({chosen[0].title}) cannot be redrawn: {chosen[0].reason}",
            remedy="`godwit reproduce --list` shows those that can.",
        )
    if args.off:
        runnable = _with_mechanism(runnable)
    settings = FigureRun(
        quick=args.quick, seed=args.seed, off=args.off, data=args.data, progress=_Progress()
    )
    results, failed = _run_all(runnable, settings, args.out, again=args.again)
    _print_summary(results, failed, args.out)
    if args.gallery is not None:
        from godwit_lab.cli.reproduce import gallery  # noqa: PLC0415  only needed here

        try:
            path = gallery.write(args.gallery, args.out, catalogue.entries(), catalogue.papers())
        except OSError as error:
            raise GodwitError(
                f"The gallery cannot be written to {args.gallery}: {error.strerror or error}.",
                remedy="Name a directory that you may write.",
                path=str(args.gallery),
            ) from error
        print(f"Gallery: {path}")
    if failed:
        return 2
    return int(any(result.verdict is Verdict.DISAGREES for result in results))


def _with_mechanism(chosen: Sequence[Entry]) -> list[Entry]:
    """Return the figures whose mechanism can be switched off; raise if there are none."""
    figures = [entry for entry in chosen if entry.load().mechanism]
    if not figures:
        raise no_mechanism(chosen[0])
    return figures


def _run_all(
    entries: Sequence[Entry], settings: FigureRun, out: Path, *, again: bool
) -> tuple[list[Result], list[str]]:
    """Run figures one after the other; return the results, and texts of those that failed.

    `again`: run figures whose stored result is still valid, too.
    """
    results: list[Result] = []
    failed: list[str] = []
    for number, entry in enumerate(entries, 1):
        previous = None if again else stored(out, entry, off=settings.off)
        try:
            if previous is not None and previous.answers(entry, settings):
                result = previous
                print(f"[{number}/{len(entries)}] {entry.name}: there already; --again runs it")
            else:
                print(f"[{number}/{len(entries)}] {entry.name}: {entry.load().title}", flush=True)
                result = reproduce(entry, settings, out)
                settings.progress("")
        except KeyboardInterrupt:
            settings.progress("")
            print(
                f"Stopped. {len(results)} of {len(entries)} figures are whole in {out}, and "
                f"nothing of {entry.name}; the same command continues with it.",
                file=sys.stderr,
            )
            raise
        except (GodwitError, ModuleNotFoundError) as error:
            if len(entries) == 1:
                raise
            failed.append(entry.name)
            print(f"{entry.name} could not be run: {printable(str(error))}", file=sys.stderr)
            continue
        results.append(result)
        _print_result(entry, result, out)
    return results, failed


class _Progress:
    """Progress of figures: on one line of a terminal, elsewhere a line every half minute."""

    def __init__(self) -> None:
        self._shown_s = time.monotonic()

    def __call__(self, text: str) -> None:
        """Show a text; an empty one ends the line."""
        if sys.stderr.isatty():
            print(f"\r\033[K{printable(text)[:100]}", end="", file=sys.stderr, flush=True)
        elif text and time.monotonic() - self._shown_s > _SILENT_S:
            self._shown_s = time.monotonic()
            print(f"    {printable(text)}", file=sys.stderr, flush=True)


_SILENT_S = 30.0


def _print_list(chosen: Sequence[Entry]) -> None:
    """Print a table of figures with their titles."""
    named = catalogue.papers()
    paper = ""
    for entry in chosen:
        if entry.paper != paper:
            paper = entry.paper
            print(f"\n{paper}: {named[paper].title}")
        if entry.reason:
            print(f"  {entry.name:20} {'not redrawn':15} {entry.title}: {entry.reason}")
        else:
            figure = entry.load()
            off = f" (--off: {figure.mechanism})" if figure.mechanism else ""
            print(f"  {entry.name:20} {figure.place:15} {figure.title}{off}")


def _print_result(entry: Entry, result: Result, out: Path) -> None:
    """Print the checks of a figure, and whether it agrees with the paper."""
    figure = entry.load()
    print(f"  paper: {figure.claim}")
    for note in result.notes:
        print(f"  note: {note}")
    rows = [
        (
            f"  {check.claim}{' *' if check.decisive else ''}",
            check.expected,
            shown(check.paper, check.unit),
            shown(check.ours, check.unit),
            shown(check.ratio),
            check.outcome,
        )
        for check in result.checks
    ]
    print(table(("  clause (* decisive)", "expected", "paper", "ours", "ratio", "holds"), rows))
    for check in result.checks:
        if check.unchecked:
            print(f"  not checked: {check.claim}, since {check.unchecked}")
    if result.verdict is not Verdict.AGREES and figure.reason and not result.off:
        print(f"  why: {figure.reason}")
    place = place_of(out, entry, off=result.off)
    print(f"  verdict: {result.verdict} ({result.seconds:.1f} s), {place}\n")


def _print_summary(results: Sequence[Result], failed: Sequence[str], out: Path) -> None:
    """Print how many figures agree with the papers, and how many could not be run."""
    if len(results) + len(failed) < 2:
        return
    counts = dict.fromkeys(Verdict, 0)
    for result in results:
        counts[result.verdict] += 1
    parts = [f"{count} {verdict}" for verdict, count in counts.items()]
    print(f"{len(results)} figures in {out}: {', '.join(parts)}; {len(failed)} could not be run.")


def shown(number: float | None, unit: str = "") -> str:
    """Return a number with its unit as text; empty for ``None``."""
    if number is None:
        return ""
    text = f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
    return f"{text} {unit}".rstrip()
