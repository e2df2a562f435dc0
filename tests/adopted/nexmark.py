"""The queries of NEXMark in Spark SQL, natively and adopted: ``python -m tests.adopted.nexmark``.

Prints for each query whether Spark runs it as a stream, and whether the adopted one gives the same
rows in the same batches.  The queries are those of Tucker et al., "NEXMark - A Benchmark for
Queries over Data Streams", and of its later extension to q22, in Spark SQL.
"""

from __future__ import annotations

import datetime as dt
import random
import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from tests.support.native import Case, Stream, compare_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame

_START = dt.datetime(2024, 1, 1, 7, 59)  # noqa: DTZ001  in the session's zone
_SCHEMAS = {
    "bid": "auction bigint, bidder bigint, price bigint, channel string, url string, "
    "ts timestamp, extra string",
    "auction": "id bigint, item string, reserve bigint, ts timestamp, expires timestamp, "
    "seller bigint, category bigint",
    "person": "id bigint, name string, city string, state string, ts timestamp",
}
_COUNTS = (
    "SELECT auction, count(*) AS num, window FROM {bid} "
    "GROUP BY window(ts, '10 seconds', '2 seconds'), auction"
)
_DAY = (
    "count(*) AS bids, count(*) FILTER (WHERE price < 100) AS low, "
    "count(*) FILTER (WHERE price >= 100 AND price < 500) AS middle"
)
_DISTINCT = f"{_DAY}, count(DISTINCT bidder) AS bidders, count(DISTINCT auction) AS auctions"

