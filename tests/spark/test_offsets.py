"""Rows are not lost if Spark's newest log entries are, as after a power failure."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.streams import Inbox, drain, rows_of, totals

import godwit as gw
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointMismatchError, InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def inbox(spark: SparkSession, tmp_path: Path) -> Inbox:
    return Inbox(
        spark=spark, directory=tmp_path / "in", columns="k string, v long", files_per_epoch=2
    )


def lose(checkpoint: Path, *paths: str) -> None:
    """Let entries of Spark's log, and their checksums, never have reached the disk."""
    for path in paths:
        entry = checkpoint / "spark" / path
        entry.unlink()
        entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "lost",
    [
        ("offsets/1", "commits/1", "sources/0/1"),
        ("offsets/1", "commits/1"),
    ],
    ids=["with the list of files", "without the list of files"],
)
def test_a_micro_batch_planned_anew_with_other_files_is_refused(
    inbox: Inbox, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    checkpoint = tmp_path / "ck"
    inbox.put([("a", 1)], [("a", 2)])
    drain(totals(inbox, gw.sinks.memory()), checkpoint)
    inbox.put([("a", 4)])
    drain(totals(inbox, gw.sinks.memory()), checkpoint)
    kept = tmp_path / "kept"
    shutil.copytree(checkpoint, kept)
    lose(checkpoint, *lost)
    inbox.put([("a", 8)])
    with pytest.raises(CheckpointMismatchError, match="planned micro-batch 1 again") as caught:
        drain(totals(inbox, gw.sinks.memory()), checkpoint)
    assert "godwit checkpoint repair" in caught.value.remedy
    # Spark's log as it was: nothing is lost, and nothing was touched.
    shutil.rmtree(checkpoint / "spark")
    shutil.copytree(kept / "spark", checkpoint / "spark")
    sink = gw.sinks.memory()
    drain(totals(inbox, sink), checkpoint)
    assert rows_of(sink.table()) == [("a", 15)]


def test_a_micro_batch_planned_anew_with_the_same_files_goes_on(
    inbox: Inbox, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "ck"
    inbox.put([("a", 1)], [("a", 2)])
    drain(totals(inbox, gw.sinks.memory()), checkpoint)
    lose(checkpoint, "offsets/0", "commits/0", "sources/0/0")
    inbox.put([("a", 4)])
    sink = gw.sinks.memory()
    drain(totals(inbox, sink), checkpoint)
    assert rows_of(sink.table()) == [("a", 7)]


def test_the_record_holds_what_puts_sparks_entries_back(inbox: Inbox, tmp_path: Path) -> None:
    checkpoint = tmp_path / "ck"
    inbox.put([("a", 1)], [("a", 2)], [("a", 4)])
    drain(totals(inbox, gw.sinks.memory()), checkpoint)
    latest = CommitLog.open_read_only(CheckpointStorage.open(checkpoint)).latest
    assert latest is not None
    batch = latest.batch
    assert batch is not None
    assert batch.number == 1
    assert (checkpoint / "spark/offsets/1").read_bytes() == batch.offsets
    assert {p: (checkpoint / "spark" / p).read_bytes() for p in batch.sources} == batch.sources
    assert list(batch.sources) == ["sources/0/1"]


def test_sparks_entries_are_durable_before_the_commit(
    inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        forced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    checkpoint = tmp_path / "ck"
    inbox.put([("a", 1)], [("a", 2)], [("a", 4)])
    drain(totals(inbox, gw.sinks.memory()), checkpoint)
    commit = next(i for i, path in enumerate(forced) if f"commits/{1:012d}.rec" in path)
    for path in ("offsets/1", "offsets", "commits/0", "commits", "sources/0/1", "sources/0"):
        assert str(checkpoint / "spark" / path) in forced[:commit]


def test_an_entry_whose_writer_died_does_not_keep_the_first_micro_batch_back(
    inbox: Inbox, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "ck"
    drain(totals(inbox, gw.sinks.memory()), checkpoint)
    for directory in ("offsets", "commits"):
        folder = checkpoint / "spark" / directory
        folder.mkdir(exist_ok=True)
        (folder / ".0.c76aa87a-de07-4ac0-a15a-59bb492f54cd.tmp").write_bytes(b"v1")
        (folder / "..0.c76aa87a-de07-4ac0-a15a-59bb492f54cd.tmp.crc").write_bytes(b"crc")
    inbox.put([("a", 1), ("b", 2)])
    sink = gw.sinks.memory()
    drain(totals(inbox, sink), checkpoint)
    assert sorted(rows_of(sink.table())) == [("a", 1), ("b", 2)]


def mapped(sources: dict[str, Inbox], reads: Mapping[str, str], kept: Any) -> gw.Flow:
    """Sums per key; operator → the source that it reads, each behind a map of its own."""
    flow = gw.Flow("query", num_key_groups=4)
    streams = {name: flow.source(name, inbox.stream()) for name, inbox in sources.items()}
    for operator, source in reads.items():
        stream = streams[source].map(lambda d: d.filter("v > 0")).key_by("k")
        sums = stream.compute(
            name=gw.types.Identity(operator, starts_empty=True), total=gw.sum("v")
        )
        flow.sink(operator, sums, kept[operator])
    return flow


def test_sources_go_on_where_they_were_however_operators_read_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    sources = {
        name: Inbox(spark=spark, directory=tmp_path / name, columns="k string, v long")
        for name in ("one", "two")
    }
    checkpoint, added = tmp_path / "ck", dict.fromkeys(("p", "q", "r", "s"), 0)
    kept = {name: gw.sinks.memory() for name in added}
    sources["two"].put(*([("k", 10**n)] for n in range(4)))
    flows: list[dict[str, str]] = [
        {"p": "one", "q": "two", "r": "two"},
        {"p": "one", "s": "one", "q": "two"},
        {"s": "one", "p": "one", "q": "two", "r": "two"},
        {"p": "one", "q": "two"},
    ]
    for number, reads in enumerate(flows):
        sources["one"].put([("k", 3)], [("k", 4)])
        sources["two"].put([("k", 1)])
        drain(mapped(sources, reads, kept), checkpoint)
        for operator, source in reads.items():
            added[operator] += 7 if source == "one" else (1112 if number == 0 else 1)
            assert rows_of(kept[operator].table()) == [("k", added[operator])], (number, operator)
    latest = CommitLog.open_read_only(CheckpointStorage.open(checkpoint)).latest
    assert latest is not None
    batch = latest.last_batch
    assert batch is not None
    assert batch.lines == (0, 1)
    assert {p: (checkpoint / "spark" / p).read_bytes() for p in batch.sources} == batch.sources
    exchanged = {"one": sources["two"], "two": sources["one"]}
    with pytest.raises(
        CheckpointMismatchError, match=r"source 'one' read parquet .*/one' and reads"
    ):
        drain(mapped(exchanged, flows[-1], kept), checkpoint)


def test_a_stream_that_a_map_brings_in_is_refused(inbox: Inbox, tmp_path: Path) -> None:
    flow = gw.Flow("query", num_key_groups=4)
    stream = flow.source("rows", inbox.stream()).map(lambda d: d.union(inbox.stream()))
    flow.sink("out", stream.key_by("k").compute(total=gw.sum("v")), gw.sinks.noop())
    with pytest.raises(InvalidFlowError, match="A map on source 'rows' brings in another stream"):
        flow.start(checkpoint=tmp_path / "ck")
