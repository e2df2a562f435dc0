"""Windows are split and combined by what that costs, and come out the same."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.contract.splitting import Decided
from tests.contract.windows_apart import History, WindowsApart, expected

import godwit as gw
from godwit.control.windows import ExchangeCosts
from godwit.migration import Strategy
from godwit.model.errors import MigrationError
from godwit.model.events import ComponentsRegrouped, KeyGroupsWarmed, RegroupingCancelled

if TYPE_CHECKING:
    from pathlib import Path

CHEAP = ExchangeCosts(row_ms=0, byte_ms=0, lane_ms=0.1)
SETTINGS = gw.control.Splitting(period="10 seconds", epochs=4, confirm=1)
COMBINED = {"w": ("w", "w_second", "w_windows")}
SPLIT = {name: (name,) for name in COMBINED["w"]}


def taking(run: WindowsApart) -> dict[int, str]:
    """Key group → executor that takes its rows."""
    found = {}
    for name in run.view.components.keys() & {"w", "w_second"}:
        component = run.view.components[name]
        for g in range(16) if component.takes is None else component.takes:
            found[g] = component.assignment.executor(g)
    return found


def shuffle(run: WindowsApart, random: Random) -> None:
    """Let some key groups migrate, as their component does by itself."""
    here, standing = sorted(run.view.executors), run.view.components
    for name, component in standing.items():
        if name == "w_windows" or component.migration is not None:
            continue
        taken = range(16) if component.takes is None else sorted(component.takes)
        moves = {g: random.choice(here) for g in taken if random.random() < 0.7}
        if not moves:
            continue
        try:
            run.send(name, moves, component.default_strategy)
        except MigrationError:
            return  # it is being regrouped


def stream(run: Decided, epochs: int, history: History, random: Random | None = None) -> None:
    """Let epochs pass, with migrations if there is something to draw them by."""
    for at in range(epochs):
        if random is not None and at % 2 == 0:
            shuffle(run, random)
        history.epoch(20)


def test_what_migrates_often_is_split_and_combined_again_when_it_is_calm(tmp_path: Path) -> None:
    run = Decided(tmp_path, SETTINGS, exchange=CHEAP)
    history = History(run, 1)
    assert run.form() == "combined"
    stream(run, 10, history, Random(1))
    assert run.form() == "split"
    (reason,) = run.reasons
    assert reason.startswith("w takes ")
    assert "key groups migrated" in reason
    before = taking(run)
    stream(run, 10, history)
    run.settle()
    assert run.form() == "combined"
    assert len(run.reasons) == 2
    assert taking(run) == before  # what was balanced stays so
    stream(run, 8, history)
    assert (run.compared[-1].layout, run.compared[-1].cheaper) == ("combined", "combined")
    assert len(run.reasons) == 2  # a steady stream is decided upon once
    history.end()
    assert run.windows == expected(history.rows)


@pytest.mark.parametrize("when", ["staged", "committed"])
def test_a_driver_that_dies_with_a_decision_goes_on_in_the_form_of_the_last_commit(
    tmp_path: Path, when: Any
) -> None:
    history = History(WindowsApart(tmp_path, consolidate="together"), 8)
    history.epoch(40)
    before = history.run
    history.run = run = Decided(tmp_path, SETTINGS, exchange=CHEAP)
    run.take_over(before)
    run.start({"a": 2, "b": 1, "c": 1})
    assert run.form() == "combined"  # one operator is two from here on
    random = Random(6)
    for _ in range(20):
        if not run.reasons:
            stream(run, 1, history, random)
    assert run.form() == "split"
    history.epoch(20, when)
    run.start({"x": 1, "y": 2})
    assert run.form() == ("split" if when == "committed" else "combined")
    stream(run, 2, history, random)
    history.end()
    assert run.windows == expected(history.rows)


def test_combining_moves_what_takes_no_rows_and_nothing_else(tmp_path: Path) -> None:
    run = WindowsApart(tmp_path)
    history = History(run, 9)
    for _ in range(3):
        history.epoch(40)
    run.send("w", dict.fromkeys(range(9), "c"), Strategy.INSTANT)
    history.epoch(40)
    before = taking(run)
    planned = len(run.events)
    run.regroup(COMBINED)
    run.settle()
    history.epoch(10)
    assert list(run.view.components) == ["w"]
    assert taking(run) == before
    warmed = [e for e in run.events[planned:] if isinstance(e, KeyGroupsWarmed)]
    assert {e.component for e in warmed} <= {"w", "w_second", "w_windows"}
    assert not any(isinstance(e, RegroupingCancelled) for e in run.events)
    assert any(isinstance(e, ComponentsRegrouped) for e in run.events)
    history.end()
    assert run.windows == expected(history.rows)
