"""Queries drawn from the nodes that can be adopted, as text of a program over the stream `s`.

A query is drawn with its input: batches of rows, some of them late, some without a time.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  as programs write it
from tests.support.native import Case, Stream

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_START = dt.datetime(2024, 1, 1)  # noqa: DTZ001  in the session's zone
COLUMNS = (
    "k string, ts timestamp, v double, id string, n int, d decimal(10,2), b boolean, l bigint, "
    "st struct<p:int,q:string>"
)
_FILTERS = (
    "v > 0",
    "n is not null",
    "k in ('a', 'b')",
    "id <> 'x'",
    "n % 2 = 1",
    "b",
    "v < 100",
    "l > 0 or n = 1",
    "false",
)
_LATER_FILTERS = (*_FILTERS, "ts > '2024-01-01 00:05:00'", "ts < '2024-01-01 00:20:00'")
_KEYS = (
    "'k'",
    "'id'",
    "F.expr('n % 2')",
    "'n'",
    "'b'",
    "F.upper('k')",
    "'st'",
    "'d'",
    "F.expr('coalesce(n, -1)').alias('m')",
)
_AGGREGATES = (
    "count(*)",
    "count(n)",
    "sum(v)",
    "sum(n)",
    "sum(l)",
    "sum(d)",
    "avg(n)",
    "avg(d)",
    "avg(v)",
    "min(ts)",
    "max(id)",
    "min(d)",
    "max(b)",
    "max(v)",
    "count_if(n > 1)",
    "bool_and(b)",
    "first(n)",
    "last(id, true)",
    "collect_list(n)",
    "sort_array(collect_set(id))",
    "max_by(id, l)",
    "min_by(n, v)",
    "median(n)",
    "percentile(l, 0.25)",
    "percentile_approx(n, 0.5)",
    "stddev(n)",
    "approx_count_distinct(id)",
    "sum(n * 2 + 1)",
    "sum(case when b then n else 0 end)",
    "count(*) filter (where n > 1)",
    "sum(v) filter (where b)",
    "first(n) filter (where k = 'a')",
    "collect_list(struct(n, id))",
    "sum(n) + count(id)",
    "sum(v) / count(*)",
    "max(n) - min(n)",
    "coalesce(sum(n), 0)",
    "concat(max(id), '-', min(id))",
)
_DELAYS = ("0 seconds", "30 seconds", "2 minutes", "10 minutes", "500 milliseconds")
_WINDOWS = (
    "F.window('ts', '5 minutes')",
    "F.window('ts', '1 minute')",
    "F.window('ts', '5 minutes', '2 minutes')",
    "F.window('ts', '10 minutes', '5 minutes', '1 minute')",
    "F.window('ts', '7 seconds', '3 seconds')",
    "F.window('ts', '1500 milliseconds')",
)
_SESSIONS = (
    "F.session_window('ts', '30 seconds')",
    "F.session_window('ts', '2 minutes')",
    "F.session_window('ts', F.expr(\"case when n = 1 then '5 seconds' else '1 minute' end\"))",
)


def draw_rows(draw: random.Random, batch: int, size: int) -> list[tuple[Any, ...]]:
    """Draw the rows of a batch."""
    rows = []
    for _ in range(size):
        seconds = 200 * batch + draw.randint(-300, 400)
        micros = draw.choice((0, 1, 999, 1_000, 500_000, 999_999, draw.randint(0, 999_999)))
        time = _START + dt.timedelta(seconds=seconds, microseconds=micros)
        rows.append(
            (
                draw.choice(("a", "b", "c", "d", None)),
                None if draw.random() < 0.03 else time,
                draw.choice((1.5, 2.0, None, -3.25, 0.0, -0.0, float("nan"))),
                draw.choice(("x", "y", "z", None)),
                draw.choice((1, 2, 3, None)),
                draw.choice((Decimal("1.25"), Decimal("-7.50"), None)),
                draw.choice((True, False, None)),
                draw.randint(-(10**12), 10**12),
                {"p": draw.choice((1, 2, None)), "q": draw.choice("uv")}
                if draw.random() < 0.8
                else None,
            )
        )
    return rows


def _some(draw: random.Random, options: tuple[str, ...], most: int) -> list[str]:
    """Draw up to `most` different options."""
    return draw.sample(options, draw.randint(1, most))


def text_of(draw: random.Random) -> tuple[str, str]:
    """Draw a query as text, and its output mode."""
    text = "s"
    if draw.random() < 0.4:
        text += f".where({draw.choice(_FILTERS)!r})"
    if draw.random() < 0.15:
        text += ".withColumn('n', F.expr('n + 1'))"
    has_watermark = draw.random() < 0.75
    if has_watermark:
        text += f".withWatermark('ts', {draw.choice(_DELAYS)!r})"
        if draw.random() < 0.35:
            text += f".where({draw.choice(_LATER_FILTERS)!r})"
    if draw.random() < 0.06:
        return f"{text}.selectExpr('k', 'n * 2 AS m', 'st.p', 'ts')", "append"
    keys = [] if draw.random() < 0.1 else _some(draw, _KEYS, 2)
    kind = draw.random()
    mode = draw.choice(("append", "update", "complete"))
    if has_watermark and kind < 0.5:
        keys.insert(draw.randint(0, len(keys)), draw.choice(_WINDOWS))
    elif has_watermark and kind < 0.7 and keys:
        keys.append(draw.choice(_SESSIONS))
        mode = "append"
    elif has_watermark and kind < 0.8:
        keys.append("'ts'")
    elif mode == "append":
        mode = "update"
    aggregates = _some(draw, _AGGREGATES, 4)
    named = ", ".join(f"F.expr({text!r}).alias('r{n}')" for n, text in enumerate(aggregates))
    text += f".groupBy({', '.join(keys)}).agg({named})"
    after = draw.random()
    if after < 0.2:
        text += ".where('r0 is not null')"
    elif after < 0.3 and "'k'" in keys:
        text += ".where(\"k = 'a'\")"
    if draw.random() < 0.3:
        text += ".withColumn('more', F.expr('concat(cast(r0 as string), \"!\")'))"
    if any("F.window" in key for key in keys) and draw.random() < 0.4:
        text += ".selectExpr('window.end AS until', 'window', 'r0')"
    elif mode == "complete" and draw.random() < 0.3:
        text += ".orderBy('r0')"
    return text, mode


def build_of(text: str) -> Callable[..., DataFrame]:
    """Return the function that builds a query, given as text."""

    def query_over(**streams: DataFrame) -> DataFrame:
        """Build the query over its streams."""
        query: DataFrame = eval(text, {"F": F, **streams})
        return query

    return query_over


def draw_case(draw: random.Random) -> tuple[str, Case]:
    """Draw a query and its input; return its text and the case."""
    text, mode = text_of(draw)
    batches = [draw_rows(draw, batch, draw.choice((0, 1, 8, 15))) for batch in range(4)]
    parts = 2 if draw.random() < 0.25 else 1
    streams = {"s": Stream(schema=COLUMNS, batches=batches)}
    return f"{text} [{mode}{', restarted' if parts > 1 else ''}]", Case(
        build=build_of(text), streams=streams, mode=mode, parts=parts
    )
