"""Records are a chain: one of another history with the same numbers is refused by name."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.evolution import FlowVersion
from godwit.checkpoint.framing import encode_record
from godwit.checkpoint.ownership import HistoryPoint
from godwit.checkpoint.records import (
    CommitRecord,
    ComponentPlan,
    FlowIdentity,
    PhysicalPlan,
    commit_path,
    flow_path,
    manifest_path,
    plan_path,
)
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CorruptCheckpointError
from godwit.ops.copying import copy_checkpoint
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

BARE: dict[str, Any] = dict.fromkeys(
    ("history", "previous", "query_id", "flow_digest", "plan_digest"), ""
)
FLOW = FlowIdentity(name="flow", num_key_groups=4, query_id="ab" * 16)


def open_log(storage: CheckpointStorage, run_id: str, *, interval: int = 100) -> CommitLog:
    given = FlowIdentity(name="flow", num_key_groups=4)
    identity = given if storage.list("") else FLOW
    return CommitLog.create_or_open(storage, identity, run_id, manifest_interval=interval)


def run(storage: CheckpointStorage, run_id: str, *, until: int, interval: int = 100) -> CommitLog:
    log = open_log(storage, run_id, interval=interval)
    while log.latest_epoch < until:
        log.commit(CommitRecord(epoch=log.latest_epoch + 1, run_id=""))
    return log


@pytest.fixture
def ours(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(tmp_path / "ours")


def backup(tmp_path: Path) -> CheckpointStorage:
    shutil.copytree(tmp_path / "ours", tmp_path / "backup")
    return CheckpointStorage.open(tmp_path / "backup")


def put(source: CheckpointStorage, target: CheckpointStorage, *paths: str) -> None:
    for path in paths:
        target.write_atomic(path, source.read(path).to_pybytes())


def test_each_record_names_its_predecessor_and_its_query(ours: CheckpointStorage) -> None:
    log = run(ours, "a", until=3)
    records = [log.record(epoch) for epoch in range(4)]
    assert [record.previous for record in records] == ["", *(log.digest(e) for e in range(3))]
    assert {record.query_id for record in records} == {FLOW.query_id}
    assert CommitLog.open_read_only(ours).point(3) == log.point(3)
    assert verify(ours).ok


@pytest.mark.parametrize("stolen", [4, 5])
def test_a_record_of_a_restored_backup_that_went_on_is_refused(
    ours: CheckpointStorage, tmp_path: Path, stolen: int
) -> None:
    run(ours, "a", until=3)
    fork = backup(tmp_path)
    run(ours, "ours", until=5)
    run(fork, "theirs", until=5)
    put(fork, ours, commit_path(stolen))
    with pytest.raises(CorruptCheckpointError, match="is of a fork") as refused:
        open_log(ours, "next")
    assert commit_path(5) in str(refused.value)
    if stolen == 5:
        assert "'theirs'" in str(refused.value)
    (found,) = verify(ours).findings
    assert "is of a fork" in found.problem
    assert found.file == commit_path(5)


def test_a_record_of_another_query_is_refused_by_its_name(
    ours: CheckpointStorage, tmp_path: Path
) -> None:
    run(ours, "a", until=3)
    fork = CheckpointStorage.open(tmp_path / "fork")
    made = copy_checkpoint(ours, fork)
    run(fork, "theirs", until=4)
    put(fork, ours, commit_path(4))
    with pytest.raises(CorruptCheckpointError, match=f"of query {made.query_id} committed it"):
        open_log(ours, "next")
    assert any(made.query_id in found.problem for found in verify(ours).findings)


def test_a_manifest_of_a_fork_is_refused(ours: CheckpointStorage, tmp_path: Path) -> None:
    run(ours, "a", until=1)
    fork = backup(tmp_path)
    run(ours, "ours", until=3, interval=3)
    run(fork, "theirs", until=3, interval=3)
    for storage in (ours, fork):
        run(storage, "more", until=4, interval=3)
    put(fork, ours, manifest_path(2))
    with pytest.raises(CorruptCheckpointError, match="another record of epoch 2"):
        open_log(ours, "next")
    assert not verify(ours).ok


@pytest.mark.parametrize("same_query", [False, True])
def test_a_copy_goes_on_in_a_history_of_its_own(
    ours: CheckpointStorage, tmp_path: Path, *, same_query: bool
) -> None:
    log = run(ours, "a", until=3)
    fork = CheckpointStorage.open(tmp_path / "fork")
    copy_checkpoint(ours, fork, same_query=same_query)
    copied = run(fork, "theirs", until=5)
    run(ours, "ours", until=5)
    log = CommitLog.open_read_only(ours)
    assert verify(fork).ok
    assert copied.point(3) == log.point(3)
    assert log.relation(copied.point(3)) == copied.relation(log.point(3)) == "shared"
    assert log.relation(copied.point(4)) == copied.relation(log.point(5)) == "diverged"
    assert copied.point(4).history != log.point(4).history
    assert (copied.point(4).query_id == FLOW.query_id) == same_query
    # A copy of the copy that has not gone on has the same epochs.
    again = CheckpointStorage.open(tmp_path / "again")
    copy_checkpoint(fork, again)
    assert CommitLog.open_read_only(again).relation(copied.point(5)) == "shared"
    assert CommitLog.open_read_only(again).relation(log.point(3)) == "shared"


def test_a_backup_knows_that_what_came_after_it_is_ahead(
    ours: CheckpointStorage, tmp_path: Path
) -> None:
    run(ours, "a", until=2)
    storage = backup(tmp_path)
    later = run(ours, "a", until=15).point(15)
    assert CommitLog.open_read_only(storage).relation(later) == "ahead"
    log = run(storage, "b", until=15)
    assert log.relation(later) == "diverged"
    collected = HistoryPoint(
        query_id=later.query_id, history=later.history, epoch=0, digest=later.digest
    )
    assert log.relation(collected) == "unknown"


def test_a_record_that_names_no_predecessor_is_refused(ours: CheckpointStorage) -> None:
    log = run(ours, "a", until=5)
    ours.write_atomic(commit_path(5), encode_record(replace(log.record(5), **BARE)))
    with pytest.raises(CorruptCheckpointError, match="does not continue its history"):
        open_log(ours, "b")
    assert not verify(ours).ok


@pytest.mark.parametrize("kind", ["flow version", "physical plan"])
def test_a_flow_version_or_a_plan_of_a_fork_is_refused(ours: CheckpointStorage, kind: str) -> None:
    run(ours, "a", until=3)
    if kind == "flow version":
        path, other = flow_path(0), encode_record(FlowVersion(sources=("other",)))
    else:
        path = plan_path(0)
        plan = PhysicalPlan(components=(ComponentPlan(name="a", operators=("a",)),))
        other = encode_record(plan)
    ours.write_atomic(path, other)
    with pytest.raises(CorruptCheckpointError, match=f"ran under another {kind}") as refused:
        open_log(ours, "b")
    assert path in str(refused.value)
    (found,) = verify(ours).findings
    assert found.file == path
