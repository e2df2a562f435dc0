"""Few seeds whose drawn flows have among them as many pairs of things as many seeds have.

What breaks a stream is rarely one thing: it is late rows *and* sessions, a window *of* a join.  Of
many drawn flows most repeat pairs that others have: thirty that are chosen among two hundred have
more pairs than eighty that are not.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

from tests.streams.drawing import draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.streams.drawing import Drawn
    from tests.streams.reference import Operator

__all__ = ["covering", "pairs_of"]


POOL = range(1_000, 1_200)


@cache
def covering(count: int, *, most_operators: int = 3) -> tuple[int, ...]:
    """Return seeds of `POOL`, each of which shows the most pairs that those before it do not."""
    pairs = {seed: pairs_of(draw(seed, most_operators=most_operators)) for seed in POOL}
    chosen: list[int] = []
    shown: set[tuple[str, str]] = set()
    for _ in range(count):
        chosen.append(best := max(pairs, key=lambda seed: len(pairs[seed] - shown)))
        shown |= pairs.pop(best)
    return tuple(chosen)


def pairs_of(drawn: Drawn) -> set[tuple[str, str]]:
    """Return the pairs of things that a drawn flow has."""
    things = {
        f"key {drawn.key}",
        f"unit {drawn.unit}",
        f"zone {drawn.time_type.tz}",
        f"before or after 1970: {drawn.base > 0}",
        f"idle {any(source.idle for source in drawn.sources.values())}",
        f"sources {len(drawn.sources)}",
        f"apart {any('apart' in text for text in drawn.text)}",
        f"partitioned {any('partitioned' in text for text in drawn.text)}",
        *(thing for operator in drawn.operators for thing in _things_of(operator)),
    }
    return set(combinations(sorted(things), 2))


def _things_of(operator: Operator) -> Iterator[str]:
    kind = type(operator).__name__
    yield kind
    yield f"how {getattr(operator, 'how', None)}"
    yield f"bound {getattr(operator, 'within', 0) is not None}"
    for name in ("calendar", "length_as", "update", "lateness"):
        yield f"{name} {bool(getattr(operator, name, None))}"
    yield f"kinds {min(len(getattr(operator, 'kinds', [])), 2)}"
    yield f"keys {len(operator.keys)}"
    for aggregate, _ in getattr(operator, "aggregates", {}).values():
        yield f"aggregate {aggregate}"
    for feed in operator.feeds():
        yield f"{kind} of {type(feed).__name__}"
