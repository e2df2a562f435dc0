"""Text and bytes of one length: hashed, copied and compared as by the ordinary way."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from godwit.columns.groups import group_repeating_rows, group_rows
from godwit.columns.hashing import hash_keys
from godwit.store.columns import (
    Encoded,
    fixed_width,
    place_rows,
    take_rows,
    take_values,
    values_differ,
)
from godwit.store.key_hash import keyed_hashes

ROWS = 3000
TYPES = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]
WIDTHS = [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 23, 24, 31, 32, 36, 65]


def column_of(width: int, dtype: pa.DataType, *, distinct: int = 400) -> pa.Array:
    """Draw values of one length, behind others that are sliced off."""
    rng = np.random.default_rng(width)
    letters = rng.integers(97, 123, (distinct, width), np.uint8)
    values = [bytes(row) for row in letters[rng.integers(0, distinct, ROWS)]]
    return pa.array([b"other", *values, b""], pa.binary()).cast(dtype).slice(1, ROWS)


def with_another(column: pa.Array) -> pa.Array:
    """Append a value of another length, so that the ordinary way is taken."""
    longer = pa.array([b"x" * 300], pa.binary()).cast(column.type)
    return pa.concat_arrays([column, longer])


def test_only_values_of_one_length_and_no_nulls_are_an_array_of_fixed_width() -> None:
    column = column_of(12, pa.string())
    values = fixed_width(column)
    assert values is not None
    assert [bytes(value) for value in values.tolist()] == [v.encode() for v in column.to_pylist()]
    words = column.to_pylist()
    for others in (
        with_another(column),
        pa.array(["", *words]),
        pa.array([words[0][:11], words[1] + "x", *words]),  # as many bytes in all
        pa.array([None, *words]),
        pa.array([""] * ROWS),
        column.slice(0, 5),
        pa.array(range(ROWS)),
        pa.array([b"x" * 12] * ROWS, pa.binary(12)),
    ):
        assert fixed_width(others) is None


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_value_has_one_hash_whatever_lengths_are_beside_it(
    width: int, dtype: pa.DataType
) -> None:
    column = column_of(width, dtype)
    some = pa.array(np.arange(ROWS) % 7)
    for keys in ([column], [some, column], [column, some]):
        others = [
            with_another(key) if key is column else pa.array([*key.to_pylist(), 0]) for key in keys
        ]
        names = [str(n) for n in range(len(keys))]
        regular = hash_keys(pa.record_batch(keys, names))
        assert np.array_equal(regular, hash_keys(pa.record_batch(others, names))[:ROWS])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_finds_a_key_whatever_lengths_are_beside_it(width: int) -> None:
    secret, column = (1234567, 7654321), column_of(width, pa.large_binary())
    regular = keyed_hashes((Encoded(column, None),), ROWS, secret)
    one_by_one = np.concatenate(
        [
            keyed_hashes((Encoded(column.slice(at, 1), None),), 1, secret)
            for at in range(0, ROWS, 50)
        ]
    )
    assert np.array_equal(regular[::50], one_by_one)
    both = keyed_hashes((Encoded(with_another(column), None),), ROWS + 1, secret)
    assert np.array_equal(regular, both[:ROWS])


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rows_are_taken_and_compared_as_arrow_does(width: int, dtype: pa.DataType) -> None:
    column = column_of(width, dtype, distinct=20)
    rng = np.random.default_rng(1)
    batch = pa.record_batch(
        {
            "k": column,
            "v": pa.array(rng.random(ROWS)),
            "w": with_another(column)[1:],
            "n": pa.nulls(ROWS, dtype),
            "t": pa.array(rng.integers(0, 9, ROWS + 3), pa.timestamp("us", "UTC"))[3:],
            "g": pa.array(rng.integers(0, 9, ROWS), mask=rng.random(ROWS) < 0.5),
        }
    )
    places = rng.permutation(ROWS)
    placed = place_rows(batch, places)
    placed.validate(full=True)
    assert placed.equals(batch.take(pa.array(np.argsort(places))))
    for count in (2000, 10_000):  # few rows, and many
        rows, others = rng.integers(0, ROWS, count), rng.integers(0, ROWS, count)
        taken = take_rows(batch, rows)
        taken.validate(full=True)
        assert taken.equals(batch.take(pa.array(rows)))
    values = fixed_width(column)
    assert values is not None
    plain = column.to_pylist()
    expected = [plain[i] != plain[j] for i, j in zip(rows.tolist(), others.tolist(), strict=True)]
    assert values_differ(values, rows, others).tolist() == expected
    assert any(expected)
    assert not all(expected)


@pytest.mark.parametrize("width", [8, 12])
def test_rows_that_do_not_exist_are_neither_read_nor_written(width: int) -> None:
    column, rows = column_of(width, pa.string()), np.arange(ROWS)
    batch = pa.record_batch({"k": column})
    for wrong in (ROWS, -ROWS - 1, 2**62):
        rows[5] = wrong
        with pytest.raises(IndexError):
            take_values(column, rows)
        with pytest.raises(IndexError):
            place_rows(batch, rows)


def test_keys_of_one_length_that_share_a_hash_are_still_two_groups() -> None:
    column = column_of(12, pa.string(), distinct=10)
    groups = group_rows(np.full(ROWS, 7), pa.record_batch({"k": column}), 4)
    plain = column.to_pylist()
    assert groups.count == len(set(plain))
    assert [plain[groups.first_row[g]] for g in groups.of_row] == plain


@pytest.mark.parametrize("width", WIDTHS)
def test_repeating_keys_are_grouped_alike_whatever_lengths_are_beside_them(width: int) -> None:
    column = column_of(width, pa.string(), distinct=50)
    pane = pa.array(np.arange(ROWS) % 3)
    for beside in ([], [pane]):
        keys = pa.RecordBatch.from_arrays(
            [column, *beside], [str(n) for n in range(1 + len(beside))]
        )
        groups = group_repeating_rows(keys, 16, 1)
        assert groups is not None
        expected = group_rows(hash_keys(keys.select([0])), keys, 16, 1)
        assert np.array_equal(groups.of_row, expected.of_row)
        assert np.array_equal(groups.first_row, expected.first_row)


def test_values_whose_words_mix_alike_are_told_apart() -> None:
    # The mix of the first words of one value, and the second word that makes it another one's.
    mixing, mask = 0x9E3779B185EBCA87, 2**64 - 1

    def mixed(word: int) -> int:
        product = word * mixing & mask
        return product ^ product >> 29

    one = (1).to_bytes(8, "little") + (7).to_bytes(8, "little")
    other = (2).to_bytes(8, "little") + (7 ^ mixed(1) ^ mixed(2)).to_bytes(8, "little")
    column = pa.array([one, other] * 1000)
    groups = group_repeating_rows(pa.record_batch({"k": column}), 4)
    assert groups is not None
    assert groups.count == 2
    assert [column[groups.first_row[g]].as_py() for g in groups.of_row[:2]] == [one, other]
