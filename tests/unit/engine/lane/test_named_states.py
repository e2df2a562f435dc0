"""Facts about several named states of one operator, in lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.support.states_run import Model, StatesRun, obey

from godwit.api.declarations import OnTimer
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.evolution import WrittenState
from godwit.library.states import maps
from godwit.library.states.operator import ProcessOfStates
from godwit.library.states.stored import LookAhead
from godwit.model.errors import (
    CheckpointError,
    CheckpointMismatchError,
    GodwitError,
    InvalidFlowError,
    StateEncodingError,
    UserFunctionError,
)
from godwit.operators.declared import ListState, MapState, ValueState
from godwit.ops.edits import remove_key
from godwit.plan.lineage import flow_version

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt


NO_FUNCTION: Any = "x"
NO_CODEC: Any = "json"
NO_CLASSES: Any = 7


def _identity(given: Any) -> Any:
    return given


Needy: Any = _identity


def running(root: Path, body: Any, states: Any = None, **options: Any) -> StatesRun:
    """A function that emits nothing."""

    def function(key: Any, rows: Any, given: Any) -> None:
        body(key, rows, given)

    return StatesRun(root, function=function, states=states, **options)


def operator_of(run: StatesRun) -> ProcessOfStates:
    operator = run.compiled.operators[0]
    assert isinstance(operator, ProcessOfStates)
    return operator


def test_a_state_that_no_function_touches_is_neither_looked_up_nor_written(tmp_path: Path) -> None:
    run = StatesRun(tmp_path)
    run.epoch([("a", "add", "", 1), ("b", "add", "", 2)])
    assert {segment.state for segment in run.record.segments} == {"total"}
    run.epoch([("a", "total", "", 1), ("b", "nothing", "", 2)])
    assert not run.record.segments  # looking writes nothing


def test_lists_compare_and_maps_end_as_those_of_python_do(tmp_path: Path) -> None:
    def body(_key: Any, _rows: Any, given: Any) -> None:
        given.many.extend([1, 2])
        assert given.many == [1, 2]
        assert given.many != [1]
        given.by_item.update({"x": 1, "y": 2, "z": 3})
        assert list(reversed(given.by_item)) == ["z", "y", "x"]
        assert given.by_item.popitem() == ("z", 3)
        given.by_item.clear()
        with pytest.raises(KeyError, match="empty"):
            given.by_item.popitem()

    states = {"many": ListState(int), "by_item": MapState(str, int)}
    running(tmp_path, body, states).epoch([("a", "", "", 0)])


def test_a_large_map_costs_what_is_touched_of_it(tmp_path: Path) -> None:
    run = StatesRun(tmp_path, states={"per_item": MapState(str, int)}, function=fill_or_bump)
    run.epoch([("a", "fill", "", 10_000)])
    run.epoch([("a", "bump", f"i{i}", 1) for i in range(5)])
    (segment,) = run.record.segments
    assert segment.row_ends == (5,)
    assert run.epoch([("a", "tell", "", 0)]) == [("a", "tell", "10000 10005")]


def fill_or_bump(key: Any, rows: Any, states: Any) -> Any:
    for row in rows:
        if row.op == "fill":
            states.per_item.update({f"i{i}": 1 for i in range(row.n)})
        elif row.op == "bump":
            states.per_item[row.item] += 1
        else:
            items = dict(states.per_item)
            yield key[0], "tell", f"{len(items)} {sum(items.values())}"


def test_items_that_rows_name_are_looked_up_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    found = maps.MapCells.look_up

    def counted(self: Any, groups: Any, *apart: Any) -> Any:
        calls.append(len(groups))
        return found(self, groups, *apart)

    monkeypatch.setattr(maps.MapCells, "look_up", counted)
    run = running(
        tmp_path,
        lambda _key, rows, states: [states.seen.setdefault(row.item, 1) for row in rows],
        {"seen": MapState(str, int)},
    )
    run.epoch([(f"k{i}", "", f"item{j}", 0) for i in range(300) for j in range(3)])
    assert sum(calls) >= 900
    assert len(calls) < 20


def test_an_item_whose_parts_are_in_different_rows_is_found(tmp_path: Path) -> None:
    came: list[int] = []

    def body(_key: Any, rows: Any, states: Any) -> None:
        for row in rows:
            pair = (row.item, 1)  # the rows of a key are ("x", 1) and ("y", 5)
            states.pairs[pair] = states.pairs.get(pair, 0) + row.n
        came.append(sum(states.pairs.values()))

    run = running(tmp_path, body, {"pairs": MapState(tuple[str, int], int)})
    for _ in range(2):
        run.epoch([(key, "", item, n) for key in "abc" for item, n in (("x", 1), ("y", 5))])
    assert came == [6] * 3 + [12] * 3


def test_the_listing_of_a_map_does_not_grow_with_what_comes_and_goes(tmp_path: Path) -> None:
    run = StatesRun(tmp_path)
    for epoch in range(12):
        run.epoch([("a", "many", f"e{epoch}", 5), ("a", "few", f"e{epoch - 1}", 5)], 0.1)
    assert run.entries("per_item") <= 100 + 1 + 5
    run.epoch([], 10)
    assert run.entries("per_item") == 0


def test_lists_of_many_pages_go_page_by_page(tmp_path: Path) -> None:
    run, model = StatesRun(tmp_path), Model()
    for minute in range(6):
        rows = [("a", "push", "x", 9), ("a", "list", "", 0), ("b", "push", "y", minute)]
        assert run.epoch(rows, 1) == model.epoch(rows, 1)
        assert run.entries("recent") <= 9
    assert run.epoch([("b", "replace", "", 1)], 0) == []
    rows = [("b", "list", "", 0), ("b", "note", "x", 4), ("b", "list", "", 0)]
    model.epoch([("b", "replace", "", 1)])
    assert run.epoch(rows) == model.epoch(rows)


def test_timers_and_named_states_are_dropped_together(tmp_path: Path) -> None:
    from datetime import UTC, datetime, timedelta

    def note(key: Any, rows: Any, states: Any) -> None:
        for row in rows:
            states.total.value += row.n
            rows.timers.set(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=row.n))

    def fired(key: Any, timer: Any, states: Any) -> Any:
        yield key[0], "fired", str(states.total.value)
        if not timer.timers.list():
            timer.drop_state()

    run = StatesRun(
        tmp_path,
        function=note,
        states={"total": ValueState(int)},
        timers=OnTimer(fired, clock="processing"),
    )
    run.epoch([("a", "", "", 5), ("a", "", "", 7), ("b", "", "", 20)])
    assert run.epoch([], 6) == [("a", "fired", "12")]
    run.restart()
    assert run.epoch([("a", "", "", 30)], 2) == [("a", "fired", "12")]
    assert run.entries("timers") == run.entries("total") == 2
    assert run.epoch([], 40) == [("a", "fired", "30"), ("b", "fired", "20")]
    assert run.entries("timers") == run.entries("total") == 0


@pytest.mark.parametrize(
    ("body", "error", "said"),
    [
        (lambda s: s.recnt, UserFunctionError, "has no state 'recnt'.*Did you mean 'recent'"),
        (lambda s: s["per"], UserFunctionError, "declares 'total', 'log', 'recent'"),
        (lambda s: setattr(s, "total", 3), UserFunctionError, "Assign states.total.value"),
        (lambda s: s.per_item[3], UserFunctionError, "the key 3 is of type int"),
        (lambda s: s.groups["x"], UserFunctionError, r"keys of type tuple\[str, int\]"),
        (lambda s: s.groups[("x", 2**63)], UserFunctionError, "64 bits"),
        (lambda s: s.groups.update({("x", True): []}), UserFunctionError, "64 bits"),
        (lambda s: s.per_item["x"], UserFunctionError, "raised KeyError"),
        (
            lambda s: setattr(s.total, "value", "many"),
            StateEncodingError,
            "its state 'total' of key",
        ),
        (lambda s: s.recent.append("x"), StateEncodingError, "its state 'recent' of key"),
        (
            lambda s: s.per_item.update(y=object()),
            StateEncodingError,
            "of key .'a',., item 'y'",
        ),
    ],
)
def test_what_is_wrong_is_said_by_state_and_key(
    tmp_path: Path, body: Any, error: type[GodwitError], said: str
) -> None:
    run = running(tmp_path, lambda _key, _rows, states: body(states))
    with pytest.raises(error, match=said) as caught:
        run.epoch([("a", "", "", 0)])
    assert ".." not in caught.value.message
    assert caught.value.remedy.startswith(("Assign", "Correct", "Did", "It", "Keep", "Use"))


def test_a_state_that_is_used_after_its_call_raises(tmp_path: Path) -> None:
    kept: list[Any] = []

    def keep(key: Any, rows: Any, states: Any) -> None:
        for earlier in kept:
            earlier()
        kept.extend([lambda: states.total.value, states.recent.clear])

    run = running(tmp_path, keep)
    with pytest.raises(UserFunctionError, match=r"key \('.',\) .* was used after the function"):
        run.epoch([("a", "", "", 0), ("b", "", "", 0)])


@pytest.mark.parametrize(
    ("states", "options", "said"),
    [
        ({}, {}, "an empty mapping"),
        (["total"], {}, "no type of state, but"),
        ({"total": int}, {}, "is declared as <class 'int'>"),
        ({"Total": ValueState(int)}, {}, "lower-case"),
        ({"class": ValueState(int)}, {}, "a state named 'class'"),
        ({"timers": ValueState(int)}, {}, "reserved for its timers"),
        ({"total": ValueState(int, ttl="soon")}, {}, "time-to-live of state 'total'"),
        ({"per": MapState(float, int)}, {}, "keys of type <class 'float'>"),
        ({"total": ValueState(Needy)}, {}, "cannot create the state"),
        ({"total": ValueState(int, upgrade=NO_FUNCTION)}, {}, "cannot be called"),
        ({"total": ValueState(int, ttl="-1 day")}, {}, "time-to-live of state 'total' of operator"),
        ({"total": ValueState(int, codec=NO_CODEC)}, {}, "State 'total' .* has codec='json'"),
        ({"recent": ListState(int, classes=NO_CLASSES)}, {}, "State 'recent' .* has classes="),
        (MapState(str, int), {}, "which needs a name"),
    ],
)
def test_declarations_that_will_not_do_are_refused(
    tmp_path: Path, states: Any, options: Any, said: str
) -> None:
    with pytest.raises(InvalidFlowError, match=said):
        StatesRun(tmp_path, states=states, **options)


class Old(msgspec.Struct):
    seen: int = 0


class New(msgspec.Struct):
    times: int = 0
    seen: int = 0


class Other(msgspec.Struct):
    times: int = 0


@pytest.mark.parametrize(
    ("before", "after", "held", "then"),
    [
        (ValueState(Old), ValueState(New), Old(3), New(seen=3)),
        (ListState(Old), ListState(New), [Old(3), Old(4)], [New(seen=3), New(seen=4)]),
        (MapState(str, Old), MapState(str, New), [Old(3)], [New(seen=3)]),
        (
            MapState(str, Old),
            MapState(str, Other, upgrade=lambda old: Other(times=old["seen"])),
            [Old(3)],
            [Other(3)],
        ),
        (ListState(Old), ListState(Old, ttl="1 day"), [Old(5)], [Old(5)]),
    ],
)
def test_what_a_state_holds_is_brought_forward(
    tmp_path: Path, before: Any, after: Any, held: Any, then: Any
) -> None:
    old = operator_of(StatesRun(tmp_path / "old", states={"s": before}, function=obey))
    new = operator_of(StatesRun(tmp_path / "new", states={"s": after}, function=obey))
    upgrade = new.upgrade_state_from("s", WrittenState.of(old.describe_states()["s"]))
    assert upgrade is not None
    schema = old.schema_of("s").values
    blobs = [old.stored["s"].codec.encode([held])[0], b""]  # what has no value stays so
    others = [pa.array([b"", b""], field.type) for field in list(schema)[1:]]
    written = [pa.array(blobs, pa.large_binary()), *others]
    values = upgrade(pa.RecordBatch.from_arrays(written, schema=schema))
    assert values.schema == new.schema_of("s").values
    one, nothing = values.column(0).to_pylist()
    assert new.stored["s"].codec.decode([memoryview(one)]) == [then]
    assert nothing == b""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (ValueState(int), ListState(int), "entries"),
        (MapState(str, int), MapState(int, int), "entries"),
        (MapState(str, Old), MapState(str, Other), "upgrade="),
    ],
)
def test_a_state_of_another_kind_is_refused(
    tmp_path: Path, before: Any, after: Any, said: str
) -> None:
    old = operator_of(StatesRun(tmp_path / "old", states={"s": before}, function=obey))
    new = operator_of(StatesRun(tmp_path / "new", states={"s": after}, function=obey))
    with pytest.raises(CheckpointMismatchError, match=said):
        new.upgrade_state_from("s", WrittenState.of(old.describe_states()["s"]))


def test_keys_are_looked_up_ahead_as_long_as_they_are_wanted() -> None:
    ahead = LookAhead(100_000)
    sizes = []
    at = 0
    for _ in range(4):
        keys = ahead.keys(at)
        sizes.append(len(keys))
        for _ in keys:
            ahead.record_use()
        at = keys.stop
    assert sizes == [16, 128, 1024, 8192]
    ahead.record_use()
    assert len(ahead.keys(at)) == 8192
    assert [len(ahead.keys(at + i)) for i in range(3)] == [1024, 128, 16]
    ahead.record_read(64 << 20)
    assert len(ahead.keys(at)) <= 16


def test_what_fits_a_declared_type_without_being_of_it_is_read_in_the_next_epoch(
    tmp_path: Path,
) -> None:
    odd = [True, 10**30]

    def function(key: Any, rows: Any, given: Any) -> Any:
        seen = [given.one.value, list(given.many), dict(given.by_item)]
        (value,) = (odd[row.n] for row in rows)
        given.one.value = given.by_item["x"] = value
        given.many.append(value)
        yield key[0], "seen", repr(seen)

    states = {"one": ValueState(int), "many": ListState(int), "by_item": MapState(str, int)}
    run = StatesRun(tmp_path, function=function, states=states)
    run.epoch([("a", "", "", 0), ("b", "", "", 1), ("c", "", "", 1)])
    told = [text for _, _, text in run.epoch([("a", "", "", 1), ("b", "", "", 0)])]
    assert told == [repr([held, [held], {"x": held}]) for held in odd]


def test_a_value_that_is_taken_for_what_it_holds_is_told_apart(tmp_path: Path) -> None:
    def body(_key: Any, _rows: Any, given: Any) -> None:
        given.total += 1

    with pytest.raises(UserFunctionError, match=r"this is a ValueOfKey.*state\.value \+= 1"):
        running(tmp_path, body).epoch([("a", "", "", 0)])


def test_all_states_of_a_key_are_forgotten_in_an_epoch_without_input(tmp_path: Path) -> None:
    run = StatesRun(tmp_path)
    run.epoch([(k, op, "x", 1) for k in "ab" for op in ("add", "push", "put")])
    run.epoch([("a", "put", "y", 1), ("a", "forget", "", 0)])
    version = msgspec.structs.replace(flow_version(run.compiled), previous=run.run.log.flow)
    log = CommitLog.create_or_open(
        run.run.log.storage, run.run.log.identity, "another run", flow=version
    )

    def is_a(keys: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        return np.array([key == "a" for key in keys.column(0).to_pylist()])

    removed = remove_key(log, "obeying", is_a, key="('a',)")
    assert {state.partition("/")[2]: count for state, count in removed.items()} == {
        "groups": 4,  # two items, the page that lists them and the head
        "notes": 2,
        "per_item": 4,
        "recent": 2,
    }
    with pytest.raises(CheckpointError, match=r"no state of key \('a',\)"):
        remove_key(log, "obeying", is_a, key="('a',)")
