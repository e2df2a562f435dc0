"""Timers that set, cancel and drop one another, over drawn histories, against plain Python.

What a row or a timer does follows from a checksum of what it is, so that the function and the
model, which shares nothing else with it, decide alike.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.rounds import rounds
from tests.support.window_flows import WindowedRun

from godwit.api.declarations import OnTimer
from godwit.operators.declared import ValueState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

S = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SLACK = 2 * S

Told = tuple[str, str, int, int, int]
"""Key, what happened, its moment, a count, and how many timers the key had."""


def moment_of(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def at(moment: int) -> datetime:
    """Give a moment; some without a time zone, which are in UTC."""
    found = EPOCH + timedelta(microseconds=moment)
    return found if moment % 2 else found.replace(tzinfo=None)


def does(what: str, key: str, moment: int, value: int, listed: list[int]) -> Iterator[Any]:
    """Say what a row or a timer does: set, cancel, or drop the state."""
    drawn = zlib.crc32(repr((what, key, moment, value)).encode())
    if what == "row" and drawn % 7:
        yield "set", moment + ((drawn >> 3) % 25 - 10) * S
    if what == "row" and drawn % 5 == 0:
        yield "set", moment + 3 * S
    if what == "timer" and drawn % 3 == 0:
        yield "set", moment + ((drawn >> 4) % 20 + 1) * S
    if listed and drawn % 4 == 0:
        yield "cancel", listed[(drawn >> 8) % len(listed)]
    if drawn % 6 == 0:
        yield "cancel", moment + 3 * S
    if drawn % 11 == 0:
        yield "drop", 0


def act(key: str, what: str, moment: int, value: int, of: Any) -> Iterator[Told]:
    listed = [moment_of(other) for other in of.timers.list()]
    for action, other in does(what, key, moment, value, listed):
        if action == "set":
            of.timers.set(at(other))
        elif action == "cancel":
            yield key, "cancel", other, int(of.timers.cancel(at(other))), 0
        else:
            of.drop_state()


def on_rows(key: tuple[str], rows: Any, state: dict[str, int]) -> Iterator[Told]:
    for row in rows:
        moment = moment_of(row.ts)
        state["n"] = state.get("n", 0) + 1
        yield key[0], "row", moment, state["n"], len(rows.timers.list())
        yield from act(key[0], "row", moment, row.v, rows)


def on_timer(key: tuple[str], timer: Any, state: dict[str, int]) -> Iterator[Told]:
    moment = moment_of(timer.time)
    state["n"] = state.get("n", 0) + 1000
    yield key[0], "timer", moment, state["n"], len(timer.timers.list())
    yield from act(key[0], "timer", moment, 0, timer)


@dataclass
class Model:
    """One key: its count, its timers, and when it is forgotten."""

    key: str
    ttl: int | None
    count: int = 0
    timers: set[int] = field(default_factory=set)
    expires: int | None = None

    def epoch(self, rows: list[tuple[int, int]], now: int | None, clock: int) -> Iterator[Told]:
        if self.expires is not None and self.expires <= clock:
            self.count, self.expires = 0, None
        yield from self._fire(now, clock)
        if rows:
            self._touch(clock)
            dropped = False
            for moment, value in rows:
                self.count += 1
                yield self.key, "row", moment, self.count, len(self.timers)
                dropped |= yield from self._act("row", moment, value)
            self._drop_if(dropped)
            yield from self._fire(now, clock)

    def _fire(self, now: int | None, clock: int) -> Iterator[Told]:
        while now is not None and self.timers and min(self.timers) <= now:
            moment = min(self.timers)
            self.timers.discard(moment)
            self._touch(clock)
            self.count += 1000
            yield self.key, "timer", moment, self.count, len(self.timers)
            self._drop_if((yield from self._act("timer", moment, 0)))

    def _act(self, what: str, moment: int, value: int) -> Any:
        dropped = False
        for action, other in does(what, self.key, moment, value, sorted(self.timers)):
            if action == "set":
                self.timers.add(other)
            elif action == "cancel":
                yield self.key, "cancel", other, int(other in self.timers), 0
                self.timers.discard(other)
            else:
                dropped = True
        return dropped

    def _touch(self, clock: int) -> None:
        self.expires = None if self.ttl is None else clock + self.ttl

    def _drop_if(self, dropped: bool) -> None:
        if dropped:
            self.count = 0
            self.timers.clear()


@pytest.mark.parametrize("seed", range(rounds(2, 6)))
def test_timers_fire_as_plain_python_says_whatever_they_do_to_one_another(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    by_event, ttl = seed % 2 == 0, rng.choice((None, 6 * S))
    options: dict[str, Any] = {
        "timers": OnTimer(on_timer, clock="event" if by_event else "processing"),
        "state": ValueState(dict, ttl=None if ttl is None else timedelta(microseconds=ttl)),
        "output": "k string, what string, at long, n long, timers long",
    }
    run = WindowedRun(
        lambda keyed: keyed.process(on_rows, **options),
        tmp_path,
        executors={"a": 2, "b": 1},
        slack="2 seconds",
        max_ahead="10 days",
    )
    models = {key: Model(key, ttl) for key in "abcd"}
    start = newest = rng.choice((0, -500 * S, 1_600_000_000 * S))
    watermark: int | None = None
    for _ in range(10):
        start += rng.choice((0, 2, 5, 9)) * S
        clock = start + rng.choice((0, 0, 1, -7)) * S  # it may jump back
        rows = [
            (rng.choice("abcd"), start - int(rng.expovariate(0.3)) * S + rng.randrange(2), number)
            for number in range(rng.randrange(9))
        ]
        run.run.clock_us = clock
        run.epoch(*((rows[::2], rows[1::2]) if rows else ()))
        found = run.output("out", ordered=False)
        now: int | None = clock  # timers of event time are due once the watermark is past them
        if by_event:
            now = None if watermark is None else watermark - 1
        for key, model in models.items():
            mine = [(m, v) for k, m, v in [*rows[::2], *rows[1::2]] if k == key]
            expected = list(model.epoch(mine, now, clock))
            assert [row for row in found if row[0] == key] == expected
        if rows:
            latest = max(moment for _, moment, _ in rows)
            newest = latest if watermark is None else max(newest, latest)
            watermark = newest - SLACK
        if rng.random() < 0.3:
            run.restart()
        if rng.random() < 0.2:
            run.run.lose("a")
