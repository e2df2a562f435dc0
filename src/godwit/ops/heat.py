"""The heat map of the live page: loads of key groups, lane by lane.

Where key groups are comes from the entries ``placement`` and ``stream`` of the journal, their loads
from ``load``, both packed.  The number of cells is bounded: at most
`MAX_ROWS` rows for a component, a lane each (an executor each, if there are more lanes than that),
of at most `MAX_CELLS` cells, each of them some key groups in a row of those that are there.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from godwit.migration.outcome import LoadSummary, unpacked_column
from godwit.model.key_groups import MAX_NUM_KEY_GROUPS
from godwit.ops.entries import count, items, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from godwit.model.key_groups import KeyGroupLoad

    _Column = npt.NDArray[np.uint16]

MAX_ROWS: Final = 96
MAX_CELLS: Final = 64
_MAX_COMPONENTS: Final = 64
_MAX_LANES: Final = 2**16 - 1
_UNKNOWN: Final = 2**16 - 1
_WARMING: Final = 1
"""Flag of a cell: some of its key groups are being copied to other executors."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacesOfGroups:
    """Executors and lanes of a component's key groups, as known from the journal."""

    executors: tuple[str, ...]
    lanes: tuple[int, ...]
    lane_of: _Column  # shape ``(num_key_groups,)``: counts all lanes; `_UNKNOWN` where not known


def streamed_placement(
    values: Mapping[str, Any], _before: PlacesOfGroups | None
) -> PlacesOfGroups | None:
    """Return executor and lane of all key groups, from a journal entry ``stream``.

    ``None`` if the entry is damaged.
    """
    return _read_places(values, lambda: unpacked_column(values["lane_of"]))


def moved_placement(
    values: Mapping[str, Any], before: PlacesOfGroups | None
) -> PlacesOfGroups | None:
    """Return executor and lane of all key groups after a journal entry ``placement``.

    `before`: those until then, some of which the entry changes. ``None`` if they or the entry are
    missing or damaged.
    """

    def lane_of() -> _Column:
        size = count(values["keyGroups"])
        key_groups = np.cumsum(unpacked_column(values["key_groups"]), dtype=np.int64)
        lanes = unpacked_column(values["lane_of"])
        if not 0 < size <= MAX_NUM_KEY_GROUPS or len(lanes) != len(key_groups):
            raise ValueError
        column = np.full(size, _UNKNOWN, np.uint16)
        has_same_lanes = before is not None and list(before.lanes) == values["lanes"]
        if before is not None and has_same_lanes and len(before.lane_of) == size:
            column[:] = before.lane_of
        column[key_groups] = lanes  # an IndexError where it is made up
        return column

    return _read_places(values, lane_of)


def _read_places(
    values: Mapping[str, Any], lane_of: Callable[[], _Column]
) -> PlacesOfGroups | None:
    """Return the places in an entry: executors, lanes and the column of lane numbers.

    ``None`` if they are not valid. `lane_of`: returns the column.
    """
    try:
        placement = PlacesOfGroups(
            executors=tuple(text(name) for name in items(values["executors"], _MAX_LANES)),
            lanes=tuple(count(number) for number in items(values["lanes"], _MAX_LANES)),
            lane_of=lane_of(),
        )
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, zlib.error):
        return None
    sound = len(placement.lanes) == len(placement.executors) and min(placement.lanes, default=0) > 0
    if not sound or sum(placement.lanes) > _MAX_LANES:
        return None
    is_on_lane = placement.lane_of < sum(placement.lanes)
    if is_on_lane.all():
        return placement
    return replace(placement, lane_of=np.where(is_on_lane, placement.lane_of, _UNKNOWN))


def heat_of(
    placements: Mapping[str, PlacesOfGroups],
    loads: Mapping[str, Any],  # an entry ``load``; empty where there is none yet
    warming: Mapping[str, Mapping[int, str]],  # component → key groups that are being copied
) -> dict[str, Any]:
    """Return the heat map of every component, for the page.

    ``epochs`` (over which loads were measured; 0: they are not known), ``components``: ``name``,
    ``keyGroups``, ``maxMs`` (greatest load of a key group among the cells, milliseconds an epoch),
    ``rows``: ``executor``, ``lane`` (``None``: all of them), ``keyGroups``, ``loadMs``, and in
    base64, for each cell, ``heat`` (one byte: the square root of its load as a share of the
    greatest, by key group), ``first`` (two bytes: the first of its key groups) and ``flags``;
    ``rowsLeftOut``.
    """
    summary = LoadSummary.from_dict(loads) if loads else None
    epochs = 0 if summary is None else max(count(summary.epochs), 1)
    components = []
    for name, placement in list(placements.items())[:_MAX_COMPONENTS]:
        load = None if summary is None else summary.loads.get(name)
        components.append(
            {"name": name, **_component_heat(placement, load, epochs, warming.get(name, {}))}
        )
    return {"epochs": epochs, "components": components}


