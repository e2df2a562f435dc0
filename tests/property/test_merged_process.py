"""Functions whose hot keys have parts, through histories: no row is lost, doubled or seen alone.

The whole engine in one process (`godwit.local`).  Keys heat and cool at random, while key
groups migrate, executors are lost, attempts come to nothing and drivers die.  After every epoch the
states of a key's parts, merged as the user says, are what one state had been of all its rows.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support.fake_flow import FakeDataFrame, FakeSink, resolver
from tests.support.rounds import rounds

import godwit as gw
from godwit.api.flow import LogicalFlow
from godwit.checkpoint.entries import BatchCache
from godwit.checkpoint.records import BatchRef, Grid
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.cluster import AttemptLostError
from godwit.engine.settings import Lanes
from godwit.local import LocalRun, lane_inputs, staged_rows
from godwit.migration import Bounds, Policy, Strategy
from godwit.migration.messages import MigrationRequested
from godwit.model.assignment import Assignment
from godwit.operators.hot_keys import WHOLE, hash_undivided, key_group_of_part
from godwit.ops.state_view import view_state

if TYPE_CHECKING:
    from godwit.api.streams import KeyedStream, Stream
    from godwit.operators.declared import Declared

OUTPUT = "k string, n bigint"
SCHEMA = pa.schema({"k": pa.string(), "v": pa.int64()})
KEYS = ("hot", "warm", "cold")
HASH = dict(zip(KEYS, hash_undivided(pa.record_batch({"k": list(KEYS)})).tolist(), strict=True))
KEY_GROUPS = 16
Seen = tuple[int, int, frozenset[int]]  # rows, sum and distinct values of a key
NOTHING: Seen = (0, 0, frozenset())


class State(msgspec.Struct):
    """Counts, sums and sets: states that are associative and commutative."""

    rows: int = 0
    total: int = 0
    values: set[int] = msgspec.field(default_factory=set)


def see(_key: tuple[Any, ...], rows: Any, state: State) -> list[tuple[str, int]]:
    for row in rows:
        state.rows += 1
        state.total += row.v
        state.values.add(row.v)
    return [(_key[0], len(rows))]


def merge(state: State, other: State) -> State:
    state.rows += other.rows
    state.total += other.total
    state.values |= other.values
    return state


def seen_with(seen: Seen, rows: int, total: int, values: frozenset[int]) -> Seen:
    return seen[0] + rows, seen[1] + total, seen[2] | values


class DiedError(Exception):
    """The driver is gone."""


class HotKeys(RuleBasedStateMachine):
    """Keys that heat and cool."""

    shown: ClassVar[str | None] = None
    """State whose rows `played` returns; the only one by default."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="godwit-merged-"))
        flow = LogicalFlow("flow", KEY_GROUPS)
        frame: Any = FakeDataFrame(SCHEMA)
        flow.sink("out", self.counted(flow.source("rows", frame).key_by("k")), FakeSink())
        self.flow = flow.compile(resolver(flow))
        self.storage = CheckpointStorage.open(str(self.root / "checkpoint"))
        self.expected: dict[str, Seen] = {}
        self.batches: list[list[tuple[str, int]]] = []
        self.happens = ""
        self.migrations = self.executor = 0

    def counted(self, keyed: KeyedStream) -> Stream:
        """Return the stream of the function whose hot keys have parts."""
        return keyed.process(see, state=gw.ValueState(State, merge=merge), output=OUTPUT, name="p")

    def found(self) -> dict[str, Seen]:
        """Read what was seen of every key, with the states of parts merged as a reader would."""
        found: dict[str, Seen] = {}
        for row in self.rows_of_state(None):
            state = json.loads(row["state"])
            seen = state["rows"], state["total"], frozenset(state["values"])
            found[row["k"]] = seen_with(found.get(row["k"], NOTHING), *seen)
        return found

    def rows_of_state(self, state: str | None) -> list[dict[str, Any]]:
        view, cache = view_state(self.storage, "p", None, state), BatchCache(self.storage)
        return [row for chain in view.chains for row in view.read(chain, cache).to_pylist()]

    def teardown(self) -> None:
        try:
            if self.batches:
                self.run.copies_held = False
                self.every_row_was_seen_once()
        finally:
            self.remove()

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    @initialize(lanes=st.integers(1, 3))
    def start_and_go_on(self, lanes: int) -> None:
        self.start(lanes)
        self.more()

    def start(self, lanes: int) -> None:
        self.executors = {"a": lanes, "b": 2}
        self.open()

    def open(self) -> None:
        """Start from the checkpoint, with empty stores."""
        self.run = LocalRun(
            self.flow,
            self.storage,
            executors=self.executors,
            retain_epochs=100,
            settings=Lanes(local_dir=str(self.root / "local")),
            # Otherwise copies that lack few epochs are brought forward by lanes, and nothing waits.
            policy=Policy(recovery=Bounds(max_lag=0)),
        )
        self.run.loop.at_step = self.at_step

    def at_step(self, step: str, _epoch: int) -> None:
        what, _, when = self.happens.partition(" ")
        if step != when:
            return
        self.happens = ""
        if what == "dies":
            raise DiedError
        reason = "it was to come to nothing"
        raise AttemptLostError(reason)

    @rule(
        rows=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 9)), min_size=1, max_size=30),
        happens=st.sampled_from(["", "", "", "lost planned", "lost staged", "dies staged"]),
    )
    def epoch(self, rows: list[tuple[str, int]], happens: str) -> None:
        """Offer rows, and offer them again to whoever comes after a driver that died."""
        self.batches.append(rows)
        self.happens = happens
        number = len(self.batches) - 1
        table = pa.Table.from_arrays(
            [
                pa.array(column, field.type)
                for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
            ],
            schema=SCHEMA,
        )
        while (last := self.run.epochs.last_batch) is None or last.number < number:
            try:
                given = lane_inputs(self.run.flow, {"rows": table}, partitions=2)
                self.run.epoch(given, batch=BatchRef(number=number, digest=str(number)))
            except DiedError:
                self.open()
        for key, value in rows:
            before = self.expected.get(key, NOTHING)
            self.expected[key] = seen_with(before, 1, value, frozenset([value]))

    def more(self) -> None:
        """Play an epoch with rows of all keys, which meets whatever was ordered before it."""
        rng = np.random.default_rng(len(self.batches))
        keys = rng.permutation([*KEYS] * 10).tolist()
        self.epoch(list(zip(keys, rng.integers(0, 10, len(keys)).tolist(), strict=True)), "")

    @property
    def hot(self) -> list[str]:
        """Keys that have parts."""
        spread = self.run.epochs.times.spreading["p"].spreads.keys
        return [key for key in KEYS if HASH[key] in spread]

    @rule(key=st.sampled_from(KEYS), parts=st.sets(st.integers(1, 40), min_size=2, max_size=5))
    def heat_and_go_on(self, key: str, parts: set[int]) -> None:
        self.heat(key, parts)
        self.more()

    @precondition(lambda self: self.hot)
    @rule(data=st.data())
    def cool_and_go_on(self, data: st.DataObject) -> None:
        self.cool(data.draw(st.sampled_from(self.hot)))
        self.more()

    @precondition(lambda self: self.hot and not self.run.copies_held)
    @rule(data=st.data())
    def cool_while_rows_wait(self, data: st.DataObject) -> None:
        """Order a key to be merged when rows of its parts wait for the copies of a lost store."""
        self.lose_an_executor(held=True)
        self.more()
        self.cool(data.draw(st.sampled_from(self.hot)))
        self.more()

    def heat(self, key: str, parts: set[int]) -> None:
        """Give a key parts, or others."""
        orders = self.run.epochs.times.spreading["p"]
        taken = set(orders.spreads.grid_of(HASH[key]).parts)
        free = tuple(sorted(parts - taken))
        if free:
            orders.order(HASH[key], key, Grid(rows=len(free), columns=1, parts=free))

    def cool(self, key: str) -> None:
        self.run.epochs.times.spreading["p"].order(HASH[key], key, WHOLE)

    @precondition(lambda self: self.run.view.components["p"].migration is None)
    @rule(
        seed=st.integers(0, 2**16), strategy=st.sampled_from([Strategy.LIVE, Strategy.DISRUPTIVE])
    )
    def migrate(self, seed: int, strategy: Strategy) -> None:
        rng = np.random.default_rng(seed)
        now = self.run.view.components["p"].assignment
        executor_of = rng.integers(0, len(now.executors), KEY_GROUPS).astype(np.int32)
        lanes = np.array(now.lanes)[executor_of]
        target = Assignment(
            version=now.version + 1,
            executors=now.executors,
            lanes=now.lanes,
            executor_of=executor_of,
            lane_of=(rng.integers(0, 6, KEY_GROUPS) % lanes).astype(np.int32),
        )
        self.migrations += 1
        self.run.coordinator.migrate(
            MigrationRequested(
                id=f"m{self.migrations}", component="p", target=target, strategy=strategy
            )
        )

    @rule(held=st.booleans())
    def lose_an_executor_and_go_on(self, *, held: bool) -> None:
        self.lose_an_executor(held=held)
        self.more()

    def lose_an_executor(self, *, held: bool) -> None:
        """Replace one; its key groups wait for as long as copies are held back."""
        self.executor += 1
        gone = min(self.executors)
        self.executors = {n: of for n, of in self.executors.items() if n != gone}
        self.executors[f"n{self.executor}"] = 2
        self.run.copies_held = held
        self.run.set_executors(self.executors)

    @precondition(lambda self: self.run.copies_held)
    @rule()
    def let_copies_come(self) -> None:
        self.run.copies_held = False

    @rule()
    def restart(self) -> None:
        self.open()

    @invariant()
    def every_row_was_seen_once(self) -> None:
        """Compare once nothing waits; states of parts are merged as a reader would."""
        if not self.batches or self.run.copies_held:
            return
        for _ in self.run.run_until_idle():
            pass
        assert self.found() == self.expected
        emitted: dict[str, int] = {}
        for epoch in range(self.run.log.latest_epoch + 1):
            for batch in staged_rows(self.run.log.record(epoch), self.storage).get("out", []):
                for row in batch.to_pylist():
                    emitted[row["k"]] = emitted.get(row["k"], 0) + row["n"]
        assert emitted == {key: seen[0] for key, seen in self.expected.items()}


