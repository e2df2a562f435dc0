"""Queries drawn from the nodes that can be adopted, as text of a program over streams `s` and `u`.

A query is drawn with its input: batches of rows, some of them late, some without a time.
"""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  as programs write it
from tests.adopted.functions_with_state import Idle, Latest, counted
from tests.adopted.processors import Clocked, Passing, Started, Timers
from tests.adopted.written import written_of
from tests.support.native import PROCESSORS, Case, Stream

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_START = dt.datetime(2024, 1, 1)  # noqa: DTZ001  in the session's zone
COLUMNS = (
    "k string, ts timestamp, v double, id string, n int, d decimal(10,2), b boolean, l bigint, "
    "st struct<p:int,q:string>, ar array<int>, m map<string,int>"
)
OTHERS = (
    "k2 string, ts2 timestamp, v2 double, n2 int, d2 decimal(12,1), st2 struct<p:int,q:string>, "
    "ar2 array<int>"
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
    "F.expr('coalesce(n, -1)').alias('c')",
    "'v'",
    "'ar'",
    "F.struct('n', 'ar').alias('sa')",
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
    "max(st)",
    "min(ar)",
    "max(struct(v, id, l)) filter (where n > 1)",
    "first(ar)",
    "last(m, true)",
    "first(st)",
    "any_value(st, true)",
    "max_by(st, l)",
    "min_by(ar, struct(l, id))",
    "collect_list(ar)",
    "collect_list(named_struct('s', st, 'm', m))",
    "sort_array(collect_set(st))",
    "sort_array(collect_set(ar))",
    "sort_array(collect_union(ar))",
    "bit_and(n)",
    "bit_or(l)",
    "bit_xor(n) filter (where b)",
    "covar_pop(n, l)",
    "covar_samp(n, d)",
    "regr_count(n, l)",
    "regr_avgx(n, l)",
    "regr_sxy(n, d)",
    "mode(n, true)",
    "mode() within group (order by id desc)",
    "percentile_cont(0.4) within group (order by n desc)",
    "percentile_disc(0.4) within group (order by n)",
    "percentile(l, array(0.2, 0.7), n)",
    "median(d)",
    "listagg(id, ',')",
    "string_agg(id, '|') within group (order by id desc)",
    "try_sum(l)",
    "try_avg(d)",
    "every(b)",
    "some(n = 1)",
    "size(collect_list(n))",
    "array_join(sort_array(collect_set(id)), ',')",
    "date_format(max(ts), 'yyyy-MM-dd HH:mm')",
    "to_json(struct(max(st) AS s, count(*) AS c))",
)
_DEDUP_KEYS = ("k", "id", "n", "v", "st", "ar", "d", "b")
_JOINS = ("inner", "inner", "inner", "left", "right", "full", "leftsemi")
_JOIN_KEYS = (
    "k = k2",
    "k <=> k2",
    "n = n2",
    "n <=> n2",
    "v = v2",
    "v <=> v2",
    "d = d2",
    "st = st2",
    "st <=> st2",
    "ar = ar2",
    "ar <=> ar2",
    "l % 3 = n2",
    "upper(k) = upper(k2)",
    "concat(k, '-', n) = concat(k2, '-', n2)",
    "coalesce(k, id) = k2",
    "n + 1 = n2",
    "st.p = n2",
    "get(ar, 0) = n2 AND k <=> k2",
    "struct(k, n) = struct(k2, n2)",
    "cast(d AS decimal(14,2)) = cast(d2 AS decimal(14,2))",
)
_RANGES = (
    "ts2 BETWEEN ts AND ts + interval 5 minutes",
    "ts2 BETWEEN ts - interval 2 minutes AND ts + interval 30 seconds",
    "ts2 >= ts AND ts2 <= ts + interval 90 seconds",
    "ts2 > ts AND ts2 < ts + interval 3 minutes",
    "ts2 < ts + interval 2 minutes AND ts < ts2 + interval 1 minute",
    "ts2 - ts BETWEEN interval -1 minute AND interval 4 minutes",
    "ts2 >= ts - interval 1 minute AND ts2 <= ts AND n <= n2",
    "ts <= ts2 AND ts2 <= ts + make_interval(0, 0, 0, 0, 0, 2, 30.5)",
)
_SQL_KEYS = ("k", "id", "n % 2", "b", "st.q", "coalesce(n, 0)", "d", "upper(k)", "ar", "m['a']")
_SQL_WINDOWS = (
    "window(ts, '1 minute')",
    "window(ts, '10 minutes', '4 minutes')",
    "window(ts, '3 minutes', '3 minutes', '20 seconds')",
)
_SQL_JOINS = (
    " LEFT JOIN {lookup} ON n = n3",
    " JOIN {lookup} ON n = n3 AND side IS NOT NULL",
    " LATERAL VIEW explode(ar) e AS x",
    " LATERAL VIEW OUTER posexplode(ar) e AS pos, x",
)
_HAVINGS = (
    "count(*) > 1",
    "max(n) IS NOT NULL AND count(*) < 9",
    "sum(v) > 1",
    "count(*) FILTER (WHERE b) > 0",
    "min(d) < max(d)",
    "not bool_and(b)",
)
_PAIRS = ("n < n2", "n <> n2 OR n2 IS NULL", "size(ar) >= size(ar2)", "b", "v2 > 0")
_BETWEEN = (
    "r0",
    "concat(coalesce(id, '-'), '!') AS r0",
    "array_join(transform(sort_array(l0), x -> cast(x AS string)), ',') AS r0",
    "size(l0) AS r0",
    "date_format(window.end, 'HH:mm:ss') AS r0",
    "concat_ws('/', id, cast(c AS string)) AS r0",
    "case when c > 2 then 'many' else id end AS r0",
    "get(l0, 0) AS r0",
    "array_contains(l0, 2) AS r0",
    "try_element_at(l0, -1) AS r0",
    "array_max(l0) AS r0",
    "upper(lpad(id, 3, '0')) AS r0",
    "hour(window.start) AS r0",
    "to_date(window.start) AS r0",
    "split(id, '-')[0] AS r0",
    "named_struct('a', id, 'b', c).a AS r0",
    "slice(l0, 1, 2) AS r0",
    "array(concat(id, '\\t\"'), 'ü', null) AS r0",
    "timestampdiff(SECOND, window.start, to_date(window.end)) AS r0",
)
_SETTINGS: tuple[dict[str, str], ...] = (
    {"spark.sql.streaming.multipleWatermarkPolicy": "max"},
    {"spark.sql.streaming.noDataMicroBatches.enabled": "false"},
    {"spark.sql.ansi.enabled": "false"},
    {"spark.sql.session.timeZone": "America/New_York"},
    {"spark.sql.caseSensitive": "true"},
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
                draw.choice((None, [], [1], [1, 2], [2, None])),
                draw.choice(
                    (None, [], [("a", 1)], [("a", None), ("b", 2)], [("b", 2), ("a", None)])
                ),
            )
        )
    return rows


