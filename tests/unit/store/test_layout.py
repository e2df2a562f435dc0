"""Facts about where things are in a table's file and about what is taken for a table."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.key_tables import COUNTS

from godwit.store.columns import StateSchema
from godwit.store.image import create_file
from godwit.store.layout import (
    LIVE_ROWS,
    SECRET,
    USED,
    WORDS,
    WORDS_PER_COLUMN,
    capacity_in,
    layout_of,
)

if TYPE_CHECKING:
    from pathlib import Path

CAPACITY = (33, 0, 512, 0, 0, 0, 0)
ROOM = (20, 0, 100, 0, 0, 0, 0)
LAYOUT = layout_of(COUNTS, 4, CAPACITY)


@pytest.fixture
def memory(tmp_path: Path) -> mmap.mmap:
    create_file(tmp_path / "0.table", COUNTS, 4, CAPACITY, ROOM)
    content = (tmp_path / "0.table").read_bytes()
    memory = mmap.mmap(-1, len(content))
    memory[:] = content
    return memory


def test_what_has_blocks_is_apart_and_ends_before_the_last_page() -> None:
    extents = [*LAYOUT.fixed_extents(), *LAYOUT.extents(None, CAPACITY)]
    extents.append(LAYOUT.index_extent(LAYOUT.slots))
    pages = [start for start, _ in extents if start % 4096 == 0]
    assert len(pages) == len(set(pages))
    assert max(start + length for start, length in extents) <= LAYOUT.file_bytes - 4096


def test_growth_asks_for_what_is_new() -> None:
    new = sum(length for _, length in LAYOUT.extents(ROOM, CAPACITY))
    both = sum(length for _, length in LAYOUT.extents(None, CAPACITY))
    assert new + sum(length for _, length in LAYOUT.extents(None, ROOM)) == both
    assert list(LAYOUT.extents(ROOM, ROOM)) == []


def test_no_index_covers_a_smaller_one() -> None:
    small, large = LAYOUT.index_extent(32), LAYOUT.index_extent(64)
    assert small[0] + small[1] <= large[0]


def test_the_capacity_is_in_the_header(memory: mmap.mmap) -> None:
    assert capacity_in(memory, COUNTS, 4) == CAPACITY


HARMLESS = {SECRET, SECRET + 1}
NULLS_SEEN = {WORDS + WORDS_PER_COLUMN * i + 4 for i in range(3)}
FIXED = set(range(WORDS + WORDS_PER_COLUMN * 3)) - HARMLESS - NULLS_SEEN


@pytest.mark.parametrize("word", sorted(FIXED))
def test_a_header_with_a_word_out_of_range_is_no_tables(memory: mmap.mmap, word: int) -> None:
    memoryview(memory)[8 * word : 8 * word + 8].cast("q")[0] -= 1 << 40
    assert capacity_in(memory, COUNTS, 4) is None


def test_more_rows_than_there_is_room_for_are_no_table(memory: mmap.mmap) -> None:
    head = memoryview(memory)[: 8 * WORDS].cast("q")
    head[USED] = head[LIVE_ROWS] = 21
    assert capacity_in(memory, COUNTS, 4) is None


def test_a_table_of_another_number_of_key_groups_is_no_table(memory: mmap.mmap) -> None:
    assert capacity_in(memory, COUNTS, 5) is None


@pytest.mark.parametrize("size", [0, 8, 79, 80, 1000])
def test_the_start_of_a_table_is_no_table(memory: mmap.mmap, size: int) -> None:
    part = mmap.mmap(-1, max(size, 1))
    part[:size] = memory[:size]
    assert capacity_in(part, COUNTS, 4) is None


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
def test_a_table_of_another_schema_is_no_table(memory: mmap.mmap, other: StateSchema) -> None:
    assert capacity_in(memory, other, 4) is None
