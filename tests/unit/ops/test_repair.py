from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace as replace_record
from tests.oracles.checkpoint_model import assert_equals as assert_state
from tests.oracles.checkpoint_model import make_history, models, open_log, run_epoch

from godwit.checkpoint.collection import collect_garbage
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.framing import encode_record, load_record
from godwit.checkpoint.records import Manifest, commit_path, flow_path, manifest_path, plan_path
from godwit.checkpoint.repair import execute_repair
from godwit.checkpoint.storage import CheckpointStorage, LocalStorage
from godwit.model.errors import CheckpointError
from godwit.ops.copying import copy_checkpoint
from godwit.ops.verification import (
    plan_record_repair,
    start_problems,
    verify,
)

if TYPE_CHECKING:
    from pathlib import Path

HISTORY = make_history(5, 7)


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    """A checkpoint of seven epochs, with manifests of some."""
    log = open_log(CheckpointStorage.open(tmp_path))
    for epoch in HISTORY:
        run_epoch(log, epoch, inline_limit_bytes=0)
    return log


def repair(storage: CheckpointStorage) -> list[tuple[str, str]]:
    plan = plan_record_repair(storage)
    execute_repair(storage, plan.steps)
    return [(step.path, step.action) for step in plan.steps]


def assert_whole(storage: CheckpointStorage) -> None:
    log = CommitLog.open_read_only(storage)
    assert log.latest_epoch == len(HISTORY) - 1
    assert_state(storage, log.chains, models(HISTORY)[-1])
    assert verify(storage).findings == ()
    assert plan_record_repair(storage).steps == ()


def test_there_is_nothing_to_repair_about_a_checkpoint_that_is_whole(log: CommitLog) -> None:
    assert_whole(log.storage)


@pytest.mark.parametrize("number", [8, 99, 999_999_999_999])
def test_a_stray_record_above_the_last_epoch_is_set_aside(log: CommitLog, number: int) -> None:
    data = log.storage.read(commit_path(3)).to_pybytes()
    log.storage.write_atomic(commit_path(number), data)
    log.storage.write_atomic(manifest_path(number), b"")
    with pytest.raises(CheckpointError):
        CommitLog.open_read_only(log.storage)
    assert repair(log.storage) == [
        (commit_path(number), "set aside"),
        (manifest_path(number), "set aside"),
    ]
    assert log.storage.read(f"set-aside/{commit_path(number)}").to_pybytes() == data
    assert_whole(log.storage)


@pytest.mark.parametrize("damage", ["missing", "torn"])
def test_a_manifest_that_the_records_can_give_again_is_written(tmp_path: Path, damage: str) -> None:
    log = open_log(CheckpointStorage.open(tmp_path))
    log.retain_epochs = len(HISTORY)  # so that no record is collected
    for epoch in HISTORY:
        run_epoch(log, epoch, inline_limit_bytes=0)
    assert log.latest is not None
    path = manifest_path(log.latest.manifest)
    whole = log.storage.read(path).to_pybytes()
    log.storage.delete(path)
    if damage == "torn":
        log.storage.write_atomic(path, whole[:100])
    with pytest.raises(CheckpointError):
        CommitLog.open_read_only(log.storage)
    assert repair(log.storage) == [(path, "write")]
    assert log.storage.read(path).to_pybytes() == whole
    assert_whole(log.storage)


def test_a_damaged_record_that_stands_alone_beside_its_manifest_is_said_to_be_lost(
    log: CommitLog,
) -> None:
    last = log.latest_epoch
    for path in log.storage.list("commits"):
        if path != commit_path(last):
            log.storage.delete(path)
    log.storage.write_atomic(manifest_path(last), encode_record(log.chains.manifest()))
    log.storage.write_atomic(commit_path(last), b"GWR")
    ((path, action),) = repair(log.storage)
    assert (path, action) == (commit_path(last), "none")


def test_a_manifest_that_nothing_can_give_again_is_said_to_be_lost(log: CommitLog) -> None:
    for path in log.storage.list("manifests"):
        log.storage.delete(path)
    log.storage.delete(commit_path(0))
    ((path, action),) = repair(log.storage)
    assert (path, action) == ("commits", "none")


def test_a_damaged_last_record_is_never_taken_for_one_that_does_not_count(log: CommitLog) -> None:
    path = commit_path(log.latest_epoch)
    log.storage.write_atomic(path, log.storage.read(path).to_pybytes()[:-1])
    assert repair(log.storage) == [(path, "none")]
    assert list(log.storage.list("commits"))[-1] == path


@pytest.mark.parametrize("damage", ["missing", "torn", "of another epoch"])
def test_epochs_after_a_record_that_is_gone_are_taken_back_by_name(
    log: CommitLog, damage: str
) -> None:
    storage, last = log.storage, log.latest_epoch
    for path in storage.list("manifests"):
        if path > manifest_path(last - 2):
            storage.delete(path)
    data = storage.read(commit_path(last - 1)).to_pybytes()
    storage.delete(commit_path(last - 1))
    if damage != "missing":
        wrong = data[:99] if damage == "torn" else storage.read(commit_path(last)).to_pybytes()
        storage.write_atomic(commit_path(last - 1), wrong)
    assert start_problems(storage) != () or damage == "missing"
    plan = plan_record_repair(storage)
    assert plan.taken_back == (last - 1, last)
    assert [record.epoch for record in plan.records][-1] == last - 2
    execute_repair(storage, plan.steps)
    assert storage.read(f"set-aside/{commit_path(last)}").size
    again = CommitLog.open_read_only(storage)
    assert again.latest_epoch == last - 2
    assert_state(storage, again.chains, models(HISTORY)[last - 2])
    assert start_problems(storage) == ()
    assert verify(storage).findings == ()
    assert plan_record_repair(storage) == replace(plan, steps=(), taken_back=())


