"""Sinks on arbitrary rows, against plain Python."""

from __future__ import annotations

import csv
import io
import math
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.epoch_rows import SCHEMA, EpochRows, context, rows
from tests.support.rounds import rounds

import godwit as gw
from godwit.connect.files.parquet_files import NULL_PARTITION, partition_directories
from godwit.connect.postgres.copy import csv_rows
from godwit.sinks.rows import last_of_each_key, without_replaced_rows
from godwit.sinks.simple_sinks import MemorySink

fixed = settings(derandomize=True, deadline=None, max_examples=rounds(12, 60))

# Few values, so that keys meet.
KEYS = st.tuples(st.sampled_from(["a", "b", "", None]), st.sampled_from([0, 1, None]))
PAIRS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 99)), max_size=12)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@fixed
@given(st.lists(KEYS, max_size=40))
def test_the_marked_rows_are_those_a_dictionary_would_keep(keys: list[tuple[Any, Any]]) -> None:
    last = {key: position for position, key in enumerate(keys)}
    table = pa.table(
        {
            "s": pa.array([key[0] for key in keys], pa.string()),
            "n": pa.array([key[1] for key in keys], pa.int64()),
        }
    )
    assert np.flatnonzero(last_of_each_key(table)).tolist() == sorted(last.values())


@fixed
@given(PAIRS, st.integers(1, 5))
def test_streaming_leaves_out_what_a_dictionary_would_replace(
    pairs: list[tuple[str | None, int]], batch_rows: int
) -> None:
    output = EpochRows(epoch=0, table=rows(0, *pairs).table, batch_rows=batch_rows)
    kept = [
        (row["plane"], row["total"])
        for batch in without_replaced_rows(output, SCHEMA, ["plane"], "by_plane")
        for row in batch.to_pylist()
    ]
    assert dict(kept) == dict(pairs)
    assert len(kept) == len(dict(pairs))


@fixed
@given(st.lists(PAIRS, max_size=5), st.data())
def test_any_order_of_deliveries_ends_in_the_same_results(
    epochs: list[list[tuple[str | None, int]]], data: st.DataObject
) -> None:
    outputs = [rows(number, *pairs) for number, pairs in enumerate(epochs)]
    again = data.draw(st.lists(st.sampled_from(outputs), max_size=6)) if outputs else []
    expected: dict[str | None, int] = {}
    for pairs in epochs:
        expected.update(dict(pairs))
    memory = MemorySink()
    memory.open(context())
    with tempfile.TemporaryDirectory() as directory:
        parquet = gw.sinks.parquet(directory, partition_by="plane")
        parquet.open(context())
        for output in [*again, *outputs, *again]:
            memory.deliver(output)
            parquet.deliver(output)
        written = sorted(
            (int(file.parts[-3].removeprefix("epoch=")), file.parts[-2], total)
            for file in Path(directory).rglob("epoch=*/*/*.parquet")
            for total in pa.parquet.read_table(file, partitioning=None).column(0).to_pylist()
        )
    assert {row["plane"]: row["total"] for row in memory.table().to_pylist()} == expected
    assert written == sorted(
        (number, f"plane={NULL_PARTITION if plane is None else plane}", total)
        for number, pairs in enumerate(epochs)
        for plane, total in pairs
    )


@fixed
@given(st.lists(st.one_of(st.none(), TEXT), min_size=1, max_size=20))
def test_names_of_directories_lead_back_to_values_and_stay_in_their_directory(
    values: list[str | None],
) -> None:
    keys = pa.record_batch({"k": pa.array(values, pa.string())})
    positions: list[int] = []
    for name, where in partition_directories(keys):
        assert "/" not in name
        text = name.removeprefix("k=")
        original = None if text == NULL_PARTITION else unquote(text)
        assert all((values[row] or None) == original for row in where)
        positions += where.tolist()
    assert sorted(positions) == list(range(len(values)))


@fixed
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), TEXT),
            st.one_of(st.none(), st.binary(max_size=6)),
            st.one_of(st.none(), st.floats(allow_nan=False)),
            st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(-9, 9)), max_size=3)),
        ),
        min_size=1,
        max_size=15,
    ),
    st.data(),
)
def test_text_for_copy_holds_the_very_values(
    records: list[tuple[str | None, bytes | None, float | None, list[int | None] | None]],
    data: st.DataObject,
) -> None:
    start = data.draw(st.integers(0, len(records) - 1))
    types = [pa.string(), pa.binary(), pa.float64(), pa.list_(pa.int64())]
    columns = [
        pa.array(values, dtype).slice(start)
        for values, dtype in zip(zip(*records, strict=True), types, strict=True)
    ]
    text = csv_rows(columns).decode()
    read = list(csv.reader(io.StringIO(text, newline=""), lineterminator="\n"))
    assert len(read) == len(records) - start
    for (s, b, f, numbers), fields in zip(records[start:], read, strict=True):
        assert fields[0] == (s or "")
        assert fields[1] == ("" if b is None else f"\\x{b.hex()}")
        assert (fields[2] == "") == (f is None)
        assert f is None or math.isclose(float(fields[2]), f, rel_tol=0, abs_tol=0)
        inner = ",".join("NULL" if n is None else f'"{n}"' for n in numbers or [])
        assert fields[3] == ("" if numbers is None else f"{{{inner}}}")
    # The reader above cannot tell null from "", PostgreSQL can: by quotes.
    first_fields = [s for s, *_ in records[start:]]
    assert text.startswith('"') == (first_fields[0] is not None)
