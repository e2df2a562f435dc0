"""Calls that streams do not have, and what was meant by them.

Who knows PySpark tries the methods of DataFrames; who forgets ``key_by`` tries ``compute``.
"""

from __future__ import annotations

from godwit.model.errors import InvalidFlowError
from godwit.model.naming import did_you_mean, listing

__all__ = ["NoSuchCallError", "no_such_call"]


class NoSuchCallError(InvalidFlowError, AttributeError):
    """A stream has no such call; also an AttributeError, so that ``hasattr`` works."""


_STREAM = ("map", "union", "drop_duplicates", "key_by")
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
    """Say what to call in place of `name`.

    Parameters
    ----------
    name
        The attribute that was asked for.
    where
        What was asked.
    keyed
        Whether it is a keyed stream.
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
