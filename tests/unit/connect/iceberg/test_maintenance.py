"""Maintenance of an Iceberg table changes no row, and not which epochs the table has."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.epoch_rows import rows
from tests.unit.connect.iceberg.test_sink import NAME, Place

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.epoch_rows import EpochRows

pytest.importorskip("pyiceberg", reason="Iceberg tests need pyiceberg.")

from godwit.connect.iceberg import maintenance
from godwit.connect.iceberg.files import data_files_of

POLICY = gw.sinks.Maintenance(max_small_files=4, retain=None)
AT_ONCE = gw.sinks.Maintenance(max_small_files=4, retain="0 s")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for sink in made.sinks:
        sink.close()


def output(epoch: int) -> EpochRows:
    return rows(epoch, (f"N{epoch % 3}", epoch), (None, epoch))


def data_files(place: Place) -> set[str]:
    """Paths of the data files that are on disk."""
    root = place.catalog["warehouse"].removeprefix("file://")
    return {str(path) for path in Path(root).rglob("*.parquet")}


def named(place: Place) -> set[str]:
    """Paths of the data files of the table's current version."""
    tasks = place.table().scan().plan_files()
    return {task.file.file_path.removeprefix("file://") for task in tasks}


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_small_files_are_bounded_and_epochs_are_known_as_before(place: Place, mode: str) -> None:
    model: dict[Any, Any] = {}
    every: list[tuple[Any, Any]] = []
    sink = place.sink(mode=mode, maintain=AT_ONCE)
    for epoch in range(7):
        sink.deliver(output(epoch))
        for row in output(epoch).table.to_pylist():
            model[row["plane"]] = row["total"]
            every.append((row["plane"], row["total"]))
        sink.maintain()
        assert len(named(place)) <= 5
    expected = every if mode == "append" else list(model.items())
    assert place.rows() == sorted(expected, key=lambda row: (str(row[0]), str(row[1])))
    assert data_files(place) == named(place), "files of expired snapshots are gone"
    again = place.sink(mode=mode)
    last = again.last_delivered()
    assert last is not None
    assert last.epoch == 6
    sequence = place.table().last_sequence_number
    again.deliver(output(6))
    assert place.table().last_sequence_number == sequence
    again.deliver(output(7))
    assert len(place.rows()) == (16 if mode == "append" else 4)


def test_readers_of_changes_get_each_row_once(place: Place) -> None:
    sink = place.sink(maintain=POLICY)
    flow = gw.Flow("reading", num_key_groups=4)
    table = flow.source("table", gw.sources.iceberg(NAME, catalog=place.catalog))
    flow.sink("out", table.key_by("plane").compute(name="c", n=gw.count()), gw.sinks.memory())
    sink.deliver(output(0))
    with gw.testing.cluster(flow) as run:
        for epoch in range(1, 9):
            run.epoch()
            sink.deliver(output(epoch))
            if epoch % 3 == 0:
                sink.maintain()
        run.epoch()
        counted = {row["plane"]: row["n"] for row in run.state("c").to_pylist()}
    assert counted == {None: 9, "N0": 3, "N1": 3, "N2": 3}
    operations = [s.summary.operation.value for s in place.table().snapshots() if s.summary]
    assert "replace" in operations


def test_epochs_and_maintenance_at_once_lose_nothing(place: Place) -> None:
    sink = place.sink(mode="upsert", maintain=AT_ONCE)
    sink.deliver(rows(0, ("N0", 0)))
    ended, failed = threading.Event(), []

    def maintain() -> None:
        while not ended.is_set():
            try:
                sink.maintain()
            except SinkError as error:
                failed.append(error)

    thread = threading.Thread(target=maintain)
    thread.start()
    for epoch in range(1, 8):
        sink.deliver(rows(epoch, (f"N{epoch}", epoch), (f"N{epoch // 2}", epoch)))
    ended.set()
    thread.join()
    sink.maintain()
    expected = {f"N{n}": n for n in range(1)}
    for epoch in range(1, 8):
        expected |= {f"N{epoch}": epoch, f"N{epoch // 2}": epoch}
    assert place.rows() == sorted(expected.items())


