"""Draw SQL expressions of every type, and compare what Spark and `godwit.adopt` make of them.

``python -m tests.support.drawn_expressions --count 5000 --seed 7`` prints the differences, and how
many expressions were refused; ``--sql "a + b"`` compares one.  Values are compared with their bits
(NaN, signs of zeros), nulls, types, and the names of errors.
"""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import random
import re
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions
from tests.adopted.agreed import agreed, evaluation, remember

from godwit.adopt.plan import Catalyst, analysed, to_list
from godwit.adopt.stateless import StatelessPart, read_stateless
from godwit.library.aggregates.arithmetic import EvaluationError
from godwit.model.errors import EpochFailedError, UnsupportedQueryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

_UTC = pa.timestamp("us", "UTC")
_STRUCT = pa.struct([("x", pa.int32()), ("y", pa.string())])
_MOMENTS = [
    "2024-02-29 23:59:59.999999",
    "1969-12-31 23:59:59.5",
    "2024-03-31 01:30:00",
    "2024-10-27 00:30:00",
    "1900-01-01 00:00:00",
    "2038-01-19 03:14:08.000001",
    "9999-12-31 23:59:59",
    "0001-01-01 00:00:00",
]
_INSTANTS = [dt.datetime.fromisoformat(text) for text in _MOMENTS]
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "by": (pa.int8(), [1, 127, -128, None, 0, -3]),
    "sh": (pa.int16(), [2, 32767, -32768, 5, None, 0]),
    "a": (pa.int32(), [3, 2**31 - 1, -(2**31), 0, 7, -1, None]),
    "b": (pa.int64(), [4, 2**63 - 1, -(2**63), None, 2**53 + 1, 0, -1]),
    "f": (pa.float32(), [0.5, -0.0, float("nan"), 16777217.0, None, 1e38, -2.5]),
    "d": (
        pa.float64(),
        [0.1, float("inf"), float("-inf"), float("nan"), 0.0, None, -0.0, 2.5, -1e18, 3e9, 1.005],
    ),
    "m": (pa.decimal128(12, 2), ["1.25", "9999999999.99", "-0.01", None, "0.00", "-7.50"]),
    "l": (pa.decimal128(38, 10), ["3.0000000001", "9" * 28 + ".5", "-2", "0", None, "1e-10"]),
    "g": (pa.decimal128(5, 5), ["0.33333", "0.99999", "-0.00001", "0", "0.5", None]),
    "s": (pa.string(), ["a", "żółw", "", None, "Straße", "İz", " a ", "abcabc", "a%b_c", "😀x"]),
    "u": (pa.string(), ["b", "A", "ΑΣ", "a", None, "", "bc", "_c"]),
    "w": (
        pa.string(),
        [
            "1",
            " 12 ",
            "-7",
            "+5",
            "1.9",
            "",
            None,
            "x",
            "true",
            "N",
            "99999999999",
            ".5",
            "\t3\n",
            "1e2",
        ],
    ),
    "t": (_UTC, [*(m.replace(tzinfo=dt.UTC) for m in _INSTANTS), None]),
    "t2": (_UTC, [*(m.replace(tzinfo=dt.UTC) for m in _INSTANTS[:6]), None]),
    "n": (pa.timestamp("us"), [*_INSTANTS, None]),
    "dt": (pa.date32(), [m.date() for m in _INSTANTS] + [None]),
    "o": (pa.bool_(), [True, False, None]),
    "p": (pa.bool_(), [True, True, False, None]),
    "st": (_STRUCT, [{"x": 1, "y": "a"}, {"x": None, "y": None}, None, {"x": 2**31 - 1, "y": ""}]),
    "ar": (pa.list_(pa.int32()), [[1, 2, 3], [], None, [None], [5, None]]),
    "ix": (pa.int32(), [0, 1, -1, 2, 5, None]),
    "as": (pa.list_(pa.string()), [["b", "a"], ["a", None, "a"], [], None, ["ż", "", "a,b"]]),
    "ad": (pa.list_(pa.float64()), [[0.5, float("nan"), -1.0], [], None, [None, 2.5, 2.5]]),
    "at": (pa.list_(_STRUCT), [[{"x": 1, "y": "a"}, None], [], None, [{"x": None, "y": "b"}]]),
    "mp": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], [], None, [("ż", -1)]]),
    "z": (pa.string(), ["a,b,c", ",", "a.b.c", "aaa", None, "a|b", "", "www.apache.org"]),
    "q": (
        _UTC,
        [dt.datetime(2024, 2, 29, 23, 59, 59, 123456, dt.UTC), None]
        + [m.replace(tzinfo=dt.UTC) for m in _INSTANTS[1:6]],
    ),
}
_NAMES = {"DATETIME_OVERFLOW": "DATETIME_OVERFLOW|long overflow"}
ZONED = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata")


