"""Kafka's topics as a source, read from a real broker: positions, gaps, limits and refusals."""

from __future__ import annotations

import datetime as dt
import logging
import os
import pickle
import signal
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.epoch_rows import context
from tests.support.refusing_broker import refusing_broker

import godwit as gw
from godwit.model.errors import InvalidFlowError, SinkError, SourceError
from godwit.model.events import RowsUnreadable

pytest.importorskip("confluent_kafka", reason="Kafka tests need confluent-kafka.")

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from godwit.connect.kafka import reader as kafka_reader
from godwit.connect.kafka import source as kafka_source
from godwit.connect.kafka.client import ClusterAdmin, TopicState
from godwit.connect.kafka.source import KafkaSource, fair_shares

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.kafka_broker import KafkaBroker

pytestmark = pytest.mark.kafka

NOW_MS = int(time.time() - 3 * 3600) * 1000  # brokers refuse or delete what is long ago or to come


_made: list[KafkaSource] = []


@pytest.fixture(autouse=True)
def _fresh_readers() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()
    kafka_reader.close_readers()


def source_of(broker: KafkaBroker, *topics: str, **options: Any) -> KafkaSource:
    # Here a reader is often told other partitions, which wait until a fetch of nothing ends.
    options.setdefault("config", {"fetch.wait.max.ms": 10})
    _made.append(gw.sources.kafka(broker.servers, topics, **options))
    return _made[-1]


def opened(broker: KafkaBroker, *topics: str, **options: Any) -> KafkaSource:
    source = source_of(broker, *topics, **options)
    source.open(None)
    return source


def rows_between(
    source: KafkaSource, begin: Any, end: Any, columns: Sequence[str] = (), parallelism: int = 2
) -> list[dict[str, Any]]:
    names = columns or source.schema.names
    splits = source.splits(begin, end, parallelism)
    batches = [batch for split in splits for batch in source.read(split, names)]
    read = [batch for batch in batches if isinstance(batch, pa.RecordBatch)]
    return [row for batch in read for row in batch.to_pylist()]


def read_all(source: KafkaSource, columns: Sequence[str] = ()) -> list[dict[str, Any]]:
    start = source.start()
    return rows_between(source, start, source.latest(start), columns)


def moved(source: KafkaSource, position: Any) -> Any:
    """Wait until messages that were put are here."""
    deadline = time.monotonic() + 120
    while (after := source.latest(position)) == position:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    return after


def offsets(position: Any) -> list[int]:
    (state,) = position.values()
    return list(state["next"])


def json_rows(numbers: range) -> list[bytes]:
    return [b'{"n":%d}' % number for number in numbers]


def test_it_keeps_the_contract_of_sources_between_gaps(kafka: KafkaBroker) -> None:
    topic = kafka.topic(3)
    producer = kafka.producer(topic)

    def add() -> None:
        producer.begin_transaction()
        for number in range(12):
            producer.produce(topic, b'{"n":%d}' % number, partition=number % 3)
        producer.commit_transaction(30)

    add()
    add()
    columns = ["key", "headers", "timestamp", "topic", "partition", "offset"]
    source = source_of(kafka, topic, value="json", schema="n bigint", include=columns)
    gw.testing.check_source(source, add=add, ordered_within="partition")


