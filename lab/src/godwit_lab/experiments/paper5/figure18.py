"""Paper 5, figure 18: arrival rates of the five most popular stocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import GodwitError
from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    RunsOn,
    at_least,
    at_most,
    figure,
)

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.placement.arrays import FloatArray
    from godwit_lab.cli.reproduce.figure import Data


_MINUTES, _STOCKS, _SHOWN = 60, 2_000, 5
_ORDERS_PER_MIN = 8e6 / 60
"""Eight million an hour, as in the paper."""
_NOTE = (
    "the paper's orders are not public: rates of stocks walk at random; --data DIR with "
    "orders.parquet takes others"
)


def _generated(run: FigureRun) -> dict[str, FloatArray]:
    """Draw orders a minute: stocks are popular by Zipf's law, and each one's rate walks at random.

    Switched off, rates do not walk.
    """
    rng = run.rng(18)
    steps = rng.normal(0, 0.0 if run.off else 0.3, (_MINUTES, _STOCKS))
    rate = np.exp(steps.cumsum(axis=0)) / np.arange(1, _STOCKS + 1) ** 0.5
    rate *= _ORDERS_PER_MIN * _MINUTES / rate.sum()
    orders = rng.poisson(rate).astype(np.float64)
    popular = np.argsort(-orders.sum(axis=0))[:_SHOWN]
    return {f"stock {at + 1}": orders[:, at] for at in popular.tolist()}


def _measured(path: Path) -> dict[str, FloatArray]:
    """Count orders a minute of the five stocks with most of them, each from its first one on.

    Raises `GodwitError` if the columns are missing.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    missing = {"ts", "symbol"} - set(pq.read_schema(path).names)
    if missing:
        raise GodwitError(
            f"{path} has no column {' and no column '.join(sorted(missing))}.",
            remedy="Give order events with the columns ts (timestamp) and symbol.",
            path=str(path),
        )
    table = pq.read_table(path, columns=["ts", "symbol"])
    counts = table["symbol"].value_counts()
    names = sorted(counts.to_pylist(), key=lambda entry: -entry["counts"])[:_SHOWN]
    rates = {}
    for name in (entry["values"] for entry in names):
        own = table.filter(pc.equal(table["symbol"], name))["ts"]
        minute = own.cast("timestamp[us]", safe=False).cast("int64").to_numpy() // 60_000_000
        rates[str(name)] = np.bincount(minute - minute.min()).astype(np.float64)
    return rates


def _rates(data: Data) -> list[FloatArray]:
    return [data.column("orders_per_s", stock=stock) for stock in data.values("stock")]


def _leaders(data: Data) -> float:
    """Count the stocks that lead in some minute."""
    rates = _rates(data)
    length = min(map(len, rates))
    return float(len(set(np.array([rate[:length] for rate in rates]).argmax(axis=0).tolist())))


def _periodicity(data: Data) -> float:
    """Return the largest autocorrelation of a rate's steps, at any distance of two minutes up."""
    measured = []
    for rate in _rates(data):
        steps = np.diff(rate) - np.diff(rate).mean()
        half = len(steps) // 2
        measured += [
            float((steps[lag:] * steps[:-lag]).sum() / (steps**2).sum()) for lag in range(2, half)
        ]
    return max(measured)


@figure(
    title="Arrival rates of the five most popular stocks",
    clauses=(
        at_least("the rates of the most popular stocks fluctuate greatly",
                 "least ratio of a stock's maximum to its mean",
                 lambda data: min(float(rate.max() / rate.mean()) for rate in _rates(data)), 1.5,
                 decisive=True),
        at_least("without a pattern", "stocks that lead in some minute", _leaders, 2.0),
        at_most("without a pattern", "largest autocorrelation of a rate's steps", _periodicity,
                0.5),
    ),
    workload="Orders a minute, eight million an hour: 2,000 stocks, popular by Zipf's law of "
    "exponent 0.5, whose rates walk at random; or those of --data.",
    place=RunsOn.WORKLOAD,
    charts=(
        Chart(x="minute", y="orders_per_s", by="stock", x_label="minute",
              y_label="orders a second"),
    ),
    mechanism="the random walk of the rates",
)  # fmt: skip
def figure18(run: FigureRun) -> FigureResult:
    path = None if run.data is None else run.data / "orders.parquet"
    there = path is not None and path.exists()
    rates = _measured(path) if path is not None and there else _generated(run)
    return FigureResult(
        rows=[
            {"stock": name, "minute": minute, "orders_per_s": count / 60}
            for name, rate in rates.items()
            for minute, count in enumerate(rate.tolist())
        ],
        notes=() if there else (_NOTE,),
    )
