"""Rows from topics of Kafka: `gw.sources.kafka`.

A position has the next offset of each partition, and the id, of every topic.  An epoch ends after
the messages that the driver has fetched; if the driver has none or is far behind, it asks for the
ends of the partitions.  Under ``read_committed`` both are before the first message of an open
transaction, so the messages before an end never change: the same offsets give the same rows, or an
error if the messages are gone.

Positions of consumer groups do not count: consumers are in no group
(`godwit.connect.kafka.reader`), and offsets are reported to a group for lag monitors only.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from godwit.columns.types import plain_schema, to_schema
from godwit.connect.formats.message_formats import (
    JsonMessages,
    MessageFormat,
    as_format,
    error_text,
)
from godwit.connect.kafka.client import (
    ClusterAdmin,
    ErrorLog,
    KafkaFailedError,
    TopicPartition,
    TopicState,
    check_settings,
    check_topic,
    dataset_of_topic,
)
from godwit.connect.kafka.reader import (
    OffsetRange,
    OffsetsLostError,
    close_readers,
    fetched_offsets,
    leased_reader,
)
from godwit.model.errors import InvalidFlowError, SourceError
from godwit.model.naming import check_number, listing
from godwit.model.text import counted
from godwit.sources.source import Lag, Source, Split, Unreadable, check_on_bad
from godwit.time.durations import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from godwit.columns.signed import Kind
    from godwit.columns.types import SchemaLike
    from godwit.sources.source import Position
    from godwit.time.durations import Duration

Offsets: TypeAlias = "Mapping[int, int]"
Start: TypeAlias = "Literal['earliest', 'latest'] | Offsets | Mapping[str, Offsets] | dt.datetime"

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_EXTRA: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "headers": _HEADERS,
    "timestamp": pa.timestamp("us", "UTC"),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
}
_REMEDIES: Final[Mapping[int | None, str]] = {
    KafkaError._INVALID_ARG: (  # noqa: SLF001
        "Correct the setting in config=, which takes librdkafka's names and values."
    ),
    KafkaError.TOPIC_EXCEPTION: "Use only letters, digits, '.', '_' and '-' in the name.",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (
        "Allow the source's user to read and describe the topic."
    ),
}
_UNREADABLE: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _EXTRA["timestamp"]),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("error", pa.string()),
    ]
)
_FEW: Final = 10_000  # rows that are not worth a second split
_TOPICS_S: Final = 1.0  # between two looks at the topics themselves
_ENDS_S: Final = 1.0  # between two questions where partitions end, while nothing is fetched
_MAX_MS: Final = (2**63 - 1) // 1000  # of a timestamp, in microseconds
_GUESSED_BYTES: Final = 256  # of a message, before any was read
_logger = logging.getLogger("godwit")


class KafkaSource(Source):
    """Topics of a Kafka cluster, read from one position to the next."""

    def __init__(
        self,
        servers: str | Sequence[str],
        topics: str | Sequence[str],
        *,
        value: str | MessageFormat,
        schema: SchemaLike | None,
        include: Sequence[str] | Mapping[str, str],
        start: Start,
        max_rows_per_epoch: int | None,
        isolation: str,
        on_data_loss: str,
        on_bad: str,
        rejects: Any,
        group: str | None,
        timeout: Duration,
        config: Mapping[str, Any] | None,
    ) -> None:
        self._topics = _topic_names(topics)
        self._name_in_errors = f"The Kafka source of {listing(self._topics)}"
        self._settings = check_settings(
            self._name_in_errors, servers, config, seconds(timeout, "The timeout of a Kafka source")
        )
        self._format = self._checked_format(value, schema)
        self._extra_column_types = self._extra_columns(include)
        self._starting_offsets = self._checked_start(start)
        if max_rows_per_epoch is not None:
            check_number("max_rows_per_epoch", max_rows_per_epoch, least=1, error=SourceError)
        self._max_rows = max_rows_per_epoch
        self._isolation = self._checked_choice(
            "isolation", isolation, "read_committed", "read_uncommitted"
        )
        self._skips_lost_messages = (
            self._checked_choice("on_data_loss", on_data_loss, "refuse", "skip") == "skip"
        )
        check_on_bad(self._name_in_errors, on_bad, rejects)
        self._on_bad, self.rejects = on_bad, rejects
        self._group = group
        assert self._format.schema is not None
        value_schema = plain_schema(self._format.schema)
        self._schema = pa.schema(
            [
                *value_schema,
                *(pa.field(n, _EXTRA[what]) for n, what in self._extra_column_types.items()),
            ]
        )
        self._value_names = frozenset(value_schema.names)
        self._init_unpickled()

    def _init_unpickled(self) -> None:
        """Initialise the fields that are not pickled: caches and clients."""
        self._admin: ClusterAdmin | None = None
        self._reporter: Consumer | None = None
        self._last_report_error = ""  # error of the last report to the group
        self._states: dict[str, TopicState] = {}
        self._topics_asked_s = (
            self._ends_asked_s
        ) = -1.0  # when topics, and their ends, were asked for
        # of the messages fetched when `latest` was asked: offsets from, up to
        self._fetched_offsets: Mapping[tuple[str, int], tuple[int, int]] = {}
        self._bytes_per_row = float(_GUESSED_BYTES)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without connections and the sink."""
        fresh = type(self).__new__(type(self))
        vars(fresh).update(vars(self), rejects=None)
        fresh._init_unpickled()  # noqa: SLF001  its own
        return vars(fresh)

    unreadable = _UNREADABLE

    def __repr__(self) -> str:
        return f"gw.sources.kafka({self._settings.servers!r}, {list(self._topics)!r})"

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        """Kind of the format's rows."""
        return self._format.stream_kind

    @property
    def table_keys(self) -> tuple[str, ...]:  # type: ignore[override]
        """Columns that identify a row of the table, if the messages are changes of a table."""
        return self._format.table_keys

    @property
    def identity(self) -> str:
        """Names of the topics; ids in positions distinguish recreated topics from earlier ones."""
        return f"Kafka {' '.join(self._topics)}"

    @property
    def datasets(self) -> tuple[str, ...]:
        """The topics."""
        return tuple(dataset_of_topic(self._settings.servers, topic) for topic in self._topics)

    @property
    def arrival_time(self) -> str | None:  # type: ignore[override]
        """Name of the column with the broker's timestamps, if it is included."""
        return next(
            (n for n, what in self._extra_column_types.items() if what == "timestamp"), None
        )

    @property
    def trace_headers(self) -> str | None:  # type: ignore[override]
        """Name of the column with the messages' headers, if it is included."""
        return next((n for n, what in self._extra_column_types.items() if what == "headers"), None)

    def open(self, position: Position | None) -> None:
        """Look up the topics; raise if `position` belongs to other topics."""
        with self._translating_errors("cannot be opened"):
            self._admin = ClusterAdmin(self._settings)
            self._states = {}
            self._check_topics(position)

    def start(self) -> Position:
        with self._translating_errors("cannot determine where to begin"):
            return self._starting_position()

    def end(self, position: Position) -> Position:
        """Return the present end offsets of all partitions."""
        return self._next_position(position, None, None)

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the offsets up to which an epoch that begins at `position` may read.

        `limit`, or ``max_rows_per_epoch`` if lower: maximum rows, shared fairly among partitions.
        `until`: offsets not to exceed.
        """
        limits = [most for most in (limit, self._max_rows) if most is not None]
        return self._next_position(position, min(limits, default=None), until, fetched=True)

    def precedes(self, position: Position, other: Position) -> bool:
        """Return whether `position` is before `other` in a partition of a topic that both have."""
        return any(
            _next_offset(position, topic, partition) < offset
            for topic, state in other.items()
            if topic in position
            for partition, offset in enumerate(state["next"])
        )

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return splits of offset ranges; apply ``on_data_loss`` to deleted offsets."""
        ranges = [
            OffsetRange(topic, partition, _next_offset(begin, topic, partition), stop)
            for topic, state in end.items()
            for partition, stop in enumerate(state["next"])
            if stop > _next_offset(begin, topic, partition)
        ]
        is_fetched = all(
            offset_range.begin == first and offset_range.end <= last
            for offset_range in ranges
            for first, last in [self._fetched_offsets.get(offset_range.topic_partition, (-1, -1))]
        )
        num_requested = _num_offsets(ranges)
        if self._admin is not None and not is_fetched:
            ranges = self._without_deleted(ranges)
        total = _num_offsets(ranges)
        rows = total if total <= _FEW else -(-total // max(1, parallelism))
        splits = [self._make_split(part) for part in _cut_ranges(ranges, rows)]
        if num_requested > total:
            missing = num_requested - total
            description = f"{counted(missing, 'offset')} that retention has deleted"
            splits.append(
                Split(rows=0, size_bytes=0, what=description, payload=(), missing=missing)
            )
        return splits

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch | Unreadable]:
        """Yield the rows of a split, fetched by a consumer that is kept between splits."""
        ranges: tuple[OffsetRange, ...] = split.payload
        if not ranges:
            return
        count = size = 0
        try:
            with (
                self._translating_errors(f"cannot read {split.what}"),
                leased_reader(self._settings, self._isolation, ranges) as reader,
            ):
                for r, messages in reader.read(ranges):
                    count += len(messages)
                    size += sum(map(len, messages))
                    yield from self._to_batches(r, messages, columns)
        except OffsetsLostError as error:
            topic, partition = error.topic_partition
            raise self._source_error(
                f"partition {partition} of topic {topic!r} no longer has offset {error.offset}, "
                "which was not read yet",
                "Start the query again: it continues without the lost messages."
                if self._skips_lost_messages
                else "Increase the topic's retention. To continue without the lost messages, use "
                'on_data_loss="skip".',
                topic=topic,
                partition=partition,
                offset=error.offset,
            ) from None
        if count:
            self._bytes_per_row = size / count

    def lag(self, position: Position) -> Lag:
        """Return the number of offsets after `position`, and an estimate of their bytes."""
        with self._translating_errors("cannot determine its lag"):
            ends = self._fetched_ends(position) or self._end_offsets(position)
        rows = sum(max(0, end - _next_offset(position, *p)) for p, end in ends.items())
        return Lag(rows=rows, size_bytes=round(rows * self._bytes_per_row))

    def committed(self, position: Position) -> None:
        """Commit offsets to the consumer group, for lag monitors."""
        if self._group is None:
            return
        partitions = [
            TopicPartition(topic, partition, offset)
            for topic, state in position.items()
            for partition, offset in enumerate(state["next"])
        ]
        try:
            if self._reporter is None:
                log = ErrorLog()
                ours = self._settings.client(log, group_id=self._group, enable_auto_commit=False)
                self._reporter = Consumer({**ours, "on_commit": self._on_report})
            self._reporter.commit(offsets=partitions, asynchronous=True)
            self._reporter.poll(0)
        except (KafkaException, ValueError, RuntimeError) as error:
            self._warn_not_reported(error)

    def _on_report(self, error: Any, partitions: object) -> None:
        """Report a commit of offsets that failed; `partitions` are ignored."""
        del partitions
        if error is not None:
            self._warn_not_reported(KafkaException(error))
        else:
            self._last_report_error = ""

    def _warn_not_reported(self, error: Exception) -> None:
        """Report, once per reason, that offsets could not be committed.

        Nothing depends on it.
        """
        before, self._last_report_error = self._last_report_error, self._settings.text_of(error)
        if before != self._last_report_error:
            self.report(
                f"{self._name_in_errors}: offsets could not be committed to group "
                f"{self._group!r}: {self._last_report_error}"
            )

    def describe(self, position: Position) -> dict[str, Any]:
        return {topic: list(state["next"]) for topic, state in position.items()}

    def close(self) -> None:
        """Close the consumers that this process keeps."""
        if self._reporter is not None:
            self._reporter.close()
            self._reporter = None
        if self._admin is not None:
            self._admin = None
            close_readers(self._settings)

    # Positions

    def _next_position(
        self,
        position: Position,
        limit: int | None,
        until: Position | None,
        *,
        fetched: bool = False,  # do not ask the cluster if messages have been fetched already
    ) -> Position:
        """Return the offsets up to which an epoch that begins at `position` may read.

        `limit`: maximum rows; ``None``: no maximum. `until`: offsets not to exceed.
        """
        with self._translating_errors("cannot look up its end offsets"):
            self._check_topics(position)
            # Who waits for an earlier end is to hear whether it is reached.
            fetched_ends = self._fetched_ends(position) if fetched and until is None else None
            ends = self._end_offsets(position) if fetched_ends is None else fetched_ends
            self._fetched_offsets = {
                topic_partition: (_next_offset(position, *topic_partition), end)
                for topic_partition, end in (fetched_ends or {}).items()
            }
            if until is not None:
                ends = {
                    topic_partition: min(end, _next_offset(until, *topic_partition))
                    for topic_partition, end in ends.items()
                }
            begins = {
                topic_partition: _next_offset(position, *topic_partition)
                for topic_partition in ends
            }
            # Of a partition that says nothing new, an epoch's end is its begin.
            available = {
                topic_partition: max(0, ends[topic_partition] - begins[topic_partition])
                for topic_partition in ends
            }
            shares = dict(zip(available, fair_shares([*available.values()], limit), strict=True))
        next_position: dict[str, Any] = {}
        for topic in self._topics:
            topic_position = position.get(topic, {"id": self._states[topic].id, "next": []})
            offsets = list(topic_position["next"])
            for partition in range(self._states[topic].num_partitions):
                share = shares.get((topic, partition), 0)
                if partition < len(offsets):
                    offsets[partition] += share
                elif share:  # new ones before it have nothing yet
                    offsets += [0] * (partition - len(offsets)) + [share]
            next_position[topic] = {"id": topic_position["id"], "next": offsets}
        return next_position

    def _starting_position(self) -> Position:
        """Return the position chosen by ``start=``, with the topics' ids."""
        self._check_topics(None)
        assert self._admin is not None
        partitions = [(t, p) for t, s in self._states.items() for p in range(s.num_partitions)]
        if self._starting_offsets == "latest":
            offsets = self._admin.end_offsets(partitions, committed=self._reads_committed)
        elif isinstance(self._starting_offsets, dt.datetime):
            time_ms = int(self._starting_offsets.timestamp() * 1000)
            offsets = self._admin.offsets_at_time(partitions, time_ms)
            late = [p for p, offset in offsets.items() if offset < 0]
            offsets |= self._admin.end_offsets(late, committed=self._reads_committed)
        else:
            offsets = self._admin.first_offsets(partitions)
            if isinstance(self._starting_offsets, Mapping):
                offsets |= self._checked_offsets(self._starting_offsets, offsets)
        return {
            topic: {
                "id": state.id,
                "next": [offsets[topic, p] for p in range(state.num_partitions)],
            }
            for topic, state in self._states.items()
        }

    def _checked_offsets(
        self, start: Mapping[Any, Any], first: Mapping[tuple[str, int], int]
    ) -> dict[tuple[str, int], int]:
        """Return (topic, partition) → offset to start at, from the user's ``start=``; or raise.

        `first`: first available offset of each partition, for the check.
        """
        assert self._admin is not None
        by_topic = start if isinstance(next(iter(start)), str) else {self._topics[0]: start}
        stated = {(t, p): o for t, offsets in by_topic.items() for p, o in offsets.items()}
        ends = self._admin.end_offsets(first, committed=False)
        for (topic, partition), offset in stated.items():
            key = (topic, partition)
            if key not in first:
                raise self._source_error(
                    f"has start= in partition {partition} of topic {topic!r}, which does not exist",
                    f"There are partitions 0 to {self._states[topic].num_partitions - 1}."
                    if topic in self._states
                    else f"Its topics are {listing(self._topics)}.",
                )
            if not first[key] <= offset <= ends[key]:
                raise self._source_error(
                    f"has start= at offset {offset} of partition {partition} of topic {topic!r}, "
                    f"which has offsets {first[key]} to {ends[key]}",
                    "Give one of these offsets.",
                    topic=topic,
                    partition=partition,
                    offset=offset,
                )
        return stated

    @property
    def _reads_committed(self) -> bool:
        """True if only messages of committed transactions are read."""
        return self._isolation == "read_committed"

    def _fetched_ends(self, position: Position) -> dict[tuple[str, int], int] | None:
        """Return the end offsets of messages fetched so far; ``None``: they must be looked up.

        Without new messages the cluster is asked once a second: a connection may be broken.
        """
        begins = {
            (topic, p): _next_offset(position, topic, p)
            for topic, state in self._states.items()
            for p in range(state.num_partitions)
        }
        ends = fetched_offsets(self._settings, self._isolation, begins)
        waits = ends == begins and time.monotonic() - self._ends_asked_s > _ENDS_S
        return None if waits else ends

    def _end_offsets(self, position: Position) -> dict[tuple[str, int], int]:
        """Return the end offsets of all partitions; raise if one is before `position`."""
        assert self._admin is not None
        partitions = [(t, p) for t, s in self._states.items() for p in range(s.num_partitions)]
        ends = self._admin.end_offsets(partitions, committed=self._reads_committed)
        self._ends_asked_s = time.monotonic()
        before = [p for p in partitions if ends[p] < _next_offset(position, *p)]
        if before:
            # Where open transactions begin may be before offsets that the user began with.
            for (topic, number), end in self._admin.end_offsets(before, committed=False).items():
                begin = _next_offset(position, topic, number)
                if end < begin:
                    raise self._recreated_topic(
                        topic,
                        f"partition {number} ends at {end}, but the query has read up to {begin}",
                    )
                ends[topic, number] = begin
        return ends

    def _check_topics(self, position: Position | None) -> None:
        """Look up topics and partitions every few seconds; raise if a topic was recreated."""
        now_s = time.monotonic()
        assert self._admin is not None
        if not self._states or now_s - self._topics_asked_s >= _TOPICS_S:
            topics = self._admin.topics(self._topics)
            for topic, state in topics.items():
                if state is None:
                    raise self._source_error(
                        f"cannot find topic {topic!r} in the cluster",
                        "Check its name and the user's permission to describe it, or create it.",
                        topic=topic,
                    )
            self._states = {topic: state for topic in self._topics if (state := topics[topic])}
            self._topics_asked_s = now_s
        for topic, state in self._states.items():
            known = None if position is None else position.get(topic)
            if known is None:
                continue
            if known["id"] and state.id and known["id"] != state.id:
                raise self._recreated_topic(
                    topic, f"its id was {known['id']} and is now {state.id}"
                )
            if len(known["next"]) > state.num_partitions:
                raise self._recreated_topic(
                    topic,
                    f"it has {counted(state.num_partitions, 'partition')}, but the query has "
                    f"read {len(known['next'])}",
                )

    def _recreated_topic(self, topic: str, how: str) -> SourceError:
        """Return the error that a topic was deleted and recreated; `how`: the evidence, as text."""
        return self._source_error(
            f"reads topic {topic!r}, which differs from the one in the checkpoint: {how}. It was "
            "deleted and created again, or lost its last messages",
            "Its offsets have started again, so rows would be lost or duplicated: start with a "
            "new checkpoint, or give the source a new name.",
            topic=topic,
        )

    def _without_deleted(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Return ranges without offsets that retention has deleted, or raise for these."""
        assert self._admin is not None
        with self._translating_errors("cannot look up the first offsets of its topics"):
            first = self._admin.first_offsets(
                [offset_range.topic_partition for offset_range in ranges]
            )
        existing = []
        for offset_range in ranges:
            begin = first[offset_range.topic_partition]
            if begin <= offset_range.begin:
                existing.append(offset_range)
                continue
            lost = min(begin, offset_range.end) - offset_range.begin
            problem = (
                f"partition {offset_range.partition} of topic {offset_range.topic!r} begins with "
                f"offset {begin}, and {counted(lost, 'offset')} from {offset_range.begin} on are "
                "lost"
            )
            if not self._skips_lost_messages:
                raise self._source_error(
                    f"{problem}: retention has deleted them",
                    "Increase the topic's retention. To continue without them, use "
                    'on_data_loss="skip".',
                    topic=offset_range.topic,
                    partition=offset_range.partition,
                    offset=offset_range.begin,
                )
            self.report(f"{self._name_in_errors}: {problem}; they are skipped.")
            if begin < offset_range.end:
                existing.append(
                    OffsetRange(offset_range.topic, offset_range.partition, begin, offset_range.end)
                )
        return existing

    def _make_split(self, ranges: tuple[OffsetRange, ...]) -> Split:
        """Make a split of ranges of offsets."""
        rows = _num_offsets(ranges)
        more = f" and {len(ranges) - 3} more" if len(ranges) > 3 else ""
        return Split(
            rows=rows * self._format.max_rows,
            exact=False,
            size_bytes=round(rows * self._bytes_per_row),
            what=", ".join(map(str, ranges[:3])) + more,
            payload=ranges,
        )

    # Rows

    def _to_batches(
        self, offset_range: OffsetRange, messages: list[Message], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch | Unreadable]:
        """Yield messages of a range as record batches, and the unreadable ones."""
        names = [name for name in columns if name in self._value_names]
        extra = {
            name: self._extra_column_types[name]
            for name in columns
            if name in self._extra_column_types
        }
        try:
            arrays = {n: _extra_column(what, offset_range, messages) for n, what in extra.items()}
        except Exception:
            bad = _unreadable_parts(extra.values(), offset_range, messages)
            if not bad:
                raise
            yield self._refuse_or_divert_unreadable(offset_range, messages, bad)
            messages = _messages_not_at(messages, bad)
            arrays = {n: _extra_column(what, offset_range, messages) for n, what in extra.items()}
        values = list(map(Message.value, messages))
        keys = (list(map(Message.key, messages)),) if self._format.reads_keys else ()
        decoded = self._format.decode(values, names, *keys)
        if decoded.bad:
            yield self._refuse_or_divert_unreadable(offset_range, messages, decoded.bad)
        if decoded.messages is not None:  # rows are fewer or more than messages
            messages = [messages[position] for position in decoded.messages.tolist()]
        elif decoded.bad:
            messages = _messages_not_at(messages, decoded.bad)
        if decoded.bad or decoded.messages is not None:
            arrays = {n: _extra_column(what, offset_range, messages) for n, what in extra.items()}
        if not columns:
            yield pa.RecordBatch.from_struct_array(pa.array([{}] * len(messages), pa.struct([])))
            return
        arrays |= dict(zip(names, decoded.rows.columns, strict=True)) if names else {}
        schema = pa.schema([self._schema.field(name) for name in columns])
        yield pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=schema)

    def _refuse_or_divert_unreadable(
        self, offset_range: OffsetRange, messages: list[Message], bad: Sequence[tuple[int, str]]
    ) -> Unreadable:
        """Raise for messages that cannot be decoded, or return them as `Unreadable`."""
        position_, reason = bad[0]
        offset = messages[position_].offset()
        problem = (
            f"the message at offset {offset} of partition {offset_range.partition} of topic "
            f"{offset_range.topic!r} cannot be read ({self._settings.secrets.hide(reason)})"
        )
        if self._on_bad == "refuse":
            raise self._source_error(
                problem,
                "Give the format of the topic's messages by value=. To skip such messages, use "
                'on_bad="skip"; to divert them to a sink, on_bad="divert" and rejects=.',
                topic=offset_range.topic,
                partition=offset_range.partition,
                offset=offset,
            )
        if self._on_bad == "skip":
            further = f", and {len(bad) - 1} after it" if len(bad) > 1 else ""
            _logger.warning(
                "%s: %s%s; %s skipped.",
                self._name_in_errors,
                problem,
                further,
                counted(len(bad), "message"),
            )
        bad_messages = [messages[position] for position, _ in bad]
        columns = [
            pa.array([self._settings.secrets.hide(reason) for _, reason in bad])
            if name == "error"
            else pa.array(list(map(Message.value, bad_messages)), pa.binary())
            if name == "value"
            else _readable_column(name, offset_range, bad_messages)
            for name in _UNREADABLE.names
        ]
        return Unreadable(rows=pa.RecordBatch.from_arrays(columns, schema=_UNREADABLE))

    # What the user gives, and errors

    def _checked_format(
        self, value: str | MessageFormat, schema: SchemaLike | None
    ) -> MessageFormat:
        """Return the format of the messages' values; raise if the user's choice is not valid."""
        chosen = as_format(value, self._name_in_errors)
        if schema is not None:
            if not isinstance(chosen, JsonMessages) or chosen.schema is not None:
                raise InvalidFlowError(
                    f"{self._name_in_errors}: schema= has no effect with value={value!r}.",
                    remedy="Omit it; the format defines the columns.",
                )
            chosen = JsonMessages(to_schema(schema, where="The JSON format"))
        if chosen.schema is None:
            raise InvalidFlowError(
                f"{self._name_in_errors}: the columns of its JSON messages are unknown.",
                remedy='Give them, as in schema="plane string, delay double".',
            )
        return chosen

    def _extra_columns(self, include: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
        """Return column → the part of a message that it has, such as ``"offset"``, or raise."""
        parts = [include] if isinstance(include, str) else include
        names = dict(parts) if isinstance(parts, Mapping) else {part: part for part in parts}
        unknown = [part for part in names if part not in _EXTRA]
        if unknown:
            raise InvalidFlowError(
                f"{self._name_in_errors}: include= has {unknown[0]!r}, which messages do not have.",
                remedy=f"They have {listing(list(_EXTRA))}.",
            )
        columns = {name: part for part, name in names.items()}
        assert self._format.schema is not None
        twice = [name for name in columns if name in self._format.schema.names]
        if twice or len(columns) < len(names):
            raise InvalidFlowError(
                f"{self._name_in_errors}: two columns have the name "
                f"{(twice or list(columns))[0]!r}.",
                remedy='Rename it, as in include={"timestamp": "arrived_at"}.',
            )
        return columns

    def _checked_start(self, start: Any) -> Start:
        """Return the user's starting point; raise if it is not valid."""
        if isinstance(start, Mapping) and start:
            by_topic = all(isinstance(topic, str) for topic in start)
            parts = list(start.values()) if by_topic else [start]
            if (by_topic or len(self._topics) == 1) and all(map(_are_offsets, parts)):
                return start
        elif start in ("earliest", "latest") or isinstance(start, dt.datetime):
            return start  # type: ignore[no-any-return]
        raise InvalidFlowError(
            f"{self._name_in_errors}: start={start!r} is not a valid start.",
            remedy='Give "earliest", "latest", a datetime, offsets by partition, {0: 120}, or, '
            'for several topics, {"flights": {0: 120}}.',
        )

    def _checked_choice(self, option: str, value: str, *known: str) -> str:
        """Return an option's value; raise if it is not one of `known`."""
        if value not in known:
            raise InvalidFlowError(
                f"{self._name_in_errors}: {option}={value!r} is not a valid value.",
                remedy=f"Give {listing(known)}.",
            )
        return value

    @contextlib.contextmanager
    def _translating_errors(self, what: str) -> Iterator[None]:
        """Context that translates Kafka errors into `SourceError`; `what`: the action."""
        try:
            yield
        except KafkaFailedError as error:
            reach = (
                f"Check that {self._settings.servers} can be reached from this host, and the "
                "protocol; timeout= limits the time to wait."
            )
            refused = "Check the credentials and certificates in config=."
            remedy = refused if error.refused else _REMEDIES.get(error.code, reach)
            raise self._source_error(f"{what}: {error}", remedy) from None

    def _source_error(self, what: str, remedy: str, **context: Any) -> SourceError:
        """Return an error about this source; `what`: the message, as text."""
        return SourceError(f"{self._name_in_errors}: {what}.", remedy=remedy, **context)


def fair_shares(available: Sequence[int], limit: int | None) -> list[int]:
    """Divide a limit among partitions equally; unused shares go to the others.

    `available`: offsets that each partition has to read. `limit`: their maximum; ``None``: all.
    A rest that is too small to be divided goes, one each, to those that have most left.

    Examples
    --------
    >>> fair_shares([1, 10, 10], 9), fair_shares([5, 7], 1), fair_shares([5, 7], None)
    ([1, 4, 4], [0, 1], [5, 7])
    """
    if limit is None or sum(available) <= limit:
        return list(available)
    available_ = np.asarray(available, np.int64)
    shares = np.zeros_like(available_)
    remaining = limit
    while remaining >= (needy := np.flatnonzero(available_ > shares)).size:
        extra = np.minimum(available_[needy] - shares[needy], remaining // needy.size)
        shares[needy] += extra
        remaining -= int(extra.sum())
    neediest = np.argsort(shares[needy] - available_[needy], kind="stable")[:remaining]
    shares[needy[neediest]] += 1
    return [int(share) for share in shares]


def _num_offsets(ranges: Sequence[OffsetRange]) -> int:
    """Return the number of offsets in ranges."""
    return sum(r.end - r.begin for r in ranges)


def _cut_ranges(ranges: Sequence[OffsetRange], rows: int) -> Iterator[tuple[OffsetRange, ...]]:
    """Yield parts of `rows` offsets each, made of the ranges."""
    part: list[OffsetRange] = []
    room = rows
    for r in ranges:
        begin = r.begin
        while begin < r.end:
            stop = min(r.end, begin + room)
            part.append(OffsetRange(r.topic, r.partition, begin, stop))
            room -= stop - begin
            begin = stop
            if room == 0:
                yield tuple(part)
                part, room = [], rows
    if part:
        yield tuple(part)


def _next_offset(position: Position, topic: str, partition: int) -> int:
    """Return the next offset of a partition; 0 if the position does not have it."""
    offsets = position[topic]["next"] if topic in position else ()
    return int(offsets[partition]) if partition < len(offsets) else 0


def _extra_column(what: str, offset_range: OffsetRange, messages: list[Message]) -> pa.Array:
    """Return the extra column `what` of messages: key, headers, topic, timestamp and so on."""
    dtype = _EXTRA[what]
    if what == "key":
        return pa.array(list(map(Message.key, messages)), dtype)
    if what == "headers":
        return pa.array([m.headers() or [] for m in messages], dtype)
    if what == "offset":
        return pa.array(list(map(Message.offset, messages)), dtype)
    if what == "topic":
        return pa.repeat(pa.scalar(offset_range.topic, dtype), len(messages))
    if what == "partition":
        return pa.repeat(pa.scalar(offset_range.partition, dtype), len(messages))
    times = np.array(list(map(Message.timestamp, messages)), np.int64).reshape(-1, 2)
    unknown, times_ms = times[:, 0] == 0, times[:, 1]
    if (np.abs(times_ms) > _MAX_MS)[~unknown].any():
        msg = f"its timestamp, {times_ms[0]} ms, does not fit 64-bit microseconds"
        raise ValueError(msg)
    return pa.array(times_ms * 1000, dtype, mask=unknown)


def _unreadable_parts(
    parts: Iterable[str], offset_range: OffsetRange, messages: list[Message]
) -> list[tuple[int, str]]:
    """Return the position of each message with an unreadable part other than the value.

    `parts`: such as ``"headers"``. With each position comes the reason.
    """
    bad = []
    for position, message in enumerate(messages):
        try:
            for part in parts:
                _extra_column(part, offset_range, [message])
        except Exception as error:  # noqa: BLE001
            bad.append((position, error_text(error)))
    return bad


def _readable_column(what: str, offset_range: OffsetRange, messages: list[Message]) -> pa.Array:
    """Return the extra column `what` of messages; null where it cannot be read."""
    bad = {position for position, _ in _unreadable_parts([what], offset_range, messages)}
    return pa.concat_arrays(
        [
            pa.nulls(1, _EXTRA[what])
            if position in bad
            else _extra_column(what, offset_range, [message])
            for position, message in enumerate(messages)
        ]
    )


def _messages_not_at(messages: list[Message], bad: Sequence[tuple[int, str]]) -> list[Message]:
    """Return the messages that are not at one of the `bad` positions."""
    gone = {position for position, _ in bad}
    return [message for position, message in enumerate(messages) if position not in gone]


def _topic_names(topics: object) -> tuple[str, ...]:
    """Return the user's topics as a tuple of names; raise if they are not valid."""
    names = (topics,) if isinstance(topics, str) else tuple(topics)  # type: ignore[arg-type]
    if (
        not names
        or len(set(names)) < len(names)
        or not all(isinstance(n, str) and n for n in names)
    ):
        raise InvalidFlowError(
            f"A Kafka source has topics={topics!r}.",
            remedy="Give the name of a topic, or a list of different names.",
        )
    for name in names:
        check_topic("A Kafka source", name)
    return names


def _are_offsets(offsets: object) -> bool:
    """Return whether a value maps topics to offsets by partition."""
    return isinstance(offsets, Mapping) and all(
        isinstance(n, int) and not isinstance(n, bool) and n >= 0
        for pair in offsets.items()
        for n in pair
    )
