"""Checks that every planner's input shares: arrays of the right size, with numbers that are loads.

Invariant: what comes out is a read-only copy, so a frozen value holding it cannot change.  Errors
name the field and the value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from godwit.model.errors import InvalidProblemError

__all__ = [
    "BoolArray",
    "Clock",
    "FloatArray",
    "IndexArray",
    "IntArray",
    "freeze_array",
    "is_contiguous",
    "require_load",
    "set_field",
    "wrong_value",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
IndexArray = npt.NDArray[np.integer[Any]]
"""Indices of any width, as `numpy.flatnonzero` makes them."""
BoolArray = npt.NDArray[np.bool_]
Clock = Callable[[], float]
"""Seconds from any fixed origin, growing: `time.perf_counter`, or a test's own."""

_MOST = 1e100
"""Largest load; sums of squares of as large ones are still numbers."""


def set_field(value: object, name: str, to: Any) -> None:
    """Normalise a field of a frozen value while it is being made."""
    object.__setattr__(value, name, to)


def wrong_value(name: str, value: object, remedy: str) -> InvalidProblemError:
    """Error that names a field, its value and what to give instead."""
    text = remedy[0].upper() + remedy[1:] + "."
    return InvalidProblemError(
        f"{name} = {value!r} is wrong.", remedy=text, field=name, value=value
    )


def freeze_array(
    value: object,
    attribute: str,
    name: str,
    dtype: type[np.generic],
    *,
    shape: tuple[int, ...] | None = None,
    ndim: int | None = None,
) -> None:
    """Replace a field of a frozen value by a read-only copy of the wanted type and shape.

    Raises `InvalidProblemError` if it does not hold numbers, has another shape, or loses something
    when converted.
    """
    values = getattr(value, attribute)
    try:
        raw = np.asarray(values)
        with np.errstate(invalid="ignore"):  # what does not fit is refused below
            array = raw.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise wrong_value(name, type(values).__name__, f"give numbers: {error}") from None
    if shape is not None and array.shape != shape:
        raise wrong_value(name, f"shape {array.shape}", f"the shape must be {shape}")
    if ndim is not None and array.ndim != ndim:
        raise wrong_value(name, f"{array.ndim} dimensions", f"give {ndim}")
    exact = dtype in (np.int32, np.bool_) and raw.dtype.kind in "fiub"
    if exact and not np.array_equal(raw, array):
        raise wrong_value(name, "a number that does not fit", "give whole numbers in range")
    array.setflags(write=False)
    set_field(value, attribute, array)


def require_load(values: FloatArray, name: str) -> None:
    """Refuse numbers that are negative, NaN, or so large that their squares are none.

    Raises `InvalidProblemError`: names the first of them.
    """
    bad = ~((values >= 0) & (values <= _MOST))  # false for NaN too
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        place = ", ".join(map(str, at if values.shape[1:] != (1,) else at[:1]))
        raise wrong_value(f"{name}[{place}]", float(values[at]), "give numbers from 0 to 1e100")


def is_contiguous(current: IntArray, n: int) -> bool:
    """Return whether each of `n` executors owns at most one range of key groups."""
    starts = current[np.flatnonzero(np.diff(current, prepend=-1))]
    return int(np.bincount(starts, minlength=n).max()) <= 1
