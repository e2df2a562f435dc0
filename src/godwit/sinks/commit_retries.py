"""Repetition of a commit that lost against other writers of the same table.

A table format commits optimistically: a commit that was made for version n is refused if another
writer made version n + 1 meanwhile.  An attempt that takes `a` seconds beside a writer that commits
every `i` seconds wins with probability 1 - a / i if it begins at a random time, and may never win
if it begins when the other one has just committed.  So an epoch is tried for a time, not a number
of times, with random waits between the attempts whose bound grows exponentially ("full jitter").
The first bound is the duration of an attempt: slow merges wait longer.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Time, waits, clock and random source of the attempts to commit an epoch."""

    max_s: float = 300.0  # no attempt begins later, unless there were fewer than `min_attempts`
    min_attempts: int = 10  # however long they take
    min_wait_bound_s: float = 0.05
    max_wait_bound_s: float = 8.0  # or the duration of an attempt, if it takes longer
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    # Of a generator of its own: two drivers must not wait in step.
    uniform: Callable[[float, float], float] = field(
        default_factory=lambda: random.Random().uniform  # noqa: S311
    )


class CommitRetries:
    """Attempts to commit one epoch: `begin` each one, and `wait_after_conflict` if it lost."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._start_s = self._attempt_start_s = policy.clock()
        self._num_attempts = 0
        self._first_version: int | None = None
        self._version = 0
        self._last_writer = ""
        self._attempt_s = 0.0  # duration of the last attempt

    def begin(self, version: int, last_writer: str = "") -> None:
        """Begin an attempt on version `version` of the table, which `last_writer` committed."""
        if self._first_version is None:
            self._first_version = version
        self._version, self._last_writer = version, last_writer
        self._attempt_start_s = self._policy.clock()
        self._num_attempts += 1

    def wait_after_conflict(self) -> bool:
        """Wait after an attempt that lost; return ``False`` if there is no time for another."""
        policy, now_s = self._policy, self._policy.clock()
        self._attempt_s = now_s - self._attempt_start_s
        if now_s - self._start_s >= policy.max_s and self._num_attempts >= policy.min_attempts:
            return False
        unit_s = max(policy.min_wait_bound_s, self._attempt_s)
        growth = 2.0 ** min(self._num_attempts - 1, 30)
        bound_s = min(unit_s * growth, max(policy.max_wait_bound_s, unit_s))
        policy.sleep(policy.uniform(0.0, bound_s))
        return True

    def story(self) -> str:
        """Return the attempts and the commits of the other writers, as text for errors."""
        elapsed_s = self._policy.clock() - self._start_s
        num_others = self._version - (self._first_version or 0) + 1
        last = f", the last one {self._last_writer}" if self._last_writer else ""
        return (
            f"{self._num_attempts} attempts in {elapsed_s:.0f} s met commits of other writers. "
            f"They committed {num_others} times, every {elapsed_s / max(num_others, 1):.1f} s"
            f"{last}; an attempt takes {self._attempt_s:.1f} s"
        )
