"""Paper 3, figure 16: completion time of the fast job, with none to all four operators fused."""

from __future__ import annotations

import pickle
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_least,
    at_most,
    figure,
    rank_correlation,
)
from godwit_lab.experiments.paper3.checkout import use_benchmarks

if TYPE_CHECKING:
    from godwit_lab.cli.reproduce.figure import Data


_FUSED = (0, 2, 3, 4)
_EXECUTORS, _KEYS = 2, 10_000
_SERIALISED = 50_000
"""Rows that are serialised one by one, to compare."""


def one_by_one_us() -> float:
    """Return the CPU microseconds to serialise a row by itself, and to read it again."""
    rows = [(number, 1_000_000 * number, 0.5 * number) for number in range(_SERIALISED)]
    began = time.process_time()
    for row in rows:
        pickle.loads(pickle.dumps(row))
    return (time.process_time() - began) * 1e6 / len(rows)


def _split(took: dict[int, float], rows: int) -> str:
    """Return, as text, what exchanges and all else take a row, and would take row by row."""
    exchange_us = 1e3 * (took[0] - took[4]) / 3 / rows
    else_us, single_us = 1e3 * took[4] / rows, one_by_one_us()
    return (
        f"each of the three exchanges that fusing saves takes {exchange_us:.2f} µs a row, and all "
        f"else {else_us:.2f} µs; for a factor of three, an exchange would have to take "
        f"{2 * else_us / 3:.2f} µs. Serialising rows one by one, as the paper does, takes "
        f"{single_us:.2f} µs of CPU here, with which it would be a factor of "
        f"{1 + 3 * single_us / else_us:.1f}"
    )


def _speed_up(data: Data, column: str = "round_ms") -> float:
    """Return the median, over the rounds, of none fused over all four fused."""
    none, fused = (data.column(column, series=f"{n} fused") for n in (0, 4))
    return float(median((none / fused).tolist()))


@figure(
    title="Completion time of the fast job with operators fused",
    clauses=(
        at_least("fusing all four operators improves the performance by more than a factor of "
                 "three", "ratio within a round, median", _speed_up, 3.0, paper=3.0),
        at_least("as serialising tuples between operators costs much more than what the operators "
                 "do", "all of a row that is not its exchanges: three exchanges over it",
                 lambda data: (data.one("epoch_ms", fused="0") - data.one("epoch_ms", fused="4"))
                 / data.one("epoch_ms", fused="4"), 2.0),
        at_most("the more are fused the faster", "rank correlation",
                lambda data: rank_correlation(
                    _FUSED, [data.one("epoch_ms", fused=str(n)) for n in _FUSED]), -0.8),
        at_least("all four fused are faster than none", "ratio within a round, median", _speed_up,
                 1.1, decisive=True, beyond=True),
        at_least("in packing and unpacking rows for operators alone, too", "ratio",
                 lambda data: _speed_up(data, "exchange_ms"), 1.0, beyond=True),
    ),
    workload="The paper's: four operators in a row over one key sum windows of 1, 5, 10 and 20 "
    "minutes, and send every row on at once. Half a minute of event time an epoch, with 400,000 "
    "rows (a million in full) of 10,000 keys, on two executors of a core each, processes of one "
    "machine.",
    place=RunsOn.SPARK,
    charts=(
        Chart(x="fused", y="epoch_ms", kind="bars", x_label="operators that are fused",
              y_label="median time of an epoch (ms)"),
    ),
    mechanism="fusion",
    reason="Rows cross an exchange in columns, so fusing saves little. Without Spark, an exchange "
    "takes 0.03 µs of CPU a row, and the four operators 0.3 µs (`python -m benchmarks.fusion "
    "--in-process`); in the paper's simple job an exchange costs 19 µs a row on a node.",
)  # fmt: skip
def figure16(run: FigureRun) -> FigureResult:
    use_benchmarks()
    from benchmarks.fusion import fast_job, in_turns, open_session, timed_rows

    rows, epochs, rounds = run.pick((400_000, 8, 2), (1_000_000, 16, 3))
    found, exchanges = ({fused: list[float]() for fused in _FUSED} for _ in range(2))
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="godwit-figure-")))
        source = timed_rows(work, epochs=epochs, rows=rows, keys=_KEYS)
        spark = open_session(_EXECUTORS, stack)
        for turn, fused in in_turns(_FUSED, rounds):
            run.progress(f"round {turn} of {rounds}, {fused} fused")
            checkpoint = work / f"round-{turn}-{fused}"
            of_one = fast_job(spark, source, 0 if run.off else fused, checkpoint)
            if turn:
                found[fused].append(of_one["epoch_ms"])
                exchanges[fused].append(of_one["exchange_ms"])
    took = {fused: median(times) for fused, times in found.items()}
    data: list[Row] = [{"fused": str(fused), "epoch_ms": ms} for fused, ms in took.items()]
    data += [
        {"series": f"{fused} fused", "round": turn, "round_ms": ms, "exchange_ms": exchange}
        for fused in _FUSED
        for turn, (ms, exchange) in enumerate(zip(found[fused], exchanges[fused], strict=True))
    ]
    return FigureResult(
        rows=data,
        notes=(
            "times are of one run on the machine at hand",
            _split(took, rows),
        ),
    )
