"""Test flows without Spark: ``gw.testing.run(flow, {"orders": rows})`` plays one in this process.

What runs is what runs on a cluster: the lanes, the operators, the migration protocol, the commit
records of a checkpoint.  A list stands for the shuffle, and a directory for every executor.  So a
test sees what a query would give, in milliseconds, and may do to it what happens to a query: key
groups move, executors die, time passes, the flow is changed and started again.

Sinks are not opened: the rows that they would get are kept, and asked for by ``rows``.

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

from godwit.api.stand_in import stream
from godwit.sources.conformance import check_source
from godwit.testing.flows import Run, cluster, run
from godwit.testing.functions import Processed, process

__all__ = ["Processed", "Run", "check_source", "cluster", "process", "run", "stream"]


def __dir__() -> list[str]:
    return sorted(__all__)
