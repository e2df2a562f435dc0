"""Formatting of numbers and names in events and on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.model.secrets import hidden

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    more = f", … {len(key_groups)} in all" if len(key_groups) > limit else ""
    return f"{noun} {shown}{more}"


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
