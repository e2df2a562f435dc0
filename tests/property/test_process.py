"""However a stream is cut into epochs, a function per key sees its rows once, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.lane import Lane
from tests.support.rounds import rounds

from godwit.library.process import ProcessOperator

if TYPE_CHECKING:
    from godwit.columns.python_values import KeyRows


class Seen(msgspec.Struct):
    values: list[int | None] = []
    epochs: int = 0


def follow(
    key: tuple[Any, ...], rows: KeyRows, seen: Seen
) -> list[tuple[Any, ...] | dict[str, Any]]:
    """Remember every value; a value of 9 ends the key's life."""
    seen.epochs += 1
    values = [row.v for row in rows]
    assert values == rows.column("v")
    seen.values += values
    if 9 in values:
        rows.drop_state()
    length = len(seen.values)
    emitted: list[tuple[Any, ...] | dict[str, Any]] = [(*key, length)]
    if len(rows) > 1:
        emitted.append({"a": key[0], "b": key[1], "n": length})
    return emitted


KEYS = pa.schema({"a": pa.string(), "b": pa.int32()})
ROW = st.tuples(
    st.sampled_from(["x", "y", None]), st.sampled_from([1, None]), st.none() | st.integers(0, 9)
)


@settings(derandomize=True, deadline=None, max_examples=rounds(30, 150), database=None)
@given(
    epochs=st.lists(st.lists(ROW, max_size=12), max_size=5),
    codec=st.sampled_from(["msgpack", "pickle"]),
)
def test_state_and_output_are_those_of_a_loop_over_keys(
    epochs: list[list[tuple[Any, ...]]], codec: Any
) -> None:
    operator = ProcessOperator(
        name="o",
        keys=KEYS,
        inputs=pa.schema({"v": pa.int64()}),
        function=follow,
        state_type=Seen,
        output=pa.schema({"a": pa.string(), "b": pa.int32(), "n": pa.int64()}),
        codec=codec,
    )
    lane = Lane(operator, num_key_groups=3)
    model: dict[tuple[Any, ...], list[int | None]] = {}
    for rows in epochs:
        columns = list(zip(*rows, strict=True)) or [(), (), ()]
        fields = [*KEYS, pa.field("v", pa.int64())]
        advance = lane.epoch(
            pa.RecordBatch.from_arrays(
                [pa.array(column, f.type) for column, f in zip(columns, fields, strict=True)],
                schema=pa.schema(fields),
            )
        )
        arrived: dict[tuple[Any, ...], list[int | None]] = {}
        for a, b, value in rows:
            arrived.setdefault((a, b), []).append(value)
        expected = []
        for key, values in arrived.items():
            whole = model.pop(key, []) + values
            expected += [(*key, len(whole))] * min(2, len(values))
            if 9 not in values:
                model[key] = whole
        output = [tuple(row.values()) for row in advance.output.to_pylist()]
        assert sorted(output, key=repr) == sorted(expected, key=repr)
        blobs = [memoryview(state["state"]) for state in lane.store.values()]
        states = operator._codec.decode(blobs)
        assert {k: s.values for k, s in zip(lane.store, states, strict=True)} == model
