"""Patches of pyiceberg, applied when this module is imported.

- Null lists and maps of structs stay null; the library makes them empty ones.
- Partition values of type double are read whole. The library's compiled decoder rounds them to 32
  bits: filters pass over their rows, and manifests that are rewritten keep the rounded values.
- A text may have U+D7FF where the upper bound of its column is cut; the next character is not the
  first surrogate, which no file can hold.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyiceberg.io.pyarrow
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.io.pyarrow import ArrowProjectionVisitor
from pyiceberg.utils.truncate import truncate_upper_bound_text_string

if TYPE_CHECKING:
    from pyiceberg.avro.decoder import BinaryDecoder
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
    """Return a converted array with the nulls that it had before."""
    if before is None or after is None or before.null_count == after.null_count:
        return after
    rows = pa.array(range(len(before)))
    return after.take(pc.if_else(before.is_valid(), rows, None))


def _read_double(self: DoubleReader, decoder: BinaryDecoder) -> float:  # noqa: ARG001
    """Return the next double of an Avro file."""
    (value,) = struct.unpack("<d", decoder.read(8))
    return float(value)


def _upper_bound(value: str, trunc_length: int | None) -> str | None:
    """Return a text of at most `trunc_length` characters that is not before `value`."""
    bound = truncate_upper_bound_text_string(value, trunc_length)
    return None if bound is None else bound.replace("\ud800", "\ue000")


pyiceberg.io.pyarrow.ArrowProjectionVisitor = _NullsKept  # type: ignore[misc]
pyiceberg.io.pyarrow.truncate_upper_bound_text_string = _upper_bound  # type: ignore[attr-defined]
DoubleReader.read = _read_double  # type: ignore[method-assign]
