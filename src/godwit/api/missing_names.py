"""Names that a module of ours does not have, and what was meant by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.api.calls import NoSuchCallError
from godwit.model.naming import did_you_mean, listing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["CALLS", "SINKS", "no_such_name"]

_FORMAT = 'gw.sinks.foreach(lambda rows, epoch: rows.write.format("{name}")....save())'
_FORMATS = (
    *("avro", "bigquery", "cassandra", "csv", "elasticsearch", "hudi", "iceberg", "jdbc", "json"),
    *("kafka", "mongodb", "mysql", "orc", "redis", "snowflake", "table", "text"),
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
    **dict.fromkeys(("parquet", "delta", "postgres", "memory", "console"), "gw.sinks.{name}"),
    "foreach": "gw.sinks.foreach",
    **dict.fromkeys(("kafka", "jdbc", "csv", "json", "iceberg"), _FORMAT),
    "source": 'flow.source("name", spark.readStream...)',
}
"""Name → what to use for it."""

SINKS: Mapping[str, str] = {
    **dict.fromkeys(_FORMATS, _FORMAT),
    **dict.fromkeys(("foreachBatch", "foreach_batch", "custom"), "gw.sinks.foreach"),
    **dict.fromkeys(("postgresql", "pg"), "gw.sinks.postgres"),
    **dict.fromkeys(("deltalake", "delta_lake"), "gw.sinks.delta"),
    **dict.fromkeys(("file", "files"), "gw.sinks.parquet"),
    **dict.fromkeys(("print", "stdout", "show"), "gw.sinks.console"),
    **dict.fromkeys(("null", "blackhole"), "gw.sinks.noop"),
}
"""Name → what to use for it."""


def no_such_name(
    module: str, name: str, known: Sequence[str], meant: Mapping[str, str]
) -> AttributeError:
    """Say what to use in place of a name that a module does not have.

    Parameters
    ----------
    module
        The module.
    name
        What it was asked for.
    known
        Its public names.
    meant
        Names known elsewhere → what to use for them.
    """
    said = f"module {module!r} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(said)
    remedy = f"{did_you_mean(name, known)}There are {listing(known, limit=len(known))}."
    if name in meant:
        remedy = f"Use {meant[name].replace('{name}', name)}."
    return NoSuchCallError(f"{said}.", remedy=remedy, call=name)