def _component_heat(
    placement: PlacesOfGroups, load: KeyGroupLoad | None, epochs: int, warming: Mapping[int, str]
) -> dict[str, Any]:
    """Return the heat map of a component, as `heat_of` does; `load`: of all `epochs` together."""
    size = len(placement.lane_of)
    busy_ms, flags = np.zeros(size), np.zeros(size, np.uint8)
    if load is not None:
        is_in_range = (load.key_groups >= 0) & (load.key_groups < size)
        busy_ms[load.key_groups[is_in_range]] = load.busy_ms[is_in_range] / max(epochs, 1)
    flags[[group for group in warming if group < size]] = _WARMING
    place_of, places = _rows_of_map(placement)
    row_ms = np.bincount(place_of, busy_ms, len(places))
    row_size = np.bincount(place_of, minlength=len(places))
    shown = np.arange(len(places))
    if not row_size[-1]:  # the place is unknown
        shown = shown[:-1]
    if len(shown) > MAX_ROWS:  # those with most to do
        shown = np.sort(shown[np.argsort(-row_ms[shown], kind="stable")[:MAX_ROWS]])
    order = np.argsort(place_of, kind="stable")
    ends = np.cumsum(row_size)
    rows = []
    for place in shown.tolist():
        groups = order[ends[place] - row_size[place] : ends[place]]
        cells = min(len(groups), MAX_CELLS)
        begins = np.arange(cells) * len(groups) // max(cells, 1)
        rows.append((places[place], place, groups, begins))
    means = [_cell_means(busy_ms, groups, begins) for _, _, groups, begins in rows]
    max_ms = max((float(loads_ms.max()) for loads_ms in means if len(loads_ms)), default=0.0)
    scale = 1 / max_ms if max_ms > 0 else 0.0
    return {
        "keyGroups": size,
        "maxMs": _round_4_digits(max_ms),
        "rowsLeftOut": int((row_size > 0).sum()) - int((row_size[shown] > 0).sum()),
        "rows": [
            {
                "executor": executor,
                "lane": lane,
                "keyGroups": len(groups),
                "loadMs": _round_4_digits(float(row_ms[place])),
                "heat": _to_base64(np.rint(255 * np.sqrt(loads_ms * scale)).astype(np.uint8)),
                "first": _to_base64(groups[begins].astype("<u2")),
                "flags": _to_base64(
                    np.maximum.reduceat(flags[groups], begins) if len(groups) else flags[:0]
                ),
            }
            for ((executor, lane), place, groups, begins), loads_ms in zip(rows, means, strict=True)
        ],
    }


def _rows_of_map(
    placement: PlacesOfGroups,
) -> tuple[npt.NDArray[np.int64], list[tuple[str, int | None]]]:
    """Return the row of the heat map for each key group, and each row's executor and lane.

    Lane ``None``: all lanes. The last row is for key groups whose place is unknown.
    """
    lanes = np.array(placement.lanes)
    by_lane = int(lanes.sum()) <= MAX_ROWS
    first = np.concatenate(([0], np.cumsum(lanes)))
    flat = placement.lane_of.astype(np.int64)
    known = flat < first[-1]
    names: list[tuple[str, int | None]]
    if by_lane:
        names = [(e, n) for e, many in zip(placement.executors, placement.lanes, strict=True)
                 for n in range(many)]  # fmt: skip
    else:
        names = [(executor, None) for executor in placement.executors]
        flat = np.searchsorted(first, flat, "right") - 1
    return np.where(known, flat, len(names)), [*names, ("place not known", None)]


def _cell_means(
    busy_ms: npt.NDArray[np.float64],
    key_groups: npt.NDArray[np.int64],
    begins: npt.NDArray[np.int64],
) -> npt.NDArray[np.float64]:
    """Return the mean load of each cell: of `key_groups` from one of `begins` to the next."""
    if not len(key_groups):
        return np.empty(0)
    many = np.diff(np.append(begins, len(key_groups)))
    means: npt.NDArray[np.float64] = np.add.reduceat(busy_ms[key_groups], begins) / many
    return means


def _to_base64(column: npt.NDArray[Any]) -> str:
    """Encode a column's bytes in base64."""
    return base64.b64encode(column.tobytes()).decode()


def _round_4_digits(value: float) -> float:
    """Round to four significant digits."""
    return float(f"{value:.4g}")
