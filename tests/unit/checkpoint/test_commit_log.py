from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from tests.support.records import segment_ref

from godwit.checkpoint.blocks import BlockWriter, read_block
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.evolution import FlowVersion
from godwit.checkpoint.records import (
    BatchRef,
    BlockRef,
    CommitRecord,
    FlowIdentity,
    OutputRef,
    SegmentRef,
    StateId,
)
from godwit.checkpoint.storage import CheckpointStorage, LocalStorage, PosixDisk
from godwit.model.errors import (
    CheckpointError,
    CheckpointMismatchError,
    ConcurrentRunError,
    CorruptCheckpointError,
    StorageFullError,
)

if TYPE_CHECKING:
    from pathlib import Path

STATE = StateId("op", "state")
IDENTITY = FlowIdentity(name="flow", num_key_groups=8)


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(tmp_path / "ck")


def segment_of(storage: CheckpointStorage, epoch: int, content: bytes = b"rows") -> SegmentRef:
    with BlockWriter(storage, epoch=epoch, name="lane0") as writer:
        writer.add(content)
        (block,) = writer.close()
    return segment_ref(epoch=epoch, block=block)


def commit(log: CommitLog, *, until: int) -> None:
    while log.latest_epoch < until:
        epoch = log.latest_epoch + 1
        segment = msgspec.structs.replace(segment_of(log.storage, epoch), flow=log.flow)
        log.commit(CommitRecord(epoch=epoch, run_id="", segments=(segment,)))


def open_log(storage: CheckpointStorage, run_id: str = "first", interval: int = 3) -> CommitLog:
    return CommitLog.create_or_open(
        storage, IDENTITY, run_id, retain_epochs=4, manifest_interval=interval
    )


def test_a_new_checkpoint_has_no_epochs(storage: CheckpointStorage) -> None:
    log = open_log(storage)
    assert (log.latest_epoch, log.latest, list(log.retained_epochs)) == (-1, None, [])
    with pytest.raises(CheckpointError, match="no epoch is committed yet"):
        log.chains_at(0)


def test_what_was_committed_is_there_after_opening_again(storage: CheckpointStorage) -> None:
    log = open_log(storage)
    settled = log.commit(
        CommitRecord(
            epoch=0,
            run_id="",
            segments=(segment_of(storage, 0),),
            consumed={"op": [3]},
            assignments={"op": {"version": 4, "executors": ["a", "b"]}},
            watermarks={"source": 17},
            expired={"op/state": 16},
            batch=BatchRef(number=7, digest="abc"),
        )
    )
    again = open_log(storage, "second")
    assert again.latest is not None
    assert again.latest_epoch == 0
    assert again.latest.run_id == "first"
    assert again.latest.watermarks == {"source": 17}
    assert again.latest.assignments == settled.assignments
    assert again.latest.expired == {"op/state": 16}
    assert again.latest.batch == BatchRef(number=7, digest="abc")
    assert again.latest.consumed == {"op": [3]}
    assert again.chains.versions(STATE).tolist() == [-1, 0, -1, -1, -1, -1, -1, -1]


def test_an_inline_block_is_read_alike_from_memory_and_from_its_record(
    storage: CheckpointStorage,
) -> None:
    log = open_log(storage)
    commit(log, until=0)
    in_memory = log.chains.chain(STATE, 1).segments[0].block
    in_file = open_log(storage, "second").chains.chain(STATE, 1).segments[0].block
    assert (in_memory.data, in_file.data) == (b"rows", b"")
    assert in_memory.file == in_file.file == "commits/000000000000.rec"
    assert read_block(storage, in_memory) == read_block(storage, in_file)


@pytest.mark.parametrize("epoch", [0, 2])
def test_epochs_are_committed_in_order(storage: CheckpointStorage, epoch: int) -> None:
    log = open_log(storage)
    commit(log, until=0)
    with pytest.raises(CheckpointError, match=f"of epoch {epoch} but the next one is 1"):
        log.commit(CommitRecord(epoch=epoch, run_id=""))
    assert open_log(storage, "second").latest_epoch == 0


