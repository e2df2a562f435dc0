"""Cost of OpenTelemetry to an epoch: epochs that are recorded take turns with others, in one run.

    python -m benchmarks.telemetry [--seconds 60] [--rows 20000]

A query on Spark counts generated rows by key, as fast as it can.  A recorder passes the entries of
every other epoch to `godwit.ops.telemetry`, which exports metrics and spans by OTLP to a receiver
on this machine, and the same run so has epochs beside which telemetry is recorded, and epochs
beside which it is not, on the same machine and at the same time.  Measured: the median of both, and
the interval of their ratio, by drawing the epochs again; and the CPU time of recording an epoch.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.options import read_options, temporary_directory
from benchmarks.resident import session
from tests.support.receiver import Receiver

import godwit as gw
from godwit.ops.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Mapping

_SKIPPED = 20  # epochs at the beginning, in which lanes start and Python loads
_DRAWN = 2000


class EveryOther:
    """Passes the entries of every other epoch on; `recorder`: to it."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._on = False
        self.cpu_ms: list[float] = []
        self.after: dict[int, bool] = {}  # epoch → whether the one before was recorded meanwhile

    def add(self, kind: str, values: Mapping[str, Any]) -> None:
        """Record an entry, or not."""
        if kind == "progress":
            self._on = values["epoch"] % 2 == 0
            self.after[values["epoch"] + 1] = self._on
        if self._on:
            began_s = time.thread_time()
            self._recorder.add(kind, values)
            if kind == "progress":
                self.cpu_ms.append((time.thread_time() - began_s) * 1e3)

    def flush(self) -> None:
        """Pass it on."""
        self._recorder.flush()


def main() -> None:
    """Measure and print."""
    options = read_options(__doc__, seconds=60, rows=20_000)
    session(2)
    with temporary_directory() as directory, Receiver() as receiver:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.url
        telemetry = Telemetry("measured")
        every_other = EveryOther(telemetry.recorder)
        flow = gw.Flow("measured")
        rows = gw.sources.rate(
            options.rows, num_keys=10_000, paced=False, max_rows_per_epoch=options.rows
        )
        counts = flow.source("rows", rows).key_by("key").compute(n=gw.count())
        flow.sink("none", counts, gw.sinks.noop())
        query = flow.start(checkpoint=str(directory / "ck"))
        query._dispatcher.add_recorder("every other", every_other)  # noqa: SLF001  no user does
        took_ms: dict[int, float] = {}
        end_s = time.monotonic() + options.seconds
        while time.monotonic() < end_s:
            time.sleep(0.5)
            took_ms |= {p["epoch"]: p["durationMs"]["epoch"] for p in query.recentProgress}
        query.stop()
        telemetry.close()
        sent = len(receiver.posts)
    some = [epoch for epoch in sorted(took_ms)[_SKIPPED:] if epoch in every_other.after]
    on, off = (
        np.array([took_ms[epoch] for epoch in some if every_other.after[epoch] is recorded])
        for recorded in (True, False)
    )
    rng = np.random.default_rng(1)
    ratios = np.median(rng.choice(on, (_DRAWN, len(on))), axis=1) / np.median(
        rng.choice(off, (_DRAWN, len(off))), axis=1
    )
    low, high = np.percentile(ratios, [5, 95])
    print(f"recorded      {len(on):5} epochs, median {np.median(on):7.1f} ms")
    print(f"not recorded  {len(off):5} epochs, median {np.median(off):7.1f} ms")
    print(f"ratio {np.median(on) / np.median(off):.3f} (90 % within {low:.3f} to {high:.3f})")
    print(f"CPU time to record an epoch: {np.median(every_other.cpu_ms):.2f} ms; {sent} requests")


if __name__ == "__main__":
    main()
