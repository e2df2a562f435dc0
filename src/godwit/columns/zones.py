"""Moments between Arrow, where they are instants, and functions of users, where they are datetimes.

Python adds to a datetime of a region, and subtracts and compares two of one region, by the clock on
the wall: ``ts + timedelta(hours=1)`` across the end of summer time is two hours later.  So
functions get datetimes of a fixed offset, which show the same clock and count as instants do.  A
datetime without a zone that a function returns is one of the session's zone, as Spark takes it.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import zoneinfo
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["UTC", "has_instants", "in_zone", "with_offsets", "zone_of"]

UTC = "UTC"
_ALWAYS_THE_SAME = frozenset([UTC, "Etc/UTC", "GMT", "Etc/GMT", "Z"])
_FIXED = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?")
_offset = functools.lru_cache(maxsize=256)(dt.timezone)


def with_offsets(values: list[Any], dtype: pa.DataType) -> list[Any]:
    """Give values in which datetimes of a region have the offset that it has at each of them."""
    if not _has_regions(dtype):
        return values
    if pa.types.is_timestamp(dtype):
        return [None if moment is None else _at_offset(moment) for moment in values]
    return [_each_instant(value, dtype, _at_offset) for value in values]


def _at_offset(moment: dt.datetime) -> dt.datetime:
    return moment.replace(tzinfo=_offset(moment.utcoffset()), fold=0)


@functools.lru_cache(maxsize=256)
def _has_regions(dtype: pa.DataType) -> bool:
    if pa.types.is_timestamp(dtype):
        zone = dtype.tz
        return not (zone is None or zone in _ALWAYS_THE_SAME or _FIXED.fullmatch(zone))
    return any(_has_regions(dtype.field(i).type) for i in range(dtype.num_fields))


@functools.lru_cache(maxsize=64)
def zone_of(name: str) -> dt.tzinfo:
    """Find a zone by a name that Spark knows: of a region, or an offset such as ``+02:00``.

    Raises `ValueError` if Python has no such zone.
    """
    if name in ("Z", UTC):
        return dt.UTC
    if (found := _FIXED.fullmatch(name)) is not None:
        sign, hours, minutes, seconds = found.groups(default="0")
        offset = dt.timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds))
        return dt.timezone(-offset if sign == "-" else offset)
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
        msg = f"a datetime without a zone is of the session's, and Python knows no zone {name!r}"
        raise ValueError(msg) from error


def has_instants(dtype: pa.DataType) -> bool:
    """Whether values of a type are instants, or hold any."""
    if pa.types.is_timestamp(dtype):
        return dtype.tz is not None
    return any(has_instants(dtype.field(i).type) for i in range(dtype.num_fields))


def in_zone(value: Any, dtype: pa.DataType, zone: str) -> Any:
    """Give a value in which datetimes without a zone, where the type has instants, have `zone`."""

    def of_zone(moment: dt.datetime) -> dt.datetime:
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone_of(zone))

    return _each_instant(value, dtype, of_zone)


def _each_instant(
    value: Any, dtype: pa.DataType, change: Callable[[dt.datetime], dt.datetime]
) -> Any:
    """Give a value in which each datetime that is an instant by the type is another."""
    if value is None or not has_instants(dtype):
        return value
    if isinstance(value, dt.datetime):
        return change(value)
    if pa.types.is_struct(dtype):
        if not isinstance(value, dict):
            return value
        types = {dtype.field(i).name: dtype.field(i).type for i in range(dtype.num_fields)}
        return {
            name: _each_instant(held, types[name], change) if name in types else held
            for name, held in value.items()
        }
    if pa.types.is_map(dtype) and isinstance(value, (dict, list, tuple)):
        pairs = value.items() if isinstance(value, dict) else value
        key, item = dtype.key_type, dtype.item_type
        return [
            (_each_instant(k, key, change), _each_instant(held, item, change)) for k, held in pairs
        ]
    if isinstance(value, (list, tuple)):
        return [_each_instant(held, dtype.value_type, change) for held in value]
    return value
