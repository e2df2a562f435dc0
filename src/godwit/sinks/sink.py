"""The contract of a sink: it is given every epoch's output once it is committed, perhaps twice.

Lanes stage an epoch's output in the checkpoint; the commit record names what counts; only then is
it delivered.  After a crash the last epoch is delivered again, with the very same rows, so a sink
is exactly-once when delivering an epoch for the second time changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["EpochOutput", "Sink", "SinkContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkContext:
    """What a sink may know about the query it serves.

    Attributes
    ----------
    name
        The sink's name in the flow.
    flow
        The flow's name.
    query_id
        Identifier of the query, the same over restarts from one checkpoint.
    schema
        Columns of the rows it will get.
    keys
        Names of the key columns among them.
    complete
        Whether an epoch's output is the whole result (complete mode) or the changed keys.
    spark
        The session.
    """

    name: str
    flow: str
    query_id: str
    schema: pa.Schema
    keys: tuple[str, ...]
    complete: bool
    spark: SparkSession


class EpochOutput(Protocol):
    """The rows of one epoch for one sink, read from the checkpoint."""

    @property
    def epoch(self) -> int:
        """The epoch."""

    @property
    def num_rows(self) -> int:
        """Rows in all."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows on the driver, one batch at a time, in a fixed order."""

    def dataframe(self) -> DataFrame:
        """Return the rows as a DataFrame, read by the executors."""


class Sink(ABC):
    """Where results go. Instances hold configuration only until `open` is called."""

    @property
    def wants_rows(self) -> bool:
        """Whether rows are staged at all; false for a sink that throws them away."""
        return True

    @abstractmethod
    def open(self, context: SinkContext) -> None:
        """Check the target and prepare it, before the first epoch.

        Raises
        ------
        SinkError
            If the target cannot take these rows; says what to do.
        """

    @abstractmethod
    def deliver(self, output: EpochOutput) -> None:
        """Write one committed epoch; changes nothing if that epoch is there already."""

    def close(self) -> None:
        """Release what `open` took."""
        return
