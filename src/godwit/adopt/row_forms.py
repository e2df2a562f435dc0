"""Rows as a `StatefulProcessor` gets and returns them: PySpark's ``Row``, or pandas DataFrames.

Both are what Spark's Python worker makes of the same Arrow data: of rows, every column's Python
values with timestamps in the session's time zone; of DataFrames, columns with the types that pandas
infers from such values, so integers of any width are ``int64``, and timestamps have no zone.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from abc import ABC, abstractmethod
from collections import namedtuple
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.types import Row

from godwit.columns.python_values import UTC, instants_of, python_values
from godwit.columns.row_cursors import Cursors
from godwit.model.errors import UserFunctionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from godwit.operators.operator import KeyedOperator

MAX_CHUNK: Final = 10_000
"""Maximum number of rows of a DataFrame: the default of ``arrow.maxRecordsPerBatch``."""


class KeyBatches(ABC):
    """The rows of an epoch, ordered by key."""

    def __init__(self, starts: list[int]) -> None:
        self._starts = starts

    def rows(self, group: int) -> Iterator[Any] | None:
        """Return the rows of key number `group`; ``None`` if it has none."""
        first, end = self._starts[group], self._starts[group + 1]
        return None if first == end else self.between(first, end)

    @abstractmethod
    def between(self, first: int, end: int) -> Iterator[Any]:
        """Return the rows from number `first` up to, not including, number `end`."""


class RowForm(ABC):
    """One form of rows, for what a processor gets and what it returns."""

    def __init__(
        self,
        zone: str,
        output: pa.Schema,
        max_chunk: int = MAX_CHUNK,  # rows of a DataFrame, as many at most
        max_bytes: int | None = None,  # Arrow bytes of a DataFrame, about as many at most
    ) -> None:
        self.zone, self.output, self.max_chunk = zone, output, max_chunk
        self.max_bytes = max_bytes

    @abstractmethod
    def ordered(self, rows: pa.RecordBatch, starts: list[int]) -> KeyBatches:
        """Return rows that are ordered by key; `starts`: where those of each key begin."""

    @abstractmethod
    def keys(self, keys: pa.RecordBatch, tuples: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the keys as the processor gets them; `tuples`: as functions of Godwit's do."""

    @abstractmethod
    def columns_of(self, emitted: list[Any]) -> list[pa.Array]:
        """Convert the processor's output to columns."""

    def batches(
        self,
        rows: pa.RecordBatch,
        order: npt.NDArray[np.integer],
        starts: list[int],
        of_keys: Mapping[int, Sequence[Any]],  # number of a column → its value for each key  # noqa: ARG002
        read: tuple[str, ...] | None = None,  # noqa: ARG002
    ) -> KeyBatches:
        """Return the rows of an epoch; `order`: their numbers, ordered by key.

        `read`: columns that are all that is read of a row, one row at a time; ``None``: it is not
        known.
        """
        return self.ordered(rows.take(pa.array(order)), starts)

    def by_key(self, keys: pa.RecordBatch, rows: pa.RecordBatch) -> Mapping[Any, Iterator[Any]]:
        """Return key → its rows, in order; `keys`: of each row."""
        tuples = list(zip(*(column.to_pylist() for column in keys.columns), strict=True))
        rows_of_key: dict[Any, list[int]] = {}
        for number, key in enumerate(self.keys(keys, tuples)):
            rows_of_key.setdefault(key, []).append(number)
        order = [number for row_numbers in rows_of_key.values() for number in row_numbers]
        starts = [
            0,
            *np.cumsum([len(row_numbers) for row_numbers in rows_of_key.values()]).tolist(),
        ]
        batches = self.ordered(rows.take(pa.array(order, pa.int64())), starts)
        return {
            key: batches.between(starts[group], starts[group + 1])
            for group, key in enumerate(rows_of_key)
        }

    def to_batch(
        self,
        caller: KeyedOperator,
        emitted: list[Any],
        ends: Sequence[int],
        keys: Sequence[tuple[Any, ...]],
    ) -> pa.RecordBatch:
        """Convert the processor's output to a batch; an error names the key.

        `ends`: number of `emitted` after each of the `keys`.
        """
        if not emitted:
            return pa.RecordBatch.from_pylist([], self.output)
        try:
            return pa.RecordBatch.from_arrays(self.columns_of(emitted), schema=self.output)
        except Exception as error:  # noqa: BLE001 - of the user's values, any
            index, cause = self._first_unconvertible(emitted, error)
            key = keys[bisect.bisect_right(ends, index)]
            raise UserFunctionError(
                f"Operator {caller.name!r}: the processor returned rows for key {key!r} that do "
                f"not fit the output: {type(cause).__name__}: {cause}",
                remedy=f"Return rows with the columns {', '.join(self.output.names)}, with values "
                "of the types in output=.",
                operator=caller.name,
                key=key,
                error=type(cause).__name__,
            ) from cause

    def _first_unconvertible(self, emitted: list[Any], error: Exception) -> tuple[int, Exception]:
        """Return the number of the first element that cannot be converted, and its error."""
        for index, element in enumerate(emitted):
            try:
                self.columns_of([element])
            except Exception as own:  # noqa: BLE001 - of the user's values, any
                return index, own
        return 0, error


