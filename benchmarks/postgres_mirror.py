"""A PostgreSQL table and its mirror in another schema: lag of changes, and rows after kills.

    python -m benchmarks.postgres_mirror [--rows 10000000] [--rate 5000] [--seconds 60] [--kills 20]

Four processes: a server, a writer (transactions of 50 inserts, updates and deletes, and the
transaction's number in one row), the query (a slot, ``latest``, a sink that upserts; on Spark, with
lanes that stay), and this one, which looks at that row of the mirror.  The lag of a transaction is
the time from its commit to the first look at which the mirror has it or a later one.

First the table is copied, then lags are measured, then the query is killed by SIGKILL and started
again, as often as asked for, while the writer goes on.  At the end the rows of both are compared.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from typing import Any

import numpy as np
from benchmarks.options import read_options, temporary_directory
from benchmarks.resident import session

import godwit as gw

_CHANGES = 50  # of a transaction
_LOOK_S = 0.005
_LONGEST_S = 1800.0


def write(dsn: str, rows: int, rate: int, stop: Any, log: Any) -> None:
    """Commit transactions at an even rate, until told to stop; send when each was committed."""
    import psycopg

    rng = random.Random(1)
    with psycopg.connect(dsn) as connection:
        began_s, number = time.perf_counter(), 0
        while not stop.is_set():
            due = int((time.perf_counter() - began_s) * rate / _CHANGES)
            while number < due and not stop.is_set():
                number += 1
                keys = [rng.randrange(1, rows * 2) for _ in range(_CHANGES)]
                connection.execute(
                    "INSERT INTO orders SELECT k, %s, 'changed' FROM unnest(%s::int8[]) k "
                    "ON CONFLICT (id) DO UPDATE SET amount = excluded.amount",
                    [number, list(set(keys[5:]))],
                )
                connection.execute("DELETE FROM orders WHERE id = ANY (%s)", [keys[:5]])
                connection.execute("UPDATE orders SET amount = %s WHERE id = 0", [number])
                connection.commit()
                log.put((number, time.time()))
            time.sleep(0.001)
    log.put(None)


def run_query(dsn: str, directory: str, cores: int, progress: bool, ready: Any) -> None:
    """Run the mirror until the process is killed."""
    os.setsid()  # so that the JVM and its workers are killed too
    flow = gw.Flow("mirror")
    source = gw.sources.postgres(dsn, "orders", slot="mirror")
    newest = flow.source("orders", source).key_by("id").latest()
    flow.sink("mirror", newest, gw.sinks.postgres(dsn, "mirror.orders", mode="upsert"))
    query = flow.start(checkpoint=f"{directory}/ck", session=session(cores))
    ready.set()
    if progress:
        while not query.awaitTermination(5):
            for entry in query.recentProgress[-3:]:
                print(entry["numInputRows"], entry["durationMs"], flush=True)
    query.awaitTermination()


class Query:
    """The process of the query."""

    def __init__(self, *arguments: Any) -> None:
        self._processes = multiprocessing.get_context("spawn")
        self._arguments = arguments
        self.start()

    def start(self) -> None:
        """Start the process, and wait until the query runs."""
        ready = self._processes.Event()
        self._process = self._processes.Process(target=run_query, args=(*self._arguments, ready))
        self._process.start()
        assert ready.wait(300), "the query did not start"

    def kill(self) -> None:
        """Kill the process and its children."""
        assert self._process.pid is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()


def value(connection: Any, query: str) -> Any:
    """Return the first value of a query's result."""
    row = connection.execute(query.encode()).fetchone()
    return None if row is None else row[0]


def wait_for(connection: Any, number: int) -> float:
    """Wait until the mirror has a transaction; return the seconds."""
    began_s = time.monotonic()
    query = "SELECT amount FROM mirror.orders WHERE id = 0"
    while (seen := value(connection, query)) is None or seen < number:
        assert time.monotonic() - began_s < _LONGEST_S, "the mirror does not follow"
        time.sleep(0.05)
    return time.monotonic() - began_s


def lags_ms(connection: Any, log: Any, seconds: float) -> list[float]:
    """Look at the mirror for a while; return the lags of transactions committed meanwhile."""
    waiting: list[tuple[int, float]] = []
    lags: list[float] = []
    began_s = time.time()
    while time.time() < began_s + seconds:
        while not log.empty():
            waiting.append(log.get())
        seen = value(connection, "SELECT amount FROM mirror.orders WHERE id = 0")
        now_s = time.time()
        while waiting and waiting[0][0] <= seen:
            _, committed_s = waiting.pop(0)
            if committed_s > began_s:
                lags.append((now_s - committed_s) * 1e3)
        time.sleep(_LOOK_S)
    return lags


def main() -> None:
    import psycopg
    from tests.postgres_server import running_postgres

    options = read_options(
        __doc__, rows=1_000_000, rate=5_000, seconds=30, kills=5, cores=2, progress=False
    )
    processes = multiprocessing.get_context("spawn")
    with (
        running_postgres() as server,
        temporary_directory() as directory,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        connection.execute("CREATE TABLE orders (id int8 PRIMARY KEY, amount int8, note text)")
        connection.execute("CREATE SCHEMA mirror")
        insert = (
            f"INSERT INTO orders SELECT i, 0, 'row ' || i FROM generate_series(0, {options.rows}) i"
        )
        connection.execute(insert.encode())
        connection.execute("VACUUM ANALYZE orders")
        began_s = time.monotonic()
        query = Query(server.dsn, str(directory), options.cores, options.progress)
        started_s = time.monotonic()
        stop, log = processes.Event(), processes.Queue()
        wait_for(connection, 0)
        count = "SELECT count(*) FROM mirror.orders"
        while value(connection, count) < options.rows + 1:
            assert time.monotonic() - began_s < _LONGEST_S, "the table is not copied"
            time.sleep(0.5)
        copied_s = time.monotonic() - started_s
        rows_per_s = options.rows / copied_s
        print(
            f"{options.rows:,} rows copied in {copied_s:.1f} s, {rows_per_s:,.0f} rows/s",
            flush=True,
        )
        writer = processes.Process(
            target=write, args=(server.dsn, options.rows, options.rate, stop, log)
        )
        writer.start()
        lags_ms(connection, log, 20)  # in which lanes start
        lags = lags_ms(connection, log, options.seconds)
        median, late = np.percentile(lags, [50, 99])
        print(
            f"{len(lags):,} transactions: lag {median:.0f} ms median, {late:.0f} ms at 99 %",
            flush=True,
        )
        rng = random.Random(2)
        for _ in range(options.kills):
            time.sleep(rng.random() * 3)
            query.kill()
            query.start()
        stop.set()
        last = 0
        while (entry := log.get(timeout=60)) is not None:
            last = entry[0]
        writer.join()
        behind_s = wait_for(connection, last)
        both = "SELECT count(*) FROM (SELECT * FROM {} EXCEPT ALL SELECT * FROM {}) d"
        lost = value(connection, both.format("orders", "mirror.orders"))
        doubled = value(connection, both.format("mirror.orders", "orders"))
        print(
            f"{last:,} transactions of {_CHANGES} changes, {options.kills} kills, {behind_s:.1f} s "
            f"behind at the end: {lost} rows lost or old, {doubled} doubled or old"
        )
        query.kill()


if __name__ == "__main__":
    main()
