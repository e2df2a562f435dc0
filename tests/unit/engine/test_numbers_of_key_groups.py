"""State goes to another number of key groups in one epoch, and every kind of it arrives."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.dying_disk import DeadError, dying_at

import godwit as gw
from godwit.checkpoint.blocks import BlockWriter
from godwit.checkpoint.collection import collect_garbage, inspect
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.storage import CheckpointStorage
from godwit.cli.main import main
from godwit.engine import repartition as module
from godwit.model.errors import CheckpointError, CheckpointMismatchError
from godwit.model.key_groups import key_groups_of
from godwit.ops.verification import verify

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.testing.flows import Run

ROWS: list[dict[str, Any]] = [{"area": f"a{n % 7}", "user": n % 50, "v": n} for n in range(400)]
TYPES = "area string, user int, v long"


def flow_of(groups: int, by: Any = None, *, doubled: bool = True) -> gw.Flow:
    flow = gw.Flow("areas", num_key_groups=groups)
    rows = flow.source("rows", gw.testing.stream(TYPES))
    keyed = rows.key_by("area", "user", partition_by=by)
    flow.sink("out", keyed.compute(name="sums", v=gw.sum("v")), gw.sinks.noop())
    if doubled:
        greatest = rows.key_by("area").compute(name="greatest", most=gw.max("v"))
        flow.sink("greatest", greatest, gw.sinks.noop())
    return flow


def began(root: Path, groups: int, by: Any = None, **options: Any) -> Run:
    return gw.testing.cluster(flow_of(groups, by, **options), checkpoint=root / "ck", executors=2)


def sums_of(played: Run) -> dict[tuple[str, int], int]:
    return {(r["area"], r["user"]): r["v"] for r in played.state("sums").to_pylist()}


def expected(times: int) -> dict[tuple[str, int], int]:
    sums: dict[tuple[str, int], int] = {}
    for row in ROWS:
        key = row["area"], row["user"]
        sums[key] = sums.get(key, 0) + times * row["v"]
    return sums


def opened(root: Path) -> CommitLog:
    return CommitLog.open_read_only(CheckpointStorage.open(root / "ck"))


def findings(root: Path) -> list[Any]:
    return [*verify(CheckpointStorage.open(root / "ck")).findings]


@pytest.mark.parametrize("max_bytes", [1, 10**9])
def test_more_and_fewer_key_groups_have_the_same_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    limited = partial(module.repartition, max_bytes=max_bytes)
    monkeypatch.setattr("godwit.engine.recovery.write_placed", limited)
    with began(tmp_path, 12) as played:
        played.epoch({"rows": ROWS})
        for times, (number, by) in enumerate(
            [(48, None), (7, None), (1, None), (12, "area"), (30, "area"), (6, ["user"])], start=1
        ):
            played.restart(flow_of(number, by), repartition=True)
            (event,) = [e for e in played.events if isinstance(e, gw.events.KeyGroupsChanged)][-1:]
            assert (event.after, event.entries) == (number, len(expected(1)) + 7)
            table = played.state("sums").select(["area", "user", "key_group"])
            keys = table.combine_chunks().to_batches()[0]
            hashes = played.flow.operator("sums").hash_of(keys, number)
            assert key_groups_of(hashes, number).tolist() == table["key_group"].to_pylist()
            assert sums_of(played) == expected(times)
            played.epoch({"rows": ROWS})
            assert sums_of(played) == expected(times + 1)
        earlier = played.state("sums", epoch=4).to_pylist()  # of seven key groups
        assert {(r["area"], r["user"]): r["v"] for r in earlier} == expected(3)
    assert not findings(tmp_path)
    assert inspect(CheckpointStorage.open(tmp_path / "ck")).num_key_groups == 6


def test_a_number_that_the_start_does_not_ask_to_change_is_refused_with_the_way_to_do_it(
    tmp_path: Path,
) -> None:
    with began(tmp_path, 12) as played:
        played.epoch({"rows": ROWS})
        with pytest.raises(CheckpointMismatchError, match="it has 12 key groups, not 48") as caught:
            played.restart(flow_of(48))
        assert "repartition=True" in caught.value.remedy
        assert "num_key_groups=12" in caught.value.remedy
    with began(tmp_path, 12) as played:
        assert sums_of(played) == expected(1)


def test_a_driver_that_dies_at_any_step_leaves_either_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with began(tmp_path, 12, doubled=False) as played:
        played.epoch({"rows": ROWS})
    in_a_file = partial(BlockWriter, inline_limit_bytes=0)
    monkeypatch.setattr(module, "BlockWriter", in_a_file)
    stored: set[int] = set()
    for step in count():
        root = tmp_path / str(step)
        shutil.copytree(tmp_path / "ck", root / "ck")
        with began(root, 12, doubled=False) as played:
            died = False
            try:
                with dying_at(monkeypatch, step):
                    played.restart(flow_of(4, doubled=False), repartition=True)
            except DeadError:
                died = True
        now = opened(root).chains.num_key_groups
        stored.add(now)
        with began(root, now, doubled=False) as played:
            assert sums_of(played) == expected(1), step
            played.epoch({"rows": ROWS})
            assert sums_of(played) == expected(2), step
        assert not findings(root), step
        if not died:
            assert step > 10
            break
    assert any(path.stat().st_size for path in (root / "ck" / "blocks").iterdir())
    assert stored == {12, 4}


def test_the_state_of_an_operator_that_has_left_the_flow_comes_along(tmp_path: Path) -> None:
    with began(tmp_path, 12) as played:
        played.epoch({"rows": ROWS})
        played.restart(flow_of(12, doubled=False))
        played.epoch({"rows": ROWS})
        played.restart(flow_of(36, doubled=False), repartition=True)
        played.epoch({"rows": ROWS})
        played.restart(flow_of(36))
        assert sums_of(played) == expected(3)
        greatest = {r["area"]: r["most"] for r in played.state("greatest").to_pylist()}
        assert greatest == {f"a{n}": max(range(n, 400, 7)) for n in range(7)}
    assert not findings(tmp_path)


def test_state_that_only_its_operator_can_read_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    def flow(groups: int, *results: str) -> gw.Flow:
        made = gw.Flow("areas", num_key_groups=groups)
        rows = made.source("rows", gw.testing.stream(TYPES))
        keyed = rows.key_by("area")
        made.sink("out", keyed.compute(name="sums", v=gw.sum("v")), gw.sinks.noop())
        if results:
            some: dict[str, Any] = {name: gw.max("v") for name in results}
            made.sink("other", keyed.compute(name="other", **some), gw.sinks.noop())
        return made

    with gw.testing.cluster(flow(12, "a"), checkpoint=tmp_path / "ck") as played:
        played.epoch({"rows": ROWS})
        played.restart(flow(12, "a", "b"))
        played.epoch({"rows": ROWS[:20]})
        played.restart(flow(12))
        played.epoch({"rows": ROWS})
        with pytest.raises(CheckpointError, match="has left the flow") as caught:
            played.restart(flow(24), repartition=True)
        assert "checkpoint drop" in caught.value.remedy
    assert opened(tmp_path).chains.num_key_groups == 12
    assert main(["checkpoint", "drop", str(tmp_path / "ck"), "other"]) == 0
    with gw.testing.cluster(flow(12), checkpoint=tmp_path / "ck") as played:
        played.epoch({"rows": ROWS})
        played.restart(flow(24), repartition=True)
    assert not findings(tmp_path)


def test_rows_that_wait_go_with_the_state_of_their_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with began(tmp_path, 12) as played:
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
        assert played._driver.log.chains.waiting_operators == ("greatest", "sums")
        played.restart(flow_of(5), repartition=True)
        played.epoch({"rows": ROWS})
        assert sums_of(played) == expected(16)
    assert not findings(tmp_path)


def test_manifests_and_collections_go_over_the_change(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path / "ck")
    with began(tmp_path, 12) as played:
        for _ in range(4):
            played.epoch({"rows": ROWS})
        played._driver.log.manifest_interval = 2
        played.restart(flow_of(24), repartition=True)
        played._driver.log.manifest_interval = 2
        for _ in range(14):
            played.epoch({"rows": ROWS})
            collect_garbage(played._driver.log)
        assert not findings(tmp_path)
        played.restart()
        assert sums_of(played) == expected(18)
    log = CommitLog.open_read_only(storage)
    assert (log.identity.num_key_groups, log.chains.num_key_groups) == (12, 24)
    assert main(["checkpoint", "copy", str(tmp_path / "ck"), str(tmp_path / "fork")]) == 0
    assert not verify(CheckpointStorage.open(tmp_path / "fork")).findings
    assert main(["checkpoint", "repair", str(tmp_path / "ck")]) == 0


def test_parts_of_hot_keys_keep_their_states(tmp_path: Path) -> None:
    def number(key: Any, rows: Any, state: Any) -> Any:
        state.value += len(rows)
        yield key[0], state.value

    def flow(groups: int) -> gw.Flow:
        made = gw.Flow("hot", num_key_groups=groups)
        keyed = made.source("rows", gw.testing.stream("k string, v long")).key_by("k")
        state = gw.ValueState(int, merge=lambda one, other: one + other)
        counts = keyed.process(number, state=state, output="k string, n long", name="p")
        made.sink("out", counts, gw.sinks.noop())
        return made

    rows = [{"k": "hot", "v": n} for n in range(40)] + [{"k": "cold", "v": 0}]
    with gw.testing.cluster(flow(16), checkpoint=tmp_path / "ck", executors=2) as played:
        played.hot_keys.spread("p", "hot", left=3)
        for groups in (2, 64, 16):
            played.epoch({"rows": rows})
            played.restart(flow(groups), repartition=True)
        played.epoch({"rows": rows})
        played.hot_keys.gather("p", "hot")
        played.epoch({"rows": rows})
        totals = {r["k"]: r["state"] for r in played.state("p").to_pylist()}
        assert totals == {"hot": "200", "cold": "5"}
    assert not findings(tmp_path)


def test_tables_that_every_lane_has_are_read_in_another_number_of_key_groups(
    tmp_path: Path,
) -> None:
    def convert(key: Any, rows: Any, state: Any, rates: Any) -> Any:
        yield key[0], sum(row.v * rates[key[0]].rate for row in rows)

    def flow(groups: int) -> gw.Flow:
        made = gw.Flow("rates", num_key_groups=groups)
        rates = made.source("rates", gw.testing.stream("area string, rate long"))
        rows = made.source("rows", gw.testing.stream(TYPES))
        converted = rows.key_by("area").process(
            convert,
            state=dict,
            output="area string, v long",
            name="converted",
            broadcast={"rates": rates.key_by("area")},
        )
        made.sink("out", converted, gw.sinks.noop())
        return made

    table = [{"area": f"a{n}", "rate": n} for n in range(7)]
    with gw.testing.cluster(flow(12), checkpoint=tmp_path / "ck", executors=2) as played:
        played.epoch({"rates": table, "rows": []})
        for groups in (48, 5, 1):
            played.restart(flow(groups), repartition=True)
            out = played.epoch({"rows": [{"area": "a3", "user": 1, "v": groups}]})["out"]
            assert out.to_pylist() == [{"area": "a3", "v": 3 * groups}]
    assert not findings(tmp_path)
