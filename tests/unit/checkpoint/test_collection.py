from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import pytest
from tests.support.records import segment_ref, snapshot_ref

from godwit.checkpoint.blocks import BlockWriter, read_block
from godwit.checkpoint.collection import collect_garbage, reading_while_collected, unneeded_files
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.evolution import FlowVersion
from godwit.checkpoint.records import (
    BlockRef,
    CommitRecord,
    FlowIdentity,
    OutputRef,
    SegmentRef,
    SnapshotRef,
    StateId,
    flow_path,
)
from godwit.checkpoint.storage import CheckpointStorage, LocalStorage
from godwit.model.errors import CheckpointError, CorruptCheckpointError, EpochCollectedError
from godwit.ops.verification import start_problems, verify

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = FlowIdentity(name="flow", num_key_groups=2)


def open_log(storage: CheckpointStorage) -> CommitLog:
    return CommitLog.create_or_open(storage, IDENTITY, "r", retain_epochs=2, manifest_interval=3)


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    return open_log(CheckpointStorage.open(tmp_path))


def write(log: CommitLog, epoch: int, name: str, inline: bool = False) -> BlockRef:
    limit = 10_000 if inline else 0
    with BlockWriter(log.storage, epoch=epoch, name=name, inline_limit_bytes=limit) as writer:
        writer.add(b"content of " + name.encode())
        return writer.close()[0]


def segment(epoch: int, block: BlockRef, flow: int = 0) -> SegmentRef:
    return segment_ref(flow=flow, epoch=epoch, block=block)


def commit(
    log: CommitLog,
    *,
    inline: bool = False,
    snapshots: tuple[SnapshotRef, ...] = (),
    outputs: tuple[OutputRef, ...] = (),
) -> BlockRef:
    epoch = log.latest_epoch + 1
    settled = log.commit(
        CommitRecord(
            epoch=epoch,
            run_id="",
            segments=(segment(epoch, write(log, epoch, "segment", inline), log.flow),),
            snapshots=snapshots,
            outputs=outputs,
        )
    )
    return settled.segments[0].block


def snapshot(log: CommitLog) -> SnapshotRef:
    epoch = log.latest_epoch + 1
    return snapshot_ref(flow=log.flow, version=epoch - 1, block=write(log, epoch, "snapshot"))


def test_segments_that_the_chain_needs_are_kept_however_old(log: CommitLog) -> None:
    blocks = [commit(log, inline=i % 2 == 0) for i in range(12)]
    collect_garbage(log)
    for block in blocks:
        stored = BlockRef(
            file=block.file, offset=block.offset, length=block.length, checksum=block.checksum
        )
        assert read_block(log.storage, stored).to_pybytes() == b"content of segment"


def test_what_a_snapshot_replaced_is_removed_when_no_retained_epoch_needs_it(
    log: CommitLog,
) -> None:
    blocks = [commit(log) for _ in range(3)]
    commit(log, snapshots=(snapshot(log),))
    collect_garbage(log)
    names = set(log.storage.list("blocks"))
    assert {block.file for block in blocks} <= names  # epoch 2 is retained and needs them
    commit(log)
    removed = collect_garbage(log).removed
    assert {block.file for block in blocks} <= set(removed)
    for epoch in log.retained_epochs:
        for block in log.chains_at(epoch).blocks():
            read_block(log.storage, block)


def test_attempts_that_lost_and_writes_that_never_ended_are_removed(
    log: CommitLog, tmp_path: Path
) -> None:
    for _ in range(2):
        commit(log)
    write(log, 0, "retry")
    directories = ("commits", "flows", "plans", "runs")
    left = [f"{directory}/000000000000.rec.0123abcd.tmp" for directory in directories]
    to_come = [f"{directory}/000000000007.rec.0123abcd.tmp" for directory in directories]
    for path in (*left, *to_come):
        (tmp_path / path).write_bytes(b"half")
    removed = collect_garbage(log).removed
    assert len(removed) == 1 + len(left)
    assert {*left} < {*removed}
    assert any("retry" in path for path in removed)
    assert collect_garbage(log).removed == ()


