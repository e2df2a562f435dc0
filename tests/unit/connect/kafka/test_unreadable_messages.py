"""Messages that cannot be decoded: whatever is raised, they are known one by one, and no others."""

from __future__ import annotations

import datetime as dt
import gzip
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.oracles import avro as oracle
from tests.unit.connect.formats.test_message_table import enum, field, record

import godwit as gw
from godwit.connect.formats.message_formats import JsonMessages, MessageFormat, Value
from godwit.model.errors import SourceError
from godwit.sources.source import Unreadable

pytest.importorskip("confluent_kafka", reason="Kafka tests need confluent-kafka.")

from confluent_kafka import Message
from google.protobuf import descriptor_pb2

from godwit.connect.kafka.reader import OffsetRange
from godwit.connect.kafka.rows import MessageLayout, SizeCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.connect.kafka.source import KafkaSource

TEXT = pa.schema([("value", pa.string())])


class Own(MessageFormat):
    """A user's format, which fails as it likes."""

    def __init__(self, fail: Callable[[bytes], Any]) -> None:
        self._fail = fail
        self.calls = 0

    @property
    def schema(self) -> pa.Schema:
        return TEXT

    def columns(self, values: Sequence[Value], schema: pa.Schema) -> list[pa.Array]:
        del schema
        self.calls += 1
        return [pa.array([self._fail(value or b"") for value in values], pa.string())]

    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        raise NotImplementedError


class _OwnError(Exception):
    """An error that no library of ours knows."""


def raising(error: BaseException) -> Callable[[bytes], Any]:
    def fail(value: bytes) -> str:
        if value.startswith(b"bad"):
            raise error
        return value.decode()

    return fail


@pytest.mark.parametrize(
    "error",
    [
        _OwnError("own"),
        RecursionError("deep"),
        NotImplementedError(),
        AttributeError("a"),
        KeyError("k"),
        AssertionError(""),
        EOFError(),
        OSError("Invalid data stream"),  # of bz2
        gzip.BadGzipFile("Not a gzipped file"),
        SystemError("c"),
        StopIteration(),
        pa.ArrowNotImplementedError("n"),
        OverflowError("o"),
        _OwnError("first\nsecond"),
        _OwnError("\ud800 is no UTF-8"),
        _OwnError("long" * 10_000),
    ],
    ids=repr,
)
def test_whatever_a_format_raises_is_of_one_message(error: Exception) -> None:
    own = Own(raising(error))
    values = [b"bad" if i in {0, 17, 18, 999} else b"%d" % i for i in range(1000)]
    decoded = own.decode(values, ["value"])
    assert [position for position, _ in decoded.bad] == [0, 17, 18, 999]
    assert decoded.rows["value"].to_pylist() == [v.decode() for v in values if v != b"bad"]
    assert all(type(error).__name__ in reason for _, reason in decoded.bad)
    assert all(len(reason.encode()) < 600 for _, reason in decoded.bad)
    assert own.calls < 80  # halves, and not each message


@pytest.mark.parametrize(
    "error",
    [
        SourceError("The registry does not answer."),
        MemoryError(),
        ConnectionResetError(),
        TimeoutError(),
        OSError(28, "No space left on device"),
    ],
)
def test_what_is_no_fault_of_a_message_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        Own(raising(error)).decode([b"1", b"bad"], ["value"])


def test_rows_of_another_number_are_the_fault_of_a_message() -> None:
    class Twice(Own):
        def columns(self, values: Sequence[Value], schema: pa.Schema) -> list[pa.Array]:
            (column,) = super().columns(values, schema)
            return [pa.concat_arrays([column, column]) if b"bad" in values else column]

    decoded = Twice(lambda value: value.decode()).decode([b"1", b"bad", b"2"], ["value"])
    assert decoded.rows["value"].to_pylist() == ["1", "2"]
    assert decoded.bad == ((1, "ValueError: 1 messages were decoded to 2 rows"),)


