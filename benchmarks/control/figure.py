"""One figure of a table: what was measured, and what it should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Figure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number beside its target.

    Attributes
    ----------
    what
        What was measured, with its unit.
    value
        How much.
    target
        How much it should be; ``None`` where it is told beside the others.
    good
        On which side of the target the value should be.
    """

    what: str
    value: float
    target: float | None = None
    good: Literal["at least", "at most"] = "at least"

    @property
    def met(self) -> bool:
        """True if the target is met."""
        if self.target is None:
            return True
        return self.value >= self.target if self.good == "at least" else self.value <= self.target

    def row(self) -> tuple[str, str, str, str]:
        """Cells of a table."""
        if self.target is None:
            return self.what, f"{self.value:.3g}", "", ""
        met = "met" if self.met else "not met"
        return self.what, f"{self.value:.3g}", f"{self.good} {self.target:g}", met
