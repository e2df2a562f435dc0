"""HTML for notebooks: tables and texts, with everything in them escaped."""

from __future__ import annotations

import html
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_CELL = 'style="text-align: left; vertical-align: top"'


def facts(title: str, pairs: Iterable[tuple[str, object]]) -> str:
    """Return a title and a table of names and values as HTML; empty values are left out.

    Examples
    --------
    >>> facts("A <flow>", [("epoch", 3), ("held", "")]).count("<tr>")
    1
    """
    rows = "".join(
        f"<tr><th {_CELL}>{html.escape(name)}</th><td {_CELL}>{_cell_html(value)}</td></tr>"
        for name, value in pairs
        if value not in ("", None, (), [])
    )
    return f"<div><b>{html.escape(title)}</b><table>{rows}</table></div>"


def table(title: str, names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a title and a table with these column names as HTML."""
    head = "".join(f"<th {_CELL}>{html.escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td {_CELL}>{_cell_html(value)}</td>' for value in row)}</tr>"
        for row in rows
    )
    return (
        f"<div><b>{html.escape(title)}</b><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def text_block(text: str) -> str:
    """Return a text as HTML that shows its line breaks and spaces."""
    return f'<pre style="line-height: 1.3">{html.escape(text)}</pre>'


class Link(str):
    """An address that is shown as a link."""

    __slots__ = ()


def _cell_html(value: object) -> str:
    """Return a table's cell as HTML: the escaped text, or a link for a `Link`."""
    text = html.escape(str(value))
    if isinstance(value, Link) and value.startswith(("http://", "https://")):
        return f'<a href="{text}" target="_blank" rel="noopener">{text}</a>'
    return text


def show(text: str, markup: str) -> None:
    """Show HTML (`markup`) in a notebook; elsewhere print `text`."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        sys.stdout.write(text + "\n")
        return
    import_module("IPython.display").display({"text/html": markup, "text/plain": text}, raw=True)