def test_a_batch_without_bad_messages_is_decoded_once() -> None:
    own = Own(bytes.decode)
    assert own.decode([b"x"] * 100, ["value"]).rows.num_rows == 100
    assert own.calls == 1


@pytest.mark.parametrize("depth", [1, 31, 32, 33, 64, 65, 995, 2000])
@pytest.mark.parametrize("around", [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"]":[', b"]}]")])
def test_json_that_the_schema_leaves_out_may_have_any_depth(
    depth: int, around: tuple[bytes, bytes]
) -> None:
    begin, end = around
    good = b'{"x":%b,"n":1,"l":[{"a":1,"y":%b}],"m":{"k":[2]},"t":"[{"}'
    deep, text = (begin * depth + core + end * depth for core in (b"1", b'"\\"]}["'))
    damaged = [
        good % (deep.replace(begin[:1], b"", 1), deep),
        good % (deep, deep[:-1]),
        (good % (deep, deep))[:-1],
        good % (deep, deep) + b"]",
        good % (begin * depth + b"1 2" + end * depth, deep),
        good % (begin * depth + b'"' + end * depth, deep),
        b'{"n":%b}' % deep,
        b'{"l":[{"a":%b}]}' % deep,
        b'{"m":{"k":[%b]}}' % deep,
        b'{"t":%b}' % deep,
        begin * depth,
        end * depth,
    ]
    json = gw.formats.json("n bigint, l array<struct<a int>>, m map<string, array<int>>, t string")
    decoded = json.decode(
        [good % (text, deep), *damaged, good % (deep, text)], ["n", "l", "m", "t"]
    )
    row = {"n": 1, "l": [{"a": 1}], "m": [("k", [2])], "t": "[{"}
    assert decoded.rows.to_pylist() == [row] * 2
    assert [position for position, _ in decoded.bad] == [*range(1, len(damaged) + 1)]


def test_deep_json_with_a_text_that_does_not_end_is_bad_in_time_that_its_length_bounds() -> None:
    deep = b'{"x":' + b"[" * 2000 + b'"' + b'\\"' * 500_000
    assert len(gw.formats.json("n bigint").decode([deep], ["n"]).bad) == 1


def test_the_depth_of_json_does_not_depend_on_the_depth_of_the_stack() -> None:
    json = gw.formats.json("n bigint")
    text = b'{"x":%b,"n":1}' % (b"[" * 400 + b"]" * 400)

    def further(levels: int) -> Any:
        return json.decode([text], ["n"]).bad if levels == 0 else further(levels - 1)

    frame, used = sys._getframe(), 0
    while frame.f_back is not None:
        frame, used = frame.f_back, used + 1
    assert further(sys.getrecursionlimit() - used - 120) == ()


def test_deep_protobuf_and_wrong_protobuf_are_bad() -> None:
    name = "google.protobuf.FileDescriptorProto"
    options: dict[str, Any] = {"descriptors": _descriptors(), "framed": True, "schema_id": 1}
    with pytest.raises(gw.errors.InvalidFlowError, match="contains itself"):
        gw.formats.protobuf(name, **options)
    one = gw.formats.protobuf("google.protobuf.SourceCodeInfo", **options)
    rows = pa.RecordBatch.from_pylist([{"location": [{"path": [1]}]}], one.schema)
    (good,) = one.encode(rows)
    assert good is not None
    head = good[: good.index(b"\x0a")]
    deep = b""
    for _ in range(300):  # unknown groups within groups
        deep = b"\x9b\x06" + deep + b"\x9c\x06"
    bad = [
        b"",
        b"\0\0\0",
        b"\1" + good[1:],
        head[:5],
        head[:5] + b"\x06\xff\xff",  # indexes that are cut off
        head[:5] + b"\x02\x03" + good[len(head) :],  # index -2
        head[:5] + b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff" + good[len(head) :],
        head + good[len(head) :][:-1],
        head + b"\x0f",  # wire type 7
        head + deep,
        head + b"\x0a\xff\xff\xff\xff\x0f",  # a length beyond the message
    ]
    decoded = one.decode([good, *bad, good, None], one.schema.names)
    assert [position for position, _ in decoded.bad] == [*range(1, len(bad) + 1)]
    location = decoded.rows["location"].to_pylist()
    assert [value and value[0]["path"] for value in location] == [[1], [1], None]
    # A field of another wire type is a field that the schema lacks.
    assert one.decode([head + b"\x08\x01"], ["location"]).rows.to_pylist() == [{"location": []}]
    assert one.decode([head], ["location"]).rows.to_pylist() == [{"location": []}]


def _descriptors() -> bytes:
    file = descriptor_pb2.FileDescriptorProto()
    descriptor_pb2.DESCRIPTOR.CopyToProto(file)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


class _WithoutHeaders(Message):
    """A message whose headers have a name that is not UTF-8, at which the library fails."""

    def headers(self) -> Any:
        raise SystemError("returned a result with an exception set")


def message(offset: int, value: bytes | None, at_ms: int = 0, kind: type = Message) -> Any:
    about = {
        "topic": "t",
        "partition": 3,
        "offset": offset,
        "key": b"\xff",
        "timestamp": (1, at_ms),
    }
    return kind(value=value, headers=[("h", b"\xff"), ("h", None)], **about)


def source_of(value: Any, on_bad: str, include: Sequence[str] = ()) -> KafkaSource:
    rejects = gw.sinks.noop() if on_bad == "divert" else None
    options: dict[str, Any] = {"include": include, "on_bad": on_bad, "rejects": rejects}
    return gw.sources.kafka("127.0.0.1:1", "t", value=value, **options)


def batches(source: KafkaSource, messages: Sequence[Any]) -> tuple[list[Any], ...]:
    """Rows, and rows of what was unreadable, of messages that came from the broker."""
    found = list(
        source._to_batches(OffsetRange("t", 3, 0, 99), list(messages), source.schema.names)
    )
    rows = [
        row for batch in found if isinstance(batch, pa.RecordBatch) for row in batch.to_pylist()
    ]
    bad = [row for part in found if isinstance(part, Unreadable) for row in part.rows.to_pylist()]
    return rows, bad


def test_an_avro_message_that_the_reader_cannot_resolve_is_one_unreadable_row() -> None:
    older, newer = record(field("a", enum("A", "B", "C"))), record(field("a", enum("A", "B")))
    another = record(field("a", enum("A", "B")), name="Other")
    registry = {7: older, 8: another, 9: record(field("b", "int")), 10: record()}
    frames = {i: b"\0\0\0\0" + bytes([i]) for i in (7, 8, 9, 10, 11)}
    values = [
        *(frames[7] + oracle.encode(older, {"a": symbol}) for symbol in "ACB"),
        *(frames[8] + b"\0", frames[9] + b"\2", frames[10], frames[11], None, b"", b"{}"),
        frames[7] + b"\0",
    ]
    messages = [message(offset, value) for offset, value in enumerate(values)]
    avro = gw.formats.avro(newer, registry=registry)
    with pytest.raises(SourceError, match=r"offset 1 of partition 3 of topic 't'.*no symbol"):
        batches(source_of(avro, "refuse", ["offset"]), messages)
    for on_bad in ("skip", "divert"):
        rows, bad = batches(source_of(avro, on_bad, ["offset"]), messages)
        assert [(row["offset"], row["a"]) for row in rows] == [
            (0, "A"),
            (2, "B"),
            (7, None),
            (10, "A"),
        ]
        assert [(row["offset"], row["value"]) for row in bad] == [
            (offset, values[offset]) for offset in (1, 3, 4, 5, 6, 8, 9)
        ]
        assert "record Other is not record R" in bad[1]["error"]
        assert "field 'a' is missing from record R" in bad[2]["error"]
        assert bad[0]["headers"] == [{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}]
        assert bad[0]["key"] == b"\xff"


def test_headers_and_timestamps_that_cannot_be_read_are_unreadable_rows_too() -> None:
    late = 2**62
    messages = [
        message(0, b"a", 1),
        message(1, b"b", late),
        message(2, b"\xff", -late),
        message(3, b"c", 2, _WithoutHeaders),
        message(4, b"\xff", 3, _WithoutHeaders),
        message(5, b"\xff", 4),
        message(6, b"d", 5),
    ]
    everything = ["key", "headers", "timestamp", "topic", "partition", "offset"]
    rows, bad = batches(source_of("text", "divert", everything), messages)
    assert [(row["offset"], row["value"]) for row in rows] == [(0, "a"), (6, "d")]
    assert [row["offset"] for row in bad] == [1, 2, 3, 4, 5]
    assert [row["timestamp"] for row in bad] == [None, None, *map(at, (2, 3, 4))]
    assert [row["headers"] is None for row in bad] == [False, False, True, True, False]
    assert f"its timestamp, {late} ms, does not fit" in bad[0]["error"]
    # What a query does not use, it does not miss.
    rows, bad = batches(source_of("text", "divert", ["offset"]), messages)
    assert [row["offset"] for row in rows] == [0, 1, 3, 6]
    assert [row["offset"] for row in bad] == [2, 4, 5]


def at(time_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)


class _Fussy(Own):
    """A user's format, which writes no odd numbers."""

    def encode(self, rows: pa.RecordBatch) -> list[Value]:
        numbers = rows.column(0).to_pylist()
        if any(number % 2 for number in numbers):
            raise _OwnError("odd")
        return [b"%d" % number for number in numbers if number != 4]


@pytest.mark.parametrize("part", ["value", "key"])
def test_a_row_that_a_format_fails_to_write_is_one_row_to_reject(part: str) -> None:
    fussy = _Fussy(bytes.decode)
    layout = MessageLayout(
        topic="t",
        value=fussy if part == "value" else JsonMessages(None),
        key=("n",) if part == "key" else (),
        key_format=fussy if part == "key" else None,
        headers=None,
        topics=None,
        partitions=None,
    )
    rows = pa.RecordBatch.from_pydict({"n": [0, 1, 2, 3, 4]})
    check = SizeCheck(layout=layout, schema=rows.schema, max_bytes=1000)
    found = check(rows)
    assert found is not None
    assert found.rows.tolist() == [1, 3, 4]
    assert found.reasons[0] == "it cannot be written: _OwnError: odd"
    assert found.reasons[2] == "it cannot be written: 1 rows were encoded to 0 messages"
    assert check(rows.take([0, 2])) is None


@pytest.mark.parametrize("before", [False, True])
def test_rows_of_changes_keep_the_offsets_of_their_messages(before: bool) -> None:
    new, old = '{"id": 1, "v": 2}', '{"id": 1, "v": 1}'
    messages = [
        message(10, b'{"op": "c", "after": %b}' % old.encode()),
        message(11, b'{"op": "t"}'),
        message(12, b'{"op": "u", "before": %b, "after": %b}' % (old.encode(), new.encode())),
        message(13, b'{"op": "d", "before": %b}' % new.encode()),
        message(14, None),
    ]
    events = gw.formats.debezium("id long, v long", key="id", before=before)
    source = source_of(events, "skip", ["offset"])
    assert (source.kind, source.table_keys) == ("changes" if before else "upserts", ("id",))
    read = source._to_batches(OffsetRange("t", 3, 0, 99), messages, ["offset", "change", "v"])
    bad, rows = list(read)
    assert isinstance(bad, Unreadable)
    assert bad.rows["offset"].to_pylist() == [11]
    assert isinstance(rows, pa.RecordBatch)
    assert [tuple(row.values()) for row in rows.to_pylist()] == (
        [(10, 1, 1), (12, -1, 1), (12, 1, 2), (13, -1, 2)]
        if before
        else [(10, 1, 1), (12, 1, 2), (13, -1, None)]
    )
