"""Queries as jobs have them, in DataFrames and in SQL: the lines of ``written.txt``.

A line is an output mode and a query over the streams of `tests.adopted.grammar`.  `S`, `T` and `U`
are the streams `s`, `t` and `u` with a watermark, SQL has streams in braces, and `lookup` is a
static table.  The rows of each are drawn.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


@cache
def written() -> tuple[tuple[str, str], ...]:
    """Return the text and the output mode of every query."""
    queries = []
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        mode, _, text = line.partition(" | ")
        is_sql = text.startswith(("SELECT ", "WITH ", "FROM "))
        queries.append((f"sql({text!r})" if is_sql else text, mode))
    return tuple(queries)


def written_of(draw: random.Random) -> tuple[str, str]:
    """Draw one of these queries: its text and its output mode."""
    return draw.choice(written())
