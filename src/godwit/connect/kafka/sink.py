"""Results in topics of Kafka, exactly once for readers of committed messages.

One transaction holds an epoch's messages and the epoch's `HistoryPoint`, which stands in the
metadata of an offset that a consumer group of the sink's own has for the topic.  Invariant: the
group has epoch n if and only if the messages of every epoch up to n are committed.  A start
initializes the transactional id, which ends open transactions of an earlier process and fences it.
Only then it reads the group's offset, which shows whether a commit whose answer was lost succeeded.

Messages cannot be removed from a topic, so such a target cannot be rolled back.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, libversion

from godwit.checkpoint.ownership import HistoryPoint
from godwit.columns.signed import CHANGE
from godwit.columns.types import is_text
from godwit.connect.formats.message_formats import JsonMessages, UnwritableError, as_format
from godwit.connect.kafka.client import (
    ClusterAdmin,
    ErrorLog,
    KafkaFailedError,
    TopicPartition,
    check_settings,
    check_topic,
    dataset_of_topic,
)
from godwit.connect.kafka.rows import MessageLayout, SizeCheck
from godwit.model.errors import InvalidFlowError, SinkError
from godwit.model.text import counted
from godwit.plan.staging import Rejections
from godwit.sinks.changes import context_of_table, paired_rows, rows_schema
from godwit.sinks.rows import (
    cast_batches,
    column_names,
    join_small_batches,
    require_columns,
    rows_to_write,
    split_batch,
    storable_schema,
    upsert_keys,
)
from godwit.sinks.target_sink import TargetSink
from godwit.sinks.writing import Writing
from godwit.time.durations import seconds

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from godwit.connect.formats.message_formats import MessageFormat
    from godwit.plan.staging import RowCheck
    from godwit.sinks.sink import EpochOutput, Sink, SinkContext
    from godwit.time.durations import Duration

_DEFAULT_MAX_BYTES: Final = 1_048_588  # of a broker that does not tell
_ROWS: Final = 10_000  # of which messages are made at a time
_BYTES: Final = 16 * 2**20
_ATTEMPTS: Final = 3
_GRACE_S: Final = 5.0  # beyond its time, for the library to answer
_KNOWS_RECOVERY: Final = libversion()[1] >= 0x020B0000  # `metadata.recovery.strategy`, since 2.11
_FENCED: Final = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001  the library's names
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }
)
_PERMANENT: Final[Mapping[int, str]] = {
    KafkaError.MSG_SIZE_TOO_LARGE: (
        "Increase the topic's max.message.bytes, or make the rows smaller."
    ),
    KafkaError._UNKNOWN_PARTITION: "Use only partitions that the topic has.",  # noqa: SLF001
    KafkaError._UNKNOWN_TOPIC: "Create the topic.",  # noqa: SLF001
    KafkaError.UNKNOWN_TOPIC_OR_PART: "Create the topic.",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Allow the sink's user to write to the topic.",
    KafkaError.GROUP_AUTHORIZATION_FAILED: (
        "Allow the sink's user to read and write offsets of its group, godwit-*."
    ),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "Allow the sink's user to write with transactional ids godwit-*."
    ),
}


class KafkaSink(TargetSink):
    """Writes each epoch to a topic, or to several, in one transaction."""

    failures = (KafkaException, KafkaFailedError, UnwritableError)
    takes_other_writers = True
    delivers_concurrently = True  # it touches nothing that lanes of the next epoch write
    deletes = True

    def __init__(
        self,
        servers: str | Sequence[str],
        topic: str,
        *,
        mode: Literal["upsert", "changes"],
        value: str | MessageFormat,
        key: str | Sequence[str] | None,
        key_format: MessageFormat | None,
        headers: str | None,
        topic_column: str | None,
        partition_column: str | None,
        partitioner: str,
        exactly_once: bool,
        transaction_timeout: Duration,
        timeout: Duration,
        config: Mapping[str, Any] | None,
        rejects: Sink | None,
    ) -> None:
        where = f"The Kafka sink on topic {topic!r}"
        if not isinstance(topic, str) or not topic:
            raise SinkError(f"The Kafka sink has topic={topic!r}.", remedy="Give the topic's name.")
        check_topic("The Kafka sink", topic)
        self._settings = check_settings(
            where, servers, config, seconds(timeout, f"The timeout of {where}")
        )
        super().__init__("Kafka", secrets=self._settings.secrets, rejects=rejects, topic=topic)
        self._topic = topic
        self._writing = Writing(mode=mode)
        self._writing.check("Kafka sink", ("upsert", "changes"))
        chosen = as_format(value, where)
        if chosen.writes_changes:
            key = chosen.table_keys if key is None else key
            key_format = JsonMessages(None) if key_format is None else key_format
        self._messages = MessageLayout(
            topic=topic,
            value=chosen,
            key=() if key is None else column_names(key),
            key_format=key_format,
            headers=headers,
            topics=topic_column,
            partitions=partition_column,
        )
        self._partitioner = partitioner
        self._exactly_once = exactly_once
        self._transaction_s = seconds(transaction_timeout, f"The transaction timeout of {where}")
        if exactly_once and self._transaction_s < 1:
            raise InvalidFlowError(
                f"The transaction timeout of {where} is {self._transaction_s:g} s.",
                remedy="Give at least one second: it limits the time to write a whole epoch.",
            )
        self._producer: Producer | None = None
        self._group: Consumer | None = None
        self._group_metadata: Any = None  # of a group without members, so it does not change
        self._log = ErrorLog()
        self._undelivered: list[tuple[str, KafkaError]] = []

    def __repr__(self) -> str:
        mode = "" if self._exactly_once else ", exactly_once=False"
        return f"gw.sinks.kafka({self._settings.servers!r}, {self._topic!r}{mode})"

    @staticmethod
    def text_of(error: Exception) -> str:
        """Return the text of a library error, with its name."""
        if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
            return f"{error.args[0].str()} ({error.args[0].name()})"
        return str(error)

    @property
    def row_keys(self) -> tuple[str, ...]:
        return self._messages.key

    @property
    def destination(self) -> str:
        """Bootstrap servers and topic."""
        return f"{self._settings.servers} {self._topic}"

    @property
    def datasets(self) -> tuple[str, ...]:
        """The topic."""
        return (dataset_of_topic(self._settings.servers, self._topic),)

    @property
    def keeps_epochs(self) -> bool:
        """True if the consumer group stores the last epoch: unless delivery is at least once."""
        return self._exactly_once

    def row_check(self) -> RowCheck:
        """Return the check for rows that cannot be encoded or are too large as messages."""
        return self._size_check

    def _fit(self, context: SinkContext) -> None:
        """Set the columns of messages, or raise."""
        self._context = context
        self._context = context = (
            self._writing.layout(context).context
            if self._writing.mode == "changes"
            else context_of_table(context, by_key=bool(self._messages.key))
        )
        self._schema = rows_schema(context, storable_schema(context.schema))
        self._messages = replace(self._messages, deletes=context.kind != "rows")
        if self._messages.deletes:
            self._check_deletes()
        self._require_columns()

    def _check_deletes(self) -> None:
        """Raise unless messages with one key describe one row, and go to one partition."""
        layout = self._messages
        upsert_keys(self._context, layout.key)
        for option, name in (
            ("topic_column", layout.topics),
            ("partition_column", layout.partitions),
        ):
            if name is not None and name not in layout.key:
                raise self._target_error(
                    f"{option}= is {name!r}, which is not part of the key, so a deleted row may "
                    "have a different one",
                    'Make it part of key=; or use mode="changes", which writes all changes with '
                    "their column 'change'.",
                )

    def _try_target(self) -> RowCheck:
        """Look up the topic, without creating a producer, which would fence that of a query."""
        with self._opening_errors():
            self._look_up_topic()
        return self._size_check

    def _opening_errors(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that translates errors of the cluster while the sink is opened."""
        return self._translating_errors(
            "cannot be opened",
            "Check the servers, the credentials in config, and the user's rights.",
        )

    def open(self, context: SinkContext) -> None:
        """Look up the topic, or raise; fence earlier producers of the same transactional id."""
        self._fit(context)
        self._last_epoch = -1
        with self._opening_errors():
            self._look_up_topic()
            self._connected_producer()
            if self._exactly_once and (point := self.last_delivered()) is not None:
                self._last_epoch = point.epoch

    def _look_up_topic(self) -> None:
        """Read the topic's limit for messages; raise if there is no such topic."""
        admin = ClusterAdmin(self._settings)
        if admin.topics([self._topic])[self._topic] is None:
            raise self._target_error(
                f"cannot find topic {self._topic!r} in the cluster",
                "Create it, with the number of partitions that its readers need.",
            )
        self._max_bytes = int(
            admin.topic_setting(self._topic, "max.message.bytes") or _DEFAULT_MAX_BYTES
        )
        self._size_check = SizeCheck(
            layout=self._messages, schema=self._schema, max_bytes=self._max_bytes
        )

    def last_delivered(self) -> HistoryPoint | None:
        """Return the epoch committed as the consumer group's offset; ``None``: none."""
        if not self._exactly_once:
            return None
        with self._translating_errors(
            "cannot look up its last epoch", "Check the cluster, and start the query again."
        ):
            group = self._open_group_consumer()
            (entry,) = group.committed(
                [TopicPartition(self._topic, 0)], timeout=self._settings.timeout_s
            )
            if entry.error is not None:
                raise KafkaException(entry.error)
        if entry.offset < 0 or not entry.metadata:
            return None
        return msgspec.json.decode(entry.metadata, type=HistoryPoint)

    def cannot_roll_back(self) -> str:
        """Return, as text, that messages cannot be removed from a topic."""
        return "messages in a topic cannot be deleted"

    def continue_after(self, point: HistoryPoint) -> None:
        """Commit `point` as the consumer group's offset, without messages."""
        with self._translating_errors(
            "cannot look up its last epoch", "Check the cluster, and start again."
        ):
            self._in_transaction(point, lambda _: None)
        self._last_epoch = point.epoch

    def deliver(self, output: EpochOutput) -> None:
        """Write the epoch's messages and its number in one transaction, unless it is recorded."""
        if output.epoch <= self._last_epoch:
            return
        with self._translating_errors(
            f"epoch {output.epoch} cannot be written",
            "Readers of committed messages see either all of it or nothing; fix the cause and "
            "start the query again."
            if self._exactly_once
            else "Some of its messages may be in the topic; fix the cause and start the query "
            "again, which writes all of them.",
            epoch=output.epoch,
        ):
            if self._exactly_once:
                self._in_transaction(output.point, lambda to: self._send_messages(output, to))
            else:
                producer = self._connected_producer()
                self._send_messages(output, producer)
                self._flush_messages(producer)
        self._last_epoch = output.epoch

    def close(self) -> None:
        """Close the clients; an open transaction is aborted."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            producer.purge()
            producer.close()
        if self._group is not None:
            self._group.close()
            self._group = self._group_metadata = None

    # Transactions

    def _in_transaction(self, point: HistoryPoint, write: Callable[[Producer], None]) -> None:
        """Write messages by `write`, and record their epoch, in one transaction.

        Retries once after a recoverable error.
        """
        recorded = msgspec.json.encode(point).decode()
        entry = TopicPartition(self._topic, 0, point.epoch + 1, metadata=recorded)
        for attempt in range(1, _ATTEMPTS + 1):
            start_s = time.monotonic()
            producer = self._connected_producer()
            try:
                producer.begin_transaction()
                try:
                    write(producer)
                    self._check_delivered()
                except BaseException:
                    self._abort_transaction(producer)
                    raise
                self._record_epoch(producer, entry)
                self._commit_transaction(producer)
            except KafkaException as error:
                self._prepare_retry(error, start_s, last=attempt == _ATTEMPTS)
                if self.last_delivered() == point:
                    return  # the answer to the commit was lost, the commit was not
            else:
                return

    def _record_epoch(self, producer: Producer, entry: TopicPartition) -> None:
        """Add the epoch's number (`entry`) to the transaction, as an offset of the consumer group.

        librdkafka waits here without end, whatever time-out it is given, for a coordinator of the
        group that has left the cluster (its issues 5456 and 5511, as of version 2.16). So another
        thread waits for it, and a producer that does not answer is replaced by a new one, which
        fences it.
        """
        metadata, timeout_s = self._read_group_metadata(), self._settings.timeout_s
        answers: SimpleQueue[BaseException | None] = SimpleQueue()

        def send() -> None:
            """Add the epoch's number, as a group offset, to the transaction."""
            try:
                producer.send_offsets_to_transaction([entry], metadata, timeout_s)
            except BaseException as error:  # noqa: BLE001  raised where it is waited for
                answers.put(error)
            else:
                answers.put(None)

        threading.Thread(target=send, name="godwit-kafka-offsets", daemon=True).start()
        try:
            error = answers.get(timeout=timeout_s + _GRACE_S)
        except Empty:
            why = f"no response to the transaction's offsets within {timeout_s:g} s"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, why)) from None  # noqa: SLF001
        if error is not None:
            raise error

    def _commit_transaction(self, producer: Producer) -> None:
        """Commit the transaction; without a response, repeat the commit, which is idempotent."""
        start_s = time.monotonic()
        while True:
            try:
                producer.commit_transaction(self._settings.timeout_s)
            except KafkaException as error:
                late = time.monotonic() - start_s > self._settings.timeout_s
                if late or not error.args[0].retriable():
                    raise
            else:
                return

    def _prepare_retry(self, error: KafkaException, start_s: float, *, last: bool) -> None:
        """Abort the transaction for a second attempt; raise if that cannot help.

        `start_s`: when the attempt began. `last`: it was the second one.
        """
        kafka_error: KafkaError = error.args[0]
        undelivered = self._undelivered
        if kafka_error.code() in _FENCED or (kafka_error.fatal() and not last):
            self._drop_producer()
            if kafka_error.code() in _FENCED:
                raise self._fenced_error(time.monotonic() - start_s, error) from None
            return
        if kafka_error.txn_requires_abort() and self._producer is not None:
            self._abort_transaction(self._producer)
        else:
            self._drop_producer()
        first_error = undelivered[0][1] if undelivered else kafka_error
        if first_error.code() in _PERMANENT:
            on_topic = f" (topic {undelivered[0][0]!r})" if undelivered else ""
            raise self._target_error(
                f"messages are refused: {self.text_of(KafkaException(first_error))}{on_topic}",
                _PERMANENT[first_error.code()],
            ) from None
        if last:
            raise error

    def _fenced_error(self, took_s: float, error: KafkaException) -> SinkError:
        """Return the error that the broker aborted a transaction, or that it was fenced."""
        if took_s >= self._transaction_s:
            return self._target_error(
                f"the transaction took {took_s:.0f} s, but the broker aborts transactions after "
                f"{self._transaction_s:g} s: {self.text_of(error)}",
                "Increase transaction_timeout=; the broker's limit is transaction.max.timeout.ms.",
            )
        return self._target_error(
            f"another process has fenced this sink: {self.text_of(error)}",
            "Two runs of the same checkpoint write to it; stop one of them.",
        )

    def _abort_transaction(self, producer: Producer) -> None:
        """Abort a transaction; if that fails, drop the producer, and the next one aborts it."""
        self._undelivered = []
        try:
            producer.abort_transaction(self._settings.timeout_s)
        except KafkaException:
            self._drop_producer()
        self._undelivered = []

    def _drop_producer(self) -> None:
        """Drop the producer; the next use connects a new one."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _connected_producer(self) -> Producer:
        """Return the producer; a new one fences earlier producers of the transactional id."""
        if self._producer is not None:
            return self._producer
        start_s = time.monotonic()
        defaults: dict[str, Any] = {
            "linger.ms": 5,
            "partitioner": self._partitioner,
            "message.max.bytes": min(max(self._max_bytes, 1_000_000), 1_000_000_000),
        }
        required: dict[str, Any] = {"delivery_report_only_error": True, "enable_idempotence": True}
        if self._exactly_once:
            required["transactional_id"] = self._transactional_id
            required["transaction_timeout_ms"] = round(self._transaction_s * 1000)
            if _KNOWS_RECOVERY:
                # Else it forgets all brokers whenever none can be reached: see `_record_epoch`.
                defaults["metadata.recovery.strategy"] = "none"
        else:
            defaults["message.timeout.ms"] = round(self._settings.timeout_s * 1000)
        settings = {**defaults, **self._settings.client(self._log, **required)}
        try:
            producer = Producer({**settings, "on_delivery": self._not_delivered})
            if self._exactly_once:
                producer.init_transactions(self._settings.timeout_s)
        except (KafkaException, ValueError, TypeError) as error:
            raise self._settings.to_error(error, self._log, start_s) from None
        self._undelivered = []
        self._producer = producer
        return producer

    @property
    def _transactional_id(self) -> str:
        """Name of this sink of this query, used as transactional id and consumer group."""
        return f"godwit-{self._context.query_id}-{self._context.writer}"

    def _read_group_metadata(self) -> Any:
        """Return the metadata of the sink's consumer group, which a transaction needs."""
        if self._group_metadata is None:
            self._group_metadata = self._open_group_consumer().consumer_group_metadata()
        return self._group_metadata

    def _open_group_consumer(self) -> Consumer:
        """Return a consumer for reading the group's offsets, which never joins the group."""
        if self._group is None:
            ours = self._settings.client(
                self._log,
                group_id=self._transactional_id,
                enable_auto_commit=False,
                isolation_level="read_committed",  # offsets of open transactions are waited for
            )
            self._group = Consumer(ours)
        return self._group

    # Messages

    def _send_messages(self, output: EpochOutput, producer: Producer) -> None:
        """Pass an epoch's rows, as messages, to the producer."""
        refused: list[pa.RecordBatch] = []
        reasons: list[str] = []
        sent = 0
        for batch in self._batches_of_output(output):
            rows = batch
            checked = batch.select(self._schema.names)  # without the former row
            rejections = self._size_check(checked)
            if rejections is not None:
                refused.append(checked.take(pa.array(rejections.rows)))
                reasons += rejections.reasons
                keep = np.ones(batch.num_rows, np.bool_)
                keep[rejections.rows] = False
                rows = batch.filter(pa.array(keep))
            for message in self._messages.messages(rows):
                self._produce_message(producer, message)
                if message.needs_tombstone:
                    self._produce_message(producer, message._replace(value=None))
                sent += 1
                if sent % 1_000 == 0:
                    producer.poll(0)
        if refused or self._rejects is not None:
            none = pa.RecordBatch.from_pylist([], self._schema)
            output.divert(
                pa.concat_batches([none, *refused]),
                Rejections(rows=np.arange(len(reasons)), reasons=reasons),
            )

    def _produce_message(self, producer: Producer, message: Any) -> None:
        """Pass one message to the producer; wait, up to a time-out, while its queue is full."""
        start_s = None
        while True:
            try:
                producer.produce(
                    message.topic,
                    message.value,
                    message.key,
                    message.partition,
                    headers=message.headers,
                )
            except BufferError:  # the broker is slower than we are
                start_s = start_s or time.monotonic()
                if time.monotonic() - start_s > self._settings.timeout_s:
                    raise self._settings.to_error(
                        TimeoutError("the broker has accepted no messages until the time-out"),
                        self._log,
                        start_s,
                    ) from None
                producer.poll(0.05)
            else:
                return

    def _batches_of_output(self, output: EpochOutput) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, one row per key where rows are upserts."""
        keys = self._messages.key if self._messages.deletes else ()
        if keys and self._messages.value.writes_changes:
            sort_columns = [*keys, CHANGE.name]
            parts = list(cast_batches(output, self._schema, self._context.name, sort_columns))
            no_rows = pa.RecordBatch.from_pylist([], self._schema)
            paired = paired_rows(pa.concat_batches([no_rows, *parts]), keys, self._context.kind)
            yield from split_batch(paired, rows=_ROWS, size_bytes=_BYTES)
            return
        rows = rows_to_write(output, self._schema, keys, self._context.name, self._context.kind)
        for gathered in join_small_batches(rows, rows=_ROWS):
            yield from split_batch(gathered, rows=_ROWS, size_bytes=_BYTES)

    def _not_delivered(self, error: KafkaError | None, message: Any) -> None:
        """Record a message that the broker refused; a callback of the producer's poll."""
        if error is not None:
            self._undelivered.append((message.topic() or "", error))

    def _check_delivered(self) -> None:
        """Raise if the broker has refused a message."""
        if self._undelivered:
            raise KafkaException(self._undelivered[0][1])

    def _flush_messages(self, producer: Producer) -> None:
        """Wait until the broker has all messages; raise with the reason if it refused one."""
        start_s = time.monotonic()
        left = producer.flush(self._settings.timeout_s)
        undelivered, self._undelivered = self._undelivered, []
        if undelivered:
            topic, error = undelivered[0]
            raise self._target_error(
                f"{counted(len(undelivered), 'message')} were not written, the first of them to "
                f"topic {topic!r}: {self.text_of(KafkaException(error))}",
                _PERMANENT.get(error.code(), "Check the cluster."),
            )
        if left:
            waited = TimeoutError(f"{counted(left, 'message')} not acknowledged in time")
            raise self._settings.to_error(waited, self._log, start_s)

    def _require_columns(self) -> None:
        """Raise if messages cannot be made from the sink's columns."""
        layout, schema = self._messages, self._schema
        if layout.value.writes_changes and self._writing.mode == "changes":
            raise self._target_error(
                'mode="changes" would write an update as a delete and an insert, in no defined '
                "order",
                "Omit it, so that there is one Debezium event per key and epoch.",
            )
        for option, names in (
            ("key", layout.key),
            ("headers", [layout.headers] if layout.headers else []),
            ("topic_column", [layout.topics] if layout.topics else []),
            ("partition_column", [layout.partitions] if layout.partitions else []),
        ):
            require_columns(self._context, names, option)
        if layout.topics and not is_text(schema.field(layout.topics).type):
            raise self._column_error("topic_column", layout.topics, "text")
        if layout.partitions and not pa.types.is_integer(schema.field(layout.partitions).type):
            raise self._column_error("partition_column", layout.partitions, "integers")
        if layout.headers and not _are_headers(schema.field(layout.headers).type):
            raise self._column_error(
                "headers",
                layout.headers,
                "maps of text to text or bytes (or lists of structs of key and value)",
            )
        names = layout.value_columns(schema.names)
        value_schema = pa.schema([schema.field(name) for name in names])
        where = f"Sink {self._context.name!r}"
        try:
            layout.value.check_columns(value_schema, where)
            if layout.key_format is not None:
                keys = pa.schema([schema.field(name) for name in layout.key])
                layout.key_format.check_columns(keys, f"{where}, for keys,")
        except InvalidFlowError as error:
            raise SinkError(error.message, remedy=error.remedy, sink=self._context.name) from None

    def _column_error(self, option: str, name: str, wanted: str) -> SinkError:
        """Return the error that the column `name` of an option is missing or of a wrong type.

        `wanted`: the type, as text.
        """
        return self._target_error(
            f"{option}= is {name!r}, a column of type {self._schema.field(name).type}",
            f"Give a column of {wanted}.",
        )


def _are_headers(dtype: pa.DataType) -> bool:
    """Return whether a type can hold message headers: a map, or a list of structs."""
    if pa.types.is_map(dtype):
        key, value = dtype.key_type, dtype.item_type
    elif pa.types.is_list(dtype) and pa.types.is_struct(dtype.value_type):
        fields = {field.name: field.type for field in dtype.value_type}
        if set(fields) != {"key", "value"}:
            return False
        key, value = fields["key"], fields["value"]
    else:
        return False
    return is_text(key) and (is_text(value) or bool(pa.types.is_binary(value)))
