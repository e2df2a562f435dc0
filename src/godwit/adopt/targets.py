"""Output formats of an adopted query, with the options of Spark's sinks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkException,
    PySparkValueError,
)
from pyspark.sql import functions as sf

from godwit import sinks
from godwit.adopt.delivery import DeliveredResult, MemoryTable, print_batch
from godwit.adopt.spark_errors import as_spark_error
from godwit.adopt.spark_files import LOG, SparkFiles, has_epochs_of_lanes, last_batch
from godwit.connect.formats.message_formats import MessageFormat
from godwit.model.errors import EpochFailedError, GodwitError, UnsupportedQueryError
from godwit.model.naming import did_you_mean, listing
from godwit.sinks.simple_sinks import NoopSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from godwit.adopt.translate import AdoptedQuery
    from godwit.api.streams import Stream
    from godwit.sinks.sink import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Settings of a writer's sink."""

    format: str
    mode: str
    options: dict[str, str] = field(default_factory=dict)  # by name in lower case
    partition_by: tuple[str, ...] = ()
    query_name: str | None = None
    table: str | None = None  # name of a table, of ``toTable``
    rows: Any = None  # DataFrame of the query
    begins: bool = True  # it is the first batch that the query writes, of Spark or of Godwit

    def require(self, name: str, example: str) -> str:
        """Return an option; raise `UnsupportedQueryError` if it is not set."""
        value = self.options.get(name.lower())
        if value is None:
            message = f"The format {self.format!r} needs the option {name!r}."
            remedy = f"Set it, as in {example}."
            if name != "path":
                raise refused_setting(message, remedy)
            raise refused_setting(
                message, remedy, IllegalArgumentException, "_LEGACY_ERROR_TEMP_2047"
            )
        return value

    def check(
        self,
        options: Sequence[str],
        *,
        modes: Sequence[str] = ("append", "update", "complete"),
        partitions: bool = False,
        prefix: str | None = None,
    ) -> None:
        """Raise `UnsupportedQueryError` for options, or an output mode, that a sink does not have.

        `prefix`: of further options, whatever their names.
        """
        names = {name.lower(): name for name in (*options, "checkpointLocation")}
        for key in self.options:
            if key not in names and not (prefix and key.startswith(prefix)):
                raise refused_setting(
                    f"Godwit does not support the option {key!r} of the format {self.format!r}.",
                    f"{did_you_mean(key, list(names))}Its options are {listing(names.values())}.",
                )
        if self.partition_by and not partitions:
            raise refused_setting(
                f"The format {self.format!r} cannot partition by {listing(self.partition_by)}.",
                "Remove partitionBy(...).",
            )
        if self.mode not in modes:
            raise refused_setting(
                f"The format {self.format!r} cannot be written in output mode {self.mode!r}, in "
                "which later rows replace earlier ones.",
                f"Use {' or '.join(f'outputMode({mode!r})' for mode in modes)}, or "
                "foreachBatch(...).",
                AnalysisException,
                "STREAMING_OUTPUT_MODE.UNSUPPORTED_DATASOURCE",
                "42KDE",
            )


def refused_setting(
    message: str,
    remedy: str,
    spark: type[PySparkException] = PySparkValueError,
    condition: str | None = "UNSUPPORTED_OPERATION",
    state: str | None = None,
) -> GodwitError:
    """Return the `UnsupportedQueryError` that a setting of a writer cannot be adopted.

    `spark`, `condition`, `state`: error of Spark's, which refuses the setting, too.
    """
    error = UnsupportedQueryError(message, remedy=remedy, node="writer", place="")
    return as_spark_error(error, spark, condition, state)


def delivered(
    query: AdoptedQuery, function: Callable[[Any, int], object], checkpoint: str | None = None
) -> tuple[Stream, DeliveredResult]:
    """Return the sink that calls a function with the result of every batch, and its stream.

    `checkpoint`: see `DeliveredResult`.
    """
    return query.stream, DeliveredResult(function, query.finish, checkpoint=checkpoint)


