"""A writer of epochs that is there to be killed: what it does depends on the epoch alone."""

from __future__ import annotations

import pyarrow as pa
from tests.support.epoch_rows import SCHEMA, EpochRows, context

import godwit as gw

ROWS = 40
PLANES = 5


def epoch_rows(epoch: int) -> EpochRows:
    """Rows of an epoch: numbers that continue from those of the epoch before."""
    numbers = range(epoch * ROWS, (epoch + 1) * ROWS)
    planes = [f"N{number % PLANES}" for number in numbers]
    table = pa.table({"plane": planes, "total": list(numbers)}, schema=SCHEMA)
    return EpochRows(epoch=epoch, table=table)


def write_epochs(servers: str, topic: str, last: int) -> None:
    """Continue as a query does: with the last epoch that was delivered, once more."""
    sink = gw.sinks.kafka(servers, topic, key="plane")
    sink.open(context())
    point = sink.last_delivered()
    for epoch in range(0 if point is None else point.epoch, last + 1):
        sink.deliver(epoch_rows(epoch))
    sink.close()