def see_apart(_key: tuple[Any, ...], rows: Any, states: Any) -> list[tuple[str, int]]:
    for row in rows:
        states.total.value += row.v
        states.seen.append(row.v)
        states.times[row.v] = states.times.get(row.v, 0) + 1
    return [(_key[0], len(rows))]


class HotKeysOfStates(HotKeys):
    """The same, of a function with several named states."""

    shown = "total"

    def counted(self, keyed: KeyedStream) -> Stream:
        states: dict[str, Declared] = {
            "total": gw.ValueState(int, merge=add),
            "seen": gw.ListState(int, merge=add),
            "times": gw.MapState(int, int, merge=add),
        }
        return keyed.process(see_apart, state=states, output=OUTPUT, name="p")

    def found(self) -> dict[str, Seen]:
        found: dict[str, Seen] = {}
        times: Counter[tuple[str, int]] = Counter()
        for row in self.rows_of_state("times"):
            times[row["k"], row["item"]] += int(row["state"])
        for row in self.rows_of_state("seen"):
            values = json.loads(row["state"])
            seen = len(values), sum(values), frozenset(values)
            found[row["k"]] = seen_with(found.get(row["k"], NOTHING), *seen)
            times.subtract((row["k"], value) for value in values)
        assert not any(times.values())
        totals = dict.fromkeys(found, 0)
        for row in self.rows_of_state("total"):
            totals[row["k"]] += int(row["state"])
        assert totals == {key: total for key, (_, total, _) in found.items()}
        return found


