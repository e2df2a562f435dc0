"""Paths are the user's: any name works, however it is spelled, for all that takes a path."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.support.epoch_rows import context, rows

import godwit as gw
from godwit.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = [
    "my dir",
    "50%",
    "a%20b",
    "a+b#c?d*e[f]",
    "a:b",
    "é".encode().decode(),
    unicodedata.normalize("NFD", "é日本"),
]
TOTALS = {"a": 4, "b": 2}
SPELLINGS: dict[str, Callable[[Path], Any]] = {
    "path": str,
    "relative": lambda path: str(path.relative_to(Path.cwd())),
    "pathlib": lambda path: path,
    "uri": lambda path: path.as_uri(),
}


@pytest.fixture(params=NAMES)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / str(request.param)


def flow_over(source: Any) -> gw.Flow:
    flow = gw.Flow("visits", num_key_groups=4)
    totals = flow.source("visits", source).key_by("page").compute(name="total", n=gw.sum("n"))
    flow.sink("totals", totals, gw.sinks.noop())
    return flow


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_checkpoint_and_source_of_any_name(
    place: Path, spelling: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spelled, top = SPELLINGS[spelling], place.parent
    (place / "in").mkdir(parents=True)
    pq.write_table(
        pa.table({"page": ["a", "b", "a"], "n": [1, 2, 3]}), place / "in" / "é 1%.parquet"
    )
    checkpoint, copied = spelled(place / "ck"), spelled(place / "copy")
    source = gw.sources.parquet(spelled(place / "in"))
    for expected in (["a", "b"], []):  # the second run resumes, and finds no new rows
        played = gw.testing.run(flow_over(source), checkpoint=checkpoint)
        assert sorted(played.rows("totals")["page"].to_pylist()) == expected
        assert {row["page"]: row["n"] for row in played.state("total").to_pylist()} == TOTALS
    for action in ("inspect", "verify", "repair"):
        assert main(["checkpoint", action, str(checkpoint)]) == 0
    assert main(["checkpoint", "copy", str(checkpoint), str(copied)]) == 0
    assert len(gw.testing.run(flow_over(source), checkpoint=copied).state("total")) == 2
    assert {path.name for path in top.iterdir()} == {place.name}
    assert {path.name for path in place.iterdir()} == {"in", "ck", "copy"}
    assert "error" not in capsys.readouterr().err.lower()


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_parquet_sink_of_any_name(place: Path, spelling: str) -> None:
    path = SPELLINGS[spelling](place / "out")
    sink = gw.sinks.parquet(path, partition_by="plane")
    sink.open(context())
    sink.deliver(rows(0, (place.name, 1), ("N2", 2)))
    sink.close()
    assert sink.destination == str(place / "out")
    assert gw.sinks.latest_epoch(path) == 0
    table = ds.dataset(place / "out", format="parquet", partitioning="hive").to_table()
    assert {row["plane"]: row["total"] for row in table.to_pylist()} == {place.name: 1, "N2": 2}
    again = gw.sources.parquet(path, schema="plane string, total long").schema
    assert again.names == ["plane", "total"]
    assert {child.name for child in place.parent.iterdir()} == {place.name}


@pytest.mark.parametrize("name", ["a%E9b", "a%C3%A9b", "aéb"])
def test_names_of_partitions_are_decoded_as_arrow_and_spark_encode_them(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / f"page={name}").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / f"page={name}" / "x.parquet")
    played = gw.testing.run(flow_over(gw.sources.parquet(tmp_path)))
    assert played.rows("totals").to_pylist() == [{"page": "aéb", "n": 1}]


@pytest.mark.parametrize("path", ["~/out", "file:///a?b", "file://node/x"])
def test_a_place_that_was_hardly_meant_is_refused_by_all(path: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: gw.sources.parquet(path),
        lambda: gw.sources.json(path, schema="page string, n int"),
        lambda: gw.sinks.parquet(path),
        lambda: gw.sinks.delta(path),
        lambda: gw.testing.run(flow_over(gw.sources.memory("page string, n int")), checkpoint=path),
    ]
    for call in calls:
        with pytest.raises(gw.errors.GodwitError, match="The location '"):
            call()
    assert main(["checkpoint", "inspect", path]) == 2
