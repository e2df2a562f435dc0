"""Pruning: data files that cannot have rows that a source's filters accept.

Files are left out by their partition's values, exactly, and by the smallest and greatest values in
the log, which may be wider than the true ones.
"""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from godwit.connect.delta.columns import partition_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.connect.delta.columns import DeltaColumn
    from godwit.connect.delta.log import DataFile
    from godwit.connect.lakes.row_filters import Predicate

_SLACK: Final = dt.timedelta(milliseconds=1)  # writers cut times in statistics to milliseconds


class FileFilter:
    """Filters of a source, for the files of a table; can be pickled."""

    def __init__(
        self, groups: Sequence[Sequence[Predicate]], columns: Mapping[str, DeltaColumn]
    ) -> None:
        self._groups, self._columns = groups, columns
        self._cached_verdicts: dict[tuple[int, int, str | None], bool] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached_verdicts": {}}

    def may_have_rows(self, file: DataFile) -> bool:
        """Return whether a data file may have rows that the filters accept."""
        stats: Mapping[str, Any] | None = None
        if file.stats is not None:
            stats = json.loads(file.stats, parse_float=Decimal)
        return any(
            all(self._may_hold(number, place, file, stats) for place in range(len(group)))
            for number, group in enumerate(self._groups)
        )

    def _may_hold(
        self, number: int, place: int, file: DataFile, stats: Mapping[str, Any] | None
    ) -> bool:
        """Return whether a predicate may hold for a row of a file."""
        name, operator, value = self._groups[number][place]
        column = self._columns[name]
        partition = file.partition or {}
        if column.stored.name in partition:
            text = partition[column.stored.name]
            key = (number, place, text)
            if key not in self._cached_verdicts:
                scalar = partition_value(text, column.field, file.path)
                rows = pa.table({name: pa.array([scalar.as_py()], column.field.type)})
                holds = pq.filters_to_expression([(name, operator, value)])
                self._cached_verdicts[key] = bool(rows.filter(holds).num_rows)
            return self._cached_verdicts[key]
        if stats is None:
            return True
        return _may_hold(column, operator, value, stats)


def _may_hold(column: DeltaColumn, operator: str, value: Any, stats: Mapping[str, Any]) -> bool:
    """Return whether a predicate may hold within the statistics of a file."""
    name, dtype = column.stored.name, column.stored.type
    nulls, rows = (stats.get("nullCount") or {}).get(name), stats.get("numRecords")
    if nulls is not None and nulls == rows and stats.get("tightBounds", True):
        return operator == "not in"
    least = _comparable_bound((stats.get("minValues") or {}).get(name), dtype)
    greatest = _comparable_bound((stats.get("maxValues") or {}).get(name), dtype)
    if isinstance(greatest, dt.datetime):
        end = dt.datetime.max.replace(tzinfo=greatest.tzinfo) - _SLACK
        greatest = greatest + _SLACK if greatest < end else None  # what ends with the last year
    try:
        if operator in {"=", "=="}:
            return _may_be_within(value, least, greatest)
        if operator == "in":
            return any(_may_be_within(item, least, greatest) for item in value)
        if operator in {"<", "<="} and least is not None:
            return bool(least < value or (operator == "<=" and least == value))
        if operator in {">", ">="} and greatest is not None:
            return bool(greatest > value or (operator == ">=" and greatest == value))
    except TypeError:  # values that Arrow compares, and Python does not
        return True
    return True


def _may_be_within(value: Any, least: Any, greatest: Any) -> bool:
    """Return whether a value may be between two bounds; ``None``: unknown."""
    return (least is None or least <= value) and (greatest is None or value <= greatest)


def _comparable_bound(value: Any, dtype: pa.DataType) -> Any:
    """Return a smallest or greatest value of the log; ``None`` if it is not comparable."""
    types = pa.types
    if value is None or isinstance(value, (dict, list)):
        return None
    if types.is_integer(dtype) or types.is_string(dtype):
        return value
    if types.is_float64(dtype):
        return float(value) if isinstance(value, (int, Decimal)) else None
    try:
        if types.is_date(dtype):
            return dt.date.fromisoformat(str(value)[:10])
        if types.is_timestamp(dtype):
            moment = dt.datetime.fromisoformat(str(value))
            if dtype.tz is None:
                return moment.replace(tzinfo=None)
            return moment.replace(tzinfo=moment.tzinfo or dt.UTC)
    except ValueError:
        return None
    return None
