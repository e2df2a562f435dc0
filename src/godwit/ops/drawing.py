"""The graph of a flow as a picture (SVG), for notebooks: drawn from left to right, level by level.

Sources stand in the first column, operators in that of their level, sinks behind what feeds them.
Within a column, nodes are in the order of what they read, so that few edges cross.  Colours are
those of the page around it, so that it can be read on light and dark.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.model.naming import keys_text
from godwit.plan.explain import action_of
from godwit.plan.nodes import (
    PassNode,
    SourceNode,
    branches_of,
    levels_of,
    streams_read_by,
    tables_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.plan.nodes import FlowGraph, OperatorNode, StreamNode

_HEIGHT, _GAP, _CHARACTER, _LONGEST = 44, 18, 7, 30
_SPACE = 70
"""Room between columns, for edges."""
_ROUND = {"source": 22, "loop": 22, "operator": 4, "sink": 12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node of the picture."""

    id: tuple[str, str]  # kind and name
    column: int
    label: str  # what stands below the name
    about: str  # shown where the pointer rests


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Rows that go from one node to another."""

    start: tuple[str, str]
    end: tuple[str, str]
    maps: int = 0
    back: bool = False  # in the next epoch, to a loop


def flow_svg(graph: FlowGraph) -> str:
    """Return a drawing of a flow's sources, operators and sinks as SVG."""
    boxes, edges = _boxes_of_nodes(graph), list(_edges_with_feedback(graph))
    places = _arrange_rows(boxes, edges)
    columns = sorted({box.column for box in boxes})
    widths = {
        column: _CHARACTER
        * max(len(text) for box_ in boxes if box_.column == column for text in _short_texts(box_))
        + 24
        for column in columns
    }
    column_lefts, next_left = {}, 8
    for column in columns:
        column_lefts[column] = next_left
        next_left += widths[column] + _SPACE
    corner = {
        box.id: (column_lefts[box.column], 8 + places[box.id] * (_HEIGHT + _GAP)) for box in boxes
    }
    size = {box.id: widths[box.column] for box in boxes}
    loops = any(edge.back for edge in edges)
    height = 8 + (max(places.values(), default=-1) + 1) * (_HEIGHT + _GAP) + (24 if loops else 0)
    width = max(next_left - _SPACE + 8, 16)
    parts = [_draw_edge(edge, corner, size, height) for edge in edges]
    parts += [_draw_node(box, *corner[box.id], size[box.id]) for box in boxes]
    name = html.escape(f"Flow {graph.name!r}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{name}" font-family="sans-serif" '
        'font-size="12" fill="none" stroke="currentColor" style="max-width: 100%">'
        f"<title>{name}</title>{''.join(parts)}</svg>"
    )


def _boxes_of_nodes(graph: FlowGraph) -> list[Box]:
    """Return a box for each source, operator and sink, in the order of declaration."""
    levels = levels_of(graph.operators)
    loops = {edge.loop.name for edge in graph.feedbacks}
    boxes = [
        Box(
            id=_node_id(node, loops),
            column=0,
            label="loop" if node.name in loops else "source",
            about=f"source {node.name}" + (f": {node.own.identity}" if node.own else ""),
        )
        for node in graph.sources
    ]
    boxes += [
        Box(
            id=("operator", node.name),
            column=levels[node.name],
            label="rows" if isinstance(node, PassNode) else keys_text(node.keys),
            about=action_of(node),
        )
        for node in graph.operators
    ]
    for sink in graph.sinks:
        above = [branch.feed.name for branch in branches_of(sink.upstream)]
        boxes.append(
            Box(
                id=("sink", sink.name),
                column=1 + max(levels[name] for name in above),
                label=type(sink.sink).__name__,
                about=repr(sink.sink),
            )
        )
    return boxes


def _edges_with_feedback(graph: FlowGraph) -> Iterator[Edge]:
    """Yield the edges between the nodes of a flow, feedback included."""
    loops = {edge.loop.name for edge in graph.feedbacks}

    def of(stream: StreamNode, end: tuple[str, str], *, back: bool = False) -> Iterator[Edge]:
        """Yield the edges from the branches of a stream to a node."""
        for branch in branches_of(stream):
            start = _node_id(branch.feed, loops)
            yield Edge(start=start, end=end, maps=len(branch.maps), back=back)

    for node in graph.operators:
        for stream in (*streams_read_by(node), *(table.stream for table in tables_of(node))):
            yield from of(stream, ("operator", node.name))
    for sink in graph.sinks:
        yield from of(sink.upstream, ("sink", sink.name))
    for edge in graph.feedbacks:
        yield from of(edge.upstream, ("loop", edge.loop.name), back=True)


