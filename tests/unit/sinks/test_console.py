"""Results on the screen."""

from __future__ import annotations

import io

import pytest
from tests.support.epoch_rows import context, rows

from godwit.model.errors import SinkError
from godwit.sinks.simple_sinks import ConsoleSink


def printed(sink: ConsoleSink, out: io.StringIO, *epochs: int) -> str:
    sink.open(context())
    for epoch in epochs:
        sink.deliver(rows(epoch, *((f"N{i}", i) for i in range(5)), (None, None)))
    return out.getvalue()


def test_an_epoch_is_a_table_with_its_number_columns_and_rows() -> None:
    out = io.StringIO()
    text = printed(ConsoleSink(file=out), out, 7)
    assert "by_plane, epoch 7, 6 rows" in text
    assert all(word in text for word in ("plane", "total", "N0", "N4", "null"))
    assert "more" not in text


def test_rows_beyond_the_limit_are_counted_not_printed() -> None:
    out = io.StringIO()
    text = printed(ConsoleSink(limit=2, file=out), out, 0)
    assert "N1" in text
    assert "N2" not in text
    assert "and 4 more" in text


def test_an_epoch_is_printed_once() -> None:
    out = io.StringIO()
    assert printed(ConsoleSink(file=out), out, 0, 1, 1, 0).count("epoch") == 2


def test_values_in_brackets_are_printed_as_they_are() -> None:
    out = io.StringIO()
    sink = ConsoleSink(file=out)
    sink.open(context(name="[red]"))
    sink.deliver(rows(0, ("[bold]N1[/bold]", 1)))
    assert "[bold]N1[/bold]" in out.getvalue()
    assert "[red], epoch 0" in out.getvalue()


def test_standard_output_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    sink = ConsoleSink()
    sink.open(context())
    sink.deliver(rows(0, ("N1", 1)))
    assert "N1" in capsys.readouterr().out


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(SinkError, match="-1 rows"):
        ConsoleSink(limit=-1)
