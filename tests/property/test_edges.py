"""Rows at exactly the edge of what event-time operators wait for, a microsecond before and after.

The same rows are cut into epochs in many ways, with epochs without input or not.  No row is late by
the order of arrival, so every cut gives one result, which plain Python says.
"""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.rounds import rounds

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

US = dt.timedelta(microseconds=1)
GAP = 10 * US
BASE = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)

Row = tuple[str, int]
"""Key, and event time in microseconds since `BASE`."""


def cuts(rows: list[Any]) -> Iterator[list[list[Any]]]:
    """Yield ways to cut rows into epochs, and one with epochs without input in between.

    Every way before a release and for up to three rows, else half of them: with and without any two
    cuts.
    """
    for ends in itertools.product([False, True], repeat=len(rows) - 1):
        if len(rows) > 3 and sum(ends) % 2 >= rounds(1, 2):
            continue
        epochs = [[rows[0]]]
        for is_cut, row in zip(ends, rows[1:], strict=True):
            if is_cut:
                epochs.append([])
            epochs[-1].append(row)
        yield epochs
    yield [part for row in rows for part in ([row], [])]


def results(
    rows: list[Row], builds: Mapping[str, Callable[[Any, str], Any]]
) -> dict[str, list[list[tuple[Any, ...]]]]:
    """Return the different results that all cuts have in each sink; none may leave out a row.

    `builds`: name → function of a stream and this name, which its operators have names from.
    """
    found: dict[str, list[list[tuple[Any, ...]]]] = {name: [] for name in builds}
    for epochs in cuts([(key, BASE + at * US) for key, at in rows]):
        flow = gw.Flow("edges", num_key_groups=2)
        stream = flow.source("s", gw.testing.stream("k string, ts timestamp"), event_time="ts")
        for name, build in builds.items():
            flow.sink(name, build(stream, name), gw.sinks.noop())
        run = gw.testing.run(flow, {"s": epochs}, close_at_end=True, now=BASE)
        assert not run.late
        for name, different in found.items():
            out = sorted(
                (
                    tuple(
                        (v - BASE) // US if isinstance(v, dt.datetime) else v for v in row.values()
                    )
                    for row in run.rows(name).to_pylist()
                ),
                key=repr,
            )
            if out not in different:
                different.append(out)
    return found


@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_a_row_at_most_the_gap_after_a_session_is_part_of_it(edge: int) -> None:
    rows = [("a", 0), ("b", 10 + min(edge, 0)), ("a", 10 + edge), ("b", 30)]
    mine = [("a", 0, 20 + edge, 2)] if edge <= 0 else [("a", 0, 10, 1), ("a", 11, 21, 1)]
    builds = {how: partial(sessions, how=how) for how in ("compute", "process")}
    for how, found in results(rows, builds).items():
        assert [[row for row in one if row[0] == "a"] for one in found] == [mine], how


def sessions(stream: Any, name: str, how: str = "compute") -> Any:
    windows = stream.key_by("k").window(gw.session(GAP), name=f"sessions_{name}")
    if how == "compute":
        return windows.compute(n=gw.count())
    return windows.process(
        lambda key, rows, window: [(key[0], window.start, window.end, len(rows))],
        output="k string, start timestamp, stop timestamp, n long",
    )


@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_results_of_sessions_are_in_time_for_windows_and_sessions_of_them(edge: int) -> None:
    rows = [("a", 0), ("b", 10 + min(edge, 0)), ("a", 10 + edge), ("b", 12)]
    windows = {"tumbling": gw.tumbling(GAP), "session": gw.session(GAP)}
    builds = {name: partial(over_sessions, window=window) for name, window in windows.items()}
    for name, (found,) in results(rows, builds).items():
        assert sum(row[-1] for row in found) == 4, name


def over_sessions(stream: Any, name: str, window: Any) -> Any:
    return sessions(stream, name).key_by("k").window(window, name=name).compute(n=gw.sum("n"))


@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_a_window_takes_rows_before_its_end(edge: int) -> None:
    rows = [("a", 0), ("b", 10 + min(edge, 0)), ("a", 10 + edge), ("b", 30)]
    mine = [("a", 0, 10, 2)] if edge < 0 else [("a", 0, 10, 1), ("a", 10, 20, 1)]
    options: dict[str, Any] = {
        "plain": {},
        "apart": {"consolidate": "apart"},
        "late": {"allowed_lateness": 3 * US},
    }
    builds = {name: partial(counted, options=each) for name, each in options.items()}
    for name, found in results(rows, builds).items():
        assert [[row for row in one if row[0] == "a"] for one in found] == [mine], name


def counted(stream: Any, name: str, options: Any) -> Any:
    windows = stream.key_by("k").window(gw.tumbling(GAP), name=name, **options)
    return windows.compute(n=gw.count())


