"""Facts about windows in lanes: what comes out, when, and what is left."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.oracles.windows import BEGINNING, Sessions, Windows, windows_of
from tests.support.fake_flow import FakeSink
from tests.support.rounds import rounds
from tests.support.window_flows import WindowedRun

from godwit.engine.event_time import EventTimes
from godwit.engine.outcomes import count_left_out, rows_left_out
from godwit.library import aggregates as gw
from godwit.model.events import RowsLeftOut
from godwit.operators.window_specs import hopping, session, tumbling
from godwit.store.image import open_file
from godwit.store.local_store import LocalState

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000


def test_a_window_comes_out_once_the_watermark_has_passed_its_end(tmp_path: Path) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(tumbling("10 seconds"), late=FakeSink()).compute(
            n=gw.count(), v=gw.sum("v")
        ),
        tmp_path,
        slack="5 seconds",
    )
    assert run.epoch([("a", 1 * S, 1), ("b", 2 * S, 2)], [("a", 9 * S, 3)]) == []
    assert run.epoch([("a", 14 * S, 4)]) == []
    assert run.epoch([("a", 15 * S, 5)]) == []  # the watermark is at 9 s yet
    assert run.record.watermarks == {"rows": 10 * S}
    assert run.epoch([("b", 3 * S, 7)]) == [("a", 0, 10 * S, 2, 4), ("b", 0, 10 * S, 2, 9)]
    assert run.epoch([("b", 4 * S, 7)]) == []
    assert run.left_out() == [("b", 4 * S, 7, "late")]
    (found,) = (o.arrivals for r in run.reports for o in r.operators if o.arrivals.late)
    assert found.late == 1


@pytest.mark.parametrize("num_key_groups", [1, 7, 64])
def test_overlapping_windows_are_made_of_panes(tmp_path: Path, num_key_groups: int) -> None:
    kinds = [(10 * S, 10 * S, 0), (15 * S, 5 * S, 0), (20 * S, 20 * S, 5 * S)]
    run = WindowedRun(
        lambda keyed: keyed.window(
            tumbling("10 seconds"),
            hopping("15 seconds", every="5 seconds"),
            tumbling("20 seconds", start="5 seconds"),
        ).compute(n=gw.count(), v=gw.sum("v")),
        tmp_path,
        num_key_groups=num_key_groups,
    )
    oracle = Windows(kinds)
    rows = [[(f"k{i % 5}", (7 * i % 40 + 11 * e) * S, i) for i in range(60)] for e in range(6)]
    for part in rows:
        found = run.epoch(part[:30], part[30:])
        assert found == expected(oracle.epoch(part))


def test_windows_that_grow_come_out_in_every_epoch_that_changes_them(tmp_path: Path) -> None:
    kind = (15 * S, 5 * S, 0)
    run = WindowedRun(
        lambda keyed: keyed.window(
            hopping("15 seconds", every="5 seconds"), output="update"
        ).compute(n=gw.count(), v=gw.sum("v")),
        tmp_path,
        slack="10 seconds",
    )
    rows: list[tuple[str, int, int]] = []
    closed = before = BEGINNING
    for epoch in range(6):
        part = [(f"k{i % 4}", (5 * epoch + 3 * i % 17 - 8) * S, i) for i in range(12)]
        found = run.epoch(part)
        part = [row for row in part if windows_of(row[1], *kind)[-1][1] > closed]
        rows += part
        grown = {(k, span) for k, ts, _ in part for span in windows_of(ts, *kind)}
        assert found == expected(
            {
                (k, span): [v for key, ts, v in rows if key == k and span in windows_of(ts, *kind)]
                for k, span in grown
                if span[1] > closed
            }
        )
        closed, before = max(closed, before), max(ts for _, ts, _ in rows) - 10 * S
    assert closed > 0


def test_a_function_gets_the_rows_of_its_window_in_order_of_arrival(tmp_path: Path) -> None:
    def seen(key: Any, rows: Any, window: Any) -> Any:
        assert window.end - window.start == timedelta(seconds=20)
        yield key[0], window.start, [row.v for row in rows], len(rows)

    run = WindowedRun(
        lambda keyed: keyed.window(hopping("20 seconds", every="10 seconds")).process(
            seen, output="k string, start timestamp, values array<long>, n long"
        ),
        tmp_path,
    )
    run.epoch([("a", 12 * S, 1), ("b", 3 * S, 2), ("a", 1 * S, 3)])
    assert run.epoch([("a", 11 * S, 4), ("a", 30 * S, 5)]) == [
        ("a", -10 * S, [3], 1),
        ("b", -10 * S, [2], 1),
    ]
    assert run.epoch([("a", 31 * S, 6)]) == [
        ("a", 0, [1, 3, 4], 3),
        ("a", 10 * S, [1, 4], 2),
        ("b", 0, [2], 1),
    ]
    run.times.end_input()
    assert run.epoch() == [("a", 20 * S, [5, 6], 2), ("a", 30 * S, [5, 6], 2)]


def test_windows_of_windows_lose_no_row(tmp_path: Path) -> None:
    run = WindowedRun(
        lambda keyed: (
            keyed.window(tumbling("10 seconds"), name="tens")
            .compute(n=gw.count())
            .key_by("k")
            .window(tumbling("30 seconds"), name="thirties")
            .compute(n=gw.sum("n"), tens=gw.count())
        ),
        tmp_path,
    )
    assert run.epoch([("a", i * S, 0) for i in range(60)]) == []
    assert run.epoch([("a", 60 * S, 0)]) == [("a", 0, 30 * S, 30, 3)]
    assert run.epoch() == [("a", 30 * S, 60 * S, 30, 3)]
    assert not any(o.arrivals.late for r in run.reports for o in r.operators)
    run.times.end_input()
    assert run.epoch() == [("a", 60 * S, 90 * S, 1, 1)]
    assert run.epoch() == []


def test_rows_far_ahead_or_without_a_time_are_left_out_and_counted(tmp_path: Path) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(tumbling("10 seconds"), late=FakeSink()).compute(n=gw.count()),
        tmp_path,
        max_ahead="1 minute",
    )
    run.run.clock_us = 100 * S
    run.epoch([("a", 160 * S, 1), ("b", 160 * S + 1, 2), ("c", None, 3)])
    assert run.record.newest == {"rows": 160 * S}
    assert run.left_out() == [("b", 160 * S + 1, 2, "ahead"), ("c", None, 3, "untimed")]
    run.run.clock_us = 0  # a clock that jumps back judges new rows, and takes nothing back
    run.epoch()
    run.epoch([("a", 165 * S, 1), ("a", 20 * S, 1)])
    assert run.record.watermarks == {"rows": 160 * S}
    assert run.left_out() == [("a", 165 * S, 1, "ahead"), ("a", 20 * S, 1, "late")]


@pytest.mark.parametrize("slack", ["0 seconds", "1 second"])
def test_what_is_left_out_is_told_with_its_sink_and_sources_without_slack(
    tmp_path: Path, slack: str
) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(tumbling("10 seconds"), late=FakeSink(), name="w").compute(
            n=gw.count()
        ),
        tmp_path,
        slack=slack,
    )
    run.epoch([("a", 50 * S, 1)])
    run.epoch([("a", 50 * S, 1)])
    run.epoch([("a", 1 * S, 1), ("b", None, 1)])
    (told,) = rows_left_out(count_left_out(run.reports), run.compiled)
    event = RowsLeftOut(epoch=2, at_s=0.0, **told)
    assert (event.operator, event.late, event.ahead, event.untimed) == ("w", 1, 0, 1)
    assert event.sink
    assert not event.is_warning
    assert event.no_slack == (("rows",) if slack == "0 seconds" else ())


def test_a_source_that_fell_silent_lets_its_windows_go(tmp_path: Path) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(tumbling("10 seconds")).compute(n=gw.count()),
        tmp_path,
        slack="1 hour",
        idle="30 seconds",
    )
    assert run.epoch([("a", 5 * S, 1)]) == []
    run.run.clock_us = 29 * S
    assert run.epoch() == []
    run.run.clock_us = 30 * S
    assert run.epoch() == [("a", 0, 10 * S, 1)]
    assert run.epoch([("a", 7 * S, 1), ("a", 12 * S, 1)]) == []
    assert sum(o.arrivals.late for r in run.reports for o in r.operators) == 1
    run.run.clock_us = 60 * S
    assert run.epoch() == [("a", 10 * S, 20 * S, 1)]


@pytest.mark.parametrize("way", ["one", "duplicated", "apart", "sessions"])
def test_nothing_grows_over_ten_thousand_windows(tmp_path: Path, way: str) -> None:
    windows: Any = [hopping("2 seconds", every="1 second")]
    if way in ("one", "sessions"):
        windows = [tumbling("1 second") if way == "one" else session("500 milliseconds")]
    run = WindowedRun(
        lambda keyed: keyed.window(
            *windows, consolidate="apart" if way == "apart" else "together"
        ).compute(n=gw.count()),
        tmp_path,
        num_key_groups=4,
        executors={"a": 2},  # of one process
    )
    for sharing in run.times.sharing.values():
        sharing.add_epoch = lambda *_: None  # type: ignore[method-assign]  # what it measures is no matter
        sharing.duplicated = way == "duplicated"
    states = [state for operator in run.compiled.operators for state in operator.states]
    held, local, segments, out = [], [], [], 0
    for epoch in range(30):
        out += len(run.epoch([(f"k{i % 20}", (340 * epoch + i) * S, 0) for i in range(340)]))
        if epoch % 3 == 2:
            held.append(sum(len(run.run.held(index)) for index in range(len(states))))
            local.append(sum(f.stat().st_blocks for f in (tmp_path / "local").rglob("*.table")))
            chains = run.run.log.chains
            segments.append(
                sum(int(chains.chains_of(state).changelog_bytes.sum()) for state in states)
            )
    assert out > 9_700
    assert max(held[5:]) <= max(held[:5]) + 1000  # what three epochs write
    assert max(local[5:]) <= max(local[:5])
    assert max(segments[5:]) <= 2 * max(segments[:5])


def test_panes_that_are_gone_are_not_restored(tmp_path: Path) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(tumbling("1 second")).compute(n=gw.count()),
        tmp_path,
        num_key_groups=4,
    )
    run.run.snapshots = ()
    for epoch in range(10):
        run.epoch([(f"k{i}", epoch * S, 0) for i in range(20)])
    run.run.lose("a")
    run.epoch([("k0", 10 * S, 0)])
    schema = run.compiled.operators[0].schema
    held = 0
    for path in (tmp_path / "local").rglob("*.table"):
        opened = open_file(path, schema, 4)
        assert opened is not None
        held += opened.used
    assert len(run.run.held()) == 201
    assert held == 40  # the window that closes in this epoch, and the one that does not


def expected(over: dict[Any, list[int]]) -> list[tuple[Any, ...]]:
    return sorted(
        ((key, *span, len(values), sum(values)) for (key, span), values in over.items()), key=repr
    )


@pytest.mark.parametrize("seed", range(rounds(2, 4)))
def test_sessions_hold_rows_that_lie_at_most_a_gap_apart(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gap, slack = 5 * S, 20 * S
    run = WindowedRun(
        lambda keyed: keyed.window(session("5 seconds"), late=FakeSink()).compute(
            n=gw.count(), v=gw.sum("v")
        ),
        tmp_path,
        slack="20 seconds",
        num_key_groups=8,
    )
    oracle = Sessions(gap, slack)
    late = 0
    for epoch in range(12):
        rows = [
            (f"k{rng.integers(0, 4)}", int(10 * epoch - rng.exponential(10)) * S, i)
            for i in range(int(rng.integers(0, 20)))
        ]
        if rng.random() < 0.3:
            run.run.lose("a")
        found = run.epoch(rows[::2], rows[1::2]) if rows else run.epoch()
        assert found == sorted(oracle.epoch([*rows[::2], *rows[1::2]]), key=repr)
        late += sum(o.arrivals.late for r in run.reports for o in r.operators)
        assert late == oracle.late
    run.epoch()
    run.times.end_input()
    oracle.epoch([])
    assert run.epoch() == sorted(oracle.close(2**60), key=repr)
    assert run.run.held() == {}


def test_sessions_that_meet_merge_every_kind_of_aggregate(tmp_path: Path) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(session("1 second")).compute(
            values=gw.collect_list("v"),
            different=gw.count_distinct("v"),
            most=gw.max_by("v", "v", where="v < 9"),
            median=gw.approx_median("v", error=0.001),
        ),
        tmp_path,
    )
    run.epoch([("a", 0, 9), ("a", 1_600_000, 2)])
    run.epoch([("a", 800_000, 2)])
    run.times.end_input()
    (row,) = run.epoch()
    assert row[:3] == ("a", 0, 2_600_000)
    assert sorted(row[3]) == [2, 2, 9]
    assert row[4:6] == (2, 2)
    assert round(row[6], 1) == 2.0


def test_open_sessions_of_a_key_are_looked_for_many_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(session("1 second")).compute(n=gw.count(), total=gw.sum("v")),
        tmp_path,
        slack="30 days",
        max_ahead="60 days",
    )
    count = 500
    run.epoch([("a", 10 * S * i, i) for i in range(count)])
    run.epoch([("a", 1, 7)])  # with it, the first epoch's changes enter the store
    looked: list[int] = []
    prior = LocalState.look_up

    def counted(self: LocalState, keys: Any, key_groups: Any) -> Any:
        looked.append(keys.num_rows)
        return prior(self, keys, key_groups)

    monkeypatch.setattr(LocalState, "look_up", counted)
    run.epoch([("a", 2, 1)])
    assert len(looked) < 12
    assert sum(looked) < 3 * count
    monkeypatch.undo()
    closed = run.epoch([("a", 10 * S * count + 40 * 24 * 3600 * S, 0)]) + run.epoch()
    assert len(closed) == count
    assert sorted(row[-1] for row in closed) == sorted([8, *range(1, count)])


@pytest.mark.parametrize("seed", range(rounds(1, 3)))
def test_a_function_gets_the_rows_of_its_session_in_order_of_time(
    tmp_path: Path, seed: int
) -> None:
    def seen(key: Any, rows: Any, window: Any) -> Any:
        times = rows.column("ts")
        assert times == sorted(times)
        assert (times[0], times[-1] + timedelta(seconds=5)) == (window.start, window.end)
        yield key[0], window.start, window.end, len(rows), sum(row.v for row in rows)

    rng = np.random.default_rng(seed)
    run = WindowedRun(
        lambda keyed: keyed.window(session("5 seconds")).process(
            seen, output="k string, start timestamp, stop timestamp, n long, v long"
        ),
        tmp_path,
        slack="20 seconds",
        num_key_groups=8,
    )
    oracle = Sessions(5 * S, 20 * S)
    for epoch in range(10):
        rows = [
            (f"k{rng.integers(0, 4)}", int(10 * epoch - rng.exponential(10)) * S, i)
            for i in range(int(rng.integers(0, 20)))
        ]
        if rng.random() < 0.3:
            run.run.lose("a")
        found = run.epoch(rows[::2], rows[1::2]) if rows else run.epoch()
        assert found == sorted(oracle.epoch([*rows[::2], *rows[1::2]]), key=repr)
    assert run.epoch() == sorted(oracle.epoch([]), key=repr)
    run.times.end_input()
    assert run.epoch() == sorted(oracle.close(2**60), key=repr)
    assert run.run.held() == {}


def test_windows_with_states_of_their_own_are_made_of_what_panes_hold_besides(
    tmp_path: Path,
) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(tumbling("20 seconds"), tumbling("30 seconds")).compute(
            n=gw.count(), v=gw.sum("v")
        ),
        tmp_path,
    )
    (sharing,) = run.times.sharing.values()
    run.epoch([("a", 1 * S, 1), ("b", 12 * S, 2)])
    assert {(k, pane.second, span) for k, pane, span in run.run.held()} == {
        ("a", 0, 0),
        ("b", 10, 0),
    }
    sharing.duplicated = True
    run.epoch([("a", 2 * S, 10)])
    own = {(k, pane.second, span) for k, pane, span in run.run.held() if span}
    assert own == {("a", 0, 20 * S), ("a", 0, 30 * S)}
    assert run.epoch([("b", 29 * S, 20)]) == []
    sharing.duplicated = False
    assert run.epoch([("a", 30 * S, 0)]) == [("a", 0, 20 * S, 2, 11), ("b", 0, 20 * S, 1, 2)]
    assert run.epoch() == [("a", 0, 30 * S, 2, 11), ("b", 0, 30 * S, 2, 22)]


def test_aggregates_that_depend_on_the_order_of_rows_always_share_panes(tmp_path: Path) -> None:
    for number, aggregate in enumerate((gw.first("v"), gw.top_k("v", 2), gw.collect_set("v"))):
        run = WindowedRun(
            lambda keyed, a=aggregate: keyed.window(  # type: ignore[misc]  # bound at once
                hopping("20 seconds", every="10 seconds")
            ).compute(a=a),
            tmp_path / str(number),
        )
        assert run.times.sharing == {}


def test_windows_stay_open_at_the_end_of_an_input_that_is_to_go_on(tmp_path: Path) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(tumbling("10 seconds")).compute(n=gw.count()), tmp_path
    )
    run.run.epochs.times = EventTimes(run.compiled, None, close_at_end=False)
    run.epoch([("a", 1 * S, 1), ("a", 12 * S, 1)])
    run.times.end_input()
    assert run.epoch() == [("a", 0, 10 * S, 1)]  # over by the watermark
    assert run.epoch() == []
    run.restart()
    assert run.epoch([("a", 13 * S, 1)]) == []
    run.times.end_input()
    assert run.epoch() == [("a", 10 * S, 20 * S, 2)]


def test_rows_that_waited_beside_others_are_processed_once_when_their_key_group_waits_again(
    tmp_path: Path,
) -> None:
    run = WindowedRun(
        lambda keyed: keyed.window(tumbling("10 seconds")).compute(n=gw.count()),
        tmp_path,
        executors={"a": 1},
        num_key_groups=2,
    )
    rows = [(f"k{i}", 1 * S, 1) for i in range(8)]
    for suspended in ({0, 1}, {1}, {0, 1}, set()):  # 0 resumes while 1 waits, and waits again
        run.run.suspended = frozenset(suspended)
        run.epoch(rows)
    run.times.end_input()
    found = run.epoch()
    assert found == [(f"k{i}", 0, 10 * S, 4) for i in range(8)]
