"""Topics to write to: ``gw.sinks.kafka``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.connect.options import check_columns
from godwit.model.errors import SinkError
from godwit.model.frames import user_call
from godwit.model.naming import needs_package

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    from godwit.connect.formats.message_formats import MessageFormat
    from godwit.connect.kafka.sink import KafkaSink
    from godwit.sinks.sink import Sink
    from godwit.time.durations import Duration


@user_call
def kafka(
    servers: str | Sequence[str],
    topic: str,
    *,
    mode: Literal["upsert", "changes"] = "upsert",
    value: Literal["bytes", "text", "json"] | MessageFormat = "json",
    key: str | Sequence[str] | None = None,
    key_format: MessageFormat | None = None,
    headers: str | None = None,
    topic_column: str | None = None,
    partition_column: str | None = None,
    partitioner: str = "murmur2_random",
    exactly_once: bool = True,
    transaction_timeout: Duration = "1 minute",
    timeout: Duration = "30 seconds",
    config: Mapping[str, Any] | None = None,
    rejects: Sink | None = None,
) -> KafkaSink:
    """Write each epoch to a topic of Kafka in one transaction; exactly-once.

    **Exactly-once** for readers of committed messages (``isolation.level=read_committed``): they
    see all rows of an epoch or none, and each epoch's rows once. The epoch's number is committed in
    the same transaction, as an offset of the group ``godwit-<query>-<sink>``. A query that is
    stopped for longer than the broker keeps offsets (``offsets.retention.minutes``, a week by
    default) may write its last epoch again. With ``output="complete"`` every
    epoch writes all of the result.

    Parameters
    ----------
    servers
        Bootstrap servers: ``"host:port"``, or a list of them.
    topic
        Topic to write to, which must exist. Required even if `topic_column` names other topics for
        all rows, since the sink stores the number of its last epoch under this topic.
    mode
        How changes of a table are written. ``"upsert"``: with a `key`, as one message for each key
        of an epoch, whose value is null if the row is deleted. ``"changes"``: every change is a
        message, with its column ``change``, as is the case without a key.
    value
        Format of the values: ``"json"``, ``"text"`` and ``"bytes"`` (of the rows' only column), or
        one of ``gw.formats``. Values have all columns but `headers`, `topic_column` and
        `partition_column`.
    key
        Column with the message key, as text or bytes; of several columns the key is a JSON object.
        ``None``: messages have no key, or that of `value` if it has one, as `gw.formats.debezium`.
    key_format
        One of ``gw.formats`` for the key's columns, instead of text, bytes or JSON.
    headers
        Column with the message headers: a map of text to text or bytes. ``None``: no headers.
    topic_column
        Column with the name of the topic for each row; a row with null goes to `topic`.
    partition_column
        Column with the partition number for each row; for null the partitioner chooses.
    partitioner
        Partitioner of librdkafka, which chooses partitions by key; the default agrees with Java
        clients.
    exactly_once
        ``False``: **at least once**, without transactions: after a crash the last epoch may be
        written twice, and readers see the rows of an epoch one by one.
    transaction_timeout
        Time after which the broker aborts an open transaction (``transaction.timeout.ms``). It must
        be longer than the delivery of an epoch takes.
    timeout
        Maximum time to wait for an answer of the cluster; then the start, or the delivery and with
        it the query, fails with a `SinkError`.
    config
        Further settings of librdkafka, as in ``{"compression.type": "zstd"}``. Passwords are not
        shown in errors or plans.
    rejects
        Sink of the rows that cannot be encoded as messages or exceed the topic's maximum size, with
        the text columns ``sink``, ``reason``, ``key`` and ``row`` (the last two as JSON). ``None``:
        such a row fails its epoch.

    Raises
    ------
    SinkError
        If confluent-kafka is not installed.
    InvalidFlowError
        If an option is wrong.

    Examples
    --------
    >>> gw.sinks.kafka("broker:9092", "delays", key="plane")
    gw.sinks.kafka('broker:9092', 'delays')
    """
    options = dict(locals())  # the arguments
    with needs_package("The Kafka sink", "confluent-kafka", "kafka", SinkError):
        from godwit.connect.kafka.sink import KafkaSink  # noqa: PLC0415 - confluent-kafka is optional
    check_columns("Kafka", key=key)
    return KafkaSink(**options)
