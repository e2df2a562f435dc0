"""Facts about which slot of a key group takes rows."""

from __future__ import annotations

import numpy as np

from godwit.operators.slots import Slots
from godwit.time.grid import BEGINNING, PaneGrid, TimeWindow

S = 1_000_000
GRID = PaneGrid.of(TimeWindow(length_us=20 * S, every_us=10 * S))


def test_rows_of_a_key_group_that_turned_go_to_its_other_slot() -> None:
    slots = Slots.of((), 4).with_second({1, 2}, {2}, newest=14 * S, grid=GRID)
    panes = np.array([0, 10, 20, 30]) * S
    assert slots.slot_of(np.full(4, 0), panes).tolist() == [0, 0, 0, 0]
    assert slots.slot_of(np.full(4, 1), panes).tolist() == [1, 1, 1, 1]
    assert slots.slot_of(np.full(4, 2), panes).tolist() == [0, 0, 1, 1]  # smoothly


def test_a_slot_is_drained_once_the_windows_are_over_that_hold_its_rows() -> None:
    slots = Slots.of((), 4).with_second({1}, (), newest=14 * S, grid=GRID)
    assert slots.over[1] == 30 * S
    assert np.flatnonzero(slots.is_drained(0, 29 * S)).tolist() == []
    assert np.flatnonzero(slots.is_drained(0, 30 * S)).tolist() == [1]
    assert np.flatnonzero(slots.is_drained(1, BEGINNING)).tolist() == [0, 2, 3]  # never used
    back = slots.with_second((), (), newest=44 * S, grid=GRID)
    assert np.flatnonzero(back.is_drained(1, 50 * S)).tolist() == [0, 2, 3]
    assert back.without_expired(60 * S).recorded() == []


def test_a_record_says_what_is_not_as_it_was_in_the_beginning() -> None:
    slots = Slots.of((), 4).with_second({1, 2}, {2}, newest=14 * S, grid=GRID)
    told = slots.recorded()
    assert told == [(1, 1, BEGINNING, 30 * S), (2, 1, 20 * S, 30 * S)]
    again = Slots.of(told, 4)
    for name in ("active", "since", "over"):
        assert getattr(again, name).tolist() == getattr(slots, name).tolist()
    assert slots.with_second({1, 2}, (), newest=99 * S, grid=GRID) is slots
    assert Slots.of((), 4).with_second({3}, {3}, newest=BEGINNING, grid=GRID).recorded() == [
        (3, 1, BEGINNING, BEGINNING)
    ]
