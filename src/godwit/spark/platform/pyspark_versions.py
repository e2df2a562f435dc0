"""Differences between the versions of PySpark that are supported, 4.1 to 4.3, in one place.

PySpark 4.1 says that instants are in UTC, where the JVM sends them in the zone of the session;
reads Arrow's times without a zone as instants unless told otherwise; and leaves it to the garbage
collector to close the sockets by which results arrive.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.util import _load_from_socket

if TYPE_CHECKING:
    from pyspark.serializers import Serializer
    from pyspark.sql.types import DataType, StructType

_KNOWS_ZONES: Final = "timezone" in inspect.signature(to_arrow_schema).parameters


def arrow_schema_of(schema: StructType, *, zone: str, large: bool = False) -> pa.Schema:
    """Return the Arrow schema of the batches that Spark makes of rows with these columns.

    `zone`: the session's time zone, for instants. `large`: text and bytes have 64-bit offsets.
    """
    if _KNOWS_ZONES:
        return to_arrow_schema(schema, timezone=zone, prefers_large_types=large)
    converted = to_arrow_schema(schema, prefers_large_types=large)
    return pa.schema([field.with_type(in_zone(field.type, zone)) for field in converted])


def spark_schema_of(schema: pa.Schema) -> StructType:
    """Return an Arrow schema as Spark's; times without a zone stay without one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def spark_type_of(dtype: pa.DataType) -> DataType:
    """Return an Arrow type as Spark's; times without a zone stay without one."""
    return from_arrow_type(dtype, prefer_timestamp_ntz=True)


def in_zone(dtype: pa.DataType, zone: str) -> pa.DataType:
    """Return an Arrow type whose timestamps with a time zone, also nested ones, are in `zone`."""

    def within(field: pa.Field) -> pa.Field:
        """Put the instants of a field into the zone."""
        return field.with_type(in_zone(field.type, zone))

    if pa.types.is_timestamp(dtype):
        return dtype if dtype.tz is None else pa.timestamp(dtype.unit, zone)
    if pa.types.is_struct(dtype):
        return pa.struct([within(field) for field in dtype])
    if pa.types.is_map(dtype):
        return pa.map_(within(dtype.key_field), within(dtype.item_field))
    make: Any = {pa.types.is_list: pa.list_, pa.types.is_large_list: pa.large_list}
    return next(
        (make_type(within(dtype.value_field)) for is_, make_type in make.items() if is_(dtype)),
        dtype,
    )


def all_from_socket(served: Any, serializer: Serializer) -> list[Any]:
    """Return all items that the JVM serves at a socket, which `served` (its answer) describes."""
    arrived: Any = _load_from_socket(served, serializer)
    if not hasattr(arrived, "__enter__"):
        return list(arrived)
    with arrived as items:
        return list(items)