def test_files_of_an_epoch_that_is_under_way_are_left_alone(log: CommitLog) -> None:
    commit(log)
    block = write(log, 1, "under-way")
    assert collect_garbage(log).removed == ()
    assert read_block(log.storage, block)


def test_files_that_are_not_ours_are_left_alone(log: CommitLog, tmp_path: Path) -> None:
    commit(log)
    for name in ("commits/0", "commits/.0.crc", "blocks/notes.txt", "metadata"):
        (tmp_path / name).write_text("someone else's")
    assert collect_garbage(log).removed == ()


def test_staged_output_is_kept_as_long_as_its_epoch(log: CommitLog) -> None:
    commit(log)
    output = OutputRef(sink="s", flow=0, lane=0, rows=1, block=write(log, 1, "output"))
    commit(log, outputs=(output,))
    commit(log)
    assert output.block.file not in collect_garbage(log).removed
    commit(log)
    assert output.block.file in collect_garbage(log).removed


def test_old_records_and_manifests_go_and_the_retained_epochs_stay(log: CommitLog) -> None:
    for i in range(14):
        commit(log, snapshots=(snapshot(log),) if i % 2 else ())
        if i % 5 == 4:
            collect_garbage(log)
    collect_garbage(log)
    assert list(log.storage.list("manifests")) == ["manifests/000000000011.rec"]
    assert len(log.storage.list("commits")) == 3
    assert log.retained_epochs == range(12, 14)
    again = CommitLog.open_read_only(log.storage)
    for epoch in log.retained_epochs:
        assert again.chains_at(epoch).manifest() == log.chains_at(epoch).manifest()


def start(log: CommitLog, version: FlowVersion, interval: int) -> CommitLog:
    """Continue under another flow version."""
    return CommitLog.create_or_open(
        log.storage, IDENTITY, "next", flow=version, retain_epochs=2, manifest_interval=interval
    )


@pytest.mark.parametrize("interval", [3, 50])
@pytest.mark.parametrize("dropped", [False, True])
def test_flow_versions_stay_that_the_records_after_the_manifest_ran_under(
    tmp_path: Path, interval: int, dropped: bool
) -> None:
    # Nothing that is left of the state was written under the first versions.
    log = CommitLog.create_or_open(
        CheckpointStorage.open(tmp_path), IDENTITY, "r", retain_epochs=2, manifest_interval=interval
    )
    for _ in range(5):
        commit(log)
    for number in (1, 2):
        version = FlowVersion(previous=log.flow, dropped=("op",) if dropped else ())
        log = start(log, version, interval)
        commit(log, snapshots=() if dropped else (snapshot(log),))
        assert log.flow == number
    commit(log)
    commit(log)
    collect_garbage(log)
    again = CommitLog.open_read_only(log.storage)
    assert again.chains.manifest() == log.chains.manifest()
    assert start_problems(log.storage) == ()
    assert collect_garbage(start(again, FlowVersion(previous=2), 50)).errors == ()
    # They go with the records.
    log = start(again, FlowVersion(previous=2, dropped=("op",)), 1)
    for _ in range(4):
        commit(log)
    collect_garbage(log)
    assert list(log.storage.list("flows")) == [flow_path(log.flow)]
    assert CommitLog.open_read_only(log.storage).chains.manifest() == log.chains.manifest()


def test_collecting_twice_removes_nothing_more(log: CommitLog) -> None:
    for _ in range(8):
        commit(log, snapshots=(snapshot(log),) if log.latest_epoch > 0 else ())
    assert collect_garbage(log).removed
    assert unneeded_files(log) == {}
    assert collect_garbage(log).removed == ()


def test_collecting_beside_commits_takes_nothing_that_is_needed(log: CommitLog) -> None:
    failures: list[BaseException] = []
    done = threading.Event()

    def keep_collecting() -> None:
        try:
            while not done.is_set():
                collect_garbage(log)
        except BaseException as error:  # noqa: BLE001 - asserted on below
            failures.append(error)

    collector = threading.Thread(target=keep_collecting)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    collector.start()
    try:
        for _ in range(40):
            commit(log, snapshots=(snapshot(log),) if log.latest_epoch % 3 == 1 else ())
    finally:
        done.set()
        collector.join()
        sys.setswitchinterval(interval)
    assert failures == []
    collect_garbage(log)
    again = CommitLog.open_read_only(log.storage)
    assert again.chains.manifest() == log.chains.manifest()
    for epoch in again.retained_epochs:
        for block in again.chains_at(epoch).blocks():
            read_block(again.storage, block)


