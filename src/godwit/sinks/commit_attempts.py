"""Commits to a table that others write to: repeated for a time, with growing waits.

A table format accepts a commit only on the version that it was made for.  Where another writer was
faster the commit is made anew, and what decides then is how long that takes against how often the
other commits.  So the attempts are bounded by a time rather than by a number, and the waits between
them are drawn, so that two writers of one rhythm do not meet again and again.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

ATTEMPTS_S: Final = 60.0
"""Time for which a commit that conflicts with other writers is repeated."""

MIN_ATTEMPTS: Final = 10
"""Attempts that a commit gets in any case, however long each of them takes."""

_QUIET_ATTEMPTS: Final = 5  # if nobody else commits: then it is refused for another reason
_FIRST_WAIT_S: Final = 0.02
_LONGEST_WAIT_S: Final = 1.0


@dataclass(slots=True, kw_only=True)
class CommitAttempts:
    """Attempts to commit one epoch; call `begin` before each, and `wait` after one that failed."""

    clock: Callable[[], float] = time.monotonic  # seconds
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = field(default_factory=lambda: random.Random().random)  # noqa: S311
    count: int = 0  # attempts begun
    # (time in seconds, number of the table's commits) when the first and the last attempt began
    _first: tuple[float, int] = (0.0, 0)
    _last: tuple[float, int] = (0.0, 0)
    _quiet: int = 0  # attempts in a row that failed though nobody else had committed

    def begin(self, version: int) -> None:
        """Note the start of an attempt on a table's version, which counts its commits."""
        now = self.clock(), version
        if not self.count:
            self._first = now
        elif version == self._last[1]:
            self._quiet += 1
        else:
            self._quiet = 0
        self._last = now
        self.count += 1

    def wait(self) -> bool:
        """Wait before the next attempt; return ``False`` if there is to be none."""
        is_late = self.clock() - self._first[0] >= ATTEMPTS_S
        if self._quiet >= _QUIET_ATTEMPTS or (is_late and self.count >= MIN_ATTEMPTS):
            return False
        longest = min(_FIRST_WAIT_S * 2 ** min(self.count, 16), _LONGEST_WAIT_S)
        self.sleep(longest * (0.5 + self.draw() / 2))
        return True

    def describe(self) -> str:
        """Return how often was tried, and how often others committed meanwhile."""
        (began, version), (ended, newest) = self._first, self._last
        took_s, commits = max(self.clock() - began, 0.0), newest - version
        tried = f"{self.count} attempts in {took_s:.2g} s"
        if commits < 1:
            return f"{tried}, in which no other writer committed"
        return f"another writer commits every {max(ended - began, 0.001) / commits:.2g} s; {tried}"
