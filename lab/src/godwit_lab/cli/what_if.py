"""`godwit what-if`: a measured stream with other executors, rates or planners."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from godwit.model.errors import InvalidControlError
from godwit.model.naming import did_you_mean
from godwit.model.text import counted, human_bytes
from godwit.ops.arguments import add_checkpoint, flow_name, opened_checkpoint, save_picture
from godwit.ops.console import figures_table, tell, wide_console
from godwit.placement.problem import Problem
from godwit.placement.registry import PLANNERS
from godwit.time.durations import seconds
from godwit_lab.cli.what_if_play import Accuracy, Answer, Question, accuracy, answers, fewest
from godwit_lab.cli.what_if_stream import measured_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit_lab.cli.what_if_play import Estimate
    from godwit_lab.cli.what_if_stream import MeasuredStream

_MOST = 1000
_SIZES = 64
_EPILOG = """\
what the figures mean:
  median, p99     latency of rows, from arrival to delivery; in brackets the error bar
  lanes busy      share of their time that lanes are busy; of the busiest ones in brackets: at
                  100 % the stream falls behind, however many other executors there are
  moves, state    key groups that move to get there and afterwards, and bytes read for it
  met             yes: with the whole error bar; likely: by the best estimate; unlikely: only by
                  the error bar; no

how it is done:
  The last minutes of the stream, as its journal tells them, are played on a simulated cluster by
  the real controller and planner. Before that they are played as they were: the measured
  latencies of that part correct all predictions. The error bar comes from how well that fits, and
  from how far predictions for this stream were off before (decisions that were judged). It knows
  what the journal knows: not that a network, a store or a sink may be the next bottleneck.

examples:
  godwit what-if ck/ --executors 2..8                     the same load, other executors
  godwit what-if ck/ --rate 10x --executors 4..16 --latency 2s
  godwit what-if ck/ --rate 50000 --executors 8 --trigger 500ms --planner flux
"""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


def add_what_if_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit what-if`, and its function as ``run``."""
    parser.description = (
        "Play what the journal of a checkpoint has measured of a stream, with another "
        "number of executors, another rate, trigger or planner, and say what would come of it. "
        "Nothing is changed, and nothing is asked of the query, which may be running."
    )
    parser.epilog = _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_checkpoint(parser)
    parser.add_argument(
        "--executors",
        metavar="NUMBERS",
        help="how many, such as 6, 4..16 or 2,4,8 (default: half to twice as many as there are)",
    )
    parser.add_argument(
        "--rate",
        default="1x",
        metavar="RATE",
        help="times the measured one, such as 10x, or rows a second on average (default: 1x)",
    )
    parser.add_argument(
        "--latency", metavar="TIME", help="target that is to be met, such as 2s or 500ms"
    )
    parser.add_argument(
        "--quantile",
        type=float,
        default=0.99,
        metavar="SHARE",
        help="share of the rows that are to meet it (default: %(default)s)",
    )
    parser.add_argument(
        "--planner",
        metavar="NAME",
        help="where key groups go (default: milp for small problems, flux for large ones)",
    )
    parser.add_argument("--trigger", metavar="TIME", help="another interval of the trigger")
    parser.add_argument("--cores", metavar="N", help="lanes of every executor, if others are tried")
    parser.add_argument(
        "--last",
        default="10m",
        metavar="TIME",
        help="how much of the end of the journal is played, at most (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random draws (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw latency by executors (.png, .svg, .pdf)"
    )
    parser.set_defaults(run=_run_what_if)


