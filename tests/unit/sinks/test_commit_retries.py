"""Attempts of a commit that loses against other writers, with a clock of the test's own."""

from __future__ import annotations

import random

from godwit.sinks.target_sink import CommitRetries, RetryPolicy


class Time:
    """A clock that moves when someone waits or works."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits: list[float] = []

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds

    def policy(self, seed: int = 1) -> RetryPolicy:
        rng = random.Random(seed)
        return RetryPolicy(clock=self.clock, sleep=self.sleep, uniform=rng.uniform)

    def longest_waits(self) -> RetryPolicy:
        return RetryPolicy(clock=self.clock, sleep=self.sleep, uniform=lambda _low, high: high)


def _lose(retries: CommitRetries, time: Time, attempt_s: float, *, max_attempts: int) -> int:
    """Lose until there is no time left; return the number of attempts."""
    for number in range(1, max_attempts + 1):
        retries.begin(version=number)
        time.now_s += attempt_s
        if not retries.wait_after_conflict():
            return number
    return max_attempts


def test_bounds_of_waits_double_from_the_duration_of_an_attempt_up_to_a_maximum() -> None:
    time = Time()
    retries = CommitRetries(time.longest_waits())
    _lose(retries, time, 0.3, max_attempts=8)
    assert [round(wait, 3) for wait in time.waits] == [0.3, 0.6, 1.2, 2.4, 4.8, 8.0, 8.0, 8.0]


def test_slow_attempts_are_repeated_ten_times_also_beyond_the_time() -> None:
    time = Time()
    assert _lose(CommitRetries(time.policy()), time, 60.0, max_attempts=100) == 10


def test_quick_attempts_are_repeated_for_minutes_not_a_number_of_times() -> None:
    time = Time()
    retries = CommitRetries(time.policy())
    attempts = _lose(retries, time, 0.2, max_attempts=10_000)
    assert 40 < attempts < 400
    assert 300 <= time.now_s < 310


def test_a_writer_as_fast_as_the_attempts_are_slow_is_passed_in_the_time() -> None:
    """An attempt of 0.35 s beside a commit every 0.4 s, in step with it at first."""
    for seed in range(50):
        time = Time()
        retries = CommitRetries(time.policy(seed))
        for _ in range(10_000):
            retries.begin(version=int(time.now_s / 0.4))
            before = int((time.now_s + 0.2) / 0.4)
            time.now_s += 0.35
            if int((time.now_s + 0.2) / 0.4) == before:
                break
            assert retries.wait_after_conflict(), f"seed {seed}"


def test_the_error_says_who_commits_how_often_and_what_was_tried() -> None:
    time = Time()
    retries = CommitRetries(time.longest_waits())
    for version in (7, 30, 57):
        retries.begin(version, "append by Spark")
        time.now_s += 10
        retries.wait_after_conflict()
    assert retries.story() == (
        "3 attempts in 60 s met commits of other writers. They committed 51 times, every 1.2 s, "
        "the last one append by Spark; an attempt takes 10.0 s"
    )
