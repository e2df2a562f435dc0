"""A frame of `godwit top`: lines of text for a terminal of any size, or none."""

from __future__ import annotations

from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING

from rich.text import Text

from godwit.model.wording import counted, human_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.cli.symbols import Symbols
    from godwit.cli.top import Sight
    from godwit.cli.top_figures import ExecutorFigures, RunFigures, SourceFigures, Told

__all__ = ["frame"]

_BAR = 40
_SPARKS = 60
_DECISIONS = 5
_EVENTS = 8
_EXECUTORS = 64
_STYLES = {"running": "green", "stopped": "yellow"}
_ALARMING = (
    *("ExecutorLost", "KeyGroupsSuspended", "QueryFailed", "EpochsHeld"),
    *("ListenerFailed", "BackgroundFailed", "RowsLeftOut"),
)


def frame(sight: Sight, *, width: int, height: int | None, symbols: Symbols) -> list[Text]:
    """Draw what can be seen.

    Parameters
    ----------
    sight
        Whose run, how it is, and its figures.
    width, height
        Columns and lines there are; ``None``: as many lines as it takes.
    symbols
        What the terminal can show.

    Returns
    -------
    list of Text
        Lines, none of them wider than `width`.
    """
    figures = sight.figures
    above = [
        Text.assemble(
            (symbols.plain(sight.flow), "bold"),
            "  ",
            (sight.state, _STYLES.get(sight.state, "red")),
            f"  {symbols.plain(sight.why)}",
        ),
        *_speed(figures, width, symbols),
        _moving(figures),
        *(_source(source, symbols) for source in figures.sources),
        *([Text(symbols.plain(figures.measured.line))] if figures.measured else []),
        *(
            Text(
                symbols.plain(
                    f"migration {m.id} of {m.component} ({m.strategy}): "
                    f"{counted(m.moves, 'key group')}, {human_bytes(m.state_bytes)}"
                ),
                style="yellow",
            )
            for m in figures.migrations
        ),
    ]
    decisions = _told("decisions", figures.decisions[-_DECISIONS:], symbols)
    happened = _told("events", figures.events[-_EVENTS:], symbols)
    lines = list(above)
    if height is None:
        lines += [*_executors(figures, width, _EXECUTORS, symbols), *decisions, *happened]
    else:
        # What was decided, and what is going on, before a long list of executors.
        room = max(height - len(above) - len(decisions) - 2, 2)
        lines += [*_executors(figures, width, min(room, _EXECUTORS), symbols), *decisions]
        left = height - len(lines)
        lines += happened[:1] + happened[1:][-(left - 1) :] if left > 1 else []
        lines = lines[:height]
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="crop")
    return lines


def _speed(figures: RunFigures, width: int, symbols: Symbols) -> Iterator[Text]:
    if not figures.epochs:
        yield Text("no epoch in sight")
        return
    took = [epoch.duration_ms for epoch in figures.epochs]
    yield Text.assemble(
        f"epoch {figures.epochs[-1].epoch}   ",
        (f"{figures.rows_per_s:,.0f} rows/s", "bold"),
    )
    yield Text.assemble(
        "epoch time ",
        (f"{took[-1]:,.0f} ms", "bold"),
        f"  median {median(took):,.0f}  longest {max(took):,.0f}  ",
        (symbols.sparkline(took, min(_SPARKS, max(width - 50, 8))), "cyan"),
    )


def _moving(figures: RunFigures) -> Text:
    busy = figures.in_flight or figures.planned or figures.waiting or figures.suspended
    return Text(
        f"key groups: {figures.in_flight} in flight, {figures.planned} still to move, "
        f"{figures.waiting} waiting, {figures.suspended} suspended",
        style="yellow" if busy else "",
    )


def _source(source: SourceFigures, symbols: Symbols) -> Text:
    told = [] if source.behind is None else [f"{counted(source.behind, 'offset')} behind"]
    if source.input_rows_per_s is not None:
        told.append(f"{source.input_rows_per_s:,.0f} rows/s in")
    if source.processed_rows_per_s is not None:
        told.append(f"{source.processed_rows_per_s:,.0f} processed")
    told += [f"{name} {value}" for name, value in source.metrics.items()]
    said = ", ".join(told) or "says nothing of its lag"
    return Text(symbols.plain(f"source {source.description[:60]}: {said}"))


def _executors(figures: RunFigures, width: int, room: int, symbols: Symbols) -> Iterator[Text]:
    executors = figures.executors
    if not executors:
        return
    yield Text(f"executors, load distance {figures.load_distance:.0%} of the mean", style="bold")
    shown = executors
    if len(executors) > max(room - 1, 1):
        shown = tuple(sorted(executors, key=lambda e: -e.busy_ms)[: max(room - 2, 1)])
    name_width = min(max(len(e.name) for e in shown), max(width // 3, 6))
    most = max((e.busy_ms / max(e.lanes, 1) for e in shown), default=0.0) or 1.0
    for executor in shown:
        yield _executor(executor, most, name_width, width, symbols)
    if len(shown) < len(executors):
        less = f"and {counted(len(executors) - len(shown), 'executor')} with less load"
        unseen = figures.executors_left_out
        yield Text(f"{less}; {unseen} more are not looked at" if unseen else less)


def _executor(
    executor: ExecutorFigures, most: float, name_width: int, width: int, symbols: Symbols
) -> Text:
    name = Text(symbols.plain(executor.name))
    name.truncate(name_width, overflow="crop", pad=True)
    index = executor.busy_ms / max(executor.lanes, 1)
    figures = f" {executor.share:4.0%} "
    detail = (
        f" busy for {executor.busy_ms:,.0f} ms an epoch ({executor.cpu_ms:,.0f} of CPU), "
        f"{counted(executor.lanes, 'lane')}, "
        f"{counted(executor.key_groups, 'key group')}"
    )
    state = "lost" if executor.lost else "draining" if executor.draining else ""
    if state:
        detail = f" {state};{detail}"
    bar_width = max(min(_BAR, (width - name_width - len(figures)) // 2), 3)
    bar = symbols.bar(index / most, bar_width)
    style = "red" if executor.lost else "yellow" if executor.draining else "green"
    return Text.assemble(name, figures, (bar.ljust(bar_width), style), detail)


def _told(title: str, told: tuple[Told, ...], symbols: Symbols) -> list[Text]:
    if not told:
        return []
    lines = [Text(f"last {title} (UTC)", style="bold")]
    for one in told:
        at = datetime.fromtimestamp(one.at_s, UTC).strftime("%H:%M:%S")
        style = "red" if one.kind in _ALARMING else ""
        lines.append(Text.assemble((f"{at} ", "dim"), (symbols.plain(one.line), style)))
    return lines
