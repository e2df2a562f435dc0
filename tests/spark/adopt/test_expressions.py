"""Expressions between two stateful operators have the values, types and errors of Spark."""

from __future__ import annotations

import datetime as dt
import pickle
import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf
from tests.support.drawn_expressions import Comparison, compare_drawn
from tests.support.long_tests import minutes_long

from godwit.adopt.plan import Catalyst, analysed, output_of, to_list
from godwit.adopt.stateless import read_stateless
from godwit.model.errors import EpochFailedError, UnsupportedQueryError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from godwit.adopt.stateless import StatelessPart

pytestmark = pytest.mark.spark

_LAST_DIGITS = (
    *("log10(abs(d))", "ln(abs(d))", "log2(abs(f))", "exp(d)", "exp(f)", "log10(a)", "ln(d / 7)"),
    *("power(d, 2)", "power(d, 0.5D)", "power(f, -1)", "power(d, 1)", "power(d, 0)"),
    *("format_number(d, 2)", "format_number(d * 0.1, 0)", "format_number(l, 3)"),
    *("width_bucket(d, 0, 10.5, 5)", "width_bucket(a, 10, -3, sh)", "pmod(by, sh)"),
    *("hash(s, a, d, m, l, t, dt, o)", "hash(ar, st, at, `as`, ad, f, by)", "hash(n, g, b, u)"),
    *("xxhash64(s, a, d, m, l, t, dt, o)", "xxhash64(ar, st, at, `as`, ad, f, by)"),
    *("levenshtein(s, u)", "overlay(s placing u from ix for by)", "overlay(s placing '_' from 2)"),
    *("base64(encode(repeat(s, 30), 'UTF-8'))", "array_repeat(s, ix)", "sequence(ix, by)"),
    *("arrays_overlap(ar, array(a, 5))", "arrays_overlap(`as`, array(u))", "array_append(ar, a)"),
    *("array_prepend(`as`, null)", "concat(ar, array(cast(w as int)))"),
    *("zip_with(ar, array(a, 5), (x, y) -> x + y)", "zip_with(`as`, ar, (x, y) -> concat(x, y))"),
    *("cast(m as float)", "cast(l as float)", "cast(l / 7 as float)", "cast(16777217.0 as float)"),
    *("-l", "abs(l)", "abs(-l)", "-(-l)", "-(l / 3)", "abs(cast(l as decimal(38, 9)) * -1)"),
    *("-cast(l / 7 as decimal(38, 11))", "abs(l - 1e17)", "-l < 0", "-cast(l as decimal(36, 6))"),
    *("cast(cast(16777217.0000000001 as decimal(38, 10)) + l * 0 as float)",),
)
_CLOCKS = (
    *("cast(dt as timestamp)", "cast(n as timestamp)", "to_utc_timestamp(q, 'America/New_York')"),
    *("date_trunc('HOUR', t)", "date_trunc('DAY', t)", "date_trunc('MONTH', q)"),
    *("t + interval 3 days", "q - interval '1 2' day to hour", "timestampadd(HOUR, 30, q)"),
    *("timestampadd(DAY, -2, q)", "dt - interval 3 months", "dt + interval 1 year"),
    *("months_between(t, q)", "months_between(q, t2, false)", "months_between(dt, q)"),
)


@pytest.mark.parametrize(
    ("ansi", "zone", "seed"),
    [(True, "UTC", 11), (False, "Europe/Berlin", 12), (True, "America/New_York", 13)],
)
def test_drawn_expressions_are_those_of_spark(
    spark: SparkSession, ansi: bool, zone: str, seed: int
) -> None:
    comparison, differences = compare_drawn(spark, seed, 50, ansi=ansi, zone=zone, failing=5)
    assert differences == []
    assert comparison.compared >= 35


@pytest.mark.parametrize(("zone", "texts"), [("UTC", _LAST_DIGITS), ("Europe/Berlin", _CLOCKS)])
def test_digits_hashes_and_clocks_are_those_of_java(
    spark: SparkSession, zone: str, texts: tuple[str, ...]
) -> None:
    _, differences = compare_drawn(spark, 5, 0, ansi=True, zone=zone, given=texts)
    assert differences == []