def draw_others(draw: random.Random, batch: int, size: int) -> list[tuple[Any, ...]]:
    """Draw the rows of a batch of the stream `t`."""
    rows = draw_rows(draw, batch, size)
    return [
        (k, ts, v, n, None if d is None else round(d, 1), st, ar)
        for k, ts, v, _, n, d, _, _, st, ar, _ in rows
    ]


def join_of(draw: random.Random) -> tuple[str, str]:
    """Draw a join of two streams as text, and its output mode."""
    timed, how = draw.random() < 0.75, draw.choice(_JOINS)
    left, right = "s", "t"
    if timed:
        left += f".withWatermark('ts', {draw.choice(_DELAYS)!r})"
        right += f".withWatermark('ts2', {draw.choice(_DELAYS)!r})"
    parts = _some(draw, _JOIN_KEYS, 2)
    if timed and (how != "inner" or draw.random() < 0.5):
        parts.append(draw.choice(_RANGES))
    if draw.random() < 0.4:
        parts.append(draw.choice(_PAIRS))
    text = f"{left}.join({right}, F.expr({' AND '.join(f'({part})' for part in parts)!r}), {how!r})"
    if draw.random() < 0.3:
        text += ".drop('m')" if how == "leftsemi" else ".select('k', 'ar', 'n', 'ts', 'st')"
    return text, "append"


