"""Epochs that stay under a name, and starts from earlier epochs, which take later ones back."""

from __future__ import annotations

import shutil
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.dying_disk import DeadError, dying_at

import godwit as gw
from godwit.checkpoint.collection import collect_garbage, inspect
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.epochs import keep_epoch, release_epoch, take_back
from godwit.checkpoint.records import CommitRecord, commit_path
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.model.errors import CheckpointError, ConcurrentRunError
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.testing.flows import Run


def flow_of(groups: int = 4) -> gw.Flow:
    flow = gw.Flow("sums", num_key_groups=groups)
    rows = flow.source("rows", gw.testing.stream("k string, v long"))
    sums = rows.key_by("k").compute(name="sums", total=gw.sum("v"))
    flow.sink("out", sums, gw.sinks.noop())
    return flow


def cluster(root: Path, **options: Any) -> Run:
    return gw.testing.cluster(flow_of(), checkpoint=root / "ck", **options)


def add(played: Run, *values: int) -> None:
    for value in values:
        played.epoch({"rows": [{"k": "a", "v": value}, {"k": f"b{value % 3}", "v": 1}]})


def total(played: Run) -> int:
    (row,) = [r for r in played.state("sums").to_pylist() if r["k"] == "a"]
    return int(row["total"])


def storage_of(root: Path) -> CheckpointStorage:
    return CheckpointStorage.open(root / "ck")


def sound(root: Path) -> bool:
    return not verify(storage_of(root)).findings


