"""The rows of a small epoch: to the driver, and on to the lanes with their instruction.

A Python stage and the exchange behind it take the same time however few rows there are, and a small
epoch takes little else.  So where few rows are expected, Spark's plan alone runs on the executors,
the driver does what the source side does, and the lanes are handed what an exchange would bring.

The invariant: all rows of a micro-batch go this way, or none.  The plan runs under a limit, and if
there is a single row more, they all go the ordinary way.  What is expected decides about time only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from godwit.cluster.spark.stages.source_rows import SourceRows

__all__ = ["FewRows"]

_ROWS_AT_MOST: Final = 10_000
_BYTES_AT_MOST: Final = 2**20


class FewRows:
    """Takes the rows of small epochs to the driver.

    Parameters
    ----------
    source
        Reads them.
    schema
        Their Arrow schema.
    rows_at_most, bytes_at_most
        What the driver takes, and what it expects to be worth taking.
    """

    def __init__(
        self,
        source: SourceRows,
        schema: pa.Schema,
        *,
        rows_at_most: int = _ROWS_AT_MOST,
        bytes_at_most: int = _BYTES_AT_MOST,
    ) -> None:
        self._source, self._schema = source, schema
        self._rows_at_most, self._bytes_at_most = rows_at_most, bytes_at_most
        self._rows_expected: int | None = None
        self._bytes_a_row = 0.0

    @property
    def expected(self) -> bool:
        """Whether the next epoch is likely to be small."""
        rows = self._rows_expected
        return (
            rows is not None
            and rows <= self._rows_at_most // 2
            and rows * self._bytes_a_row <= self._bytes_at_most
        )

    def expect(self, rows: int) -> None:
        """Expect the next epoch to have about as many rows as the last one had."""
        self._rows_expected = rows

    def take(self, rows: DataFrame, number: int) -> list[bytes] | None:
        """Bring the rows of a micro-batch to the driver if they are few, as Arrow batches.

        Returns
        -------
        list of bytes or None
            As of `SourceRows.batches`; ``None`` if they are not expected to be few, or are not.
        """
        if not self.expected:
            return None
        batches = self._source.limited(rows, number, self._rows_at_most + 1)
        if batches is None:
            return None
        found = sum(self._rows_of(batch) for batch in batches)
        self._rows_expected = found
        self._bytes_a_row = sum(map(len, batches)) / max(found, 1)
        return None if found > self._rows_at_most else batches

    def _rows_of(self, batch: bytes) -> int:
        return int(pa.ipc.read_record_batch(pa.py_buffer(batch), self._schema).num_rows)
