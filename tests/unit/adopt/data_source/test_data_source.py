"""PySpark's Python data sources run as sources and sinks, with the calls that Spark makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.epoch_rows import context, rows
from tests.unit.adopt.data_source.sources import (
    Batches,
    Files,
    Numbers,
    SimpleNumbers,
    row,
)

import godwit as gw
from godwit.model.errors import SinkError, SourceError

KINDS = [Numbers, SimpleNumbers, Batches]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "count").write_text("10")
    return tmp_path / "count"


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_keeps_the_contract_of_sources(kind: type[Any], path: Path) -> None:
    source = gw.sources.data_source(kind, options={"path": str(path)})
    gw.testing.check_source(
        source, add=lambda: path.write_text("17"), exact_limits=kind is not SimpleNumbers
    )


@pytest.mark.parametrize("kind", [Numbers, SimpleNumbers])
def test_a_query_gets_each_row_once_over_restarts(kind: type[Any], path: Path) -> None:
    def flow() -> gw.Flow:
        built = gw.Flow("counted")
        source = gw.sources.data_source(kind, options={"PATH": str(path)})
        counts = (
            built.source("numbers", source)
            .key_by("n")
            .compute(times=gw.count(), text=gw.last("text"), price=gw.sum("price"), ts=gw.max("ts"))
        )
        built.sink("out", counts, gw.sinks.noop())
        return built

    run = gw.testing.cluster(flow())
    for count in (10, 17, 23):
        path.write_text(str(count))
        for _ in range(count):
            run.epoch()
        run.restart(flow(), executors=2)
    got = {each["n"]: each for each in run.rows("out").to_pylist()}
    assert run.rows("out").num_rows == 23
    assert got.keys() == set(range(23))
    for n, each in got.items():
        _, text, price, _, ts, _ = row(n)
        assert (each["times"], each["text"], each["price"]) == (1, text, price)
        assert each["ts"] == ts


def test_the_reader_is_told_of_commits_and_of_the_end(path: Path) -> None:
    source = gw.sources.data_source(Numbers, options={"path": str(path)})
    source.open(None)
    begin = source.start()
    end = source.latest(begin, limit=4)
    assert (begin, end) == ({"next": 0}, {"next": 4})
    assert [split.payload.end for split in source.splits(begin, end, 8)] == [3, 4]
    source.committed(end)
    assert Path(f"{path}.committed").read_text() == "4"
    source.close()
    source.close()
    assert Path(f"{path}.stopped").exists()


def test_a_reader_of_earlier_pyspark_takes_no_limit(path: Path) -> None:
    class Older(Numbers):
        def streamReader(self, schema: Any) -> Any:
            reader: Any = super().streamReader(schema)
            reader.latestOffset = lambda: {"next": 10}
            return reader

    source = gw.sources.data_source(Older, options={"path": str(path)})
    source.open(None)
    assert source.latest({"next": 0}, limit=4) == {"next": 10}
    assert source.latest({"next": 0}, until={"next": 7}) == {"next": 7}


def test_mistakes_are_refused_by_name_without_secrets(path: Path) -> None:
    with pytest.raises(SourceError, match="is not a class of PySpark data sources"):
        gw.sources.data_source("numbers")  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"data source Files does not name its columns"):
        gw.sources.data_source(Files)
    source = gw.sources.data_source(Files, schema="n int")
    with pytest.raises(SourceError, match="Files has no reader for streams: it lacks a method"):
        source.open(None)
    with pytest.raises(SinkError, match="Numbers has no writer for streams"):
        gw.sinks.data_source(Numbers).open(context())
    absent = gw.sources.data_source(Numbers, options={"path": "absent", "token": "hunter2"})
    absent.open(None)
    with pytest.raises(SourceError, match=r"failed to return its latest offset: FileNotFoundError"):
        absent.latest({"next": 0})
    assert "hunter2" not in absent.identity
    assert "path=absent" in absent.identity


@pytest.mark.parametrize("arrow", ["true", "false"])
def test_an_epoch_is_one_write_and_one_commit_under_its_number(tmp_path: Path, arrow: str) -> None:
    sink = gw.sinks.data_source(Files, options={"path": str(tmp_path), "arrow": arrow})
    sink.open(context())
    for _ in range(2):
        sink.deliver(rows(4, ("N1", 1), (None, 3)))
    assert (tmp_path / "4.txt").read_text() == "N1 1\nNone 3"
    assert not list(tmp_path.glob("*.aborted"))


def test_an_epoch_that_cannot_be_written_is_aborted(tmp_path: Path) -> None:
    options = {"path": str(tmp_path), "token": "hunter2"}
    sink = gw.sinks.data_source(Files, options=options)
    sink.open(context())
    with pytest.raises(
        SinkError, match="failed in write of epoch 4: ValueError: unlucky"
    ) as raised:
        sink.deliver(rows(4, ("N1", 13)))
    assert "hunter2" not in str(raised.value)
    assert (tmp_path / "4.aborted").read_text() == "[None]"
    sink.deliver(rows(4, ("N1", 12)))
    assert (tmp_path / "4.txt").read_text() == "N1 12"


def test_columns_of_batches_are_found_by_name(path: Path) -> None:
    source = gw.sources.data_source(Batches, options={"path": str(path)})
    source.open(None)
    (split, *_) = source.splits({"next": 0}, {"next": 3}, 1)
    (batch,) = source.read(split, ["text"])
    assert batch.schema == pa.schema([("text", pa.string())])
    assert batch.column("text").to_pylist() == ["t0", "t1", "t2"]