@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_an_interval_join_has_both_its_bounds(edge: int) -> None:
    """Of a stream with itself: rows match later ones of their key, or earlier ones."""
    rows = [("a", 0), ("b", 10 + min(edge, 0)), ("a", 10 + edge), ("c", 30)]
    builds = {
        f"{how}_{when}": partial(meeting, between=between, how=how)
        for when, between in {"later": (US, GAP), "earlier": (-GAP, -US)}.items()
        for how in ("inner", "full")
    }
    for name, (found,) in results(rows, builds).items():
        pairs = [row for row in found if None not in row]
        assert len(pairs) == (edge <= 0), name
        assert len(found) == (len(pairs) if name.startswith("inner") else 8 - len(pairs)), name


def meeting(stream: Any, name: str, between: Any, how: Any) -> Any:
    keyed = stream.key_by("k")
    return keyed.join(keyed, between=between, how=how, suffix="_r", name=name)


def remind(key: Any, rows: Any, state: Any) -> Any:
    for row in rows:
        for earlier in rows.timers.list():
            rows.timers.cancel(earlier)
        rows.timers.set(row.ts + GAP)
    return []


@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_a_timer_waits_for_rows_of_its_very_time(edge: int) -> None:
    """Whatever is cut; but for timers that rows of the same epoch cancel, which come first."""
    flow = gw.Flow("edges", num_key_groups=2)
    stream = flow.source("s", gw.testing.stream("k string, ts timestamp"), event_time="ts")
    told = stream.key_by("k").process(
        remind,
        state=int,
        timers=gw.types.OnTimer(lambda key, timer, state: [(key[0], timer.time)], clock="event"),
        output="k string, at timestamp",
    )
    flow.sink("out", told, gw.sinks.noop())
    run = gw.testing.cluster(flow, now=BASE)
    for key, at in [("a", 0), ("b", 10 + edge), ("a", 10 + edge)]:
        run.epoch({"s": [(key, BASE + at * US)]})
    fired = [row["at"] for row in run.rows("out").to_pylist()]
    assert fired == ([BASE + GAP] if edge > 0 else [])


MOST: dict[str, Any] = {"bigint": 2**63 - 1, "decimal(38, 2)": Decimal("9" * 36 + ".99")}


@pytest.mark.parametrize("kind", MOST)
def test_a_sum_that_fits_is_right_though_parts_of_it_do_not(kind: str) -> None:
    most = MOST[kind]
    least = -most if kind == "bigint" else most.copy_negate()
    lists: list[list[Any]] = [[-5, most, 5], [most, most, least], [most, least, most, least]]
    for values in lists:
        found: dict[str, set[Fraction]] = {how: set() for how in SUMMED}
        for epochs in cuts([("a", BASE + at * US, v) for at, v in enumerate(values)]):
            sums = [
                sum(Fraction(v) for rows in epochs[: n + 1] for *_, v in rows)
                for n in range(len(epochs))
            ]
            flow = gw.Flow("sums", num_key_groups=2)
            rows = gw.testing.stream(f"k string, ts timestamp, v {kind}")
            stream = flow.source("s", rows, event_time="ts")
            hows = [
                how
                for how in SUMMED
                # else results of these epochs do not fit
                if how not in ("update", "changes") or all(abs(one) <= most for one in sums)
            ]
            for how in hows:
                flow.sink(how, summed(stream, how, len(values)), gw.sinks.noop())
            run = gw.testing.run(flow, {"s": epochs}, close_at_end=True, now=BASE)
            for how in hows:
                found[how].add(Fraction(run.rows(how).to_pylist()[-1]["total"]))
        assert found == {how: {sum(map(Fraction, values))} for how in SUMMED}, values


SUMMED = ("update", "changes", "windows", "apart", "sessions", "rows")


def summed(stream: Any, how: str, count: int) -> Any:
    keyed = stream.key_by("k")
    if how in ("update", "changes"):
        return keyed.compute(name=how, total=gw.sum("v"), output=how)
    if how == "rows":
        return keyed.window(gw.rows(count), name=how).compute(total=gw.sum("v"))
    options = {"consolidate": "apart"} if how == "apart" else {}
    kind = gw.session(GAP) if how == "sessions" else gw.hopping(GAP * 2, every=GAP)
    return keyed.window(kind, name=how, **options).compute(total=gw.sum("v"))


def test_state_is_read_without_the_column_for_sums_that_do_not_fit() -> None:
    flow = gw.Flow("sums", num_key_groups=2)
    rows = gw.testing.stream("k string, ts timestamp, v bigint")
    stream = flow.source("s", rows, event_time="ts")
    flow.sink("out", summed(stream, "windows", 0), gw.sinks.noop())
    run = gw.testing.cluster(flow, now=BASE)
    run.epoch({"s": [("a", BASE, MOST["bigint"]), ("b", BASE, 1)]})
    run.epoch({"s": [("a", BASE, MOST["bigint"])]})
    state = run.state("windows")
    assert not [name for name in state.column_names if "high" in name]
    assert {row["k"]: row["total"] for row in state.to_pylist()} == {"a": None, "b": 1}
