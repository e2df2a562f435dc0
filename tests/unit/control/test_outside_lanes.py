"""Time per row outside the lanes, estimated from epochs."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.control.outside_lanes import OutsideLanes


def estimate(epochs: list[tuple[int, float, float]]) -> float:
    outside = OutsideLanes()
    for executors, rows, outside_s in epochs:
        outside.add(executors=executors, rows=round(rows), outside_s=outside_s)
    return outside.update()


def noisy(seed: int, rows: np.ndarray, fixed_s: float, per_row_s: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    exact: np.ndarray = (fixed_s + per_row_s * rows) * rng.normal(1.0, 0.05, len(rows))
    return exact


@pytest.mark.parametrize("seed", range(20))
def test_a_time_per_row_is_found_where_epochs_differ(seed: int) -> None:
    rows = np.random.default_rng(seed).uniform(1000, 5000, 40)
    few = [(4, r, s) for r, s in zip(rows[:20], noisy(seed, rows[:20], 0.1, 3e-4), strict=True)]
    # More executors with a larger fixed part: not to be taken for the rows' part.
    many = [
        (16, r / 3, s)
        for r, s in zip(rows[20:], noisy(seed, rows[20:] / 3, 0.9, 3e-4), strict=True)
    ]
    assert estimate(few + many) == pytest.approx(3e-4, rel=0.25)


@pytest.mark.parametrize("seed", range(20))
def test_a_fixed_part_is_not_taken_for_one_of_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    differing = rng.uniform(1000, 5000, 60)
    assert (
        estimate(
            [(4, r, s) for r, s in zip(differing, noisy(seed, differing, 0.5, 0.0), strict=True)]
        )
        == 0.0
    )
    # Epochs get the rows that came during the one before, and become quicker as a run warms up.
    warming, epochs = 1.0 + 0.3 * np.exp(-np.arange(60) / 20), []
    took_s = warming[0]
    for fixed_s in warming:
        epochs.append((4, 2000 * took_s, fixed_s))
        took_s = fixed_s * rng.normal(1.0, 0.02)
    assert estimate(epochs) == 0.0


def test_a_few_large_epochs_after_many_of_one_size_tell_it() -> None:
    """A step up shows a serial sink; under overload a tenth of the epochs takes long to come."""
    usual = noisy(0, np.full(60, 1000.0), 0.1, 3e-4)
    epochs = [(4, 1000.0, outside_s) for outside_s in usual.tolist()]
    for count, known in ((2, False), (4, True)):
        large = [(4, rows, 0.1 + 3e-4 * rows) for rows in (3000.0, 5000.0, 5000.0, 4000.0)[:count]]
        assert (estimate(epochs + large) > 0) == known
    assert estimate(epochs + large) == pytest.approx(3e-4, rel=0.1)


def test_one_epoch_that_was_held_up_counts_little() -> None:
    rows = np.linspace(1000, 5000, 30)
    epochs = [(4, r, 0.1 + 3e-4 * r) for r in rows]
    epochs[10] = (4, rows[10], 30.0)
    assert estimate(epochs) == pytest.approx(3e-4, rel=0.05)


def test_rows_that_have_become_quicker_are_bounded_by_what_epochs_take() -> None:
    outside = OutsideLanes()
    for rows in range(1000, 5000, 100):
        outside.add(executors=4, rows=rows, outside_s=0.1 + 1e-3 * rows)
    assert outside.update() == pytest.approx(1e-3)
    for _ in range(8):
        outside.add(executors=4, rows=3000, outside_s=0.3)
    assert outside.update() <= 1e-4


def test_nothing_is_estimated_without_epochs_or_rows() -> None:
    assert OutsideLanes().update() == 0.0
    assert estimate([(4, 0, 0.2)] * 10) == 0.0
