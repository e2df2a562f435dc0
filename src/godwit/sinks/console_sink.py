"""Results on the screen."""

from __future__ import annotations

from itertools import islice
from typing import IO, TYPE_CHECKING

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from godwit.model.errors import SinkError
from godwit.sinks.sink import EpochOutput, Sink, SinkContext

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ConsoleSink"]


class ConsoleSink(Sink):
    """Prints a table of each epoch's first rows on the driver.

    Parameters and guarantee are those of `godwit.sinks.console`.
    """

    def __init__(self, limit: int = 20, *, file: IO[str] | None = None) -> None:
        if limit < 0:
            raise SinkError(
                f"The console sink cannot print {limit} rows.", remedy="Give a limit of 0 or more."
            )
        self._limit = limit
        self._file = file

    def open(self, context: SinkContext) -> None:
        """Take name and columns from the context."""
        self._context = context
        self._printed = -1
        # Standard output is looked up now: it may have been redirected since the flow was built.
        self._console = Console(file=self._file)

    def deliver(self, output: EpochOutput) -> None:
        """Print the epoch unless this run has printed it."""
        if output.epoch <= self._printed:
            return
        # Text, here and in the cells: rich would take [brackets] in a str for markup.
        title = Text(f"{self._context.name}, epoch {output.epoch}, {output.num_rows:,} rows")
        table = Table()
        for field in output.schema:
            table.add_column(
                Text(field.name), justify="right" if _is_number(field.type) else "left"
            )
        for row in islice(_rows(output), self._limit):
            table.add_row(*(Text("null" if value is None else str(value)) for value in row))
        self._console.print(title, table, sep="\n")
        hidden = output.num_rows - self._limit
        if hidden > 0:
            self._console.print(f"and {hidden:,} more")
        self._printed = output.epoch


def _rows(output: EpochOutput) -> Iterator[tuple[object, ...]]:
    for batch in output.batches():
        for start in range(0, batch.num_rows, 100):
            part = batch.slice(start, 100)
            yield from zip(*(column.to_pylist() for column in part.columns), strict=True)


def _is_number(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)
    )
