"""Checks that every planner's input shares: read-only arrays of the right size that hold loads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from godwit.model.errors import InvalidProblemError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]
IndexArray = npt.NDArray[np.integer[Any]]
"""Indices of any width, as `numpy.flatnonzero` makes them."""
BoolArray = npt.NDArray[np.bool_]
Clock = Callable[[], float]
"""Seconds from any fixed origin, growing: `time.perf_counter`, or a test's own."""

_MOST = 1e100
"""Largest load; sums of squares of as large ones are still numbers."""


def set_field(value: object, name: str, field_value: Any) -> None:
    """Set a field of a frozen dataclass, in its ``__post_init__``."""
    object.__setattr__(value, name, field_value)


def wrong_value(name: str, value: object, remedy: str) -> InvalidProblemError:
    """Return the error for a wrong field or option `name`, with its value and a remedy."""
    text, shown = remedy[0].upper() + remedy[1:] + ".", repr(value)
    shown = shown if len(shown) <= 200 else shown[:200] + "..."
    return InvalidProblemError(f"{name} = {shown} is wrong.", remedy=text, field=name, value=value)


def freeze_array(
    value: object,
    attribute: str,
    dtype: type[np.generic],
    *,
    shape: tuple[int, ...] | None = None,
    ndim: int | None = None,
    prefix: str = "",
    default: float | None = None,
) -> None:
    """Replace a field of a frozen dataclass by a read-only array of the required type and shape.

    An empty one is filled with `default`, if given; `prefix`: before the field's name in errors.
    Raises `InvalidProblemError` if the field does not hold numbers, has another shape, or loses
    something when converted.
    """
    name, values = prefix + attribute, getattr(value, attribute)
    if default is not None and shape is not None and np.size(values) == 0:
        values = np.full(shape, default)
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
    """Raise `InvalidProblemError` if a number is negative, NaN, or too large to be squared.

    The error names the first of them.
    """
    bad = ~((values >= 0) & (values <= _MOST))  # false for NaN too
    if bad.any():
        position = tuple(int(i) for i in np.argwhere(bad)[0])
        place = ", ".join(map(str, position if values.shape[1:] != (1,) else position[:1]))
        raise wrong_value(
            f"{name}[{place}]", float(values[position]), "give numbers from 0 to 1e100"
        )


def require_index(values: IndexArray, count: int, name: str, what: str) -> None:
    """Raise `InvalidProblemError` if a number is not below `count`; `what`: name of the things."""
    out_of_range = (values < 0) | (values >= count)
    if out_of_range.any():
        first = int(out_of_range.argmax())
        raise wrong_value(
            f"{name}[{first}]", int(values[first]), f"{what} are numbered 0 to {count - 1}"
        )


def is_contiguous(current: IntArray, n: int) -> bool:
    """Return whether each of `n` executors owns at most one range of consecutive key groups."""
    starts = current[np.flatnonzero(np.diff(current, prepend=-1))]
    return int(np.bincount(starts, minlength=n).max()) <= 1
