"""Shares of key groups since they last changed, and the noise of their estimates."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.rounds import rounds

from godwit.control.load_window import LoadWindow
from godwit.model.assignment import Assignment, even_assignment
from godwit.model.key_groups import KeyGroupLoad

GROUPS = 64
PLACES = even_assignment(GROUPS, ["a", "b", "c", "d"], [1] * 4)


class Stream:
    """Epochs of a second with so many rows, each as dear as any other."""

    def __init__(self, rows: float, seed: int = 0, row_s: float = 1e-3) -> None:
        self.window, self.rng = LoadWindow(GROUPS), np.random.default_rng(seed)
        self.rows, self.row_s, self.now_s = rows, row_s, 0.0
        self.share = np.full(GROUPS, 1 / GROUPS)
        self.places: Assignment = PLACES

    def epochs(self, count: int, rows: float | None = None) -> int:
        """Let epochs pass until one shows a shift; return how many it took, or none: 0."""
        for number in range(1, count + 1):
            self.now_s += 1.0
            each = self.rng.poisson(self.share * (rows or self.rows))
            seen = np.flatnonzero(each)
            busy_ms = np.asarray(each[seen] * self.row_s * 1e3, np.float64)
            load = KeyGroupLoad(
                key_groups=seen,
                rows=each[seen],
                keys=each[seen],
                cpu_ms=busy_ms,
                state_bytes=np.zeros(len(seen), np.int64),
                busy_ms=busy_ms,
            )
            self.window.observe(self.places, load, self.now_s, {})
            if self.window.shifted:
                return number
        return 0

    def errors(self) -> tuple[np.ndarray, np.ndarray]:
        """True and estimated errors of executors' shares."""
        shares = self.window.shares({})
        assert shares is not None
        of = self.places.executor_of
        wrong = np.bincount(of, shares.share - self.share)
        return wrong, np.sqrt(np.bincount(of, shares.variance))


@pytest.mark.parametrize("rows", [20, 200, 2000])
def test_standard_errors_are_as_large_as_errors_are(rows: int) -> None:
    scores = []
    for seed in range(30):
        stream = Stream(rows, seed)
        stream.epochs(20)
        wrong, errors = stream.errors()
        scores += (wrong / errors).tolist()
    assert 0.7 < np.std(scores) < 1.2
    assert np.abs(scores).max() < 4


def test_what_stays_is_known_ever_better() -> None:
    stream = Stream(100)
    stream.epochs(10)
    _, before = stream.errors()
    stream.epochs(300)
    _, after = stream.errors()
    assert after.max() < before.max() / 4


@pytest.mark.parametrize("seed", range(rounds(5, 10)))
def test_a_steady_stream_has_no_shift_even_where_its_rate_steps(seed: int) -> None:
    stream = Stream(50, seed)
    assert not stream.epochs(150)
    assert not stream.epochs(150, rows=400)
    assert not stream.epochs(150, rows=30)
    assert stream.window.shares({}).epochs > 400  # type: ignore[union-attr]


def test_a_shift_of_keys_is_seen_two_epochs_later_and_the_old_load_is_forgotten() -> None:
    stream = Stream(5000)
    stream.epochs(100)
    stream.share = np.where(PLACES.executor_of == 1, 2.0, 1.0)
    stream.share /= stream.share.sum()
    assert 1 <= stream.epochs(10) <= 2
    stream.epochs(4)
    wrong, errors = stream.errors()
    assert (np.abs(wrong) < 4 * errors).all()


def test_few_rows_of_very_unequal_cost_are_no_shift() -> None:
    """Costs of rows whose logarithms deviate by 1: one key group is dear by chance now and then."""
    cut = 0
    for seed in range(4):
        rng, window = np.random.default_rng(seed), LoadWindow(GROUPS)
        for number in range(500):
            rows = rng.poisson(20, GROUPS)
            busy_ms = np.array([rng.lognormal(0, 1, count).sum() for count in rows.tolist()])
            load = KeyGroupLoad(
                key_groups=np.arange(GROUPS),
                rows=rows,
                keys=rows,
                cpu_ms=busy_ms,
                state_bytes=np.zeros(GROUPS, np.int64),
                busy_ms=busy_ms,
            )
            window.observe(PLACES, load, float(number), {})
            shares = window.shares({})
            cut += shares is None or shares.epochs <= number
    assert cut == 0


