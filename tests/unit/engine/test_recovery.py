"""State that a start recovers from a checkpoint, and state that it ignores."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from tests.oracles.evolving import COLUMNS, NUM_KEY_GROUPS, Program, compiled
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.checkpoint.evolution import FlowChanges
from godwit.checkpoint.records import CommitRecord, ComponentPlan, PhysicalPlan
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine import recovery as recovery_module
from godwit.engine.cluster import Executor
from godwit.engine.recovery import (
    Recovery,
    adapt_stored_plan,
    last_loads,
    recover_flow,
    run_started,
)
from godwit.engine.settings import Lanes
from godwit.migration.outcome import LoadSummary
from godwit.model.errors import CheckpointError, CheckpointMismatchError
from godwit.model.key_groups import KeyGroupLoad
from godwit.plan.lineage import flow_version

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.checkpoint.evolution import FlowVersion
    from godwit.plan.compiled import CompiledFlow

FLOW = compiled(Program(operators={"a": ("total",)}))


def of_sources(*sources: str) -> CompiledFlow:

    return dataclasses.replace(FLOW, sources=sources)


def start(directory: Path, flow: CompiledFlow) -> None:
    recover_flow(flow, CheckpointStorage.open(directory), "run", retain_epochs=3)


def write_sparks_part(directory: Path) -> list[Path]:
    names = ["metadata", "offsets/0", "sources/0/0"]
    files = [directory / "spark" / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    return files


@pytest.mark.parametrize("file", ["metadata", "offsets/0", "spark/metadata", "spark/offsets/7"])
def test_the_checkpoint_of_a_spark_query_is_not_taken_for_a_new_one(
    tmp_path: Path, file: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("Spark's")
    with pytest.raises(CheckpointError, match="of a Spark query") as caught:
        start(tmp_path, FLOW)
    assert "directory of its own" in caught.value.remedy
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / file]


def test_offsets_are_never_forgotten_once_an_epoch_is_committed(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    log, _ = recover_flow(of_sources("left", "right"), storage, "run", retain_epochs=3)
    log.commit(CommitRecord(epoch=0, run_id=""))
    files = write_sparks_part(tmp_path)
    with pytest.raises(CheckpointMismatchError, match="source 'left' is gone"):
        start(tmp_path, of_sources("right"))
    assert all(file.exists() for file in files)


def test_a_start_that_does_not_fit_takes_nothing_over(tmp_path: Path) -> None:
    storage = CheckpointStorage.open(tmp_path)
    log, _ = recover_flow(FLOW, storage, "first", retain_epochs=3)
    log.commit(CommitRecord(epoch=0, run_id=""))
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    with pytest.raises(CheckpointMismatchError, match="operator 'a': kind was 'compute'"):
        start(tmp_path, compiled(Program(operators={"a": ()})))
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


def plan(**components: tuple[str, ...]) -> PhysicalPlan:
    return PhysicalPlan(
        components=tuple(ComponentPlan(name=n, operators=o) for n, o in components.items())
    )


def test_a_physical_plan_is_carried_on_to_the_operators_that_there_are_now() -> None:
    held = plan(a=("a", "b"), c=("c",), d=("d",))
    given = plan(x=("x",), b=("b",), d=("d",), new=("new",))
    carried = adapt_stored_plan(held, given, {"a": "x"})
    assert carried == plan(x=("x", "b"), d=("d",), new=("new",))
    assert adapt_stored_plan(None, given, {}) == given


def test_a_plan_in_which_a_name_would_mean_two_things_is_not_carried_on() -> None:
    given = plan(a=("a",), b=("b",))
    assert adapt_stored_plan(plan(b=("a",)), given, {}) == given
    assert adapt_stored_plan(
        plan(b=("a",), a=("c",)), plan(a=("a",), c=("c",)), {"b": "a"}
    ) == plan(a=("a",), c=("c",))


def test_a_start_goes_on_under_the_plan_of_the_last_epoch(tmp_path: Path) -> None:
    two = compiled(Program(operators={"a": ("total",), "b": ("rows",)}))
    storage = CheckpointStorage.open(tmp_path)
    shared = two.with_plan(plan(both=("a", "b")))
    log, recovery = recover_flow(shared, storage, "run", retain_epochs=3)
    assert log.commit(CommitRecord(epoch=0, run_id="")).plan == 0
    log, recovery = recover_flow(two, storage, "run", retain_epochs=3)
    assert recovery.flow.physical_plan == shared.physical_plan
    assert log.commit(CommitRecord(epoch=1, run_id="")).plan == 0
    # Without the other one, the component continues with one operator, and that is another plan.
    log, recovery = recover_flow(FLOW, storage, "run", retain_epochs=3)
    assert recovery.flow.physical_plan == plan(both=("a",))
    assert log.commit(CommitRecord(epoch=2, run_id="")).plan == 1


def test_a_start_that_names_components_begins_under_them_where_their_operators_were(
    tmp_path: Path,
) -> None:
    two = compiled(Program(operators={"a": ("total",), "b": ("rows",)}))
    storage = CheckpointStorage.open(tmp_path)
    log, recovery = recover_flow(
        two, storage, "run", retain_epochs=3, components={"both": ["b", "a"]}
    )
    assert recovery.flow.physical_plan == plan(both=("a", "b"))
    executors = [Executor(name=name, location=None, lanes=1) for name in ("0", "1")]
    first = run_started(
        recovery.flow, log, recovery, {}, executors, run_id="run", settings=Lanes()
    ).assignments
    moved = first["both"].moved({0: "1", 1: "1"})
    log.commit(CommitRecord(epoch=0, run_id="", assignments={"both": moved.to_dict()}))
    log, recovery = recover_flow(two, storage, "run", retain_epochs=3, components={"b": ["b"]})
    assert recovery.flow.physical_plan == plan(b=("b",), a=("a",))
    then = run_started(
        recovery.flow, log, recovery, {}, executors, run_id="run", settings=Lanes()
    ).assignments
    assert then["a"] == then["b"] == moved


def test_a_plan_that_the_changed_flow_cannot_run_under_is_given_up(tmp_path: Path) -> None:
    def flow(*, between: bool) -> CompiledFlow:
        made = LogicalFlow("flow", NUM_KEY_GROUPS)
        frame: Any = FakeDataFrame(COLUMNS)
        stream = made.source("rows", frame).key_by("k").compute(name="a", v=gw.sum("v"))
        if between:
            counts = stream.key_by("v").compute(name="c", k=gw.last("k"))
            stream = counts.map(lambda table: table.select(["k", "v"]))
        stream = stream.key_by("k").compute(name="b", v=gw.sum("v"))
        made.sink("out", stream, FakeSink())
        return made.compile(resolver(made))

    storage = CheckpointStorage.open(tmp_path)
    straight = flow(between=False)
    log, recovery = recover_flow(
        straight, storage, "run", retain_epochs=3, components={"row": ["a", "b"]}
    )
    assert recovery.flow.levels == 1
    log.commit(CommitRecord(epoch=0, run_id=""))
    _, recovery = recover_flow(flow(between=True), storage, "run", retain_epochs=3)
    assert recovery.flow.physical_plan == plan(a=("a",), c=("c",), b=("b",))


def of_results(*readers: str, output: Any = "changes", name: str = "per_key") -> CompiledFlow:
    made = LogicalFlow("flow", NUM_KEY_GROUPS)
    frame: Any = FakeDataFrame(COLUMNS)
    results = (
        made.source("rows", frame)
        .key_by("k")
        .compute(name=gw.types.Identity(name, starts_empty=True), n=gw.count(), output=output)
    )
    made.sink("results", results, FakeSink())
    for reader in readers:
        of = gw.count() if output == "update" else gw.sum("change")
        made.sink(
            reader,
            results.as_rows()
            .key_by("n")
            .compute(name=gw.types.Identity(reader, starts_empty=True), keys=of),
            FakeSink(),
        )
    return made.compile(resolver(made))


def of_one_of_two(read: str) -> CompiledFlow:
    made = LogicalFlow("flow", NUM_KEY_GROUPS)
    frame: Any = FakeDataFrame(COLUMNS)
    rows = made.source("rows", frame)
    for name in ("one", "two"):
        results = rows.key_by("k").compute(name=name, n=gw.count(), output="changes")
        made.sink(name, results, FakeSink())
        if name == read:
            reader = results.as_rows().key_by("n").compute(name="a", keys=gw.sum("change"))
    made.sink("a", reader, FakeSink())
    return made.compile(resolver(made))


def recovered_after(tmp_path: Path, *flows: CompiledFlow) -> None:
    for epoch, flow in enumerate(flows):
        storage = CheckpointStorage.open(tmp_path)
        log, _ = recover_flow(flow, storage, "run", retain_epochs=3)
        log.commit(CommitRecord(epoch=epoch, run_id=""))


@pytest.mark.parametrize(
    ("flows", "problem"),
    [
        ([of_results(), of_results("a")], "begins without state"),
        ([of_results("a"), of_results(), of_results("a")], "was out of the flow for a while"),
        (
            [of_results("a", output="update"), of_results("a")],
            "has not read them until now",
        ),
        ([of_one_of_two("one"), of_one_of_two("two")], "has not read them until now"),
        (
            [of_results("a"), of_results(), of_results(name="other"), of_results("a")],
            "was out of the flow for a while",
        ),
        ([of_results("a"), of_results("a", name="anew")], "has results of 'per_key'"),
    ],
    ids=["new", "back", "switched", "of another", "back later", "anew"],
)
def test_an_operator_that_has_not_seen_all_changes_is_refused_at_the_start(
    tmp_path: Path, flows: list[CompiledFlow], problem: str
) -> None:
    recovered_after(tmp_path, *flows[:-1])
    with pytest.raises(CheckpointMismatchError, match=problem) as caught:
        recovered_after(tmp_path, flows[-1])
    assert "'a' reads the changes of operator" in caught.value.message
    assert caught.value.context["operator"] == "a"


@pytest.mark.parametrize(
    "flows",
    [
        [of_results("a"), of_results("a")],
        [of_results("a"), of_results(), of_results("b", name="anew")],
        [of_results(output="update"), of_results("a", output="update")],
        [of_results("a"), of_results(name="other"), of_results("a")],
        [of_results(), of_results(name="other"), of_results("a", name="anew")],
    ],
    ids=["the same", "both new", "results", "both back", "behind one that is new"],
)
def test_an_operator_that_has_seen_all_changes_goes_on(
    tmp_path: Path, flows: list[CompiledFlow]
) -> None:
    recovered_after(tmp_path, *flows)


@pytest.mark.parametrize("was_out", [False, True])
def test_of_an_operator_of_which_no_changes_were_noted_the_flow_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_out: bool
) -> None:
    def unnoted(flow: CompiledFlow) -> FlowVersion:
        version = flow_version(flow)
        operators = {
            name: msgspec.structs.replace(operator, reads_changes=None, left=-1)
            for name, operator in version.operators.items()
        }
        return msgspec.structs.replace(version, operators=operators)

    with monkeypatch.context() as patched:
        patched.setattr(recovery_module, "flow_version", unnoted)
        recovered_after(tmp_path, of_results("a"), *[of_results()] * was_out)
    if was_out:
        with pytest.raises(CheckpointMismatchError, match="was out of the flow for a while"):
            start(tmp_path, of_results("a"))
    else:
        start(tmp_path, of_results("a"))


def test_loads_of_the_last_run_are_remembered_by_the_names_of_now() -> None:
    def summary(epoch: int, **components: int) -> LoadSummary:
        loads = {
            name: KeyGroupLoad(
                key_groups=np.array([0, last]),
                rows=np.array([1, 2]),
                keys=np.array([1, 1]),
                cpu_ms=np.array([1.0, 4.0]),
                state_bytes=np.array([0, 0]),
            )
            for name, last in components.items()
        }
        return LoadSummary(epoch=epoch, epochs=2, loads=loads)

    changes = FlowChanges(version=None, renamed={"old": "a"}, added=(), returned=(), removed=())
    recovery = Recovery(flow=FLOW, layouts={}, changes=changes, before=FLOW.physical_plan)
    written = [summary(1, a=3), summary(2, old=5, gone=1)]
    found = last_loads(written, FLOW, recovery)
    assert found is not None
    assert found.epoch == 2
    assert {name: load.key_groups.tolist() for name, load in found.loads.items()} == {"a": [0, 5]}
    beyond = last_loads([summary(1, a=NUM_KEY_GROUPS)], FLOW, recovery)
    assert beyond is not None
    assert beyond.loads == {}
    assert last_loads([], FLOW, recovery) is None
