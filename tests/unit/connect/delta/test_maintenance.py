"""Maintenance of a Delta table changes no row, and not which epochs the table has."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.epoch_rows import Committed, rows
from tests.unit.connect.delta.test_sink import opened, read

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.epoch_rows import EpochRows

deltalake = pytest.importorskip("deltalake", reason="Delta tests need deltalake.")

POLICY = gw.sinks.Maintenance(max_small_files=4, retain=None)
AT_ONCE = gw.sinks.Maintenance(max_small_files=4, retain="0 s")


def output(epoch: int) -> EpochRows:
    return rows(epoch, (f"N{epoch % 3}", epoch), (None, epoch))


def files(path: Path) -> int:
    return len(deltalake.DeltaTable(path).file_uris())


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_small_files_are_bounded_and_epochs_are_known_as_before(tmp_path: Path, mode: str) -> None:
    paths = [tmp_path / name for name in ("maintained", "plain")]
    for path in paths:
        sink = opened(path, mode=mode, maintain=POLICY if path is paths[0] else None)
        for epoch in range(16):
            sink.deliver(output(epoch))
            if path is paths[0]:
                sink.maintain()
                assert files(path) <= 5
        again = opened(path, mode=mode)
        last = again.last_delivered()
        assert last is not None
        assert last.epoch == 15
        version = deltalake.DeltaTable(path).version()
        again.deliver(output(15))
        assert deltalake.DeltaTable(path).version() == version
        again.deliver(output(16))
    assert read(paths[0]) == read(paths[1])
    operations = [commit["operation"] for commit in deltalake.DeltaTable(paths[0]).history()]
    assert ("OPTIMIZE" in operations) == (mode == "append")


def test_few_small_files_and_large_ones_are_left_alone(tmp_path: Path) -> None:
    sink = opened(tmp_path, partition_by="plane", maintain=POLICY)
    for epoch in range(4):
        sink.deliver(output(epoch))
    assert files(tmp_path) > 4  # but not in one partition
    assert not sink.maintain()
    assert not gw.sinks.delta(tmp_path).maintain()


def test_files_of_old_versions_are_deleted_and_those_of_epochs_to_come_are_not(
    tmp_path: Path,
) -> None:
    sink = opened(tmp_path, mode="append", maintain=AT_ONCE, lane_bytes=0)
    writer = sink.lane_writer()
    assert writer is not None
    staged = writer.write(output(9).table, epoch=9, place=0)
    assert staged is not None
    for epoch in range(6):
        sink.deliver(output(epoch))
    before = read(tmp_path)
    done = sink.maintain()
    assert (done.compacted, done.written, done.removed) == (6, 1, 6)
    assert read(tmp_path) == before
    uris = deltalake.DeltaTable(tmp_path).file_uris()
    expected = [*(file.path for file in staged), *(uri.rsplit("/", 1)[1] for uri in uris)]
    assert sorted(path.name for path in tmp_path.glob("*.parquet")) == sorted(expected)
    assert writer.write(output(10).table, epoch=10, place=0), "lanes still know the table"
    version = deltalake.DeltaTable(tmp_path).version()
    assert not sink.maintain()
    assert deltalake.DeltaTable(tmp_path).version() == version


def test_readers_of_changes_get_each_row_once(tmp_path: Path) -> None:
    sink = opened(tmp_path, maintain=POLICY)
    flow = gw.Flow("reading", num_key_groups=4)
    table = flow.source("table", gw.sources.delta(tmp_path))
    flow.sink("out", table.key_by("plane").compute(name="c", n=gw.count()), gw.sinks.memory())
    sink.deliver(output(0))
    with gw.testing.cluster(flow) as run:
        for epoch in range(1, 12):
            run.epoch()
            sink.deliver(output(epoch))
            if epoch % 3 == 0:
                sink.maintain()
        run.epoch()
        counted = {
            row["plane"]: row["n"]
            for row in run.state(flow.compiled().operators[0].name).to_pylist()
        }
    assert counted == {None: 12, "N0": 4, "N1": 4, "N2": 4}


def test_epochs_and_maintenance_at_once_lose_nothing(tmp_path: Path) -> None:
    sink = opened(tmp_path, mode="upsert", maintain=AT_ONCE)
    ended, failed = threading.Event(), []

    def maintain() -> None:
        while not ended.is_set():
            try:
                sink.maintain()
            except SinkError as error:
                failed.append(error)

    thread = threading.Thread(target=maintain)
    thread.start()
    for epoch in range(15):
        sink.deliver(rows(epoch, (f"N{epoch}", epoch)))
    ended.set()
    thread.join()
    sink.maintain()
    assert read(tmp_path) == sorted([(f"N{n}", n) for n in range(15)])


def test_an_epoch_whose_files_are_compacted_while_it_reads_them_is_committed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = opened(tmp_path, mode="upsert")
    for epoch in range(4):
        sink.deliver(rows(epoch, (f"N{epoch}", epoch)))
    commit, errors = sink._commit_rows, list[str]()

    def commit_after_compaction(*arguments: Any, **options: Any) -> None:
        if not errors:
            table = deltalake.DeltaTable(tmp_path)
            table.optimize.compact()
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        try:
            commit(*arguments, **options)
        except Exception as error:
            errors.append(str(error))
            raise

    monkeypatch.setattr(sink, "_commit_rows", commit_after_compaction)
    sink.deliver(rows(4, ("N0", 9)))
    assert len(errors) == 1
    assert "not found" in errors[0]
    assert read(tmp_path) == [("N0", 9), ("N1", 1), ("N2", 2), ("N3", 3)]


def test_a_roll_back_passes_a_compaction(tmp_path: Path) -> None:
    sink = opened(tmp_path, maintain=POLICY)
    for epoch in range(8):
        sink.deliver(output(epoch))
    sink.maintain()
    sink.deliver(output(8))
    again = opened(tmp_path)
    again.roll_back(Committed(latest_epoch=7), -1)
    last = again.last_delivered()
    assert last is not None
    assert last.epoch == 7
    assert len(read(tmp_path)) == 16


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_small_files": 0}, "max_small_files .* is 0"),
        ({"file_bytes": 1000}, "file_bytes .* is 1000"),
        ({"file_bytes": True}, "file_bytes .* is True"),
        ({"retain": "soon"}, "retain of gw.sinks.Maintenance"),
        ({"every": 5}, "every of gw.sinks.Maintenance"),
    ],
)
def test_a_policy_that_says_nothing_is_refused(settings: Any, text: str) -> None:
    with pytest.raises(gw.errors.GodwitError, match=text):
        gw.sinks.Maintenance(**settings)


def test_what_is_no_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="was given maintain=True"):
        gw.sinks.delta(tmp_path, maintain=True)  # type: ignore[arg-type]
    with pytest.raises(SinkError, match="was given maintain='daily'"):
        gw.sinks.iceberg("a.b", maintain="daily")  # type: ignore[arg-type]
