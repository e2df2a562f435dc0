"""Pictures of figures, in one style: series differ by colour, marker and dash.

Colours are those of Okabe and Ito, which people who do not see all colours can tell apart.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Picture

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from godwit_lab.cli.reproduce.figure import Chart, Figure, Row

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_DASHES = ("-", "--", "-.", ":", "-", "--", "-.", ":")
_STYLE: Any = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.sans-serif": ["DejaVu Sans"],  # every text of an SVG names all of them
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "svg.fonttype": "none",  # small files, and text that can be searched
    "svg.hashsalt": "godwit",  # the same picture is the same file
}
_FEW_POINTS = 30
"""Points of a line up to which each gets a marker."""


_LETTERS = 40
"""Letters below an axis that lie beside one another; more are slanted."""


def draw(figure: Figure, rows: Sequence[Row]) -> Picture:
    """Return a picture with the charts of a figure."""
    with mpl.rc_context(_STYLE):
        columns = min(2, len(figure.charts))
        lines = -(-len(figure.charts) // columns)
        picture = Picture(figsize=(1.0 + 3.6 * columns, 0.5 + 2.7 * lines), layout="constrained")
        grid = picture.subplots(lines, columns, squeeze=False).ravel().tolist()
        for chart, axes in zip(figure.charts, grid, strict=False):
            _draw_chart(chart, axes, rows)
        for axes in grid[len(figure.charts) :]:
            axes.remove()
        return picture


def save(picture: Picture, path: Path) -> None:
    """Write a picture; the suffix chooses the format, and equal pictures give equal files."""
    with mpl.rc_context(_STYLE):
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        picture.savefig(path, dpi=150, metadata=metadata)
    if path.suffix == ".svg":
        path.write_text(_shortened(path.read_text("utf-8")), "utf-8")


def _shortened(svg: str) -> str:
    """Return an SVG with coordinates rounded to hundredths of a point, and no indentation."""
    return re.sub(r"\n *", "\n", re.sub(r"(\d\.\d\d)\d+", r"\1", svg))


def _draw_chart(chart: Chart, axes: Any, rows: Sequence[Row]) -> None:
    """Draw the rows of one chart on matplotlib's axes."""
    if chart.only is not None:
        column, value = chart.only
        rows = [row for row in rows if row.get(column) == value]
    rows = [row for row in rows if chart.x in row and chart.y in row]
    names = _distinct(str(row[chart.by]) for row in rows) if chart.by else [""]
    places = _distinct(row[chart.x] for row in rows)
    by_place = chart.kind == "bars" or any(isinstance(place, str) for place in places)
    for index, name in enumerate(names):
        mine = [row for row in rows if not chart.by or str(row[chart.by]) == name]
        x = [places.index(row[chart.x]) if by_place else row[chart.x] for row in mine]
        y = [float(row[chart.y]) for row in mine]
        look = {"color": _COLOURS[index % len(_COLOURS)], "label": name or None}
        if chart.kind == "bars":
            width = 0.8 / len(names)
            axes.bar(np.asarray(x) + width * (index - (len(names) - 1) / 2), y, 0.9 * width, **look)
            continue
        look["linestyle"] = _DASHES[index % len(_DASHES)]
        if len(mine) <= _FEW_POINTS:
            look["marker"] = _MARKERS[index % len(_MARKERS)]
        axes.plot(x, y, drawstyle="steps-post" if chart.kind == "steps" else "default", **look)
    if chart.paper is not None:
        axes.axhline(chart.paper, color="0.4", linewidth=1, linestyle=(0, (1, 2)), label="paper")
    if by_place:
        names_of_places = [str(place) for place in places]
        slanted = sum(map(len, names_of_places)) > _LETTERS
        axes.set_xticks(range(len(places)), names_of_places)
        if slanted:
            axes.tick_params(axis="x", labelrotation=20)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label, title=chart.title)
    if chart.log_x and not by_place:
        axes.set_xscale("log", base=2)
    if chart.log_y:
        axes.set_yscale("log")
    elif all(float(row[chart.y]) >= 0 for row in rows):
        axes.set_ylim(bottom=0)
    if len(names) > 1 or chart.paper is not None:
        axes.legend()


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values in the order of their first occurrence."""
    return list(dict.fromkeys(values))
