"""Arrow columns as Python values: rows and keys as a function per key sees them, and instants.

A column becomes a list once for all keys, and only if the function asks for it.

Instants are datetimes to functions, and numbers where no datetime holds them.  Python adds to a
datetime of a region, and subtracts and compares two of one region, by the clock on the wall:
``ts + timedelta(hours=1)`` across the end of summer time is two hours later.  So functions get
datetimes of a fixed offset, which show the same clock and count as instants do.  A datetime without
a zone that a function returns is one of the session's zone, as Spark takes it.
"""

from __future__ import annotations

import collections
import datetime as dt
import functools
import itertools
import operator
import re
import zoneinfo
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, cast

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import has_leaf, mask_of, numpy_type, values_of
from godwit.columns.row_cursors import Cursors, columns_read
from godwit.columns.types import is_instant, is_list, visible_names
from godwit.model.naming import did_you_mean, listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt
    from typing_extensions import TypeVar

    R = TypeVar("R", default=Any)
else:
    from typing import TypeVar

    R = TypeVar("R")

UTC = "UTC"
_ALWAYS_THE_SAME = frozenset([UTC, "Etc/UTC", "GMT", "Etc/GMT", "Z"])
_FIXED = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
FIRST = (dt.datetime.min.replace(tzinfo=dt.UTC) - _EPOCH) // _MICROSECOND
"""The first datetime, 0001-01-01, in microseconds of Unix time."""
LAST = (dt.datetime.max.replace(tzinfo=dt.UTC) - _EPOCH) // _MICROSECOND
"""The last datetime, 9999-12-31T23:59:59.999999, in microseconds of Unix time."""
_NONE = dt.timedelta(0)
_DAY_US = 86_400_000_000
_QUARTER_US = 900_000_000
_BLOCK = 8192
_METHODS = frozenset(["column", "drop_state", "timers"])  # of rows of a key
_offset = functools.lru_cache(maxsize=256)(dt.timezone)


def with_offsets(values: list[Any], dtype: pa.DataType) -> list[Any]:
    """Return a column's values; in datetimes, a regional time zone is replaced by its offset."""
    if not _has_regions(dtype):
        return values
    if pa.types.is_timestamp(dtype):
        return [None if moment is None else _at_offset(moment) for moment in values]
    return [_each_instant(value, dtype, _at_offset) for value in values]


def instants_of(column: pa.Array) -> list[Any]:
    """Return a column of microseconds in a time zone as Arrow converts it, many times as fast.

    Raises `OverflowError` for a time that no datetime holds.
    """
    zone = pa.scalar(0, column.type).as_py().tzinfo
    times = column.cast(pa.int64()).fill_null(0).to_numpy()
    if len(times) and not FIRST + _DAY_US <= times.min() <= times.max() <= LAST - _DAY_US:
        return cast("list[Any]", column.to_pylist())
    try:
        values = _aware_by_quarter_hours(times, zone)
        if values is None:
            utc = times.astype("datetime64[us]").tolist()
            values = [zone.fromutc(moment.replace(tzinfo=zone)) for moment in utc]
    except AttributeError:  # Arrow knows no zone of that name
        return cast("list[Any]", column.to_pylist())
    if (valid := mask_of(column)) is not None:
        for row in np.flatnonzero(~valid).tolist():
            values[row] = None
    return values