def duplicates_of(draw: random.Random, text: str, has_watermark: bool) -> tuple[str, str]:
    """Draw a query without duplicates as text, and its output mode."""
    keys = _some(draw, _DEDUP_KEYS, 2) + (["ts"] if draw.random() < 0.3 else [])
    call = "dropDuplicates"
    if has_watermark and draw.random() < 0.5:
        call += "WithinWatermark"
    text += f".{call}({keys!r})"
    if draw.random() < 0.3:
        text += ".selectExpr('k', 'ts', 'ar', 'upper(id) AS u')"
    return text, draw.choice(("append", "append", "update"))


def chain_of(draw: random.Random) -> tuple[str, str]:
    """Draw two stateful operators, one after the other, as text, and the output mode."""
    text = f"s.withWatermark('ts', {draw.choice(_DELAYS)!r})"
    window = draw.choice(("1 minute", "5 minutes"))
    text += f".groupBy(F.window('ts', {window!r}), 'id').agg(F.expr('count(*)').alias('c'), "
    text += "F.collect_list('n').alias('l0'), F.sum('l').alias('r0'))"
    between = draw.choice(_BETWEEN)
    text += f".selectExpr('window', 'id', 'c', 'l0', {between!r})"
    if between == "r0":
        text = text.replace(", 'r0')", ", 'r0 % 7 AS r0')")
    if draw.random() < 0.3:
        text += ".where('c > 1')"
    text += ".groupBy(F.window('window', '10 minutes'), 'r0')"
    text += ".agg(F.sum('c').alias('total'), F.max('id').alias('m'))"
    return text, "append"


def _some(draw: random.Random, options: tuple[str, ...], most: int) -> list[str]:
    """Draw up to `most` different options."""
    return draw.sample(options, draw.randint(1, most))


def _windows(draw: random.Random, stream: str) -> str:
    """Draw windows of a stream with a watermark, as text; columns `w`, `k` and `r`."""
    text = f"{stream}.withWatermark('ts', {draw.choice(_DELAYS)!r})"
    if draw.random() < 0.4:
        text += f".where({draw.choice(_LATER_FILTERS)!r})"
    if draw.random() < 0.3:
        text += ".dropDuplicates(['k', 'ts'])"
    aggregate = draw.choice(("count(*)", "sum(n)", "cast(max(n) as bigint)", "sum(l)"))
    key = draw.choice(("'k'", "F.col('id').alias('k')"))
    return (
        f"{text}.groupBy(F.window('ts', '5 minutes').alias('w'), {key})"
        f".agg(F.expr({aggregate!r}).alias('r'))"
    )


def several_watermarks_of(draw: random.Random) -> tuple[str, str]:
    """Draw a query with several watermarks as text, and its output mode."""
    first, second = _windows(draw, "s"), _windows(draw, draw.choice("su"))
    shape = draw.random()
    if shape < 0.3:
        return f"{first}.union({second})", draw.choice(("append", "update"))
    if shape < 0.5:
        more = f"u.withWatermark('ts', {draw.choice(_DELAYS)!r})"
        more += ".select(F.window('ts', '5 minutes').alias('w'), 'k', F.col('n').cast('long'))"
        return f"{first}.union({more})", "append"
    if shape < 0.7:
        other = f"u.withWatermark('ts', {draw.choice(_DELAYS)!r})"
        rows = f"s.withWatermark('ts', {draw.choice(_DELAYS)!r}).dropDuplicates(['k', 'ts'])"
        both = f"{rows}.union({other})"
        return f"{both}.groupBy(F.window('ts', '2 minutes'), 'k').agg(F.expr('sum(n)'))", "append"
    how = draw.choice(("inner", "left", "right", "full"))
    condition = draw.choice(("w = w2 and k = k2", "w = w2 and k = k2 and r <= r2", "w = w2"))
    renamed = f"{second}.selectExpr('w as w2', 'k as k2', 'r as r2')"
    return f"{first}.join({renamed}, F.expr({condition!r}), {how!r})", "append"


_LOOKUP = "SELECT * FROM VALUES (1, 'p'), (2, NULL), (2, 'q'), (NULL, 'z') AS t(n3, side)"


