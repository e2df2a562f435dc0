"""Rows of the table: shares that shift, a lopsided start, a slow executor, nothing to do.

What a row is compared with runs before it, in the same process, on a cluster of its own; ratios are
of those two runs. Every row has a time limit, and says figures beside their targets.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from benchmarks.control.figure import Figure
from benchmarks.control.stream import Setup, fed_stream

import godwit as gw
from godwit.columns.hashing import hash_keys
from godwit.model import events
from godwit.model.key_groups import key_groups_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.control.stream import Epoch, Fed

__all__ = ["idle", "shuffled", "slow", "twice"]

_AHEAD = 2
"""Epochs that were put before something changed, and come after it."""
_WARM_UP = 5
"""First epochs, in which Spark compiles and starts its Python, count for nothing."""


def shuffled(seconds: float = 90.0, zipf: float = 0.5, keys: int = 10_000) -> list[Figure]:
    """Keys change their share of the rows twice a minute, without a controller and with one."""
    setup = Setup(zipf=zipf, keys=keys, shuffled_every_s=30.0)
    runs = []
    for control in (None, gw.Control(period="5 seconds")):
        with fed_stream(setup, control) as fed:
            fed.feed_until(lambda fed=fed: len(fed.epochs) >= _WARM_UP, 60)  # type: ignore[misc]
            fed.feed(seconds)
            runs.append((fed.epochs[_WARM_UP:], _busiest(fed)))
    (static, uneven), (controlled, left) = runs
    return [
        Figure(
            what="rows a second, with a controller / static",
            value=_throughput(controlled) / _throughput(static),
            target=1.8,
        ),
        Figure(
            what="99th percentile of epoch times, with / static",
            value=_late(controlled) / _late(static),
            target=0.5,
            good="at most",
        ),
        Figure(what="static: busiest executor / mean, all that can be gained", value=uneven),
        Figure(what="with a controller: busiest executor / mean", value=left),
        Figure(what="static: rows a second", value=_throughput(static)),
        Figure(what="with a controller: rows a second", value=_throughput(controlled)),
    ]


def twice(period_s: float = 10.0) -> list[Figure]:
    """Keys of one executor become twice as frequent, so that it has twice the others' share."""
    control = gw.Control(
        period=f"{period_s} seconds", worth=gw.control.Worth(max_load_distance=0.05)
    )
    with fed_stream(Setup(), control) as fed:
        fed.feed_until(lambda: len(fed.epochs) >= _WARM_UP + 15, 90)
        even = fed.epochs[_WARM_UP:]
        fed.factors = _twice_the_keys_of("0", fed)
        known, since = len(fed.heard(events.LoadMeasured)), len(fed.heard(events.MigrationStarted))
        shifted_s = time.time()
        fed.feed_until(lambda: len(fed.heard(events.LoadMeasured)) >= known + 5, 12 * period_s)
        measured = [e.load_distance for e in fed.heard(events.LoadMeasured)[known:]]
        started = [e.at_s for e in fed.heard(events.MigrationStarted)[since:]]
        ended = max((e.at_s for e in fed.heard(events.MigrationFinished)), default=np.inf)
        epochs = [e for e in fed.epochs if e.at_s - e.took_s > shifted_s]
    began = min(started, default=np.inf)
    uneven = [e.took_s for e in epochs if e.at_s < began][_AHEAD:]
    meanwhile = [e.took_s for e in epochs if e.at_s > began and e.at_s - e.took_s < ended]
    after = [e.took_s for e in epochs if e.at_s - e.took_s > ended]
    worst = int(np.argmax(measured))
    balanced = [n for n, distance in enumerate(measured) if n >= worst and distance < 0.05]
    return [
        Figure(what="load distance at its worst", value=measured[worst]),
        Figure(
            what="periods from there until it is under 5 %",
            value=min(balanced, default=np.inf) - worst,
            target=2,
            good="at most",
        ),
        Figure(what="load distance at the end", value=measured[-1], target=0.05, good="at most"),
        Figure(
            what="slowest epoch meanwhile / median of the uneven ones before",
            value=max(meanwhile, default=np.nan) / median(uneven or [np.nan]),
            target=1.2,
            good="at most",
        ),
        Figure(what="even epochs: median, s", value=median([e.took_s for e in even])),
        Figure(what="uneven epochs: median, s", value=median(uneven or [np.nan])),
        Figure(what="epochs afterwards: median, s", value=median(after or [np.nan])),
    ]


