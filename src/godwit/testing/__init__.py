"""Test flows without Spark: ``gw.testing.run(flow, {"orders": rows})`` runs one in this process.

The same code runs as on a cluster: the lanes, the operators, the migration protocol, and the commit
records of a checkpoint. A list replaces the shuffle, and a directory each executor. So a test gets
the results of a query within milliseconds. It can also migrate key groups, remove executors, let
time pass, and change and restart the flow.

`LocalCluster` is a Spark cluster of processes on this machine, for tests with real executors.

Sinks are not opened: their rows are kept, and returned by ``rows``. With ``check_sinks=True`` the
targets of sinks are checked, without writing to them.

Examples
--------
>>> import godwit as gw
>>> flow = gw.Flow("market", num_key_groups=4)
>>> orders = flow.source("orders", gw.testing.stream("symbol string, price double"))
>>> totals = orders.key_by("symbol").compute(total=gw.sum("price"))
>>> flow.sink("totals", totals, gw.sinks.noop())
>>> played = gw.testing.run(flow, {"orders": [{"symbol": "A", "price": 9.5}]})
>>> played.rows("totals").to_pylist()
[{'symbol': 'A', 'total': 9.5}]
"""

from typing import TYPE_CHECKING

from godwit.model.naming import lazily

if TYPE_CHECKING:
    from godwit.api.stand_in import stream
    from godwit.connect.sink_contract import check_sink
    from godwit.connect.source_contract import check_source
    from godwit.ops.local_cluster import LocalCluster
    from godwit.testing.flows import Run, cluster, run
    from godwit.testing.functions import Processed, process

__all__ = [
    "LocalCluster",
    "Processed",
    "Run",
    "check_sink",
    "check_source",
    "cluster",
    "process",
    "run",
    "stream",
]

if not TYPE_CHECKING:  # a type checker would take every name for granted
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "godwit.api.stand_in": ("stream",),
            "godwit.connect.sink_contract": ("check_sink",),
            "godwit.connect.source_contract": ("check_source",),
            "godwit.ops.local_cluster": ("LocalCluster",),
            "godwit.testing.flows": ("Run", "cluster", "run"),
            "godwit.testing.functions": ("Processed", "process"),
        },
        dict.fromkeys(("play", "test", "simulate"), "gw.testing.run(flow, {...})"),
    )
