"""Facts about windows that stay for those that come after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from tests.oracles.windows import Windows
from tests.support.window_flows import TIME, WindowedRun

import godwit as gw
from godwit.library.windows import consolidation as planning
from godwit.library.windows.closing import Pieces
from godwit.library.windows.compute import SPAN, WindowedCompute
from godwit.library.windows.kept import kept_spans
from godwit.library.windows.operator import PANE
from godwit.ops.state_view import without_derived
from godwit.store.changes import StateRows
from godwit.time.event_time import EpochTime
from godwit.time.grid import BEGINNING, PaneGrid, TimeWindow

if TYPE_CHECKING:
    from pathlib import Path

    from godwit.api.streams import KeyedStream, Stream
    from godwit.library.windows.kept import KeptSpans

M = 60_000_000
FOUR = [(5, 5), (10, 10), (15, 15), (20, 20)]


def windows_operator(*kinds: tuple[int, int], **more: Any) -> Any:
    """Windows of some lengths and frequencies in minutes, of panes of a minute."""
    specs = [gw.hopping(f"{n} minutes", every=f"{e} minutes") for n, e in kinds]

    def of(keyed: KeyedStream) -> Stream:
        windows = keyed.window(*specs, **{"share": "always", **more})
        return windows.compute(n=gw.count(), v=gw.sum("v"))

    return of


def run_of(root: Path, *kinds: tuple[int, int], pane: int = 1, **source: Any) -> WindowedRun:
    """Run windows whose panes are of a minute, whatever their lengths divide."""
    run = WindowedRun(
        windows_operator(*kinds), root, num_key_groups=1, executors={"a": 1}, **source
    )
    (operator,) = (o for o in run.compiled.operators if o.over_event_time)
    assert isinstance(operator, WindowedCompute)
    operator.grid = PaneGrid(windows=operator.grid.windows, width_us=pane * M)
    return run


def merged_in(run: WindowedRun) -> int:
    """Keys that an epoch merged."""
    return sum(o.windows.merged for r in run.reports for o in r.operators if o.windows is not None)


def rows_of(begin: int, end: int) -> list[tuple[str, int, int]]:
    """One row of one key a minute."""
    return [("k", minute * M, minute) for minute in range(begin, end)]


@pytest.mark.parametrize("minutes", [5, 60])
def test_an_hour_of_the_papers_windows_takes_86_partials_whatever_the_epochs(
    minutes: int, tmp_path: Path
) -> None:
    run, oracle = run_of(tmp_path, *FOUR), Windows([(n * M, e * M, 0) for n, e in FOUR])
    merged, found, expected = 0, [], dict[Any, Any]()
    for begin in range(0, 60 + minutes, minutes):  # windows close an epoch after their rows
        rows = rows_of(begin + 1, begin + minutes + 1) + rows_of(0, begin == 0)
        found += run.epoch(rows)
        expected |= oracle.epoch(rows)
        merged += merged_in(run)
    assert merged == 86
    assert sorted(found) == sorted(
        (k, *span, len(vs), sum(vs)) for (k, span), vs in expected.items()
    )


def test_what_stays_takes_late_rows_and_survives_a_start_that_knows_of_it_or_not(
    tmp_path: Path,
) -> None:
    run, oracle = run_of(tmp_path, *FOUR), Windows([(n * M, e * M, 0) for n, e in FOUR])
    merged = {}
    for minute in range(1, 42):
        rows = [("k", minute * M, minute), ("k", (minute - minute % 20) * M, 1)]
        rows += [("new", (minute - 7) * M, 5)] if minute % 11 == 0 else []
        found = run.epoch(rows)
        expected = oracle.epoch(rows)
        merged[minute] = merged_in(run)
        rows_expected = [(k, *span, len(vs), sum(vs)) for (k, span), vs in expected.items()]
        assert found == sorted(rows_expected, key=repr)
        if minute in (14, 35):
            run.restart(knows_kept=minute == 35)
    assert merged[16] > 15 > merged[36]  # built from panes again, and from what stayed


def test_state_is_read_without_what_stays(tmp_path: Path) -> None:
    run = run_of(tmp_path, *FOUR)
    for minute in range(18):
        run.epoch(rows_of(minute, minute + 1))
    (operator,) = (o for o in run.compiled.operators if o.over_event_time)
    assert run.record.retained == {str(operator.states[0]): (BEGINNING, operator.kept_mark)}
    kept = run.run.held(0)
    stored = StateRows(
        hashes=np.zeros(len(kept), np.int64),
        keys=pa.RecordBatch.from_arrays(
            [pa.array(column) for column in zip(*kept, strict=True)],
            schema=pa.schema([("k", pa.string()), (PANE, TIME), (SPAN, pa.int64())]),
        ),
        values=pa.RecordBatch.from_arrays(
            [pa.array(column) for column in zip(*kept.values(), strict=True)],
            names=operator.schema.values.names,
        ),
    )
    spans = [key[-1] for key in kept]
    assert min(spans) < 0
    assert without_derived(stored).keys.column(SPAN).to_pylist() == [s for s in spans if s >= 0]


def test_planning_a_day_every_minute_searches_nothing_among_what_stayed() -> None:
    grid = PaneGrid(windows=(TimeWindow(length_us=1440 * M, every_us=M),), width_us=M)
    kept = kept_spans(grid)
    assert kept is not None
    closed, until = 14416 * M, 14418 * M  # two windows close in an epoch
    panes = np.arange(until - 1442 * M, until, M)
    starts, spans = kept.entries(panes, BEGINNING, closed)
    time = EpochTime(closed=closed, until=until, kept_since=BEGINNING)
    pieces, _ = Pieces.of(grid, starts, spans, time, kept)
    with patch.object(planning, "search_auxiliary", side_effect=AssertionError("searched")):
        steps = pieces.plan(np.full(pieces.count, 2000), 2000, overlapping=False)
    assert sum(len(step.parts) for step in steps.values()) < 30


def test_after_a_jump_of_the_watermark_what_stays_costs_a_fraction_of_what_it_saves() -> None:
    grid = PaneGrid(windows=(TimeWindow(length_us=240 * M, every_us=M),), width_us=M)
    kept = kept_spans(grid)
    time = EpochTime(closed=240 * M, until=900 * M, kept_since=BEGINNING)  # 660 windows at once
    panes = np.arange(0, time.until, M)
    parts = {}
    for stays in (None, kept):
        pieces, _ = Pieces.of(grid, panes, None, time, stays)
        steps = pieces.plan(np.full(pieces.count, 2000), 2000, overlapping=False)
        parts[stays] = sum(len(step.parts) for step in steps.values())
    assert kept is not None
    stay = len(kept.to_retain(panes, time.closed, time.until))
    assert parts[kept] - parts[None] < 12 * stay  # each saves hundreds


def test_windows_stay_only_where_later_ones_need_them() -> None:
    def kept(*kinds: tuple[int, int]) -> KeptSpans | None:
        windows = (TimeWindow(length_us=n * M, every_us=e * M) for n, e in kinds)
        return kept_spans(PaneGrid(windows=tuple(windows), width_us=M))

    assert kept((5, 5)) is None
    assert kept((10, 5)) is None
    assert kept((7, 3)) is None
    blocks = kept((20, 1))
    assert blocks is not None
    assert [w.length_us // M for w in blocks.grid.windows] == [4, 8]
    both = kept((5, 5), (10, 10))
    assert both is not None
    assert both.mark != blocks.mark
    # The first five minutes of ten are there from the fifth to the tenth, and begin after `since`.
    assert both.is_retained(0, 5 * M, BEGINNING, 5 * M)
    assert not both.is_retained(0, 5 * M, 5 * M, 5 * M)
    assert not both.is_retained(0, 5 * M, BEGINNING, 10 * M)
    assert not both.is_retained(5 * M, 10 * M, BEGINNING, 10 * M)
    starts, spans = both.entries(np.arange(0, 20) * M, BEGINNING, 15 * M)
    assert (starts[20:].tolist(), spans[20:].tolist()) == ([10 * M], [-5 * M])
