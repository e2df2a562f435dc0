"""Rows that the tests' broker loses by itself when it is killed or ended, without Godwit.

``python -m tests.chaos.kafka --broker-losses`` commits transactions, ends the broker, starts it
again on the same data, and says what readers of committed messages still see.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from tests.kafka_broker import running_broker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kafka_broker import KafkaBroker

__all__ = ["losses"]

_TRANSACTIONS = 20


def losses() -> Iterator[str]:
    """Try both signals, at several moments; say what comes of each."""
    with running_broker() as broker:
        if broker.server is None:
            yield "The cluster is not the tests' own: it is left alone."
            return
        for number in (signal.SIGKILL, signal.SIGTERM):
            for pause_s in (0.0, 0.5, 1.5):
                kept = _committed_before(broker, number, pause_s)
                yield (
                    f"{number.name} {pause_s} s after the last answer: {kept} of {_TRANSACTIONS} "
                    "transactions, whose commits were acknowledged, are there"
                )
            kept = _open_across(broker, number)
            yield (
                f"{number.name} inside a transaction, whose commit is acknowledged afterwards: "
                f"{kept} of 1 messages is there"
            )


def _again(broker: KafkaBroker, number: int) -> None:
    assert broker.server is not None
    broker.server.end(number)
    broker.server.start()


def _committed_before(broker: KafkaBroker, number: int, pause_s: float) -> int:
    """Return how many committed transactions outlive the broker's end."""
    topic = broker.topic()
    time.sleep(1.5)  # the topic itself is stored
    producer = broker.producer(topic)
    for value in range(_TRANSACTIONS):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % value)
        producer.commit_transaction(30)
    time.sleep(pause_s)
    _again(broker, number)
    return len(broker.values(topic))


def _open_across(broker: KafkaBroker, number: int) -> int:
    """Return how many messages of a transaction outlive that the broker ends inside it."""
    topic = broker.topic()
    producer = broker.producer(topic)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(30) == 0
    time.sleep(1.5)
    _again(broker, number)
    producer.commit_transaction(30)
    return len(broker.values(topic))
