"""Draws a flow over event time twice, for the product and for the reference, and its history."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.streams import reference as ref

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.api.streams import Stream

__all__ = ["UNITS", "Drawn", "draw"]

UNITS = (1, 1_000, 1_000_000, 37_000_000, 3_600_000_000, 86_400_000_000)
BASES: Mapping[int, str | None] = {
    0: None,
    -50: None,
    1_600_000_000_000_000: "Asia/Kolkata",
    -10_000_000_000_000_000: "Europe/Berlin",
    1_711_846_800_000_000: "Europe/Berlin",
    1_518_919_200_000_000: "America/Sao_Paulo",
    1_541_300_400_000_000: "America/Sao_Paulo",
    1_325_239_200_000_000: "Pacific/Apia",
}
"""1970, just before it, 2020, 1653, and where clocks change, in that zone: summer begins in Europe;
a midnight comes twice, or not at all; a day is left out."""

ZONES = ("UTC", "Etc/UTC", "Europe/Berlin", "+05:30")

KEYS: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["a", "b", "", None, "ä\0"]),
    "long": (pa.int64(), [0, -1, 2**63 - 1, None]),
    "short": (pa.int16(), [0, -1, 7]),
    "double": (pa.float64(), [0.0, -0.0, math.nan, None, 1.5, math.inf]),
    "flag": (pa.bool_(), [True, False, None]),
    "bytes": (pa.binary(), [b"", b"\0", b"x", None]),
    "day": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29), None]),
    "money": (pa.decimal128(10, 2), [decimal.Decimal("0.00"), decimal.Decimal("-1.50"), None]),
}
VALUES: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "v": (pa.int64(), [*range(-5, 20), None]),
    "x": (pa.float64(), [float(n) for n in range(-4, 9)] + [None, math.nan]),
    "d": (pa.decimal128(12, 2), [decimal.Decimal(n) / 4 for n in range(-8, 9)] + [None]),
}


@dataclass
class Drawn:
    """A flow, both ways, and how to draw rows for it."""

    rng: random.Random
    unit: int
    base: int
    key: str
    time_type: pa.DataType
    sources: dict[str, ref.Source] = field(default_factory=dict)
    types: dict[str, pa.DataType] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    node: Any = None
    operators: list[ref.Operator] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    makers: dict[str, Any] = field(default_factory=dict)
    ordered: bool = True
    reorders: random.Random | None = None
    placing: random.Random = field(default_factory=lambda: random.Random(0))

    def placed(self, name: str, keys: list[str]) -> dict[str, Any]:
        """Draw which key columns place rows; of one column there is no choice."""
        placed = self.placing.choice([None, "k", "g", ["g", "k"]])
        if placed is None or len(keys) < 2:
            return {}
        self.text.append(f"{name}: partitioned by {placed}")
        return {"partition_by": placed}

    def reorder(self) -> None:
        """Write the flow down in another way that means the same: order of columns, time zone."""
        if self.reorders is None:
            self.reorders = random.Random(self.base)
            return
        types = list(self.types.items())
        self.reorders.shuffle(types)
        self.types = dict(types)
        if self.time_type.tz is not None:
            self.types["ts"] = pa.timestamp("us", tz=self.reorders.choice(ZONES))

    def apply(self, streams: Mapping[str, Stream]) -> Stream:
        """Make the product's stream."""
        stream: Stream = self.makers["out"](streams)
        return stream

    def rows(self, source: ref.Source, at: float, most: int) -> list[dict[str, Any]]:
        """Rows of about so many units after the beginning."""
        rng = self.rng
        found = []
        for _ in range(rng.randrange(most + 1)):
            moment: int | None = self.base + int(at) * self.unit
            assert moment is not None
            moment -= int(rng.expovariate(0.3)) * self.unit
            if rng.random() < 0.3:
                moment += rng.randrange(self.unit)
            chance = rng.random()
            if chance < 0.03:
                moment = None
            elif chance < 0.05:
                moment += source.max_ahead * 3
            row: dict[str, Any] = {"k": rng.choice(KEYS[self.key][1]), "g": rng.randrange(3)}
            row["ts"] = moment
            for name, (_, values) in VALUES.items():
                row[name] = rng.choice(values)
            found.append(row)
        return found

    def length(self, least: int, most: int) -> int:
        return self.rng.randint(least, most) * self.unit

    def spelled(self, us: int) -> Any:
        """Write a length of time in one of the ways that there are."""
        way = self.rng.randrange(3)
        if way == 0:
            return dt.timedelta(microseconds=us)
        sign, us = ("-" if us < 0 else ""), abs(us)
        if way == 1 or us < 1000:
            return f"{sign}{us} microseconds"
        return f"{sign}{us // 1000} milliseconds {us % 1000} microsecond"