@pytest.mark.parametrize("machine", [HotKeys, HotKeysOfStates])
def test_states_of_parts_become_what_one_state_had_been(machine: type[HotKeys]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=rounds(3, 10), stateful_step_count=10, deadline=None),
    )


def played(
    epochs: int, *, spread: dict[int, Grid], machine: HotKeys | None = None
) -> tuple[HotKeys, list[dict[str, Any]]]:
    """Play epochs of many rows of three keys, with orders; return the rows of the state."""
    machine = HotKeys() if machine is None else machine
    machine.start(2)
    rng = np.random.default_rng(1)
    for number in range(epochs):
        if number in spread:
            assert machine.run.epochs.times.spreading["p"].order(HASH["hot"], "", spread[number])
        keys = rng.choice(KEYS, 200, p=[0.8, 0.1, 0.1]).tolist()
        machine.epoch(list(zip(keys, rng.integers(0, 1000, 200).tolist(), strict=True)), "")
    return machine, machine.rows_of_state(machine.shown)


def test_a_hot_key_is_seen_by_several_lanes_and_one_that_cools_by_its_own() -> None:
    parts = (3, 4, 5)
    machine, rows = played(4, spread={1: Grid(rows=3, columns=1, parts=parts)})
    of_hot = {row["part"]: json.loads(row["state"])["rows"] for row in rows if row["k"] == "hot"}
    assert set(of_hot) == {None, *parts}
    assert all(100 < of_hot[part] < 250 for part in parts)
    assert sum(of_hot.values()) == machine.expected["hot"][0]
    assert {row["part"] for row in rows if row["k"] != "hot"} == {None}
    groups = {row["part"]: row["key_group"] for row in rows if row["k"] == "hot"}
    expected = key_group_of_part(HASH["hot"], np.array([0, *parts]), KEY_GROUPS, hashes_whole=False)
    assert groups == dict(zip((None, *parts), expected.tolist(), strict=True))
    machine.teardown()

    machine, rows = played(4, spread={1: Grid(rows=3, columns=1, parts=parts), 3: WHOLE})
    assert [row["part"] for row in rows] == [None] * len(KEYS)
    machine.every_row_was_seen_once()
    assert not machine.run.epochs.times.spreading["p"].spreads.keys
    machine.teardown()