def test_an_older_run_that_still_collects_takes_nothing_from_a_newer_one(
    log: CommitLog, tmp_path: Path
) -> None:
    for _ in range(5):
        commit(log)
    newer = CommitLog.create_or_open(
        CheckpointStorage.open(tmp_path), IDENTITY, "newer", retain_epochs=2, manifest_interval=1
    )
    for _ in range(4):
        commit(newer, snapshots=(snapshot(newer),))
        collect_garbage(log)
    assert not [f for f in verify(newer.storage).findings if "missing" in f.problem]
    again = CommitLog.open_read_only(newer.storage)
    assert again.chains.manifest() == newer.chains.manifest()


class Sticky(LocalStorage):
    """A disk on which some files cannot be deleted."""

    stuck: frozenset[str] = frozenset()

    def delete(self, path: str) -> None:
        if path in self.stuck:
            raise CheckpointError(f"{path} cannot be deleted.")
        super().delete(path)


def test_a_file_that_cannot_be_deleted_keeps_none_of_the_others(tmp_path: Path) -> None:
    storage = Sticky(str(tmp_path))
    log = CommitLog.create_or_open(storage, IDENTITY, "r", retain_epochs=2, manifest_interval=3)
    for _ in range(8):
        commit(log, snapshots=(snapshot(log),) if log.latest_epoch > 0 else ())
    unneeded = list(unneeded_files(log))
    storage.stuck = frozenset(unneeded[:1])
    collected = collect_garbage(log)
    assert collected.removed == tuple(unneeded[1:])
    assert collected.freed_bytes > 0
    assert [str(error) for error in collected.errors] == [f"{unneeded[0]} cannot be deleted."]
    storage.stuck = frozenset()
    assert collect_garbage(log).removed == (unneeded[0],)


def go_on(log: CommitLog, epochs: int = 9) -> None:
    """Commit epochs that need nothing of what was there, and collect that."""
    for _ in range(epochs):
        commit(log, snapshots=(snapshot(log),))
    assert collect_garbage(log).removed


def test_what_was_collected_before_it_was_read_is_told_from_damage(log: CommitLog) -> None:
    for _ in range(3):
        commit(log)
    chains = CommitLog.open_read_only(log.storage).chains
    go_on(log)
    block = chains.chain(StateId("op", "state"), 1).segments[0].block
    with (
        pytest.raises(EpochCollectedError, match="was collected while") as told,
        reading_while_collected(log.storage),
    ):
        read_block(log.storage, block)
    assert "retain_epochs" in told.value.remedy
    lost = next(iter(log.chains.blocks()))
    log.storage.delete(lost.file)
    with (
        pytest.raises(CorruptCheckpointError, match="is missing"),
        reading_while_collected(log.storage),
    ):
        read_block(log.storage, lost)


def test_a_verification_beside_a_running_query_finds_no_file_missing(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        commit(log)
    read, later = LocalStorage.read, iter([9])

    def read_beside(
        self: LocalStorage, path: str, offset: int = 0, length: int | None = None
    ) -> object:
        if path.startswith("blocks"):
            for epochs in later:
                go_on(log, epochs)
        return read(self, path, offset, length)

    monkeypatch.setattr(LocalStorage, "read", read_beside)
    report = verify(log.storage)
    assert all(
        "content" in finding.problem or "Arrow" in finding.problem for finding in report.findings
    )
    assert report.collected > 0


def test_opening_beside_a_collection_begins_again(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        commit(log)
    listed, later = LocalStorage.list, iter([9])

    def list_beside(self: LocalStorage, directory: str) -> object:
        found = listed(self, directory)
        if directory == "manifests":
            for epochs in later:
                go_on(log, epochs)
        return found

    monkeypatch.setattr(LocalStorage, "list", list_beside)
    assert CommitLog.open_read_only(log.storage).latest_epoch == 11
