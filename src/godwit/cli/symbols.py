"""Bars and sparklines, in blocks where the terminal can show them and in ASCII where it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

__all__ = ["ASCII", "BLOCKS", "Symbols", "symbols_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """What to draw with.

    Attributes
    ----------
    ticks
        From low to high.
    full
        Of a bar.
    encoding
        Of the terminal: texts are written so that it can show all of them.
    """

    ticks: str
    full: str
    encoding: str

    def sparkline(self, values: Sequence[float], width: int) -> str:
        """Draw the last `width` values as a row of ticks, scaled to the largest of them."""
        shown = values[-width:] if width > 0 else []
        top = max(shown, default=0.0) or 1.0
        last = len(self.ticks) - 1
        return "".join(self.ticks[min(last, int(v / top * (last + 1)))] for v in shown)

    def bar(self, share: float, width: int) -> str:
        """Draw a bar that fills `width` if `share` is 1; anything above nothing can be seen."""
        filled = round(min(1.0, max(0.0, share)) * width)
        return self.full * (max(filled, 1) if share > 0 and width > 0 else filled)

    def plain(self, text: str) -> str:
        """Write a text so that it can be encoded."""
        return text.encode(self.encoding, "backslashreplace").decode(self.encoding)


BLOCKS = Symbols(ticks="▁▂▃▄▅▆▇█", full="█", encoding="utf-8")
ASCII = Symbols(ticks="_.-~=+*#", full="#", encoding="ascii")


def symbols_for(console: Console) -> Symbols:
    """Choose what the encoding of a console can show."""
    return BLOCKS if console.encoding.lower().replace("-", "").startswith("utf") else ASCII
