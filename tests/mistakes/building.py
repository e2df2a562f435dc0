"""Mistakes in building a flow: names of Spark's, arguments, columns, windows, joins."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

_M = Mistake

SPARK_NAMES = (
    _M(
        "orders.assignTimestampsAndWatermarks(print)",
        *("no 'assignTimestampsAndWatermarks'", "source 'orders'", "flow.source("),
    ),
    _M('orders.orderBy("k")', "no 'orderBy'", "source 'orders'", "gw.top_k("),
    _M("orders.cache()", "no 'cache'", "source 'orders'", "Leave it out"),
    _M("orders.print()", "no 'print'", "source 'orders'", "gw.sinks.console()"),
    _M('keyed.tumbling("1 minute")', "no 'tumbling'", "orders' by k", "window(gw.tumbling("),
    _M(
        'keyed.compute(m=gw.mean("v").alias("m"))',
        "no attribute 'alias'",
        "gw.mean('v')",
        "Name the result",
    ),
    _M(
        'keyed.compute(m=gw.sum("v") / gw.count())',
        *("used in an expression", "gw.sum('v')", "in a map after it"),
    ),
    _M("gw.sinks.memory().collect()", "no 'collect'", "MemorySink", "table()"),
    _M('gw.sources.memory("k string").append([("a",)])', "no 'append'", "MemorySource", "add("),
    _M("gw.errors.InvalidFlow", "'InvalidFlow'", "gw.errors", "Did you mean 'InvalidFlowError'"),
    _M(
        'orders.withWatermark("ts", "5 minutes")', "no 'withWatermark'", "source 'orders'", "slack="
    ),
    _M('orders.groupBy("k").agg(gw.sum("v"))', "no 'groupBy'", "source 'orders'", "key_by("),
    _M('keyed.agg(gw.sum("v"))', "no 'agg'", "source 'orders' by k", "compute(n=gw.count())"),
    _M('orders.filter("v > 3")', "no 'filter'", "source 'orders'", "map(lambda df: df.filter"),
    _M(
        'orders.dropDuplicates(["k"])', "no 'dropDuplicates'", "source 'orders'", "drop_duplicates("
    ),
    _M("keyed.applyInPandasWithState(print)", "no 'applyIn", "orders' by k", "process(function"),
    _M("keyed.transformWithState(print)", "no 'transformWithState'", "orders' by k", "process("),
    _M("keyed.compute(n=gw.count()).writeStream", "no 'writeStream'", "operator '", "flow.sink("),
    _M('orders["v"]', "'v' was asked for", "source 'orders'", "gw.sum('v')"),
    _M("orders.printSchema()", "no 'printSchema'", "source 'orders'", "flow.explain()"),
    _M("flow.awaitTermination()", "no 'awaitTermination'", "Flow 'shop'", "query = flow.start("),
    _M('flow.option("a", 1)', "no 'option'", "Flow 'shop'", "gw.sources"),
    _M('gw.col("v")', "no attribute 'col'", "'godwit'", "text of a column"),
    _M("gw.StatefulProcessor", "no attribute 'StatefulProcessor'", "godwit", ".process("),
    _M("gw.sinks.foreachBatch(print)", "no attribute 'foreachBatch'", "sinks", "gw.sinks.foreach"),
    _M('gw.sources.orc("in")', "no attribute 'orc'", "godwit.sources", "spark.readStream"),
    _M(
        'keyed.compute(outputMode="complete", n=gw.count())',
        *("not an aggregate", "result 'outputMode'", "is output= here"),
    ),
    _M(
        'start(checkpointLocation="ck")', "no argument 'checkpointL", "start", "is checkpoint= here"
    ),
    _M('start(checkpoint="ck", outputMode="append")', "'outputMode'", "start", 'output="complete"'),
    _M('start("ck")', "0 arguments by position", "start()", "start(checkpoint=...)"),
)

ARGUMENTS = (
    _M(
        'flow.source("s", stream("ts timestamp"), event_time="ts", slack=300)',
        *("type int", "slack of source 's'", '"10 minutes"'),
    ),
    _M(
        'flow.source("s", stream("ts timestamp"), event_time="ts", slack="5 mn")',
        *("'5 mn', which is not a duration", "slack of source 's'", "units are"),
    ),
    _M(
        'flow.source("s", stream("ts timestamp"), slack="5 minutes")',
        *("no event time", "Source 's' has slack=", 'event_time="ts"'),
    ),
    _M('flow.source("s", "in/")', "type str", "Source 's'", "gw.sources"),
    _M('flow.source("s", stream("a lnog"))', "'lnog', which is not known", "'a'", "mean 'long'?"),
    _M('flow.sink("out", keyed.compute(n=gw.count()), "out/")', "str", "Sink 'out'", "gw.sinks."),
    _M(
        'flow.sink("out", keyed, gw.sinks.noop())',
        "KeyedStream",
        "Sink 'out'",
        "compute or process",
    ),
    _M('keyed.compute(n="count")', "not an aggregate, but str", "result 'n'", "gw.sum("),
    _M('orders.key_by(["k"])', "type list", "key_by on source 'orders'", "Name columns by text"),
    _M(
        'start(checkpoint="ck", trigger="10 seconds")', "text", "trigger of", 'Time": "10 seconds"}'
    ),
    _M(
        'start(checkpoint="ck", trigger="availablenow")',
        "text",
        "trigger",
        '{"availableNow": True}',
    ),
    _M("start(checkpoint=None)", "NoneType", "option checkpoint of start", "Give a directory"),
    _M(
        'start(checkpoint="ck", session="local[2]")', "type str", "session of start", "SparkSession"
    ),
    _M("start(checkpoint=5)", "type int", "option checkpoint of start", "Give a directory"),
    _M(
        'start(checkpoint=stream("a long"))',
        "type StandIn",
        "option checkpoint",
        "Give a directory",
    ),
    _M('start(checkpoint="~/ck")', "begins with ~", "'~/ck'", "os.path.expanduser"),
    _M('start(checkpoint="ck", executors="2")', "'2', of type str", "executors of", "whole number"),
    _M('start(checkpoint="ck", sizing=gw.Lanes())', "type Lanes", "option sizing", "gw.Sizing("),
    _M(
        'start(checkpoint="ck", ui_port=8080)',
        "no argument 'ui_port'",
        "start",
        "gw.Observability(",
    ),
    _M(
        'start(checkpoint="ck", control=gw.control.latency("2 seconds"))',
        *("type Latency", "option control of start", "gw.Control("),
    ),
)

COLUMNS = (
    _M(
        'explain(orders.key_by("kk").compute(n=gw.count()))',
        *("source 'orders' does not have", "column 'kk'", "Did you mean 'k'?"),
    ),
    _M('explain(keyed.compute(t=gw.sum("vv")))', "not have", "column 'vv'", "Did you mean 'v'?"),
    _M('explain(keyed.compute(t=gw.sum("k")))', "type string", "Result 't' of", "cast the column"),
    _M('explain(keyed.compute(t=gw.sum("v + ")))', "ends too early", "'v + '", "operators"),
    _M('explain(keyed.compute(t=gw.sum("v * k")))', "cannot be", "(`v` * `k`)", "Cast columns"),
    _M(
        'explain(keyed.compute(n=gw.count(where="v => 3")))',
        "'>' is unexpected",
        "character 4",
        "comparisons",
    ),
    _M(
        'explain(keyed.compute(n=gw.count(where="v = 1 && price > 2")))',
        *("'&& price > 2' cannot be parsed", "character 7", "and, or and not"),
    ),
    _M(
        """explain(keyed.compute(n=gw.count(where="lowr(k) = 'a'")))""",
        *("there is no function 'lowr'. Did you mean 'lower'?", "character 1", "the functions"),
    ),
    _M(
        'keyed.compute(n=gw.count(), formerly="other")',
        *("formerly='other'", "orders_n_formerly_by_k", "name=gw.types.Identity(formerly='other')"),
    ),
    _M('keyed.compute(name=gw.last("k"))', "an aggregate for name=", "compute by 'k'", "in a dict"),
    _M("keyed.compute(k=gw.count())", "a key column", "result 'k'", "another name"),
    _M(
        'gw.hopping("10 minutes", every="1 hour")',
        "leave gaps",
        "10 minutes every 1 hour",
        "every=",
    ),
    _M(
        'gw.hopping("1 hour", slide="10 minutes")',
        "no argument 'slide'",
        "hopping",
        "mean 'every'?",
    ),
    _M('keyed.window("1 minute")', "type str", "window by 'k'", "gw.tumbling('1 minute')"),
    _M('gw.tumbling(size="1 minute")', "no argument 'size'", "tumbling", "is length= here"),
    _M(
        'keyed.join(keyed, on="k", between=("0 minutes", "1 hour"))',
        *("no argument 'on'", "join", "columns of their key_by"),
    ),
    _M(
        'gw.tumbling("1 minute", "10 seconds")',
        *("by position", "tumbling()", "overlap are hopping(length, every=...)"),
    ),
    _M(
        'keyed.window(gw.tumbling("1 minute")).process(\n'
        '    lambda key, rows, window, state: [], output="k string")',
        *("missing a required argument: 'state'", "process_tumbling", "three arguments"),
    ),
    _M(
        'other = gw.Flow("other")\n'
        'by_key = other.source("s", stream("k string, ts timestamp")).key_by("k")\n'
        'n = by_key.window(gw.tumbling("1 minute")).compute(n=gw.count())\n'
        'other.sink("out", n, gw.sinks.noop())\n'
        "other.explain()",
        *("source 's' has no event time", "s_n_tumbling_1_minute_by_k", 'event_time="ts"'),
    ),
    _M(
        'other = gw.Flow("other")\n'
        's = other.source("s", stream("k string, ts string"), event_time="ts")\n'
        'n = s.key_by("k").window(gw.tumbling("1 minute")).compute(n=gw.count())\n'
        'other.sink("out", n, gw.sinks.noop())\n'
        "other.explain()",
        *("type is string", "column 'ts' of source 's'", "Cast 'ts' to a timestamp"),
    ),
    _M('orders.drop_duplicates("k")', "not say within which", "source 'orders'", 'within="1 hour"'),
    _M('orders.drop_duplicates("k", within=3600)', "type int", "_duplicates_by_k", '"10 minutes"'),
    _M(
        'keyed.join(keyed, between=("1 hour", "-10 minutes"))',
        *("ends before it begins", "join by 'k' on source 'orders'", "earlier bound first"),
    ),
    _M(
        's = flow.source("s", stream("k long, at timestamp"), event_time="at").key_by("k")\n'
        'explain(keyed.join(s, between=("0 minutes", "1 hour")))',
        *("type is string, with 'k' of source 's', whose type is int64", "column 'k'", "Cast one"),
    ),
    _M(
        'keyed.join(keyed, how="left_outer", between=("0 minutes", "1 hour"))',
        *("how='left_outer'", "join by 'k'", "'left'"),
    ),
    _M(
        "explain(keyed.compute(n=gw.count()).map(lambda table: 5))",
        *("type int", "after operator", "gets a pyarrow.Table and returns one"),
    ),
    _M(
        'play(orders.map(lambda df: df.select("kk")).key_by("k").compute(n=gw.count()))',
        *("no column 'kk'", "Map '<lambda>' on source 'orders'", "Did you mean 'k'?"),
    ),
)

MISTAKES = (*SPARK_NAMES, *ARGUMENTS, *COLUMNS)
