"""State grows with keys touched; copies read what they miss."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.model.assignment import even_assignment
from godwit_lab.simulator.holdings import Holdings
from godwit_lab.simulator.workload import Keys, KeySpread

SPREAD = KeySpread(keys=Keys(number=1000, zipf=0.0), key_groups=4, seed=(1,))


def holdings() -> Holdings:
    return Holdings(key_groups=4, key_bytes=100)


def change(held: Holdings, rows: list[int], number: int = 0) -> tuple[float, float]:
    phase, counts = SPREAD.phase(number), np.array(rows)
    return held.commit_epoch(
        counts,
        phase.keys_among(counts),
        phase=phase,
        number=number,
        known=SPREAD.initial_state,
    )


def test_state_grows_with_keys_that_are_new_and_never_beyond_all_keys() -> None:
    held = holdings()
    change(held, [50, 0, 0, 0])
    first = held.keys[0]
    assert 40 < first <= 50
    assert held.keys[1:].tolist() == [0, 0, 0]
    for epoch in range(1, 60):
        change(held, [50, 0, 0, 0], number=epoch // 20)
    assert first < held.keys[0] <= SPREAD.initial_state[0]
    assert held.keys[0] == pytest.approx(SPREAD.initial_state[0], rel=0.01)


def test_a_new_copy_reads_everything_and_a_copy_that_lags_what_it_misses() -> None:
    held = holdings()
    held.set_initial_state(SPREAD.initial_state)
    assert held.missing_bytes("a") == pytest.approx(100 * SPREAD.initial_state)
    held.catch_up("a", np.arange(4, dtype=np.int32), held.written_bytes)
    assert held.missing_bytes("a").tolist() == [0, 0, 0, 0]
    written, _ = change(held, [10, 0, 0, 0])
    assert held.missing_bytes("a")[0] == pytest.approx(written)
    held.drop("a", [0])
    assert held.missing_bytes("a")[0] == pytest.approx(held.state_bytes[0])


def test_a_snapshot_is_taken_when_the_changelog_has_outgrown_the_last_one() -> None:
    held = Holdings(key_groups=4, key_bytes=10_000)
    rewritten = 0.0
    for _ in range(40):
        _, snapshots = change(held, [200, 200, 200, 200])
        rewritten += snapshots
    assert 0 < rewritten < 3 * held.written_bytes.sum()
    assert (held.changelog_bytes <= held.snapshot_bytes + 200 * 10_000).all()


def test_copies_of_an_executor_that_goes_leave_those_of_others_as_they_are() -> None:
    held = holdings()
    held.set_initial_state(SPREAD.initial_state)
    places = even_assignment(4, ["a", "b", "c"], [1, 1, 1])
    held.copies.catch_up(places, np.ones(4, np.bool_), held.written_bytes)
    held.copies.pop("a")
    assert held.copies.get("a") is None
    assert held.copy("c").exists.tolist() == [False, False, True, False]
    assert held.copies.exists(places).tolist() == [False, True, True, False]
    assert held.missing_at_owners(places)[1:3].tolist() == [0, 0]
    for name in map(str, range(20)):
        held.catch_up(name, np.array([3]), np.zeros(1))
    assert held.copy("b").exists.tolist() == [False, True, False, False]