def with_rows_changed(draw: random.Random, text: str) -> str:
    """Add a stateless node that leaves rows out or repeats them."""
    return text + draw.choice(
        (
            ".join(lookup, F.expr('n = n3'), 'left')",
            ".join(lookup, F.expr('n = n3 AND side IS NOT NULL'), 'inner')",
            ".join(lookup, F.expr('n <=> n3'), 'leftsemi')",
            ".join(lookup, F.expr('n = n3'), 'leftanti')",
            ".withColumn('n', F.explode('ar'))",
            ".withColumn('n', F.explode_outer('ar'))",
            ".selectExpr('*', 'size(ar) AS wide').drop('n').withColumnRenamed('wide', 'n')",
            ".dropna(subset=['n'])",
            ".fillna({'n': 7, 'k': 'none'})",
            ".replace({'a': 'b'}, subset=['k'])",
            ".filter(F.expr('exists(ar, x -> x > 1)'))",
            ".unionByName(u)",
            ".unionByName(u.where('b'))",
            ".repartition(2).sortWithinPartitions('l')",
        )
    )


def stateless_then_stateful_of(draw: random.Random) -> tuple[str, str]:
    """Draw a query whose rows are changed on both sides of its watermark, and its output mode."""
    text = with_rows_changed(draw, "s")
    text += f".withWatermark('ts', {draw.choice(_DELAYS)!r})"
    if draw.random() < 0.4 and "(u" not in text:
        text = with_rows_changed(draw, text)
    if draw.random() < 0.25:
        return f"{text}.dropDuplicates(['k', 'n', 'ts'])", "append"
    key = draw.choice(("'k'", "'n'", "F.expr('n % 2')", "'id'"))
    parts = _some(draw, _AGGREGATES, 3)
    named = ", ".join(f"F.expr({part!r}).alias('r{n}')" for n, part in enumerate(parts))
    return (
        f"{text}.groupBy({draw.choice(_WINDOWS)}, {key}).agg({named})",
        draw.choice(("append", "append", "update", "complete")),
    )


def longer_chain_of(draw: random.Random) -> tuple[str, str]:
    """Draw two or three stateful operators of different kinds in a row, and the output mode."""
    text = f"s.withWatermark('ts', {draw.choice(_DELAYS)!r})"
    first = draw.random()
    if first < 0.4:
        text += f".dropDuplicates(['{draw.choice(('k', 'id', 'n'))}', 'ts'])"
    elif first < 0.6:
        text += ".dropDuplicatesWithinWatermark(['id', 'n'])"
    elif first < 0.8:
        other = f"t.withWatermark('ts2', {draw.choice(_DELAYS)!r})"
        how = draw.choice(("inner", "left"))
        text += f".join({other}, F.expr('k = k2 AND ({draw.choice(_RANGES)})'), {how!r})"
    if draw.random() < 0.3:
        text += f".where({draw.choice(_LATER_FILTERS)!r})"
    key = draw.choice(("'k'", "'id'", "F.expr('n % 2').alias('h')"))
    text += f".groupBy({draw.choice(_WINDOWS)}, {key})"
    text += ".agg(F.expr('count(*)').alias('c'), F.expr('sum(n)').alias('r'))"
    if draw.random() < 0.6:
        time = draw.choice(("F.window_time('window')", "F.col('window')"))
        size = draw.choice(("10 minutes", "1 hour"))
        text += f".withColumn('wt', {time}).groupBy(F.window('wt', {size!r}))"
        text += ".agg(F.sum('c').alias('c'), F.max('r').alias('r'), F.count('*').alias('n'))"
    return text, "append"


def sql_of(draw: random.Random) -> tuple[str, str]:
    """Draw a query in SQL as text, and its output mode."""
    rows, mode = "{s}", draw.choice(("update", "update", "complete"))
    keys = _some(draw, _SQL_KEYS, 2)
    if draw.random() < 0.6:
        rows, mode = "{S}", draw.choice(("append", "append", "update", "complete"))
        keys.insert(draw.randint(0, len(keys)), draw.choice(_SQL_WINDOWS))
    if draw.random() < 0.2:
        other = "{u}" if rows == "{s}" else "{U}"
        rows = f"(SELECT * FROM {rows} UNION ALL SELECT * FROM {other})"
    elif draw.random() < 0.25:
        rows += draw.choice(_SQL_JOINS)
    where = f" WHERE {draw.choice(_LATER_FILTERS)}" if draw.random() < 0.4 else ""
    parts = _some(draw, _AGGREGATES, 3)
    having = f" HAVING {draw.choice(_HAVINGS)}" if draw.random() < 0.3 else ""
    columns = [*(f"{key} AS g{n}" for n, key in enumerate(keys))]
    columns += [f"{part} AS r{n}" for n, part in enumerate(parts)]
    text = f"SELECT {', '.join(columns)} FROM {rows}{where} GROUP BY {', '.join(keys)}{having}"
    if draw.random() < 0.2:
        text = (
            f"WITH c AS ({text}) SELECT *, cast(r0 AS string) AS more FROM c WHERE r0 IS NOT NULL"
        )
    return f"sql({text!r})", mode


