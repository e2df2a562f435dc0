"""Facts about `drop_duplicates` that need no state."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.library.duplicates import first_within


def one_by_one(key: list[int], times: list[int], free: list[bool], reach: int) -> list[int]:
    """Let rows through one after the other, each compared with all that came through."""
    through: list[int] = []
    for row, moment in enumerate(times):
        others = (times[other] for other in through if key[other] == key[row])
        if free[row] and all(abs(moment - other) > reach for other in others):
            through.append(row)
    return through


@pytest.mark.parametrize("seed", range(60))
def test_the_same_rows_come_through_as_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, keys = int(rng.integers(0, 200)), int(rng.integers(1, 5))
    key = rng.integers(0, keys, count)
    times = rng.integers(-500, int(rng.integers(1, 3000)), count)
    free, reach = rng.random(count) < 0.9, int(rng.integers(0, 40))
    expected = one_by_one(key.tolist(), times.tolist(), free.tolist(), reach)
    assert first_within(key, times, free, reach).tolist() == expected


def test_as_many_rows_of_one_key_as_an_epoch_may_have_are_no_more_work_each() -> None:
    # Were each compared with all that came through, this would take minutes.
    times = np.random.default_rng(1).permutation(60_000) * 10
    key, free = np.zeros(len(times), np.int64), np.ones(len(times), np.bool_)
    assert first_within(key, times, free, 9).size == len(times)
    assert first_within(key, times, free, 10).size < len(times)