QUERIES: dict[str, tuple[str, str]] = {
    "q0": (
        "append",
        """SELECT auction, bidder, price, ts, extra FROM {bid}""",
    ),
    "q1": (
        "append",
        """SELECT auction, bidder, 0.908 * price AS price, ts, extra FROM {bid}""",
    ),
    "q2": (
        "append",
        """SELECT auction, price FROM {bid} WHERE auction % 3 = 0""",
    ),
    "q3": (
        "append",
        """SELECT p.name, p.city, p.state, a.id FROM {auction} a JOIN {person} p ON a.seller =
        p.id WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    ),
    "q4": (
        "append",
        """SELECT category, avg(final) FROM (SELECT max(b.price) AS final, a.category FROM
        {auction} a JOIN {bid} b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires GROUP
        BY a.id, a.category) GROUP BY category""",
    ),
    "q5": (
        "append",
        f"""SELECT b.auction, b.num FROM ({_COUNTS}) b JOIN (SELECT max(num) AS most, window FROM
        ({_COUNTS}) GROUP BY window) m ON b.window = m.window AND b.num >= m.most""",
    ),
    "q7": (
        "append",
        """SELECT b.auction, b.price, b.bidder, b.ts FROM {bid} b JOIN (SELECT max(price) AS
        most, window.end AS until FROM {bid} GROUP BY window(ts, '10 seconds')) m ON b.price =
        m.most AND b.ts BETWEEN m.until - INTERVAL 10 SECONDS AND m.until""",
    ),
    "q8": (
        "append",
        """SELECT p.id, p.name, p.window FROM (SELECT id, name, window FROM {person} GROUP BY id,
        name, window(ts, '10 seconds')) p JOIN (SELECT seller, window FROM {auction} GROUP BY
        seller, window(ts, '10 seconds')) a ON p.id = a.seller AND p.window = a.window""",
    ),
    "q9": (
        "append",
        """SELECT * FROM (SELECT a.id, b.price, row_number() OVER (PARTITION BY a.id ORDER BY
        b.price DESC, b.ts) AS place FROM {auction} a JOIN {bid} b ON a.id = b.auction AND
        b.ts BETWEEN a.ts AND a.expires) WHERE place <= 1""",
    ),
    "q10": (
        "append",
        """SELECT auction, bidder, price, ts, extra, date_format(ts, 'yyyy-MM-dd') AS dt,
        date_format(ts, 'HH:mm') AS hm FROM {bid}""",
    ),
    "q11": (
        "append",
        """SELECT bidder, count(*) AS bids, session_window.start, session_window.end FROM {bid}
        GROUP BY bidder, session_window(ts, '3 seconds')""",
    ),
    "q12": (
        "update",
        """SELECT bidder, count(*) AS bids FROM (SELECT bidder, current_timestamp() AS p FROM
        {bid}) GROUP BY bidder, window(p, '3650 days')""",
    ),
    "q13": (
        "append",
        """SELECT b.auction, b.bidder, b.price, b.ts, s.value FROM {bid} b JOIN (SELECT id AS key,
        concat('side ', id) AS value FROM range(4)) s ON b.auction = s.key""",
    ),
    "q14": (
        "append",
        """SELECT auction, bidder, 0.908 * price AS price, CASE WHEN hour(ts) BETWEEN 8 AND 18
        THEN 'day' WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'night' ELSE 'other' END AS kind,
        ts, length(extra) - length(replace(extra, 'c', '')) AS c FROM {bid} WHERE 0.908 *
        price > 200""",
    ),
    "q15": (
        "update",
        f"""SELECT date_format(ts, 'yyyy-MM-dd') AS day, {_DISTINCT} FROM {{bid}} GROUP BY 1""",
    ),
    "q16": (
        "update",
        f"""SELECT channel, date_format(ts, 'yyyy-MM-dd') AS day, max(date_format(ts, 'HH:mm')),
        {_DISTINCT} FROM {{bid}} GROUP BY 1, 2""",
    ),
    "q17": (
        "update",
        f"""SELECT auction, date_format(ts, 'yyyy-MM-dd') AS day, {_DAY}, min(price), max(price),
        avg(price), sum(price) FROM {{bid}} GROUP BY 1, 2""",
    ),
    "q18": (
        "append",
        """SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY ts
        DESC) AS place FROM {bid}) WHERE place <= 1""",
    ),
    "q19": (
        "append",
        """SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC)
        AS place FROM {bid}) WHERE place <= 10""",
    ),
    "q20": (
        "append",
        """SELECT b.auction, b.bidder, b.price, a.item, a.reserve, a.seller FROM {bid} b JOIN
        {auction} a ON b.auction = a.id WHERE a.category = 10""",
    ),
    "q21": (
        "append",
        """SELECT auction, bidder, price, channel, CASE WHEN lower(channel) = 'apple' THEN '0'
        WHEN lower(channel) = 'google' THEN '1' ELSE regexp_extract(url,
        '(&|^)channel_id=([^&]*)', 2) END AS channel_id FROM {bid} WHERE regexp_extract(url,
        '(&|^)channel_id=([^&]*)', 2) <> '' OR lower(channel) IN ('apple', 'google')""",
    ),
    "q22": (
        "append",
        """SELECT auction, bidder, price, channel, split(url, '/')[3] AS dir1, split(url, '/')[4]
        AS dir2 FROM {bid}""",
    ),
}
"""Query → output mode and text.  q6 has windows of rows, which streams of Spark do not have; the
windows of the clock in q12 are so long here that every run falls into one of them."""


def _rows(draw: random.Random, table: str, batch: int, size: int) -> list[tuple[Any, ...]]:
    """Draw the rows of a batch of a table."""
    rows: list[tuple[Any, ...]] = []
    for number in range(size):
        time = _START + dt.timedelta(milliseconds=8000 * batch + draw.randint(-2000, 12000))
        if table == "bid":
            channel = draw.choice(("Apple", "Google", "channel-7"))
            url = f"https://www.nexmark.com/{draw.choice('xyz')}/item.htm?query=1&channel_id=7"
            ids = draw.randint(0, 5), draw.randint(0, 4)
            extra = draw.choice(("cc", "a"))
            rows.append((*ids, 50 * draw.randint(1, 20), channel, url, time, extra))
        elif table == "auction":
            ends = time + dt.timedelta(seconds=draw.randint(1, 20))
            seller, category = draw.randint(0, 7), draw.choice((10, 11))
            rows.append(
                (batch * size + number, f"item {number}", 100, time, ends, seller, category)
            )
        else:
            state = draw.choice(("OR", "ID", "WA"))
            rows.append((draw.randint(0, 7), f"name {number % 3}", "Bend", state, time))
    return rows


def _build(text: str) -> Callable[..., DataFrame]:
    """Return the function that builds a query over the tables that its text names."""

    def query_over(**tables: DataFrame) -> DataFrame:
        """Build the query."""
        spark = next(iter(tables.values())).sparkSession
        timed: dict[str, Any] = {
            name: rows.withWatermark("ts", "4 seconds") for name, rows in tables.items()
        }
        return spark.sql(text, **timed)

    return query_over


def cases(names: Iterable[str], *, num_batches: int) -> dict[str, Case]:
    """Return the queries of these names over drawn tables."""
    chosen = {}
    for name in names:
        mode, text = QUERIES[name]
        draw = random.Random(7)
        streams = {
            table: Stream(
                schema=schema,
                batches=[_rows(draw, table, batch, 14) for batch in range(num_batches)],
            )
            for table, schema in _SCHEMAS.items()
            if f"{{{table}}}" in text
        }
        chosen[name] = Case(build=_build(text), streams=streams, mode=mode)
    return chosen


def main() -> int:
    """Print how each query runs; return the number of those that differ."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    failures = compare_all(spark, cases(sys.argv[1:] or QUERIES, num_batches=5))
    for name in sys.argv[1:] or QUERIES:
        sys.stdout.write(f"{name:4} {' '.join(failures.get(name, 'equal').split())[:600]}\n")
    refusals = ("RefusedBySparkError", "UnsupportedQueryError")
    return sum(not text.startswith(refusals) for text in failures.values())


if __name__ == "__main__":
    sys.exit(main())
