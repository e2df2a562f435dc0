"""Lookups in another system that answers after a while: one after another, and side by side.

    python -m benchmarks.async_lookups [--lookups 10000] [--wait-ms 5] [--capacity 100]

One lookup for each key, in one epoch of one lane in this process, in turns; seconds of the epoch.
The plain function sleeps, the asynchronous one lets other keys continue.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pyarrow as pa
from benchmarks.options import read_options

import godwit as gw


def epoch_s(function: Any, lookups: int, **options: Any) -> float:
    """Run an epoch with a row of each key, and return how long it took."""
    flow = gw.Flow("lookups", num_key_groups=16)
    keyed = flow.source("rows", gw.testing.stream("k long")).key_by("k")
    answers = keyed.process(function, state=int, output="k long, answer long", **options)
    flow.sink("out", answers, gw.sinks.noop())
    run = gw.testing.cluster(flow)
    rows = pa.table({"k": pa.array(range(lookups))})
    started_s = time.perf_counter()
    run.epoch({"rows": rows})
    took_s = time.perf_counter() - started_s
    assert run.rows("out").num_rows == lookups
    return took_s


def main() -> None:
    given = read_options(__doc__, lookups=10_000, wait_ms=5.0, capacity=100, rounds=2)
    wait_s = given.wait_ms / 1e3

    def one_by_one(key: Any, _rows: Any, seen: Any) -> Any:
        time.sleep(wait_s)
        seen.value += 1
        return [(key[0], seen.value)]

    async def side_by_side(key: Any, _rows: Any, seen: Any) -> Any:
        await asyncio.sleep(wait_s)
        seen.value += 1
        return [(key[0], seen.value)]

    def at_once(key: Any, _rows: Any, seen: Any) -> Any:
        seen.value += 1
        return [(key[0], seen.value)]

    for _ in range(given.rounds):
        plain_s = epoch_s(one_by_one, given.lookups)
        settings = gw.types.Async(capacity=given.capacity)
        awaited_s = epoch_s(side_by_side, given.lookups, asynchronous=settings)
        print(
            f"{given.lookups:,} lookups of {given.wait_ms:g} ms: one by one {plain_s:.2f} s, "
            f"{given.capacity} at once {awaited_s:.2f} s, {plain_s / awaited_s:.0f} times as fast; "
            f"without any lookup {epoch_s(at_once, given.lookups):.2f} s"
        )


if __name__ == "__main__":
    main()