def rows_of_edges(rng: random.Random, count: int) -> pa.Table:
    """Return rows of values at the edges of their types, with their numbers in ``row``."""
    columns: dict[str, pa.Array] = {"row": pa.array(range(count), pa.int32())}
    for name, (dtype, values) in COLUMNS.items():
        drawn = [rng.choice(values) for _ in range(count)]
        if pa.types.is_decimal(dtype):
            drawn = [None if v is None else Decimal(str(v)) for v in drawn]
        columns[name] = pa.array(drawn, dtype)
    return pa.table(columns)


class Grammar:
    """Draws expressions by the type of their value."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def any(self, depth: int = 3) -> str:
        """Return an expression of any type."""
        kinds = [
            self.integer, self.integer, self.double, self.decimal, self.text, self.truth,
            self.truth, self.time, self.date, self.local, self.other,
        ]  # fmt: skip
        return self.rng.choice(kinds)(depth)

    def _pick(self, leaves: list[str], makers: list[str], depth: int) -> str:
        """Return a leaf, or a maker whose marks, such as ``{i}``, are replaced by expressions."""
        if depth <= 0 or self.rng.random() < 0.2:
            return self.rng.choice(leaves)
        text = self.rng.choice(makers)
        kinds = {
            "i": self.integer, "d": self.double, "m": self.decimal, "s": self.text,
            "c": self.truth, "t": self.time, "e": self.date, "n": self.local,
        }  # fmt: skip
        return re.sub(
            r"\{(\w)\}", lambda match: kinds[match[1]](depth - 1 - (self.rng.random() < 0.3)), text
        )

    def integer(self, depth: int) -> str:
        """Return an expression of an integer type."""
        return self._pick(
            ["by", "sh", "a", "b", "ix", "1", "0", "-7", "3000000000L", "2147483647"],
            [
                "({i} + {i})", "({i} - {i})", "({i} * {i})", "({i} % {i})", "({i} div {i})",
                "(- {i})", "abs({i})", "pmod({i}, {i})", "coalesce({i}, {i})", "nullif({i}, {i})",
                "if({c}, {i}, {i})", "case when {c} then {i} when {c} then {i} end",
                "greatest({i}, {i})", "least({i}, {i}, {i})", "length({s})",
                "cast({i} as int)", "cast({i} as tinyint)", "cast({i} as smallint)",
                "cast({d} as int)", "cast({d} as bigint)", "cast({d} as tinyint)",
                "cast({m} as int)", "cast({m} as bigint)", "cast(w as int)", "cast(w as bigint)",
                "cast(w as tinyint)", "try_cast(w as int)", "try_cast({d} as int)",
                "cast({c} as int)", "year({e})", "month({e})", "day({e})", "dayofweek({e})",
                "dayofyear({e})", "quarter({e})", "weekday({e})", "year({t})", "month({t})",
                "hour({t})", "minute({t})", "second({t})", "hour(n)", "datediff({e}, {e})",
                "unix_timestamp({t})", "unix_micros({t})", "unix_millis({t})",
                "timestampdiff(SECOND, {t}, {t})", "timestampdiff(WEEK, {t}, {t})",
                "unix_seconds({t})", "unix_date({e})", "cast({t} as bigint)", "floor({d})",
                "ceil({d})", "floor({i})", "round({i})",
                "try_add({i}, {i})", "try_multiply({i}, {i})",
                "try_subtract({i}, {i})", "st.x", "ar[ix]", "element_at(ar, ix)",
                "try_element_at(ar, ix)", "get(ar, ix)", "size(ar)", "({i} & {i})", "({i} | {i})",
                "({i} ^ {i})", "(~{i})", "try_mod({i}, {i})", "nvl({i}, {i})",
                "case {i} when 1 then {i} else {i} end",
                "coalesce({i}, cast(null as int))", "sign({i})", "array_max(ar)", "array_min(ar)",
                "array_position(ar, {i})", "aggregate(ar, 0, (x, y) -> x + coalesce(y, {i}))",
                "aggregate(transform(ar, x -> 1), {i}, (x, y) -> x - y, x -> x * 2)",
                "size(`as`)", "size(mp)", "mp['a']",
                "element_at(mp, {s})", "instr(z, {s})", "locate('a', {s})", "locate({s}, z, 2)",
                "transform(ar, x -> x + {i})[0]", "size(filter(ar, x -> x > ix))",
                "array_max(transform(ar, (x, i) -> x * i))", "weekofyear({e})", "ascii({s})",
                "hash({s}, {i}, {d})", "hash({m}, {t}, {e}, {c}, l)", "hash(ar, st, at, `as`, f)",
                "xxhash64({s}, {m}, l, {d})", "xxhash64(ar, at, f, {c})", "levenshtein({s}, {s})",
                "width_bucket({d}, 0, 10.5, 5)", "width_bucket({i}, 10, -3, sh)",
                "octet_length({s})", "bit_length({s})", "crc32(encode({s}, 'UTF-8'))",
            ],
            depth,
        )  # fmt: skip

    def double(self, depth: int) -> str:
        """Return an expression of floats or doubles."""
        return self._pick(
            ["f", "d", "d", "1.5D", "0D", "-2.25D", "1e10D"],
            [
                "({d} + {d})", "({d} - {d})", "({d} * {d})", "({d} / {d})", "({d} % {d})",
                "({i} / {i})", "({d} + {i})", "({m} * {d})", "(- {d})", "abs({d})",
                "coalesce({d}, {d})", "nanvl({d}, {d})", "if({c}, {d}, {i})", "greatest({d}, {d})",
                "least({d}, {i})", "cast({i} as double)", "cast({i} as float)",
                "cast({m} as double)", "cast({m} as float)", "cast({d} as float)",
                "cast({c} as double)",
                "sqrt({d})", "signum({d})", "round({d}, 2)", "bround({d}, 1)", "round({d})",
                "log10({d})", "ln({d})", "log2({d})", "exp({d})", "log10({i})", "exp({i})",
                "power({d}, 2)", "power({d}, 0.5D)", "power({i}, -1)", "months_between({t}, {t})",
                "months_between({t}, {t}, false)", "months_between({e}, {e})",
                "round({d}, 3)", "try_divide({d}, {d})", "cast({t} as double)",
            ],
            depth,
        )  # fmt: skip

    def decimal(self, depth: int) -> str:
        """Return an expression of decimals."""
        return self._pick(
            ["m", "l", "g", "1.5", "0.00", "-0.125", "100.0"],
            [
                "({m} + {m})", "({m} - {m})", "({m} * {m})", "({m} / {m})", "({m} % {m})",
                "({m} + {i})", "(-m)", "abs(g)", "coalesce({m}, {m})", "if({c}, {m}, {m})",
                "cast({i} as decimal(10, 2))", "cast({m} as decimal(8, 1))",
                "cast({m} as decimal(20, 5))", "cast({m} as decimal(38, 18))",
                "cast({c} as decimal(3, 1))", "cast({d} as decimal(20, 3))",
                "try_cast({d} as decimal(5, 1))", "round({m}, 1)", "bround({m}, 1)", "floor({m})",
                "ceil({m})", "try_divide({m}, {m})", "try_add({m}, {m})", "greatest({m}, {m})",
                "try_cast({m} as decimal(5, 2))", "nullif({m}, {m})",
            ],
            depth,
        )  # fmt: skip

    def text(self, depth: int) -> str:
        """Return an expression of text."""
        return self._pick(
            ["s", "u", "w", "'it''s'", "''"],
            [
                "upper({s})", "lower({s})", "concat({s}, {s})", "({s} || {s})",
                "substring({s}, {i}, {i})", "substring({s}, 2)", "substring({s}, ix, 2)",
                "left({s}, 2)", "trim({s})", "ltrim({s})", "rtrim({s})", "coalesce({s}, {s})",
                "if({c}, {s}, {s})", "replace({s}, {s}, {s})", "cast({i} as string)",
                "cast({c} as string)", "cast({m} as string)", "try_cast({m} as string)",
                "cast({e} as string)",
                "cast({t} as string)", "cast(n as string)", "greatest({s}, {s})",
                "least({s}, {s})", "st.y", "nullif({s}, {s})", "concat({s}, {i})",
                "concat_ws(',', {s}, {s})", "concat_ws({s}, `as`, z)", "array_join(`as`, '-')",
                "array_join(`as`, {s}, 'none')", "array_max(`as`)", "array_min(`as`)",
                "split(z, ',')[0]", "split(z, '[.]')[1]", "element_at(split(z, '\\\\|'), -1)",
                "lpad({s}, 5, 'xy')", "rpad({s}, ix, {s})", "repeat({s}, ix)", "reverse({s})",
                "substring_index(z, ',', ix)", "substring_index(z, 'aa', 2)",
                "substring_index(z, 'aa', -1)", "substring_index(z, '.', -2)",
                "date_format(q, 'yyyy-MM-dd')", "date_format(q, 'HH:mm:ss.SSS')",
                "date_format(q, \"dd/MM/yyyy 'at' HH\")", "md5({s})", "sha2({s}, 256)",
                "sha1({s})", "base64({s})", "concat_ws('/', transform(`as`, x -> upper(x)))",
                "at[0].y", "transform(at, x -> x.y)[0]", "cast({d} as string)",
                "regexp_extract(z, '([a-z]+)[,.|]([a-z]+)', 2)", "regexp_extract({s}, '^(.)', 1)",
                "regexp_replace({s}, '[a-c]+', '-')", "regexp_replace({s}, '(ż|b)c?$', '')",
                "translate({s}, 'abc.', 'xy')", "initcap({s})", "hex({s})", "hex({i})", "bin({i})",
                "array_join(array_compact(`as`), '/')", "date_format(q, 'E d MMM yyyy')",
                "date_format(q, 'EEEE, MMMM dd yy h:mm a')", "date_format(q, 'M/d/y H m s D Q')",
                "format_number({d}, 2)", "format_number({m}, 1)", "format_number({i}, 3)",
                "format_number({d}, 0)", "overlay({s} placing {s} from ix for by)",
                "overlay({s} placing '_' from 2)",
                "base64(encode(repeat({s}, 30), 'UTF-8'))",
                "dayname({e})", "monthname({e})", "to_json(struct({i}, {d}, {m}))",
                "to_json(struct({s}, {c}, dt, st, ar))", "to_json(named_struct('a\"', q, 'n', n))",
                "to_json(mp)", "to_json(struct(`as`, ad, at))", "split_part(z, ',', ix)",
            ],
            depth,
        )  # fmt: skip

    def truth(self, depth: int) -> str:
        """Return a condition."""
        return self._pick(
            ["o", "p", "true", "false"],
            [
                "({i} = {i})", "({i} <> {i})", "({i} < {i})", "({d} >= {d})", "({d} = {d})",
                "({d} < {i})", "({m} <= {m})", "({s} = {s})", "({s} > {s})", "({t} < {t})",
                "({e} = {e})", "({i} <=> {i})", "({s} <=> {s})", "({d} <=> {d})", "({c} <=> {c})",
                "({c} and {c})", "({c} or {c})", "({c} and {c})", "({c} or {c})", "(not {c})",
                "({i} is null)", "({d} is not null)", "({s} is null)", "({i} in (1, 2, {i}))",
                "({i} in (1, 2, null))", "({s} in ('a', {s}, 'b'))", "({d} in ({d}, 0.1D))",
                "({i} in (1,2,3,4,5,6,7,8,9,10,11,12))", "({s} not in ('a', 'b'))",
                "({i} between {i} and {i})", "({m} between {m} and {m})", "isnan({d})",
                "({s} like 'a%')", "({s} like '%b_c%')", r"({s} like '%\\%b%')",
                "startswith({s}, {s})",
                "endswith({s}, 'a')", "contains({s}, {s})", "cast({i} as boolean)",
                "cast(w as boolean)", "try_cast(w as boolean)", "coalesce({c}, {c})",
                "if({c}, {c}, {c})", "({m} = {m})", "({t} = {t})", "(n < {n})",
                "({t} between {t} and {t})", "({t} > '2020-01-01')", "({e} >= date'2000-01-01')",
                "array_contains(ar, {i})", "array_contains(`as`, {s})", "array_contains(ad, {d})",
                "exists(ar, x -> x > {i})", "exists(`as`, x -> x = {s})",
                "aggregate(ar, true, (x, y) -> x and y > 1)",
                "({s} rlike '(?i)^[a-m]|b.$')", "({s} ilike '%A%')",
                "arrays_overlap(ar, array({i}, 1))", "arrays_overlap(`as`, array({s}))",
                "forall(ar, x -> x > {i})", "map_contains_key(mp, {s})", "array_contains(at, st)",
            ],
            depth,
        )  # fmt: skip

    def time(self, depth: int) -> str:
        """Return an expression of timestamps."""
        return self._pick(
            ["t", "t2", "timestamp'2024-05-06 07:08:09.123'"],
            [
                "({t} + interval 90 minutes)", "({t} - interval 3 seconds)",
                "({t} + interval '1 2' day to hour)", "date_trunc('hour', {t})",
                "date_trunc('minute', {t})", "date_trunc('DAY', {t})", "date_trunc('week', {t})",
                "date_trunc('month', {t})", "date_trunc('quarter', {t})", "date_trunc('year', {t})",
                "date_trunc('second', {t})", "coalesce({t}, {t})", "if({c}, {t}, {t})",
                "greatest({t}, {t})", "least({t}, {t})", "cast({e} as timestamp)",
                "timestamp_seconds(a)", "timestamp_millis(a)", "timestamp_micros(1000000L * a)",
                "cast({n} as timestamp)", "from_utc_timestamp(q, 'America/New_York')",
                "to_utc_timestamp(q, 'America/New_York')", "({t} + interval 3 days)",
                "timestampadd(HOUR, 30, {t})", "timestampadd(DAY, -2, {t})",
            ],
            depth,
        )  # fmt: skip

    def date(self, depth: int) -> str:
        """Return an expression of dates."""
        return self._pick(
            ["dt", "date'2024-02-29'"],
            [
                "date_add({e}, by)", "date_sub({e}, sh)", "({e} + 1)", "({e} - interval 2 days)",
                "cast({t} as date)", "cast(n as date)", "trunc({e}, 'month')", "trunc({e}, 'YEAR')",
                "trunc({e}, 'week')", "trunc({e}, 'quarter')", "last_day({e})",
                "add_months({e}, by)", "coalesce({e}, {e})", "if({c}, {e}, {e})",
                "greatest({e}, {e})", "next_day({e}, 'MON')",
                "({e} - interval 3 months)", "({e} + interval 1 year)",
            ],
            depth,
        )  # fmt: skip

    def local(self, depth: int) -> str:
        """Return an expression of timestamps without a zone."""
        return self._pick(
            ["n", "timestamp_ntz'2021-03-04 05:06:07'"],
            [
                "({n} + interval 90 minutes)", "({n} + interval 3 days)", "coalesce({n}, {n})",
                "cast({t} as timestamp_ntz)", "cast({e} as timestamp_ntz)", "if({c}, {n}, {n})",
            ],
            depth,
        )  # fmt: skip

    def other(self, depth: int) -> str:
        """Return an expression of a struct, an array, an interval or nothing."""
        return self._pick(
            ["st", "ar", "null"],
            [
                "named_struct('x', {i}, 'y', {s})", "struct({d}, {t})", "array({i}, {i})",
                "({t} - {t})", "({e} - {e})", "if({c}, st, null)", "coalesce(ar, array(1))",
                "named_struct('x', {m}, 'z', named_struct('y', {c}))", "sort_array(ar)",
                "sort_array(`as`, false)", "array_sort(ar)", "array_sort(`as`)", "array_sort(ad)",
                "flatten(array(ar, array({i})))", "flatten(array(`as`, array('x')))",
                "sort_array(ad)", "sort_array(at)", "array_distinct(ar)",
                "array_distinct(`as`)", "array_union(ar, array({i}, 1))", "slice(ar, 1, 2)",
                "array_intersect(ar, array(1, null))", "array_except(`as`, array({s}))",
                "slice(`as`, -1, by)", "reverse(ar)", "map_keys(mp)", "map_values(mp)",
                "concat(ar, array({i}))", "concat(`as`, `as`)", "array_remove(ar, {i})",
                "transform(ar, x -> x + 1)", "filter(`as`, x -> x <> {s})", "split(z, ',')",
                "transform(ad, x -> x / {d})", "sort_array(map_keys(mp))",
                "zip_with(ar, array({i}, 2), (x, y) -> x + y)",
                "zip_with(`as`, ar, (x, y) -> concat(x, y))", "array_append(ar, {i})",
                "array_prepend(`as`, {s})", "array_append(ar, null)",
                "array_repeat({s}, ix)", "array_repeat({i}, 2)", "sequence(ix, by)",
                "sequence(1, ix)", "array_union(array('a', 'ż'), `as`)", "array(1, 2)",
                "cast(ar as array<bigint>)", "try_cast(`as` as array<int>)",
                "cast(ar as array<string>)",
            ],
            depth,
        )  # fmt: skip


def evaluated(part: StatelessPart, rows: pa.Table) -> tuple[list[Any], dict[int, str], pa.DataType]:
    """Return the values of all rows, the names of the errors of those without, and the type."""
    left, fails = list(range(rows.num_rows)), {}
    while True:
        try:
            result = part(rows.take(pa.array(left, pa.int64())))
        except EpochFailedError as error:
            cause = error.__cause__
            if not isinstance(cause, EvaluationError):
                raise
            fails[left.pop(cause.row)] = str(error.context["condition"])
            continue
        values: list[Any] = [None] * rows.num_rows
        for row, value in zip(left, _plain(result.column(0)), strict=True):
            values[row] = value
        return values, fails, result.schema.field(0).type


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """Return values that show every bit: times as integers, in structs too."""

    def shown(array: pa.Array) -> list[Any]:
        if pa.types.is_temporal(array.type):
            width = pa.int32() if array.type.bit_width == 32 else pa.int64()
            return (
                list(array.view(width).to_pylist())
                if not array.null_count
                else [None if v is None else v for v in array.cast(width).to_pylist()]
            )
        if pa.types.is_struct(array.type):
            parts = [shown(array.field(n)) for n in range(array.type.num_fields)]
            valid = array.is_valid().to_pylist()
            return [
                tuple(part[row] for part in parts) if ok else None for row, ok in enumerate(valid)
            ]
        return [None if v is None else repr(v) for v in array.to_pylist()]

    return [value for chunk in column.chunks for value in shown(chunk)]


def _same_zone(dtype: pa.DataType) -> pa.DataType:
    """Return a type with the zone of all timestamps replaced by UTC, and plain fields."""
    if pa.types.is_timestamp(dtype) and dtype.tz:
        return _UTC
    if pa.types.is_struct(dtype):
        return pa.struct([(f.name, _same_zone(f.type)) for f in dtype])
    return pa.list_(_same_zone(dtype.value_type)) if pa.types.is_list(dtype) else dtype


class Comparison:
    """Compares expressions over the same rows in one session."""

    def __init__(self, spark: SparkSession, rows: pa.Table) -> None:
        self.spark, self.rows = spark, rows
        zone = spark.conf.get("spark.sql.session.timeZone")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        frame = spark.createDataFrame(rows).withColumn(
            "n", functions.col("n").cast("timestamp_ntz")
        )
        self.frame = frame.coalesce(1).cache()
        self.frame.count()
        spark.conf.set("spark.sql.session.timeZone", str(zone))
        self.catalyst = Catalyst(spark)
        self.attributes = to_list(analysed(self.frame).output())
        self.compared = 0
        self.refused: collections.Counter[str] = collections.Counter()

    def part_of(self, text: str) -> StatelessPart | None:
        """Return what is made of an expression; ``None`` if it is refused."""
        plan = analysed(self.frame.selectExpr(f"{text} as it"))
        try:
            return read_stateless(self.catalyst, plan, (0,), self.attributes)
        except UnsupportedQueryError as error:
            self.refused[str(error.context.get("reason", error.message))] += 1
            return None

    def differences(self, texts: list[str], failing: int, rng: random.Random) -> Iterator[str]:
        """Yield what differs; of the rows that fail, `failing` are asked from Spark."""
        ours: list[tuple[str, list[Any], dict[int, str], pa.DataType]] = []
        for text in texts:
            try:
                part = self.part_of(text)
            except AnalysisException:  # such as types that do not meet
                continue
            if part is not None:
                ours.append((text, *evaluated(part, self.rows)))
        self.compared += len(ours)
        fails = [(text, row, name) for text, _, rows, _ in ours for row, name in rows.items()]
        asked = rng.sample(fails, min(failing, len(fails)))
        compared = evaluation(self.spark, self.rows.to_pydict(), asked)
        if agreed(compared, ours):
            return
        differ = [*self._values(ours), *self._errors(asked)]
        if not differ:
            remember(compared, ours, f"expressions {ours[0][0] if ours else ''}")
        yield from differ

    def _errors(self, asked: list[tuple[str, int, str]]) -> Iterator[str]:
        """Yield the rows that do not fail in Spark as they do here."""
        for text, row, name in asked:
            answer = self._error(self.frame.where(f"row = {row}").selectExpr(f"{text} as it"))
            if not re.search(_NAMES.get(name, name), answer):
                yield f"{text}: row {row} fails with {name}, Spark: {answer or 'a value'}"

    def _values(
        self, ours: list[tuple[str, list[Any], dict[int, str], pa.DataType]]
    ) -> Iterator[str]:
        """Yield what differs in values and types; halve the expressions where Spark fails."""
        if not ours:
            return
        columns = []
        for number, (text, _, fails, _) in enumerate(ours):
            rows = ", ".join(map(str, fails))
            guarded = f"case when row not in ({rows}) then {text} end" if fails else text
            columns.append(f"{guarded} as c{number}")
        try:
            result = self.frame.selectExpr("row", *columns).toArrow()
        except Exception as error:  # noqa: BLE001 - Spark's errors of one of the expressions
            if len(ours) == 1:
                if "Can't view array" in str(error):
                    return  # PySpark cannot collect some structs
                yield f"{ours[0][0]}: Spark fails: {str(error).splitlines()[0][:200]}"
                return
            half = len(ours) // 2
            yield from self._values(ours[:half])
            yield from self._values(ours[half:])
            return
        for (text, values, fails, dtype), column in zip(ours, result.columns[1:], strict=True):
            if _same_zone(column.type) != _same_zone(dtype):
                yield f"{text}: {dtype}, Spark: {column.type}"
                continue
            theirs = _plain(column)
            wrong = [
                row for row in range(len(values)) if row not in fails and values[row] != theirs[row]
            ]
            if wrong:
                row = wrong[0]
                shown = {
                    k: v[row]
                    for k, v in self.rows.to_pydict().items()
                    if re.search(rf"\b{k}\b", text)
                }
                yield f"{text}: {values[row]}, Spark: {theirs[row]} for {shown}"

    @staticmethod
    def _error(frame: DataFrame) -> str:
        """Return the first line of Spark's error; empty if there is none."""
        try:
            frame.collect()
        except Exception as error:  # noqa: BLE001 - it is what is asked for
            return " ".join(str(error).split("\n")[:3])
        return ""


