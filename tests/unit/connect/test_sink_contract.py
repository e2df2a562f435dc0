"""`gw.testing.check_sink` finds the faults that a sink may have, and passes sinks without."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.rounds import rounds

import godwit as gw
from godwit.model.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.checkpoint.ownership import HistoryPoint
    from godwit.sinks.sink import CommittedEpochs, EpochOutput, SinkContext

Rows = list[dict[str, Any]]


class Table:
    """A target with transactions: rows, and the last epoch."""

    def __init__(self) -> None:
        self.rows: Rows = []
        self.point: HistoryPoint | None = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Table]:
        changed = Table()
        changed.rows, changed.point = list(self.rows), self.point
        yield changed
        self.rows, self.point = changed.rows, changed.point


class Appending(gw.sinks.Sink):
    """A sink as it should be."""

    def __init__(self, table: Table) -> None:
        self.table = table

    keeps_epochs = True

    def open(self, context: SinkContext) -> None:
        self.context = context

    def last_delivered(self) -> HistoryPoint | None:
        return self.table.point

    def continue_after(self, point: HistoryPoint) -> None:
        self.table.point = point

    def cannot_roll_back(self) -> str | None:
        return "rows are only added"

    def is_there(self, table: Table, output: EpochOutput) -> bool:
        return table.point is not None and table.point.epoch >= output.epoch

    def deliver(self, output: EpochOutput) -> None:
        with self.table.transaction() as table:
            if self.is_there(table, output):
                return
            for batch in output.batches():
                table.rows += batch.to_pylist()
            table.point = output.point


class Twice(Appending):
    def is_there(self, table: Table, output: EpochOutput) -> bool:
        return False


class TwiceAfterRestart(Appending):
    last = -1

    def is_there(self, table: Table, output: EpochOutput) -> bool:
        known, self.last = self.last >= output.epoch, output.epoch
        return known


class NumberFirst(Appending):
    def deliver(self, output: EpochOutput) -> None:
        if self.is_there(self.table, output):
            return
        self.table.point = output.point
        with self.table.transaction() as table:
            for batch in output.batches():
                table.rows += batch.to_pylist()


class RowsFirst(Appending):
    def deliver(self, output: EpochOutput) -> None:
        if self.is_there(self.table, output):
            return
        with self.table.transaction() as table:
            for batch in output.batches():
                table.rows += batch.to_pylist()
        self.table.point = output.point


class InParts(Appending):
    def deliver(self, output: EpochOutput) -> None:
        if self.is_there(self.table, output):
            return
        for batch in output.batches():
            self.table.rows += batch.to_pylist()
        self.table.point = output.point


class WrongNumber(Appending):
    def last_delivered(self) -> HistoryPoint | None:
        return None


class Forgetting(Appending):
    def continue_after(self, point: HistoryPoint) -> None:
        self.table.rows.clear()
        self.table.point = point


class RollingBackAll(Appending):
    def cannot_roll_back(self) -> str | None:
        return None

    def roll_back(self, epochs: CommittedEpochs, min_epoch: int) -> None:
        self.table.rows.clear()
        self.table.point = epochs.point(epochs.latest_epoch)


class NumberOfAll(Appending):
    """Skips epochs of other sinks, and says to a start that the target has none."""

    keeps_epochs = False


FAULTS: dict[type[Appending], str] = {
    Twice: r"\(rows\): at epoch .* delivered twice",
    TwiceAfterRestart: r"\(rows\): at epoch .* delivered twice, by another sink",
    NumberFirst: r"\(one step\): after a crash at .* has epoch \d+ without its rows",
    RowsFirst: r"\(one step\): after a crash at .* has rows of epoch \d+, but not the epoch",
    InParts: r"\(one step\): after .* (neither all rows of the epoch nor none|but not the epoch)",
    WrongNumber: r"\(last_delivered\): it is -1 after epoch",
    NumberOfAll: r"\(rows\): .* the first of another sink, the target lacks",
    Forgetting: r"\(rows\): .* continued after a later epoch, the target lacks",
    RollingBackAll: r"\(rows\): .* rolled back, the target lacks",
}


def check(kind: type[Appending], seed: int) -> None:
    table = Table()
    gw.testing.check_sink(lambda: kind(table), lambda: table.rows, seed=seed)


@pytest.mark.parametrize("seed", range(rounds(2, 8)))
def test_a_sink_without_faults_passes(seed: int) -> None:
    check(Appending, seed)


@pytest.mark.parametrize("seed", range(rounds(1, 3)))
@pytest.mark.parametrize("kind", list(FAULTS))
def test_each_fault_is_found_and_named(kind: type[Appending], seed: int) -> None:
    with pytest.raises(SinkError, match=FAULTS[kind]):
        check(kind, seed)


def test_the_function_has_to_return_a_sink() -> None:
    with pytest.raises(SinkError, match="returns a value of type list"):
        gw.testing.check_sink(list, list)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["append", "upsert", "complete"])
def test_memory_keeps_the_contract(mode: Any) -> None:
    results = gw.sinks.memory()
    keys: list[str] | None = [] if mode == "append" else None
    gw.testing.check_sink(lambda: results, lambda: results.table(keys), mode=mode)


def test_a_sink_of_a_notebook_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "notebook", types.ModuleType("notebook"))
    monkeypatch.setattr(RowsFirst, "__module__", "notebook")
    with pytest.raises(SinkError, match=FAULTS[RowsFirst]):
        check(RowsFirst, 0)