def test_epochs_that_the_ones_taken_back_had_let_go_of_are_not_offered_any_more(
    tmp_path: Path,
) -> None:
    storage = CheckpointStorage.open(tmp_path / "checkpoint")
    log = open_log(storage)
    log.retain_epochs = 4
    for epoch in HISTORY:
        run_epoch(log, epoch, inline_limit_bytes=0)
    last = log.latest_epoch
    collect_garbage(log)
    first = log.retained_epochs.start
    assert log.load_record(last - 2).retained_from < first
    for path in storage.list("manifests"):
        if path > manifest_path(last - 2):
            storage.delete(path)
    storage.delete(commit_path(last - 1))
    plan = plan_record_repair(storage)
    execute_repair(storage, plan.steps[:2])  # and then the process dies
    execute_repair(storage, plan_record_repair(storage).steps)
    again = open_log(storage)
    assert again.retained_epochs == range(first, last - 1)
    assert verify(storage).findings == ()
    assert collect_garbage(again).errors == ()
    copy_checkpoint(storage, CheckpointStorage.open(tmp_path / "copy"))
    run_epoch(again, HISTORY[last - 1], inline_limit_bytes=0)
    assert again.retained_epochs.start >= first
    assert again.latest is not None
    assert again.latest.retained_from == again.retained_epochs.start
    assert verify(storage).findings == ()


@pytest.mark.parametrize("what", ["block", "plan", "flow version"])
def test_epochs_are_not_taken_back_where_what_came_before_is_collected(
    log: CommitLog, what: str
) -> None:
    storage, last = log.storage, log.latest_epoch
    for path in storage.list("manifests"):
        if path > manifest_path(last - 2):
            storage.delete(path)
    gone = {
        "block": min(block.file for block in log.replay_chains(last - 2).blocks()),
        "plan": plan_path(log.load_record(last - 2).plan),
        "flow version": flow_path(log.replay_chains(last - 2).flow),
    }[what]
    storage.delete(commit_path(last - 1))
    storage.delete(gone)
    plan = plan_record_repair(storage)
    assert [(step.path, step.action) for step in plan.steps] == [(commit_path(last - 1), "none")]
    assert gone in plan.steps[0].problem
    assert plan.taken_back == ()


def test_a_trial_start_finds_what_the_latest_epoch_lacks(log: CommitLog) -> None:
    storage = log.storage
    assert start_problems(storage) == ()
    block = min(log.chains.blocks(), key=lambda block: block.file)
    gone, data = block.file, storage.read(block.file).to_pybytes()
    storage.write_atomic(gone, data[: block.offset])
    (cut,) = start_problems(storage)
    assert (cut.file, "fewer" in cut.problem) == (gone, True)
    storage.delete(gone)
    (missing,) = start_problems(storage)
    assert (missing.file, "missing" in missing.problem) == (gone, True)
    storage.write_atomic(gone, data)
    storage.delete(flow_path(0))
    assert [found.file for found in start_problems(storage)] == [flow_path(0)]
    storage.delete("identity.rec")
    assert [found.file for found in start_problems(storage)] == ["identity.rec"]


def test_a_manifest_of_another_history_is_written_anew(log: CommitLog) -> None:
    storage = log.storage
    assert log.latest is not None
    path = manifest_path(log.latest.manifest)
    whole = storage.read(path).to_pybytes()
    foreign = replace_record(load_record(storage, path, Manifest), record="ab" * 16)
    storage.write_atomic(path, encode_record(foreign))
    with pytest.raises(CheckpointError, match="does not continue its history"):
        CommitLog.open_read_only(storage)
    done = repair(storage)
    assert done in ([(path, "write")], [(path, "none")])
    if done == [(path, "write")]:
        assert storage.read(path).to_pybytes() == whole


class Dying(LocalStorage):
    """A disk of a process that is killed after so many changes."""

    left = 10**6

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def write_atomic(self, path: str, data: bytes) -> None:
        self._count()
        super().write_atomic(path, data)

    def delete(self, path: str) -> None:
        self._count()
        super().delete(path)


def test_a_repair_that_is_killed_at_any_step_is_finished_by_the_next(
    log: CommitLog, tmp_path: Path
) -> None:
    last = log.latest_epoch
    for path in log.storage.list("manifests"):
        if path > manifest_path(last - 2):
            log.storage.delete(path)
    log.storage.delete(commit_path(last - 1))
    log.storage.write_atomic(commit_path(99), b"stray")
    killed = 0
    while True:
        directory = tmp_path.with_name(f"{tmp_path.name}-{killed}")
        shutil.copytree(tmp_path, directory)
        storage = Dying(str(directory))
        storage.left = killed
        try:
            execute_repair(storage, plan_record_repair(storage).steps)
        except KeyboardInterrupt:
            storage.left = 10**6
            execute_repair(storage, plan_record_repair(storage).steps)
            killed += 1
        else:
            break
        again = CommitLog.open_read_only(storage)
        assert again.latest_epoch == last - 2
        assert_state(storage, again.chains, models(HISTORY)[last - 2])
        assert start_problems(storage) == ()
        set_aside = set(storage.list("set-aside/commits"))
        assert set_aside == {f"set-aside/{commit_path(number)}" for number in (last, 99)}
    assert killed > 3