INTERPRETED = {  # compiling a class for expressions that run once would take most of the time
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def compare_drawn(
    spark: SparkSession,
    seed: int,
    count: int,
    *,
    ansi: bool,
    zone: str,
    failing: int = 12,
    given: Sequence[str] = (),
) -> tuple[Comparison, list[str]]:
    """Draw expressions in a mode and a time zone; return what was compared, and the differences.

    `given`: expressions that are compared first.
    """
    settings = {
        **INTERPRETED,
        "spark.sql.ansi.enabled": str(ansi).lower(),
        "spark.sql.session.timeZone": zone,
    }
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    rng = random.Random(seed)
    try:
        comparison = Comparison(spark, rows_of_edges(rng, 40))
        grammar, found = Grammar(rng), [*comparison.differences(list(given), failing, rng)]
        for first in range(0, count, 50):
            texts = [grammar.any() for _ in range(min(50, count - first))]
            found += list(comparison.differences(texts, failing, rng))
        comparison.frame.unpersist()
        return comparison, found
    finally:
        for name, former in before.items():
            spark.conf.unset(name) if former is None else spark.conf.set(name, former)


def main() -> int:
    """Compare as the arguments say."""
    from pyspark.sql import SparkSession

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="expressions of a mode and zone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sql", help="compare this expression alone")
    args = parser.parse_args()
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    different = 0
    for number, (ansi, zone) in enumerate((ansi, zone) for zone in ZONED for ansi in (True, False)):
        if args.sql:
            spark.conf.set("spark.sql.ansi.enabled", str(ansi).lower())
            spark.conf.set("spark.sql.session.timeZone", zone)
            rng = random.Random(args.seed)
            comparison = Comparison(spark, rows_of_edges(rng, 40))
            found = list(comparison.differences([args.sql], 40, rng))
        else:
            comparison, found = compare_drawn(
                spark, args.seed + number, args.count, ansi=ansi, zone=zone
            )
        for line in found:
            sys.stdout.write(f"{line}\n")
        different += len(found)
        refused = sum(comparison.refused.values())
        count = f"{comparison.compared} compared, {refused} refused"
        sys.stdout.write(f"ansi={ansi} {zone}: {count}\n")
        sys.stdout.flush()
        for reason, times in comparison.refused.most_common(6):
            sys.stdout.write(f"  {times} {reason}\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