def test_history_in_a_delta_table_is_followed_by_the_topic(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.topic(2)
    for number in range(12):
        kafka.put(topic, b'{"n":%d}' % number, partition=number % 2)
    archive = [(number, number % 2, number // 2) for number in range(9)]
    schema = {"n": pa.int64(), "partition": pa.int32(), "offset": pa.int64()}
    columns = [
        pa.array(values, dtype)
        for values, dtype in zip(zip(*archive, strict=True), schema.values(), strict=True)
    ]
    deltalake.write_deltalake(str(tmp_path), pa.table(columns, pa.schema(schema)))

    def start(position: Any) -> Any:
        live = source_of(
            kafka, topic, value="json", schema="n bigint", include=["partition", "offset"]
        )
        before = (pc.field("partition") == 0) & (pc.field("offset") < 3)
        before |= (pc.field("partition") == 1) & (pc.field("offset") < 4)
        history = gw.sources.delta(tmp_path, max_rows_per_epoch=4)
        source = gw.sources.sequence(history, live, cut=before)
        source.open(position)
        return source

    source = start(None)
    position, numbers = source.start(), []
    for _ in range(20):
        end = moved(source, position)
        numbers += [row["n"] for row in rows_between(source, position, end)]
        if len(numbers) >= 12:
            break
        position = end
        source = start(position)
    assert numbers[:7] == [0, 1, 2, 3, 4, 5, 7]
    assert sorted(numbers) == list(range(12))


def test_a_message_has_key_headers_time_and_place(kafka: KafkaBroker) -> None:
    topic = kafka.topic(2)
    headers = [("trace", b"\x00\n\xff"), ("trace", None), ("\t", b"")]
    kafka.put(topic, b"one", None, partition=1, key=b"k", headers=headers, timestamp=NOW_MS)
    source = opened(kafka, topic, include=["key", "headers", "timestamp", "partition", "offset"])
    one, none = read_all(source)
    assert one == {
        "value": b"one",
        "key": b"k",
        "headers": [{"key": key, "value": value} for key, value in headers],
        "timestamp": dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC),
        "partition": 1,
        "offset": 0,
    }
    assert none["value"] is None
    assert source.arrival_time == "timestamp"
    renamed = source_of(kafka, topic, include={"timestamp": "arrived", "key": "k"})
    assert renamed.schema.names == ["value", "arrived", "k"]
    assert renamed.arrival_time == "arrived"


def test_a_consumer_stays_from_epoch_to_epoch(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    build = kafka_reader.RangeReader.__init__
    assigned: list[object] = []
    assign = kafka_reader.RangeReader._discard_fetched

    def counted(self: Any, *arguments: Any) -> None:
        made.append(self)
        build(self, *arguments)

    def forgotten(self: Any) -> None:
        assigned.append(self)
        assign(self)

    monkeypatch.setattr(kafka_reader.RangeReader, "__init__", counted)
    monkeypatch.setattr(kafka_reader.RangeReader, "_discard_fetched", forgotten)
    topic = kafka.topic(2)
    source = opened(kafka, topic, value="text")
    position, seen = source.start(), []
    for epoch in range(5):
        kafka.put(topic, b"%d" % epoch, partition=epoch % 2)
        after = moved(source, position)
        seen += rows_between(source, position, after)
        position = after
    assert [row["value"] for row in seen] == ["0", "1", "2", "3", "4"]
    assert (len(made), len(assigned)) == (1, 0)
    source.close()
    assert not any(kafka_reader._kept.values())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Take note of questions where partitions begin and end."""
    asks: list[object] = []
    offsets = ClusterAdmin.offsets

    def noted(self: Any, places: Any, **options: Any) -> Any:
        asks.append(places)
        return offsets(self, places, **options)

    monkeypatch.setattr(ClusterAdmin, "offsets", noted)
    monkeypatch.setattr(kafka_source, "_ENDS_S", 3600.0)
    return asks


def test_where_messages_are_here_the_cluster_is_not_asked(
    kafka: KafkaBroker, asked: list[object]
) -> None:
    topic = kafka.topic(2)
    source = opened(kafka, topic, value="json", schema="n bigint")
    position, seen, quiet = source.start(), list[int](), 0
    for number in range(1000):
        kafka.put(topic, *json_rows(range(number, number + 1)), partition=number % 2)
        while len(seen) <= number:
            before = len(asked)
            after = source.latest(position)
            seen += [row["n"] for row in rows_between(source, position, after)]
            quiet += len(asked) == before and after != position
            position = after
        if quiet == 5:
            break
    assert quiet == 5
    assert seen == list(range(number + 1))
    assert source.lag(position).rows == 0


def test_a_query_that_is_far_behind_reads_more_than_is_here(
    kafka: KafkaBroker, asked: list[object]
) -> None:
    topic = kafka.topic()
    kafka.put(topic, b"first")
    source = opened(kafka, topic, value="text", max_rows_per_epoch=50_000)
    start = source.start()
    begin = source.latest(start)
    assert len(rows_between(source, start, begin)) == 1
    kafka.put(topic, *[b"x"] * 30_000)
    deadline = time.monotonic() + 120
    while offsets(end := source.latest(begin)) != [30_001]:  # some are fetched, the others known of
        assert time.monotonic() < deadline
    assert source.lag(begin).rows == 30_000
    assert len(rows_between(source, begin, end)) == 30_000
    assert len(asked) > 1


def test_a_kept_consumer_that_fails_is_closed_and_the_cluster_asked(
    kafka: KafkaBroker, asked: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic()
    kafka.put(topic, b"a")
    source = opened(kafka, topic, value="text")
    start = source.start()
    position = source.latest(start)
    assert len(rows_between(source, start, position)) == 1
    asked.clear()

    def fails(_self: object, _wait_s: float = 0) -> None:
        raise kafka_reader.OffsetsLostError((topic, 0), 1)

    with monkeypatch.context() as context:
        context.setattr(kafka_reader.RangeReader, "_poll_messages", fails)
        assert source.latest(position) == position
    assert len(asked) == 1
    assert not any(kafka_reader._kept.values())
    kafka.put(topic, b"b")
    after = moved(source, position)
    assert [row["value"] for row in rows_between(source, position, after)] == ["b"]


def test_a_consumer_that_others_have_overtaken_fetches_no_more(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    kafka.put(topic, b"a", b"b")
    source = opened(kafka, topic, value="text", max_rows_per_epoch=1)
    start = source.start()
    first = source.latest(start)
    assert len(rows_between(source, start, first)) == 1
    second = source.latest(first)  # is read by a task of Spark's, say
    source.latest(second)
    (readers,) = [kept for kept in kafka_reader._kept.values() if kept]
    assert not readers[0]._next_offsets


def test_idle_consumers_are_closed(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    kafka.put(topic, b"x")
    source = opened(kafka, topic)
    assert read_all(source)
    kafka_reader.close_idle(3600)
    assert sum(map(len, kafka_reader._kept.values())) == 1
    kafka_reader.close_idle(0)
    assert not any(kafka_reader._kept.values())
    assert read_all(source)


def test_partitions_that_are_added_are_read_from_their_beginning(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_source, "_TOPICS_S", 0.0)
    topic = kafka.topic(1)
    kafka.put(topic, b"a")
    source = opened(kafka, topic, start="latest")
    start = source.start()
    assert offsets(start) == [1]
    kafka.add_partitions(topic, 4)
    assert source.latest(start) == start, "an empty partition is nothing to read"
    kafka.put(topic, b"b", b"c", partition=2)
    end = source.latest(start)
    assert offsets(end) == [1, 0, 2]
    assert [row["value"] for row in rows_between(source, start, end)] == [b"b", b"c"]
    kafka.put(topic, b"d", partition=1)
    assert source.latest(start, until=end) == end
    assert offsets(moved(source, end)) == [1, 1, 2]


def test_a_query_begins_where_it_is_told(kafka: KafkaBroker) -> None:
    topic, other = kafka.topic(2), kafka.topic(1)
    for hour in range(3):
        kafka.put(topic, b"x", timestamp=NOW_MS + hour * 3_600_000)
    kafka.put(topic, b"y", timestamp=NOW_MS, partition=1)
    second = dt.datetime.fromtimestamp(NOW_MS / 1000 + 3_600, dt.UTC)
    for start, expected in (
        ("earliest", [0, 0]),
        ("latest", [3, 1]),
        ({0: 2}, [2, 0]),
        ({topic: {1: 1}}, [0, 1]),
        (second, [1, 1]),
    ):
        source = opened(kafka, topic, start=start)
        assert offsets(source.start()) == expected, start
        source.close()
    for wrong, message in (
        ({0: 9}, "offset 9 of partition 0"),
        ({5: 0}, "partition 5"),
        ({other: {0: 0}}, other),
    ):
        source = opened(kafka, topic, start=wrong)
        with pytest.raises(SourceError, match=message):
            source.start()
        source.close()
    for no_place in ("now", {}, {0: -1}, 7):
        with pytest.raises(InvalidFlowError, match="not a valid start"):
            source_of(kafka, topic, start=no_place)
    with pytest.raises(InvalidFlowError, match="not a valid start"):
        source_of(kafka, topic, other, start={0: 1})


@pytest.mark.parametrize("down_s", [0.0, 0.2])
def test_an_answer_about_offsets_that_is_lost_is_asked_for_again(
    kafka: KafkaBroker, down_s: float
) -> None:
    if kafka.server is None:
        pytest.skip("A cluster that is not the tests' own has no relay that cuts connections.")
    topic, relay = kafka.topic(2), kafka.server.relay
    kafka.put(topic, b"a", b"b")
    source = opened(kafka, topic, start="earliest")
    made = relay.num_cuts
    relay.cut("ListOffsets", answer=True, down_s=down_s)
    assert offsets(source.start()) == [0, 0]  # the library says -1001 of what it did not hear
    assert relay.num_cuts == made + 1


def test_a_limit_is_shared_among_partitions_and_an_end_holds(kafka: KafkaBroker) -> None:
    topic = kafka.topic(3)
    kafka.put(topic, *json_rows(range(1)), partition=0)
    for partition in (1, 2):
        kafka.put(topic, *json_rows(range(50)), partition=partition)
    source = opened(kafka, topic, max_rows_per_epoch=21)
    start = source.start()
    assert offsets(source.latest(start)) == [1, 10, 10]
    assert offsets(source.latest(start, limit=5)) == [1, 2, 2]
    end = source.end(start)
    assert offsets(end) == [1, 50, 50]
    kafka.put(topic, *json_rows(range(50)), partition=0)
    position, epochs = start, 0
    while (after := source.latest(position, until=end)) != position:
        position, epochs = after, epochs + 1
    assert (position, epochs) == (end, 5)
    assert source.lag(end).rows == 50
    assert source.describe(end) == {topic: [1, 50, 50]}


@pytest.mark.parametrize(
    ("available", "limit", "shares"),
    [
        ([], 3, []),
        ([5, 5, 5], 0, [0, 0, 0]),
        ([5, 9, 5], 1, [0, 1, 0]),
        ([1, 2, 100], 50, [1, 2, 47]),
        ([10, 10, 10], 8, [3, 3, 2]),
        ([0, 0, 7], 7, [0, 0, 7]),
    ],
)
def test_shares_are_fair(available: list[int], limit: int, shares: list[int]) -> None:
    assert fair_shares(available, limit) == shares


def test_large_ranges_are_cut_into_splits_of_like_size(kafka: KafkaBroker) -> None:
    topic = kafka.topic(2)
    many = 30_000
    producer = kafka.producer()
    for number in range(many):
        producer.produce(topic, b'{"n":%d}' % number, partition=number % 2)
        producer.poll(0)
    assert producer.flush(60) == 0
    source = opened(kafka, topic, value="json", schema="n bigint")
    start = source.start()
    end = source.latest(start)
    splits = source.splits(start, end, 4)
    assert [split.rows for split in splits] == [7_500] * 4
    whole = [row["n"] for row in rows_between(source, start, end, parallelism=1)]
    assert whole == [*range(0, many, 2), *range(1, many, 2)]
    assert [row["n"] for row in rows_between(source, start, end, parallelism=4)] == whole
    # A reader that is left in the middle of a range begins anew.
    reading = source.read(splits[1], ["n"])
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    again = pa.Table.from_batches(source.read(splits[1], ["n"]))["n"].to_pylist()
    assert again == whole[7_500:15_000]


def test_open_transactions_are_not_read_and_aborted_ones_leave_gaps(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    kept, aborted = kafka.producer(f"{topic}-kept"), kafka.producer(f"{topic}-aborted")
    kafka.put(topic, b"0")
    source = opened(kafka, topic, value="text", include=["offset"])
    aborted.begin_transaction()
    aborted.produce(topic, b"never", partition=0)
    aborted.flush(30)
    kafka.put(topic, b"2")
    start = source.start()
    before = source.latest(start)
    assert offsets(before) == [1]
    aborted.abort_transaction(30)
    kept.begin_transaction()
    kept.produce(topic, b"4", partition=0)
    kept.commit_transaction(30)
    end = source.latest(before)
    assert offsets(end) == [6]
    expected = [
        {"value": "0", "offset": 0},
        {"value": "2", "offset": 2},
        {"value": "4", "offset": 4},
    ]
    assert rows_between(source, start, end) == expected
    all_rows = opened(kafka, topic, value="text", isolation="read_uncommitted")
    assert [row["value"] for row in read_all(all_rows)] == ["0", "never", "2", "4"]


def test_a_message_that_cannot_be_read_is_refused_by_its_place_or_left_out(
    kafka: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.topic(2)
    kafka.put(topic, b'{"n":1}', b'{"n":"x"}', b'{"n":3}', b"null", partition=1)
    options = {"value": "json", "schema": "n bigint", "include": ["offset"]}
    source = opened(kafka, topic, **options)
    with pytest.raises(SourceError, match="offset 1 of partition 1 of topic") as refused:
        read_all(source)
    assert refused.value.context == {"topic": topic, "partition": 1, "offset": 1}
    lenient = opened(kafka, topic, on_bad="skip", **options)
    with caplog.at_level(logging.WARNING, "godwit"):
        assert read_all(lenient) == [{"n": 1, "offset": 0}, {"n": 3, "offset": 2}]
    assert "and 1 after it; 2 messages skipped" in caplog.text


def test_messages_that_cannot_be_read_come_once_with_their_epoch_to_a_sink(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.topic(2)
    good = [b'{"n":%d}' % number for number in range(6)]
    kafka.put(topic, good[0], b"\xff\n", *good[1:3], timestamp=NOW_MS)
    headers: Any = [("trace", b"\x00"), ("none", None)]
    kafka.put(topic, b'{"n":"x"}', key=b"k", headers=headers, partition=1, timestamp=NOW_MS)

    def flow(rejects: Any) -> gw.Flow:
        options = {"on_bad": "divert", "rejects": rejects, "max_rows_per_epoch": 2}
        source = source_of(kafka, topic, value="json", schema="n bigint", **options)
        built = gw.Flow("numbers", num_key_groups=4)
        counts = built.source("rows", source).key_by("n").compute(times=gw.count())
        built.sink("out", counts, gw.sinks.noop())
        return built

    seen, counted = [], []
    for more in ([], [*good[3:], None, b"["]):  # a restart in between
        if more:
            kafka.put(topic, *more, partition=1, timestamp=NOW_MS)
        with gw.testing.cluster(flow(gw.sinks.noop()), checkpoint=tmp_path, executors=2) as run:
            while run.epoch():
                pass
            seen += run.rows("rows_unreadable").to_pylist()
            told = [event for event in run.events if isinstance(event, RowsUnreadable)]
        assert {(event.source, event.sink) for event in told} == {("rows", "rows_unreadable")}
        counted.append(sum(event.rows for event in told))
        assert not any(event.is_warning for event in told)
    by_place = {(row["partition"], row["offset"]): row for row in seen}
    assert counted == [2, 1]
    assert (len(seen), sorted(by_place)) == (3, [(0, 1), (1, 0), (1, 5)])
    first = by_place[1, 0]
    assert first["topic"] == topic
    assert first["key"] == b"k"
    assert first["value"] == b'{"n":"x"}'
    assert first["headers"] == [{"key": key, "value": value} for key, value in headers]
    assert first["timestamp"] == dt.datetime.fromtimestamp(NOW_MS / 1000, dt.UTC)
    assert "Expected `int | null`" in first["error"]
    assert by_place[0, 1]["value"] == b"\xff\n"


def test_a_sink_of_messages_that_cannot_be_read_is_said_twice_or_not_at_all(
    kafka: KafkaBroker,
) -> None:
    for options in ({"on_bad": "divert"}, {"rejects": gw.sinks.noop()}):
        with pytest.raises(InvalidFlowError, match="contradict each other"):
            source_of(kafka, "flights", **options)
    source = source_of(kafka, "flights", on_bad="divert", rejects="out/")
    flow = gw.Flow("flow")
    rows = flow.source("rows", source).key_by("value").compute(n=gw.count())
    flow.sink("out", rows, gw.sinks.noop())
    with pytest.raises(InvalidFlowError, match="rejects='out/', which is not a sink"):
        flow.compiled()


def test_what_retention_has_deleted_is_refused_or_left_out_with_a_report(
    kafka: KafkaBroker,
) -> None:
    topic = kafka.topic()
    kafka.put(topic, *json_rows(range(10)))
    source = opened(kafka, topic, include=["offset"])
    start = source.start()
    end = source.latest(start)
    planned = source.splits(start, end, 1)
    kafka.delete_before(topic, 0, 4)
    with pytest.raises(SourceError, match="begins with offset 4, and 4 offsets from 0") as refused:
        source.splits(start, end, 1)
    assert refused.value.context == {"topic": topic, "partition": 0, "offset": 0}
    with pytest.raises(SourceError, match="no longer has offset 0"):
        list(source.read(planned[0], ["value"]))
    lenient = opened(kafka, topic, include=["offset"], on_data_loss="skip")
    kept = rows_between(lenient, start, end, ["offset"])
    assert [row["offset"] for row in kept] == [4, 5, 6, 7, 8, 9]
    [report] = lenient.take_reports()
    assert "4 offsets from 0 on are lost; they are skipped" in report


def test_what_retention_has_deleted_is_counted_once_with_the_epoch_that_skips_it(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.topic(2)
    for partition in (0, 1):
        kafka.put(topic, *json_rows(range(10)), partition=partition)

    def run(**options: Any) -> gw.testing.Run:
        source = source_of(kafka, topic, value="json", schema="n bigint", **options)
        flow = gw.Flow("numbers", num_key_groups=4)
        counts = flow.source("rows", source).key_by("n").compute(name="counts", times=gw.count())
        flow.sink("out", counts, gw.sinks.noop())
        return gw.testing.cluster(flow, checkpoint=tmp_path)

    with run(max_rows_per_epoch=4) as first:  # two of each partition
        assert first.epoch()["out"].num_rows
    kafka.delete_before(topic, 0, 10)  # all that is left, and part of it
    kafka.delete_before(topic, 1, 5)
    with run() as refused, pytest.raises(SourceError, match="retention has deleted them"):
        refused.epoch()
    with run(on_data_loss="skip") as lenient:
        while lenient.epoch():
            pass
        told = [event for event in lenient.events if isinstance(event, RowsUnreadable)]
        counted = lenient.state("counts").column("times").to_pylist()
    assert [(event.source, event.rows, event.is_warning) for event in told] == [("rows", 11, True)]
    assert sum(counted) == 4 + 5


def test_a_topic_that_was_made_anew_is_refused(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.topic(2)
    kafka.put(topic, b"a", b"b")
    source = opened(kafka, topic)
    end = source.latest(source.start())
    source.close()
    further = {topic: {"id": end[topic]["id"], "next": [7, 0]}}
    source.open(further)
    with pytest.raises(SourceError, match="partition 0 ends at 2, but the query has read up to 7"):
        source.latest(further)
    source.close()
    with pytest.raises(SourceError, match="it has 2 partitions, but the query has read 3"):
        source.open({topic: {"id": "", "next": [1, 0, 0]}})
    other = TopicState(id="B" * 22, num_partitions=2)
    monkeypatch.setattr(ClusterAdmin, "topics", lambda *_: {topic: other})
    with pytest.raises(SourceError, match=r"is now BBBB.* deleted and created again"):
        source.open({topic: {"id": "A" * 21 + "C", "next": [1, 0]}})


def test_a_topic_that_is_deleted_and_made_anew_under_a_query_is_refused(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_source, "_TOPICS_S", 0.0)
    topic = kafka.topic()
    kafka.put(topic, b"a", b"b")
    source = opened(kafka, topic)
    position = source.latest(source.start())
    kafka.delete(topic)
    with pytest.raises(SourceError, match=f"cannot find topic '{topic}'"):
        source.latest(position)
    kafka.make(topic)
    kafka.put(topic, b"c")  # fewer than were read: not all brokers give topics ids
    with pytest.raises(SourceError, match="deleted and created again"):
        source.latest(position)


def test_wrong_credentials_end_the_wait_at_once() -> None:
    config = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "hunter4444",
    }
    began_s = time.monotonic()
    with refusing_broker() as servers:
        source = gw.sources.kafka(servers, "flights", config=config, timeout="10 minutes")
        with pytest.raises(SourceError, match="Check the credentials") as refused:
            source.open(None)
        source.close()
        sink = gw.sinks.kafka(servers, "flights", config=config, timeout="10 minutes")
        with pytest.raises(SinkError, match="the credentials in config") as not_opened:
            sink.open(context())
        sink.close()
    assert time.monotonic() - began_s < 300
    assert "hunter4444" not in f"{refused.value} {not_opened.value}"


def test_a_flow_goes_over_gaps_that_transactions_leave(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    for number in range(6):
        producer = kafka.producer(f"{topic}-{number}")  # see tests/chaos/kafka/inputs.py
        producer.begin_transaction()
        producer.produce(topic, b'{"k":"a","n":%d}' % number, partition=0)
        if number % 3:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    options = {"value": "json", "schema": "k string, n bigint", "max_rows_per_epoch": 5}
    flow = gw.Flow("gaps", num_key_groups=4)
    rows = flow.source("rows", source_of(kafka, topic, **options))
    flow.sink("out", rows.key_by("k").compute(total=gw.sum("n")), gw.sinks.noop())
    played = gw.testing.run(flow)
    assert played.current("out").to_pylist() == [{"k": "a", "total": 1 + 2 + 4 + 5}]


def test_a_compacted_topic_is_read_with_its_tombstones(kafka: KafkaBroker) -> None:
    topic = kafka.topic(config={"cleanup.policy": "compact"})
    for value in (b'{"n":1}', None, b'{"n":2}'):
        kafka.put(topic, value, key=b"k")
    source = opened(kafka, topic, value="json", schema="n bigint", include=["key", "offset"])
    rows = read_all(source)
    assert [(row["key"], row["n"]) for row in rows][-1] == (b"k", 2)
    assert {row["n"] for row in rows if row["offset"] == 1} <= {None}


def test_a_topic_that_is_not_there_is_refused_by_name(kafka: KafkaBroker) -> None:
    with pytest.raises(SourceError, match="cannot find topic 'godwit-nowhere'"):
        source_of(kafka, "godwit-nowhere").open(None)


def test_a_broker_that_is_away_is_an_error_within_the_time_that_was_given() -> None:
    source = gw.sources.kafka("127.0.0.1:9", "flights", timeout="1 second")
    began_s = time.monotonic()
    with pytest.raises(SourceError, match=r"cannot be opened: .*127\.0\.0\.1:9 can be reached"):
        source.open(None)
    assert time.monotonic() - began_s < 20


@pytest.mark.parametrize(
    "config",
    [{"no.such.setting": "1"}, {"fetch.min.bytes": "many"}],
    ids=["unknown setting", "value of a setting"],
)
def test_what_the_library_refuses_has_a_remedy_of_its_own(
    kafka: KafkaBroker, config: dict[str, str]
) -> None:
    source = source_of(kafka, "flights", config=config)
    with pytest.raises(SourceError) as refused:
        source.open(None)
    assert "the setting in config" in refused.value.remedy


def test_a_password_is_shown_nowhere(kafka: KafkaBroker) -> None:
    config = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "hunter2222",
    }
    source = source_of(kafka, "flights", config=config, timeout="1 second")
    with pytest.raises(SourceError) as refused:
        source.open(None)
    shown = f"{source!r} {source.identity} {refused.value} {refused.value.__cause__}"
    assert "hunter2222" not in shown
    assert "hunter2222" not in repr(source._settings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"value": "xml"}, "'xml' is not a format"),
        ({"value": "json"}, "columns of its JSON messages are unknown"),
        ({"schema": "n bigint"}, "schema= has no effect"),
        ({"include": ["colour"]}, "include= has 'colour'"),
        ({"include": {"key": "value"}}, "two columns have the name 'value'"),
        ({"isolation": "serial"}, "isolation='serial' is not a valid value"),
        ({"config": {"group.id": "g"}}, "Use the option group"),
        ({"config": {"enable.partition.eof": False}}, "Leave it out"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_touched(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidFlowError, match=message):
        gw.sources.kafka("127.0.0.1:9", "flights", **options)


def test_offsets_are_reported_to_a_group(kafka: KafkaBroker) -> None:
    topic = kafka.topic(2)
    kafka.put(topic, b"a", b"b")
    source = opened(kafka, topic, group=f"{topic}-monitor")
    source.committed(source.latest(source.start()))
    monitor = Consumer({"bootstrap.servers": kafka.servers, "group.id": f"{topic}-monitor"})
    deadline = time.monotonic() + 120
    while True:
        (place,) = monitor.committed([TopicPartition(topic, 0)], timeout=60)
        if place.offset == 2:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    monitor.close()


def test_a_group_that_others_are_in_is_reported_once(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    kafka.put(topic, b"a")
    group = f"{topic}-monitor"
    member = Consumer({"bootstrap.servers": kafka.servers, "group.id": group})
    member.subscribe([topic])
    deadline = time.monotonic() + 120
    while not member.assignment():
        assert time.monotonic() < deadline
        member.poll(0.1)
    source = opened(kafka, topic, group=group)
    end = source.latest(source.start())
    reports: list[str] = []
    while not reports:
        assert time.monotonic() < deadline
        source.committed(end)
        time.sleep(0.05)
        reports += source.take_reports()
    for _ in range(3):
        source.committed(end)
        time.sleep(0.05)
    [report] = [*reports, *source.take_reports()]
    assert f"offsets could not be committed to group '{group}'" in report
    member.close()


def test_a_broker_that_halts_for_a_moment_is_waited_for(kafka: KafkaBroker) -> None:
    if kafka.pid is None:
        pytest.skip("The cluster is not the tests' own.")
    topic = kafka.topic()
    kafka.put(topic, *json_rows(range(100)))
    source = opened(kafka, topic, value="json", schema="n bigint")
    os.killpg(kafka.pid, signal.SIGSTOP)
    waking = threading.Timer(1.0, os.killpg, [kafka.pid, signal.SIGCONT])
    waking.start()
    try:
        assert len(read_all(source)) == 100
    finally:
        waking.join()


@pytest.mark.parametrize("call", ["list_offsets", "describe_topics"])
def test_a_cluster_without_leaders_for_a_moment_is_asked_again(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    topic = kafka.topic()
    kafka.put(topic, b"a")
    ask, left = getattr(AdminClient, call), [KafkaError._NOENT, KafkaError._TRANSPORT]

    def answer(admin: Any, asked: Any, **options: Any) -> Any:
        answers = ask(admin, asked, **options)
        if not left:
            return answers
        failed: Future[Any] = Future()
        failed.set_exception(KafkaException(KafkaError(left.pop())))
        return dict.fromkeys(answers, failed)

    monkeypatch.setattr(AdminClient, call, answer)
    source = opened(kafka, topic)
    assert [row["value"] for row in read_all(source)] == [b"a"]
    assert not left


def test_several_brokers_and_topics_are_read_by_a_copy_that_was_never_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A cluster within the library, of three brokers; topics are made when they are first named.
    cluster = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 3})
    brokers = cluster.list_topics(timeout=60).brokers.values()
    servers = [f"{broker.host}:{broker.port}" for broker in brokers]
    topics = ["one", "two"]
    for number in range(400):
        cluster.produce(topics[number % 2], b"%d" % number, key=b"%d" % number)
    assert cluster.flush(30) == 0
    partitions = {
        topic: len(cluster.list_topics(topic).topics[topic].partitions) for topic in topics
    }
    states = {t: TopicState(id="", num_partitions=n) for t, n in partitions.items()}
    # It has no controller, which descriptions of topics are asked of.
    monkeypatch.setattr(ClusterAdmin, "topics", lambda *_: states)
    source = gw.sources.kafka(servers, topics, value="text", include=["topic"])
    source.open(None)
    start = source.start()
    splits = source.splits(start, source.latest(start), 3)
    copy = pickle.loads(pickle.dumps(source))
    rows = [row for s in splits for b in copy.read(s, ["value", "topic"]) for row in b.to_pylist()]
    assert sorted(int(row["value"]) for row in rows) == [*range(400)]
    assert {row["topic"]: int(row["value"]) % 2 for row in rows} == {"one": 0, "two": 1}
