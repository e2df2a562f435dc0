"""Names that modules, streams and queries do not have, and what was meant by them.

Who knows PySpark tries the methods of DataFrames; who forgets ``key_by`` tries ``compute``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.model.naming import NoSuchCallError, did_you_mean, listing

if TYPE_CHECKING:
    from collections.abc import Mapping


_STREAM = ("map", "union", "drop_duplicates", "key_by", "feed_back_to")
_KEYED = ("compute", "process", "window", "join", "join_newest")

_MEANT = {
    **dict.fromkeys(
        _KEYED, 'Name the key first, as in stream.key_by("symbol").{name}(...); state is per key.'
    ),
    **dict.fromkeys(
        ("groupBy", "groupby", "groupByKey", "keyBy", "partitionBy"),
        'Use key_by("symbol"), and then compute(...) or process(...).',
    ),
    **dict.fromkeys(
        ("agg", "aggregate", "count", "sum", "avg", "mean", "min", "max", "reduce"),
        'Use key_by("symbol").compute(n=gw.count()); aggregates are per key.',
    ),
    **dict.fromkeys(
        ("writeStream", "write", "start", "foreachBatch"),
        "Send the stream of a keyed operator to a sink, flow.sink(name, stream, sink), and start "
        "the flow.",
    ),
    **dict.fromkeys(
        ("dropDuplicates", "dropDuplicatesWithinWatermark", "distinct"),
        'Use drop_duplicates("id", within="1 hour") before key_by.',
    ),
    **dict.fromkeys(
        ("unionAll", "unionByName"), "Use union(...) with streams of the same columns."
    ),
    "withWatermark": "Say it at the source, as in flow.source(name, df, "
    'event_time="ts", slack="5 minutes").',
}
_ON_ROWS = frozenset(
    {
        *("alias", "cast", "drop", "dropna", "explode", "fillna", "filter", "mapInArrow"),
        *("mapInPandas", "na", "select", "selectExpr", "toDF", "transform", "where", "withColumn"),
        *("withColumnRenamed", "withColumns", "flatMap"),
    }
)


def no_such_call(name: str, where: str, *, keyed: bool) -> AttributeError:
    """Return the error for an unknown method of a stream, with the method to use instead.

    `where`: the stream, for the error. `keyed`: whether the stream has a key.
    """
    calls = _KEYED if keyed else _STREAM
    if name.startswith("_"):
        return AttributeError(f"{where} has no attribute {name!r}")
    if name in _ON_ROWS or (keyed and name in _STREAM):
        when = " before key_by" if keyed else ""
        remedy = f"Use map{when}, as in stream.map(lambda df: df.{name}(...))."
        if name == "map":
            remedy = "Call map before key_by, or after the operator."
        if name in ("union", "drop_duplicates"):
            remedy = f"Call {name} before key_by."
        if name == "key_by":
            remedy = "Name all columns of the key in one key_by(...)."
    elif name in _MEANT and not (keyed and name in _KEYED):
        remedy = _MEANT[name].replace("{name}", name)
    else:
        remedy = f"{did_you_mean(name, calls)}It has {listing(calls)}."
    return NoSuchCallError(f"{where} has no {name!r}.", remedy=remedy, call=name)


_FORMAT = 'gw.sinks.foreach(lambda rows, epoch: rows.write.format("{name}")....save())'
_FORMATS = (
    *("avro", "bigquery", "cassandra", "csv", "elasticsearch", "hudi", "jdbc", "json"),
    *("mongodb", "mysql", "orc", "redis", "snowflake", "table", "text"),
)

CALLS: Mapping[str, str] = {
    "average": "gw.mean",
    **dict.fromkeys(
        ("countDistinct", "distinct", "nunique"),
        "gw.count_distinct, or gw.approx_distinct where there are many values",
    ),
    "approx_count_distinct": "gw.approx_distinct",
    "median": "gw.approx_median",
    **dict.fromkeys(("percentile", "percentile_approx", "quantile"), "gw.approx_percentile"),
    "argmax": "gw.max_by",
    "argmin": "gw.min_by",
    **dict.fromkeys(("count_if", "countIf"), 'gw.count(where="v > 3")'),
    **dict.fromkeys(("std", "stdev", "stddev_samp"), "gw.stddev"),
    "stddev_pop": 'gw.stddev("v", population=True)',
    **dict.fromkeys(("var", "var_samp"), "gw.variance"),
    "var_pop": 'gw.variance("v", population=True)',
    "array_agg": "gw.collect_list",
    "window": 'stream.key_by("k").window(gw.tumbling("1 hour"))',
    **dict.fromkeys(("tumble", "Tumbling", "TumblingWindow"), "gw.tumbling"),
    **dict.fromkeys(("sliding", "slide", "hop", "Sliding", "Hopping"), "gw.hopping"),
    **dict.fromkeys(("session_window", "SessionWindow"), "gw.session"),
    **dict.fromkeys(
        ("parquet", "delta", "iceberg", "postgres", "memory", "console"), "gw.sinks.{name}"
    ),
    "foreach": "gw.sinks.foreach",
    "kafka": "gw.sources.kafka or gw.sinks.kafka",
    **dict.fromkeys(("jdbc", "csv", "json"), _FORMAT),
    "source": 'flow.source("name", spark.readStream...)',
}
"""Name → what to use for it."""

SINKS: Mapping[str, str] = {
    **dict.fromkeys(_FORMATS, _FORMAT),
    **dict.fromkeys(
        ("foreachBatch", "foreach_batch", "for_each_epoch", "custom"),
        "gw.sinks.foreach, or gw.sinks.foreach_table for Arrow tables",
    ),
    **dict.fromkeys(("postgresql", "pg"), "gw.sinks.postgres"),
    **dict.fromkeys(("deltalake", "delta_lake"), "gw.sinks.delta"),
    **dict.fromkeys(("file", "files"), "gw.sinks.parquet"),
    **dict.fromkeys(("print", "stdout", "show"), "gw.sinks.console"),
    **dict.fromkeys(("null", "blackhole"), "gw.sinks.noop"),
}
"""Name → what to use for it."""
