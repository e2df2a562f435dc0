"""Results in the driver's memory, for notebooks, examples and tests."""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from godwit.model.errors import SinkError
from godwit.spark.sinks.rows import fit, last_of_each_key
from godwit.spark.sinks.sink import EpochOutput, Sink, SinkContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["MemorySink"]


class MemorySink(Sink):
    """Keeps every epoch's rows on the driver, and shows the current result.

    **Exactly-once within a run**: an epoch delivered twice is kept once. What was kept is gone
    with the process. It may be read from any thread while the query runs.

    Parameters
    ----------
    name
        Name of a Spark temporary view to keep up to date with `table`; ``None`` for no view.

    Examples
    --------
    >>> results = MemorySink()  # flow.sink("by_plane", by_plane, results); flow.start(...)
    >>> results.epochs
    mappingproxy({})
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name
        self._epochs: dict[int, pa.Table] = {}
        self._lock = threading.Lock()
        self._schema: pa.Schema | None = None
        self._keys: tuple[str, ...] = ()
        self._complete = False
        self._sink = ""
        self._query_id = ""
        self._spark: SparkSession | None = None

    def open(self, context: SinkContext) -> None:
        """Take columns and keys from the context; keep rows of this very query only.

        Raises
        ------
        SinkError
            If the view's name is not one that Spark takes.
        """
        with self._lock:
            if context.query_id != self._query_id:
                self._epochs = {}
            self._query_id = context.query_id
            self._schema = context.schema
            self._keys = context.keys
            self._complete = context.complete
            self._sink = context.name
            self._spark = context.spark
        self._refresh_view()

    def deliver(self, output: EpochOutput) -> None:
        """Keep the epoch's rows unless they are kept already."""
        if output.epoch in self._epochs:
            return
        assert self._schema is not None
        batches = list(fit(output, self._schema, self._sink))
        rows = pa.Table.from_batches(batches, schema=self._schema)
        with self._lock:
            self._epochs[output.epoch] = rows
        self._refresh_view()

    @property
    def epochs(self) -> Mapping[int, pa.Table]:
        """Rows of every epoch so far, in order of epochs."""
        with self._lock:
            return MappingProxyType(dict(sorted(self._epochs.items())))

    def table(self) -> pa.Table:
        """Return the current result: the newest row of every key.

        In complete mode that is the newest epoch; without keys, all rows of all epochs.

        Raises
        ------
        SinkError
            If no query has opened the sink yet.
        """
        if self._schema is None:
            raise SinkError(
                "This memory sink belongs to no query yet.",
                remedy="Give it to flow.sink(...) and start the flow, then read the table.",
            )
        tables = list(self.epochs.values())
        if self._complete:
            tables = tables[-1:]
        rows = pa.concat_tables([self._schema.empty_table(), *tables])
        if self._complete or not self._keys:
            return rows
        return rows.filter(pa.array(last_of_each_key(rows.select(list(self._keys)))))

    def _refresh_view(self) -> None:
        if self._name is None or self._spark is None:
            return
        try:
            self._spark.createDataFrame(self.table()).createOrReplaceTempView(self._name)
        except Exception as error:
            raise SinkError(
                f"Memory sink {self._sink!r} cannot keep view {self._name!r}: {error}.",
                remedy="Choose a plain identifier for the view, or leave the name out.",
                sink=self._sink,
            ) from error
