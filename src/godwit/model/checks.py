"""Checks of numbers that users give."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from godwit.model.errors import GodwitError

__all__ = ["insist_on_number"]


def insist_on_number(
    what: str, value: Any, *, least: float, error: type[GodwitError], whole: bool = True
) -> None:
    """Refuse what is no number, or too small."""
    kind = Integral if whole else Real
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if is_number and value >= least:
        return
    told = repr(value) if isinstance(value, Real) else f"{value!r}, of type {type(value).__name__}"
    raise error(
        f"{what} is {told}.",
        remedy=f"Give at least {least}{', a whole number' if whole else ''}.",
        value=value,
    )
