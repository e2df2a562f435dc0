"""Plays the same rows in several cuts into epochs, with restarts and migrations: one final result.

No row is late by the order of arrival, in any of the cuts.  Some drawn flows depend on the order in
which rows of a source arrive, as the guide says; the others also get it in another order.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["play_in_cuts"]

SECOND = dt.timedelta(seconds=1)
BASE = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
MOST = 2**63 - 1
COLUMNS = "k string, ts timestamp, v bigint, w bigint"

Row = tuple[str, int, int, int]
"""Key, event time in seconds, and two values."""


@dataclass
class Drawn:
    """A flow, and how its result is read."""

    rng: random.Random
    slack: int
    text: list[str] = field(default_factory=list)
    by_arrival: bool = False  # whether the result depends on the order of arrival
    versions: tuple[str, ...] | None = None  # columns of which the last row counts; None: all rows
    changes: bool = False  # whether rows are changes, which are added up
    steps: list[Callable[[Any], Any]] = field(default_factory=list)

    def length(self, most: int = 12) -> dt.timedelta:
        return self.rng.randint(1, most) * SECOND

    def add(self, text: str, step: Callable[[Any], Any]) -> None:
        self.text.append(text)
        self.steps.append(step)


def play_in_cuts(seed: int, *, cuts: int = 3) -> list[str]:
    """Play a drawn flow in some cuts; say where results differ, or nothing."""
    rng = random.Random(seed)
    drawn = Drawn(rng, slack=rng.choice([0, 0, 3, 6]))
    rng.choice(FIRST)(drawn)
    rows = {name: _rows(drawn) for name in ("s", "t")}
    if drawn.versions is None and not drawn.changes and rng.random() < 0.5:
        rng.choice(SECOND_STEPS)(drawn)
    results = []
    for number in range(cuts):
        given = rows
        if number == cuts - 1 and not drawn.by_arrival:
            given = {name: _in_another_order(drawn, rows[name]) for name in rows}
        how = ["one epoch", "an epoch each row"][number] if number < 2 else "drawn"
        try:
            results.append((how, _result(drawn, _played(drawn, given, number))))
        except gw.errors.EpochFailedError as error:
            if "does not fit" not in error.message:
                raise
            if drawn.versions is not None:  # versions in between must fit, too
                continue
            results.append((how, Counter(["a sum does not fit"])))
    if not results:
        return []
    first = results[0][1]
    said = [
        f"{how}: more {list((one - first).items())[:4]}, less {list((first - one).items())[:4]}"
        for how, one in results[1:]
        if one != first
    ]
    return [*said, *drawn.text, f"slack {drawn.slack}, rows {rows}"] if said else []


def _rows(drawn: Drawn) -> list[Row]:
    rng, now, found = drawn.rng, 0, list[Row]()
    for number in range(rng.randint(4, 14)):
        now += rng.choice([0, 0, 1, 2, 5, 10, 12])
        at = max(0, now - rng.choice([0, 0, drawn.slack, rng.randint(0, drawn.slack)]))
        huge = rng.choice([MOST // 2, -MOST // 2]) if rng.random() < 0.2 else rng.randint(-3, 9)
        found.append((rng.choice("abc"), at, number, huge))
    return found


def _in_another_order(drawn: Drawn, rows: list[Row]) -> list[Row]:
    """Return rows in another order in which none is late."""
    late = [row[1] + drawn.rng.uniform(0, drawn.slack) for row in rows]
    return [row for _, row in sorted(zip(late, rows, strict=True))]


def _epochs(
    rng: random.Random, rows: dict[str, list[Row]], number: int
) -> Iterator[dict[str, list[Row]]]:
    """Yield the rows of each epoch: all in one, one in each, or as drawn."""
    left = {name: list(of) for name, of in rows.items()}
    while any(left.values()):
        epoch = {}
        for name, of in left.items():
            count = len(of) if number == 0 else 1 if number == 1 else rng.choice([0, 0, 1, 2, 5])
            epoch[name], left[name] = of[:count], of[count:]
        yield epoch


def _played(drawn: Drawn, rows: dict[str, list[Row]], number: int) -> list[dict[str, Any]]:
    rng = random.Random(f"{number} {drawn.text}")
    flow = gw.Flow("cuts", num_key_groups=4)
    streams = {
        name: flow.source(
            name, gw.testing.stream(COLUMNS), event_time="ts", slack=drawn.slack * SECOND
        )
        for name in rows
    }
    stream: Any = streams
    for step in drawn.steps:
        stream = step(stream)
    flow.sink("out", stream, gw.sinks.noop())
    if not drawn.text[0].startswith("t "):
        flow.sink("others", streams["t"].key_by("k").compute(n=gw.count()), gw.sinks.noop())
    run = gw.testing.cluster(flow, executors={"1": 2, "2": 1}, now=BASE + dt.timedelta(hours=1))
    for epoch in _epochs(rng, rows, number):
        run.epoch(
            {n: [(k, BASE + at * SECOND, v, w) for k, at, v, w in of] for n, of in epoch.items()}
        )
        chance = rng.random() if number > 1 else 1
        if chance < 0.1:
            run.restart()
        elif chance < 0.2:
            component = rng.choice([*run.placement.assignments])
            if "_" not in component and "apart" not in str(drawn.text):
                run.migrate({g: rng.choice(["1", "2"]) for g in range(4)}, component=component)
        elif chance < 0.3:
            run.epoch({})
    run.end_input()
    assert not run.late, (run.late, drawn.text)
    rows_out: list[dict[str, Any]] = run.rows("out").to_pylist()
    return rows_out


def _result(drawn: Drawn, rows: list[dict[str, Any]]) -> Counter[str]:
    """Return the final result: all rows, the last ones of each key, or what changes add up to."""
    if drawn.changes:
        total: Counter[str] = Counter()
        for row in rows:
            total[repr({k: v for k, v in row.items() if k != "change"})] += row["change"]
        # A key that all its rows have left has a count of 0, if some epoch ended while it had any.
        return Counter({row: n for row, n in total.items() if n and "'keys': 0" not in row})
    if drawn.versions is None:
        return Counter(map(repr, rows))
    return Counter(map(repr, {tuple(r[c] for c in drawn.versions): r for r in rows}.values()))


# --- what is drawn ------------------------------------------------------------------------------


def _aggregates(drawn: Drawn, *, ordered: bool, top: bool = True) -> Callable[[], dict[str, Any]]:
    every: dict[str, Callable[[], Any]] = {
        "n": gw.count,
        "total": lambda: gw.sum("v"),
        "wide": lambda: gw.sum("w"),
        "mean": lambda: gw.mean("v"),
        "lo": lambda: gw.min("w"),
        "hi": lambda: gw.max("v"),
        "kinds": lambda: gw.count_distinct("w"),
        "top": lambda: gw.top_k("v", 2),
        "some": lambda: gw.sum("v", where="w > 0"),
        "first": lambda: gw.first("v"),
        "last": lambda: gw.last("v"),
        "all": lambda: gw.collect_list("v"),
    }
    known = [name for name in [*every][: None if ordered else 9] if top or name != "top"]
    names = drawn.rng.sample(known, 3)
    drawn.by_arrival |= bool({"first", "last", "all"} & {*names})
    drawn.text.append(f"aggregates {names}")
    return lambda: {name: every[name]() for name in names}


def _source(stream: Any) -> Any:
    return stream["s"].key_by("k")


def _running(drawn: Drawn) -> None:
    how = drawn.rng.choice(["update", "complete", "changes"])
    drawn.changes = how == "changes"
    drawn.versions = None if drawn.changes else ("k",)
    drawn.text.append(f"running {how}")
    # Sums that do not fit after an epoch are an error, so there are no such values here.
    drawn.steps.append(
        lambda s: _source(s).compute(n=gw.count(), total=gw.sum("v"), hi=gw.max("w"), output=how)
    )


def _windows(drawn: Drawn) -> None:
    rng = drawn.rng
    kinds = []
    for _ in range(rng.randint(1, 2)):
        every = rng.randint(1, 8)
        kind = (every * rng.randint(1, 3) * SECOND, every * SECOND)
        if kind not in kinds:
            kinds.append(kind)
    options: dict[str, Any] = {"name": "w", "length_as": "length"}
    how = rng.choice(["append", "apart", "update", "late", "always", "never"])
    more: dict[str, dict[str, Any]] = {
        "apart": {"consolidate": "apart"},
        "update": {"output": "update"},
        "late": {"allowed_lateness": drawn.length()},
        "always": {"share": "always"},
        "never": {"share": "never"},
    }
    options |= more.get(how, {})
    if how in ("late", "update"):
        drawn.versions = ("k", "window_start", "window_end")
    drawn.text.append(f"windows {kinds} {how}")
    whole = len(kinds) == 1 and kinds[0][0] == kinds[0][1]
    make = _aggregates(drawn, ordered=whole and how != "never", top=how != "never")
    specs = [gw.hopping(length, every=every) for length, every in kinds]
    drawn.steps.append(lambda s: _source(s).window(*specs, **options).compute(**make()))


def _sessions(drawn: Drawn) -> None:
    gap = drawn.length(10)
    drawn.text.append(f"sessions {gap}")
    make = _aggregates(drawn, ordered=False)
    drawn.steps.append(lambda s: _source(s).window(gw.session(gap), name="w").compute(**make()))


def told(key: Any, rows: Any, window: Any) -> Any:
    yield key[0], window.end, repr(sorted(row.v for row in rows)), len(rows)


def _functions(drawn: Drawn) -> None:
    length = drawn.length(10)
    spec = drawn.rng.choice([gw.session(length), gw.tumbling(length)])
    drawn.add(
        f"function of windows {spec}",
        lambda s: (
            _source(s)
            .window(spec, name="w")
            .process(told, output="k string, at timestamp, rows string, n long")
        ),
    )


def _duplicates(drawn: Drawn) -> None:
    within = drawn.length()
    drawn.by_arrival = True
    drawn.add(
        f"duplicates {within}", lambda s: s["s"].drop_duplicates("k", within=within, name="w")
    )


def _rows_windows(drawn: Drawn) -> None:
    every = drawn.rng.randint(1, 3)
    spec = gw.rows(every * drawn.rng.randint(1, 3), every=every)
    drawn.by_arrival = True
    drawn.text.append(f"{spec}")
    make = _aggregates(drawn, ordered=True)
    drawn.steps.append(lambda s: _source(s).window(spec, name="w").compute(**make()))


def _join(drawn: Drawn) -> None:
    first = drawn.rng.randint(-8, 4)
    between = (first * SECOND, (first + drawn.rng.randint(0, 8)) * SECOND)
    how = drawn.rng.choice(["inner", "left", "right", "full"])
    drawn.add(
        f"t joined {between} {how}",
        lambda s: _source(s).join(
            s["t"].key_by("k"), between=between, how=how, suffix="_t", name="w"
        ),
    )


def _newest(drawn: Drawn) -> None:
    within = drawn.rng.choice([None, drawn.length()])
    how = drawn.rng.choice(["inner", "left"])
    drawn.by_arrival = True  # of several right rows of one time, the last one counts
    drawn.add(
        f"t newest {within} {how}",
        lambda s: _source(s).join_newest(
            s["t"].key_by("k"), within=within, how=how, suffix="_t", name="w"
        ),
    )


def _in_order(drawn: Drawn) -> None:
    wait, named = drawn.length(12), drawn.rng.random() < 0.5

    def take(seen: list[int], timers: Any, rows: Any) -> None:
        for earlier in timers.list():
            timers.cancel(earlier)
        for row in rows:
            seen.append(row.v)
            timers.set(row.ts + wait * (1 if row.v % 4 else -1))

    def on_rows(key: Any, rows: Any, state: Any) -> Any:
        seen = state.seen.value or [] if named else state
        take(seen, rows.timers, rows)
        if named:
            state.seen.value = seen
        return [(key[0], rows.timers.now, repr(seen), len(rows))]

    def on_timer(key: Any, timer: Any, state: Any) -> Any:
        seen = list((state.seen.value if named else state) or [])
        if len(seen) > 2:
            timer.drop_state()
        return [(key[0], timer.time, f"timer {seen}", 0)]

    state: Any = {"seen": gw.ValueState(list)} if named else list
    drawn.add(
        f"in order, timers after {wait}, named {named}",
        lambda s: _source(s).process(
            on_rows,
            timers=gw.types.OnTimer(on_timer, clock="event"),
            order="event_time",
            output=gw.types.Output(
                "k string, ts timestamp, rows string, n long", event_time="ts", slack=40 * SECOND
            ),
            name="w",
            state=state,
        ),
    )


def _counts_of(drawn: Drawn) -> None:
    drawn.versions = ("k",)
    drawn.add("then counts", lambda s: s.key_by("k").compute(name="then", rows=gw.count()))


def _changes_of(drawn: Drawn) -> None:
    drawn.changes = True
    drawn.add(
        "then changes of counts",
        lambda s: (
            s.key_by("k")
            .compute(name="counts", rows=gw.count(), output="changes")
            .as_rows()
            .key_by("rows")
            .compute(name="then", keys=gw.sum("change"), output="changes")
        ),
    )


def _windows_of(drawn: Drawn) -> None:
    if not drawn.text[0].startswith(("windows", "sessions", "duplicates", "in order")):
        _counts_of(drawn)
        return
    spec = drawn.rng.choice([gw.tumbling(drawn.length()), gw.session(drawn.length())])
    drawn.add(
        f"then {spec}",
        lambda s: s.key_by("k").window(spec, name="then").compute(rows=gw.count()),
    )


FIRST = (
    _running,
    _windows,
    _windows,
    _sessions,
    _functions,
    _duplicates,
    _rows_windows,
    _join,
    _newest,
    _in_order,
    _in_order,
)
SECOND_STEPS = (_counts_of, _changes_of, _windows_of, _windows_of)
