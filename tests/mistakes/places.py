"""Mistakes in sources, sinks and checkpoints."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

_M = Mistake

SOURCES = (
    _M(
        'read(gw.sources.json(here + "/nowhere", schema="k string"))',
        *("No such file", "/nowhere", "Create it before the start, or correct the path"),
    ),
    _M(
        'read(gw.sources.json(here + "/in/*.json", schema="k string"))',
        *("No such file", "/in/*.json", "pattern='*.json'"),
    ),
    _M(
        'file("in/_started", "")\nread(gw.sources.parquet(here + "/in"))',
        *("no files", "/in'", "Give schema="),
    ),
    _M(
        'read(gw.sources.parquet(file("in/a.csv", "k,v\\na,1\\n"), schema="k string"))',
        *("cannot be read", "a.csv", "pattern="),
    ),
    _M(
        """read(gw.sources.json(file("in/a.json", '[{"k": "a"}]'), schema="k string"))""",
        *("not one JSON object in braces", "a.json", "move it out of the directory"),
    ),
    _M('gw.sources.json("in", schema="k strng")', "'strng'", "column 'k'", "Did you mean 'string'"),
    _M(
        'gw.sources.csv("in", header="false")',
        "type str",
        "header of a CSV source",
        "True or False",
    ),
    _M('gw.sources.csv("in", sep=";")', "no argument 'sep'", "csv", "is delimiter= here"),
    _M('read(gw.sources.json("dbfs:/in", schema="k string"))', "'dbfs'", "dbfs:/in", "/dbfs/in"),
    _M('gw.sources.kafka("kafka://host:9092", "t")', "a URL", "Kafka source of 't'", "'host:9092'"),
    _M('gw.sources.kafka("host", "t")', "'host' is not host:port", "Kafka source", "broker:9092"),
    _M('gw.sinks.kafka("host:99999", "t")', "not host:port", "'host:99999'", "host:port"),
    _M('gw.sources.kafka("h:1", "a,b")', "not a valid name", "topic 'a,b'", "['a', 'b']"),
    _M('gw.sources.kafka("h:1", subscribe="t")', "'subscribe'", "kafka", "is topics= here"),
    _M(
        'gw.sources.kafka("h:1", "t", startingOffsets="latest")',
        *("no argument 'startingOffsets'", "kafka", "is start= here"),
    ),
    _M(
        'gw.sources.kafka("h:1", "t", maxOffsetsPerTrigger=100)',
        *("no argument 'maxOffsetsPerTrigger'", "kafka", "is max_rows_per_epoch= here"),
    ),
    _M('gw.sources.kafka("h:1", "t", start="newest")', "not a valid start", "start=", '"latest"'),
    _M(
        'gw.sources.kafka("h:1", "t", config={"kafka.security.protocol": "ssl"})',
        *(
            "'kafka.security.protocol', which is an option only of Spark",
            "config",
            "'security.protocol'",
        ),
    ),
    _M('gw.sources.kafka("h:1", "t", value="json")', "unknown", "source of 't'", "schema="),
)

SINKS = (
    _M(
        'explain(keyed.compute(n=gw.count()), gw.sinks.parquet(here + "/out", partition_by="kk"))',
        *("partition_by names 'kk', which the rows do not have", "Sink 'out'", "Did you mean 'k'?"),
    ),
    _M(
        'explain(keyed.compute(n=gw.count()), gw.sinks.delta("out", mode="upsert", keys="nn"))',
        *("keys names 'nn', which the rows do not have", "Sink 'out'", "Did you mean 'n'?"),
    ),
    _M(
        'ids = keyed.process(lambda key, rows, state: [], state=int, output="id long")\n'
        'explain(ids, gw.sinks.delta("out", mode="upsert"))',
        *("no columns identify its rows", "Sink 'out'", "keys=[...]"),
    ),
    _M(
        'source = gw.sources.json(file("in/a.json", ""), schema="k string")\n'
        'read(source, gw.sinks.parquet(file("out", "") + "/out"), check_sinks=True)',
        *("not a directory", "Parquet sink 'out'", "Check the path"),
    ),
    _M(
        'explain(keyed.compute(n=gw.count()), gw.sinks.kafka("h:1", "t", key="id"))',
        *("key names 'id'", "'out'", "Columns are 'k', 'n'"),
    ),
    _M('gw.sinks.postgres("jdbc:postgresql://h/db", "t")', "JDBC", "PostgreSQL sink", "host=..."),
    _M('gw.sinks.postgres("host=h", "t", mode="overwrite")', "'overwrite'", "table t", "upsert"),
    _M('gw.sinks.postgres("host=h", "t", keys=["k"])', "mean nothing", "table t", "mode='upsert'"),
    _M(
        'gw.sinks.postgres("host=h", "t", key="k")', "no argument 'key'", "postgres", "mean 'keys'?"
    ),
    _M(
        'gw.sinks.parquet("out", partitionBy="k")',
        "'partitionBy'",
        "parquet",
        "is partition_by= here",
    ),
    _M('gw.sinks.parquet("dbfs:/out")', "'dbfs'", "dbfs:/out", "/dbfs/out"),
    _M("gw.sinks.foreach(lambda rows: None)", "too many", "foreach sink", "two arguments"),
    _M(
        'source = gw.sources.json(file("in/a.json", ""), schema="k string")\n'
        'read(source, gw.sinks.parquet(here + "/in/out"))',
        *("the source would read the results", "sink 'out'", "a directory of its own"),
    ),
    _M(
        'flow.sink("a", keyed.compute(n=gw.count()), gw.sinks.parquet(here + "/out"))\n'
        'flow.sink("b", keyed.compute(m=gw.count()), gw.sinks.parquet(here + "/out/"))\n'
        "flow.explain()",
        *("write to one place", "Sinks 'a' and 'b'", "a target of its own"),
    ),
)

CHECKPOINTS = (
    _M(
        'file("ck/metadata", \'{"id": "a"}\'), file("ck/offsets/0", "v1")\n'
        'gw.testing.run(counts(), checkpoint=here + "/ck")',
        *("checkpoint of a Spark query", "/ck'", "a directory of its own"),
    ),
    _M('resume(counts("other"))', "belongs to flow 'shop'", "/ck'", "new checkpoint"),
    _M(
        'changed = gw.Flow("shop")\n'
        'by_key = changed.source("orders", stream("k string, v long")).key_by("k")\n'
        'changed.sink("out", by_key.compute(name="numbers", n=gw.count()), gw.sinks.noop())\n'
        "resume(changed)",
        *("would start empty", "'numbers'", "formerly="),
    ),
    _M('start(checkpoint="dbfs:/ck")', "'dbfs'", "dbfs:/ck", "/dbfs/ck"),
)

MISTAKES = (*SOURCES, *SINKS, *CHECKPOINTS)
