"""Facts about one table in memory: searching, writing, growing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from tests.unit.state.key_tables import BLOBS, COUNTS, batch, hashes_of

from godwit.model.errors import StateEncodingError
from godwit.state import image as image_module
from godwit.state.image import TableImage, Upserts
from godwit.state.layout import Capacity, file_bytes
from godwit.state.schema import StateSchema
from godwit.state.table_file import blank_image


def image_for(upserts: Upserts) -> TableImage:
    capacity = blank_image(COUNTS).capacity_with(upserts, upserts)
    return TableImage(COUNTS, bytearray(file_bytes(COUNTS, capacity)), capacity, create=True)


def upserts_of(
    state: dict[str, tuple[int, float]], hashes: npt.NDArray[np.int64] | None = None
) -> Upserts:
    counts, totals = zip(*state.values(), strict=True)
    blank = blank_image(COUNTS)
    return Upserts(
        hashes=hashes_of(state) if hashes is None else hashes,
        keys=blank.encode_keys(batch(COUNTS.keys, list(state))),
        values=blank.encode_values(batch(COUNTS.values, counts, totals)),
    )


def test_a_filled_table_finds_every_key() -> None:
    upserts = upserts_of({f"k{i}": (i, i / 2) for i in range(1000)})
    image = image_for(upserts)
    image.fill(upserts)
    assert image.search(upserts.hashes, upserts.keys)[0].tolist() == list(range(1000))
    assert image.num_keys == 1000


def test_keys_that_share_a_hash_are_told_apart() -> None:
    upserts = upserts_of({f"k{i}": (i, 0.0) for i in range(100)}, np.full(100, 42))
    image = image_for(upserts)
    image.fill(upserts)
    assert image.search(upserts.hashes, upserts.keys)[0].tolist() == list(range(100))
    absent = upserts_of({"x": (0, 0.0)}, np.array([42]))
    assert image.search(absent.hashes, absent.keys)[0].tolist() == [-1]


def test_a_dead_row_comes_back_with_its_key() -> None:
    upserts = upserts_of({"a": (1, 1.0), "b": (2, 2.0)})
    image = image_for(upserts)
    image.fill(upserts)
    size = image.state_bytes
    image.remove(np.array([0]))
    assert image.live_rows().tolist() == [1]
    again = upserts.take(np.array([0]))
    rows, at = image.search(again.hashes, again.keys)
    assert rows.tolist() == [0]
    assert image.live_only(rows).tolist() == [-1]
    image.write(again, rows, at, None)
    assert image.live_rows().tolist() == [0, 1]
    assert image.state_bytes == size


def test_state_bytes_are_those_of_live_keys_and_state() -> None:
    upserts = upserts_of({"a": (1, 1.0), "bcd": (2, 2.0)})
    image = image_for(upserts)
    image.fill(upserts)
    assert image.state_bytes == (1 + 16) + (3 + 16)
    image.remove(np.array([1]))
    assert image.state_bytes == 1 + 16


def test_a_full_table_says_so() -> None:
    upserts = upserts_of({f"k{i}": (i, 0.0) for i in range(32)})
    image = image_for(upserts.take(np.arange(1)))
    assert image.fits(upserts, upserts)
    image.fill(upserts)
    more = upserts_of({"new": (0, 0.0)})
    assert not image.fits(more, more)
    assert image.fits(upserts, None)


def test_capacity_leaves_room_for_half_as_many_keys_again() -> None:
    upserts = upserts_of({f"k{i}": (i, 0.0) for i in range(1000)})
    image = image_for(upserts)
    image.fill(upserts)
    more = upserts_of({f"l{i}": (i, 0.0) for i in range(500)})
    assert image.fits(more, more)


@pytest.mark.parametrize(
    ("patch", "what"),
    [(("MAX_ROWS", 1), "2 keys"), (("heap_limit", lambda _: 3), "4 bytes of binary")],
    ids=["keys", "bytes"],
)
def test_what_no_table_can_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch, patch: tuple[str, Any], what: str
) -> None:
    monkeypatch.setattr(image_module, *patch)
    blank = blank_image(BLOBS)
    upserts = Upserts(
        hashes=np.array([1, 2]),
        keys=blank.encode_keys(batch(BLOBS.keys, [1, 2])),
        values=blank.encode_values(batch(BLOBS.values, [b"ab", b"cd"])),
    )
    with pytest.raises(StateEncodingError, match=f"would hold {what}.*more key groups"):
        blank.capacity_with(upserts, upserts)


def test_growth_stops_at_what_offsets_can_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_module, "heap_limit", lambda _: 1000)
    blank = blank_image(BLOBS)
    upserts = Upserts(
        hashes=np.array([1]),
        keys=blank.encode_keys(batch(BLOBS.keys, [1])),
        values=blank.encode_values(batch(BLOBS.values, [b"x" * 900])),
    )
    assert blank.capacity_with(upserts, upserts).columns[1][1] == 1000


def test_a_table_without_key_columns_has_one_key() -> None:
    schema = StateSchema(pa.schema([]), pa.schema([("n", pa.int64())]))
    capacity = Capacity(rows=33, columns=((0, 0),))
    image = TableImage(schema, bytearray(file_bytes(schema, capacity)), capacity, create=True)
    one = Upserts(
        hashes=np.array([42]), keys=(), values=image.encode_values(batch(schema.values, [5]))
    )
    image.fill(one)
    assert image.search(one.hashes, ())[0].tolist() == [0]


def test_an_index_that_leads_in_circles_is_an_error() -> None:
    upserts = upserts_of({"a": (1, 1.0)})
    image = image_for(upserts)
    image.fill(upserts)
    slots = image._index._slots
    slots[:] = slots.max()  # every slot leads to the row of "a"
    other = upserts_of({"b": (1, 1.0)}, upserts.hashes)
    with pytest.raises(IndexError, match="again and again"):
        image.search(other.hashes, other.keys)
