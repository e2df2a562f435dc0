"""Facts about one table in memory: searching, writing, removing."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from tests.support.key_tables import BLOBS, COUNTS, batch, hashes_of

from godwit.model.errors import StateEncodingError
from godwit.store import image as images
from godwit.store import table as tables
from godwit.store.columns import StateSchema
from godwit.store.image import TableImage, Upserts, blank_image, create_file, open_file
from godwit.store.index import slots_for
from godwit.store.key_hash import keyed_hashes
from godwit.store.table import capacity_for, room_for, room_in_place

if TYPE_CHECKING:
    from pathlib import Path


def image_for(path: Path, schema: StateSchema, upserts: Upserts) -> TableImage:
    room = room_for(blank_image(schema, 4), upserts, upserts)
    image = create_file(path / "0.table", schema, 4, capacity_for(room), room)
    image.grow(room, slots_for(room[0]))
    return image


def upserts_of(state: dict[str, tuple[int, float]], key_group: int = 1) -> Upserts:
    counts, totals = zip(*state.values(), strict=True)
    blank = blank_image(COUNTS, 4)
    return Upserts(
        hashes=hashes_of(state),
        key_groups=np.full(len(state), key_group, np.uint16),
        keys=blank.encode_keys(batch(COUNTS.keys, list(state))),
        values=blank.encode_values(batch(COUNTS.values, counts, totals)),
    )


def filled(path: Path, *parts: Upserts) -> TableImage:
    image = image_for(path, COUNTS, parts[0])
    for upserts in parts:
        rows, hashes, at = image.search(upserts.keys, len(upserts.hashes))
        image.write(upserts, upserts.where(rows < 0), rows, hashes, at)
    return image


def test_a_filled_table_finds_every_key(tmp_path: Path) -> None:
    upserts = upserts_of({f"k{i}": (i, i / 2) for i in range(1000)})
    image = filled(tmp_path, upserts)
    assert image.search(upserts.keys, 1000)[0].tolist() == list(range(1000))
    assert (image.live, image.used, image.num_keys.tolist()) == (1000, 1000, [0, 1000, 0, 0])


def test_an_enlarged_index_finds_what_the_smaller_one_did(tmp_path: Path) -> None:
    upserts = upserts_of({f"k{i}": (i, i / 2) for i in range(1000)})
    image = image_for(tmp_path, COUNTS, upserts)
    rows, hashes, _ = image.search(upserts.keys, 1000)
    image.grow(image.room, 4 * image.slots)
    image.write(upserts, upserts, rows, hashes, None)  # searched in the smaller one
    assert image.search(upserts.keys, 1000)[0].tolist() == list(range(1000))
    image.grow(image.room, 2 * image.slots)
    assert image.search(upserts.keys, 1000)[0].tolist() == list(range(1000))


def test_a_large_index_is_enlarged_in_steps_that_follow_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_GROWS_IN_STEPS", 512)
    monkeypatch.setattr(images, "_STEP_SLOTS", 4)
    every = upserts_of({f"k{i}": (i, i / 2) for i in range(1000)})
    room = room_for(blank_image(COUNTS, 4), every, every)
    image = create_file(tmp_path / "0.table", COUNTS, 4, capacity_for(room), room)
    sizes = []
    for first in range(0, 1000, 10):
        part = every.take(np.arange(first, first + 10))
        image.grow_index(first + 10)
        rows, hashes, at = image.search(part.keys, 10)
        image.write(part, part, rows, hashes, at)
        known = every.take(np.arange(first + 10)).keys
        assert image.search(known, first + 10)[0].tolist() == list(range(first + 10))
        sizes.append((image.slots, image.extent[2] - image.slots))
    assert [slots for slots, _ in sizes][11:13] == [512, 1024]
    assert sizes[24] == (1024, 4 * 250 - 512)
    assert sizes[-1] == (4096, 4 * 1000 - 2048)
    moved = [slots + 2 * part for slots, part in sizes]  # of a larger index, after all before
    assert max(b - a for a, b in pairwise(moved[12:])) <= 2 * 4 * 10 + 8
    mapped = open_file(tmp_path / "0.table", COUNTS, 4)
    assert mapped is not None
    assert mapped.search(every.keys, 1000)[0].tolist() == list(range(1000))


def test_rows_of_one_key_group_are_found_as_those_of_several_are(tmp_path: Path) -> None:
    parts = [upserts_of({f"{g}-{i}": (i, 0.0) for i in range(600)}, g) for g in (1, 2, 1)]
    parts[2] = upserts_of({f"again-{i}": (i, 0.0) for i in range(5)}, 1)
    image = filled(tmp_path, *parts)
    image.remove(np.array([3, 700, 1202]))
    one = [*range(3), *range(4, 600), 1200, 1201, 1203, 1204]
    assert image.rows_of(np.array([False, True, False, False])).tolist() == one
    both = sorted({*range(1205)} - {3, 700, 1202})
    assert image.rows_of(np.array([False, True, True, False])).tolist() == both
    assert image.rows_of(np.zeros(4, np.bool_)).tolist() == []


def test_a_dead_row_comes_back_with_its_key(tmp_path: Path) -> None:
    upserts = upserts_of({"a": (1, 1.0), "b": (2, 2.0)})
    image = filled(tmp_path, upserts)
    whole, one = np.ones(4, np.bool_), np.array([1])
    size = image.state_bytes(one)
    image.remove(np.array([0]))
    assert image.rows_of(whole).tolist() == [1]
    again = upserts.take(np.array([0]))
    rows, hashes, at = image.search(again.keys, 1)
    assert rows.tolist() == [0]
    assert image.live_only(rows).tolist() == [-1]
    image.write(again, None, rows, hashes, at)
    assert image.rows_of(whole).tolist() == [0, 1]
    assert image.state_bytes(one) == size


def test_keys_and_bytes_are_counted_per_key_group(tmp_path: Path) -> None:
    image = filled(
        tmp_path, upserts_of({"a": (1, 1.0), "bcd": (2, 2.0)}), upserts_of({"e": (1, 1.0)}, 3)
    )
    assert image.state_bytes(np.arange(4)).tolist() == [0, (1 + 16) + (3 + 16), 0, 1 + 16]
    image.remove(np.array([1]))
    assert image.num_keys.tolist() == [0, 1, 0, 1]
    assert image.state_bytes(np.arange(4)).tolist() == [0, 1 + 16, 0, 1 + 16]


def test_rows_are_told_apart_by_key_group(tmp_path: Path) -> None:
    image = filled(tmp_path, upserts_of({"a": (1, 1.0)}), upserts_of({"b": (2, 2.0)}, 2))
    assert image.rows_of(np.array([False, False, True, False])).tolist() == [1]


def test_a_table_has_room_for_half_as_many_keys_again_and_grows_beyond(tmp_path: Path) -> None:
    upserts = upserts_of({f"k{i}": (i, 0.0) for i in range(1000)})
    image = filled(tmp_path, upserts)
    more = upserts_of({f"l{i}": (i, 0.0) for i in range(500)})
    assert room_in_place(image, more, more) == image.room
    more = upserts_of({f"l{i}": (i, 0.0) for i in range(501)})
    grown = room_in_place(image, more, more)
    assert grown is not None
    assert grown[0] > 2000
    assert room_in_place(image, upserts, None) == image.room


def test_a_table_whose_rows_are_mostly_dead_is_made_anew(tmp_path: Path) -> None:
    image = filled(tmp_path, upserts_of({f"k{i}": (i, 0.0) for i in range(1000)}))
    image.remove(np.arange(900))
    more = upserts_of({f"l{i}": (i, 0.0) for i in range(501)})
    assert room_in_place(image, more, more) is None


@pytest.mark.parametrize(
    ("limit", "what"),
    [(("MAX_ROWS", 1), "2 keys"), (("_MAX_HEAP_BYTES", 3), "4 bytes in one column")],
    ids=["keys", "bytes"],
)
def test_what_no_table_can_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int], what: str
) -> None:
    monkeypatch.setattr(tables, *limit)
    blank = blank_image(BLOBS, 4)
    upserts = Upserts(
        hashes=np.array([1, 2]),
        key_groups=np.zeros(2, np.uint16),
        keys=blank.encode_keys(batch(BLOBS.keys, [1, 2])),
        values=blank.encode_values(batch(BLOBS.values, [b"ab", b"cd"])),
    )
    with pytest.raises(StateEncodingError, match=f"would hold {what}.*more lanes"):
        room_for(blank, upserts, upserts)


def test_a_table_without_key_columns_has_one_key(tmp_path: Path) -> None:
    schema = StateSchema(pa.schema([]), pa.schema([("n", pa.int64())]))
    blank = blank_image(schema, 4)
    one = Upserts(
        hashes=np.array([42]),
        key_groups=np.array([2], np.uint16),
        keys=(),
        values=blank.encode_values(batch(schema.values, [5])),
    )
    image = image_for(tmp_path, schema, one)
    rows, hashes, at = image.search((), 1)
    image.write(one, one, rows, hashes, at)
    assert image.search((), 1)[0].tolist() == [0]


def test_an_index_that_leads_in_circles_is_an_error(tmp_path: Path) -> None:
    image = filled(tmp_path, upserts_of({"a": (1, 1.0)}))
    other = upserts_of({"b": (1, 1.0)})
    tag = keyed_hashes(other.keys, 1, image._secret) & np.uint64(0xFFFF_FFFF_0000_0000)
    slots = image.index_slots(image.slots)
    slots[:] = tag | np.uint64(1)  # every slot leads to the row of "a"
    with pytest.raises(IndexError, match="same rows repeatedly"):
        image.search(other.keys, 1)


def test_the_size_of_a_file_for_many_keys_is_bounded_although_the_first_values_are_large() -> None:
    room = (256, 0, 0, 1000, 1 << 30)
    rows, *_, heap = capacity_for(room, 10_000_000)
    assert rows > 10_000_000
    assert heap == capacity_for((*room[:-1], 1 << 20), 10_000_000)[-1] == 1 << 36
    assert capacity_for((*room[:-1], 1 << 34), 10_000_000)[-1] == 1 << 38
