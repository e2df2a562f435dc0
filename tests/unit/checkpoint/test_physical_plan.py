"""A physical plan is written once, and every epoch names the one it ran under."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from godwit.checkpoint.collection import collect_garbage, inspect
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.framing import decode_record, encode_record
from godwit.checkpoint.records import (
    PLANS,
    CommitRecord,
    ComponentPlan,
    FlowIdentity,
    PhysicalPlan,
    plan_path,
)
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.model.errors import CorruptCheckpointError
from godwit.ops.copying import copy_checkpoint
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = FlowIdentity(name="flow", num_key_groups=4)
APART = PhysicalPlan(
    components=(
        ComponentPlan(name="a", operators=("a",)),
        ComponentPlan(name="b", operators=("b",)),
    )
)
TOGETHER = PhysicalPlan(components=(ComponentPlan(name="both", operators=("a", "b")),))


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(tmp_path / "ck")


def start(storage: CheckpointStorage, plan: PhysicalPlan | None = None) -> CommitLog:
    return CommitLog.create_or_open(storage, IDENTITY, "r", plan=plan, retain_epochs=2)


def commit(log: CommitLog, epochs: int = 1) -> list[int]:
    numbers = []
    for _ in range(epochs):
        epoch = log.latest_epoch + 1
        numbers.append(log.commit(CommitRecord(epoch=epoch, run_id="")).plan)
    return numbers


def test_a_plan_is_one_number_for_as_long_as_it_stays_the_same(storage: CheckpointStorage) -> None:
    log = start(storage, APART)
    assert commit(log, 2) == [0, 0]
    log.use_plan(APART)
    assert commit(log) == [0]
    log.use_plan(TOGETHER)
    assert commit(log, 2) == [1, 1]
    log.use_plan(APART)
    assert commit(log) == [2]
    assert CommitLog.open_read_only(storage).physical_plan == APART


def test_a_start_goes_on_under_the_plan_of_the_last_epoch(storage: CheckpointStorage) -> None:
    log = start(storage, APART)
    commit(log)
    log.use_plan(TOGETHER)  # and fails before an epoch: it counts for nothing
    again = start(storage)
    assert again.physical_plan == APART
    assert commit(again) == [0]
    assert commit(start(storage, TOGETHER)) == [2]


def test_plans_that_no_retained_epoch_ran_under_are_collected(storage: CheckpointStorage) -> None:
    log = start(storage, APART)
    commit(log)
    log.use_plan(TOGETHER)
    commit(log)
    collect_garbage(log)
    assert len(storage.list(PLANS)) == 2
    commit(log)
    collect_garbage(log)
    assert list(storage.list(PLANS)) == [plan_path(1)]
    assert verify(storage).ok


def test_a_plan_that_is_missing_is_found_and_a_start_is_refused(storage: CheckpointStorage) -> None:
    commit(start(storage, APART))
    storage.delete(plan_path(0))
    (finding,) = verify(storage).findings
    assert finding.file == plan_path(0)
    with pytest.raises(CorruptCheckpointError, match=plan_path(0)):
        start(storage)


def test_a_copy_has_the_plan(storage: CheckpointStorage, tmp_path: Path) -> None:
    commit(start(storage, TOGETHER))
    target = CheckpointStorage.open(tmp_path / "copy")
    copy_checkpoint(storage, target)
    assert inspect(target).components == {"both": ("a", "b")}


@pytest.mark.parametrize(
    ("components", "told"),
    [
        ((("a", ("x",)), ("a", ("y",))), "names a component twice"),
        ((("a", ("x",)), ("b", ("x",))), "names an operator twice"),
        ((("a", ()),), "component without operators"),
    ],
)
def test_a_plan_that_says_what_cannot_be_so_is_refused(
    components: tuple[tuple[str, tuple[str, ...]], ...], told: str
) -> None:
    plan = PhysicalPlan(components=tuple(ComponentPlan(name=n, operators=o) for n, o in components))
    with pytest.raises(CorruptCheckpointError, match=told):
        decode_record(encode_record(plan), PhysicalPlan, path=plan_path(0))


def test_inspect_shows_which_operators_share_a_component(
    storage: CheckpointStorage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = start(storage, APART)
    commit(log)
    path = str(tmp_path / "ck")
    assert main(["checkpoint", "inspect", path]) == 0
    assert "0: each operator is a component of its own" in capsys.readouterr().out
    log.use_plan(TOGETHER)
    commit(log)
    assert main(["checkpoint", "inspect", path]) == 0
    assert "1: both = a, b" in capsys.readouterr().out
    assert main(["checkpoint", "inspect", path, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["plan"], values["components"]) == (1, {"both": ["a", "b"]})
