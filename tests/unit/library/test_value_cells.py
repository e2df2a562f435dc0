"""Values of keys, as they are looked up and decoded together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.columns.python_values import Columns, KeysOfRows
from godwit.library.states.stored import LaneKeys
from godwit.library.states.values import StoredValue, ValueCells
from godwit.model.errors import StateEncodingError
from godwit.values.codec import make_codec

if TYPE_CHECKING:
    import numpy.typing as npt

KEYS = pa.record_batch({"k": [0, 1, 2, 3]})


class _Entries:
    """A state with these encoded values; ``None``: the key has no entry."""

    def __init__(self, blobs: list[bytes | None]) -> None:
        self.blobs = blobs

    def find(
        self, keys: pa.RecordBatch, _: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        blobs = [self.blobs[key] for key in keys.column("k").to_pylist()]
        known = np.array([blob is not None for blob in blobs])
        return known, pa.record_batch({"state": pa.array(blobs, pa.large_binary())})


def cells_of(state_type: Any, blobs: list[bytes | None]) -> ValueCells:
    options: dict[str, Any] = {"operator": "op", "name": "s", "keys": KEYS.schema, "ttl_us": None}
    codec = make_codec("op/s", "msgpack", state_type, ())
    stored = StoredValue(new=state_type, codec=codec, upgrade=None, **options)
    zeros = np.zeros(KEYS.num_rows, np.int32)
    lane = LaneKeys(
        keys=KEYS,
        tuples=[(key,) for key in range(KEYS.num_rows)],
        hashes=zeros.astype(np.int64),
        key_groups=zeros,
        rows=Columns(KEYS.slice(0, 0), pa.schema([]), [], KeysOfRows([], [], [0])),
        starts=[0] * (KEYS.num_rows + 1),
        clock=0,
    )
    return ValueCells(stored, lane, _Entries(blobs), ())


def test_a_value_that_cannot_be_decoded_is_an_error_for_its_key_alone() -> None:
    cells = cells_of(int, [b"\x01", b"\xc1", b"\x03", None])
    assert cells.read(0) == 1
    with pytest.raises(StateEncodingError, match=r"of key \(1,\)"):
        cells.read(1)
    assert (cells.read(2), cells.value_or_none(3), cells.read(3)) == (3, None, 0)
    assert cells.value_or_none(3) is None  # a new value counts once it was changed
    cells.assign(3, 5)
    assert cells.value_or_none(3) == 5


def test_values_that_are_only_decoded_are_not_written() -> None:
    # The encoding of an earlier program, which has another order of fields, say.
    cells = cells_of(dict, [b"\x80", b"\xde\x00\x00", b"\x80", b"\x80"])
    assert cells.read(0) == {}
    assert cells.exists(1)
    assert cells.written().groups == []
