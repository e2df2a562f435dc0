"""Figures of peers: rates and ratios from the runs of a small and a large job, as a table and JSON.

What a job takes at its start is in both, so a rate is that of the rows by which they differ: their
number by the difference of the medians of both times, and CPU time likewise.  Memory is that of
the large job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.processes import Usage

__all__ = ["Figures", "lines_of"]


@dataclass(slots=True, kw_only=True)
class Figures:
    """What a peer took for a workload, round by round, or why there are no figures of it."""

    name: str  # of the peer
    rows: tuple[int, int]  # of the small and of the large job
    small: list[Usage] = field(default_factory=list)
    large: list[Usage] = field(default_factory=list)
    failure: str | None = None

    def rate(self) -> float | None:
        """Rows a second, or ``None`` where noise is more than the difference."""
        seconds = self._difference("seconds")
        return self._steady_rows / seconds if seconds > 0 else None

    def cpu_s(self) -> float:
        """CPU seconds a million rows."""
        return self._difference("cpu_s") / self._steady_rows * 1e6

    def peak_mib(self) -> float:
        """Memory of the large job, MiB."""
        return median(usage.peak_bytes for usage in self.large) / 2**20

    def json(self, workload: str, subject: Figures) -> dict[str, Any]:
        """Return a line of a file of results."""
        line: dict[str, Any] = {"workload": workload, "peer": self.name, "rows": self.rows}
        if self.failure is not None:
            return line | {"failure": self.failure}
        return line | {
            "rows_per_s": self.rate(),
            "cpu_s_per_million": self.cpu_s(),
            "peak_mib": self.peak_mib(),
            "times_as_slow": _ratio(subject, self),
            "seconds": {
                "small": [usage.seconds for usage in self.small],
                "large": [usage.seconds for usage in self.large],
            },
        }

    @property
    def _steady_rows(self) -> int:
        small, large = self.rows
        return large - small

    def _difference(self, name: str) -> float:
        large, small = (median(getattr(u, name) for u in job) for job in (self.large, self.small))
        return float(large - small)


def lines_of(about: str, figures: Sequence[Figures]) -> list[str]:
    """Return a table; the first peer is the one that ratios are to."""
    subject = figures[0]
    lines = [
        f"### {about}",
        "",
        "| peer | rows/s | CPU s a million rows | peak MiB | Godwit is faster | less CPU |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for peer in figures:
        if peer.failure is not None:
            lines.append(f"| {peer.name} | no figure: {peer.failure.replace('|', '/')} | | | | |")
            continue
        rate, less = peer.rate(), None
        if subject.failure is None and subject.cpu_s() > 0:
            less = peer.cpu_s() / subject.cpu_s()
        lines.append(
            f"| {peer.name} | {_shown(rate, ',.0f')} | {peer.cpu_s():.2f} | "
            f"{peer.peak_mib():,.0f} | {_shown(_ratio(subject, peer), '.1f', 'x')} | "
            f"{_shown(less, '.1f', 'x')} |"
        )
    return lines


def _ratio(subject: Figures, other: Figures) -> float | None:
    own, theirs = (None if each.failure is not None else each.rate() for each in (subject, other))
    return own / theirs if own is not None and theirs is not None else None


def _shown(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"
