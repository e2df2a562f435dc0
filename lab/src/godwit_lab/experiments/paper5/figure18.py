"""Paper 5, figure 18: arrival rates of the five most popular stocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.model.errors import GodwitError
from godwit_lab.cli.reproduce.figure import Chart, FigureResult, FigureRun, RunsOn, at_least, figure

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.placement.arrays import FloatArray


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


@figure(
    title="Arrival rates of the five most popular stocks",
    claim="The rates of the most popular stocks fluctuate greatly and without a pattern.",
    workload="Orders a minute, eight million an hour: 2,000 stocks, popular by Zipf's law of "
    "exponent 0.5, whose rates walk at random; or those of --data. It shows a workload, no system.",
    place=RunsOn.PROCESS,
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
    bursts = [float(rate.max() / rate.mean()) for rate in rates.values()]
    length = min(map(len, rates.values()))
    leaders = np.array([rate[:length] for rate in rates.values()]).argmax(axis=0)
    return FigureResult(
        rows=[
            {"stock": name, "minute": minute, "orders_per_s": count / 60}
            for name, rate in rates.items()
            for minute, count in enumerate(rate.tolist())
        ],
        checks=(
            at_least("the rate of each stock fluctuates: least ratio of its maximum to its mean",
                     min(bursts), 1.5, decisive=True),
            at_least("the most popular stock changes: stocks that lead in some minute",
                     float(len(set(leaders.tolist()))), 2.0),
        ),
        notes=() if there else (_NOTE,),
    )  # fmt: skip
