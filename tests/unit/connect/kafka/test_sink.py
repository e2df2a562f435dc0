"""Results in Kafka: readers of committed messages see each epoch once, whoever dies or meddles."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from tests.support.epoch_rows import Committed, EpochRows, context, point, rows
from tests.support.kafka_epochs import (
    PLANES,
    ROWS,
    STEPS,
    die_in_transaction,
    epoch_rows,
    write_epochs,
)

import godwit as gw
from godwit.model.errors import InvalidFlowError, SinkError
from godwit.sinks.continuity import Position, continue_delivery

pytest.importorskip("confluent_kafka", reason="Kafka tests need confluent-kafka.")

from confluent_kafka import KafkaError, KafkaException, Producer

from godwit.connect.kafka import sink as kafka_sink
from godwit.connect.kafka.sink import KafkaSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kafka_broker import KafkaBroker

    from godwit.plan.staging import Rejections
    from godwit.sinks.sink import SinkContext

pytestmark = pytest.mark.kafka

EPOCHS = [rows(0, ("N1", 1), ("N2", 2), (None, 3)), rows(1, ("N1", 10), ("N3", 30), ("N1", 11))]
TOTALS = [1, 2, 3, 10, 11, 30]


@contextmanager
def opened(
    broker: KafkaBroker, topic: str, ctx: SinkContext | None = None, **options: Any
) -> Iterator[KafkaSink]:
    sink = gw.sinks.kafka(broker.servers, topic, **options)
    try:
        sink.open(ctx or context())
        yield sink
    finally:
        sink.close()


def objects(broker: KafkaBroker, topic: str) -> list[Any]:
    return [json.loads(value) for value in broker.values(topic) if value is not None]


def totals(broker: KafkaBroker, topic: str) -> list[int]:
    return sorted(row["total"] for row in objects(broker, topic))


def test_epochs_are_there_once_however_often_they_are_delivered(kafka: KafkaBroker) -> None:
    topic = kafka.topic(2)
    with opened(kafka, topic, key="plane") as sink:
        assert sink.last_delivered() is None
        for epoch in [*EPOCHS, EPOCHS[1], EPOCHS[0]]:
            sink.deliver(epoch)
        assert sink.last_delivered() == point(1)
    with opened(kafka, topic, key="plane") as restarted:
        restarted.deliver(EPOCHS[1])
        restarted.deliver(rows(2))
        assert restarted.last_delivered() == point(2)
    assert totals(kafka, topic) == TOTALS
    assert [(m.key(), json.loads(m.value())["total"]) for m in kafka.read(topic) if m.key()]
    by_key = defaultdict(list)
    for message in kafka.read(topic):
        by_key[message.key(), message.partition()].append(json.loads(message.value())["total"])
    assert sorted(map(tuple, by_key.values())) == [(1, 10, 11), (2,), (3,), (30,)]


def test_a_sink_that_was_renamed_goes_on_and_another_begins(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    with opened(kafka, topic) as sink:
        sink.deliver(EPOCHS[0])
    with opened(kafka, topic, context(name="planes", writer="by_plane")) as renamed:
        assert renamed.last_delivered() == point(0)
    with opened(kafka, topic, context(name="other")) as other:
        assert other.last_delivered() is None


def test_a_target_ahead_of_its_checkpoint_is_refused_or_gone_on_with(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    position = Position(before=0, stays=True, copied=False)
    restored = Committed(latest_epoch=1)
    with opened(kafka, topic) as sink:
        for epoch in [*EPOCHS, rows(2, ("N9", 9))]:
            sink.deliver(epoch)
        for way in ("refuse", "roll_back"):
            with pytest.raises(SinkError, match="cannot be deleted"):
                continue_delivery(sink, "by_plane", restored, position, way)
        assert continue_delivery(sink, "by_plane", restored, position, "new_writer")
        assert sink.last_delivered() == point(1)
        sink.deliver(rows(2, ("N9", 99)))
    assert totals(kafka, topic) == [1, 2, 3, 9, 10, 11, 30, 99]


def test_whoever_comes_later_fences_who_was_there(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    with opened(kafka, topic) as zombie, opened(kafka, topic) as sink:
        with pytest.raises(SinkError, match="another process has fenced this sink"):
            zombie.deliver(EPOCHS[0])
        sink.deliver(EPOCHS[0])
    assert totals(kafka, topic) == [1, 2, 3]


def test_a_commit_whose_answer_is_lost_is_known_from_the_group(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic()
    commit, answers = KafkaSink._commit_transaction, ["lost"]

    def lose_the_answer(sink: KafkaSink, producer: Any) -> None:
        commit(sink, producer)
        if answers and answers.pop():
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr(KafkaSink, "_commit_transaction", lose_the_answer)
    with opened(kafka, topic) as sink:
        for epoch in EPOCHS:
            sink.deliver(epoch)
    assert answers == []
    assert totals(kafka, topic) == TOTALS


def test_a_transaction_that_fails_is_done_again(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic()
    commit, fails = KafkaSink._commit_transaction, [1, 2]

    def fail(sink: KafkaSink, producer: Any) -> None:
        if fails:
            fails.pop()
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        commit(sink, producer)

    monkeypatch.setattr(KafkaSink, "_commit_transaction", fail)
    with opened(kafka, topic) as sink:
        for epoch in EPOCHS:
            sink.deliver(epoch)
    assert totals(kafka, topic) == TOTALS


@pytest.mark.parametrize("down_s", [0.0, 0.1])
def test_requests_of_a_transaction_are_lost_or_their_answers(
    kafka: KafkaBroker, down_s: float
) -> None:
    if kafka.server is None:
        pytest.skip("A cluster that is not the tests' own has no relay that cuts connections.")
    relay, topic = kafka.server.relay, kafka.topic(2)
    cuts = [
        ("EndTxn", True),
        ("TxnOffsetCommit", False),
        ("AddPartitionsToTxn", True),
        ("Produce", True),
        ("EndTxn", False),
    ]
    made = relay.num_cuts
    with opened(kafka, topic, key="plane", config={"reconnect.backoff.max.ms": 100}) as sink:
        for epoch, (api, answer) in enumerate(cuts):
            relay.cut(api, answer=answer, down_s=down_s)
            sink.deliver(epoch_rows(epoch))
            assert sink.last_delivered() == point(epoch)
    assert relay.num_cuts == made + len(cuts)
    assert totals(kafka, topic) == [*range(len(cuts) * ROWS)]


def test_a_producer_that_never_answers_is_given_up_for_another(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, answers = kafka.topic(), threading.Event()

    class Hangs(Producer):
        hangs: ClassVar = [True]

        def send_offsets_to_transaction(self, *args: Any) -> None:
            if self.hangs and self.hangs.pop():
                answers.wait(60)
            super().send_offsets_to_transaction(*args)

    monkeypatch.setattr(kafka_sink, "Producer", Hangs)
    monkeypatch.setattr(kafka_sink, "_GRACE_S", -29.8)  # of the sink's 30 s
    with opened(kafka, topic) as sink:
        for epoch in EPOCHS:
            sink.deliver(epoch)
    answers.set()
    assert not Hangs.hangs
    assert totals(kafka, topic) == TOTALS


def test_an_epoch_that_breaks_off_leaves_nothing(kafka: KafkaBroker) -> None:
    topic = kafka.topic()

    def broken(batch: int) -> None:
        if batch == 1:
            raise OSError("the checkpoint is away")

    with opened(kafka, topic) as sink:
        with pytest.raises(OSError, match="the checkpoint is away"):
            sink.deliver(replace(EPOCHS[0], on_batch=broken))
        assert sink.last_delivered() is None
        sink.deliver(EPOCHS[0])
    assert totals(kafka, topic) == [1, 2, 3]


def test_keys_headers_topics_and_partitions_come_from_columns(kafka: KafkaBroker) -> None:
    topic, other = kafka.topic(3), kafka.topic()
    schema = pa.schema(
        [
            ("plane", pa.string()),
            ("year", pa.int32()),
            ("about", pa.map_(pa.string(), pa.string())),
            ("to", pa.string()),
            ("place", pa.int32()),
        ]
    )
    table = pa.table(
        {
            "plane": ["N1", "N2", "N3"],
            "year": [2013, 2014, None],
            "about": [[("by", "x\x00\n"), ("no", None)], [], None],
            "to": [None, other, None],
            "place": [2, None, 1],
        },
        schema=schema,
    )
    ctx = context(schema=schema, keys=())
    options = {"headers": "about", "topic_column": "to", "partition_column": "place"}
    with opened(kafka, topic, ctx, key=["plane", "year"], **options) as sink:
        sink.deliver(EpochRows(epoch=0, table=table))
    third, first = kafka.read(topic)
    (second,) = kafka.read(other)
    assert (first.partition(), third.partition()) == (2, 1)
    assert first.headers() == [("by", b"x\x00\n"), ("no", None)]
    assert first.key() == b'{"plane":"N1","year":2013}'
    assert json.loads(second.value()) == {"plane": "N2", "year": 2014}
    with opened(kafka, topic, context(schema=schema, name="years"), key="year", **options) as sink:
        sink.deliver(EpochRows(epoch=0, table=table))
    assert [m.key() for m in kafka.read(other)] == [second.key(), b"2014"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "colour"}, "key names 'colour'"),
        ({"topic_column": "total"}, "topic_column= is 'total', a column of type int64"),
        ({"partition_column": "plane"}, "partition_column= is 'plane', a column of type string"),
        ({"headers": "plane"}, "headers= is 'plane'"),
        ({"value": "text"}, "needs exactly one column of text or bytes"),
    ],
)
def test_columns_that_will_not_do_are_refused_at_the_start(
    options: dict[str, Any], message: str
) -> None:
    sink = gw.sinks.kafka("127.0.0.1:9", "flights", **options)
    with pytest.raises(SinkError, match=message):
        sink.open(context())


def test_a_row_that_is_too_large_is_found_before_it_is_committed(kafka: KafkaBroker) -> None:
    topic = kafka.topic(config={"max.message.bytes": "5000"})
    large = rows(0, ("N1", 1), ("x" * 6000, 2), ("N3", 3))
    with opened(kafka, topic) as sink:
        check = sink.row_check()
        assert check is not None
        rejections = check(large.table.combine_chunks().to_batches()[0])
        assert rejections is not None
        assert rejections.rows.tolist() == [1]
        assert "the topic accepts 5000" in rejections.reasons[0]
        assert check(EPOCHS[0].table.combine_chunks().to_batches()[0]) is None
        with pytest.raises(SinkError, match=r"'total': 2.*the topic accepts 5000"):
            sink.deliver(large)
        assert sink.last_delivered() is None
    diverted: list[Any] = []

    def take(batch: pa.RecordBatch, rejections: Rejections) -> None:
        diverted.extend(batch.take(pa.array(rejections.rows))["total"].to_pylist())

    with opened(kafka, topic, rejects=gw.sinks.memory()) as sink:
        sink.deliver(replace(large, on_divert=take))
    assert totals(kafka, topic) == [1, 3]
    assert diverted == [2]


def test_what_only_the_broker_can_refuse_says_what_to_do(kafka: KafkaBroker) -> None:
    topic, small = kafka.topic(), kafka.topic(config={"max.message.bytes": "2000"})
    schema = pa.schema([("plane", pa.string()), ("to", pa.string())])
    table = pa.table({"plane": ["x" * 3000], "to": [small]}, schema=schema)
    refused = f"messages are refused.*{small}.*Increase the topic's max.message.bytes"
    with opened(kafka, topic, context(schema=schema, keys=()), topic_column="to") as sink:
        with pytest.raises(SinkError, match=refused):
            sink.deliver(EpochRows(epoch=0, table=table))
        assert sink.last_delivered() is None
        table = pa.table({"plane": ["x" * 300], "to": [small]}, schema=schema)
        sink.deliver(EpochRows(epoch=0, table=table))
        assert sink.last_delivered() == point(0)
    assert len(kafka.values(small)) == 1


@pytest.mark.parametrize(
    ("timeout", "message"),
    [("1 second", "after 1 s: .*transaction_timeout="), ("1 minute", "has fenced this sink")],
)
def test_a_transaction_that_the_broker_has_ended_says_why(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, timeout: str, message: str
) -> None:
    topic = kafka.topic()

    def end(batch: int) -> None:
        """Have the broker end the transaction: not all of them do when its time is over."""
        if batch == 1:
            time.sleep(1.01)
            kafka.producer("godwit-query-1-by_plane")

    monkeypatch.setattr(kafka_sink, "_ROWS", 2)  # the first batch is sent before the second
    with (
        opened(kafka, topic, transaction_timeout=timeout) as sink,
        pytest.raises(SinkError, match=message),
    ):
        sink.deliver(replace(EPOCHS[0], on_batch=end))
    with opened(kafka, topic) as restarted:
        for epoch in EPOCHS:
            restarted.deliver(epoch)
    assert totals(kafka, topic) == TOTALS


def test_times_that_have_no_text_are_found_before_they_are_committed(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    schema = pa.schema([("at", pa.timestamp("us"))])
    with opened(kafka, topic, context(schema=schema, keys=())) as sink:
        check = sink.row_check()
        assert check is not None
        rejections = check(
            pa.RecordBatch.from_arrays([pa.array([0, 2**60], schema.field(0).type)], schema=schema)
        )
        assert rejections is not None
        assert rejections.rows.tolist() == [1]


def test_at_least_once_writes_again_and_says_so(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    with opened(kafka, topic, exactly_once=False) as sink:
        assert not sink.keeps_epochs
        assert "exactly_once=False" in repr(sink)
        for epoch in [*EPOCHS, EPOCHS[1]]:
            sink.deliver(epoch)
    assert totals(kafka, topic) == TOTALS
    with opened(kafka, topic, exactly_once=False) as restarted:
        restarted.deliver(EPOCHS[1])
    assert totals(kafka, topic) == sorted([*TOTALS, 10, 11, 30])


def test_a_topic_that_is_not_there_is_refused(kafka: KafkaBroker) -> None:
    with (
        pytest.raises(SinkError, match="cannot find topic 'godwit-nowhere'"),
        opened(kafka, "godwit-nowhere"),
    ):
        pass


def test_errors_of_the_cluster_come_in_time_and_without_passwords() -> None:
    config = {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "hunter3333"}
    sink = gw.sinks.kafka("127.0.0.1:9", "flights", timeout="1 second", config=config)
    began_s = time.monotonic()
    with pytest.raises(SinkError, match="cannot be opened") as refused:
        sink.open(context())
    assert time.monotonic() - began_s < 20
    assert "hunter3333" not in f"{sink!r} {refused.value} {sink.destination}"
    sink.close()
    with pytest.raises(InvalidFlowError, match=r"transaction timeout .* is 0\.5 s"):
        gw.sinks.kafka("127.0.0.1:9", "flights", transaction_timeout="0.5 seconds")
    with pytest.raises(InvalidFlowError, match="which Godwit sets itself"):
        gw.sinks.kafka("127.0.0.1:9", "flights", config={"transactional.id": "mine"})


def test_killed_at_any_moment_every_row_is_there_once_and_in_order(kafka: KafkaBroker) -> None:
    topic = kafka.topic(3)
    rng = random.Random(20_260_711)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.support.kafka_epochs", "godwit.connect.kafka.sink"])
    for _ in range(12 if "GODWIT_LONG" in os.environ else 6):
        writer = processes.Process(target=write_epochs, args=(kafka.servers, topic, 10**6))
        writer.start()
        writer.join(rng.uniform(0.02, 0.35))
        assert writer.exitcode is None, "it ended by itself"
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    with opened(kafka, topic, key="plane") as sink:
        reached = sink.last_delivered()
        first = -1 if reached is None else reached.epoch
        for epoch in range(max(first, 0), first + 3):
            sink.deliver(epoch_rows(epoch))
    seen = [(m.partition(), json.loads(m.value())) for m in kafka.read(topic)]
    assert sorted(row["total"] for _, row in seen) == [*range((first + 3) * ROWS)]
    for plane in {f"N{number}" for number in range(PLANES)}:
        of_plane = [row["total"] for _, row in seen if row["plane"] == plane]
        assert of_plane == sorted(of_plane)
        assert len({partition for partition, row in seen if row["plane"] == plane}) == 1


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_each_step_of_a_transaction_every_row_is_there_once(
    kafka: KafkaBroker, step: str
) -> None:
    topic = kafka.topic(3)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.support.kafka_epochs", "godwit.connect.kafka.sink"])
    writer = processes.Process(target=die_in_transaction, args=(kafka.servers, topic, step))
    writer.start()
    writer.join(60)
    assert writer.exitcode == -signal.SIGKILL
    with opened(kafka, topic, key="plane") as sink:
        assert sink.last_delivered() == point(1 if step == "committed" else 0)
        for epoch in (1, 2):
            sink.deliver(epoch_rows(epoch))
        assert sink.last_delivered() == point(2)
    assert totals(kafka, topic) == [*range(3 * ROWS)]
