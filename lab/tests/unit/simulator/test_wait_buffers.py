"""Rows of suspended key groups wait in order."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.model.errors import MigrationError
from godwit_lab.simulator.holdings import WaitBuffers

NONE, ALL = np.zeros(2, np.bool_), np.ones(2, np.bool_)


def buffers() -> WaitBuffers:
    return WaitBuffers(component="sums", key_groups=2)


def at(time_s: float, rows: int) -> np.ndarray:
    return np.array([[float(rows), time_s, time_s]])


def test_rows_of_suspended_key_groups_wait_and_leave_with_their_own_times() -> None:
    made = buffers()
    first = made.commit(np.array([3, 5]), np.array([True, False]), NONE, at(1.0, 8))
    assert first.tolist() == [[3, 1, 1]]
    assert made.waiting.tolist() == [0, 5]
    second = made.commit(np.array([1, 1]), ALL, np.array([False, True]), at(2.0, 2))
    assert sorted(second.tolist()) == [[2, 2, 2], [5, 1, 1]]
    assert made.waiting.tolist() == [0, 0]
    assert made.processed.tolist() == made.arrived.tolist() == [4, 6]


def test_rows_that_would_overtake_others_are_refused() -> None:
    made = buffers()
    made.commit(np.array([0, 5]), np.array([True, False]), NONE, at(1.0, 5))
    with pytest.raises(MigrationError, match=r"overtaken in key groups \[1\] of 'sums'"):
        made.commit(np.array([0, 1]), ALL, NONE, at(2.0, 1))


def test_what_waits_goes_on_waiting_while_its_key_group_is_suspended() -> None:
    made = buffers()
    for time_s in (1.0, 2.0):
        made.commit(np.array([2, 2]), NONE, NONE, at(time_s, 4))
    left = made.commit(np.array([0, 0]), np.array([True, False]), np.array([True, False]), at(3, 0))
    assert left.tolist() == [[2, 1, 1], [2, 2, 2]]
    assert made.waiting.tolist() == [0, 4]
