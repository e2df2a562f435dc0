"""Results in memory: the newest row of every key, or every epoch."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.epoch_rows import SCHEMA, EpochRows, Shown, context, rows

from godwit.columns.signed import CHANGE
from godwit.model.errors import SinkError
from godwit.sinks.simple_sinks import MemorySink

if TYPE_CHECKING:
    from godwit.columns.signed import Kind

EPOCHS = [
    rows(0, ("N1", 1), ("N2", 2), (None, 3)),
    rows(1, ("N1", 10), ("N3", 30), ("N1", 11), (None, None)),
]


def test_the_table_has_the_newest_row_of_every_key() -> None:
    sink = MemorySink()
    sink.open(context())
    for epoch in EPOCHS:
        sink.deliver(epoch)
    assert sink.table().to_pydict() == {
        "plane": ["N2", "N3", "N1", None],
        "total": [2, 30, 11, None],
    }


def test_a_notebook_shows_the_first_rows_and_no_markup_of_them() -> None:
    sink = MemorySink()
    assert "memory sink: 0 rows" in sink._repr_html_()
    sink.open(context())
    sink.deliver(rows(0, ("<script>alert(1)</script>", 1), *((f"N{n}", n) for n in range(30))))
    shown = sink._repr_html_()
    assert "31 rows, the first 20" in shown
    assert shown.count("<tr>") == 1 + 20
    assert "&lt;script&gt;alert(1)" in shown
    assert "<script" not in shown


def test_epochs_of_another_history_replace_what_was_kept_of_later_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = MemorySink()
    sink.open(context())
    for number in range(6):
        sink.deliver(rows(number, (f"N{number}", number)))
    sink.deliver(rows(2, ("N2", 2)))  # a backup of epoch 2 is started
    assert list(sink.epochs) == [0, 1, 2, 3, 4, 5]
    sink.deliver(replace(rows(3, ("N3", -3)), history="backup"))
    assert list(sink.epochs) == [0, 1, 2, 3]
    assert sink.epochs[3].column("total").to_pylist() == [-3]
    assert "epochs 3 to 5 were of another history" in caplog.text


def test_in_complete_mode_the_table_is_the_newest_epoch() -> None:
    sink = MemorySink()
    sink.open(context(complete=True))
    for epoch in EPOCHS:
        sink.deliver(epoch)
    assert sink.table().equals(EPOCHS[1].table)


def test_without_keys_the_table_has_all_rows() -> None:
    sink = MemorySink()
    sink.open(context(keys=()))
    for epoch in EPOCHS:
        sink.deliver(epoch)
    assert sink.table().num_rows == 7


@pytest.mark.parametrize("kind", ["changes", "upserts"])
@pytest.mark.parametrize("seed", range(6))
def test_changes_are_shown_as_the_table_that_they_make(seed: int, kind: Kind) -> None:
    rng = random.Random(seed)
    schema = SCHEMA.append(CHANGE)
    sink, live = MemorySink(), list[tuple[str, int]]()
    sink.open(context(schema=schema, kind=kind, table_keys=("plane",), unique_keys=()))
    for epoch in range(4):
        changes = []
        for _ in range(rng.randrange(6)):
            if live and rng.random() < 0.4:
                changes.append((*live.pop(rng.randrange(len(live))), -1))
            row = (rng.choice(["a", "b"]), rng.randrange(2))
            if kind == "upserts":
                live = [other for other in live if other[0] != row[0]]
            live.append(row)
            changes.append((*row, 1))
        named = [dict(zip(schema.names, change, strict=True)) for change in changes]
        sink.deliver(EpochRows(epoch=epoch, table=pa.Table.from_pylist(named, schema=schema)))
        table = sink.table()
        assert table.schema.names == SCHEMA.names
        assert sorted(tuple(row.values()) for row in table.to_pylist()) == sorted(live)
    assert sum(rows.num_rows for rows in sink.epochs.values()) > len(live)


def test_the_table_has_every_window_of_a_key() -> None:
    sink = MemorySink()
    sink.open(context(unique_keys=(("plane", "total"), ("total",))))
    for epoch in EPOCHS:
        sink.deliver(epoch)
    assert sink.table().num_rows == 7
    sink.deliver(rows(2, ("N1", 1)))
    assert sink.table().num_rows == 7


def test_the_table_has_all_rows_that_a_function_emitted_unless_keys_are_named() -> None:
    sink = MemorySink()
    sink.open(context(unique_keys=()))
    for epoch in EPOCHS:
        sink.deliver(epoch)
    assert sink.table().num_rows == 7
    assert sink.table("plane").num_rows == 4
    with pytest.raises(SinkError, match="keys names 'plain'"):
        sink.table(["plain"])


def test_before_the_first_epoch_the_table_is_empty_but_has_its_columns() -> None:
    sink = MemorySink()
    sink.open(context())
    assert sink.table().equals(SCHEMA.empty_table())


def test_every_epoch_is_kept_and_an_epoch_delivered_twice_is_kept_once() -> None:
    sink = MemorySink()
    sink.open(context())
    for epoch in [*EPOCHS[::-1], EPOCHS[0], rows(1, ("N9", 9))]:
        sink.deliver(epoch)
    assert list(sink.epochs) == [0, 1]
    assert all(sink.epochs[n].equals(EPOCHS[n].table) for n in (0, 1))


def test_rows_stay_when_the_same_query_starts_again_and_go_when_another_does() -> None:
    sink = MemorySink()
    sink.open(context())
    sink.deliver(EPOCHS[0])
    sink.open(context())
    assert list(sink.epochs) == [0]
    sink.open(context(schema=SCHEMA.append(pa.field("new", pa.int8()))))
    assert list(sink.epochs) == []
    sink.deliver(EPOCHS[0])
    sink.open(context(query_id="another"))
    assert list(sink.epochs) == []


def test_a_table_that_was_changed_by_its_reader_is_not_the_sinks() -> None:
    sink = MemorySink()
    sink.open(context())
    sink.deliver(EPOCHS[0])
    with pytest.raises(TypeError):
        sink.epochs[5] = EPOCHS[0].table  # type: ignore[index]  # the point of the test


def test_a_table_before_the_query_starts_is_an_error() -> None:
    with pytest.raises(SinkError, match="belongs to no query yet"):
        MemorySink().table()


def test_a_name_stands_for_the_newest_row_of_every_key() -> None:
    shown = Shown()
    sink = MemorySink("planes")
    sink.open(context(views=shown))
    assert shown.tables["planes"].num_rows == 0
    for epoch in EPOCHS:
        sink.deliver(epoch)
        assert shown.tables["planes"].equals(sink.table())