def test_what_the_epochs_of_a_shift_differ_by_is_no_noise() -> None:
    """An executor's key groups take three times as long; a new stream of such knows no better."""
    share = np.where(PLACES.executor_of == 2, 3.0, 1.0)
    shifts, new = Stream(2000), Stream(2000)
    shifts.epochs(30)
    for stream in (shifts, new):
        stream.share = share / share.sum()
    assert shifts.epochs(2)
    shifts.epochs(3)
    new.epochs(5)
    assert np.allclose(shifts.errors()[1], new.errors()[1], rtol=0.2)


def test_one_odd_epoch_is_no_shift() -> None:
    stream = Stream(5000)
    stream.epochs(60)
    usual = stream.share
    stream.share = np.where(PLACES.executor_of == 1, 2.0, 1.0)
    stream.share /= stream.share.sum()
    assert not stream.epochs(1)
    stream.share = usual
    assert not stream.epochs(40)


def lopsided(executor: int) -> np.ndarray:
    """Return shares of which those of an executor are twice as large as others."""
    share = np.where(PLACES.executor_of == executor, 2.0, 1.0)
    shares: np.ndarray = share / share.sum()
    return shares


def test_one_epoch_shows_a_shift_where_the_last_odd_one_was_a_shift() -> None:
    stream = Stream(5000)
    stream.epochs(60)
    for executor, epochs in ((1, 2), (2, 1), (3, 1)):
        stream.share = lopsided(executor)
        assert stream.epochs(4) == epochs
        assert not stream.epochs(10)


def test_an_odd_epoch_that_was_taken_for_a_shift_is_undone_and_the_next_is_waited_for() -> None:
    stream = Stream(5000)
    stream.epochs(60)
    stream.share = lopsided(1)
    assert stream.epochs(4) == 2
    stream.epochs(60)
    for shifts in (1, 0):
        stream.share = lopsided(2)
        assert stream.epochs(1) == shifts
        stream.share = lopsided(1)
        assert stream.epochs(1) == shifts, "back to what was usual, which is planned for again"
        assert not stream.epochs(20)
        shares = stream.window.shares({})
        assert shares is not None
        assert shares.epochs > 70, "what was known of the usual load is not forgotten"


def test_of_few_rows_a_shift_takes_as_many_epochs_as_it_needs() -> None:
    stream = Stream(60)
    stream.epochs(200)
    stream.share = np.where(PLACES.executor_of == 1, 4.0, 1.0)
    stream.share /= stream.share.sum()
    assert 2 <= stream.epochs(40) <= 20


def test_a_move_is_no_shift() -> None:
    stream = Stream(5000)
    stream.epochs(50)
    stream.places = PLACES.moved({0: "b", 4: "c"})
    assert not stream.epochs(20)


def test_a_drift_of_minutes_is_followed() -> None:
    stream = Stream(3000)
    stream.epochs(100)
    goal = np.where(PLACES.executor_of == 1, 3.0, 1.0)
    goal /= goal.sum()
    start = stream.share.copy()
    for step in range(300):
        stream.share = start + (goal - start) * step / 300
        stream.epochs(1)
        shares = stream.window.shares({})
        assert shares is not None
        sums = np.bincount(PLACES.executor_of, shares.share - stream.share)
        assert np.abs(sums).max() < 0.05


def test_rows_that_took_no_time_end_no_search_for_a_shift() -> None:
    stream = Stream(2000)
    stream.epochs(60)
    stream.share = np.roll(stream.share * np.linspace(0, 2, GROUPS), 7)
    assert not stream.epochs(1)
    stream.row_s = 0.0
    stream.epochs(1)
    stream.row_s = 1e-3
    stream.epochs(5)
    wrong, _ = stream.errors()
    assert np.abs(wrong).max() < 0.02, "the shares of before are forgotten"


def test_epochs_without_load_say_nothing() -> None:
    window = LoadWindow(GROUPS)
    window.observe(PLACES, None, 1.0, {})
    assert window.shares({}) is None
    assert not window.shifted