def slow(period_s: float = 10.0, times: float = 3.0) -> list[Figure]:
    """One executor becomes three times slower."""
    control = gw.Control(
        period=f"{period_s} seconds", worth=gw.control.Worth(max_load_distance=0.05)
    )
    with fed_stream(Setup(), control) as fed:
        fed.feed_until(lambda: len(fed.epochs) >= _WARM_UP + 15, 90)
        before = fed.epochs[_WARM_UP:]
        fed.make_slow("0", times)
        since = len(fed.epochs)
        known = len(fed.heard(events.LoadMeasured))
        fed.feed_until(lambda: len(fed.heard(events.LoadMeasured)) >= known + 4, 8 * period_s)
        at_s = fed.heard(events.LoadMeasured)[known : known + 4][-1].at_s
        fed.feed(period_s * 2)
        first = fed.epochs[since + 1 : since + 4]
        after = [e for e in fed.epochs if e.at_s - e.took_s > at_s]
    executors = Setup().executors
    allowed = _throughput(before) * (executors - 1 + 1 / times) / executors
    return [
        Figure(
            what="rows a second after three periods / what the speeds allow",
            value=_throughput(after) / allowed,
            target=0.9,
        ),
        Figure(what="rows a second before", value=_throughput(before)),
        Figure(what="rows a second at first", value=_throughput(first)),
        Figure(what="rows a second after three periods", value=_throughput(after)),
    ]


def idle(seconds: float = 60.0) -> list[Figure]:
    """Measure what the loop costs where there is nothing to do: CPU time of its thread."""
    with fed_stream(Setup(executors=2, epoch_rows=4000), gw.Control(period="2 seconds")) as fed:
        fed.feed_until(lambda: len(fed.epochs) >= 2 * _WARM_UP, 60)
        before_s, since = _controller_cpu_s(), len(fed.epochs)
        fed.feed(seconds)
        spent_s, epochs = _controller_cpu_s() - before_s, fed.epochs[since:]
        moved = len(fed.heard(events.MigrationStarted))
    return [
        Figure(
            what="CPU time of the controller / time of epochs",
            value=spent_s / sum(e.took_s for e in epochs),
            target=0.02,
            good="at most",
        ),
        Figure(what="CPU ms of the controller an epoch", value=1e3 * spent_s / len(epochs)),
        Figure(what="mean epoch, ms", value=1e3 * mean(e.took_s for e in epochs)),
        Figure(what="migrations", value=moved),
    ]


def _controller_cpu_s() -> float:
    """CPU time that the controller's thread has used so far."""
    (thread,) = (t for t in threading.enumerate() if t.name == "godwit-controller")
    stat = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
    return int(stat.split()[0]) / 1e9


def _twice_the_keys_of(executor: str, fed: Fed) -> np.ndarray:
    """Weigh the keys that an executor has now so that it gets twice the share of each other one."""
    keys = pa.record_batch({"k": pa.array(np.arange(fed.setup.keys, dtype=np.int32))})
    held = fed.query.placement.assignments["totals"].key_groups(executor)
    theirs = np.isin(key_groups_of(hash_keys(keys), fed.setup.key_groups), held)
    share = theirs.mean()
    return np.where(theirs, 2 * (1 - share) / (share * (fed.setup.executors - 1)), 1.0)


def _throughput(epochs: Sequence[Epoch]) -> float:
    """Rows a second, from the beginning of the first epoch to the end of the last."""
    if not epochs:
        return float("nan")
    return sum(e.rows for e in epochs) / (epochs[-1].at_s - epochs[0].at_s + epochs[0].took_s)


def _late(epochs: Sequence[Epoch]) -> float:
    return float(np.quantile([e.took_s for e in epochs], 0.99))


def _busiest(fed: Fed) -> float:
    """Busiest executor's time per lane over the mean: the mean of the epochs that are kept."""
    shares = []
    for progress in fed.query.recentProgress:
        busy = [e["busyMs"] / max(e["lanes"], 1) for e in progress["executors"].values()]
        if sum(busy):
            shares.append(max(busy) * len(busy) / sum(busy))
    return mean(shares) if shares else float("nan")
