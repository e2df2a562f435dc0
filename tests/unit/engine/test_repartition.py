"""State goes to other key groups by one record: before it nothing has changed, after it all has."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine import repartition as module
from godwit.model.errors import (
    CheckpointError,
    CheckpointMismatchError,
    EpochFailedError,
    InvalidFlowError,
    InvalidPlanError,
)
from godwit.model.key_groups import key_groups_of
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.testing.flows import Run

VALUES = [(f"a{n % 7}", n % 50, n) for n in range(400)]
ROWS = [dict(zip(("area", "user", "v"), row, strict=True)) for row in VALUES]
GROUPS = 12


def flow_of(by: str | list[str] | None) -> gw.Flow:
    flow = gw.Flow("areas", num_key_groups=GROUPS)
    rows = flow.source("rows", gw.testing.stream("area string, user int, v long"))
    sums = rows.key_by("area", "user", partition_by=by).compute(name="sums", v=gw.sum("v"))
    flow.sink("out", sums, gw.sinks.noop())
    return flow


def began(root: Path, by: str | list[str] | None = None) -> Run:
    return gw.testing.cluster(flow_of(by), checkpoint=root / "ck", executors=2)


def sums_of(played: Run) -> dict[tuple[str, int], int]:
    return {(r["area"], r["user"]): r["v"] for r in played.state("sums").to_pylist()}


def expected(times: int) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for area, user, v in VALUES:
        found[area, user] = found.get((area, user), 0) + times * v
    return found


def test_entries_lie_where_the_columns_of_today_place_them(tmp_path: Path) -> None:
    with began(tmp_path) as played:
        played.epoch({"rows": ROWS})
        apart = played.state("sums").select(["area", "key_group"]).to_pylist()
        assert len({(r["area"], r["key_group"]) for r in apart}) > 7
        played.restart(flow_of("area"), repartition=True)
        together = played.state("sums").select(["area", "key_group"]).to_pylist()
        assert len({(r["area"], r["key_group"]) for r in together}) == 7
        played.epoch({"rows": ROWS})
        assert sums_of(played) == expected(2)
        played.restart(flow_of(["user", "area"]), repartition=True)
        played.restart()
        played.epoch({"rows": ROWS})
        assert sums_of(played) == expected(3)
        first = played.state("sums", epoch=0).to_pylist()
        assert {(r["area"], r["user"]): r["v"] for r in first} == expected(1)
    assert not [*verify(CheckpointStorage.open(tmp_path / "ck")).findings]


@pytest.mark.parametrize("max_bytes", [1, 1000, 10**9])
def test_a_state_that_is_larger_than_the_drivers_share_is_rewritten_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    limited = partial(module.repartition, max_bytes=max_bytes)
    monkeypatch.setattr("godwit.engine.recovery.write_placed", limited)
    with began(tmp_path) as played:
        played.epoch({"rows": ROWS})
        played.restart(flow_of("area"), repartition=True)
        assert sums_of(played) == expected(1)
        log = CommitLog.open_read_only(CheckpointStorage.open(tmp_path / "ck"))
        groups = [snapshot.key_group for snapshot in log.record(log.latest_epoch).snapshots]
        assert len(set(groups)) == len(groups)


@pytest.mark.parametrize("survives", [False, True])
def test_a_crash_leaves_the_state_as_it_was_or_as_it_is_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, survives: bool
) -> None:
    with began(tmp_path) as played:
        played.epoch({"rows": ROWS})
    commit = CommitLog.commit

    def crashed(log: CommitLog, record: Any) -> Any:
        if survives:
            commit(log, record)
        raise SystemError("the driver is gone")

    monkeypatch.setattr(CommitLog, "commit", crashed)
    with began(tmp_path) as played, pytest.raises(SystemError):
        played.restart(flow_of("area"), repartition=True)
    monkeypatch.setattr(CommitLog, "commit", commit)
    both = ["area", "user"]
    right, wrong = ("area", both) if survives else (both, "area")
    with pytest.raises(CheckpointMismatchError, match="Checkpointing\\(repartition=True\\)"):
        began(tmp_path, wrong)
    with began(tmp_path, right) as played:
        assert sums_of(played) == expected(1)
        played.epoch({"rows": ROWS})
        assert sums_of(played) == expected(2)


@pytest.mark.parametrize("survives", [False, True])
def test_a_crash_while_a_stream_runs_leaves_either_columns_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, survives: bool
) -> None:
    commit = CommitLog.commit

    def crashed(log: CommitLog, record: Any) -> Any:
        if survives:
            commit(log, record)
        raise SystemError("the driver is gone")

    with began(tmp_path) as played:
        played.epoch({"rows": ROWS})
        monkeypatch.setattr(CommitLog, "commit", crashed)
        with pytest.raises(EpochFailedError, match="the driver is gone"):
            played.components.repartition({"sums": "area"})
        monkeypatch.setattr(CommitLog, "commit", commit)
    with began(tmp_path) as played:
        assert played.flow.operator("sums").partition_by == (("area",) if survives else ())
        assert sums_of(played) == expected(1)
        played.epoch({"rows": ROWS})
        assert sums_of(played) == expected(2)
    assert not [*verify(CheckpointStorage.open(tmp_path / "ck")).findings]


def test_what_was_asked_for_while_it_ran_is_not_taken_back_by_the_next_change(
    tmp_path: Path,
) -> None:
    with began(tmp_path, "area") as played:
        played.epoch({"rows": ROWS})
        for columns, placed in ((["user"], ("user",)), (None, ()), (["user", "area"],) * 2):
            played.components.repartition({"sums": columns})
            assert played.flow.operator("sums").partition_by == tuple(placed)
        assert sums_of(played) == expected(1)
        epochs = played.epochs
        played.components.repartition({"sums": ["user", "area"]})
        assert played.epochs == epochs


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"sum": "area"}, "names 'sum', which is no operator .* Did you mean 'sums'|Its operators"),
        ({"sums": "v"}, "'v' is not a key column"),
        ({"sums": 7}, "of type int"),
        ({"sums": []}, "."),
        ({}, "was given no operator"),
        ("sums", "of type str"),
    ],
)
def test_columns_that_cannot_place_an_operator_are_refused(
    tmp_path: Path, columns: Any, problem: str
) -> None:
    with began(tmp_path) as played:
        played.epoch({"rows": ROWS})
        with pytest.raises((InvalidPlanError, InvalidFlowError), match=problem) as caught:
            played.components.repartition(columns)
        assert caught.value.remedy
        played.epoch({"rows": ROWS})
        assert sums_of(played) == expected(2)


def test_the_same_columns_rewrite_nothing(tmp_path: Path) -> None:
    with began(tmp_path, "area") as played:
        played.epoch({"rows": ROWS})
        played.restart(repartition=True)
        log = CommitLog.open_read_only(CheckpointStorage.open(tmp_path / "ck"))
        assert log.latest_epoch == 0


@pytest.mark.parametrize("live", [True, False])
def test_rows_that_wait_go_with_the_state_of_their_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, live: bool
) -> None:
    with began(tmp_path) as played:
        for _ in range(12):  # more than a copy may lack
            played.epoch({"rows": ROWS})
        played._driver.copies_held = True
        played.add("new")
        played.kill("1")
        with monkeypatch.context() as patch:
            # It does not come to rest while copies are held.
            patch.setattr(played._driver, "run_until_idle", lambda: ())
            for _ in range(3):
                played._play({"rows": ROWS})
        waiting = played._driver.log.chains.waiting_segments("sums")
        assert len({segment.epoch for segment in waiting}) == 3
        assert sums_of(played) != expected(15)
        if live:
            played.components.repartition({"sums": "area"})
        else:
            played.restart(flow_of("area"), repartition=True)
        record = played._driver.log.record(15)
        groups = {group for segment in waiting for group in segment.key_groups}
        assert {*record.consumed["sums"]} == groups
        (segment,) = record.segments
        assert (segment.kind, segment.row_ends[-1]) == (
            "waiting",
            sum(s.row_ends[-1] for s in waiting),
        )
        played.epoch({"rows": ROWS})
        assert sums_of(played) == expected(16)
    assert not [*verify(CheckpointStorage.open(tmp_path / "ck")).findings]


def test_a_hash_says_the_key_group_that_its_entry_is_filed_under(tmp_path: Path) -> None:
    operator = flow_of("area").compiled().operator("sums")
    with began(tmp_path, "area") as played:
        played.epoch({"rows": ROWS})
        table = played.state("sums")
    keys = table.select(["area", "user"]).combine_chunks().to_batches()[0]
    found = key_groups_of(operator.hash_of(keys, GROUPS), GROUPS)
    assert found.tolist() == table["key_group"].to_pylist()


def counts(by: str | list[str] | None, merge: Any = None) -> gw.Flow:
    def count(key: Any, rows: Any, state: Any) -> Any:
        state["n"] = state.get("n", 0) + len(rows)
        yield *key, state["n"]

    flow = gw.Flow("counts", num_key_groups=GROUPS)
    rows = flow.source("rows", gw.testing.stream("area string, user int, v long"))
    out = rows.key_by("area", "user", partition_by=by).process(
        count,
        state=gw.ValueState(dict, merge=merge),
        output="area string, user int, n long",
        name="counts",
    )
    flow.sink("out", out, gw.sinks.noop())
    return flow


@pytest.mark.parametrize("by", [None, ["area", "user"]])
def test_hot_keys_are_merged_only_where_all_key_columns_placed_the_state(
    tmp_path: Path, by: list[str] | None
) -> None:
    merging = counts(by, merge=lambda one, other: {"n": one.get("n", 0) + other.get("n", 0)})
    with gw.testing.cluster(counts("area"), checkpoint=tmp_path / "ck") as played:
        played.epoch({"rows": ROWS})
        with pytest.raises(CheckpointMismatchError, match="was partitioned by area"):
            played.restart(merging)
        with pytest.raises(CheckpointError, match="has spread= or merge="):
            played.restart(merging, repartition=True)
        played.restart(counts(["area", "user"]), repartition=True)
        played.restart(merging)
        played.epoch({"rows": ROWS})
        assert sum(row["n"] for row in played.rows("out").to_pylist()) == 3 * len(ROWS)
