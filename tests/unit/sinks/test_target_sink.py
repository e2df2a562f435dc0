"""What a sink whose target stores epochs has by `TargetSink`: on the example, a sink to SQLite.

What it has in common with other targets is in test_conformance.py.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest
from examples.sqlite.godwit_sqlite import to_table
from tests.support.epoch_rows import context

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from pathlib import Path


def test_errors_of_the_library_name_sink_and_place(tmp_path: Path) -> None:
    sink = to_table(str(tmp_path / "absent" / "totals.db"), "totals")
    with pytest.raises(
        SinkError, match="SQLite sink 'by_plane' on table totals: cannot be opened: unable"
    ) as e:
        sink.open(context())
    assert e.value.context["path"] == str(tmp_path / "absent" / "totals.db")
    assert isinstance(e.value.__cause__, sqlite3.Error)


def test_only_a_sink_that_says_so_gets_epochs_beside_the_next_one(tmp_path: Path) -> None:
    assert not to_table(str(tmp_path), "totals").delivers_concurrently
    assert gw.sinks.parquet("out").delivers_concurrently
