"""The join of `benchmarks.joins.tables` by Pathway; run by its Python, which need not have Godwit.

Each line of the input is a JSON object: ``orders`` and ``customers``, paths of Parquet files of
changes, and ``total``, number and checksum of the joined rows after them.  The rows with 1 are sent
as upserts by key.  Printed is the time from the commit of both tables, which have all their rows by
then, until the joined rows have that total; Pathway itself adds them up.
"""

import json
import queue
import sys
import threading
import time
from typing import Any

import pathway as pw
import pyarrow.parquet as pq


class Orders(pw.Schema):  # type: ignore[misc]
    """A table."""

    number: int = pw.column_definition(primary_key=True)  # Pathway has an ``id`` of its own
    customer: int
    amount: int


class Customers(pw.Schema):  # type: ignore[misc]
    """The other table."""

    customer: int = pw.column_definition(primary_key=True)
    city: int


class Feed(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """Rows of a table, as they are given."""

    def __init__(self, columns: list[str]) -> None:
        super().__init__(session_type="upsert")
        self.columns = columns
        self.paths: queue.Queue[str] = queue.Queue()
        self.ready: queue.Queue[None] = queue.Queue()
        self.may_commit: queue.Queue[None] = queue.Queue()

    def run(self) -> None:
        """Send the rows of each file, and commit when told."""
        while path := self.paths.get():
            rows = pq.read_table(path)
            rows = rows.rename_columns(["number" if n == "id" else n for n in rows.column_names])
            rows = rows.filter(pq.filters_to_expression([("change", "==", 1)]))
            for values in zip(*(rows.column(c).to_pylist() for c in self.columns), strict=True):
                self.next(**dict(zip(self.columns, values, strict=True)))
            self.ready.put(None)
            self.may_commit.get()
            self.commit()


feeds = {"orders": Feed(["number", "customer", "amount"]), "customers": Feed(["customer", "city"])}
orders = pw.io.python.read(feeds["orders"], schema=Orders, autocommit_duration_ms=None)
customers = pw.io.python.read(feeds["customers"], schema=Customers, autocommit_duration_ms=None)
joined = orders.join(customers, orders.customer == customers.customer).select(
    weight=orders.number + 3 * orders.customer + 7 * orders.amount + 13 * customers.city
)
totals = joined.reduce(rows=pw.reducers.count(), weight=pw.reducers.sum(joined.weight))
seen: queue.Queue[tuple[int, int]] = queue.Queue()


def on_change(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:  # noqa: ARG001
    """Note a total."""
    if is_addition:
        seen.put((row["rows"], row["weight"]))


pw.io.subscribe(totals, on_change)


def drive() -> None:
    """Go through the epochs."""
    for line in sys.stdin:
        epoch = json.loads(line)
        for name, feed in feeds.items():
            feed.paths.put(epoch[name])
        for feed in feeds.values():
            feed.ready.get()
        begin_s = time.perf_counter()
        for feed in feeds.values():  # both, since a table without a commit holds back the other
            feed.may_commit.put(None)
        while epoch["total"] is not None and list(seen.get(timeout=600)) != epoch["total"]:
            pass
        print(f"TOOK {time.perf_counter() - begin_s}", flush=True)
    for feed in feeds.values():
        feed.paths.put("")


threading.Thread(target=drive, daemon=True).start()
pw.run(monitoring_level=pw.MonitoringLevel.NONE)