def draw(seed: int, *, most_operators: int = 3) -> Drawn:
    """Draw a flow."""
    rng = random.Random(seed)
    unit = rng.choice(UNITS)
    drawn = Drawn(
        rng=rng,
        unit=unit,
        base=rng.choice([*BASES]) // unit * unit,
        key=rng.choice([*KEYS]),
        time_type=pa.timestamp("us", tz="UTC") if rng.random() < 0.7 else pa.timestamp("us"),
        placing=random.Random(seed),
    )
    drawn.types = {"k": KEYS[drawn.key][0], "g": pa.int32(), "ts": drawn.time_type}
    drawn.types |= {name: of for name, (of, _) in VALUES.items()}
    ahead = rng.choice([12 * unit, 60 * unit, 10_000 * unit])
    for number in range(rng.randint(1, 3)):
        name = f"s{number}"
        slack = drawn.length(0, 6)
        idle = drawn.length(8, 20) if rng.random() < 0.4 else None
        drawn.sources[name] = ref.Source(
            name, [*drawn.types], "ts", slack=slack, idle=idle, max_ahead=ahead
        )
        drawn.options[name] = {
            "event_time": "ts",
            "slack": drawn.spelled(slack),
            "max_ahead": drawn.spelled(ahead),
            "idle": None if idle is None else drawn.spelled(idle),
        }
        drawn.text.append(f"{name}: {drawn.options[name]}")
    if rng.random() < 0.12:  # which know no event time, so that nothing can come behind them
        node, maker = _last_rows(drawn, *_stream(drawn, rng.choice([0, 0, most_operators - 1])))
    else:
        node, maker = _stream(drawn, most_operators)
    while not isinstance(node, ref.Operator):
        node, maker = _operator(drawn, node, maker)
    drawn.node, drawn.makers["out"] = node, maker
    used = _sources_of(node)
    drawn.sources = {name: of for name, of in drawn.sources.items() if name in used}
    return drawn


def _sources_of(node: ref.Node) -> set[str]:
    if isinstance(node, ref.Source):
        return {node.name}
    feeds = node.streams if isinstance(node, ref.Union) else []
    if isinstance(node, ref.Operator):
        feeds = node.feeds()
    return {name for feed in feeds for name in _sources_of(feed)}


def _stream(drawn: Drawn, depth: int) -> tuple[ref.Node, Any]:
    rng = drawn.rng
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.25 and len(drawn.sources) > 1:
            some = rng.sample([*drawn.sources], 2)
            drawn.ordered = False
            drawn.text.append(f"union of {some}")
            return ref.Union([drawn.sources[s] for s in some]), lambda streams: streams[
                some[0]
            ].union(streams[some[1]])
        name = rng.choice([*drawn.sources])
        return drawn.sources[name], lambda streams: streams[name]
    return _operator(drawn, *_stream(drawn, depth - 1))


def _operator(drawn: Drawn, node: ref.Node, maker: Any) -> tuple[ref.Node, Any]:
    rng = drawn.rng
    kinds = ["window", "window", "session"]
    if not _has_lists(node):  # which cannot wait for what they meet
        kinds += ["join", "newest"]
    if not _meets(node):
        kinds.append("duplicates")
    kind = rng.choice(kinds)
    name = f"o{len(drawn.operators)}"
    keys = ["k", "g"] if "g" in node.columns and rng.random() < 0.4 else ["k"]
    made: tuple[ref.Operator, Any] = {
        "window": _window,
        "session": _session,
        "join": _join,
        "newest": _newest,
        "duplicates": _duplicates,
    }[kind](drawn, node, maker, name, keys)
    drawn.operators.append(made[0])
    return made


def _meets(node: ref.Node) -> bool:
    return not isinstance(node, ref.Source)


def _has_lists(node: ref.Node) -> bool:
    """True if a column is a list."""
    made = getattr(node, "aggregates", {}).values()
    return any(what in ("collect_set", "top_k") for what, _ in made)


def _in_order(node: ref.Node, keys: list[str]) -> bool:
    """True if the last of a key's rows of one event time is known."""
    if isinstance(node, ref.Window):
        return len(node.kinds) == 1 and not node.grows and node.keys == keys
    return isinstance(node, ref.Source)