def test_parts_are_merged_once_none_of_their_rows_waits() -> None:
    machine, _ = played(2, spread={1: Grid(rows=4, columns=1, parts=(3, 4, 5, 6))})
    machine.lose_an_executor(held=True)
    rows = [("hot", value) for value in range(40)]
    machine.epoch(rows, "")
    machine.cool("hot")
    spreading = machine.run.epochs.times.spreading["p"]
    machine.epoch(rows, "")
    component = machine.run.view.components["p"]
    assert component.suspended
    assert component.waiting
    assert HASH["hot"] in spreading.spreads.keys
    machine.let_copies_come()
    machine.epoch(rows, "")  # what was suspended is warm
    machine.epoch(rows, "")  # what waited comes
    machine.epoch(rows, "")
    assert not spreading.spreads.keys
    machine.every_row_was_seen_once()
    machine.teardown()


@pytest.mark.parametrize("kind", [HotKeys, HotKeysOfStates])
@pytest.mark.parametrize("gone", ["run", "store"])
def test_a_key_without_rows_is_merged_with_its_state_where_no_store_has_it(
    kind: type[HotKeys], gone: str
) -> None:
    spread = {1: Grid(rows=3, columns=1, parts=(3, 4, 5))}
    machine, rows = played(3, spread=spread, machine=kind())
    assert {row["part"] for row in rows if row["k"] == "hot"} == {None, 3, 4, 5}
    assert {row["part"] for row in rows if row["k"] != "hot"} == {None}
    if gone == "run":
        machine.restart()
    else:
        for executor in machine.executors:
            machine.run.forget_store(executor)
    machine.cool("hot")
    machine.epoch([("cold", 1)], "")
    assert not machine.run.epochs.times.spreading["p"].spreads.keys
    assert [row["part"] for row in machine.rows_of_state(kind.shown)] == [None] * len(KEYS)
    machine.every_row_was_seen_once()
    machine.teardown()
