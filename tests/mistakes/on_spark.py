"""Mistakes that only a Spark session can tell."""

from __future__ import annotations

from tests.mistakes.mistake import Mistake

_M = Mistake

MISTAKES = (
    _M('rows.key_by("k").compute(t=F.sum("v"))', "not an aggregate", "result 't'", "gw.sum("),
    _M(
        'rows.key_by("k").compute(t=gw.sum(F.col("v")))',
        "type Column",
        "sum was given",
        "Pass a column's name",
    ),
    _M('rows.key_by(F.col("k"))', "type Column", "key_by on source", "Name columns by text"),
    _M('flow.source("s", spark.range(3))', "not streaming", "Source 's'", "spark.readStream"),
    _M(
        'flow.source("s", frame.withWatermark("ts", "1 minute"))',
        *("atermark", "ource 's'", "slack="),
    ),
    _M(
        'explain(rows.map(lambda df: df.groupBy("k").count()).key_by("k").compute(n=gw.count()))',
        *("Map '<lambda>'", "source 'rows'", "key_by"),
    ),
    _M(
        "lock = threading.Lock()\n"
        "def guarded(key, rows, state):\n    with lock: return []\n"
        'explain(rows.key_by("k").process(guarded, state=int, output="k string"))',
        *("'lock'", "guarded", "inside the function"),
    ),
    _M(
        "def asks(key, rows, state):\n    spark.range(3).count()\n    return []\n"
        'explain(rows.key_by("k").process(asks, state=int, output="k string"))',
        *("'spark'", "asks", "live on the driver"),
    ),
    _M(
        'with open(here + "/log", "w") as log:\n'
        "    def logs(key, rows, state):\n        log.write(key[0])\n        return []\n"
        '    explain(rows.key_by("k").process(logs, state=int, output="k string"))',
        *("'log'", "logs", "inside the function"),
    ),
    _M(
        'explain(rows.key_by("k").compute(n=gw.count()))\n'
        'flow.start(checkpoint=here + "/ck", executors=99)',
        *("99", "executors", "local["),
    ),
)