@minutes_long
@pytest.mark.campaign
@pytest.mark.parametrize(
    ("ansi", "zone", "seed"),
    [(True, "America/New_York", 77), (False, "UTC", 78), (True, "Asia/Kolkata", 79)],
)
def test_many_drawn_expressions_are_those_of_spark(
    spark: SparkSession, ansi: bool, zone: str, seed: int
) -> None:
    _, differences = compare_drawn(spark, seed, 400, ansi=ansi, zone=zone)
    assert differences == []


def part_of(spark: SparkSession, before: DataFrame, after: DataFrame) -> StatelessPart:
    """What is made of the plan of `after` above that of `before`."""
    plan, leaf = analysed(after), analysed(before)
    depth, node = 0, plan
    while not node.fastEquals(leaf):
        depth, node = depth + 1, node.child()
    part = read_stateless(Catalyst(spark), plan, (0,) * depth, to_list(leaf.output()))
    copy: StatelessPart = pickle.loads(pickle.dumps(part))
    return copy


def test_a_part_has_all_steps_between_two_nodes(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("a", 5), ("b", 1), ("c", 7)], "k string, n int")
    after = (
        rows.where("n > 2")
        .selectExpr("k", "n * 2 as twice", "k as again")
        .where("twice < 14 or k = 'c'")
        .selectExpr("upper(again) as k", "twice", "k as k")
    )
    part = part_of(spark, rows, after)
    table = pa.table({"k": ["a", "b", "c"], "n": pa.array([5, 1, 7], pa.int32())})
    result = part(table)
    assert [c.to_pylist() for c in result.columns] == [
        ["A", "C"],
        [10, 14],
        ["a", "c"],
    ]
    assert result.column_names == ["k", "twice", "k"]
    assert part(table.slice(0, 0)).num_rows == 0


