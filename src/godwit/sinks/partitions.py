"""Partition columns: what may become directories, found before an epoch is committed.

A directory's name has at most 255 bytes on common file systems, and a column of very many values
would make as many files of a few rows each: the first is a matter of a row, the second of the
column, so it refuses the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from godwit.model.errors import SinkError
from godwit.sinks.parquet_files import directory_name
from godwit.sinks.row_checks import ColumnCheck, KnownYears, NoNanoseconds, RowChecks, Rule

if TYPE_CHECKING:
    from collections.abc import Collection

    from godwit.plan.staging import Rejections, RowCheck
    from godwit.sinks.sink import SinkContext

__all__ = ["MAX_PARTITIONS", "PartitionedRows", "ShortDirectoryName", "file_row_check"]

MAX_PARTITIONS: Final = 10_000
_LONGEST_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class ShortDirectoryName:
    """A value whose directory, ``column=value``, has a name that file systems take."""

    column: str
    folds: bool = False

    @property
    def reason(self) -> str:
        """What is wrong."""
        return f"would name a directory of more than {_LONGEST_NAME} bytes"

    def bad(self, values: pa.Array) -> pa.BooleanArray | None:
        """Mark values that are too long."""
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            return None
        room = (_LONGEST_NAME - len(self.column.encode()) - 1) // 3  # a character may become %XX
        long = pc.greater(pc.binary_length(values), room)
        if not pc.any(long).as_py():
            return long
        return pa.array(
            [
                bool(may_be)
                and len(directory_name(self.column, value, folds=self.folds).encode())
                > _LONGEST_NAME
                for may_be, value in zip(long.to_pylist(), values.to_pylist(), strict=True)
            ],
            pa.bool_(),
        )


@dataclass(frozen=True, slots=True)
class PartitionedRows:
    """Rows for a partitioned target (see `godwit.plan.staging.RowCheck`).

    Attributes
    ----------
    sink
        Name of the sink.
    checks
        The rules for single rows.
    partition_by
        Partition columns.
    max_partitions
        The most partitions that one lane may write in an epoch.
    """

    sink: str
    checks: RowChecks
    partition_by: tuple[str, ...]
    max_partitions: int

    def __call__(self, rows: pa.RecordBatch) -> Rejections | None:
        """Find the rows that break a rule.

        Raises
        ------
        SinkError
            If the rows are of too many partitions.
        """
        found = self.checks(rows)
        keys = pa.Table.from_batches([rows.select(list(self.partition_by))])
        partitions = keys.group_by(list(self.partition_by)).aggregate([]).num_rows
        if partitions > self.max_partitions:
            raise SinkError(
                f"Sink {self.sink!r}: one lane's rows of an epoch are of {partitions:,} partitions "
                f"by {', '.join(map(repr, self.partition_by))}, of which each would become a file.",
                remedy="Partition by columns of fewer values; or raise the limit, as in "
                f"max_partitions={partitions}.",
                sink=self.sink,
                partitions=partitions,
            )
        return found


def file_row_check(
    context: SinkContext,
    partition_by: tuple[str, ...],
    max_partitions: int,
    never_null: Collection[str] = (),
    *,
    folds: bool = False,
) -> RowCheck:
    """Make the check of a target that keeps rows in partitioned files.

    Parameters
    ----------
    context
        The sink's.
    partition_by
        Partition columns.
    max_partitions
        The most partitions that one lane may write in an epoch.
    never_null
        Columns that the target does not let be null.
    folds
        Whether names that differ by case are one.
    """
    columns = []
    for field in context.schema:
        rules: tuple[Rule, ...] = (KnownYears(), NoNanoseconds())
        if field.name in partition_by:
            rules = (*rules, ShortDirectoryName(field.name, folds))
        columns.append(ColumnCheck(field.name, rules, nullable=field.name not in never_null))
    checks = RowChecks(tuple(columns))
    if not partition_by:
        return checks
    return PartitionedRows(
        sink=context.name,
        checks=checks,
        partition_by=partition_by,
        max_partitions=max_partitions,
    )