def _aware_by_quarter_hours(times: npt.NDArray[np.int64], zone: dt.tzinfo) -> list[Any] | None:
    """Convert times by the offset of each quarter of an hour; ``None`` if the clock goes back.

    Zones change their offset at whole quarters.  ``None`` also if there are too many of them.
    """
    if not len(times):
        return []
    if str(zone) in _ALWAYS_THE_SAME:
        return _aware(times, zone)
    quarters = times // _QUARTER_US
    first, last = int(quarters.min()), int(quarters.max())
    if last - first > len(times) // 4:
        return None
    bounds = [
        zone.fromutc((_EPOCH + _MICROSECOND * moment).replace(tzinfo=zone))
        for quarter in range(first, last + 1)
        for moment in (quarter * _QUARTER_US, (quarter + 1) * _QUARTER_US - 1)
    ]
    offsets = [bound.utcoffset() or _NONE for bound in bounds]
    if any(bound.fold or bound.tzinfo is not zone for bound in bounds) or (
        offsets[::2] != offsets[1::2]
    ):
        return None
    by_quarter = np.array([offset // _MICROSECOND for offset in offsets[::2]])
    local = times + by_quarter[quarters - first]
    return _aware(local, zone)


def _aware(local: npt.NDArray[np.int64], zone: dt.tzinfo) -> list[Any]:
    """Return times as datetimes of a zone whose clock shows them, from years 1 to 9999.

    Each is the sum of a datetime and a difference, which Python adds by the clock of the zone: a
    third of the time of making datetimes of their parts, in blocks that stay in the cache.
    """
    first, since = itertools.repeat(_EPOCH.replace(tzinfo=zone)), local.view("timedelta64[us]")
    values: list[Any] = []
    for begin in range(0, len(since), _BLOCK):
        values += map(operator.add, first, since[begin : begin + _BLOCK].tolist())
    return values


def _at_offset(moment: dt.datetime) -> dt.datetime:
    """Return a datetime with its regional time zone replaced by the UTC offset."""
    return moment.replace(tzinfo=_offset(moment.utcoffset()), fold=0)


@functools.lru_cache(maxsize=256)
def _has_regions(dtype: pa.DataType) -> bool:
    """Return whether a type has timestamps of a region, whose UTC offset changes over time."""
    if pa.types.is_timestamp(dtype):
        zone = dtype.tz
        return not (zone is None or zone in _ALWAYS_THE_SAME or _FIXED.fullmatch(zone))
    return any(_has_regions(dtype.field(i).type) for i in range(dtype.num_fields))


@functools.lru_cache(maxsize=64)
def zone_of(name: str) -> dt.tzinfo:
    """Return the time zone of a Spark name, such as ``+02:00``; `ValueError` if it is unknown."""
    if name in ("Z", UTC):
        return dt.UTC
    if (match := _FIXED.fullmatch(name)) is not None:
        sign, hours, minutes, seconds = match.groups(default="0")
        offset = dt.timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
        return dt.timezone(-offset if sign == "-" else offset)
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
        msg = f"a datetime without a zone is of the session's, and Python knows no zone {name!r}"
        raise ValueError(msg) from error


def has_instants(dtype: pa.DataType) -> bool:
    """Return true if a type has timestamps with a time zone, at any depth."""
    return has_leaf(dtype, is_instant)


def in_zone(value: Any, dtype: pa.DataType, zone: str) -> Any:
    """Return a value whose datetimes without a zone have `zone`, where the type has time zones."""

    def of_zone(moment: dt.datetime) -> dt.datetime:
        """Return a datetime with a time zone."""
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone_of(zone))

    return _each_instant(value, dtype, of_zone)


def _each_instant(
    value: Any, dtype: pa.DataType, change: Callable[[dt.datetime], dt.datetime]
) -> Any:
    """Return a value with `change` applied to each datetime whose type has a time zone."""
    if value is None or not has_instants(dtype):
        return value
    if isinstance(value, dt.datetime):
        return change(value)
    if pa.types.is_struct(dtype):
        if not isinstance(value, dict):
            return value
        types = {dtype.field(i).name: dtype.field(i).type for i in range(dtype.num_fields)}
        return {
            name: _each_instant(element, types[name], change) if name in types else element
            for name, element in value.items()
        }
    if pa.types.is_map(dtype) and isinstance(value, (dict, list, tuple)):
        pairs = value.items() if isinstance(value, dict) else value
        key, item = dtype.key_type, dtype.item_type
        return [
            (_each_instant(k, key, change), _each_instant(element, item, change))
            for k, element in pairs
        ]
    if isinstance(value, (list, tuple)):
        return [_each_instant(element, dtype.value_type, change) for element in value]
    return value


class RowMaker(Protocol):
    """Port: a class whose instances rows are handed over as; see `godwit.values.records`."""

    names: list[str]  # columns that its instances are made of

    @property
    def make(self) -> Callable[..., Any]:
        """Function that makes a row from one value per column."""

    def values(self, name: str, column: pa.Array) -> list[Any]:
        """Return the values of the field `name` of all rows, converted from a column."""


class KeyRows(Generic[R]):
    """The rows of one key in one epoch, or in one window, in order of arrival.

    Godwit makes it: functions of ``process`` get it. ``len(rows)`` is the number of rows. Iterating
    yields a named tuple per row, which has the key columns last, or an instance of the class that
    ``process(..., row=...)`` names.
    `column` returns the values of one column as a list, which is faster for a function that needs
    few columns.

    Examples
    --------
    >>> def longest(key, rows, state):
    ...     return [(*key, max(rows.column("delay")))]
    >>> rows = [{"delay": 5}, {"delay": 7}]
    >>> done = gw.testing.process(longest, rows, key={"plane": "N1"}, state=int)
    >>> done.rows
    [('N1', 7)]
    """

    __slots__ = ("_columns", "_dropped", "_start", "_stop")

    def __init__(self, columns: Columns, start: int, stop: int) -> None:
        self._columns = columns
        self._start = start
        self._stop = stop
        self._dropped = False

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[R]:
        columns = self._columns
        names = columns.names if columns.read is None else columns.read
        values = [columns[name][self._start : self._stop] for name in names]
        if columns.cursors is not None:
            return columns.cursors.over(values, len(self))
        if not values:
            return iter([columns.row()] * len(self))
        return columns.rows(values)

    def __repr__(self) -> str:
        return f"KeyRows({len(self)} rows of {', '.join(self._columns.names)})"

    def column(self, name: str) -> list[Any]:
        """Return the values of a column as a new list, with nulls as ``None``.

        Parameters
        ----------
        name
            Name of the column.

        Raises
        ------
        KeyError
            If the rows have no such column.

        Examples
        --------
        >>> def worst(key, rows, state):
        ...     return [max(rows.column("delay"))]
        >>> gw.testing.process(worst, [{"delay": 5}, {"delay": 7}], state=int).rows
        [7]
        """
        values: list[Any] = self._columns[name][self._start : self._stop]
        return values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "timers":
            msg = (
                "the operator has no timers: declare them, as in process(..., "
                'timers=gw.types.OnTimer(your_function, clock="event"))'
            )
        elif name in self._columns.names:
            msg = (
                f"these are the rows of a key: iterate over them, and take row.{name}, or use "
                f"rows.column({name!r})"
            )
        else:
            msg = f"rows of a key have no {name!r}; columns are {', '.join(self._columns.names)}"
        raise AttributeError(msg)

    def __getitem__(self, index: Any) -> Any:
        msg = "rows of a key have no positions: iterate over them, or take list(rows)[0]"
        if isinstance(index, str):
            msg = f"use rows.column({index!r}) for the values of a column"
        raise TypeError(msg)

    def drop_state(self) -> None:
        """Delete the state and the timers of the key when the function returns.

        Later rows of the key begin with a new state.

        Examples
        --------
        >>> def until_last(key, rows, seen):
        ...     seen.value += len(rows)
        ...     if "last" in rows.column("kind"):
        ...         rows.drop_state()
        >>> print(gw.testing.process(until_last, [{"kind": "last"}], state=3).state)
        None
        """
        self._dropped = True


class KeysOfRows(NamedTuple):
    """Key columns of rows that are ordered by key: a value for all rows of a key."""

    names: list[str]
    values: Sequence[tuple[Any, ...]]  # of each key
    bounds: Sequence[int]  # key i has the rows from ``bounds[i]`` to ``bounds[i + 1]``

    def column(self, name: str) -> list[Any]:
        """Return the values of a key column, one for each row."""
        place, bounds = self.names.index(name), self.bounds
        counts = map(operator.sub, itertools.islice(bounds, 1, None), bounds)
        of_keys = map(operator.itemgetter(place), self.values)
        return list(itertools.chain.from_iterable(map(itertools.repeat, of_keys, counts)))


class Columns(dict[str, list[Any]]):
    """Columns of an epoch's rows as Python lists, ordered by key; converted on first use.

    Those of the key come last, unless the rows are of a class.
    """

    def __init__(
        self,
        rows: pa.RecordBatch,
        inputs: pa.Schema,
        order: Any,
        keys: KeysOfRows,
        row_maker: RowMaker | None = None,
    ) -> None:
        super().__init__()
        self._rows = rows
        self._order = order
        self._keys = keys
        self._of = row_maker
        self._arrays: dict[str, pa.Array] = {}
        if row_maker is None:
            self.names = [*inputs.names, *keys.names]
            self.row = row_type(tuple(self.names))
        else:
            self.names = row_maker.names
            self.row = row_maker.make
        self.read: tuple[str, ...] | None = None
        self.cursors: Cursors | None = None

    def read_by(self, function: Any) -> Columns:
        """Make rows one object where `function` cannot tell, whose second argument they are."""
        if self._of is None:
            self.read = columns_read(function, 1, self.names, methods=_METHODS)
            self.cursors = None if self.read is None else Cursors(self.read)
        return self

    @property
    def sent(self) -> list[str]:
        """Names of the columns that the rows themselves have, so that they have arrays."""
        names: list[str] = self._rows.schema.names
        return names

    def array(self, name: str) -> pa.Array:
        """Return a column of the rows themselves as an Arrow array, ordered by key."""
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = self._rows.column(name).take(pa.array(self._order))
        return array

    def rows(self, values: Sequence[list[Any]]) -> Iterator[Any]:
        """Yield rows made of `values`: one list of values per column."""
        if self._of is not None:
            return map(self.row, *values)
        # The same as its ``_make``, without a call of Python.
        return map(tuple.__new__, itertools.repeat(self.row), zip(*values, strict=True))

    def __missing__(self, name: str) -> list[Any]:
        if name not in self.names:
            msg = f"There is no column {name!r}; the columns are {', '.join(self.names)}"
            raise KeyError(msg)
        if self._of is None and name in self._keys.names:
            values = self._keys.column(name)
        else:
            column = self._rows.column(name).take(pa.array(self._order))
            values = python_values(column) if self._of is None else self._of.values(name, column)
        self[name] = values
        return values


def _python_value(scalar: pa.Scalar) -> Any:
    """Return a value as `python_values` does; a time that no datetime holds is a number."""
    dtype = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_struct(dtype):
        return {name: _python_value(element) for name, element in scalar.items()}
    if pa.types.is_map(dtype):
        pairs = [scalar.values.field(number) for number in range(2)]
        return list(zip(*([_python_value(each) for each in part] for part in pairs), strict=True))
    if is_list(dtype):
        return [_python_value(element) for element in scalar.values]
    try:
        return with_offsets([scalar.as_py()], dtype)[0]
    except OverflowError:
        return scalar.value


def datetime_of(moment: int) -> dt.datetime:
    """Return microseconds of Unix time as a datetime in UTC, the first or last one if beyond."""
    return _EPOCH + min(max(moment, FIRST), LAST) * _MICROSECOND


def rows_as_tuples(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return the rows of a batch as tuples of Python values, without hidden key columns."""
    columns = [python_values(batch.column(name)) for name in visible_names(batch.schema.names)]
    return list(zip(*columns, strict=True)) if columns else [()] * batch.num_rows


def row_type(names: tuple[str, ...]) -> Any:
    """Return the named-tuple class of rows with these columns.

    A column that cannot be a field's name, such as ``_id`` or ``class``, is the field ``_0``,
    ``_1``, ..., and also an attribute.
    """
    row_class = collections.namedtuple("Row", names, rename=True)  # type: ignore[misc]  # noqa: PYI024
    row: Any = row_class

    def no_such_column(_: Any, name: str) -> Any:
        """Raise an error that lists the columns of the row."""
        if name.startswith("__"):  # of a protocol, such as that of copies
            raise AttributeError(name)
        msg = f"a row has no column {name!r}. {did_you_mean(name, names)}It has {listing(names)}"
        raise AttributeError(msg)

    row.__getattr__ = no_such_column
    if names == row._fields:
        return row
    beside = {
        name: property(operator.itemgetter(i))
        for i, name in enumerate(names)
        if not hasattr(row, name)
    }

    def as_dict(self: Any) -> dict[str, Any]:
        """Return column name → value."""
        return dict(zip(names, self, strict=True))

    return type("Row", (row,), {"__slots__": (), **beside, "_asdict": as_dict})


def python_values(column: pa.Array) -> list[Any]:
    """Convert a column to Python values.

    A time that no datetime holds, before the year 1 or after 9999, is the number that Arrow stores:
    microseconds (or the type's unit) since 1970-01-01 in UTC, and days of a date.
    """
    dtype = column.type
    if _is_listed_by_numpy(dtype):
        objects = column.to_numpy(zero_copy_only=False)
        # One value of a timestamp is NumPy's null.
        if objects.dtype == np.object_ or np.count_nonzero(np.isnat(objects)) == column.null_count:
            return cast("list[Any]", objects.tolist())
    if numpy_type(dtype) is None or pa.types.is_temporal(dtype):
        try:
            fast = pa.types.is_timestamp(dtype) and dtype.tz is not None and dtype.unit == "us"
            return with_offsets(instants_of(column) if fast else column.to_pylist(), dtype)
        except OverflowError:
            return [_python_value(scalar) for scalar in column]
    values, mask = values_of(column), mask_of(column)
    if mask is not None:
        values = values.astype(object)
        values[~mask] = None
    listed: list[Any] = values.tolist()
    return listed


def _is_listed_by_numpy(dtype: pa.DataType) -> bool:
    """Return whether NumPy makes the same values of a type as Arrow, in a fraction of the time."""
    if pa.types.is_timestamp(dtype):
        return bool(dtype.tz is None and dtype.unit != "ns")
    return bool(pa.types.is_decimal(dtype) or pa.types.is_date32(dtype))