def test_overlapping_windows_give_a_row_for_each(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = spark.sql("select timestamp'2024-01-01 00:07:00' t, 1 n")
    after = rows.selectExpr("window(t, '10 minutes', '5 minutes') w", "n").selectExpr(
        "w.start s", "w.end e", "n"
    )
    result = part_of(spark, rows, after)(rows.toArrow())
    starts = sorted(str(value) for value in result.column("s").to_pylist())
    assert starts == ["2024-01-01 00:00:00+00:00", "2024-01-01 00:05:00+00:00"]


def test_elements_of_arrays_and_maps_become_rows(spark: SparkSession) -> None:
    rows = spark.sql(
        "select array(3, null, 5) a, map('x', 1, 'y', 2) m, 'k' k union all "
        "select array(), null, 'l'"
    )
    for text in ("explode(a)", "posexplode_outer(a)", "explode(m)", "explode_outer(m)"):
        after = rows.selectExpr("upper(k) as k", text).selectExpr("*", "1 as n")
        result = part_of(spark, rows, after)(rows.toArrow()).to_pydict()
        theirs = after.toArrow().to_pydict()
        assert sorted(map(repr, zip(*result.values(), strict=True))) == sorted(
            map(repr, zip(*theirs.values(), strict=True))
        )


def test_texts_become_dates_as_in_spark(spark: SparkSession) -> None:
    draw = random.Random(7)
    usual = ["2024-02-29", "2023-02-29", "1900-02-29", "0000-01-01", "-0001-12-31", "1582-10-10"]
    usual += ["9999999-12-31", "+12345-1-1", "-9999999", "2024", "2024-7", "2024-07-15T25:61 x"]
    usual += ["2024-07-15 ", "\t2024-7-5\n", "", " ", "2024-", "2024-07-", "99999999", "24-01-01"]
    texts = [
        None,
        *usual,
        "2024-07-15\n08:00",
        "2024-07-15 a\nb",
        "2024-07\u00a0",
        "\uff12024-07-15",
    ]
    for _ in range(600):
        text = list(draw.choice(usual))
        for _ in range(draw.randint(1, 2)):
            place = draw.randint(0, len(text))
            text[place : place + draw.randint(0, 1)] = draw.choice(["", *"-+0139T \x00\x7fé"])
        texts.append("".join(text))
    rows = spark.createDataFrame([(text,) for text in texts], "x string").coalesce(1)
    after = rows.selectExpr("unix_date(try_cast(x as date)) as d", "x")
    theirs = after.toArrow().to_pydict()
    ours = part_of(spark, rows, after)(rows.toArrow()).to_pydict()
    pairs = zip(theirs["x"], ours["d"], theirs["d"], strict=True)
    assert [pair for pair in pairs if pair[1] != pair[2]] == []
    assert 100 < sum(day is None for day in theirs["d"]) < len(texts) - 100
    plain = rows.selectExpr("cast(x as date) as d")
    with pytest.raises(EpochFailedError, match="CAST_INVALID_INPUT"):
        part_of(spark, rows, plain)(rows.toArrow())
    days = pa.table({"x": ["2024-02-29", None, "1969-12-31"]})
    result = part_of(spark, rows, plain)(days)
    assert result.column("d").to_pylist() == [dt.date(2024, 2, 29), None, dt.date(1969, 12, 31)]


def test_texts_of_intervals_and_of_keys_are_those_of_spark(spark: SparkSession) -> None:
    rows = spark.sql(
        "select i, array(i, null) as l, array(x, null, double('NaN'), -0.0D) as f, "
        "array(named_struct('x', x, 't', timestamp_millis(int(x)), "
        "'n', timestamp_ntz'2024-01-01 01:02:03.4', 'd', date_from_unix_date(int(x)), "
        "'e', array(string(x)))) as s "
        "from (select x, make_dt_interval(0, 0, 0, x) as i from values (0.0D), (-1.5D), "
        "(86399.999999D), (-90061D), (3e9D / 4), (null) as v(x)) union all select interval "
        "'-106751991 04:00:54.775808' day to second, null, null, null"
    )
    catalyst, plan = Catalyst(spark), analysed(rows)
    output = output_of(plan)
    keys = [catalyst.alias(catalyst.key_text(a), a.name()) for a in output]
    for texts in (keys, [catalyst.alias(catalyst.text(output[0]), "i")]):
        projected = catalyst.project(texts, plan)
        part = read_stateless(catalyst, projected, (0,), output)
        theirs = catalyst.dataframe(projected).toArrow().to_pydict()
        assert part(rows.toArrow()).to_pydict() == theirs
    hours = rows.selectExpr("cast(cast(i as interval hour to second) as string) as it")
    with pytest.raises(UnsupportedQueryError, match="other than DAY TO SECOND"):
        part_of(spark, rows, hours)


def test_a_python_function_runs_where_no_time_zone_is_set(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.unset("spark.sql.session.timeZone")
    rows = session.range(3)
    after = rows.select(sf.udf(lambda n: n + 1, "long", useArrow=True)("id").alias("more"))
    assert part_of(session, rows, after)(rows.toArrow()).column(0).to_pylist() == [1, 2, 3]


def test_a_static_table_is_joined_as_spark_joins_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.sql("select * from values (1, 'a'), (2, null), (null, 'c'), (1, 'd') as r(n, k)")
    table = spark.sql("select * from values (1, 'b'), (1, 'q'), (null, 'z') as t(m, side)")
    leaf = to_list(analysed(rows).output())
    joins = {
        "inner": "n = m and k < side",
        "left": "n <=> m and side <> 'q'",
        "leftsemi": "n = m",
        "leftanti": "n = m and side > k",
        "cross": "k < side",
    }
    for how, condition in joins.items():
        narrow = table.where("m is not null or side = 'z'").selectExpr("m", "lower(side) as side")
        after = rows.join(narrow, sf.expr(condition), how)
        part = read_stateless(Catalyst(spark), analysed(after), (0,), leaf)
        ours, theirs = part(rows.toArrow()).to_pydict(), after.toArrow().to_pydict()
        assert sorted(map(repr, zip(*ours.values(), strict=True))) == sorted(
            map(repr, zip(*theirs.values(), strict=True))
        ), how
    monkeypatch.setattr("godwit.adopt.stateless.MAX_ROWS", 2)
    with pytest.raises(UnsupportedQueryError, match="more than 2 rows"):
        read_stateless(Catalyst(spark), analysed(rows.crossJoin(table)), (0,), leaf)
    with pytest.raises(UnsupportedQueryError, match=r"^Join .*cannot run"):
        read_stateless(
            Catalyst(spark),
            analysed(rows.join(table.limit(1), sf.expr("n = m"), "full")),
            (0,),
            leaf,
        )


def test_a_condition_that_never_holds_gives_no_row(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1,)], "n int")
    part = part_of(spark, rows, rows.where("1 = 2").selectExpr("n + 1 as m"))
    assert part(pa.table({"n": pa.array([1], pa.int32())})).num_rows == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rand()", "a nondeterministic value"),
        ("current_timestamp()", "the current time"),
        ("date_format(t, 'VV')", "the pattern 'VV'"),
        ("cast(n as string) rlike '(?<=a)b'", r"the pattern '\(\?<=a\)b'"),
        ("regexp_replace(cast(n as string), '(a)', '$1')", "groups in its replacement"),
        ("to_json(struct(n), map('ignoreNullFields', 'false'))", "options of to_json"),
        ("split(cast(n as string), '[0-9]')", "a regular expression"),
        ("cast(cast(n as string) as double)", "a cast of string to double"),
        ("array(map('a', n))", "CreateMap"),
        ("1 / 0", "Spark cannot plan"),
        ("t + interval 1 month", "interval month"),
        ("from_utc_timestamp(t, 'WET')", "the time zone WET"),
    ],
)
def test_an_expression_that_is_not_known_is_refused_by_name(
    spark: SparkSession, text: str, reason: str
) -> None:
    rows = spark.sql("select timestamp'2024-01-01 00:07:00' t, 1 n, 1.5D d")
    with pytest.raises(UnsupportedQueryError, match=reason):
        part_of(spark, rows, rows.selectExpr(f"{text} as it"))


