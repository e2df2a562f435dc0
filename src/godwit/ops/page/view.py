"""Views of a `RunState` as plain values: sections that the page draws.

A section is sent again only when it changed; series grow at their end (`Series`), so an epoch adds
a few numbers to what a page has, and not the page.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from godwit.ops.heat import heat_of
from godwit.ops.run_state import rows_per_s

if TYPE_CHECKING:
    from godwit.ops.liveness import QueryLife
    from godwit.ops.run_state import Frame, Point, RunState, ShownDecision

_MAX_EXECUTORS: Final = 128
_MAX_LISTED: Final = 60
_REPORT_FRAMES: Final = 120
_OF_EXECUTORS: Final = ("name", "lanes", "draining", "lost", "key_groups", "busy_ms")
_OF_SOURCES: Final = ("name", "description", "behind")
COLUMNS: Final = (
    *("epoch", "at_s", "rows_in", "rows_out", "took_ms", "busy_s", "p50_ms", "p99_ms", "backlog"),
    *("written_bytes", "commit_ms", "state_bytes", "left_out", "waiting", "executors"),
)
"""Columns of the series, fields of `Point`."""


@dataclass(frozen=True, slots=True)
class Series:
    """Figures over time, as columns; a new resolution starts a new series."""

    points: tuple[Point, ...]
    step: int

    def since(self, begun_s: float, step: int, points: int) -> dict[str, Any] | None:
        """Return the points that a reader does not have yet; ``None`` if there are none.

        `begun_s`, `step`, `points`: the first point's end, the step and the number of points that
        the reader has; the last of them may have grown since.
        """
        if not self.points:
            return None
        first = self.points[0].at_s
        fresh = begun_s != first or step != self.step or points > len(self.points)
        start = 0 if fresh else max(points - 1, 0)
        return {
            "from": start,
            "step": self.step,
            "columns": {
                name: [_round_numbers(getattr(point, name)) for point in self.points[start:]]
                for name in COLUMNS
            },
        }

    @property
    def mark(self) -> tuple[float, int, int]:
        """Start, step and number of points, which a reader passes to `since`."""
        return (self.points[0].at_s if self.points else 0.0, self.step, len(self.points))


def sections_of(state: RunState, *, flow: str, life: QueryLife) -> dict[str, Any]:
    """Return part of the page → its values for JSON, without series and heat map."""
    return {
        "run": _page_headline(state, flow, life),
        "graph": _graph_json(state),
        "now": now_of(state.frame),
        "decisions": [_decision_json(decision) for decision in state.decisions],
        "movements": [
            {name: _round_numbers(value) for name, value in asdict(move).items()}
            for move in state.movements[-_MAX_LISTED:]
        ],
        "events": [
            {"atS": _round_numbers(event.at_s), "kind": event.kind, "line": event.line}
            for event in state.events[-_MAX_LISTED:]
        ],
    }


def heat_section(frame: Frame) -> dict[str, Any]:
    """Return the heat map of a frame."""
    return heat_of(frame.placements, frame.loads, frame.warming)


def frame_at(state: RunState, epoch: int) -> Frame:
    """Return the figures of an epoch, of the last kept one before it, or of the first."""
    known = [point.frame for point in state.points if point.epoch <= epoch]
    if known:
        return known[-1]
    return state.points[0].frame if state.points else state.frame


def report_of(state: RunState, *, flow: str, life: QueryLife) -> dict[str, Any]:
    """Return everything that a page without a server draws: sections, series, heat maps.

    ``frames`` are at most about `_REPORT_FRAMES` epochs, each with its number in ``heats``.
    """
    series = Series(state.points, state.step)
    points_per_frame = -(-len(state.points) // _REPORT_FRAMES) or 1
    drawn_points = state.points[::-1][::points_per_frame][::-1]
    heats: list[dict[str, Any]] = []
    heat_number: dict[tuple[int, int, int], int] = {}
    frames = []
    for point in drawn_points:
        frame = point.frame
        identity = id(frame.placements), id(frame.loads), id(frame.warming)
        if identity not in heat_number:
            heat_number[identity] = len(heats)
            heats.append(heat_section(frame))
        frames.append({"now": now_of(frame), "heat": heat_number[identity]})
    return {
        **sections_of(state, flow=flow, life=life),
        "series": series.since(0.0, 0, 0),
        "heat": heat_section(state.frame),
        "frames": frames,
        "heats": heats,
    }


def now_of(frame: Frame) -> dict[str, Any]:
    """Return the figures of one epoch, as plain values for JSON."""
    listed = sorted(frame.executors, key=lambda e: -e.busy_ms)[:_MAX_EXECUTORS]
    names = {e.name for e in listed}
    return {
        "epoch": frame.epoch,
        "atS": _round_numbers(frame.at_s),
        "executors": [
            {name: _round_numbers(getattr(e, name)) for name in _OF_EXECUTORS}
            for e in frame.executors
            if e.name in names
        ],
        "executorsLeftOut": frame.executors_left_out + len(frame.executors) - len(listed),
        "rowsIn": frame.rows_in,
        "sourceRows": dict(frame.source_rows),
        "componentRows": dict(frame.component_rows),
        "sinkRows": dict(frame.sink_rows),
        "edgeRows": [[start, end, rows] for (start, end), rows in frame.edge_rows.items()],
        "sources": [{n: getattr(s, n) for n in _OF_SOURCES} for s in frame.sources],
        "watermarks": dict(frame.watermarks),
        "hotKeys": {name: dict(keys) for name, keys in frame.hot_keys.items() if keys},
        "leftOut": [[where, reason, rows] for (where, reason), rows in frame.left_out.items()],
        "stateBytes": dict(frame.state_bytes),
        "tableBytes": frame.table_bytes,
        "evicted": frame.evicted,
        "fetched": frame.fetched,
        "inFlight": frame.in_flight,
        "planned": frame.planned,
        "waiting": frame.waiting,
        "suspended": frame.suspended,
        "requests": dict(frame.requests),
        "phasesMs": {phase: _round_numbers(ms) for phase, ms in frame.phases_ms.items()},
    }


def _page_headline(state: RunState, flow: str, life: QueryLife) -> dict[str, Any]:
    """Return the headline of the page: flow, state of the query, rows per second."""
    return {
        "flow": flow,
        "state": life.state,
        "why": life.evidence,
        "rowsPerS": _round_numbers(rows_per_s(state.points)),
        "measured": state.measured.line if state.measured else "",
        "lost": state.lost,
        "keyGroups": state.flow.get("keyGroups"),
    }


def _graph_json(state: RunState) -> dict[str, Any]:
    """Return the flow's graph; where the journal has none, derive it from figures of epochs."""
    if state.flow:
        return dict(state.flow)
    frame = state.frame
    names = dict.fromkeys([*frame.component_rows, *(n for edge in frame.edge_rows for n in edge)])
    return {
        "name": "",
        "sources": [source.description for source in frame.sources],
        "operators": [
            {"name": name, "parts": [name], "components": [name], "does": "", "keys": []}
            for name in names
        ],
        "sinks": [{"name": name, "takes": "results"} for name in frame.sink_rows],
        "edges": [
            {"from": ["operator", start], "to": ["operator", end], "exchange": True}
            for start, end in frame.edge_rows
        ],
        "derived": True,
    }


def _decision_json(decision: ShownDecision) -> dict[str, Any]:
    """Return a decision as plain values for JSON."""
    return {
        "atS": _round_numbers(decision.at_s),
        "epoch": decision.epoch,
        "kind": decision.kind,
        "line": decision.line,
        "figure": decision.figure,
        "before": _round_numbers(decision.before),
        "expected": _round_numbers(decision.expected),
        "measured": _round_numbers(decision.measured),
        "verdict": decision.verdict,
        "judged": decision.judged,
        "story": decision.story.lines,
    }


def _round_numbers(value: Any) -> Any:
    """Return a float rounded to three decimals for JSON, and other values unchanged."""
    return round(value, 3) if isinstance(value, float) else value
