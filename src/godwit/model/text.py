"""Texts for people: numbers and names in words, and HTML for notebooks with everything escaped."""

from __future__ import annotations

import html
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from godwit.model.secrets import hidden

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def counted(count: int, noun: str) -> str:
    """Return a count and a noun as text; the noun gets an "s" unless the count is 1.

    Examples
    --------
    >>> counted(1, "row"), counted(2000, "row")
    ('1 row', '2000 rows')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def human_bytes(count: float) -> str:
    """Return a number of bytes as text with a unit, such as ``2.0 KiB``.

    Examples
    --------
    >>> human_bytes(7), human_bytes(2048), human_bytes(3 * 2**40)
    ('7 B', '2.0 KiB', '3.0 TiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


_BYTES = re.compile(r"(\d{1,18}) ?([kmgt]?)(?:i?b)?")


def read_bytes(size: object) -> int | None:
    """Return a size in bytes: a positive number, or a text as Spark reads it; ``None`` if neither.

    Examples
    --------
    >>> read_bytes("2g"), read_bytes("512 MiB"), read_bytes(4096), read_bytes("much")
    (2147483648, 536870912, 4096, None)
    """
    if isinstance(size, int) and not isinstance(size, bool):
        return size if size > 0 else None
    parts = _BYTES.fullmatch(size.strip().lower()) if isinstance(size, str) else None
    if parts is None or not int(parts[1]):
        return None
    return int(parts[1]) << 10 * " kmgt".index(parts[2] or " ")


def key_groups_listed(key_groups: Sequence[int], *, limit: int = 8) -> str:
    """Return a list of key groups as text; beyond `limit`, only the first ones and the number.

    Examples
    --------
    >>> key_groups_listed([3]), key_groups_listed([1, 2, 5], limit=2)
    ('key group 3', 'key groups 1, 2, … 3 in all')
    """
    if not key_groups:
        return "no key groups"
    shown = ", ".join(map(str, key_groups[:limit]))
    noun = "key group" if len(key_groups) == 1 else "key groups"
    total = f", … {len(key_groups)} in all" if len(key_groups) > limit else ""
    return f"{noun} {shown}{total}"


def printable(text: str) -> str:
    r"""Return a text with control characters and changes of writing direction escaped.

    Known secrets are hidden. Line breaks stay.

    Examples
    --------
    >>> printable("a\x1b[2Jb\u202ec")
    'a\\x1b[2Jb\\u202ec'
    """
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in hidden(text)
    )


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