@pytest.mark.parametrize(
    ("text", "setting", "value"),
    [
        ("to_json(struct(n))", "spark.sql.jsonGenerator.ignoreNullFields", "false"),
        ("date_format(t, 'yyyy')", "spark.sql.legacy.timeParserPolicy", "LEGACY"),
        ("hour(t)", "spark.sql.session.timeZone", "WET"),
        ("cast(t as string)", "spark.sql.session.timeZone", "PST"),
    ],
)
def test_a_setting_that_gives_other_texts_is_refused(
    spark: SparkSession, text: str, setting: str, value: str
) -> None:
    rows = spark.sql("select timestamp'2024-01-01 00:07:00' t, 1 n")
    before = spark.conf.get(setting)
    spark.conf.set(setting, value)
    try:
        with pytest.raises(
            UnsupportedQueryError, match=f"the setting {setting}|the time zone {value}"
        ):
            part_of(spark, rows, rows.selectExpr(f"{text} as it"))
    finally:
        spark.conf.set(setting, str(before))


def test_an_error_has_the_name_that_spark_gives_it(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(1, 0)], "a int, b int")
    part = part_of(spark, rows, rows.selectExpr("a / b as ratio"))
    with pytest.raises(EpochFailedError, match=r"\[DIVIDE_BY_ZERO\]") as caught:
        part(pa.table({"a": pa.array([1], pa.int32()), "b": pa.array([0], pa.int32())}))
    assert caught.value.context["condition"] == "DIVIDE_BY_ZERO"


def test_refusals_are_counted_by_their_reason(spark: SparkSession) -> None:
    comparison = Comparison(spark, pa.table({"row": [0], "n": pa.array([0], pa.timestamp("us"))}))
    assert comparison.part_of("soundex(cast(row as string))") is None
    assert comparison.refused == {"the expression SoundEx": 1}