def test_a_start_from_an_earlier_epoch_continues_as_if_later_ones_had_never_been(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as played:
        add(played, 1, 2, 4, 8, 16)
        played.restart(from_epoch=2)
        assert total(played) == 7
        assert [r["total"] for r in played.rows("out").to_pylist() if r["k"] == "a"] == [1, 3, 7]
        (event,) = [e for e in played.events if isinstance(e, gw.events.StartedFromEpoch)]
        assert (event.after, event.last, event.goes_on_after) == (2, 4, None)
        add(played, 100)
        played.restart()
        add(played, 1000)
        assert total(played) == 1107
        # The same program, started again, goes on.
        played.restart(from_epoch=2)
        assert total(played) == 1107
        last = [e for e in played.events if isinstance(e, gw.events.StartedFromEpoch)][-1]
        assert last.goes_on_after == 4
        add(played, 1)
        assert sound(tmp_path)
        played.restart(from_epoch=1)
        assert total(played) == 3
        add(played, 5)
        assert total(played) == 8
    assert sound(tmp_path)
    with cluster(tmp_path) as played:
        assert total(played) == 8


def test_a_process_that_dies_at_any_step_leaves_the_last_epoch_or_the_one_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as played:
        add(played, 1, 2, 4, 8)
    ends = set()
    for step in count():
        root = tmp_path / str(step)
        shutil.copytree(tmp_path / "ck", root / "ck")
        died = False
        try:
            with dying_at(monkeypatch, step):
                take_back(storage_of(root), 1, "run")
        except DeadError:
            died = True
        latest = CommitLog.open_read_only(storage_of(root)).latest_epoch
        ends.add(latest)
        assert sound(root), step
        with cluster(root) as played:
            assert total(played) == (3 if latest == 1 else 15), step
            add(played, 100)
            assert total(played) == (103 if latest == 1 else 115), step
            assert {*storage_of(root).list("commits")} == {
                commit_path(n) for n in range(latest + 2)
            }
        assert sound(root), step
        if not died:
            assert step > 4
            break
    assert ends == {1, 3}


def test_a_former_run_commits_nothing_into_the_new_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as played:
        add(played, 1, 2, 4)
        former = played._driver.log
        # It has just seen that it owns the checkpoint, and sleeps.
        record = CommitRecord(epoch=3, run_id="")
        checked = CommitLog._check_ownership
        taken: list[Any] = []

        def asleep(log: CommitLog) -> None:
            checked(log)
            if log is former and not taken:
                taken.append(take_back(storage_of(tmp_path), 1, "other"))

        monkeypatch.setattr(CommitLog, "_check_ownership", asleep)
        former.commit(record)
        with pytest.raises(ConcurrentRunError):
            former.commit(CommitRecord(epoch=4, run_id=""))
    assert commit_path(3) in storage_of(tmp_path).list("commits")
    assert CommitLog.open_read_only(storage_of(tmp_path)).latest_epoch == 1
    assert sound(tmp_path)
    log = CommitLog.create_or_open(storage_of(tmp_path), former.identity, "next")
    for epoch in (2, 3, 4):
        log.commit(CommitRecord(epoch=epoch, run_id=""))
    assert log.load_record(3).run_id == "next"
    assert sound(tmp_path)
    with cluster(tmp_path) as played:
        assert total(played) == 3


def test_a_kept_epoch_survives_retention_collection_copies_and_a_change_of_the_flow(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "ck")
    with cluster(tmp_path) as played:
        add(played, 1, 2, 4)
        assert main(["checkpoint", "keep", path, "before"]) == 0
        log = played._driver.log
        log.manifest_interval = 3
        for _ in range(30):
            add(played, 1)
            collect_garbage(log)
        assert log.retained_epochs.start > 20
        assert main(["checkpoint", "keep", path, "later", "--epoch", "30"]) == 0
        assert main(["checkpoint", "keep", path, "before"]) == 2
        assert main(["checkpoint", "keep", path, "gone", "--epoch", "5"]) == 2
        assert main(["checkpoint", "keep", path, "17"]) == 2
        assert main(["checkpoint", "kept", path]) == 0
        rows = played.state("sums", epoch=2).to_pylist()
        assert {r["k"]: r["total"] for r in rows}["a"] == 7
    storage = storage_of(tmp_path)
    assert inspect(storage).kept_epochs == {"before": 2, "later": 30}
    assert sound(tmp_path)
    assert main(["checkpoint", "copy", path, str(tmp_path / "copy" / "ck")]) == 0
    assert sound(tmp_path / "copy")
    for root in (tmp_path, tmp_path / "copy"):
        with gw.testing.cluster(flow_of(), checkpoint=root / "ck") as played:
            with pytest.raises(CheckpointError, match=r"keeps later epochs, 30 \('later'\)"):
                played.restart(from_epoch="before")
            release_epoch(storage_of(root), "later")
            with pytest.raises(CheckpointError, match="no epoch under the name 'befor'") as caught:
                played.restart(from_epoch="befor")
            assert "Did you mean 'before'" in caught.value.remedy
            played.restart(from_epoch="before")
            assert total(played) == 7
            add(played, 10)
            for _ in range(14):
                add(played, 0)
                collect_garbage(played._driver.log)
            assert total(played) == 17
            played.restart(flow_of(9), repartition=True)
            assert total(played) == 17
            played.restart(from_epoch="before")  # as before: it goes on
            assert total(played) == 17
        assert sound(root)
    assert main(["checkpoint", "take-back", path, "before"]) == 0
    with cluster(tmp_path) as played:  # of four key groups, as then
        assert total(played) == 7
    assert main(["checkpoint", "release", path, "before"]) == 0
    assert main(["checkpoint", "release", path, "before"]) == 2


def test_an_epoch_that_ceases_to_be_retained_while_it_is_named_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(tmp_path) as played:
        add(played, *range(1, 12))
        storage = storage_of(tmp_path)
        create = type(storage).create_exclusive

        def slow(own: CheckpointStorage, path: str, data: bytes) -> None:
            if path.startswith("kept/"):
                monkeypatch.setattr(type(storage), "create_exclusive", create)
                add(played, 1, 2)
                collect_garbage(played._driver.log)
            create(own, path, data)

        monkeypatch.setattr(type(storage), "create_exclusive", slow)
        with pytest.raises(CheckpointError, match="ceased to be retained"):
            keep_epoch(storage, "x", played._driver.log.retained_epochs.start)
    assert not storage.list("kept")
    assert sound(tmp_path)


def test_damage_to_a_kept_epoch_is_a_finding(tmp_path: Path) -> None:
    with cluster(tmp_path) as played:
        add(played, 1, 2, 4)
        keep_epoch(storage_of(tmp_path), "x", 1)
        played._driver.log.manifest_interval = 2
        for _ in range(12):
            add(played, 1)
            collect_garbage(played._driver.log)
    assert sound(tmp_path)
    (tmp_path / "ck" / commit_path(1)).unlink()
    (finding,) = [f for f in verify(storage_of(tmp_path)).findings if f.file.startswith("kept")]
    assert "Epoch 1 cannot be read" in finding.problem


@pytest.mark.parametrize("asked", [-1, 99, "nothing", True])
def test_what_cannot_be_started_from_is_refused_and_changes_nothing(
    tmp_path: Path, asked: Any
) -> None:
    with cluster(tmp_path) as played:
        add(played, 1, 2)
    before = {path: path.read_bytes() for path in (tmp_path / "ck").rglob("*.rec")}
    if asked is not True:
        with pytest.raises(CheckpointError):
            take_back(storage_of(tmp_path), asked, "run")
    assert {path: path.read_bytes() for path in (tmp_path / "ck").rglob("*.rec")} == before
    with pytest.raises(CheckpointError, match="no checkpoint"):
        take_back(CheckpointStorage.open(tmp_path / "none"), 1, "run")
