"""Facts about where things lie in a table's file and about what is taken for a table."""

from __future__ import annotations

import mmap

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.state.key_tables import COUNTS

from godwit.state.image import TableImage
from godwit.state.layout import (
    DIRTY,
    PEEK_BYTES,
    VERSION,
    WORDS,
    WORDS_PER_COLUMN,
    Capacity,
    arrange,
    capacity_in,
    file_bytes,
    peek_version,
)
from godwit.state.schema import StateSchema

CAPACITY = Capacity(rows=33, columns=((0, 512), (0, 0), (0, 0)))


def empty_table() -> mmap.mmap:
    memory = mmap.mmap(-1, file_bytes(COUNTS, CAPACITY))
    TableImage(COUNTS, memory, CAPACITY, create=True).version = 7
    return memory


def test_sections_are_apart_and_aligned() -> None:
    sections, starts = arrange(COUNTS, CAPACITY)
    assert all(start % 64 == 0 for start in starts)
    for (dtype, shape), start, end in zip(sections, starts, starts[1:], strict=False):
        assert start + dtype.itemsize * int(np.prod(shape)) <= end


def test_the_capacity_is_in_the_header() -> None:
    assert capacity_in(empty_table(), COUNTS) == CAPACITY


def test_the_version_is_at_the_start_of_the_file() -> None:
    memory = empty_table()
    assert peek_version(memory[:PEEK_BYTES], len(memory)) == 7


CHANGES = {DIRTY, VERSION}
NULLS_SEEN = {WORDS + WORDS_PER_COLUMN * i + 2 for i in range(3)}
FIXED = set(range(WORDS + WORDS_PER_COLUMN * 3)) - CHANGES - NULLS_SEEN


@pytest.mark.parametrize("word", sorted(FIXED))
def test_a_header_with_a_word_out_of_range_is_no_tables(word: int) -> None:
    memory = empty_table()
    memoryview(memory)[8 * word : 8 * word + 8].cast("q")[0] -= 1 << 40
    assert capacity_in(memory, COUNTS) is None


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