class KilledError(BaseException):
    """Stands for the end of the process: no code of ours runs after it."""


@pytest.mark.parametrize("step", ["files", "commit", "expired", "deleting"])
def test_a_process_that_ends_amid_maintenance_leaves_the_table_whole(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    from pyiceberg.table import Table, Transaction

    sink = place.sink(maintain=AT_ONCE)
    for epoch in range(6):
        sink.deliver(output(epoch))
    before = place.rows()
    with monkeypatch.context() as patched:
        if step == "files":
            write = data_files_of

            def killed_after_writing(*arguments: Any) -> Any:
                write(*arguments)
                raise KilledError

            patched.setattr(maintenance, "data_files_of", killed_after_writing)
        elif step == "commit":
            commit = Transaction.commit_transaction

            def killed_after_commit(self: Any) -> Table:
                commit(self)
                raise KilledError

            patched.setattr(Transaction, "commit_transaction", killed_after_commit)
        elif step == "expired":
            patched.setattr(maintenance, "_delete_files_of", _killed)
        else:
            patched.setattr(maintenance, "_try_to_delete", _killed)
        with pytest.raises(KilledError):
            sink.maintain()
    assert place.rows() == before
    again = place.sink(maintain=AT_ONCE)
    last = again.last_delivered()
    assert last is not None
    assert last.epoch == 5
    again.deliver(output(6))
    again.maintain()
    assert len(place.rows()) == len(before) + 2


def _killed(*_: Any) -> Any:
    raise KilledError


def test_an_epoch_meanwhile_does_not_end_the_removal_of_snapshots(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    sink = place.sink(maintain=AT_ONCE)
    for epoch in range(4):
        sink.deliver(output(epoch))
    remove, epochs = ExpireSnapshots.by_ids, iter([output(4), output(5)])

    def delivered_meanwhile(self: Any, ids: Any) -> Any:
        if (epoch := next(epochs, None)) is not None:
            sink.deliver(epoch)
            raise CommitFailedException("The library has given up.")
        return remove(self, ids)

    with monkeypatch.context() as patched:
        patched.setattr(ExpireSnapshots, "by_ids", delivered_meanwhile)
        done = sink.maintain()
    assert done.expired == 5
    assert len(place.rows()) == 12
    assert len(place.table().snapshots()) == 1
    assert named(place) <= data_files(place)


def test_a_delete_of_another_writer_meanwhile_is_not_undone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = place.sink(maintain=POLICY)
    for epoch in range(6):
        sink.deliver(output(epoch))
    write = data_files_of

    def deleted_meanwhile(*arguments: Any) -> Any:
        files = write(*arguments)
        place.table().delete("total < 3")
        return files

    with monkeypatch.context() as patched:
        patched.setattr(maintenance, "data_files_of", deleted_meanwhile)
        with pytest.raises(SinkError, match="replaced or changed meanwhile"):
            sink.maintain()
    assert sorted(row[1] for row in place.rows()) == [3, 3, 4, 4, 5, 5]
    assert data_files(place) >= named(place)
    sink.maintain()
    assert sorted(row[1] for row in place.rows()) == [3, 3, 4, 4, 5, 5]


def test_an_append_meanwhile_does_not_end_a_compaction(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = place.sink(maintain=POLICY)
    for epoch in range(6):
        sink.deliver(output(epoch))
    write = data_files_of

    def appended_meanwhile(*arguments: Any) -> Any:
        files = write(*arguments)
        sink.deliver(output(6))
        return files

    with monkeypatch.context() as patched:
        patched.setattr(maintenance, "data_files_of", appended_meanwhile)
        done = sink.maintain()
    assert (done.compacted, done.written) == (6, 1)
    assert len(named(place)) == 2
    assert len(place.rows()) == 14
