"""Latency of look-ups of single keys in the state of a query, while its rows stream.

    python -m benchmarks.state_lookups [--rows 100000] [--keys 100000] [--seconds 40] [--threads 2]

A query on Spark counts generated rows by key, at a constant rate.  Once its state has most keys,
threads ask for keys at random, each one look-up every few milliseconds: by `query.state(...).get`,
and over HTTP at the port of the live page.  Measured: median and 99th percentile of the time of a
look-up (its CPU time too, which other programs on the machine change less), and the rows a second
that the query processed meanwhile, and without look-ups before.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
from benchmarks.options import read_options, temporary_directory
from benchmarks.resident import session

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable

_EVERY_S = 0.005  # between two look-ups of a thread


def _over_http(url: str) -> Callable[[int], Any]:
    """Return a function that asks for a key over a connection of its own, as curl does."""
    host = urlsplit(url).netloc

    def get(key: int) -> Any:
        connection = http.client.HTTPConnection(host, timeout=60)
        connection.request("GET", f"/state/counts?key={key}")
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status == 200, body
        return body

    return get


def _asked(
    get: Callable[[int], Any], keys: int, seconds: float, threads: int
) -> list[tuple[float, float]]:
    """Ask for keys at random; return the milliseconds of each look-up, and those of CPU time."""
    took_ms: list[list[tuple[float, float]]] = [[] for _ in range(threads)]
    end_s = time.monotonic() + seconds

    def ask(number: int) -> None:
        drawn = random.Random(number)
        while time.monotonic() < end_s:
            key = drawn.randrange(keys)
            began_s, cpu_s = time.perf_counter(), time.thread_time()
            get(key)
            passed_s, used_s = time.perf_counter() - began_s, time.thread_time() - cpu_s
            took_ms[number].append((passed_s * 1e3, used_s * 1e3))
            time.sleep(_EVERY_S)

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(threads)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return [ms for of_thread in took_ms for ms in of_thread]


def main() -> None:
    """Measure and print."""
    options = read_options(__doc__, rows=100_000, keys=100_000, seconds=40, threads=2)
    session(2)
    flow = gw.Flow("asked")
    rows = flow.source("rows", gw.sources.rate(options.rows, num_keys=options.keys))
    counts = rows.key_by("key").compute(name="counts", n=gw.count(), last=gw.max("value"))
    flow.sink("none", counts, gw.sinks.noop())
    with temporary_directory() as directory:
        query = flow.start(
            checkpoint=str(directory),
            trigger={"processingTime": "1 second"},
            observability=gw.Observability(ui_port=0),
        )
        try:
            state = query.state("counts")
            while state.scan(limit=options.keys).num_rows < 0.9 * options.keys:
                time.sleep(1)
            assert query.ui_url is not None
            per_s = {}
            for name, ask in (
                ("no look-ups", None),
                ("query.state(...).get", state.get),
                ("over HTTP", _over_http(query.ui_url)),
            ):
                seconds = options.seconds / 3
                before, began_s = query.recentProgress[-1], time.monotonic()
                took_ms = [] if ask is None else _asked(ask, options.keys, seconds, options.threads)
                time.sleep(max(0.0, began_s + seconds - time.monotonic()))
                epochs = [p for p in query.recentProgress if p["epoch"] > before["epoch"]]
                read = sum(p["numInputRows"] for p in epochs)
                per_s[name] = read / (time.monotonic() - began_s)
                line = f"{name:22} {per_s[name]:9,.0f} rows/s"
                if took_ms:
                    median, last = np.percentile(took_ms, [50, 99])
                    line += (
                        f"  {len(took_ms):6,} look-ups  median {median:.2f} ms  99 % {last:.2f} ms"
                    )
                print(line, flush=True)
        finally:
            query.stop()


if __name__ == "__main__":
    main()
