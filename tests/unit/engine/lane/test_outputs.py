"""Output on its way to a sink: staged, diverted, written to the target, or refused by its key."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest

from godwit.engine.lane.files import rejected_rows, stage_output
from godwit.model.errors import SinkError
from godwit.plan.staging import REJECTED, Rejections, StagedSink, WrittenFile, WrittenFiles

if TYPE_CHECKING:
    from godwit.engine.lane.files import LaneFiles

ROWS = pa.table({"plane": ["N1", "N2", "N3"], "total": [1, -2, -3]})


@dataclass(slots=True)
class Files:
    """Remembers what is staged."""

    rows: dict[str, pa.Table] = field(default_factory=dict)
    files: dict[str, WrittenFiles] = field(default_factory=dict)

    def stage(self, sink: str, table: pa.Table, *, time: str | None = None) -> None:
        assert time is None
        self.rows[sink] = table

    def stage_files(self, sink: str, written: WrittenFiles) -> None:
        self.files[sink] = written


def not_negative(rows: pa.RecordBatch) -> Rejections | None:
    found = np.flatnonzero(rows.column("total").to_numpy() < 0)
    return Rejections(rows=found, reasons=["it is negative"] * len(found)) if len(found) else None


@dataclass(frozen=True, slots=True)
class Writer:
    reachable: bool
    target: str = "out/"

    def write(self, rows: pa.Table, *, epoch: int, place: int) -> list[WrittenFile] | None:
        name = f"{epoch}-{place}"
        file = WrittenFile(path=name, delivered=name, rows=rows.num_rows, size_bytes=1)
        return [file] if self.reachable else None


def staged(rows: pa.Table = ROWS, **changes: Any) -> Files:
    fields: dict[str, Any] = {"check": None, "rejects": None, "writer": None, "keys": ("plane",)}
    sink = StagedSink(name="out", maps=(), **{**fields, **changes})
    files = Files()
    stage_output(sink, rows, cast("LaneFiles", files), where="operator 'totals'", epoch=4, place=2)
    return files


def test_rows_that_nobody_checks_are_staged_as_they_are() -> None:
    assert staged().rows == {"out": ROWS}


def test_no_rows_are_not_staged() -> None:
    assert staged(ROWS.slice(0, 0), check=not_negative, writer=Writer(reachable=True)) == Files()


def test_a_row_that_the_target_cannot_take_refuses_the_epoch_by_its_key() -> None:
    with pytest.raises(SinkError) as caught:
        staged(check=not_negative)
    error = caught.value
    assert error.message == (
        "Sink 'out' cannot take a row of epoch 4 of operator 'totals', of which nothing is "
        'committed: with the key {"plane": "N2"}, since it is negative (1 more like it).'
    )
    assert "rejects=" in error.remedy
    assert error.context == {
        "sink": "out",
        "key": '{"plane": "N2"}',
        "reason": "it is negative",
        "rows": 2,
    }


def test_without_keys_the_whole_row_is_named() -> None:
    with pytest.raises(SinkError, match=r'"plane": "N2", "total": -2'):
        staged(check=not_negative, keys=())


def test_rejected_rows_are_staged_for_the_sink_that_takes_them_and_the_others_for_theirs() -> None:
    files = staged(check=not_negative, rejects="out_rejects")
    assert files.rows["out"].to_pydict() == {"plane": ["N1"], "total": [1]}
    rejected = files.rows["out_rejects"]
    assert rejected.schema.equals(REJECTED)
    assert [json.loads(row)["total"] for row in rejected.column("row").to_pylist()] == [-2, -3]
    assert rejected.column("reason").to_pylist() == ["it is negative"] * 2


def test_rows_in_several_pieces_are_all_looked_at() -> None:
    # Pieces whose text is too large for one stay apart.
    pieces = pa.concat_tables([ROWS.slice(0, 2), ROWS.slice(2)])
    large: Any = SimpleNamespace(num_rows=3, combine_chunks=lambda: pieces)
    files = staged(large, check=not_negative, rejects="bad")
    assert files.rows["out"].num_rows == 1
    assert files.rows["bad"].num_rows == 2


def test_if_all_rows_are_rejected_nothing_is_staged_for_the_sink() -> None:
    files = staged(ROWS.slice(1), check=not_negative, rejects="bad", writer=Writer(reachable=True))
    assert list(files.rows) == ["bad"]
    assert files.files == {}


def test_where_the_target_can_be_reached_only_the_files_are_staged() -> None:
    files = staged(writer=Writer(reachable=True))
    assert files.rows == {}
    file = WrittenFile(path="4-2", delivered="4-2", rows=3, size_bytes=1)
    assert files.files["out"] == WrittenFiles(target="out/", files=(file,))


def test_where_it_cannot_be_reached_rows_are_staged() -> None:
    assert staged(writer=Writer(reachable=False)).rows == {"out": ROWS}


def test_rejected_rows_are_plain_ascii_whatever_they_hold() -> None:
    broken = pa.StringArray.from_buffers(
        2, pa.py_buffer(np.array([0, 3, 7], np.int32)), pa.py_buffer(b"\xed\xa0\x80a\0\xc5\x82")
    )
    rows = pa.record_batch(
        {
            "plane": broken,
            "day": pa.array([10_000_000, None], pa.date32()),
            "at": pa.array([2**62, 0], pa.timestamp("us")),
            "raw": pa.array([b"\xff", None]),
            "share": pa.array([float("inf"), float("nan")]),
            "many": pa.array([[1, None], None]),
        }
    )
    rejections = Rejections(rows=np.arange(2), reasons=["zażółć", "b"])
    table = rejected_rows("out", ["plane"], rows, rejections)
    table.validate(full=True)
    texts = [text for column in table.columns for text in column.to_pylist()]
    assert all(text.isascii() and text.isprintable() for text in texts)
    first, second = (json.loads(row) for row in table.column("row").to_pylist())
    assert first["plane"] == "\\xed\\xa0\\x80"
    assert first["day"] == "29349-01-26"
    assert first["raw"] == "ff"
    assert first["share"] == "inf"
    assert first["many"] == [1, None]
    assert second["plane"] == "a\0ł"
    assert second["raw"] is None
