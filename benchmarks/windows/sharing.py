"""Shared panes against states per window, and which of the two the cost model takes.

    python -m benchmarks.windows.sharing [--keys N] [--rows N] [--minutes N] [--cases N ...]

Lanes in one process without Spark, CPU milliseconds a minute of event time, means over the second
half of a run.  A case runs twice either way throughout, in turns, of which the faster one counts;
and twice as the model chooses, beginning with either.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, cast

import numpy as np
from benchmarks.options import read_options
from benchmarks.streaming.inputs import names_of
from benchmarks.took import timed_epoch
from benchmarks.windows.inputs import timed_batch
from benchmarks.windows.lane import windowed

import godwit as gw
from godwit.control.windows import SharePanes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from godwit.engine.policies import FlowEpoch
    from godwit.library.windows.sharing import PaneMeter
    from godwit.operators.window_specs import Hopping


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Windows, and how much event time an epoch has."""

    about: str
    windows: tuple[Hopping, ...]
    minutes: int


def _hopping(windows: int, minutes: int) -> Case:
    window = gw.hopping(f"{windows} minutes", every="1 minute")
    return Case(about=f"{windows} of a minute each", windows=(window,), minutes=minutes)


def _tumbling(lengths: tuple[int, ...], minutes: int) -> Case:
    return Case(
        about=f"tumbling {', '.join(map(str, lengths))}",
        windows=tuple(gw.tumbling(f"{length} minutes") for length in lengths),
        minutes=minutes,
    )


CASES = (
    *(_hopping(windows, 1) for windows in (2, 4, 8, 12)),
    *(_hopping(windows, 10) for windows in (2, 4, 12)),
    _tumbling((5, 10, 15, 20), 5),
    *(_tumbling((7, 10, 13, 17, 19, 23)[:count], 10) for count in (2, 4, 6)),
    _tumbling((29, 30), 10),
)


def measure(
    case: Case, given: argparse.Namespace, *, first: bool, chooses: bool
) -> tuple[float, bool]:
    """Give CPU milliseconds a minute, and which way the last epoch went."""
    rng, names = np.random.default_rng(1), names_of(np.arange(given.keys))
    with tempfile.TemporaryDirectory() as root:
        run, wanted = windowed(
            lambda keyed: keyed.window(*case.windows, name="w").compute(
                n=gw.count(), s=gw.sum("v")
            ),
            root,
            num_key_groups=64,
        )
        (sharing,) = cast("Iterable[PaneMeter]", run.times.sharing.values())
        sharing.duplicated = first
        policy, no_epoch = SharePanes({"w": sharing}), cast("FlowEpoch", None)
        took = []
        for epoch in range(given.minutes // case.minutes):
            batch = timed_batch(
                rng, names, epoch, given.rows * case.minutes, span_us=case.minutes * 60_000_000
            )
            took.append(timed_epoch(run.run, {0: [batch.select(wanted)]}))
            policy.observe(no_epoch)
            for proposal in policy.propose(0.0) if chooses else ():
                sharing.duplicated = proposal.change.duplicated
                policy.answered(proposal)
    half = took[len(took) // 2 :]
    return fmean(one.lanes for one in half) / case.minutes, sharing.duplicated


def main() -> None:
    given = read_options(
        __doc__, keys=20_000, rows=20_000, minutes=120, cases=list(range(len(CASES)))
    )
    print("| windows | minutes an epoch | shared | duplicated | chosen, beginning with either |")
    print("|---|---|---|---|---|")
    for case in [CASES[number] for number in given.cases]:
        took: dict[bool, list[float]] = {False: [], True: []}
        for way in (True, False, False, True):
            took[way].append(measure(case, given, first=way, chooses=False)[0])
        ends = [measure(case, given, first=way, chooses=True)[1] for way in (False, True)]
        chosen = ", ".join("duplicated" if way else "shared" for way in ends)
        shared, duplicated = min(took[False]), min(took[True])
        print(
            f"| {case.about} | {case.minutes} | {shared:.1f} ms | {duplicated:.1f} ms | {chosen} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
