"""Topics to read: ``gw.sources.kafka``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.model.errors import SourceError
from godwit.model.frames import user_call
from godwit.model.naming import needs_package

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal

    from godwit.columns.types import SchemaLike
    from godwit.connect.formats.message_formats import MessageFormat
    from godwit.connect.kafka.source import KafkaSource, Start
    from godwit.time.durations import Duration


@user_call
def kafka(
    servers: str | Sequence[str],
    topics: str | Sequence[str],
    *,
    value: Literal["bytes", "text", "json"] | MessageFormat = "bytes",
    schema: SchemaLike | None = None,
    include: Sequence[str] | Mapping[str, str] = (),
    start: Start = "earliest",
    max_rows_per_epoch: int | None = None,
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    on_data_loss: Literal["refuse", "skip"] = "refuse",
    on_bad: Literal["refuse", "skip", "divert"] = "refuse",
    rejects: Any = None,
    group: str | None = None,
    timeout: Duration = "30 seconds",
    config: Mapping[str, Any] | None = None,
) -> KafkaSource:
    """Read messages of Kafka topics, in the executors' Python and without a JVM package.

    Parameters
    ----------
    servers
        Bootstrap servers: ``"host:port"``, or a list of them.
    topics
        A topic, or a list of topics. Partitions that are added later are found and read from their
        first message.
    value
        Format of message values: ``"json"`` (with `schema`), ``"text"`` or ``"bytes"`` (a column
        ``value``), or one of ``gw.formats`` such as ``gw.formats.avro(...)``.
    schema
        Columns of JSON values, as in ``"plane string, delay double"``; only for ``value="json"``.
    include
        Further columns to add, any of ``"key"``, ``"headers"``, ``"timestamp"``, ``"topic"``,
        ``"partition"`` and ``"offset"``; a mapping renames them, as in ``{"timestamp":
        "arrived_at"}``.
    start
        Position of a new query; a resumed one continues from its checkpoint. ``"earliest"``,
        ``"latest"``, a datetime (the first message with that timestamp or a later one), or offsets
        by partition, ``{0: 120, 1: 80}``, for several topics ``{"flights": {0: 120}}``; partitions
        that are not named begin with their earliest message.
    max_rows_per_epoch
        Maximum offsets that one epoch reads, divided among the partitions; by default all that are
        available.
    isolation
        ``"read_committed"`` leaves out messages of aborted and open transactions, as in Kafka.
    on_data_loss
        Action if Kafka's retention deleted messages before they were read: ``"refuse"``: the query
        fails; ``"skip"``: it continues without them, with a warning that has the number of offsets.
    on_bad
        Action for a message that cannot be decoded: ``"refuse"``: fail its epoch; ``"skip"``: leave
        it out, with a warning; ``"divert"``: leave it out and write it to the sink `rejects`.
    rejects
        Sink of the messages that cannot be decoded; required with ``on_bad="divert"``. Its rows
        have columns ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``, ``value``,
        ``headers`` and ``error``, and are delivered with their epoch, exactly once where the sink
        is.
    group
        Consumer group to which offsets are committed after each epoch, for lag monitors only: a
        query resumes from its checkpoint, never from the group's offsets.
    timeout
        Maximum time to wait for an answer of the cluster; then the start, or the epoch and with it
        the query, fails with a `SourceError`.
    config
        Further settings of librdkafka, as in ``{"security.protocol": "ssl"}``. Passwords are not
        shown in errors or plans.

    Raises
    ------
    SourceError
        If confluent-kafka is not installed.
    InvalidFlowError
        If an option is wrong.

    Examples
    --------
    >>> gw.sources.kafka("broker:9092", "flights", value="json", schema="plane string, delay int")
    gw.sources.kafka('broker:9092', ['flights'])
    """
    options = dict(locals())  # the arguments
    with needs_package("The Kafka source", "confluent-kafka", "kafka", SourceError):
        from godwit.connect.kafka.source import KafkaSource  # noqa: PLC0415 - optional
    return KafkaSource(**options)
