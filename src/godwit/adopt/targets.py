"""Formats that an adopted query writes to, with the options that Spark's sinks have for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from godwit import sinks
from godwit.adopt.delivery import DeliveredResult, MemoryTable, print_batch
from godwit.model.errors import UnsupportedQueryError
from godwit.model.naming import did_you_mean, listing
from godwit.sinks.file_systems import exists, open_file_system
from godwit.sinks.simple_sinks import NoopSink
from godwit.sources.message_formats import MessageFormat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

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
    session: Any = None

    def require(self, name: str, example: str) -> str:
        """Return an option; raise `UnsupportedQueryError` if it is not set."""
        value = self.options.get(name.lower())
        if value is None:
            raise refused_setting(
                f"The format {self.format!r} needs the option {name!r}.",
                f"Set it, as in {example}.",
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
                    f"The format {self.format!r} has no option {key!r} here.",
                    f"{did_you_mean(key, list(names))}Its options are {listing(names.values())}.",
                )
        if self.partition_by and not partitions:
            raise refused_setting(
                f"The format {self.format!r} cannot partition by {listing(self.partition_by)}.",
                "Leave partitionBy(...) out.",
            )
        if self.mode not in modes:
            raise refused_setting(
                f"The format {self.format!r} cannot be written in output mode {self.mode!r}, in "
                "which later rows replace earlier ones.",
                f"Use {' or '.join(f'outputMode({mode!r})' for mode in modes)}, or "
                "foreachBatch(...).",
            )


def refused_setting(message: str, remedy: str) -> UnsupportedQueryError:
    """Return the error that a setting of a writer cannot be adopted."""
    return UnsupportedQueryError(message, remedy=remedy, node="writer", place="")


def delivered(
    query: AdoptedQuery, function: Callable[[Any, int], object], checkpoint: str | None = None
) -> tuple[Stream, DeliveredResult]:
    """Return the sink that calls a function with the result of every batch, and its stream.

    `checkpoint`: see `DeliveredResult`.
    """
    return query.stream, DeliveredResult(function, query.finish, checkpoint=checkpoint)


def _memory(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink that keeps the rows in a temporary view of the query's name."""
    target.check(())
    if target.query_name is None:
        raise refused_setting(
            "A memory sink has no query name.", 'Set it, as in queryName("counts").'
        )
    return delivered(query, MemoryTable(target.query_name, complete=target.mode == "complete"))


def _console(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink that prints every batch."""
    target.check(("numRows", "truncate"))
    show = partial(
        print_batch,
        num_rows=int(target.options.get("numrows", "20")),
        truncate=target.options.get("truncate", "true") == "true",
    )
    return delivered(query, show)


def _noop(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink that discards all rows."""
    target.check(())
    return query.stream, NoopSink()


def _parquet(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink of a directory of Parquet files."""
    target.check(("path", "compression"), modes=("append",), partitions=True)
    path = target.require("path", 'start("out/")')
    filesystem, directory = open_file_system(path)
    if exists(filesystem, f"{directory}/_spark_metadata"):
        raise refused_setting(
            f"The directory {path!r} has '_spark_metadata', the log of a sink of Spark's: readers "
            "take only the files that it names, and would not see those of this query.",
            "Give a new directory.",
        )
    sink = sinks.parquet(
        path,
        partition_by=target.partition_by,
        compression=target.options.get("compression", "snappy"),
    )
    return query.result_stream("the format 'parquet'"), sink


def _delta(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink of a Delta table."""
    target.check(("path",), modes=("append", "complete"), partitions=True)
    path = target.require("path", 'start("out/table")')
    sink = sinks.delta(path, partition_by=target.partition_by)
    return query.result_stream("the format 'delta'"), sink


def _iceberg(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink of an Iceberg table."""
    target.check(("path", "fanout-enabled"), modes=("append", "complete"))
    name = target.table or target.require("path", 'toTable("catalog.namespace.table")')
    catalog, _, table = name.partition(".")
    if "." not in table:
        raise refused_setting(
            f"The table {name!r} has no catalog and namespace.",
            'Name both, as in toTable("catalog.namespace.table").',
        )
    prefix = f"spark.sql.catalog.{catalog}."
    known: dict[str, str] = {
        key: value
        for key in ("type", "uri", "warehouse")
        if (value := target.session.conf.get(prefix + key, None)) is not None
    }
    sink = sinks.iceberg(table, catalog={"name": catalog, **known} if known else catalog)
    return query.result_stream("the format 'iceberg'"), sink


class ValueColumn(MessageFormat):
    """Messages as Spark writes them: the bytes or text of the column ``value``."""

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


def _kafka(target: Target, query: AdoptedQuery) -> tuple[Stream, Sink]:
    """Return the sink of a topic of Kafka."""
    target.check(("topic", "includeHeaders", "kafka.bootstrap.servers"), prefix=_BROKER)
    servers = target.require("kafka.bootstrap.servers", '"host:9092"')
    topic = target.require("topic", 'option("topic", "totals"), also if rows name their topics')
    stream = query.result_stream("the format 'kafka'")
    columns = query.result_columns
    if "value" not in columns:
        raise refused_setting(
            f"The rows have no column 'value' for Kafka; they have {listing(columns)}.",
            'Name it, as in selectExpr("to_json(struct(*)) AS value").',
        )
    extra = sorted({*columns} - {"key", "value", "headers", "partition", "topic"})
    if extra:
        stream = stream.map(partial(_without, tuple(extra)))
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
        partition_column="partition" if "partition" in columns else None,
        config=config or None,
    )
    return stream, sink


def _without(names: tuple[str, ...], rows: pa.Table) -> pa.Table:
    """Return rows without some columns, which Kafka does not get."""
    return rows.drop_columns(list(names))


FORMATS: Final[dict[str, Callable[[Target, AdoptedQuery], tuple[Stream, Sink]]]] = {
    "parquet": _parquet,
    "delta": _delta,
    "iceberg": _iceberg,
    "kafka": _kafka,
    "memory": _memory,
    "console": _console,
    "noop": _noop,
}
WAYS_OUT: Final = {
    "postgres": "Build the flow by gw.read_plan(df), and give it gw.sinks.postgres(...).",
    "jdbc": "Spark has no such streaming sink either: use foreachBatch, or gw.read_plan(df) with "
    "gw.sinks.postgres(...).",
    "json": 'Use the format "parquet" or "delta", or foreachBatch with rows.write.json(...).',
    "csv": 'Use the format "parquet" or "delta", or foreachBatch with rows.write.csv(...).',
    "orc": 'Use the format "parquet" or "delta", or foreachBatch with rows.write.orc(...).',
    "text": 'Use the format "parquet" or "delta", or foreachBatch with rows.write.text(...).',
}