def text_of(draw: random.Random) -> tuple[str, str]:
    """Draw a query as text, and its output mode."""
    kind = draw.random()
    if kind < 0.2:
        return written_of(draw)
    if kind < 0.35:
        return sql_of(draw)
    node = draw.random()
    if node < 0.12:
        return join_of(draw)
    if node < 0.2:
        return chain_of(draw)
    if node < 0.3:
        return several_watermarks_of(draw)
    if node < 0.4:
        return stateless_then_stateful_of(draw)
    if node < 0.47:
        return longer_chain_of(draw)
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
    if node < 0.55:
        return duplicates_of(draw, text, has_watermark)
    keys = [] if draw.random() < 0.1 else _some(draw, _KEYS, 2)
    kind = draw.random()
    mode = draw.choice(("append", "update", "complete"))
    if has_watermark and kind < 0.5:
        keys.insert(draw.randint(0, len(keys)), draw.choice(_WINDOWS))
    elif has_watermark and kind < 0.7 and keys:
        keys.append(draw.choice(_SESSIONS))
        mode = draw.choice(("append", "append", "complete"))
    elif has_watermark and kind < 0.8:
        keys.append("'ts'")
    elif mode == "append":
        mode = "update"
    aggregates = _some(draw, _AGGREGATES, 6)
    named = ", ".join(f"F.expr({text!r}).alias('r{n}')" for n, text in enumerate(aggregates))
    grouping = "groupBy"
    if len(keys) > 1 and mode != "append" and draw.random() < 0.25:
        grouping = draw.choice(("rollup", "cube"))
    text += f".{grouping}({', '.join(keys)}).agg({named})"
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
        session = next(iter(streams.values())).sparkSession
        names: dict[str, Any] = dict(streams)
        for name, time, delay in (("s", "ts", "2"), ("t", "ts2", "1"), ("u", "ts", "5")):
            if name in streams and re.search(rf"\b{name.upper()}\b", text):
                names[name.upper()] = streams[name].withWatermark(time, f"{delay} minutes")
        if "lookup" in text:
            names["lookup"] = session.sql(_LOOKUP)
        names["sql"] = lambda query: session.sql(query, **names)
        names |= {"Idle": Idle, "Latest": Latest, "counted": counted}
        names |= {"Timers": Timers, "Clocked": Clocked, "Started": Started, "Passing": Passing}
        query: DataFrame = eval(text, {"F": F, **names})
        return query

    return query_over


def draw_case(draw: random.Random) -> tuple[str, Case]:
    """Draw a query and its input; return its text and the case."""
    return case_of(draw, *text_of(draw))


def case_of(draw: random.Random, text: str, mode: str) -> tuple[str, Case]:
    """Draw the input of a query, and whether it restarts; return a name and the case."""
    count = draw.choice((2, 3, 4, 4))
    batches = [draw_rows(draw, batch, draw.choice((0, 1, 8, 15))) for batch in range(count)]
    parts = 2 if draw.random() < 0.25 else 1
    streams = {"s": Stream(schema=COLUMNS, batches=batches)}
    if re.search(r"\b[tT]\b", text):
        others = [draw_others(draw, batch, draw.choice((0, 1, 8, 15))) for batch in range(count)]
        streams["t"] = Stream(schema=OTHERS, batches=others)
    if re.search(r"\b[uU]\b", text):
        others = [draw_rows(draw, batch, draw.choice((0, 4, 8))) for batch in range(count)]
        streams["u"] = Stream(schema=COLUMNS, batches=others)
    settings = draw.choice(_SETTINGS) if draw.random() < 0.1 else {}
    further = [*(["restarted"] if parts > 1 else []), *(f"{k}={v}" for k, v in settings.items())]
    if "transformWithState" in text:
        settings = settings | PROCESSORS
    return f"{text} [{', '.join((mode, *further))}]", Case(
        build=build_of(text), streams=streams, mode=mode, parts=parts, settings=settings
    )