def _node_id(node: SourceNode | OperatorNode, loops: set[str]) -> tuple[str, str]:
    """Return the kind and name that identify a node: source, loop or operator."""
    if not isinstance(node, SourceNode):
        return "operator", node.name
    return "loop" if node.name in loops else "source", node.name


def _arrange_rows(boxes: list[Box], edges: list[Edge]) -> dict[tuple[str, str], int]:
    """Return node → row in its column.

    In a column, nodes are ordered by the rows of the nodes that they read.
    """
    row_of_node: dict[tuple[str, str], int] = {}
    for column in sorted({box.column for box in boxes}):
        means = {}
        for number, box in enumerate(box for box in boxes if box.column == column):
            start_rows = [
                row_of_node[edge.start]
                for edge in edges
                if edge.end == box.id and edge.start in row_of_node
            ]
            means[box.id] = (
                sum(start_rows) / len(start_rows) if start_rows else float(number),
                number,
            )
        row_of_node |= {id_: row for row, id_ in enumerate(sorted(means, key=means.__getitem__))}
    return row_of_node


def _short_texts(box: Box) -> tuple[str, str]:
    """Return the name and the label of a box, shortened if they are long."""
    name, label = (
        text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
        for text in (box.id[1], box.label)
    )
    return name, label


def _draw_node(box: Box, x: int, y: int, width: int) -> str:
    """Return SVG of a node at a position in pixels."""
    name, label = map(html.escape, _short_texts(box))
    middle = x + width // 2
    title = html.escape(f"{box.id[0]} {box.id[1]}: {box.about}")
    return (
        f'<g><title>{title}</title><rect x="{x}" y="{y}" width="{width}" height="{_HEIGHT}" '
        f'rx="{_ROUND[box.id[0]]}" pointer-events="all"/>'
        f'<g fill="currentColor" stroke="none" text-anchor="middle">'
        f'<text x="{middle}" y="{y + 19}" font-weight="bold">{name}</text>'
        f'<text x="{middle}" y="{y + 35}" font-size="11" opacity="0.75">{label}</text></g></g>'
    )


def _draw_edge(
    edge: Edge,
    corner: dict[tuple[str, str], tuple[int, int]],
    size: dict[tuple[str, str], int],
    height: int,
) -> str:
    """Return SVG of an edge as an arrow with its number of maps.

    `corner`, `size`: node → position and width of its box. `height`: height of the picture.
    """
    (x, y), (end_x, end_y) = corner[edge.start], corner[edge.end]
    y, end_y = y + _HEIGHT // 2, end_y + _HEIGHT // 2
    if edge.back:  # below everything, and up again
        x, end_x = x + size[edge.start] // 2, end_x + size[edge.end] // 2
        y, end_y = y + _HEIGHT // 2, end_y + _HEIGHT // 2
        curve = f"M{x} {y} C{x} {height} {end_x} {height} {end_x} {end_y}"
        arrow = f"M{end_x - 4} {end_y + 7} L{end_x} {end_y} L{end_x + 4} {end_y + 7}"
        return f'<path d="{curve}" stroke-dasharray="5 4"/><path d="{arrow}"/>'
    x += size[edge.start]
    bend = (x + end_x) // 2
    curve = f"M{x} {y} C{bend} {y} {bend} {end_y} {end_x} {end_y}"
    arrow = f"M{end_x - 7} {end_y - 4} L{end_x} {end_y} L{end_x - 7} {end_y + 4}"
    maps = ""
    if edge.maps:
        label = f"{edge.maps} map{'s' if edge.maps > 1 else ''}"
        maps = (
            f'<text x="{bend}" y="{(y + end_y) // 2 - 6}" fill="currentColor" stroke="none" '
            f'text-anchor="middle" font-size="11">{label}</text>'
        )
    return f'<path d="{curve}"/><path d="{arrow}"/>{maps}'
