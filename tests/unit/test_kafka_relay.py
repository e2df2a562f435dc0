"""The relay before the tests' broker: fetches wait there, and connections are cut there."""

from __future__ import annotations

import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from tests.kafka_relay import bytes_of_records, fetch_limits

pytest.importorskip("confluent_kafka", reason="Kafka tests need confluent-kafka.")

from confluent_kafka import KafkaException

if TYPE_CHECKING:
    from tests.kafka_broker import KafkaBroker

pytestmark = pytest.mark.kafka


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("version", [4, 11, 12, 13, 15])
def test_a_fetch_says_how_long_it_waits_and_for_how_much(version: int) -> None:
    head = struct.pack(">hhih", 1, version, 7, 4) + b"name"
    tags = b"\x01\x05\x02ab" if version >= 12 else b""
    replica = b"\xff" * 4 if version < 15 else b""
    request = framed(head + tags + replica + struct.pack(">iii", 250, 1000, 1 << 20))
    assert fetch_limits(request) == (0.25, 1000)


def answer_of(version: int, *records: bytes | None, error: int = 0, broken: int = 0) -> bytes:
    """Make a fetch's answer, with a partition of one topic for each of the records."""
    flexible = version >= 12

    def length(number: int, size: str = ">i") -> bytes:
        # A compact length is one more, in bytes of seven bits.
        if not flexible:
            return struct.pack(size, number)
        number += 1
        return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80, number >> 7])

    tags = b"\x00" if flexible else b""
    body = struct.pack(">i", 7) + tags + struct.pack(">i", 0)
    if version >= 7:
        body += struct.pack(">hi", broken, 0)
    topic = b"t" * 16 if version >= 13 else length(5, ">h") + b"topic"
    body += length(1) + topic + length(len(records))
    for number, of_partition in enumerate(records):
        body += struct.pack(">ihq", number, error, 10) + struct.pack(">q", 10)
        if version >= 5:
            body += struct.pack(">q", 0)
        aborted = struct.pack(">qq", 1000, 3) + tags
        body += length(2) + aborted * 2 if number else length(-1)
        if version >= 11:
            body += struct.pack(">i", -1)
        size = -1 if of_partition is None else len(of_partition)
        body += length(size) + (of_partition or b"") + tags
    return framed(body + tags)


@pytest.mark.parametrize("version", [4, 5, 7, 11, 12, 13])
def test_what_an_answer_has_of_records_is_counted_in_every_version(version: int) -> None:
    assert bytes_of_records(answer_of(version, b"", None), version) == 0
    assert bytes_of_records(answer_of(version, b"a" * 300, b"", b"b" * 61), version) == 361
    assert bytes_of_records(answer_of(version, b"", error=1), version) is None
    if version >= 7:
        assert bytes_of_records(answer_of(version, b"", broken=70), version) is None


def relay_of(kafka: KafkaBroker) -> Any:
    if kafka.server is None:
        pytest.skip("A cluster that is not the tests' own has no relay.")
    return kafka.server.relay


def test_whoever_waits_gets_a_message_when_it_is_there(kafka: KafkaBroker) -> None:
    from confluent_kafka import Consumer, TopicPartition

    relay_of(kafka)
    topic = kafka.topic()
    settings = {"bootstrap.servers": kafka.servers, "group.id": "g", "fetch.wait.max.ms": 280_000}
    consumer = Consumer(
        {**settings, "isolation.level": "read_committed", "socket.timeout.ms": 300_000}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.3) is None
    producer = kafka.producer(topic)
    began_s = time.monotonic()
    for value in (b"first", b"second"):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.commit_transaction(30)
        message = consumer.poll(120)
        assert message is not None
        assert message.value() == value
    assert time.monotonic() - began_s < 240  # a fetch that is not asked again waits longer
    consumer.close()


@pytest.mark.parametrize("answer", [False, True])
def test_a_request_is_lost_or_only_its_answer(kafka: KafkaBroker, answer: bool) -> None:
    relay, topic = relay_of(kafka), kafka.topic()
    before = relay.num_cuts
    producer = kafka.producer(None, **{"client.id": "godwit", "retries": 0})
    other = kafka.producer(retries=0)
    relay.cut("Produce", answer=answer, skip=1)
    errors: list[Any] = []
    for value in (b"passes", b"is cut", b"passes again"):
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(30) == 0
        other.produce(topic, b"other")
        assert other.flush(30) == 0
    assert [error is None for error in errors] == [True, False, True]
    assert relay.num_cuts == before + 1
    ours = [value for value in kafka.values(topic) if value != b"other"]
    assert ours == [b"passes", *([b"is cut"] if answer else []), b"passes again"]


def test_the_broker_seems_to_be_down_and_comes_back_with_all_it_had(kafka: KafkaBroker) -> None:
    relay, topic = relay_of(kafka), kafka.topic()
    producer = kafka.producer(topic, **{"client.id": "godwit"})
    relay.cut("EndTxn", answer=True, down_s=0.3)
    producer.begin_transaction()
    producer.produce(topic, b"row")
    with suppress(KafkaException):  # the library may ask again by itself, or tell of it
        producer.commit_transaction(30)
    assert kafka.values(topic) == [b"row"]
