"""Queries in SQL as jobs have them, drawn with their input: dates, decimals, JSON, nested columns.

`tests.adopted.grammar` draws nodes; here the expressions are many, and stand where users write
them: as keys, in aggregates, between two stateful operators, and after the last one.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tests.support.native import Case, Stream

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

_START = dt.datetime(2024, 1, 31, 23, 50)  # noqa: DTZ001  in the session's zone
COLUMNS = (
    "user string, at timestamp, local timestamp_ntz, day date, price decimal(18,4), "
    "big decimal(38,6), qty smallint, code tinyint, score float, rate double, number bigint, "
    "ok boolean, tags array<string>, geo struct<lat:double,place:struct<city:string,zip:string>>, "
    "items array<struct<sku:string,qty:int,price:decimal(10,2)>>, attrs map<string,string>, "
    "raw binary, body string"
)
_KEYS = (
    "user",
    "user",
    "user",
    "upper(trim(user))",
    "day",
    "code",
    "geo.place.city",
    "geo.place",
    "attrs['source']",
    "coalesce(attrs['source'], 'direct')",
    "get(items, 0).sku",
    "get_json_object(body, '$.type')",
    "from_json(body, 'type string, amount double').type",
    "CASE WHEN price > 100 THEN 'high' WHEN price > 0 THEN 'low' ELSE 'none' END",
    "local",
    "date_format(at, 'EEEE HH')",
    "date_trunc('HOUR', at)",
    "to_date(at)",
    "cast(price AS int)",
    "round(price, 1)",
    "left(user, 1)",
    "tags",
    "raw",
    "score",
    "pmod(hash(user), 3)",
    "weekofyear(day)",
    "dayofweek(at)",
    "ok",
    "day + make_ym_interval(0, code)",
    "named_struct('d', day, 'c', geo.place.city)",
    "ifnull(regexp_extract(body, '\"type\": *\"([a-z]+)\"', 1), '')",
    "array_sort(tags)",
    "map_keys(attrs)",
    "price",
    "interval '1' minute * code",
)
_FILTERS = (
    "price > 0",
    "user IS NOT NULL",
    "user LIKE '%a%'",
    "user RLIKE '^[a-m]'",
    "day >= date'2024-01-31'",
    "local BETWEEN timestamp_ntz'2024-01-31 23:40:00' AND timestamp_ntz'2024-02-01 00:10:00'",
    "array_contains(tags, 'new')",
    "size(items) > 0",
    "exists(items, i -> i.qty > 1)",
    "geo.place.city IN ('Oslo', 'Lima')",
    "get_json_object(body, '$.type') = 'view'",
    "NOT ok",
    "ok OR price IS NULL",
    "abs(rate) < 50",
    "isnan(score) = false",
    "attrs['source'] IS NOT NULL",
    "hour(at) <> 1",
    "code % 2 = 0",
    "qty IN (SELECT lq FROM {lookup})",
    "user NOT IN ('zoe')",
)
_MEASURES = {
    "number": (
        "count(*)",
        "count(price)",
        "count(DISTINCT user)",
        "sum(qty)",
        "sum(code)",
        "sum(number)",
        "avg(qty)",
        "sum(score)",
        "avg(rate)",
        "sum(price)",
        "avg(price)",
        "sum(big)",
        "avg(big)",
        "sum(price * qty)",
        "sum(price) / sum(qty)",
        "sum(price * 0.19)",
        "max(price) - min(price)",
        "sum(CASE WHEN ok THEN price ELSE -price END)",
        "sum(if(ok, 1, 0))",
        "sum(nvl(qty, 0)) FILTER (WHERE ok)",
        "count_if(price > 1)",
        "max(cast(big AS decimal(20, 2)))",
        "sum(size(items))",
        "sum(aggregate(items, cast(0 AS decimal(20,2)), (a, i) -> a + i.price * i.qty))",
        "max(get_json_object(body, '$.amount')::double)",
        "sum(try_cast(get_json_object(body, '$.amount') AS decimal(12,3)))",
        "datediff(max(day), min(day))",
        "unix_timestamp(max(at)) - unix_timestamp(min(at))",
        "percentile(qty, 0.5)",
        "percentile_approx(price, 0.9)",
        "median(price)",
        "stddev(price)",
        "var_pop(rate)",
        "approx_count_distinct(geo.place.city)",
        "max(score)",
        "min(rate)",
        "min(code)",
        "bit_or(code)",
        "max(geo.lat)",
        "mode(qty, true)",
        "sum(length(user))",
        "count(*) * 100 / sum(count(*)) FILTER (WHERE ok)",
        "regr_slope(price, qty)",
    ),
    "text": (
        "max(user)",
        "min(geo.place.city)",
        "max(attrs['source'])",
        "max_by(user, at)",
        "first(user, true)",
        "any_value(body)",
        "listagg(user, ',') WITHIN GROUP (ORDER BY user)",
        "max(geo.place).city",
        "max_by(struct(user, body), number).user",
        "concat_ws('|', sort_array(collect_set(user)))",
        "to_json(max(geo))",
        "cast(max(local) AS string)",
        "cast(sum(price) AS string)",
        "cast(max(at) - min(at) AS string)",
        "string(max(day))",
        "mode() WITHIN GROUP (ORDER BY user DESC)",
    ),
    "time": ("min(at)", "max(at)", "max(at) FILTER (WHERE ok)"),
    "local": ("max(local)", "min(local)"),
    "day": ("max(day)", "min(day)", "max(to_date(local))"),
    "list": (
        "collect_list(qty)",
        "sort_array(collect_set(code))",
        "array_agg(qty) FILTER (WHERE ok)",
        "percentile(qty, array(0.1, 0.5))",
        "percentile_approx(number, array(0.25, 0.75))",
    ),
    "texts": (
        "collect_list(user)",
        "sort_array(collect_set(geo.place.city))",
        "max(tags)",
        "first(tags)",
        "array_distinct(flatten(collect_list(tags)))",
        "min_by(tags, number)",
    ),
    "other": (
        "max(geo)",
        "max(geo.place)",
        "min(raw)",
        "collect_list(raw)",
        "collect_list(day)",
        "collect_list(local)",
        "collect_list(geo.place)",
        "sort_array(collect_set(named_struct('d', day, 'q', qty)))",
        "first(attrs)",
        "last(items, true)",
        "max_by(items, number)",
        "min_by(geo, price)",
        "max(named_struct('p', price, 'g', geo))",
        "max(at) - min(at)",
        "max(local) - min(local)",
        "max(day) - min(day)",
        "sum(make_dt_interval(0, 0, qty, 0.5))",
        "avg(make_dt_interval(0, code, 0, 0))",
        "sum(make_ym_interval(0, qty))",
        "max(items)",
        "bool_and(ok)",
        "bool_or(price > 5)",
        "collect_list(price)",
        "map_from_entries(collect_list(struct(number, user)))",
        "max_by(user, number, 2)",
    ),
}
_AFTER = {
    "number": (
        "round({r}, 1)",
        "cast({r} AS decimal(24, 3))",
        "CASE WHEN {r} > 10 THEN 'many' WHEN {r} IS NULL THEN 'none' ELSE 'few' END",
        "{r} * 1.19",
        "try_divide({r}, c)",
        "coalesce({r}, 0)",
        "format_number({r}, 2)",
        "cast({r} AS string)",
        "abs({r})",
        "floor({r})",
        "ceil({r} / 2)",
        "greatest({r}, c)",
        "{r} BETWEEN 1 AND 10",
        "nullif({r}, 0)",
        "cast({r} AS bigint) % 3",
        "bin(cast({r} AS bigint))",
        "power({r}, 2)",
        "log10(abs({r}) + 1)",
        "sqrt(abs({r}))",
        "sign({r})",
        "-{r}",
        "lpad(cast({r} AS string), 10, '0')",
        "width_bucket({r}, 0, 100, 5)",
        "isnotnull({r})",
        "cast({r} AS float)",
    ),
    "text": (
        "initcap({r})",
        "lpad({r}, 8, '*')",
        "regexp_replace({r}, '[aeiou]+', '_')",
        "regexp_extract({r}, '([a-z]+)', 1)",
        "{r} LIKE 'a%'",
        "{r} RLIKE '^[a-m]'",
        "{r} ILIKE '%A%'",
        "translate({r}, 'ab', 'xy')",
        "reverse({r})",
        "length({r})",
        "char_length({r})",
        "octet_length({r})",
        "substring_index({r}, 'a', 1)",
        "md5({r})",
        "concat_ws('-', {r}, 'z', cast(c AS string))",
        "{r} || '!'",
        "coalesce(nullif({r}, ''), '?')",
        "ascii({r})",
        "split_part({r}, 'a', 1)",
        "split({r}, '[,|]')",
        "split({r}, ',')[0]",
        "left({r}, 2)",
        "right({r}, 2)",
        "btrim({r})",
        "position('a' IN {r})",
        "decode({r}, 'ann', 'A', 'bob', 'B', 'other')",
        "overlay({r} PLACING '_' FROM 2)",
        "crc32({r})",
        "hash({r})",
        "xxhash64({r}, c)",
        "sha1({r})",
        "levenshtein({r}, 'anna')",
        "replace({r}, 'a', 'ä')",
        "startswith({r}, 'a')",
        "{r} IN ('ann', 'bob')",
        "base64(encode({r}, 'UTF-8'))",
        "try_cast({r} AS int)",
        "repeat({r}, 2)",
        "ifnull({r}, 'none')",
        "locate('n', {r}, 2)",
    ),
    "time": (
        "date_format({r}, 'yyyy-MM-dd HH:mm')",
        "date_format({r}, 'E d MMM')",
        "{r} + INTERVAL 1 DAY",
        "{r} - INTERVAL 90 MINUTES",
        "unix_timestamp({r})",
        "date_trunc('HOUR', {r})",
        "to_date({r})",
        "cast({r} AS date)",
        "extract(MINUTE FROM {r})",
        "from_utc_timestamp({r}, 'Asia/Tokyo')",
        "to_utc_timestamp({r}, 'America/New_York')",
        "dayofweek({r})",
        "cast({r} AS string)",
        "cast({r} AS timestamp_ntz)",
        "timestampadd(HOUR, 3, {r})",
        "add_months({r}, 1)",
        "{r} > timestamp'2024-02-01 00:00:00'",
        "unix_millis({r})",
        "window_end - {r}",
        "dayname({r})",
    ),
    "local": (
        "date_format({r}, 'HH:mm')",
        "{r} + INTERVAL 2 HOURS",
        "to_date({r})",
        "hour({r})",
        "cast({r} AS timestamp)",
        "cast({r} AS string)",
        "date_trunc('MINUTE', {r})",
        "{r} < timestamp_ntz'2024-02-01 00:00:00'",
    ),
    "day": (
        "date_add({r}, 7)",
        "{r} - INTERVAL 1 MONTH",
        "date_format({r}, 'yyyy/MM')",
        "last_day({r})",
        "next_day({r}, 'MON')",
        "year({r}) * 100 + month({r})",
        "quarter({r})",
        "weekofyear({r})",
        "trunc({r}, 'MM')",
        "datediff({r}, date'2024-01-01')",
        "months_between({r}, date'2024-01-01')",
        "cast({r} AS timestamp)",
        "cast({r} AS string)",
        "dayofyear({r})",
        "add_months({r}, c)",
    ),
    "list": (
        "size({r})",
        "cardinality({r})",
        "try_element_at({r}, 1)",
        "get({r}, 1)",
        "slice({r}, 1, 2)",
        "reverse({r})",
        "array_max({r})",
        "aggregate({r}, 0D, (a, x) -> a + coalesce(x, 0))",
        "transform({r}, x -> x * 2)",
        "filter({r}, (x, i) -> x > i)",
        "exists({r}, x -> x IS NULL)",
        "forall({r}, x -> x > 0)",
        "array_contains({r}, 2)",
        "array_join(transform({r}, x -> string(x)), ',', '?')",
        "sort_array({r}, false)",
        "array_append({r}, NULL)",
        "array_compact({r})",
        "array_position({r}, 1)",
        "arrays_overlap({r}, array(1, 2))",
        "to_json({r})",
        "{r}",
        "zip_with({r}, {r}, (x, y) -> x + y)",
        "sequence(0, size({r}))",
    ),
    "texts": (
        "array_join({r}, ',')",
        "concat_ws('|', {r})",
        "array_distinct({r})",
        "transform({r}, x -> upper(x))",
        "array_contains({r}, 'new')",
        "array_union({r}, array('x'))",
        "array_except({r}, array('new'))",
        "size(array_intersect({r}, array('new', 'ann')))",
        "array_remove({r}, 'ann')",
        "array_sort({r})",
        "array_min({r})",
        "element_at(array_append({r}, 'z'), 1)",
        "{r}",
        "array_repeat(array_join({r}, ''), 2)",
        "shuffle(array({r}))[0]",
    ),
    "other": ("{r}", "{r}", "to_json(struct({r} AS r))", "{r} IS NULL", "hash({r})"),
}
_HAVINGS = (
    "count(*) > 1",
    "sum(price) > 10",
    "max(day) > date'2024-01-30'",
    "max(user) LIKE '%n%' OR count(*) > 2",
    "min(local) IS NOT NULL AND NOT bool_or(ok)",
    "count(*) FILTER (WHERE ok) >= 1",
    "avg(rate) BETWEEN -5 AND 50",
    "cardinality(collect_list(qty)) < 4",
)
_WINDOWS = (
    "window(at, '5 minutes')",
    "window(at, '1 minute')",
    "window(at, '10 minutes', '5 minutes')",
    "window(at, '1 hour', '1 hour', '15 minutes')",
    "window(at, '1 day')",
    "session_window(at, '1 minute')",
    "session_window(at, CASE WHEN user = 'ann' THEN '20 seconds' ELSE '2 minutes' END)",
)
_ROWS = (
    " LATERAL VIEW explode(items) x AS item",
    " LATERAL VIEW OUTER explode(tags) x AS tag",
    " LATERAL VIEW posexplode(tags) x AS pos, tag",
    " LATERAL VIEW inline(items) x AS sku, many, cost",
    " LATERAL VIEW explode(attrs) x AS name, value",
    " LATERAL VIEW json_tuple(body, 'type', 'amount') x AS kind, amount",
    " JOIN {lookup} l ON qty = lq",
    " LEFT JOIN {lookup} l ON qty = lq AND side <> 'q'",
    " LEFT ANTI JOIN {lookup} l ON qty = lq",
    " LEFT SEMI JOIN {lookup} l ON qty <=> lq",
    ", LATERAL (SELECT price * qty AS total, upper(user) AS name)",
)
_ROW_MEASURES = {
    "item": ("sum(item.price * item.qty)", "max(item)", "collect_list(item.sku)"),
    "tag": ("collect_list(tag)", "max(tag)", "count(tag)"),
    "sku": ("sum(many * cost)", "listagg(sku, '+')", "max_by(sku, cost)"),
    "value": ("map_from_entries(collect_list(struct(number, value)))", "max(name || value)"),
    "kind": ("sum(try_cast(amount AS double))", "max(kind)"),
    "total": ("sum(total)", "max(name)"),
}
_DELAYS = ("0 seconds", "30 seconds", "2 minutes", "10 minutes", "1 hour")
_SETTINGS: tuple[dict[str, str], ...] = (
    {"spark.sql.ansi.enabled": "false"},
    {"spark.sql.session.timeZone": "America/New_York"},
    {"spark.sql.session.timeZone": "Asia/Kolkata"},
    {"spark.sql.session.timeZone": "Europe/Berlin", "spark.sql.ansi.enabled": "false"},
)
_LOOKUP = (
    "SELECT cast(a AS smallint) AS lq, b AS side FROM VALUES (1, 'p'), (2, NULL), (2, 'q') t(a, b)"
)


def _rows(draw: random.Random, batch: int, size: int) -> list[tuple[Any, ...]]:
    """Draw the rows of a batch."""
    rows: list[tuple[Any, ...]] = []

    def maybe(value: Any, chance: float = 0.12) -> Any:
        return None if draw.random() < chance else value

    for _ in range(size):
        moment = _START + dt.timedelta(
            seconds=200 * batch + draw.randint(-300, 400),
            microseconds=draw.choice((0, 0, 500_000, draw.randint(0, 999_999))),
        )
        amount = draw.choice(("12.5", "7", "x", "1e2"))
        body = json.dumps({"type": draw.choice(("view", "buy", "log")), "amount": amount})
        place = maybe({"city": maybe(draw.choice(("Oslo", "Lima", "Bonn"))), "zip": maybe("0150")})
        items = [
            {
                "sku": draw.choice(("s1", "s2")),
                "qty": draw.randint(1, 3),
                "price": maybe(Decimal(draw.randint(1, 2000)) / 100),
            }
            for _ in range(draw.randint(0, 2))
        ]
        rows.append(
            (
                maybe(draw.choice(("ann", "bob", "cleo", "zoe", " Dan ", ""))),
                maybe(moment, 0.03),
                maybe(moment - dt.timedelta(hours=draw.choice((0, 0, 5)))),
                maybe(moment.date()),
                maybe(Decimal(draw.choice((1, 12345, 1_999_900, -70_000, 250_000))) / 10_000),
                maybe(Decimal(draw.choice((10**12, -5, 3 * 10**6, 123456789))) / 1_000_000),
                maybe(draw.choice((1, 2, 3, -1))),
                maybe(draw.randint(1, 5)),
                maybe(draw.choice((1.5, 0.1, -2.25, float("nan"), 0.0))),
                maybe(draw.choice((10.0, 2.5, -7.125, 0.3))),
                draw.randint(-(10**12), 10**12),
                maybe(draw.random() < 0.5),
                maybe(draw.sample(("new", "vip", "eu", None), draw.randint(0, 3))),
                maybe({"lat": draw.choice((59.9, -12.0, None)), "place": place}),
                maybe(items),
                maybe(
                    [
                        (k, maybe(v))
                        for k, v in (("source", "ad"), ("ref", "x"))[: draw.randint(0, 2)]
                    ]
                ),
                maybe(draw.choice((b"ab", b"\x00\xff", b""))),
                maybe(body if draw.random() < 0.85 else body[: draw.randint(0, 12)]),
            )
        )
    return rows


def _measures(
    draw: random.Random, count: int, extra: tuple[str, ...] = ()
) -> list[tuple[str, str]]:
    """Draw aggregates; return the kind of value and the text of each."""
    kinds = [draw.choice(("number", "number", "number", *_MEASURES)) for _ in range(count)]
    drawn = [(kind, draw.choice(_MEASURES[kind])) for kind in kinds]
    if extra:
        drawn.append(("other", draw.choice(extra)))
    return list(dict.fromkeys(drawn))


def _after(draw: random.Random, kind: str, name: str, window: str) -> str:
    """Draw an expression of a result."""
    texts = [t for t in _AFTER[kind] if window.startswith("window") or "window_end" not in t]
    return draw.choice(texts).replace("{r}", name).replace("window_end", "w.end")


def _all_after(draw: random.Random, results: list[tuple[str, str]], window: str) -> list[str]:
    """Draw an expression of each result, with a name."""
    return [f"{_after(draw, kind, name, window)} AS x{n}" for n, (kind, name) in enumerate(results)]


def _from(draw: random.Random, stream: str) -> tuple[str, tuple[str, ...]]:
    """Draw what an aggregate reads; return it, and aggregates of its further columns."""
    extra: tuple[str, ...] = ()
    rows = draw.choice(_ROWS) if draw.random() < 0.3 else ""
    for column, texts in _ROW_MEASURES.items():
        if re.search(rf"\b{column}\b", rows.split(" x ")[-1] if " x " in rows else rows):
            extra = texts
    text = f"{stream} e{rows}"
    if draw.random() < 0.4:
        filters = draw.sample(_FILTERS, draw.randint(1, 2))
        text += f" WHERE {' AND '.join(f'({condition})' for condition in filters)}"
    return text, extra


def _aggregate_of(
    draw: random.Random, stream: str, window: str
) -> tuple[str, list[tuple[str, str]]]:
    """Draw an aggregate; return its text and the kinds and names of its results."""
    rows, extra = _from(draw, stream)
    least = 0 if window or draw.random() < 0.1 else 1
    keys = list(dict.fromkeys(draw.sample(_KEYS, draw.randint(least, 2))))
    measures = _measures(draw, draw.randint(2, 8), extra)
    columns = [f"{key} AS g{n}" for n, key in enumerate(keys)]
    columns += [f"{text} AS r{n}" for n, (_, text) in enumerate(measures)]
    grouped = ", ".join(keys)
    if len(keys) > 1 and draw.random() < 0.3 and "session" not in window:
        sets = f"GROUPING SETS (({grouped}), ({keys[0]}){'' if window else ', ()'})"
        grouped = draw.choice((f"ROLLUP ({grouped})", f"CUBE ({grouped})", sets))
        columns.append("grouping_id() AS gid")
    if window:
        columns.insert(0, f"{window} AS w")
        grouped = f"{window}, {grouped}" if grouped else window
    columns.append("count(*) AS c")
    text = f"SELECT {', '.join(columns)} FROM {rows}"
    text += f" GROUP BY {grouped}" if grouped else ""
    if draw.random() < 0.25:
        text += f" HAVING {draw.choice(_HAVINGS)}"
    return text, [(kind, f"r{n}") for n, (kind, _) in enumerate(measures)]


def _single_of(draw: random.Random) -> tuple[str, str]:
    """Draw one aggregate with expressions of its results."""
    window = draw.choice(_WINDOWS) if draw.random() < 0.6 else ""
    modes = ("append", "append", "update", "complete") if window else ("update", "complete")
    mode = draw.choice(modes)
    if "session" in window and mode == "update":
        mode = "append"
    text, results = _aggregate_of(draw, "{E}" if window else "{e}", window)
    if draw.random() < 0.7:
        shown = ["w"] if window else []
        shown += _all_after(draw, results, window)
        text = f"WITH a AS ({text}) SELECT {', '.join([*shown, 'c'])} FROM a"
        if draw.random() < 0.2 and mode == "complete":
            text += " ORDER BY c DESC"
    return text, mode


def _chain_of(draw: random.Random) -> tuple[str, str]:
    """Draw an aggregate of an aggregate, with expressions between them; see `_every_value`."""
    window = draw.choice(_WINDOWS[:4])
    text, results = _aggregate_of(draw, "{E}", window)
    between = _all_after(draw, results, window)
    n = draw.randrange(len(results))
    inner = f"SELECT w, c, {', '.join(between)} FROM ({text})"
    if draw.random() < 0.3:
        not_null = f"{results[n][1]} IS NOT NULL"
        condition = draw.choice(("c > 1", not_null, "hour(w.end) >= 0", "c BETWEEN 1 AND 5"))
        inner += f" WHERE {condition}"
    outer = draw.choice(
        ("window(w, '20 minutes')", "window(w, '1 hour')", "window(window_time(w), '30 minutes')")
    )
    inner = inner.replace("SELECT w, c,", f"SELECT {outer} AS w2, w, c,", 1)
    last = f"{draw.choice(('max', 'first', 'collect_list'))}(x{draw.randrange(len(results))})"
    return (
        f"SELECT w2, x{n} AS k, sum(c) AS c, {last} AS l FROM ({inner}) GROUP BY w2, x{n}",
        "append",
    )


_RANGES = (
    "{b}.at BETWEEN {a}.at AND {a}.at + INTERVAL 3 MINUTES",
    "{b}.at >= {a}.at - INTERVAL 90 SECOND AND {b}.at <= {a}.at + INTERVAL '1:30' MINUTE TO SECOND",
    "{b}.at - {a}.at <= INTERVAL 2 MINUTES AND {b}.at > {a}.at",
    "{a}.at > {b}.at - INTERVAL 1 MINUTE AND {a}.at < {b}.at",
)
_EQUALS = (
    "{a}.user = {b}.user",
    "{a}.user = {b}.user",
    "lower(trim({a}.user)) = lower(trim({b}.user))",
    "{a}.day = {b}.day",
    "{a}.geo.place.city = {b}.geo.place.city",
    "{a}.price <=> {b}.price",
    "{a}.code = {b}.qty",
    "{a}.tags = {b}.tags",
    "{a}.raw = {b}.raw",
    "{a}.local = {b}.local",
    "date_trunc('MINUTE', {a}.at) = date_trunc('MINUTE', {b}.at)",
    "{a}.attrs['source'] = {b}.attrs['source']",
    "get_json_object({a}.body, '$.type') = get_json_object({b}.body, '$.type')",
    "{a}.score = {b}.score",
    "{a}.geo = {b}.geo",
)
_PAIRS = ("{a}.price < {b}.price", "{a}.number <> {b}.number", "{b}.ok", "{a}.qty > 0")
_PAIRED = (
    "{b}.price - {a}.price AS more",
    "cast({b}.at - {a}.at AS string) AS took",
    "coalesce({b}.user, {a}.user, '?') AS who",
    "CASE WHEN {b}.user IS NULL THEN 'open' WHEN {b}.price < {a}.price THEN 'partly' END AS status",
    "{a}.geo.place AS place",
    "{b}.items AS items",
    "concat_ws('/', {a}.tags, {b}.tags) AS tags",
    "datediff({b}.day, {a}.day) AS days",
    "{a}.big * {b}.price AS product",
    "struct({a}.user, {b}.day) AS both",
    "{b}.local AS local",
)


def _join_of(draw: random.Random) -> tuple[str, str]:
    """Draw a join of two or three streams."""
    how = f"{draw.choice(('', '', 'LEFT ', 'LEFT ', 'RIGHT ', 'FULL ', 'LEFT SEMI '))}JOIN"

    def on(a: str, b: str, equals: Sequence[str] = _EQUALS) -> str:
        parts = [*draw.sample(equals, draw.choice((1, 1, 2))), draw.choice(_RANGES)]
        if draw.random() < 0.2:
            parts.append(draw.choice(_PAIRS))
        return " AND ".join(parts).replace("{a}", a).replace("{b}", b)

    others = draw.choice(("{O}", "{O}", "(SELECT * FROM {O} WHERE qty > 0)", "{E}"))
    text = f"{{E}} a {how} {others} b ON {on('a', 'b')}"
    columns = ["a.*"]
    if "SEMI" not in how:
        columns = ["a.user", "a.at", "a.number", "a.price", "a.qty", "b.ok"]
        columns += draw.sample(_PAIRED, draw.randint(1, 3))
        if draw.random() < 0.25:
            filters = ("a.price > 0", "b.qty = 1", "a.user IS NOT NULL", "b.user IS NULL")
            text += f" WHERE {draw.choice(filters)}"
    columns = [column.replace("{a}", "a").replace("{b}", "b") for column in columns]
    text = f"SELECT {', '.join(columns)} FROM {text}"
    last = draw.random()
    if last < 0.25:
        window = "window(at, '10 minutes')"
        text = f"SELECT {window} AS w, user, count(*) AS c, sum(number) AS n FROM ({text})"
        text += f" GROUP BY {window}, user"
    elif last < 0.5:  # its times are of one stream, or Spark fails
        how = draw.choice(("JOIN", "LEFT JOIN", "LEFT SEMI JOIN"))
        text = f"SELECT j.* FROM ({text}) j {how} {{P}} c ON {on('j', 'c', _EQUALS[:2])}"
    return text, "append"


def _union_of(draw: random.Random) -> tuple[str, str]:
    """Draw a union of two aggregates; of two equal ones Spark gives the second no watermark."""
    window, key = draw.choice(_WINDOWS[:4]), draw.choice(_KEYS)
    measure = _measures(draw, 1)[0][1]
    parts = [
        f"SELECT {window} AS w, {key} AS g, {measure} AS r FROM {stream} GROUP BY {window}, {key}"
        for stream in ("{E}", "{O}")
    ]
    return " UNION ALL ".join(parts), draw.choice(("append", "append", "update"))


def _rows_of(draw: random.Random) -> tuple[str, str]:
    """Draw a query of distinct rows, or of rows alone."""
    keys = [f"{key} AS g{n}" for n, key in enumerate(draw.sample(_KEYS, draw.randint(1, 3)))]
    rows, _ = _from(draw, "{e}")
    if draw.random() < 0.7:
        return f"SELECT DISTINCT {', '.join(keys)} FROM {rows}", draw.choice(("append", "update"))
    return f"SELECT e.*, {', '.join(keys)} FROM {rows}", "append"


def draw_job(draw: random.Random) -> tuple[str, Case]:
    """Draw a query and its input; return its text and the case."""
    twice = (_single_of, _chain_of, _join_of)
    text, mode = draw.choice((*twice, *twice, _single_of, _union_of, _rows_of))(draw)
    count = draw.choice((2, 2, 3))
    streams = {}
    for name in "eop":
        if re.search(rf"{{{name}}}", text, re.IGNORECASE):
            batches = [_rows(draw, batch, draw.choice((0, 3, 15, 25))) for batch in range(count)]
            streams[name] = Stream(schema=COLUMNS, batches=batches)
    settings = draw.choice(_SETTINGS) if draw.random() < 0.25 else {}
    parts, delay = draw.choice((1, 1, 1, 2)), draw.choice(_DELAYS)
    notes = [mode, delay, *(["restarted"] if parts > 1 else []), *settings.values()]
    case = Case(
        build=_build_of(text, delay), streams=streams, mode=mode, parts=parts, settings=settings
    )
    every = _every_value(text)
    case.every_value = None if every is None else _build_of(every, delay)
    return f"{text} [{', '.join(notes)}]", case


def _every_value(text: str) -> str | None:
    """Return a chain's query with all values of its last column, if their order decides that."""
    whole = re.sub(
        r", (?:first|collect_list)\((x\d+)\) AS l\b", r", collect_list(struct(\1)) AS l", text
    )
    return None if whole == text else whole


def _build_of(text: str, delay: str) -> Callable[..., DataFrame]:
    """Return the function that builds a query, given as text in SQL."""

    def query_over(**streams: DataFrame) -> DataFrame:
        """Build the query over its streams."""
        session = next(iter(streams.values())).sparkSession
        late = {name.upper(): rows.withWatermark("at", delay) for name, rows in streams.items()}
        every = {**streams, **late, "lookup": session.sql(_LOOKUP)}
        named: dict[str, Any] = {name: every[name] for name in every if f"{{{name}}}" in text}
        return session.sql(text, **named)

    return query_over