def test_a_record_names_no_file_that_may_be_collected(storage: CheckpointStorage) -> None:
    log = open_log(storage)
    commit(log, until=0)
    block = BlockRef(file="blocks/000000000000-a-b.blk", offset=0, length=1, checksum=0)
    late = CommitRecord(
        epoch=1, run_id="", outputs=(OutputRef(sink="s", flow=0, lane=0, rows=0, block=block),)
    )
    with pytest.raises(CheckpointError, match="was not written for it or a later epoch"):
        log.commit(late)


def test_opening_reads_one_manifest_and_the_records_after_it(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(open_log(storage), until=20)
    read: list[str] = []
    read_file = LocalStorage.read

    def spy(self: LocalStorage, path: str, offset: int = 0, length: int | None = None) -> object:
        read.append(path)
        return read_file(self, path, offset, length)

    monkeypatch.setattr(LocalStorage, "read", spy)
    log = CommitLog.open_read_only(storage)
    assert log.latest_epoch == 20
    assert len([path for path in read if path.startswith("manifests")]) == 1
    # Its own record, too: the manifest is compared with it.
    assert len([path for path in read if path.startswith("commits")]) <= 4
    assert [s.epoch for s in log.chains.chain(STATE, 1).segments] == list(range(21))


def test_a_manifest_that_a_crash_prevented_is_written_by_the_next_run(
    storage: CheckpointStorage,
) -> None:
    commit(open_log(storage, interval=100), until=5)
    log = open_log(storage, "second", interval=3)
    commit(log, until=6)
    assert list(storage.list("manifests")) == ["manifests/000000000005.rec"]
    assert log.latest is not None
    assert log.latest.manifest == 5


def test_every_retained_epoch_can_be_read_as_it_was(storage: CheckpointStorage) -> None:
    log = open_log(storage)
    commit(log, until=9)
    assert log.retained_epochs == range(6, 10)
    for opened in (log, CommitLog.open_read_only(storage)):
        for epoch in opened.retained_epochs:
            chains = opened.chains_at(epoch)
            assert chains.epoch == epoch
            assert len(chains.chain(STATE, 1).segments) == epoch + 1
            assert opened.record(epoch).epoch == epoch


@pytest.mark.parametrize("epoch", [5, 10])
def test_an_epoch_that_is_not_retained_is_refused_with_those_that_are(
    storage: CheckpointStorage, epoch: int
) -> None:
    log = open_log(storage)
    commit(log, until=9)
    for read in (log.chains_at, log.record):
        with pytest.raises(CheckpointError, match="epochs 6 to 9 are retained") as caught:
            read(epoch)
        assert caught.value.context["retained"] == (6, 9)


def test_the_older_of_two_runs_is_fenced(storage: CheckpointStorage) -> None:
    older = open_log(storage, "older")
    commit(older, until=0)
    newer = open_log(storage, "newer")
    with pytest.raises(ConcurrentRunError, match=r"'older' no longer owns.*'newer'"):
        commit(older, until=1)
    commit(newer, until=1)
    assert newer.record(1).run_id == "newer"


def test_the_older_run_is_fenced_after_many_others_came_and_went(
    storage: CheckpointStorage,
) -> None:
    older = open_log(storage, "older")
    for i in range(30):
        open_log(storage, f"run {i}")
    assert len(storage.list("runs")) <= 12
    with pytest.raises(ConcurrentRunError, match="'run 29'"):
        commit(older, until=0)


def test_of_two_runs_that_commit_at_the_same_moment_one_wins(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = open_log(storage, "older")
    newer = open_log(storage, "newer")
    # The older run looked at who owns the checkpoint just before the newer one came.
    monkeypatch.setattr(older, "_check_ownership", lambda: None)
    commit(older, until=0)
    with pytest.raises(ConcurrentRunError, match=r"'newer' no longer owns.*'older'"):
        commit(newer, until=0)
    assert CommitLog.open_read_only(storage).record(0).run_id == "older"


def test_of_two_runs_that_open_at_the_same_moment_one_wins(
    storage: CheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = LocalStorage.create_exclusive

    def be_slower(self: LocalStorage, path: str, data: bytes) -> None:
        if path.startswith("runs"):
            monkeypatch.undo()
            open_log(storage, "faster")
        create(self, path, data)

    monkeypatch.setattr(LocalStorage, "create_exclusive", be_slower)
    with pytest.raises(ConcurrentRunError, match=r"'slower' no longer owns.*'faster'"):
        open_log(storage, "slower")


def test_a_reader_takes_nothing_over_and_commits_nothing(storage: CheckpointStorage) -> None:
    log = open_log(storage)
    commit(log, until=0)
    reader = CommitLog.open_read_only(storage)
    with pytest.raises(CheckpointError, match="open to read only"):
        commit(reader, until=1)
    commit(log, until=1)
    assert reader.latest_epoch == 0


def test_a_start_that_committed_nothing_claims_nothing(storage: CheckpointStorage) -> None:
    open_log(storage)
    other = msgspec.structs.replace(IDENTITY, name="other", num_key_groups=16)
    log = CommitLog.create_or_open(storage, other, "corrected")
    assert (log.identity.name, log.identity.num_key_groups) == ("other", 16)
    assert log.chains.num_key_groups == 16
    log.commit(CommitRecord(epoch=0, run_id=""))
    assert log.latest is not None
    # The version of the failed start counts for nobody.
    assert (log.latest.flow, list(log.versions_since(0))) == (1, [1])
    with pytest.raises(CheckpointMismatchError):
        open_log(storage)


def test_a_flow_version_counts_from_the_first_epoch_that_names_it(
    storage: CheckpointStorage,
) -> None:
    log = open_log(storage)
    commit(log, until=0)
    renaming = FlowVersion(previous=log.flow, renamed={"op": "new"})
    failed = CommitLog.create_or_open(storage, IDENTITY, "second", flow=renaming)
    assert failed.chains.states == (StateId("new", "state"),)
    assert failed.recorded_as(StateId("new", "state")) == STATE
    assert CommitLog.open_read_only(storage).chains.states == (STATE,)
    log = CommitLog.create_or_open(storage, IDENTITY, "third", flow=renaming)
    log.commit(CommitRecord(epoch=1, run_id=""))
    reader = CommitLog.open_read_only(storage)
    assert reader.chains.states == (StateId("new", "state"),)
    assert reader.chains_at(0).states == (STATE,)
    assert list(reader.versions_since(0)) == [2, 0]


def test_a_manifest_goes_by_the_names_of_its_own_epoch(storage: CheckpointStorage) -> None:
    log = open_log(storage, interval=1)
    commit(log, until=2)
    renaming = FlowVersion(previous=log.flow, renamed={"op": "new"})
    log = CommitLog.create_or_open(storage, IDENTITY, "second", flow=renaming, manifest_interval=1)
    log.commit(CommitRecord(epoch=3, run_id=""))
    assert CommitLog.open_read_only(storage).chains_at(2).states == (STATE,)
    log.commit(CommitRecord(epoch=4, run_id=""))
    log.commit(CommitRecord(epoch=5, run_id=""))
    assert CommitLog.open_read_only(storage).chains.states == (StateId("new", "state"),)


def test_a_flow_version_that_follows_another_one_than_counts_is_refused(
    storage: CheckpointStorage,
) -> None:
    commit(open_log(storage), until=0)
    with pytest.raises(ConcurrentRunError, match="another one committed flow version 0"):
        CommitLog.create_or_open(storage, IDENTITY, "late", flow=FlowVersion(previous=-1))


def test_another_flow_is_refused_with_every_difference(storage: CheckpointStorage) -> None:
    mine = msgspec.structs.replace(IDENTITY, query_id="aa")
    commit(CommitLog.create_or_open(storage, mine, "r"), until=0)
    other = msgspec.structs.replace(IDENTITY, name="other", query_id="bb")
    with pytest.raises(CheckpointMismatchError, match="does not fit") as caught:
        CommitLog.create_or_open(storage, other, "r")
    assert len(caught.value.context["differences"]) == 2
    assert len(storage.list("runs")) == 1  # whoever is refused takes nothing over


def test_a_missing_checkpoint_is_not_created_by_reading(storage: CheckpointStorage) -> None:
    with pytest.raises(CheckpointError, match="There is no checkpoint at"):
        CommitLog.open_read_only(storage)
    assert storage.list("") == {}


@pytest.mark.parametrize("gone", ["identity.rec", "commits/000000000002.rec"])
def test_opening_names_the_file_that_is_missing(storage: CheckpointStorage, gone: str) -> None:
    commit(open_log(storage, interval=100), until=4)
    storage.delete(gone)
    with pytest.raises(CorruptCheckpointError, match=gone) as caught:
        open_log(storage, "second")
    assert caught.value.context["file"] == gone


def test_opening_names_the_manifest_that_is_missing(storage: CheckpointStorage) -> None:
    commit(open_log(storage), until=4)
    storage.delete("manifests/000000000002.rec")
    with pytest.raises(CorruptCheckpointError, match=r"manifests/000000000002\.rec"):
        open_log(storage, "second")


class FullDisk(PosixDisk):
    full = False

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(descriptor, data)


def test_a_commit_that_finds_no_room_can_be_repeated_when_there_is_some(tmp_path: Path) -> None:
    disk = FullDisk()
    log = open_log(LocalStorage(tmp_path, disk=disk))
    commit(log, until=2)  # so that the next commit begins with a manifest
    for _ in range(2):
        disk.full = True
        with pytest.raises(StorageFullError):
            commit(log, until=3)
        assert log.latest_epoch == 2
        disk.full = False
    commit(log, until=3)
    assert CommitLog.open_read_only(log.storage).latest_epoch == 3


class ForgetfulDisk(PosixDisk):
    fails = False

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        if self.fails and path.name == "commits":
            raise OSError(errno.EIO, "Input/output error")


def test_a_commit_that_only_seemed_to_fail_is_accepted_when_it_is_repeated(
    tmp_path: Path,
) -> None:
    disk = ForgetfulDisk()
    log = open_log(LocalStorage(tmp_path, disk=disk))
    record = CommitRecord(epoch=0, run_id="", segments=(segment_of(log.storage, 0),))
    other = CommitRecord(epoch=0, run_id="", segments=(segment_of(log.storage, 0, b"others"),))
    disk.fails = True
    with pytest.raises(CheckpointError, match="Input/output error"):
        log.commit(record)
    disk.fails = False
    with pytest.raises(CheckpointError, match="already committed by an attempt of this run"):
        log.commit(other)
    assert log.commit(record).epoch == 0


def test_memory_does_not_grow_with_the_number_of_epochs(storage: CheckpointStorage) -> None:
    log = open_log(storage)
    commit(log, until=40)
    assert sum(path.startswith("commits/") for path in log._loaded_records) <= 4 + 3
    with_bytes = [s for s in log.chains.segments() if s.block.data]
    assert len(with_bytes) <= 4 + 3


def test_the_work_of_a_commit_does_not_grow_with_the_number_of_epochs(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    log = CommitLog.create_or_open(
        storage, msgspec.structs.replace(IDENTITY, num_key_groups=256), "r"
    )
    calls = [_calls_of_commit(log, epoch) for epoch in range(60)]
    # Now and then a manifest is written besides.
    assert np.median(calls) < 4_000
    assert np.median(calls[45:]) <= 1.2 * np.median(calls[5:20])


def _calls_of_commit(log: CommitLog, epoch: int) -> int:
    """Function calls of a commit: its work, regardless of the load of the machine."""
    segments = tuple(
        msgspec.structs.replace(
            segment_of(log.storage, epoch, bytes(2_000)),
            lane=lane,
            key_groups=tuple(range(lane * 32, lane * 32 + 32)),
            row_ends=tuple(range(1, 33)),
        )
        for lane in range(8)
    )
    record = CommitRecord(
        epoch=epoch, run_id="", segments=segments, assignments={"op": list(range(512))}
    )
    calls = 0

    def count(_frame: object, what: str, _argument: object) -> None:
        nonlocal calls
        calls += what in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        log.commit(record)
    finally:
        sys.setprofile(before)
    return calls
