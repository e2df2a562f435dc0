"""Windows as spans between cuts: the moments at which some window begins or ends.

Panes between two cuts are in the same windows, so they are one *run*.  No auxiliary window needs to
begin or end within a run: as it grows by a pane, what it saves its users falls in a straight line,
and its own keys grow ever more slowly, so one end of the run or the other is best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.planning.arrays import FloatArray

__all__ = ["Built", "Part", "Span", "Spans"]

Span: TypeAlias = tuple[int, int]
"""From the one position up to, but not including, the other."""
Part: TypeAlias = "Span | int"
"""A window that is built, by its cuts; or the run of panes from one cut to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """Windows, by cuts, and the parts of each."""

    parts: Mapping[Span, tuple[Part, ...]]  # window → its parts in order of time
    keys: float  # keys in all parts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """The cuts of some windows, and how many keys lie between them."""

    cuts: tuple[int, ...]  # positions of panes, ascending
    asked: frozenset[Span]  # the windows, by index of cuts
    # for every cut but the last: keys of the panes up to the next one, added up
    runs: tuple[float, ...]
    all_keys: float  # keys in all panes
    _whole: tuple[int, ...]
    _missing: tuple[float, ...]

    @classmethod
    def of(cls, pane_keys: FloatArray, all_keys: float, windows: Iterable[Span]) -> Spans:
        """Find the cuts of some windows."""
        windows = tuple(windows)
        cuts = sorted({moment for window in windows for moment in window})
        at = {cut: index for index, cut in enumerate(cuts)}
        # A key is missing in a window if it is in none of its panes, of which each has its share.
        missing = 1.0 - pane_keys / max(all_keys, 1.0)
        whole = missing <= 0
        logarithms = np.log(np.where(whole, 1.0, missing))
        sums, wholes, keys = (
            np.concatenate(([0], np.cumsum(column)))[cuts]
            for column in (logarithms, whole, pane_keys)
        )
        return cls(
            cuts=tuple(cuts),
            asked=frozenset((at[first], at[end]) for first, end in windows),
            runs=tuple(np.diff(keys).tolist()),
            all_keys=all_keys,
            _whole=tuple(wholes.astype(int).tolist()),
            _missing=tuple(sums.tolist()),
        )

    @property
    def least(self) -> float:
        """Keys that any plan reads: every pane of a window once."""
        inside = np.zeros(len(self.cuts), np.bool_)
        for first, end in self.asked:
            inside[first:end] = True
        return float(np.sum(np.asarray(self.runs)[inside[:-1]]))

    def keys(self, span: Span) -> float:
        """How many keys a window probably has."""
        first, end = span
        if self._whole[end] > self._whole[first]:
            return self.all_keys
        return self.all_keys * float(-np.expm1(self._missing[end] - self._missing[first]))

    def price(self, part: Part) -> float:
        """Keys to be read for a part."""
        return self.runs[part] if isinstance(part, int) else self.keys(part)

    def built(self, parts: Mapping[Span, tuple[Part, ...]]) -> Built:
        """Add up what windows cost."""
        return Built(parts=parts, keys=sum(self.price(p) for made in parts.values() for p in made))

    def panes_of(self, part: Part) -> Span:
        """Positions of the panes of a part."""
        first, end = (part, part + 1) if isinstance(part, int) else part
        return self.cuts[first], self.cuts[end]

    def parts_of(self, window: Span, built: Built) -> tuple[Span, ...]:
        """Parts of a window as positions of panes, runs pane by pane."""
        found: list[Span] = []
        for part in built.parts[window]:
            if isinstance(part, int):
                found += [(pane, pane + 1) for pane in range(*self.panes_of(part))]
            else:
                found.append(self.panes_of(part))
        return tuple(found)
