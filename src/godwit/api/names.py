"""Names that modules, streams and queries do not have, and the names to use instead.

Users of PySpark try the methods of DataFrames; without a key they try ``compute``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from godwit.model import plugins
from godwit.model.errors import InvalidFlowError
from godwit.model.naming import NoSuchCallError, did_you_mean, listing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_STREAM = (
    *("map", "union", "drop_duplicates", "key_by", "feed_back_to"),
    *("as_changes", "as_upserts", "as_rows"),
)
_KEYED = ("compute", "process", "window", "join", "join_newest", "latest")

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
        ("writeStream", "write", "start", "foreachBatch", "toTable", "saveAsTable"),
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
    **dict.fromkeys(
        (
            *("transformWithState", "transformWithStateInPandas", "applyInPandas"),
            *("applyInPandasWithState", "mapGroupsWithState", "flatMapGroupsWithState", "flatMap"),
        ),
        'Use key_by("symbol").process(function, state=..., output=...), whose function gets the '
        "rows and the state of one key.",
    ),
    **dict.fromkeys(
        ("sinkTo", "addSink", "sink_to", "add_sink", "print", "sink", "execute"),
        "Add a sink to the flow, as in flow.sink(name, stream, gw.sinks.console()), and start it.",
    ),
    **dict.fromkeys(
        ("orderBy", "sort", "limit", "head", "take", "tail"),
        "A stream has no end to sort it at: take the greatest rows of each key or window, as in "
        'compute(best=gw.top_k("price", 10)).',
    ),
    **dict.fromkeys(
        ("repartition", "coalesce", "cache", "persist", "checkpoint", "rebalance", "shuffle"),
        "Leave it out: key_by(...) divides the rows, and operators keep their state.",
    ),
    **dict.fromkeys(
        ("timeWindow", "tumbling", "hopping", "sliding", "session", "window_all", "windowAll"),
        'Use key_by("symbol").window(gw.tumbling("1 hour")).compute(...).',
    ),
    **dict.fromkeys(
        ("columns", "dtypes", "printSchema", "schema", "show", "collect", "display", "toPandas"),
        "A stream has no rows before the flow runs: flow.explain() prints the columns and types of "
        "its operators, and gw.testing.run(flow, ...) its results.",
    ),
    **dict.fromkeys(
        (
            *("withWatermark", "assignTimestampsAndWatermarks", "assign_timestamps"),
            "assign_timestamps_and_watermarks",
        ),
        'Say it at the source, as in flow.source(name, df, event_time="ts", slack="5 minutes").',
    ),
}
_ON_ROWS = frozenset(
    {
        *("alias", "cast", "drop", "dropna", "explode", "fillna", "filter", "mapInArrow"),
        *("mapInPandas", "na", "select", "selectExpr", "toDF", "transform", "where", "withColumn"),
        *("withColumnRenamed", "withColumns"),
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
        where_to_call = " before key_by" if keyed else ""
        remedy = f"Use map{where_to_call}, as in stream.map(lambda df: df.{name}(...))."
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


def no_such_item(item: object, where: str) -> InvalidFlowError:
    """Return the error for ``stream[item]``, as a column of a DataFrame is named.

    `where`: the stream.
    """
    return InvalidFlowError(
        f"{where} has no columns to take: {item!r} was asked for.",
        remedy=f"Name a column by text, as in gw.sum({str(item)!r}) or "
        'gw.count(where="price > 3").',
    )


_OF_FLOW = {
    **dict.fromkeys(
        ("awaitTermination", "stop", "lastProgress", "processAllAvailable", "status", "exception"),
        "It is of the query that start returns: query = flow.start(checkpoint=...), and then "
        "query.{name}.",
    ),
    **dict.fromkeys(
        ("run", "execute", "launch"), 'Start it by flow.start(checkpoint="checkpoints/flow").'
    ),
    **dict.fromkeys(
        ("readStream", "read", "add_source", "addSource", "from_source"),
        'Add a source, as in flow.source("orders", gw.sources.json("in/", schema=...)).',
    ),
    **dict.fromkeys(
        ("writeStream", "write", "add_sink", "addSink", "sink_to", "sinkTo"),
        'Add a sink, as in flow.sink("totals", stream, gw.sinks.parquet("out/")).',
    ),
    **dict.fromkeys(
        ("option", "options", "format", "trigger", "outputMode", "queryName", "config", "set"),
        "Options are arguments: of a source in gw.sources, of a sink in gw.sinks, and of the query "
        "in flow.start(...).",
    ),
}


def no_such_flow_name(name: str, flow: str, known: Sequence[str]) -> AttributeError:
    """Return the error for an unknown name of a flow; `known`: its public names."""
    if name.startswith("_"):
        return AttributeError(f"A flow has no attribute {name!r}")
    remedy = f"{did_you_mean(name, known)}It has {listing(known)}."
    if name in (*_KEYED, *_STREAM, "groupBy"):
        remedy = f'Call it of a stream, as in flow.source("orders", ...).{name}(...).'
    elif name in _OF_FLOW:
        remedy = _OF_FLOW[name].replace("{name}", name)
    return NoSuchCallError(f"Flow {flow!r} has no {name!r}.", remedy=remedy, call=name)


_FORMAT = 'gw.sinks.foreach(lambda rows, epoch: rows.write.format("{name}")....save())'
_FORMATS = (
    *("avro", "bigquery", "cassandra", "csv", "elasticsearch", "hudi", "jdbc", "json"),
    *("mongodb", "mysql", "orc", "redis", "snowflake", "table", "text"),
)

CALLS: Mapping[str, str] = {
    **dict.fromkeys(("average", "avg"), "gw.mean"),
    **dict.fromkeys(
        ("countDistinct", "distinct", "nunique"),
        "gw.count_distinct, or gw.approx_distinct where there are many values",
    ),
    "approx_count_distinct": "gw.approx_distinct",
    "median": "gw.approx_median",
    **dict.fromkeys(("percentile", "percentile_approx", "quantile"), "gw.approx_percentile"),
    "utilization": "gw.control.utilisation",
    "argmax": "gw.max_by",
    "argmin": "gw.min_by",
    **dict.fromkeys(("count_if", "countIf"), 'gw.count(where="v > 3")'),
    **dict.fromkeys(("std", "stdev", "stddev_samp"), "gw.stddev"),
    "stddev_pop": 'gw.stddev("v", population=True)',
    **dict.fromkeys(("var", "var_samp"), "gw.variance"),
    "var_pop": 'gw.variance("v", population=True)',
    "array_agg": "gw.collect_list",
    **dict.fromkeys(
        ("col", "column", "lit", "expr", "when"),
        'the text of a column or an expression, as in gw.sum("price * size") or '
        'gw.count(where="price > 3")',
    ),
    **dict.fromkeys(
        ("StatefulProcessor", "GroupState", "KeyedProcessFunction", "ProcessFunction", "udf"),
        'a function of (key, rows, state), as in stream.key_by("k").process(function, state=dict, '
        "output=...)",
    ),
    "window": 'stream.key_by("k").window(gw.tumbling("1 hour"))',
    **dict.fromkeys(("tumble", "Tumbling", "TumblingWindow"), "gw.tumbling"),
    **dict.fromkeys(("sliding", "slide", "hop", "Sliding", "Hopping"), "gw.hopping"),
    **dict.fromkeys(("session_window", "SessionWindow"), "gw.session"),
    **dict.fromkeys(("parquet", "memory", "console"), "gw.sinks.{name}"),
    "foreach": "gw.sinks.foreach",
    **dict.fromkeys(("jdbc", "csv", "json"), _FORMAT),
    "LocalCluster": "gw.testing.LocalCluster",
    "source": 'flow.source("name", spark.readStream...)',
}
"""Name → what to use for it."""


_GROUPS: Final[tuple[plugins.Group, ...]] = ("sources", "sinks", "formats")


def calls() -> Mapping[str, str]:
    """Return `CALLS`, and the calls that connectors and other packages add."""
    added: dict[str, list[str]] = {}
    for group in _GROUPS:
        for name in plugins.names(group):
            added.setdefault(name, []).append(f"gw.{group}.{name}")
    return {**{name: " or ".join(places) for name, places in added.items()}, **CALLS}


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
