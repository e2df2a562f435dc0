"""A table of a database and its mirror in another schema: lag of changes, and rows after kills.

    python -m benchmarks.table_mirror [--database mariadb] [--rows 10000000] [--rate 5000]
                                      [--seconds 60] [--kills 20]

Four processes: a server, a writer (transactions of 50 inserts, updates and deletes, and the
transaction's number in one row), the query (the source, ``latest``, a sink that upserts; on Spark,
with lanes that stay), and this one, which looks at that row of the mirror.  The lag of a
transaction is the time from its commit to the first look at which the mirror has it or a later one.

First the table is copied, and the log that the server wrote meanwhile, also of the mirror's rows,
is followed to its end.  Then lags are measured, while the query runs undisturbed.  Then the query
is killed by SIGKILL and started again, as often as asked for, while the writer goes on.  At the end
the rows of both are compared.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.options import read_options, temporary_directory
from benchmarks.resident import session

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHANGES = 50  # of a transaction
_LOOK_S = 0.005
_LONGEST_S = 1800.0


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL server, and SQL of its own."""

    place: str
    replace = "ON CONFLICT (id) DO UPDATE SET amount = excluded.amount"
    numbers = "SELECT i, 0, concat('row ', i) FROM generate_series(0, {}) i"
    analyze = "VACUUM ANALYZE orders"

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[Postgres]:
        """Run a server."""
        from tests.postgres_server import running_postgres

        with running_postgres() as server:
            yield cls(server.dsn)

    def connect(self, *, autocommit: bool = True) -> Any:
        """Return a connection."""
        import psycopg

        return psycopg.connect(self.place, autocommit=autocommit)

    def source(self) -> Any:
        """Return the source of the table."""
        return gw.sources.postgres(self.place, "orders", slot="mirror")

    def sink(self) -> Any:
        """Return the sink of the mirror."""
        return gw.sinks.postgres(self.place, "mirror.orders", mode="upsert")


@dataclass(frozen=True)
class MariaDB:
    """A MariaDB server, and SQL of its own."""

    place: str
    replace = "ON DUPLICATE KEY UPDATE amount = VALUES(amount)"
    numbers = "SELECT seq, 0, concat('row ', seq) FROM seq_0_to_{}"
    analyze = "ANALYZE TABLE orders"

    @classmethod
    @contextlib.contextmanager
    def running(cls) -> Iterator[MariaDB]:
        """Run a server."""
        from tests.mariadb_server import running_mariadb

        with running_mariadb() as socket:
            server = cls(f"mariadb+pymysql://root@localhost/mysql?unix_socket={socket}")
            with contextlib.closing(server.connect()) as connection:
                connection.cursor().execute("CREATE DATABASE shop")
            yield cls(server.place.replace("/mysql?", "/shop?"))

    def connect(self, *, autocommit: bool = True) -> Any:
        """Return a connection."""
        import pymysql

        url, socket = self.place.split("?unix_socket=")
        return pymysql.connect(
            unix_socket=socket,
            user="root",
            database=url.rpartition("/")[2],
            autocommit=autocommit,
            ssl_disabled=True,
        )

    def source(self) -> Any:
        """Return the source of the table."""
        return gw.sources.mariadb(self.place, "orders")

    def sink(self) -> Any:
        """Return the sink of the mirror."""
        return gw.sinks.sql(self.place.replace("/shop?", "/mirror?"), "orders", mode="upsert")


_DATABASES: dict[str, Any] = {"postgres": Postgres, "mariadb": MariaDB}


def execute(connection: Any, statement: str) -> Any:
    """Execute a statement; return its cursor."""
    cursor = connection.cursor()
    cursor.execute(statement)
    return cursor


def write(server: Any, rows: int, rate: int, stop: Any, log: Any) -> None:
    """Commit transactions at an even rate, until told to stop; send when each was committed."""
    rng = random.Random(1)
    with contextlib.closing(server.connect(autocommit=False)) as connection:
        began_s, number = time.perf_counter(), 0
        while not stop.is_set():
            due = int((time.perf_counter() - began_s) * rate / _CHANGES)
            while number < due and not stop.is_set():
                number += 1
                keys = [rng.randrange(1, rows * 2) for _ in range(_CHANGES)]
                values = ", ".join(f"({key}, {number}, 'changed')" for key in set(keys[5:]))
                execute(connection, f"INSERT INTO orders VALUES {values} {server.replace}")
                deleted = ", ".join(map(str, keys[:5]))
                execute(connection, f"DELETE FROM orders WHERE id IN ({deleted})")
                execute(connection, f"UPDATE orders SET amount = {number} WHERE id = 0")
                connection.commit()
                log.put((number, time.time()))
            time.sleep(0.001)
    log.put(None)


def run_query(server: Any, directory: str, cores: int, progress: bool, ready: Any) -> None:
    """Run the mirror until the process is killed."""
    os.setsid()  # so that the JVM and its workers are killed too
    flow = gw.Flow("mirror")
    newest = flow.source("orders", server.source()).key_by("id").latest()
    flow.sink("mirror", newest, server.sink())
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
    row = execute(connection, query).fetchone()
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
    options = read_options(
        __doc__,
        database=tuple(_DATABASES),
        rows=1_000_000,
        rate=5_000,
        seconds=30,
        kills=5,
        cores=2,
        progress=False,
    )
    processes = multiprocessing.get_context("spawn")
    with (
        _DATABASES[options.database].running() as server,
        temporary_directory() as directory,
        contextlib.closing(server.connect()) as connection,
    ):
        execute(connection, "CREATE TABLE orders (id bigint PRIMARY KEY, amount bigint, note text)")
        execute(connection, "CREATE SCHEMA mirror")
        execute(connection, f"INSERT INTO orders {server.numbers.format(options.rows)}")
        execute(connection, server.analyze)
        began_s = time.monotonic()
        query = Query(server, str(directory), options.cores, options.progress)
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
            target=write, args=(server, options.rows, options.rate, stop, log)
        )
        writer.start()
        behind_s = wait_for(connection, 1)
        print(f"the log of that is followed {behind_s:.1f} s later", flush=True)
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
        columns = "SELECT id, amount, cast(note AS char(40)) FROM"
        both = f"SELECT count(*) FROM ({columns} {{}} EXCEPT ALL {columns} {{}}) d"
        lost = value(connection, both.format("orders", "mirror.orders"))
        doubled = value(connection, both.format("mirror.orders", "orders"))
        print(
            f"{last:,} transactions of {_CHANGES} changes, {options.kills} kills, {behind_s:.1f} s "
            f"behind at the end: {lost} rows lost or old, {doubled} doubled or old"
        )
        query.kill()


if __name__ == "__main__":
    main()
