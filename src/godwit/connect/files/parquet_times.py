"""Times of Parquet files as their writers meant them: 96-bit timestamps, and Spark's old calendar.

Timestamps of 96 bits are instants, though the file does not say so: Spark, Hive and Impala write
them in UTC.

Spark before 3.0 counted days by the hybrid calendar (Julian before 15 October 1582), and later
versions do if they are told to (``datetimeRebaseModeInWrite=LEGACY``); so does Hive.  The footer
says so by keys of its writer.  As Spark does, such a date is read as the same year, month and day
of the calendar of today.  Timestamps before 1900 also depend on the zone of the writer, whose
offsets of that time Java has changed: they are read if that zone is UTC, and refused otherwise.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import (
    column_of,
    convert_leaves,
    has_leaf,
    mask_of,
    values_of,
    with_leaves,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow.parquet as pq

_SPARK: Final = b"org.apache.spark."
_FIRST_GREGORIAN_DAY: Final = -141_427  # 1582-10-15, after 1582-10-04 of the Julian calendar
_JULIAN_EPOCH: Final = 719_470  # days from 1 March of the year 0 (Julian) to 1970-01-01
_DAYS: Final = {unit: 86_400 * 1000**n for n, unit in enumerate(("s", "ms", "us", "ns"))}
_YEAR_1900: Final = -25_567  # 1900-01-01, in days since 1970
_UTC_ZONES: Final = frozenset({b"UTC", b"Etc/UTC", b"Z", b"GMT", b"Etc/GMT", b"+00:00"})


def true_schema(opened: pq.ParquetFile, schema: pa.Schema) -> pa.Schema:
    """Return the Arrow schema of a file, with 96-bit timestamps as instants at any depth."""
    stored = opened.schema
    physical = [stored.column(n).physical_type for n in range(len(stored))]
    if "INT96" not in physical:
        return schema
    leaf = partial(_true_leaf, physical=iter(physical))
    return pa.schema([pa.field(f.name, with_leaves(f.type, leaf)) for f in schema])


def _true_leaf(dtype: pa.DataType, *, physical: Iterator[str]) -> pa.DataType:
    """Return the type of the next leaf; `physical`: types of the file's leaves, in order."""
    stored = [next(physical) for _ in range(_count_leaves(dtype))]
    is_instant = stored == ["INT96"] and pa.types.is_timestamp(dtype)
    return pa.timestamp("us", dtype.tz or "UTC") if is_instant else dtype


def _count_leaves(dtype: pa.DataType) -> int:
    """Return the number of leaves of the file that a leaf of the schema is stored as."""
    if isinstance(dtype, pa.BaseExtensionType):
        return _count_leaves(dtype.storage_type)
    if pa.types.is_dictionary(dtype):
        return _count_leaves(dtype.value_type)
    count = 0

    def counted(inner: pa.DataType) -> pa.DataType:
        nonlocal count
        count += 1
        return inner

    with_leaves(dtype, counted)
    return count


def times_of(
    opened: pq.ParquetFile, stored: pa.Schema, names: Sequence[str]
) -> Callable[[pa.RecordBatch], pa.RecordBatch] | None:
    """Return the function that restores the times of some columns; ``None`` if not needed.

    `stored`: the Arrow schema of the file.
    """
    true = true_schema(opened, stored)
    footer = opened.metadata.metadata or {}
    dates, instants, micros = _old_calendars(footer)
    if true is stored and not (dates or instants):
        return None
    zone = footer.get(_SPARK + b"timeZone")
    restored = {}

    def is_old(dtype: pa.DataType) -> bool:
        """Return whether values of a leaf are counted by the old calendar."""
        if pa.types.is_date(dtype):
            return dates
        return bool(pa.types.is_timestamp(dtype) and dtype.tz and (micros or instants))

    for name in names:
        dtype = true.field(name).type
        if not stored.field(name).type.equals(dtype) or has_leaf(dtype, is_old):
            restored[name] = dtype
    if not restored:
        return None

    def restore_leaf(array: pa.Array, dtype: pa.DataType) -> pa.Array:
        """Return an array of leaves as its writer intended it."""
        if pa.types.is_date(dtype) and dates:
            return _modern_dates(array)
        if not (pa.types.is_timestamp(dtype) and dtype.tz):
            return array
        is_96_bits = array.type.tz is None
        is_old = instants if is_96_bits else micros
        array = array.cast(dtype)
        return _modern_instants(array, zone) if is_old else array

    def restore(rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            convert_leaves(column, restored[name], restore_leaf) if name in restored else column
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, rows.schema.names)

    return restore


def _old_calendars(footer: Mapping[bytes, bytes]) -> tuple[bool, bool, bool]:
    """Return whether dates, 96-bit and other timestamps are counted by the hybrid calendar."""
    version = footer.get(_SPARK + b"version")
    if version is None:
        is_hive = footer.get(b"writer.date.proleptic") == b"false"
        return is_hive, is_hive, is_hive
    numbers = [int(part) for part in version.split(b".")[:2] if part.isdigit()]
    dates = _SPARK + b"legacyDateTime" in footer or numbers < [3, 0]
    return dates, _SPARK + b"legacyINT96" in footer or numbers < [3, 1], dates


def _modern_dates(array: pa.Array) -> pa.Array:
    """Return dates of the hybrid calendar as the same dates of the Gregorian calendar."""
    days = _modern_days(values_of(array.cast(pa.date32())).astype(np.int64))
    return column_of(days, mask_of(array), pa.date32()).cast(array.type)


def _modern_days(days: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return days since 1970 of the Gregorian calendar, from those of the hybrid calendar."""
    is_julian = days < _FIRST_GREGORIAN_DAY
    if not is_julian.any():
        return days
    # Years begin with March, so that a leap day is the last of a year.
    since = days[is_julian] + _JULIAN_EPOCH
    cycle, day = since // 1461, since % 1461
    year = np.minimum(day // 365, 3)
    day, year = day - 365 * year, cycle * 4 + year
    # A 29 February that the Gregorian calendar lacks becomes 1 March.
    gregorian = 365 * year + year // 4 - year // 100 + year // 400 + day - 719_468
    modern = days.copy()
    modern[is_julian] = gregorian
    return modern


def _modern_instants(array: pa.Array, zone: bytes | None) -> pa.Array:
    """Return instants of the hybrid calendar as those of the same time in UTC; or raise."""
    values, mask, a_day = values_of(array), mask_of(array), _DAYS[array.type.unit]
    is_old = values < _YEAR_1900 * a_day
    if mask is not None:
        is_old &= mask
    if not is_old.any():
        return array
    if zone not in _UTC_ZONES:
        written = "an unknown time zone" if zone is None else f"the time zone {zone.decode()}"
        msg = (
            f"it has a timestamp before 1900 by Spark's old calendar, written in {written}, which "
            "cannot be converted exactly: write the file with Spark 3 or later, without the mode "
            "LEGACY"
        )
        raise ValueError(msg)
    days, rest = values // a_day, values % a_day
    return column_of(_modern_days(days) * a_day + rest, mask, array.type)