def _run_what_if(args: argparse.Namespace) -> int:
    """Predict latencies of a stream with other executors or rates; return the exit status."""
    # Validate the question before reading the journal.
    planner = _planner(args.planner)
    target_s = None if args.latency is None else _time(args.latency, "--latency")
    trigger_s = None if args.trigger is None else _time(args.trigger, "--trigger")
    factor, rate_per_s = _rate(args.rate)
    sizes = None if args.executors is None else _sizes(args.executors)
    cores = None if args.cores is None else _whole(args.cores, "--cores")
    if not 0 < args.quantile < 1:
        raise InvalidControlError(
            f"The quantile is {args.quantile}.",
            remedy="Give a share of the rows above 0 and below 1, such as --quantile 0.99.",
        )
    storage = opened_checkpoint(args.path)
    stream = measured_stream(storage, last_s=_time(args.last, "--last"))
    have = len(stream.executors)
    question = Question(
        factor=rate_per_s / stream.played.rate_per_s if rate_per_s else factor,
        executors=sizes or tuple(range(max(1, have // 2), 2 * have + 1)),
        planner=planner,
        trigger_s=trigger_s,
        lanes_each=cores,
        target_s=target_s,
        quantile=args.quantile,
    )
    known = accuracy(stream, question, seed=args.seed)
    predictions = list(answers(stream, question, known, seed=args.seed))
    flow = flow_name(storage)
    if args.plot is not None:
        save_picture(
            lambda plots: plots.what_if_figure(predictions, target_s=target_s, title=flow),
            args.plot,
            module="godwit_lab.cli.plots",
        )
    if args.json:
        print(json.dumps(_plain(flow, stream, question, known, predictions), indent=2))
    else:
        _tell(flow, stream, question, known, predictions)
    return 0


# -- the question ---------------------------------------------------------------------------------


def _planner(name: str | None) -> str | None:
    """Return the name of a planner of assignments; raise if there is none of that name."""
    known = [p.name for p in PLANNERS.values() if p.asks is Problem]
    if name is not None and name not in known:
        raise InvalidControlError(
            f"There is no planner {name!r} of where key groups are.",
            remedy=f"{did_you_mean(name, known)}Planners are {', '.join(known)}.",
            planner=name,
        )
    return name


def _time(text: str, what: str) -> float:
    """Return the seconds of a text such as ``2s``, ``500ms`` or ``"2 seconds"``; or a bare number.

    `what`: the option, for errors.
    """
    short = _DURATION.fullmatch(text.strip())
    try:
        return seconds(f"{float(text):f} seconds", what)
    except ValueError:
        return seconds(f"{short[1]} {_UNITS[short[2]]}" if short else text, what)


def _rate(text: str) -> tuple[float, float | None]:
    """Return an arrival rate: ``10x`` as ``(10, None)``, rows per second as ``(1, rate)``.

    Raises `InvalidControlError` for other texts.
    """
    number = text.strip().removesuffix("x")
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if not 0 < value < float("inf"):
        raise InvalidControlError(
            f"The rate is {text!r}, which is not a positive number.",
            remedy="Give it times the measured one, as in --rate 10x, or in rows a second, as in "
            "--rate 50000.",
        )
    return (value, None) if number != text.strip() else (1.0, value)


def _whole(text: str, what: str) -> int:
    """Return a number of executors or of lanes, or raise; `what`: the option, for errors."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= _MOST:
        raise InvalidControlError(
            f"{what} is given {text!r}.", remedy=f"Give a whole number from 1 to {_MOST}."
        )
    return value


def _sizes(text: str) -> tuple[int, ...]:
    """Return numbers of executors, given as ``6``, ``4..16`` or ``2,4,8``; or raise."""
    sizes: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.partition("..")
        low = _whole(first, "--executors")
        high = _whole(last, "--executors") if dots else low
        if high < low:
            raise InvalidControlError(
                f"The range of executors {part!r} is upside down.",
                remedy=f"Give the smaller number first: {high}..{low}.",
            )
        sizes |= set(range(low, high + 1))
    if len(sizes) > _SIZES:
        raise InvalidControlError(
            f"{len(sizes)} numbers of executors are too many to play.",
            remedy=f"Give {_SIZES} at most, such as 4,8,16,32.",
        )
    return tuple(sorted(sizes))


# -- the answer -----------------------------------------------------------------------------------


def _plain(
    flow: str,
    stream: MeasuredStream,
    question: Question,
    known: Accuracy,
    predictions: Sequence[Answer],
) -> dict[str, Any]:
    """Return the question, the data and the answers as plain values for JSON.

    `known`: accuracy of the simulation. `predictions`: the answers.
    """
    best = fewest(predictions)
    return {
        "flow": flow,
        "measured": {
            "executors": len(stream.executors),
            "lanes": sum(stream.executors.values()),
            "ratePerS": stream.played.rate_per_s,
            "playedS": stream.played.duration_s,
            "steadyS": stream.steady.duration_s,
            "latencyMs": stream.steady.latency.figures_ms(),
            "stateBytes": stream.state_bytes,
            "fixedMs": stream.costs_at(sum(stream.executors.values())).fixed_ms,
            "triggerS": stream.topology.trigger_s,
        },
        "question": asdict(question),
        "accuracy": {
            "correction": {str(q): ratio for q, ratio in known.ratio.items()},
            "replayed": known.replayed,
            "predicted": known.predicted,
            "source": known.source,
        },
        "answers": [asdict(answer) for answer in predictions],
        "fewest": None if best is None else best.executors,
    }


def _tell(
    flow: str,
    stream: MeasuredStream,
    question: Question,
    known: Accuracy,
    predictions: Sequence[Answer],
) -> None:
    """Print the table of answers, and the data that they rest on.

    `known`: accuracy of the simulation. `predictions`: the answers.
    """
    console = wide_console()
    lanes = sum(stream.executors.values())
    tell(
        console,
        f"{flow}: {counted(len(stream.executors), 'executor')} with {counted(lanes, 'lane')}, "
        f"{stream.played.rate_per_s:,.0f} rows/s, played {stream.played.duration_s:.0f} s",
    )
    measured, asked = stream.steady.latency, f"{question.factor:.4g} times the rate"
    if measured.rows:
        ratios = ", ".join(f"{ratio:.2f} at {q:.4g}" for q, ratio in sorted(known.ratio.items()))
        tell(
            console,
            f"measured: median {_s_text(measured.quantile_s(0.5))}, "
            f"p99 {_s_text(measured.quantile_s(0.99))}"
            f"; over what the model gives: {ratios}, by which all latencies are corrected",
        )
    wanted = ["met"] if question.target_s is not None else []
    head = ("executors", "median", "p99", "lanes busy", "moves", "state moved", *wanted, "")
    rows = [
        (
            f"{answer.executors}"
            + (" (today)" if answer.executors == len(stream.executors) else ""),
            _estimate_text(answer.median),
            _estimate_text(answer.tail),
            f"{answer.utilisation:.0%} ({answer.busiest:.0%})",
            f"{answer.moves}",
            human_bytes(answer.moved_bytes),
            *([answer.met] if wanted else []),
            answer.note,
        )
        for answer in predictions
    ]
    console.print(figures_table(head, rows, title=f"With {asked}"))
    if question.target_s is not None:
        tell(console, _verdict(question, predictions))
    tell(
        console,
        f"Error bars: {known.replayed:.0%} by which parts of the measured time stray from the "
        f"model, {known.predicted:.0%} by which predictions were off ({known.source}).",
    )


def _verdict(question: Question, predictions: Sequence[Answer]) -> str:
    """Return a sentence with the fewest executors whose prediction meets the target."""
    target = f"{question.quantile:.4g} of rows within {question.target_s:g} s"
    best = fewest(predictions)
    if best is None:
        close = min(predictions, key=lambda answer: answer.targeted.seconds)
        return (
            f"None of these meets the target ({target}); {close.executors} come nearest, with "
            f"{_s_text(close.targeted.seconds)}."
        )
    sure = [answer.executors for answer in predictions if answer.met == "yes"]
    beyond = (
        ""
        if best.met == "yes"
        else f"; {min(sure)} do with the whole error bar"
        if sure
        else "; none with the whole error bar"
    )
    return f"The fewest that meet the target ({target}): {best.executors}{beyond}."


def _estimate_text(estimate: Estimate) -> str:
    """Return an estimated latency, with its error bar, as text."""
    if estimate.high_s == estimate.low_s:
        return _s_text(estimate.seconds)
    return f"{_s_text(estimate.seconds)} ({_s_text(estimate.low_s)} to {_s_text(estimate.high_s)})"


def _s_text(value: float) -> str:
    """Return seconds as text: ``850 ms`` or ``1.2 s``."""
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.3g} s"
