"""Paper 5, figure 12 (b): state size against the time of a reassignment, in and between executors.

Figure 12 (a), the synchronisation with upstream executors, has no counterpart: a key group changes
place between two epochs.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

import godwit as gw
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
    unchecked,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.model.assignment import Assignment
    from godwit.testing.flows import Run
    from godwit_lab.cli.reproduce.figure import Data


_KEYS, _MOVES = 64, 5
_LINK_BYTES_PER_S = 1.25e8
"""The paper's network, 1 Gbit/s."""
_PLACES = {"within an executor": ((0, 1), (0, 0)), "between executors": ((1, 0), (0, 0))}
"""Executor and lane that the key group goes to, in turns."""


def _fill(
    key: tuple[int], rows: gw.types.KeyRows, blob: dict[str, bytes]
) -> Iterator[tuple[int, int]]:
    """Give a key as many bytes as its first row says; later rows change nothing."""
    for row in rows:
        if "state" not in blob:
            blob["state"] = np.random.default_rng(key[0]).bytes(row.n)
        yield key[0], len(blob["state"])


def _stream() -> Run:
    """One key group on one of two executors, of two lanes each."""
    flow = gw.Flow("reassigned", num_key_groups=1)
    source = flow.source("rows", gw.testing.stream("k int, n int"))
    sizes = source.key_by("k").process(_fill, state=dict, output="k int, n int", name="hold")
    flow.sink("out", sizes, gw.sinks.memory())
    return gw.testing.cluster(flow, executors={"a": 2, "b": 2})


def _at(now: Assignment, executor: int, lane: int) -> Assignment:
    """Return an assignment of the key group to a lane."""
    return replace(
        now,
        version=now.version + 1,
        executor_of=np.array([executor], np.int32),
        lane_of=np.array([lane], np.int32),
    )


def _reassign(stream: Run, places: tuple[tuple[int, int], ...]) -> tuple[float, int]:
    """CPU milliseconds of a reassignment and the next epoch beyond an epoch, and bytes copied."""

    def epoch() -> float:
        began = time.process_time()
        stream.epoch({"rows": [{"k": _KEYS, "n": 8}]})
        return time.process_time() - began

    usual = median([epoch() for _ in range(_MOVES)])
    before, took = len(stream.events), []
    for executor, lane in itertools.islice(itertools.cycle(places), _MOVES):
        began = time.process_time()
        stream.migrate(_at(stream.placement.assignments["hold"], executor, lane), component="hold")
        took.append(time.process_time() - began + epoch() - usual)
    warmed = [e for e in stream.events[before:] if isinstance(e, gw.events.KeyGroupsWarmed)]
    return 1e3 * median(took), sum(event.state_bytes for event in warmed) // _MOVES


def _took(place: str, number: int) -> Callable[[Data], float]:
    """Return a getter of the time of a reassignment with the state of a number in the sizes."""
    return lambda data: float(data.column("ms", reassignment=place)[number])


_WITHIN, _BETWEEN = _PLACES


@figure(
    title="State size against the time of a reassignment",
    clauses=(
        at_most("the time within a node is negligible", "over that between nodes, largest state",
                lambda data: _took(_WITHIN, -1)(data) / _took(_BETWEEN, -1)(data), 0.1,
                decisive=True),
        at_most("since state is shared within a process", "bytes copied",
                lambda data: data.column("bytes", reassignment=_WITHIN).sum(), 0.0, decisive=True),
        at_least("between nodes it grows with the state", "rank correlation",
                 lambda data: rank_correlation(data.column("kib", reassignment=_BETWEEN).tolist(),
                                               data.column("ms", reassignment=_BETWEEN).tolist()),
                 0.8),
        at_least("significantly so at 32 MB", "over the time of the smallest state",
                 lambda data: data.one("ms", reassignment=_BETWEEN, kib=2**15)
                 / _took(_BETWEEN, 0)(data), 5.0),
        at_least("as its transfer dominates", "time on the link over all of it, largest state",
                 lambda data: float(data.column("bytes", reassignment=_BETWEEN)[-1])
                 * 1e3 / _LINK_BYTES_PER_S / _took(_BETWEEN, -1)(data), 0.5),
        at_least("all of it is copied", "bytes over the state, least",
                 lambda data: (data.column("bytes", reassignment=_BETWEEN)
                               / data.column("kib", reassignment=_BETWEEN)).min() / 1024, 1.0,
                 beyond=True),
        unchecked("executor-centric takes slightly less than resource-centric",
                  "one protocol moves state here, whichever policy planned it"),
        unchecked("synchronisation takes 2 ms, and 2 to 3 orders of magnitude more for the "
                  "resource-centric system (part a)",
                  "key groups change place between two epochs, without a synchronisation"),
    ),
    workload="One key group of 64 keys on two executors of two lanes; the real coordinator, lanes, "
    "stores and checkpoint in one process. CPU time, and for copies the paper's network of "
    "1 Gbit/s.",
    place=RunsOn.PROCESS,
    charts=(
        Chart(x="kib", y="ms", by="reassignment", x_label="state of the key group (KiB)",
              y_label="time (ms)", log_x=True, log_y=True),
    ),
    mechanism="the local store that lanes of an executor share",
    reason="This is part (b). Part (a), the synchronisation with upstream executors, has no "
    "counterpart here.",
)  # fmt: skip
def figure12(run: FigureRun) -> FigureResult:
    sizes = run.pick((2**15, 2**20, 2**23, 2**25), (2**15, 2**19, 2**21, 2**23, 2**25, 2**26))
    rows: list[Row] = []
    for size in sizes:
        run.progress(f"{size // 1024:,} KiB")
        for name, places in _PLACES.items():
            with _stream() as stream:
                first = [{"k": k, "n": size // _KEYS} for k in range(_KEYS)]
                stream.epoch({"rows": first})
                stream.epoch({"rows": [{"k": _KEYS, "n": 8}]})
                ms, moved = _reassign(stream, _PLACES[_BETWEEN] if run.off else places)
            ms = max(ms, 0.01) + 1e3 * moved / _LINK_BYTES_PER_S
            rows.append({"kib": size / 1024, "reassignment": name, "ms": ms, "bytes": moved})
    return FigureResult(
        rows=rows,
        notes=("CPU times are medians on the machine at hand, background copies included",),
    )
