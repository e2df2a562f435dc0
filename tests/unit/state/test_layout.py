"""Facts about where things lie in a table's file and about what is taken for a table."""

from __future__ import annotations

import mmap

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.state.key_tables import COUNTS

from godwit.state.image import TableImage
from godwit.state.layout import (
    PEEK_BYTES,
    Capacity,
    capacity_in,
    file_bytes,
    peek_version,
    sections_of,
    starts_of,
)
from godwit.state.schema import StateSchema

CAPACITY = Capacity(rows=33, columns=((0, 512), (0, 0), (0, 0)))


def empty_table() -> mmap.mmap:
    memory = mmap.mmap(-1, file_bytes(COUNTS, CAPACITY))
    TableImage(COUNTS, memory, CAPACITY, create=True).version = 7
    return memory


def test_sections_are_apart_and_aligned() -> None:
    sections = sections_of(COUNTS, CAPACITY)
    starts = starts_of(sections)
    assert all(start % 64 == 0 for start in starts)
    for (dtype, shape), start, end in zip(sections, starts, starts[1:], strict=False):
        assert start + dtype.itemsize * int(np.prod(shape)) <= end


def test_the_capacity_is_in_the_header() -> None:
    assert capacity_in(empty_table(), COUNTS) == CAPACITY


def test_the_version_is_at_the_start_of_the_file() -> None:
    memory = empty_table()
    assert peek_version(memory[:PEEK_BYTES], len(memory)) == 7


def test_no_word_of_a_fresh_header_but_the_version_can_be_another() -> None:
    words = 10 + 6 * 3 - 1
    for word in range(words):
        memory = empty_table()
        head = memoryview(memory)[: 8 * words].cast("q")
        if word in (4, 5):  # dirty, version
            continue
        head[word] -= 1 << 40
        assert capacity_in(memory, COUNTS) is None or word in {11, 17, 23}, word
        del head


@pytest.mark.parametrize("size", [0, 8, 79, 80, 1000])
def test_the_start_of_a_table_is_no_table(size: int) -> None:
    whole = empty_table()
    part = mmap.mmap(-1, max(size, 1))
    part[:size] = whole[:size]
    assert capacity_in(part, COUNTS) is None
    assert peek_version(part[:PEEK_BYTES], size) is None


@pytest.mark.parametrize(
    "other",
    [
        StateSchema(pa.schema([("k", pa.string())]), COUNTS.values),
        StateSchema(pa.schema([("key", pa.binary())]), COUNTS.values),
        StateSchema(COUNTS.keys, pa.schema([("total", pa.float64()), ("count", pa.int64())])),
        StateSchema(COUNTS.keys, COUNTS.values.append(pa.field("x", pa.int64()))),
        StateSchema(pa.schema([*COUNTS.keys, COUNTS.values[0]]), pa.schema([COUNTS.values[1]])),
    ],
    ids=["name", "type", "order", "number", "role"],
)
def test_a_table_of_another_schema_is_no_table(other: StateSchema) -> None:
    assert capacity_in(empty_table(), other) is None


def test_a_dirty_table_has_no_version() -> None:
    memory = empty_table()
    TableImage(COUNTS, memory, CAPACITY).dirty = True
    assert peek_version(memory[:PEEK_BYTES], len(memory)) is None
