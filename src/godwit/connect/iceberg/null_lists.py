"""Null lists and maps of structs, which pyiceberg reads and writes as null once this is imported.

The library's own conversion makes them empty ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyiceberg.io.pyarrow
from pyiceberg.io.pyarrow import ArrowProjectionVisitor

if TYPE_CHECKING:
    from pyiceberg.types import ListType, MapType


class _NullsKept(ArrowProjectionVisitor):
    """Conversion between columns of files and of tables that keeps null lists and maps null.

    The library's own makes null lists and maps of structs empty ones, as it reads and as it writes.
    """

    def list(
        self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None
    ) -> pa.Array | None:
        """Return a converted column of lists."""
        return _with_nulls_of(list_array, super().list(list_type, list_array, value_array))

    def map(
        self,
        map_type: MapType,
        map_array: pa.Array | None,
        key_result: pa.Array | None,
        value_result: pa.Array | None,
    ) -> pa.Array | None:
        """Return a converted column of maps."""
        return _with_nulls_of(map_array, super().map(map_type, map_array, key_result, value_result))


def _with_nulls_of(before: pa.Array | None, after: pa.Array | None) -> pa.Array | None:
    """Return a converted array with null where it was null before."""
    if before is None or after is None or before.null_count == after.null_count:
        return after
    rows = pa.array(range(len(before)))
    return after.take(pc.if_else(before.is_valid(), rows, None))


pyiceberg.io.pyarrow.ArrowProjectionVisitor = _NullsKept  # type: ignore[misc]