def _memory_sink(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink that keeps the rows in a temporary view of the query's name."""
    target.check(())
    if target.query_name is None:
        raise refused_setting(
            "A memory sink needs a query name.",
            'Set it, as in queryName("counts").',
            AnalysisException,
            "_LEGACY_ERROR_TEMP_1194",
        )
    table = MemoryTable(target.query_name, target.rows, complete=target.mode == "complete")
    return delivered(query, table)


def _console_sink(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink that prints every batch."""
    target.check(("numRows", "truncate"))
    show = partial(
        print_batch,
        num_rows=int(target.options.get("numrows", "20")),
        truncate=target.options.get("truncate", "true") == "true",
    )
    return delivered(query, show)


def _noop_sink(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink that discards all rows."""
    target.check(())
    return query.stream, NoopSink()


def _file_sink(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink of a directory of files that Spark writes, with its log."""
    target.check(tuple(target.options), modes=("append",), partitions=True)
    path = target.require("path", 'start("out/")')
    _check_partitions(target)
    session = target.rows.sparkSession
    last = last_batch(session, path)
    if last is None and has_epochs_of_lanes(session, path):
        raise refused_setting(
            f"The directory {path!r} has directories of epochs that lanes wrote, which readers "
            "would ignore because of the log of Spark's sink.",
            "Give a new directory, or write with read_plan(...) and gw.sinks.parquet(...).",
        )
    if target.begins and last is not None and last >= 0:
        raise refused_setting(
            f"The directory {path!r} has '{LOG}', the log of another query, because of whose "
            "batch numbers batches of this query would be skipped.",
            "Give a new directory, or start from the query's progress by "
            "from_spark_checkpoint(...).",
        )
    options = {key: value for key, value in target.options.items() if key != "checkpointlocation"}
    write = SparkFiles(
        session, path, target.format, partition_by=target.partition_by, options=options
    )
    return delivered(query, write)


def _check_partitions(target: Target) -> None:
    """Raise, as Spark does before a start, for partition columns that the rows cannot have."""
    columns = target.rows.columns
    is_case_sensitive = target.rows.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    known = columns if is_case_sensitive else [column.lower() for column in columns]
    names = [name if is_case_sensitive else name.lower() for name in target.partition_by]
    for name, again in Counter(names).items():
        if again > 1:
            raise refused_setting(
                f"partitionBy(...) has the column {name!r} {again} times.",
                "Give it once.",
                AnalysisException,
                "COLUMN_ALREADY_EXISTS",
                "42711",
            )
    for name, as_known in zip(target.partition_by, names, strict=True):
        if as_known not in known:
            raise refused_setting(
                f"The rows have no column {name!r} to partition by; they have {listing(columns)}.",
                f"{did_you_mean(name, columns)}Give another one to partitionBy(...).",
                AnalysisException,
                "_LEGACY_ERROR_TEMP_1196",
            )
    if len(columns) == len(target.partition_by) > 0:
        raise refused_setting(
            "partitionBy(...) has all columns, but files need at least one column.",
            "Leave one out of partitionBy(...).",
            AnalysisException,
            "ALL_PARTITION_COLUMNS_NOT_ALLOWED",
            "KD005",
        )


def _delta_sink(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink of a Delta table."""
    target.check(("path",), modes=("append", "complete"), partitions=True)
    path = target.require("path", 'start("out/table")')
    sink = sinks.delta(path, partition_by=target.partition_by)
    return query.result_stream("the format 'delta'"), sink


def _iceberg_sink(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink of an Iceberg table."""
    target.check(("path", "fanout-enabled"), modes=("append", "complete"))
    name = target.table or target.require("path", 'toTable("catalog.namespace.table")')
    catalog, table = table_of(target.rows.sparkSession, name)
    known = catalog_settings(target.rows.sparkSession, catalog)
    if "." not in table or not (known or catalog != "spark_catalog"):
        raise refused_setting(
            f"The table {name!r} has no catalog and namespace.",
            'Give both, as in toTable("catalog.namespace.table").',
        )
    if known.get("type") in {"hadoop", "jdbc"}:
        raise refused_setting(
            f"The catalog {catalog!r} has type {known['type']!r}, whose tables can only be "
            "written by Iceberg's Java library.",
            "Use a catalog of type rest, hive or glue, or foreachBatch with rows.writeTo(...).",
        )
    sink = sinks.iceberg(table, catalog={"name": catalog, **known} if known else catalog)
    return query.result_stream("the format 'iceberg'"), sink


def table_of(session: Any, name: str) -> tuple[str, str]:
    """Return the catalog of a table, and its name there; by default Spark's current catalog."""
    catalog, dot, table = name.partition(".")
    if dot and "." in table:
        return catalog, table
    return str(session.catalog.currentCatalog()), name


def catalog_settings(session: Any, catalog: str) -> dict[str, str]:
    """Return the settings that Spark's session has for a catalog of Iceberg tables, by name."""
    prefix = f"spark.sql.catalog.{catalog}."
    settings: dict[str, str] = session.conf.getAll
    return {
        key.removeprefix(prefix): value
        for key, value in settings.items()
        if key.startswith(prefix) and value is not None
    }


class ValueColumn(MessageFormat):
    """Messages as in Spark: the bytes or text of the column ``value``."""

    @property
    def schema(self) -> pa.Schema | None:
        """None: the format only writes."""
        return None

    def columns(self, values: Sequence[Any], schema: pa.Schema) -> list[pa.Array]:
        """Raise: the format only writes."""
        raise NotImplementedError

    def encode(self, rows: pa.RecordBatch) -> list[Any]:
        """Return the value of each row; text in UTF-8."""
        values = rows.column("value").to_pylist()
        return [value.encode() if isinstance(value, str) else value for value in values]


_BROKER: Final = "kafka."


_EPOCHS_TOPIC: Final = "epochsTopic"


def _kafka_sink(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink of topics of Kafka, whose messages are columns, as for Spark's sink."""
    target.check(
        ("topic", _EPOCHS_TOPIC, "includeHeaders", "kafka.bootstrap.servers"), prefix=_BROKER
    )
    servers = target.require("kafka.bootstrap.servers", '"host:9092"')
    columns = {name.lower(): name for name in query.result_columns}
    if "value" not in columns:
        raise refused_setting(
            "The rows have no column 'value' for Kafka; they have "
            f"{listing(query.result_columns)}.",
            'Name it, as in selectExpr("to_json(struct(*)) AS value").',
        )
    _check_message_types(target.rows.schema)
    topic = target.options.get("topic")  # as in Spark, it goes before the column
    by_row = topic is None and "topic" in columns
    if by_row:
        example = (
            f'option("{_EPOCHS_TOPIC}", "totals"): rows have their own topics, and the sink '
            "stores its epochs under this one"
        )
        topic = target.require(_EPOCHS_TOPIC, example)
    elif topic is None:
        topic = target.require("topic", 'option("topic", "totals")')
    parts = ("key", "value", "headers", "partition", *(["topic"] if by_row else []))
    chosen = {columns[part]: part for part in parts if part in columns}
    stream = query.result_stream("the format 'kafka'")
    stream = stream.map(partial(_message_columns, tuple(chosen.items()), by_row))
    config = {
        key.removeprefix(_BROKER): value
        for key, value in target.options.items()
        if key.startswith(_BROKER) and key != "kafka.bootstrap.servers"
    }
    sink = sinks.kafka(
        servers,
        topic,
        value=ValueColumn(),
        key="key" if "key" in columns else None,
        headers="headers" if "headers" in columns else None,
        topic_column="topic" if by_row else None,
        partition_column="partition" if "partition" in columns else None,
        config=config or None,
    )
    return stream, sink


_MESSAGE_TYPES: Final = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
"""Column of a message → types that Spark's sink accepts."""


def _check_message_types(schema: Any) -> None:
    """Raise if a column of a message has a type that Spark's sink does not accept either."""
    for column in schema:
        types = _MESSAGE_TYPES.get(column.name.lower())
        own = column.dataType.simpleString()
        if types is not None and own not in types:
            raise refused_setting(
                f"The column {column.name!r} for Kafka has type {own}, which Spark also refuses.",
                f"Cast it to {' or '.join(types)}.",
            )


def _message_columns(
    chosen: tuple[tuple[str, str], ...],
    by_row: bool,
    rows: Any,
) -> Any:
    """Return the columns of messages, by their names; a row without a topic fails.

    `rows`: an Arrow table, or a DataFrame if the query has no operator.
    """
    if not isinstance(rows, pa.Table):
        columns = {part: rows[f"`{name}`"] for name, part in chosen}
        if by_row:
            failure = sf.raise_error(sf.lit(_NO_TOPIC)).cast("string")
            columns["topic"] = sf.coalesce(columns["topic"], failure)
        return rows.select(*(column.alias(part) for part, column in columns.items()))
    messages = rows.select([name for name, _ in chosen]).rename_columns([p for _, p in chosen])
    if by_row and messages.column("topic").null_count:
        raise EpochFailedError(_NO_TOPIC)
    return messages


_NO_TOPIC: Final = (
    'A row has a null topic: set it in all rows, or set option("topic", ...) for all of them.'
)


def _postgres_sink(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink of a table of PostgreSQL, which Spark does not have."""
    target.check(("url", "dbtable", "path", "keys", "user", "password"))
    url = target.require("url", '"postgresql://host/db"').removeprefix("jdbc:")
    name = target.options.get("dbtable") or target.table
    name = name or target.require("path", 'option("dbtable", "public.totals")')
    keys = [key.strip() for key in target.options.get("keys", "").split(",") if key.strip()]
    if target.mode == "update" and not keys:
        raise refused_setting(
            "In output mode 'update', rows of the table are replaced, but no columns identify "
            "them.",
            'Give these columns, as in option("keys", "k, window_start").',
        )
    access = {key: text for key, text in target.options.items() if key in {"user", "password"}}
    sink = sinks.postgres(
        _connection_url(url, access),
        name,
        mode="upsert" if target.mode == "update" else "append",
        keys=keys or None,
    )
    return query.result_stream("the format 'postgres'"), sink


def _connection_url(url: str, access: dict[str, str]) -> Any:
    """Return the connection for a URL, with user and password from separate options."""
    if not access:
        return url
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 - psycopg is optional

    return {**conninfo_to_dict(url), **access}


FORMATS: Final[dict[str, Callable[[Target, AdoptedQuery], tuple[Stream, Sink]]]] = {
    "parquet": _file_sink,
    "csv": _file_sink,
    "json": _file_sink,
    "orc": _file_sink,
    "text": _file_sink,
    "delta": _delta_sink,
    "iceberg": _iceberg_sink,
    "kafka": _kafka_sink,
    "postgres": _postgres_sink,
    "memory": _memory_sink,
    "console": _console_sink,
    "noop": _noop_sink,
}
WAYS_OUT: Final = {
    "jdbc": (
        "Spark does not have this streaming sink either: use foreachBatch, or the format "
        "'postgres'."
    ),
}
