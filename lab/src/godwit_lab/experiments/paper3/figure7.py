"""Paper 3 §6.1, figures 7 and 8: windows built from windows or from partials."""

from __future__ import annotations

import numpy as np

from godwit.library.windows.closing import Pieces
from godwit.library.windows.consolidation import ConsolidationProblem, plan_consolidation
from godwit.library.windows.kept import kept_spans
from godwit.time.event_time import EpochTime
from godwit.time.grid import BEGINNING, END, PaneGrid, TimeWindow
from godwit_lab.cli.reproduce.figure import (
    Chart,
    FigureResult,
    FigureRun,
    Row,
    RunsOn,
    at_least,
    at_most,
    figure,
)

_LENGTHS = (5, 10, 15, 20)
_EPOCHS = (1, 5, 10, 30, 60)
_MINUTE = 60_000_000


def consolidated(minutes: int, *kinds: tuple[int, int], stay: bool) -> float:
    """Count the partials that a running stream consolidates an hour.

    As lanes plan it, for one key with a row a minute; `minutes`: length of an epoch; `kinds`:
    length and frequency of windows in minutes; `stay`: whether windows stay for those that come
    after.
    """
    windows = tuple(TimeWindow(length_us=n * _MINUTE, every_us=e * _MINUTE) for n, e in kinds)
    grid = PaneGrid(windows=windows, width_us=_MINUTE)
    kept, count = kept_spans(grid), 0
    hours = 4
    for closed in range(0, hours * 60, minutes):
        time = EpochTime(
            closed=closed * _MINUTE,
            until=(closed + minutes) * _MINUTE,
            kept_since=BEGINNING if stay else END,
        )
        panes = np.arange(max(grid.first_open(time.closed), 0), time.until, _MINUTE)
        starts, spans = panes, None
        if kept is not None and stay:
            starts, spans = kept.entries(panes, time.kept_since, time.closed)
        pieces, _ = Pieces.of(grid, starts, spans, time, kept if stay else None)
        steps = pieces.plan(np.ones(pieces.count, np.int64), 1, overlapping=False)
        if closed >= 60:  # the first hour's windows begin before the stream
            count += sum(len(step.parts) for step in steps.values())
    return count / (hours - 1)


_ALL = ", ".join(map(str, _LENGTHS))


@figure(
    title="Efficient consolidation of windows (section 6.1, figures 7 and 8)",
    clauses=(
        at_most("windows of 5, 10, 15 and 20 minutes from partials of a minute take 86 partial "
                "results for one hour where windows are built from windows", "partials",
                lambda data: data.one("partials", windows=_ALL, way="efficient"), 86.0, paper=86.0,
                decisive=True),
        at_least("and 240 where they are not", "partials",
                 lambda data: data.one("partials", windows=_ALL, way="naive"), 240.0, paper=240.0),
        at_most("a running stream takes no more", "partials, most of epochs of 1 to 60 minutes",
                lambda data: max(data.one("partials", windows=f"epochs {m} min", way="efficient")
                                 for m in _EPOCHS), 86.0, paper=86.0, decisive=True, beyond=True),
        at_most("a window of 20 minutes every minute, in epochs of a minute, takes fewer than 20",
                "partials",
                lambda data: data.one("partials", windows="20 every minute", way="efficient"), 8.0,
                beyond=True),
    ),
    workload="The paper's, planned for the whole hour at once, and as lanes of a running stream "
    "plan it, epoch by epoch.",
    place=RunsOn.PLANNERS,
    charts=(
        Chart(x="windows", y="partials", by="way", kind="bars",
              x_label="lengths of windows (minutes)", y_label="partials consolidated in an hour"),
    ),
    mechanism="building windows from windows",
)  # fmt: skip
def figure7(run: FigureRun) -> FigureResult:
    rows: list[Row] = []
    for lengths in (_LENGTHS[:2], _LENGTHS[:3], _LENGTHS):
        windows = tuple((first, first + n) for n in lengths for first in range(0, 60, n))
        problem = ConsolidationProblem(pane_keys=np.ones(60), windows=windows)
        plan = plan_consolidation(problem)
        name = ", ".join(map(str, lengths))
        efficient = plan.direct_keys if run.off else plan.keys
        rows.append({"windows": name, "way": "efficient", "partials": efficient})
        rows.append({"windows": name, "way": "naive", "partials": plan.direct_keys})
    kinds = tuple((n, n) for n in _LENGTHS)
    live = {m: consolidated(m, *kinds, stay=not run.off) for m in _EPOCHS}
    hopping = consolidated(1, (20, 1), stay=not run.off) / 60
    rows.append({"windows": "20 every minute", "way": "efficient", "partials": hopping})
    for minutes, partials in live.items():
        ways = {"efficient": partials, "within an epoch": consolidated(minutes, *kinds, stay=False)}
        rows += [
            {"windows": f"epochs {minutes} min", "way": way, "partials": count}
            for way, count in ways.items()
        ]
    return FigureResult(rows=rows)
