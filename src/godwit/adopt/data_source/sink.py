"""A writer of a PySpark data source as a sink: an epoch is one write and one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.adopt.data_source.calls import DataSourceCalls
from godwit.model.errors import SinkError
from godwit.sinks.rows import cast_batches
from godwit.sinks.sink import Sink

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.datasource import DataSource

    from godwit.sinks.sink import EpochOutput, SinkContext


class DataSourceSink(Sink):
    """Sink over a PySpark data source (see `godwit.sinks.data_source`)."""

    def __init__(
        self, kind: type[DataSource], options: Mapping[str, str], *, overwrite: bool
    ) -> None:
        self._calls = DataSourceCalls(kind, options, SinkError)
        self._overwrite = overwrite

    def __repr__(self) -> str:
        return f"gw.sinks.data_source({self._calls.name})"

    @property
    def destination(self) -> str:
        """Class and options, without secrets."""
        return f"data source {self._calls.name}({self._calls.shown_options})"

    def open(self, context: SinkContext) -> None:
        """Create the writer; raise if the data source has none for streams."""
        self._context = context
        self._columns = from_arrow_schema(context.schema)
        with self._calls.errors("has no writer for streams"):
            self._writer = self._calls.open().streamWriter(
                schema=self._columns, overwrite=self._overwrite
            )

    def deliver(self, output: EpochOutput) -> None:
        """Write an epoch's rows, and commit it under its number; abort it if that fails."""
        messages: list[Any] = [None]
        try:
            with self._calls.errors(f"failed in write of epoch {output.epoch}"):
                messages = [self._writer.write(self._rows_for_writer(output))]
            with self._calls.errors(f"failed in commit of epoch {output.epoch}"):
                self._writer.commit(messages, output.epoch)
        except SinkError:
            with self._calls.errors(f"failed in abort of epoch {output.epoch}"):
                self._writer.abort(messages, output.epoch)
            raise

    def _rows_for_writer(self, output: EpochOutput) -> Iterator[Any]:
        """Yield an epoch's rows in the form that the writer takes."""
        for batch in cast_batches(output, self._context.schema, self._context.name):
            if _takes_batches(self._writer):
                yield batch
            else:
                yield from ArrowTableToRowsConversion.convert(
                    pa.Table.from_batches([batch]), self._columns
                )


def _takes_batches(writer: Any) -> bool:
    """Return whether a writer takes record batches instead of rows."""
    from pyspark.sql import datasource  # noqa: PLC0415

    arrow_writer = getattr(datasource, "DataSourceStreamArrowWriter", ())
    return isinstance(writer, arrow_writer)
