"""A writer of epochs that is there to be killed: what it does depends on the epoch alone."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.support.epoch_rows import SCHEMA, EpochRows, context

import godwit as gw
from godwit.connect.kafka.sink import KafkaSink

if TYPE_CHECKING:
    from confluent_kafka import Producer

STEPS = ("messages", "both", "committed")
"""Points of a transaction at which `die_in_transaction` dies: what the cluster has by then."""
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


def die_in_transaction(servers: str, topic: str, step: str) -> None:
    """Write epoch 0, and die in the transaction of epoch 1, as by a power cut; see `STEPS`."""
    sink = gw.sinks.kafka(servers, topic, key="plane")
    sink.open(context())
    sink.deliver(epoch_rows(0))
    send_messages, commit = KafkaSink._send_messages, KafkaSink._commit_transaction

    def send(own: KafkaSink, output: Any, producer: Producer) -> None:
        send_messages(own, output, producer)
        if step == "messages":
            producer.flush()
            die()

    def end(own: KafkaSink, producer: Producer) -> None:
        if step == "both":
            producer.flush()
            die()
        commit(own, producer)
        die()

    vars_of_sink: Any = KafkaSink
    vars_of_sink._send_messages, vars_of_sink._commit_transaction = send, end
    sink.deliver(epoch_rows(1))


def die() -> None:
    """Die as by a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)
