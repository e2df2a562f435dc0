"""Where the rows of a stream come from, as far as code shows it.

Names tell operators and sides apart, and a program may give two of them each other's.  Where what
stands behind one name now is what stood behind the other, and the other way about, they have
changed places: that shows by digests of the ways that rows take.  One that is another than it was
shows nothing, since code changes.
"""

from __future__ import annotations

import functools
import hashlib
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["digest_of_way"]


def digest_of_way(branches: Iterable[tuple[str, Iterable[Any]]]) -> str:
    """Digest the ways that rows take: the same for the same names and code.

    Parameters
    ----------
    branches
        Name of what makes the rows, and the functions that they go through.
    """
    way = [(name, list(map(_text_of, functions))) for name, functions in branches]
    return hashlib.blake2b(repr(way).encode(), digest_size=8).hexdigest()


def _text_of(function: Any) -> str:
    """Say what a function does, as far as its code shows it: the same for the same code."""
    if isinstance(function, functools.partial):
        given = (function.args, sorted(function.keywords.items()))
        return f"{_text_of(function.func)}{_plain_text(given)}"
    code = getattr(function, "__code__", None)
    if code is None:
        return str(getattr(function, "__qualname__", type(function).__qualname__))
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(_plain_text(cell.cell_contents))
        except ValueError:  # not yet assigned
            cells.append("")
    return f"{_plain_text(code)}{cells}{_plain_text(function.__defaults__)}"


def _plain_text(value: Any) -> str:
    """Write plain values and code so that one text is always of the same ones."""
    if isinstance(value, CodeType):
        return repr([value.co_code, value.co_names, *map(_plain_text, value.co_consts)])
    if isinstance(value, (tuple, list)):
        return repr(list(map(_plain_text, value)))
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(_plain_text, value)))
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    return _text_of(value) if callable(value) else type(value).__qualname__
