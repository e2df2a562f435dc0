"""Machine code gives what NumPy gives: on drawn hashes, keys and tables, and on damaged ones."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from godwit.store.columns import HEAP, Encoded, StateSchema, VariableColumn
from godwit.store.compiled import LOADER
from godwit.store.image import TableImage, Upserts, blank_image
from godwit.store.index import HashIndex, slots_for
from godwit.store.key_hash import keyed_hashes
from godwit.store.layout import layout_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FEW = st.sampled_from([0, 1, 7, 2**32 - 1, 2**32, 2**32 + 7, 2**63, 2**64 - 2**32, 2**64 - 1])
"""Hashes with equal tags, tag 0, equal homes, and the last slot as their home."""
HASHES = st.lists(FEW | st.integers(0, 2**64 - 1), max_size=40).map(
    lambda numbers: np.array(numbers, np.uint64)
)
TEXTS = st.none() | st.sampled_from(["", "a", "seven b", "eight by", "nine byte", "é" * 20])
BINARY = {pa.string(), pa.large_string()}


@contextmanager
def mode(name: str) -> Iterator[None]:
    """Context with machine code, or without."""
    before, LOADER.mode = LOADER.mode, name
    try:
        yield
    finally:
        LOADER.mode = before


def by_both(work: Callable[[], Any]) -> Any:
    """Return what `work` returns by machine code; raise if NumPy gives something else."""
    outcomes = []
    for name in ("now", "off"):
        with mode(name):
            try:
                outcomes.append(work())
            except IndexError:
                outcomes.append(IndexError)
            assert LOADER.mode == name, "Numba is there"
    np.testing.assert_equal(*outcomes)
    return outcomes[0]


@given(stored=HASHES, sought=HASHES, spare=st.integers(0, 1))
def test_an_index_is_searched_alike(stored: Any, sought: Any, spare: int) -> None:
    slots = np.zeros(slots_for(len(stored)) << spare, np.uint64)
    index = HashIndex(slots)
    with mode("off"):
        index.insert(stored, np.arange(len(stored)))
    every = np.concatenate([stored, sought])
    rows, ends = by_both(lambda: index.first(every))
    for _ in range(len(stored) + 1):
        some = np.flatnonzero(rows >= 0)
        every, ends = every[some], ends[some]
        rows, ends = by_both(partial(index.following, every, ends))
    assert not len(rows)


@given(parts=st.tuples(HASHES, HASHES), by_ends=st.booleans())
def test_what_either_inserts_either_finds(parts: Any, by_ends: bool) -> None:
    number = sum(map(len, parts))

    def candidates() -> list[Any]:
        """Insert in two parts, copy to a larger index, and return all rows of each hash."""
        index, first = HashIndex(np.zeros(slots_for(number), np.uint64)), 0
        for part in parts:
            some = np.unique(part) if by_ends else part  # where a search for each of them ended
            ends = index.first(some)[1] if by_ends and not first else None
            index.insert(some, np.arange(first, first + len(some)), ends)
            first += len(some)
        larger = HashIndex(np.zeros(2 * slots_for(number), np.uint64))
        larger.copy_from(index._slots)
        result = []
        for searched in (index, larger):
            for hash_ in np.concatenate(parts):
                own = np.array([hash_], np.uint64)
                rows, ends = searched.first(own)
                of_hash = []
                while rows[0] >= 0:
                    of_hash.append(rows[0])
                    rows, ends = searched.following(own, ends)
                result.append(sorted(of_hash))
        return result

    by_both(candidates)


@pytest.mark.parametrize("name", ["now", "off"])
def test_a_search_in_an_index_without_a_free_slot_ends(name: str) -> None:
    index, hashes = HashIndex(np.full(16, 7 << 32 | 1, np.uint64)), np.array([9 << 32], np.uint64)
    searches: list[Callable[[], Any]] = [
        lambda: index.first(hashes),
        lambda: index.following(hashes, np.zeros(1, np.int64)),
    ]
    with mode(name):
        for search in searches:
            with pytest.raises(IndexError, match="All 16 slots are used"):
                search()


def test_machine_code_does_not_insert_into_an_index_without_a_free_slot() -> None:
    with mode("now"), pytest.raises(IndexError, match="All 4 slots are used"):
        HashIndex(np.ones(4, np.uint64)).insert(np.array([5], np.uint64), np.array([3]))


KEY_TYPES = [
    pa.int8(),
    pa.int64(),
    pa.float64(),
    pa.bool_(),
    pa.decimal128(30, 2),
    pa.binary(3),
    pa.binary(16),
    pa.binary(20),
    pa.string(),
    pa.large_string(),
]


@st.composite
def columns(draw: Any) -> pa.Array:
    """Draw a key column, perhaps a slice of a longer one; short, or with values of one length."""
    dtype = draw(st.sampled_from(KEY_TYPES))
    if dtype in BINARY:
        of_one_length = st.sampled_from([1, 7, 8, 9, 17, 24]).flatmap(
            lambda n: st.lists(st.text("ab", min_size=n, max_size=n), min_size=1)
        )
        values = draw(st.lists(TEXTS, min_size=1) | of_one_length)
    elif pa.types.is_fixed_size_binary(dtype) or pa.types.is_decimal128(dtype):
        width = 4 if pa.types.is_decimal128(dtype) else dtype.byte_width
        raw = draw(st.lists(st.none() | st.binary(min_size=width, max_size=width), min_size=1))
        if pa.types.is_decimal128(dtype):
            numbers = [None if v is None else int.from_bytes(v, "big") for v in raw]
            return pa.array(numbers, pa.int64()).cast(pa.decimal128(19, 0)).cast(dtype)
        values = raw
    else:
        values = draw(st.lists(st.none() | st.integers(0, 100), min_size=1))
        values = (
            [None if v is None else v % 2 == 0 for v in values] if dtype == pa.bool_() else values
        )
    repeats = draw(st.sampled_from([1, 1, 1, 1100]))  # with many rows, lengths are compared first
    array = pa.array(values * repeats, dtype)
    return array[draw(st.integers(0, len(array) - 1)) :]


def image_of(schema: StateSchema, rows: int) -> TableImage:
    """Return an empty table in memory with places for these rows."""
    capacity = (rows + 1, *(0, 64 * rows + 64) * len(schema.keys))
    memory = bytearray(layout_of(schema, 4, capacity).file_bytes)
    image = TableImage(schema, 4, memory, capacity, secret=(3, 5))
    image.enlarge_index(slots_for(rows))
    image.room = (rows, *capacity[1:])
    return image


@given(column=columns(), secret=st.tuples(*[st.integers(0, 2**63 - 1)] * 2))
def test_keys_have_the_same_hashes(column: pa.Array, secret: tuple[int, int]) -> None:
    schema = StateSchema(pa.schema([("key", column.type)]), pa.schema([]))
    (encoded,) = blank_image(schema, 1).encode_keys(pa.record_batch([column], schema=schema.keys))
    by_both(lambda: keyed_hashes((encoded, encoded), len(column), secret))


@given(stored=columns(), more=st.data())
def test_keys_are_found_alike(stored: pa.Array, more: st.DataObject) -> None:
    schema = StateSchema(pa.schema([("key", stored.type)]), pa.schema([]))
    distinct = stored.unique()
    image, count = image_of(schema, len(distinct)), len(distinct)
    keys = image.encode_keys(pa.record_batch([distinct], schema=schema.keys))
    with mode(more.draw(st.sampled_from(["now", "off"]))):
        image.append(
            Upserts(
                hashes=np.arange(count),
                key_groups=np.zeros(count, np.uint16),
                keys=keys,
                values=(),
            )
        )
    other = more.draw(columns().filter(lambda column: column.type == stored.type), "sought")
    sought = pa.concat_arrays([stored, other])
    encoded = image.encode_keys(pa.record_batch([sought], schema=schema.keys))
    rows, *_ = by_both(lambda: image.search(encoded, len(sought)))
    numbers = {value: number for number, value in enumerate(distinct.to_pylist())}
    assert rows.tolist() == [numbers.get(value, -1) for value in sought.to_pylist()]


def strings(*values: bytes) -> pa.Array:
    return pa.array(values, pa.large_binary())


def damaged_column(entries: int) -> tuple[VariableColumn, list[np.ndarray[Any, Any]], list[int]]:
    """Return a key column with some entries, its arrays, and its words in the header."""
    arrays: list[Any] = [np.zeros(8, np.uint64), np.zeros(64, np.uint8), np.zeros(7, np.uint8)]
    words = [0, 0, 0, 0]
    column = VariableColumn(pa.string(), arrays, words)
    column.append(0, Encoded(strings(*[b"abcdefghij"] * entries), None))
    return column, arrays, words


@pytest.mark.parametrize("offset", [11, 21, 64, 65, 2**63, 2**64 - 1])
def test_an_entry_that_leads_out_of_its_column_is_an_error(offset: int) -> None:
    column, (offsets, _, _), _ = damaged_column(2)
    offsets[1] = offset
    outcome = by_both(
        lambda: column.equal(np.array([0, 1, -1]), Encoded(strings(b"a", b"b", b"c"), None))
    )
    assert outcome is IndexError or offset == 11


@pytest.mark.parametrize("row", [7, 8, 2**32, 2**63 - 1])
def test_a_row_that_is_not_in_the_column_is_an_error(row: int) -> None:
    column, _, words = damaged_column(2)
    words[HEAP] = 64
    value = Encoded(strings(b"abcdefghij"), None)
    outcome = by_both(lambda: column.equal(np.array([row]), value))
    assert outcome is IndexError
