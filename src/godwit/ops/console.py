"""Text on a terminal for all commands: lines, tables, bars and sparklines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from godwit.model.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """Characters for bars and sparklines."""

    ticks: str  # from low to high
    full: str  # of a bar
    encoding: str  # of the terminal: texts are written so that it can show all of them

    def sparkline(self, values: Sequence[float], width: int) -> str:
        """Return the last `width` values as a sparkline, scaled to the largest."""
        shown = values[-width:] if width > 0 else []
        top = max(shown, default=0.0) or 1.0
        last = len(self.ticks) - 1
        return "".join(self.ticks[min(last, int(v / top * (last + 1)))] for v in shown)

    def bar(self, share: float, width: int) -> str:
        """Return a bar of up to `width` characters for a share of 1.

        A positive share is visible.
        """
        filled = round(min(1.0, max(0.0, share)) * width)
        return self.full * (max(filled, 1) if share > 0 and width > 0 else filled)

    def plain(self, text: str) -> str:
        """Replace characters of a text that the console cannot show."""
        return text.encode(self.encoding, "backslashreplace").decode(self.encoding)


BLOCKS = Symbols(ticks="▁▂▃▄▅▆▇█", full="█", encoding="utf-8")
ASCII = Symbols(ticks="_.-~=+*#", full="#", encoding="ascii")


def symbols_for(console: Console) -> Symbols:
    """Return the symbols that a console's encoding can show."""
    return BLOCKS if console.encoding.lower().replace("-", "").startswith("utf") else ASCII


def wide_console(width: int = 160) -> Console:
    """Return a console, `width` characters wide unless the output is a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=width)


def tell(console: Console, text: str, style: str = "") -> None:
    """Print a line to a console without wrapping it."""
    console.print(Text(printable(text), style=style), soft_wrap=True)


def figures_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1, title: str | None = None
) -> Table:
    """Return a table: the first `texts` columns left-aligned, figures right-aligned.

    `head`: titles of the columns.
    """
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for place, name in enumerate(head):
        is_text = place < texts
        table.add_column(name, justify="left" if is_text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table