def batch_of(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch."""
    columns = [column.combine_chunks() for column in table.columns]
    return pa.RecordBatch.from_arrays(
        [c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for c in columns], schema=table.schema
    )


def form_of(
    name: str,
    *,
    zone: str,
    output: pa.Schema,
    max_chunk: int = MAX_CHUNK,
    max_bytes: int | None = None,
) -> RowForm:
    """Return a form of rows by name: "row" or "pandas"."""
    form = PandasRows if name == "pandas" else SparkRowForm
    return form(zone, output, max_chunk, max_bytes)


# -- rows ------------------------------------------------------------------------------------------


class _RowBatches(KeyBatches):
    """Rows as ``Row`` objects, created lazily."""

    def __init__(
        self,
        names: list[str],
        columns: list[list[Any]],
        starts: list[int],
        of_keys: Mapping[int, Sequence[Any]] = MappingProxyType({}),
        cursors: Cursors | None = None,  # over these columns; ``None``: they are all of `names`
    ) -> None:
        super().__init__(starts)
        self._cursors = cursors
        self._columns, self._of_keys = columns, of_keys
        self._row_class = itertools.repeat(_row_class(tuple(names)))

    def rows(self, group: int) -> Iterator[Any] | None:
        first, end = self._starts[group], self._starts[group + 1]
        if first == end:
            return None
        values: list[Iterable[Any]] = [column[first:end] for column in self._columns]
        for place, value in self._of_keys.items():
            values[place] = itertools.repeat(value[group], end - first)
        if self._cursors is not None:
            return self._cursors.over(values, end - first)
        return map(tuple.__new__, self._row_class, zip(*values, strict=True))

    def between(self, first: int, end: int) -> Iterator[Any]:
        columns = [column[first:end] for column in self._columns]
        return map(tuple.__new__, self._row_class, zip(*columns, strict=True))


@functools.lru_cache(maxsize=256)
def _row_class(names: tuple[str, ...]) -> type[Row]:
    """Return a row class that looks up these columns several times as fast as ``Row``."""
    # A named tuple's fields read the tuple itself, and not by ``Row.__getitem__``.
    fields = vars(namedtuple("Fields", [f"c{number}" for number in range(len(names))]))  # noqa: PYI024
    columns = {
        name: fields[f"c{names.index(name)}"]
        for name in names
        if not (name.startswith("__") or hasattr(Row, name))
    }
    return type("Row", (Row,), {**columns, "__fields__": Row(*names)})


class SparkRowForm(RowForm):
    """Rows as ``pyspark.sql.Row``."""

    def batches(
        self,
        rows: pa.RecordBatch,
        order: npt.NDArray[np.integer],
        starts: list[int],
        of_keys: Mapping[int, Sequence[Any]],
        read: tuple[str, ...] | None = None,
    ) -> KeyBatches:
        """Return the rows of an epoch; the values of key columns are made once for each key."""
        indices, names = pa.array(order), rows.schema.names
        numbers = range(len(names)) if read is None else list(map(names.index, read))
        columns = [
            [] if number in of_keys else python_list(rows.column(number).take(indices), self.zone)
            for number in numbers
        ]
        of_keys = {
            place: of_keys[number] for place, number in enumerate(numbers) if number in of_keys
        }
        cursors = None if read is None else Cursors(read)
        return _RowBatches(names, columns, starts, of_keys, cursors)

    def ordered(self, rows: pa.RecordBatch, starts: list[int]) -> KeyBatches:
        columns = [python_list(column, self.zone) for column in rows.columns]
        return _RowBatches(rows.schema.names, columns, starts)

    def keys(self, keys: pa.RecordBatch, tuples: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if not any(pa.types.is_timestamp(column.type) for column in keys.columns):
            return tuples
        columns = [python_list(column, self.zone) for column in keys.columns]
        return list(zip(*columns, strict=True))

    def columns_of(self, emitted: list[Any]) -> list[pa.Array]:
        names, types = self.output.names, self.output.types
        flat = not any(pa.types.is_nested(dtype) for dtype in types)
        if flat and all(getattr(row, "__fields__", None) == names for row in emitted):
            columns = list(zip(*emitted, strict=True))
            return [pa.array(column, dtype) for column, dtype in zip(columns, types, strict=True)]
        rows = [row.asDict(True) for row in emitted]
        return [
            pa.array([row.get(name) for row in rows], dtype)
            for name, dtype in zip(names, types, strict=True)
        ]


def python_list(column: pa.Array, zone: str) -> list[Any]:
    """Return a column's values as in Spark's worker: timestamps in the session's zone."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return instants_of(column.cast(pa.timestamp("us", zone)))
    if pa.types.is_nested(column.type):
        values: list[Any] = column.to_pylist()
        return values
    return python_values(column)


# -- pandas ----------------------------------------------------------------------------------------


class _FrameBatches(KeyBatches):
    """Rows as DataFrames of a limited number of rows."""

    def __init__(
        self,
        rows: pa.RecordBatch,
        zone: str,
        starts: list[int],
        *,
        inferred: bool,
        max_chunk: int,
        max_bytes: int | None,
    ) -> None:
        super().__init__(starts)
        self._rows, self._zone, self._infers_schema = rows, zone, inferred
        self._max_chunk = max_chunk
        if max_bytes is not None and rows.num_rows:
            self._max_chunk = max(min(-(-max_bytes * rows.num_rows // rows.nbytes), max_chunk), 1)
        # Of columns with nulls, pandas' type depends on the rows of a chunk.
        alone = not inferred and any(column.null_count for column in rows.columns)
        self._frame = None if alone else frame_of(rows, zone, inferred=inferred)

    def between(self, first: int, end: int) -> Iterator[Any]:
        for begin in range(first, end, self._max_chunk):
            stop = min(begin + self._max_chunk, end)
            if self._frame is None:
                yield frame_of(self._rows.slice(begin, stop - begin), self._zone, inferred=False)
                continue
            chunk = self._frame.iloc[begin:stop].reset_index(drop=True)
            yield chunk.infer_objects(copy=False) if self._infers_schema else chunk


class PandasRows(RowForm):
    """Rows as pandas DataFrames, with the types that pandas infers from Python values."""

    inferred: ClassVar[bool] = True

    def ordered(self, rows: pa.RecordBatch, starts: list[int]) -> KeyBatches:
        return _FrameBatches(
            rows,
            self.zone,
            starts,
            inferred=self.inferred,
            max_chunk=self.max_chunk,
            max_bytes=self.max_bytes,
        )

    def keys(self, keys: pa.RecordBatch, tuples: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if not any(pa.types.is_timestamp(column.type) for column in keys.columns):
            return tuples
        return list(frame_of(keys, self.zone, inferred=True).itertuples(index=False, name=None))

    def columns_of(self, emitted: list[Any]) -> list[pa.Array]:
        import pandas as pd  # noqa: PLC0415 - not where rows are rows

        for frame in emitted:
            if not isinstance(frame, pd.DataFrame):
                raise PySparkValueError(
                    "Invalid return type. Please make sure that the UDF returns a "
                    "pandas.DataFrame when the specified return type is StructType."
                )
        frames = [frame for frame in emitted if len(frame)]
        by_name: dict[str, list[pa.Array]] = {name: [] for name in self.output.names}
        for frame in frames:
            if len(frame.columns) == 0:
                series = [pd.Series([None] * len(frame))] * len(self.output)
            elif any(isinstance(label, str) for label in frame.columns):
                series = [frame[name] for name in self.output.names]
            else:
                series = [frame.iloc[:, place] for place in range(len(self.output))]
            for field, values in zip(self.output, series, strict=True):
                by_name[field.name].append(array_of(values, field.type, self.zone))
        return [
            pa.concat_arrays(by_name[field.name]) if frames else pa.array([], field.type)
            for field in self.output
        ]


class ArrowFrames(PandasRows):
    """Rows as pandas DataFrames, with the types that Arrow's columns have in pandas.

    ``applyInPandasWithState`` passes them, and keys of NumPy's types.
    """

    inferred = False

    def keys(self, keys: pa.RecordBatch, tuples: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:  # noqa: ARG002
        columns = [
            _object_scalars(_series_of(column, self.zone, inferred=False))
            for column in keys.columns
        ]
        return list(zip(*columns, strict=True))


def _object_scalars(series: Any) -> list[Any]:
    """Return the values of a Series as NumPy scalars, as by indexing."""
    if series.dtype.kind in "iufb":
        return list(series.to_numpy())
    return list(series)


def frame_of(rows: pa.RecordBatch, zone: str, *, inferred: bool) -> Any:
    """Return rows as a DataFrame, as in Spark's worker.

    `inferred`: of Python values, so that integers are 64 bits wide; else of Arrow's columns.
    """
    import pandas as pd  # noqa: PLC0415 - not where rows are rows

    columns = {}
    for number, column in enumerate(rows.columns):
        columns[number] = _series_of(column, zone, inferred=inferred)
    frame = pd.DataFrame(columns, index=pd.RangeIndex(rows.num_rows))
    frame.columns = rows.schema.names
    return frame


def _series_of(column: pa.Array, zone: str, *, inferred: bool) -> Any:
    """Return a column as a pandas Series; `inferred`: see `frame_of`."""
    import pandas as pd  # noqa: PLC0415 - as above

    dtype = column.type
    if pa.types.is_timestamp(dtype):
        if dtype.tz is not None:
            column = column.cast(pa.timestamp("us", zone))
        series = column.cast(pa.timestamp("us", column.type.tz)).to_pandas()
        if series.dt.tz is not None:
            series = series.dt.tz_localize(None)
        return series.astype("datetime64[ns]")
    if not inferred and not pa.types.is_nested(dtype):
        return column.to_pandas(date_as_object=True)
    if pa.types.is_integer(dtype) and not column.null_count:
        return pd.Series(column.cast(pa.int64()).to_numpy(zero_copy_only=False))
    if pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        return pd.Series(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
    if pa.types.is_map(dtype):
        return pd.Series([None if v is None else dict(v) for v in column.to_pylist()], dtype=object)
    if pa.types.is_nested(dtype):
        convert = _nested_converter(dtype)
        return pd.Series([convert(value) for value in column.to_pylist()], dtype=object)
    return column.to_pandas(date_as_object=True)


def _nested_converter(dtype: pa.DataType) -> Callable[[Any], Any]:
    """Return the function from a nested Arrow value to that of Spark's worker: ``Row``, lists."""
    if pa.types.is_struct(dtype):
        names = [dtype.field(place).name for place in range(dtype.num_fields)]
        parts = [_nested_converter(dtype.field(place).type) for place in range(dtype.num_fields)]
        new_row = Row(*names)
        values_of = itemgetter(*names) if len(names) > 1 else lambda v: (v[names[0]],)
        return lambda value: (
            None
            if value is None
            else new_row(*[part(v) for part, v in zip(parts, values_of(value), strict=True)])
        )
    if pa.types.is_map(dtype):
        return lambda value: None if value is None else dict(value)
    if pa.types.is_nested(dtype):
        element = _nested_converter(dtype.value_type)
        return lambda value: None if value is None else np.array([element(v) for v in value])
    return lambda value: value


def array_of(series: Any, dtype: pa.DataType, zone: str = UTC) -> pa.Array:
    """Return a pandas Series as an Arrow array, as Spark's worker converts results.

    A value of another type is cast, without a check for loss.
    """
    import pandas as pd  # noqa: PLC0415 - as above

    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.dtype.categories.dtype)
    if pa.types.is_timestamp(dtype) and dtype.tz is not None:
        series = _assume_zone(series, zone)
    if pa.types.is_nested(dtype):
        return pa.array([_as_dicts_and_lists(value) for value in series], dtype)
    mask = None if hasattr(series.array, "__arrow_array__") else series.isna()
    try:
        return pa.Array.from_pandas(series, mask=mask, type=dtype, safe=False)
    except pa.lib.ArrowInvalid:
        values = pa.Array.from_pandas(series, mask=mask)
        if pa.types.is_decimal(dtype) and pa.types.is_integer(values.type):
            # Exact, as with ``intToDecimalCoercionEnabled``; without it Spark fails.
            return values.cast(pa.decimal256(76, dtype.scale)).cast(dtype)
        return values.cast(dtype, safe=False)


def _assume_zone(series: Any, zone: str) -> Any:
    """Localize timestamps without a zone to `zone`."""
    import pandas as pd  # noqa: PLC0415 - as above

    if not pd.api.types.is_datetime64_any_dtype(series):
        series = pd.Series(pd.to_datetime(series), index=series.index)
    if series.dt.tz is None:
        series = series.dt.tz_localize(zone, ambiguous=False, nonexistent="shift_forward")
    return series.dt.tz_convert(UTC)


def _as_dicts_and_lists(value: Any) -> Any:
    """Return a nested value with rows as dicts, and arrays as lists."""
    if isinstance(value, Row):
        return {name: _as_dicts_and_lists(v) for name, v in value.asDict().items()}
    if isinstance(value, dict):
        return {key: _as_dicts_and_lists(v) for key, v in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_as_dicts_and_lists(v) for v in value]
    return None if value is None or value != value else value  # noqa: PLR0124 - NaN for null
