"""Deletion vectors: the numbers of the rows of a data file that are deleted.

A vector is a Roaring bitmap of 64 bits, within the log in the encoding Z85, or in a file that
several vectors share.
"""

from __future__ import annotations

import functools
import struct
import uuid
import zlib
from typing import TYPE_CHECKING, Final

import numpy as np
from pyroaring import BitMap64

if TYPE_CHECKING:
    import numpy.typing as npt

    from godwit.connect.delta.log import DeletionVector
    from godwit.connect.delta.place import TablePlace

_MAGIC: Final = 1681511377  # of the portable form
_ALPHABET: Final = (
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_DIGITS: Final = {character: digit for digit, character in enumerate(_ALPHABET)}
_UUID_CHARACTERS: Final = 20


def z85_decoded(text: str) -> bytes:
    """Decode Z85 text: five characters give four bytes.

    Examples
    --------
    >>> z85_decoded("HelloWorld").hex()
    '864fd26fb559f75b'
    """
    data = text.encode()
    words = []
    for start in range(0, len(data), 5):
        number = 0
        for character in data[start : start + 5]:
            number = number * 85 + _DIGITS[character]
        words.append(struct.pack(">I", number))
    return b"".join(words)


def vector_path(vector: DeletionVector) -> str:
    """Return the path of a vector's file: relative to the table, or absolute."""
    if vector.storage == "p":
        return vector.place
    prefix, text = vector.place[:-_UUID_CHARACTERS], vector.place[-_UUID_CHARACTERS:]
    name = f"deletion_vector_{uuid.UUID(bytes=z85_decoded(text))}.bin"
    return f"{prefix}/{name}" if prefix else name


@functools.lru_cache(maxsize=64)
def _rows_in(data: bytes) -> npt.NDArray[np.int64]:
    """Return the row numbers of a bitmap, ascending."""
    (magic,) = struct.unpack_from("<i", data)
    if magic != _MAGIC:
        msg = f"its deletion vector has an unknown format ({magic})"
        raise ValueError(msg)
    return np.asarray(BitMap64.deserialize(data[4:]).to_array(), np.int64)


def deleted_rows(table: TablePlace, vector: DeletionVector | None) -> npt.NDArray[np.int64]:
    """Return the numbers of the deleted rows, ascending; raise ValueError for a damaged vector."""
    if vector is None:
        return np.zeros(0, np.int64)
    if vector.storage == "i":
        rows = _rows_in(z85_decoded(vector.place)[: vector.size])
    elif vector.storage in {"u", "p"}:
        with table.open_file(vector_path(vector)) as stream:
            stream.seek(vector.offset or 0)
            (size,) = struct.unpack(">i", stream.read(4))
            data = stream.read(size)
            (checksum,) = struct.unpack(">I", stream.read(4))
        if size != vector.size or zlib.crc32(data) != checksum:
            msg = f"its deletion vector {vector_path(vector)!r} is damaged"
            raise ValueError(msg)
        rows = _rows_in(data)
    else:
        msg = f"its deletion vector has an unknown storage type ({vector.storage!r})"
        raise ValueError(msg)
    if len(rows) != vector.cardinality:
        msg = f"its deletion vector has {len(rows)} rows, but the log says {vector.cardinality}"
        raise ValueError(msg)
    return rows
