"""Comparison of matches: means and spreads by pattern, ranks, and who loses where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from godwit_lab.arena.match import ORACLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from godwit_lab.arena.match import Figures

MEASURES: Mapping[str, int] = {"violated": 3, "cost": 2, "reconfigurations": 1}
"""Measures that ranks are given for, each with the decimals that count; less is a tie."""
OVERALL = "overall"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """Figures of one autoscaler on one pattern, over all queries and seeds."""

    pattern: str  # or ``"overall"``
    autoscaler: str
    mechanism: str
    matches: int
    mean: Mapping[str, float]  # measure → mean
    spread: Mapping[str, float]  # measure → standard deviation; 0 of a single match
    rank: Mapping[str, int]  # measure → rank, 1 is best; of the oracle: none

    @property
    def first_in_all(self) -> bool:
        """True if no autoscaler is better in any of the ranked measures."""
        return bool(self.rank) and set(self.rank.values()) == {1}


_FIELDS = ("violated", "cost", "reconfigurations", "late", "moved_mb", "p99_s")


def compare(played: Sequence[Figures]) -> list[TableRow]:
    """Return a row for each mechanism, pattern and autoscaler, then those over all patterns."""
    rows: list[TableRow] = []
    for mechanism in _names(figures.mechanism for figures in played):
        here = [figures for figures in played if figures.mechanism == mechanism]
        patterns = _names(figures.pattern for figures in here)
        for pattern in (*patterns, OVERALL):
            chosen = [f for f in here if pattern in {f.pattern, OVERALL}]
            rows += _ranked(pattern, mechanism, chosen)
    return rows


def _names(values: Iterable[str]) -> tuple[str, ...]:
    """Return the values without repetitions, in order."""
    return tuple(dict.fromkeys(values))


def _ranked(pattern: str, mechanism: str, played: Sequence[Figures]) -> list[TableRow]:
    """Return the rows of one pattern, with ranks."""
    means: dict[str, dict[str, float]] = {}
    spreads: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    for name in _names(figures.autoscaler for figures in played):
        mine = [figures for figures in played if figures.autoscaler == name]
        values = {field: np.array([getattr(f, field) for f in mine]) for field in _FIELDS}
        means[name] = {field: float(v.mean()) for field, v in values.items()}
        spreads[name] = {field: float(v.std()) for field, v in values.items()}
        counts[name] = len(mine)
    ranked = [name for name in means if name != ORACLE]
    shown = {
        measure: {name: round(means[name][measure], digits) for name in ranked}
        for measure, digits in MEASURES.items()
    }
    return [
        TableRow(
            pattern=pattern,
            autoscaler=name,
            mechanism=mechanism,
            matches=counts[name],
            mean=means[name],
            spread=spreads[name],
            rank={}
            if name == ORACLE
            else {
                measure: 1 + sum(other < values[name] for other in values.values())
                for measure, values in shown.items()
            },
        )
        for name in means
    ]


HEADER = (
    "pattern", "autoscaler", "missed", "cost", "reconfigurations", "late rows", "moved MB",
    "99 % s", "ranks",
)  # fmt: skip


def cells(row: TableRow) -> tuple[str, ...]:
    """Return a row as text, mean and spread of each figure."""

    def spread(text: str, field: str, scale: float, digits: int) -> str:
        off = row.spread[field] * scale
        return f"{text} ±{off:.{digits}f}" if row.matches > 1 else text

    mean = row.mean
    return (
        row.pattern,
        row.autoscaler,
        spread(f"{mean['violated']:.1%}", "violated", 100, 1),
        spread(f"{mean['cost']:.2f}", "cost", 1, 2),
        spread(f"{mean['reconfigurations']:.1f}", "reconfigurations", 1, 1),
        f"{mean['late']:.1%}",
        f"{mean['moved_mb']:.0f}",
        f"{mean['p99_s']:.1f}",
        ", ".join(map(str, row.rank.values())),
    )


def losses(rows: Sequence[TableRow], autoscaler: str = "godwit") -> list[str]:
    """Return the patterns in which an autoscaler is not first, with the measures and the winners.

    One line for each mechanism and pattern.
    """
    lines = []
    for row in rows:
        if row.autoscaler != autoscaler or row.pattern == OVERALL or row.first_in_all:
            continue
        rivals = [r for r in rows if (r.pattern, r.mechanism) == (row.pattern, row.mechanism)]
        ahead = []
        for measure, rank in row.rank.items():
            if rank > 1:
                first = [r.autoscaler for r in rivals if r.rank.get(measure) == 1]
                ahead.append(f"{measure} (rank {rank}; first: {', '.join(first)})")
        lines.append(f"{row.mechanism}, {row.pattern}: {'; '.join(ahead)}")
    return lines
