"""Commits that conflict with other writers: how long they are repeated, and what is said then."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from godwit.sinks.commit_attempts import ATTEMPTS_S, MIN_ATTEMPTS, CommitAttempts


@dataclass
class Clock:
    """A clock that only sleeping and working move on."""

    now_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)

    def read(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.now_s += seconds


def tried(clock: Clock, *, work_s: float, others_s: float | None) -> CommitAttempts:
    """Attempts of `work_s` that all fail; others commit every `others_s`, or never."""
    attempts = CommitAttempts(clock=clock.read, sleep=clock.sleep, draw=lambda: 0.5)
    for _ in range(10_000):
        attempts.begin(7 + (int(clock.now_s / others_s) if others_s else 0))
        clock.now_s += work_s
        if not attempts.wait():
            return attempts
    raise AssertionError("It never ends.")


def test_attempts_go_on_for_a_time_with_waits_that_grow_to_a_bound() -> None:
    clock = Clock()
    attempts = tried(clock, work_s=0.5, others_s=0.4)
    assert ATTEMPTS_S <= clock.now_s < ATTEMPTS_S + 1.5
    assert clock.waits_s == sorted(clock.waits_s)
    assert clock.waits_s[0] < 0.1
    assert 0.5 <= clock.waits_s[-1] <= 1.0
    assert (
        attempts.describe()
        == f"another writer commits every 0.4 s; {attempts.count} attempts in 60 s"
    )


def test_an_attempt_that_takes_long_is_repeated_as_often_as_a_short_one_at_least() -> None:
    clock = Clock()
    attempts = tried(clock, work_s=30.0, others_s=30.0)
    assert attempts.count == MIN_ATTEMPTS


def test_a_commit_that_fails_without_other_writers_is_not_tried_for_long() -> None:
    clock = Clock()
    attempts = tried(clock, work_s=0.1, others_s=None)
    assert clock.now_s < 5
    assert "no other writer committed" in attempts.describe()


@pytest.mark.parametrize("seed", range(5))
def test_waits_are_drawn_so_that_two_rhythms_do_not_stay_alike(seed: int) -> None:
    import random

    clock = Clock()
    attempts = CommitAttempts(clock=clock.read, sleep=clock.sleep, draw=random.Random(seed).random)
    for version in range(12):
        attempts.begin(version)
        assert attempts.wait()
    assert len({round(wait, 9) for wait in clock.waits_s[-5:]}) == 5
