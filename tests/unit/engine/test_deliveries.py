"""Sinks of a run matched with those of its checkpoint's last epoch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from godwit.checkpoint.records import BlockRef, CommitRecord, OutputRef, SinkRecord
from godwit.engine.outputs import Deliveries
from godwit.plan.compiled import CompiledFlow, SinkOutput
from godwit.sinks.sink import Sink

if TYPE_CHECKING:
    from godwit.sinks.sink import EpochOutput, SinkContext


class Somewhere(Sink):
    """A sink that writes where it says."""

    def __init__(self, destination: str | None = None) -> None:
        self._destination = destination

    @property
    def destination(self) -> str | None:
        return self._destination

    def open(self, context: SinkContext) -> None:
        raise NotImplementedError

    def deliver(self, output: EpochOutput) -> None:
        raise NotImplementedError


class Nowhere(Somewhere):
    """A sink that is given nothing."""

    @property
    def wants_rows(self) -> bool:
        return False


def output(name: str, destination: str | None = None, **changes: Any) -> SinkOutput:
    fields: dict[str, Any] = {
        "name": name,
        "operator": "totals",
        "maps": (),
        "schema": pa.schema([]),
        "keys": (),
        "sink": Somewhere(destination),
    }
    return SinkOutput(**{**fields, **changes})


def flow(*outputs: SinkOutput, complete: bool = False) -> CompiledFlow:
    return cast(
        "CompiledFlow",
        SimpleNamespace(outputs=outputs, operator=lambda _name: SimpleNamespace(complete=complete)),
    )


def record(*with_rows: str, epoch: int = 4, **sinks: SinkRecord) -> CommitRecord:
    block = BlockRef(file="blocks/000000000004-a.blk", offset=0, length=0, checksum=0)
    return CommitRecord(
        epoch=epoch,
        run_id="r",
        sinks=sinks,
        outputs=tuple(OutputRef(sink=n, flow=0, lane=0, rows=2, block=block) for n in with_rows),
    )


def was(writer: str, target: str = "", **changes: Any) -> SinkRecord:
    return SinkRecord(writer=writer, target=target, **changes)


def former(deliveries: Deliveries) -> dict[str, tuple[str | None, str]]:
    return {name: (state.former, state.writer) for name, state in deliveries.states.items()}


def test_a_sink_that_stays_is_who_it_was() -> None:
    latest = record(a=was("a", "x"), b=was("b"))
    found = Deliveries(flow(output("a", "x"), output("b")), latest, {})
    assert former(found) == {"a": ("a", "a"), "b": ("b", "b")}
    assert list(found.describe_changes()) == []


def test_a_renamed_sink_is_known_by_where_it_writes() -> None:
    found = Deliveries(flow(output("b", "x")), record("a", a=was("a", "x")), {})
    assert former(found) == {"b": ("a", "a")}
    assert list(found.describe_changes()) == ["sink a is now b"]


def test_sinks_that_exchange_names_get_what_was_staged_for_where_they_write() -> None:
    latest = record("a", "b", a=was("a", "x"), b=was("b", "y"))
    found = Deliveries(flow(output("a", "y"), output("b", "x")), latest, {})
    assert former(found) == {"a": ("b", "b"), "b": ("a", "a")}


def test_a_sink_that_goes_to_another_place_keeps_its_name_unless_another_went_to_its_own() -> None:
    latest = record(a=was("a", "x"))
    assert former(Deliveries(flow(output("a", "z")), latest, {})) == {"a": ("a", "a")}
    both = Deliveries(flow(output("a", "z"), output("b", "x")), latest, {})
    assert former(both) == {"a": (None, "a~2"), "b": ("a", "a")}


def test_sinks_of_one_place_go_by_their_names() -> None:
    latest = record(a=was("a", "x"), b=was("b", "x"))
    found = Deliveries(flow(output("b", "x"), output("c", "x")), latest, {})
    assert former(found) == {"b": ("b", "b"), "c": ("a", "a")}
    crowd = Deliveries(flow(output("c", "x"), output("d", "x")), latest, {})
    assert former(crowd) == {"c": (None, "c"), "d": (None, "d")}


def test_formerly_says_it_where_the_place_does_not() -> None:
    latest = record(a=was("a"), b=was("b"))
    found = Deliveries(flow(output("a", formerly="b"), output("b", formerly="a")), latest, {})
    assert former(found) == {"a": ("b", "b"), "b": ("a", "a")}
    again = record(a=found.records()["a"], b=found.records()["b"])
    stays = Deliveries(flow(output("a", formerly="b"), output("b", formerly="a")), again, {})
    assert former(stays) == {"a": ("a", "b"), "b": ("b", "a")}


def test_a_new_sink_does_not_take_the_writer_of_one_that_had_its_name() -> None:
    first = Deliveries(flow(output("b", "x")), record(a=was("a", "x")), {})
    second = record(b=first.records()["b"])
    found = Deliveries(flow(output("a", "y"), output("b", "x")), second, {})
    assert former(found) == {"a": (None, "a~2"), "b": ("b", "a")}


@pytest.mark.parametrize("part", ["", "_windows"])
def test_late_and_rejected_rows_follow_their_operator_and_their_sink(part: str) -> None:
    latest = record(old_late=was("old_late"), a=was("a", "x"), a_rejects=was("a_rejects"))
    outputs = [
        output("b", "x"),
        output("b_rejects", rejects_of="b"),
        output("new_late", operator=f"new{part}", left_out=True),
    ]
    found = Deliveries(flow(*outputs), latest, {f"old{part}": f"new{part}"})
    assert former(found) == {
        "b": ("a", "a"),
        "b_rejects": ("a_rejects", "a_rejects"),
        "new_late": ("old_late", "old_late"),
    }


def test_a_new_sink_and_one_that_was_given_nothing_have_no_part_in_the_last_epoch() -> None:
    latest = record(epoch=7)
    found = Deliveries(flow(output("a", "x"), output("b", sink=Nowhere())), latest, {})
    assert former(found) == {"a": (None, "a")}
    assert list(found.describe_changes()) == ["sink a is new and gets the rows after epoch 7"]


@pytest.mark.parametrize(
    ("then", "now", "stays"),
    [("x", "x", True), ("x", "y", False), ("", "x", False), ("", "", False)],
)
def test_a_sink_stays_where_that_is_known(then: str, now: str, *, stays: bool) -> None:
    found = Deliveries(flow(output("a", now)), record(a=was("a", then, before=3)), {})
    assert (found.states["a"].stays, found.states["a"].before) == (stays, 3)


def test_records_say_which_earlier_epoch_had_something_for_a_sink() -> None:
    flow_of_two = flow(output("a"), output("b"))
    first = Deliveries(flow_of_two, None, {})
    assert [r.before for r in first.records().values()] == [-1, -1]
    first.committed(record("a", epoch=0))
    assert {n: r.before for n, r in first.records().items()} == {"a": 0, "b": -1}
    latest = record("b", epoch=1, **first.records())
    again = Deliveries(flow_of_two, latest, {})
    assert {n: r.before for n, r in again.records().items()} == {"a": 0, "b": 1}


def test_every_epoch_has_something_for_a_sink_of_whole_results() -> None:
    whole = Deliveries(flow(output("a"), complete=True), record(a=was("a", complete=True)), {})
    assert whole.records()["a"].before == 4
    assert list(whole.describe_changes()) == []
    changed = Deliveries(flow(output("a"), complete=True), record(a=was("a")), {})
    assert (changed.states["a"].complete, changed.states["a"].former_complete) == (True, False)
    assert list(changed.describe_changes()) == [
        "sink a gets the whole result; up to this epoch it got changed keys"
    ]
