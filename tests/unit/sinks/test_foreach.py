"""Results to a function of the user's."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from tests.support.epoch_rows import SCHEMA, EpochRows, context, rows

from godwit.model.errors import SinkError, UserFunctionError
from godwit.sinks.simple_sinks import ForeachSink, ForeachTableSink


class Handed(EpochRows):
    """An epoch whose DataFrame is a word: the sink only hands it on."""

    def dataframe(self) -> Any:
        return "a DataFrame"


def handed(epoch: int) -> Handed:
    return Handed(epoch=epoch, table=rows(epoch, ("N1", 1)).table)


def test_the_function_gets_rows_and_epoch_of_every_delivery() -> None:
    calls: list[tuple[object, int]] = []
    sink = ForeachSink(lambda frame, epoch: calls.append((frame, epoch)))
    sink.open(context())
    for epoch in (0, 1, 1):
        sink.deliver(handed(epoch))
    assert calls == [("a DataFrame", 0), ("a DataFrame", 1), ("a DataFrame", 1)]


def test_what_the_function_raises_comes_with_its_traceback_and_survives_pickling() -> None:
    def announce(_frame: object, epoch: int) -> None:
        raise ValueError(f"no room for {epoch}")

    sink = ForeachSink(announce)
    sink.open(context())
    with pytest.raises(UserFunctionError) as caught:
        sink.deliver(handed(3))
    error = pickle.loads(pickle.dumps(caught.value))
    assert "announce raised ValueError on epoch 3: no room for 3" in error.message
    assert 'raise ValueError(f"no room for {epoch}")' in str(error)
    assert error.context == {"sink": "by_plane", "epoch": 3}
    assert isinstance(caught.value.__cause__, ValueError)


def test_errors_that_say_what_to_do_already_pass_as_they_are() -> None:
    def refuse(_frame: object, _epoch: int) -> None:
        raise SinkError("The printer is out of paper.", remedy="Add some.")

    sink = ForeachSink(refuse)
    sink.open(context())
    with pytest.raises(SinkError, match="out of paper"):
        sink.deliver(handed(0))


def test_what_cannot_be_called_is_refused_at_once() -> None:
    with pytest.raises(SinkError, match="cannot be called"):
        ForeachSink("print")  # type: ignore[arg-type]  # the point of the test


def test_a_table_has_the_rows_of_the_epoch_in_their_order_and_todays_columns() -> None:
    calls: list[tuple[list[tuple[Any, ...]], int]] = []
    sink = ForeachTableSink(
        lambda table, epoch: calls.append(([tuple(r.values()) for r in table.to_pylist()], epoch))
    )
    sink.open(context())
    sink.deliver(rows(0, ("N1", 1), ("N2", 2), ("N1", 3)))
    former = pa.table({"total": [7], "gone": ["x"]})
    sink.deliver(EpochRows(epoch=1, table=former))
    sink.deliver(rows(2))
    assert calls == [([("N1", 1), ("N2", 2), ("N1", 3)], 0), ([(None, 7)], 1), ([], 2)]


def test_a_table_without_rows_has_its_columns() -> None:
    schemas: list[pa.Schema] = []
    sink = ForeachTableSink(lambda table, _epoch: schemas.append(table.schema))
    sink.open(context())
    sink.deliver(rows(0))
    assert schemas == [SCHEMA]


def test_a_function_of_tables_is_called_between_epochs_and_stops_the_query_if_it_raises() -> None:
    def fail(_table: pa.Table, epoch: int) -> None:
        raise OSError(f"disk {epoch}")

    sink = ForeachTableSink(fail)
    sink.open(context())
    assert not sink.delivers_concurrently
    with pytest.raises(UserFunctionError, match="raised OSError on epoch 4: disk 4"):
        sink.deliver(rows(4, ("N1", 1)))
    with pytest.raises(SinkError, match="cannot be called") as caught:
        ForeachTableSink(3)  # type: ignore[arg-type]  # the point of the test
    assert "an Arrow table" in caught.value.remedy
