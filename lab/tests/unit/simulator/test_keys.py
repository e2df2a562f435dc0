"""Keys over key groups: shares, distinct keys, shifts."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.model.errors import InvalidProblemError
from godwit_lab.simulator.workload import Keys, KeySpread


def test_shares_are_those_of_the_keys_in_each_key_group() -> None:
    spread = KeySpread(keys=Keys(number=5000, zipf=1.0), key_groups=8, seed=(1,))
    phase = spread.phase(0)
    assert phase.share.sum() == pytest.approx(1)
    assert spread.initial_state.sum() == 5000
    hottest = 1 / (1 / np.arange(1, 5001)).sum()
    assert phase.share.max() > hottest


def test_distinct_keys_are_what_drawing_rows_gives_on_average() -> None:
    keys, rng = Keys(number=2000, zipf=0.8), np.random.default_rng(3)
    spread = KeySpread(keys=keys, key_groups=4, seed=(2,))
    phase = spread.phase(0)
    home, weight = spread._home, np.arange(1, 2001) ** -0.8
    frequency = np.random.default_rng([2, 1, 0]).permutation(weight / weight.sum())
    drawn = rng.choice(2000, 3000, p=frequency)
    rows = np.bincount(home[drawn], minlength=4)
    distinct = np.bincount(home[np.unique(drawn)], minlength=4)
    assert phase.keys_among(rows) == pytest.approx(distinct, rel=0.1)
    assert phase.keys_among(rows).sum() == pytest.approx(distinct.sum(), rel=0.03)


def test_no_rows_touch_no_keys_and_many_touch_all() -> None:
    spread = KeySpread(keys=Keys(number=100), key_groups=4, seed=(1,))
    phase = spread.phase(0)
    assert phase.keys_among(np.zeros(4)).tolist() == [0, 0, 0, 0]
    assert phase.keys_among(np.full(4, 10**8)) == pytest.approx(spread.initial_state)
    assert phase.keys_among(np.ones(4)) == pytest.approx(np.ones(4))


def test_a_shift_permutes_frequencies_and_is_the_same_in_every_run() -> None:
    keys = Keys(number=1000, zipf=1.0, shifts_s=(5.0, 9.0))
    assert [keys.phase_at(t) for t in (0, 4.9, 5, 9, 20)] == [0, 0, 1, 2, 2]
    one, other = (KeySpread(keys=keys, key_groups=16, seed=(7,)) for _ in range(2))
    assert not np.allclose(one.phase(0).share, one.phase(1).share)
    assert np.array_equal(one.phase(1).share, other.phase(1).share)


def test_keys_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidProblemError, match="0 keys"):
        Keys(number=0)
    with pytest.raises(InvalidProblemError, match="ascending"):
        Keys(shifts_s=(2.0, 1.0))
