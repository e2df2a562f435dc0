"""Collections in buffers of Spark's are read from their binary rows."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

import godwit as gw
from godwit.adopt.spark_collections import can_unpack, counts_in, lists_in

_INTS = bytes.fromhex(  # the list of the integers 1, 2, 4 and 5, as Spark writes it
    "0000000000000000 2000000010000000 0400000000000000 0000000000000000"
    "01000000 02000000 04000000 05000000"
)
_COUNTS = bytes.fromhex(  # twice 0, once 1, as Spark writes it
    "00000018 0000000000000000 0000000000000000 0200000000000000"
    "00000018 0000000000000000 0100000000000000 0100000000000000 ffffffff"
)


def _texts(*texts: str) -> bytes:
    """Return a list of texts as Spark writes it: each after the words of all."""
    encoded = [text.encode() for text in texts]
    head = struct.pack("<qq", len(texts), 0)
    words, data, place = b"", b"", len(head) + 8 * len(texts)
    for text in encoded:
        words += struct.pack("<ii", len(text), place + len(data))
        data += text + bytes(-len(text) % 8)
    array = head + words + data
    return struct.pack("<qii", 0, len(array), 16) + array


def test_lists_are_read_with_the_number_of_their_buffer() -> None:
    groups, values = lists_in(pa.array([_INTS, _INTS]), pa.int32())
    assert groups.tolist() == [0] * 4 + [1] * 4
    assert values == pa.array([1, 2, 4, 5] * 2, pa.int32())
    buffers = pa.array([_texts("a", "", "größer als acht"), _texts(), _texts("b")])
    groups, values = lists_in(buffers, pa.string())
    assert groups.tolist() == [0, 0, 0, 2]
    assert values.to_pylist() == ["a", "", "größer als acht", "b"]


def test_counts_are_read_with_the_number_of_their_buffer() -> None:
    groups, values, counts = counts_in(pa.array([_COUNTS, b"\xff" * 4]), pa.int32())
    assert (groups.tolist(), values.to_pylist(), counts.tolist()) == ([0, 0], [0, 1], [2, 1])
    row = struct.pack("<qiiq", 0, 3, 24, 7) + b"abc" + bytes(5)
    buffer = struct.pack(">i", len(row)) + row + b"\xff" * 4
    groups, values, counts = counts_in(pa.array([buffer]), pa.string())
    assert (groups.tolist(), values.to_pylist(), counts.tolist()) == ([0], ["abc"], [7])


def test_values_that_are_not_read_are_known_before() -> None:
    assert can_unpack(pa.timestamp("us", "UTC"))
    assert can_unpack(pa.bool_())
    assert not can_unpack(pa.decimal128(10, 2))
    assert not can_unpack(pa.list_(pa.int64()))
    with_null = bytearray(_INTS)
    with_null[24] = 1
    with pytest.raises(gw.errors.CheckpointError, match="has a null"):
        lists_in(pa.array([bytes(with_null)]), pa.int32())