def _aggregates(drawn: Drawn, node: ref.Node, *, ordered: bool) -> dict[str, Any]:
    rng = drawn.rng
    columns = [c for c in node.columns if c[0] in "vxd" and c[1:2] in ("", "_")]
    found: dict[str, Any] = {"n": ("count", None)}
    for number in range(rng.randint(0, 3)):
        if not columns:
            break
        column = rng.choice(columns)
        whats = ["count", "min", "max"]
        if column.startswith("v"):
            whats += ["sum", "mean", "variance"]
        if column.startswith("x"):
            whats += ["sum", "mean"]
        if ordered and drawn.ordered and not _meets(node):
            whats += ["first", "last", "collect_set", "top_k"]
        found[f"a{number}"] = (rng.choice(whats), column)
    return found


def _given(drawn: Drawn, aggregates: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    written = list(aggregates.items())
    if drawn.reorders is not None:
        drawn.reorders.shuffle(written)
    for name, (what, column) in written:
        more = {"top_k": {"k": 3}}.get(what, {})
        read = [] if column is None else [column]
        if read and zlib.crc32(f"{name} {what} {column}".encode()) % 3 == 0:
            read = [f"coalesce({column}, {column})"]  # the same values, by an expression
        given[name] = getattr(gw, what)(*read, **more)
    return given


def _window(drawn: Drawn, node: ref.Node, maker: Any, name: str, keys: list[str]) -> Any:
    rng = drawn.rng
    calendar = _calendar(drawn)
    kinds: list[tuple[int, int, int]] = []
    specs = []
    for _ in range(rng.randint(1, 3)):
        if calendar is None:
            every = drawn.length(1, 8)
            length = every * rng.randint(1, 3) + rng.choice([0, 0, 1, 2]) * drawn.unit
            start = rng.choice([0, 0, drawn.length(0, every // drawn.unit - 1)])
        else:
            every = rng.randint(1, 3)
            length = every * rng.randint(1, 2) + rng.choice([0, 0, 1])
            start = rng.choice([0, rng.randrange(every)])
        if (length, every, start) in kinds:
            continue
        kinds.append((length, every, start))
        specs.append(_spec(drawn, length, every, start, calendar))
    whole = len(kinds) == 1 and kinds[0][0] == kinds[0][1]
    aggregates = _aggregates(drawn, node, ordered=whole)
    update = rng.random() < 0.3
    given: dict[str, Any] = {"name": name, "output": "update" if update else "append"}
    if calendar is None and not update and rng.random() < 0.4:
        given["consolidate"] = "apart"
    lateness = 0
    if "consolidate" not in given and rng.random() < 0.3:
        lateness = drawn.length(1, 10)
        given["allowed_lateness"] = drawn.spelled(lateness)
    if rng.random() < 0.4:
        given["length_as"] = "length"
    placed = drawn.placed(name, keys)
    drawn.text.append(f"{name}: windows {kinds} of {calendar} {keys} {aggregates} {given}")
    return (
        ref.Window(
            name,
            keys,
            feed=node,
            kinds=kinds,
            aggregates=aggregates,
            update=update,
            lateness=lateness,
            calendar=calendar,
            length_as=given.get("length_as"),
        ),
        lambda streams: (
            maker(streams)
            .key_by(*keys, **placed)
            .window(*specs, **given)
            .compute(**_given(drawn, aggregates))
        ),
    )


def _calendar(drawn: Drawn) -> tuple[str, str] | None:
    """Draw what windows are counted in, if in days or months of a time zone."""
    rng = drawn.rng
    if rng.random() > (0.4 if drawn.unit >= UNITS[-2] else 0.06):
        return None
    zones = ["UTC", "Asia/Kolkata", "Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia"]
    near = [zone for at, zone in BASES.items() if at // drawn.unit * drawn.unit == drawn.base]
    return rng.choice(["day", "day", "month"]), rng.choice(zones) if None in near else near[0] or ""


def _spec(
    drawn: Drawn, length: int, every: int, start: int, calendar: tuple[str, str] | None
) -> Any:
    """Name a kind of window as users do."""

    def spelled(number: int) -> Any:
        if calendar is None:
            return drawn.spelled(number)
        if calendar[0] == "month" and number and number % 3 == 0:
            return f"{number // 3} quarters"
        if calendar[0] == "day" and drawn.rng.random() < 0.5:
            return dt.timedelta(days=number)
        return f"{number} {calendar[0]}s"

    given: dict[str, Any] = {"start": spelled(start)} if start else {}
    if calendar is not None:
        given["zone"] = calendar[1]
    if length == every:
        return gw.tumbling(spelled(length), **given)
    return gw.hopping(spelled(length), every=spelled(every), **given)


def _session(drawn: Drawn, node: ref.Node, maker: Any, name: str, keys: list[str]) -> Any:
    gap = drawn.length(1, 5)
    aggregates = _aggregates(drawn, node, ordered=False)
    spec = gw.session(drawn.spelled(gap))
    placed = drawn.placed(name, keys)
    drawn.text.append(f"{name}: session {gap} {keys} {aggregates}")
    return (
        ref.Session(name, keys, feed=node, gap=gap, aggregates=aggregates),
        lambda streams: (
            maker(streams)
            .key_by(*keys, **placed)
            .window(spec, name=name)
            .compute(**_given(drawn, aggregates))
        ),
    )


def _last_rows(drawn: Drawn, node: ref.Node, maker: Any) -> tuple[ref.Node, Any]:
    rng, name = drawn.rng, f"o{len(drawn.operators)}"
    keys = ["k", "g"] if "g" in node.columns and rng.random() < 0.4 else ["k"]
    every = rng.randint(1, 4)
    length = every * rng.randint(1, 4)
    aggregates: dict[str, Any] = {"n": ("count", None)}
    if drawn.ordered and isinstance(node, ref.Source):
        aggregates = _aggregates(drawn, node, ordered=True)
    placed = drawn.placed(name, keys)
    drawn.text.append(f"{name}: rows {length} every {every} {keys} {aggregates}")
    operator = ref.LastRows(
        name, keys, feed=node, length=length, every=every, aggregates=aggregates
    )
    drawn.operators.append(operator)
    return (
        operator,
        lambda streams: (
            maker(streams)
            .key_by(*keys, **placed)
            .window(gw.rows(length, every=every), name=name)
            .compute(**_given(drawn, aggregates))
        ),
    )


def _duplicates(drawn: Drawn, node: ref.Node, maker: Any, name: str, keys: list[str]) -> Any:
    within = drawn.length(1, 9)
    placed = drawn.placed(name, keys)
    drawn.text.append(f"{name}: duplicates {within} {keys}")
    return ref.Duplicates(name, keys, feed=node, within=within), lambda streams: maker(
        streams
    ).drop_duplicates(*keys, within=drawn.spelled(within), name=name, **placed)


def _sides(drawn: Drawn, node: ref.Node, maker: Any) -> Any:
    other, others = _stream(drawn, 0)
    if drawn.rng.random() < 0.5:
        return other, others, node, maker
    return node, maker, other, others


def _join(drawn: Drawn, node: ref.Node, maker: Any, name: str, keys: list[str]) -> Any:
    rng = drawn.rng
    left, lefts, right, rights = _sides(drawn, node, maker)
    keys = [key for key in keys if key in left.columns and key in right.columns]
    earliest = rng.randint(-6, 4)
    between = (earliest * drawn.unit, (earliest + rng.randint(0, 6)) * drawn.unit)
    how: Any = rng.choice(["inner", "left", "right", "full"])
    placed = drawn.placed(name, keys)
    drawn.text.append(f"{name}: join {between} {how} {keys}")
    bounds = tuple(drawn.spelled(bound) for bound in between)
    return (
        ref.Interval(
            name, keys, left=left, right=right, how=how, suffix=f"_{name}", between=between
        ),
        lambda streams: (
            lefts(streams)
            .key_by(*keys, **placed)
            .join(
                rights(streams).key_by(*keys, **placed),
                between=bounds,
                how=how,
                suffix=f"_{name}",
                name=name,
            )
        ),
    )


def _newest(drawn: Drawn, node: ref.Node, maker: Any, name: str, keys: list[str]) -> Any:
    rng = drawn.rng
    left, lefts, right, rights = _sides(drawn, node, maker)
    keys = [key for key in keys if key in left.columns and key in right.columns]
    if not _in_order(right, keys):
        right, rights = drawn.sources["s0"], lambda streams: streams["s0"]
    within = None if rng.random() < 0.3 else drawn.length(0, 9)
    how: Any = rng.choice(["inner", "left"])
    placed = drawn.placed(name, keys)
    drawn.text.append(f"{name}: newest {within} {how} {keys}")
    given = None if within is None else drawn.spelled(within)
    return (
        ref.Newest(name, keys, left=left, right=right, how=how, suffix=f"_{name}", within=within),
        lambda streams: (
            lefts(streams)
            .key_by(*keys, **placed)
            .join_newest(
                rights(streams).key_by(*keys, **placed),
                within=given,
                how=how,
                suffix=f"_{name}",
                name=name,
            )
        ),
    )
