"""Checks for rows that a target can never store, on whole columns before the commit.

A check is made of rules, each about the values of one column.  A value inside a list, a map or a
struct counts for its row.  Whatever a rule does not say is for the target to refuse, which is then
found while the epoch is delivered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.types import is_date_or_timestamp, is_list, is_text
from godwit.plan.staging import Rejections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

_FIRST_DAY: Final = -719_162  # 0001-01-01
_LAST_DAY: Final = 2_932_896  # 9999-12-31
_DAMAGED: Final = "is not a value of its type (text that is not UTF-8, a number that is too large)"
_NULL: Final = "is null, but the target's column is not nullable"
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule about the values of a column; picklable."""

    reason: str  # problem of a value that breaks the rule, as in "holds a zero byte"
    # marks the values that break it; ``None`` if the rule is not about values of that type
    bad: Callable[[pa.Array], pa.BooleanArray | None]


def _with_zero_byte(values: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of texts that contain a zero byte; ``None`` for other types."""
    return pc.match_substring(values, "\0") if is_text(values.type) else None


def _beyond_calendar(values: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of dates and times outside of the years 1 to 9999."""
    dtype = values.type
    if not is_date_or_timestamp(dtype):
        return None
    bounds = _within_years(dtype)
    if bounds is None:
        return None
    first, last = bounds
    numbers = values.cast(pa.int32() if dtype == pa.date32() else pa.int64())
    return pc.or_(pc.less(numbers, first), pc.greater(numbers, last))


def _with_nanoseconds(values: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of timestamps that are not whole microseconds; ``None`` for other types."""
    is_timestamp = pa.types.is_timestamp(values.type)
    return _has_nanoseconds(values) if is_timestamp and values.type.unit == "ns" else None


def _beyond_microseconds(values: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of durations and times of day that whole microseconds cannot express."""
    if not (pa.types.is_duration(values.type) or pa.types.is_time64(values.type)):
        return None
    if values.type.unit == "ns":
        return _has_nanoseconds(values)
    numbers = values.cast(pa.int64())
    bound = (2**63 - 1) * _PER_SECOND[values.type.unit] // 10**6
    return pc.or_(pc.less(numbers, -bound), pc.greater(numbers, bound))


def _has_nanoseconds(nanoseconds: pa.Array) -> pa.BooleanArray:
    """Return a mask of times in nanoseconds that are not whole microseconds."""
    numbers = nanoseconds.cast(pa.int64())
    return pc.not_equal(pc.multiply(pc.divide(numbers, 1000), 1000), numbers)


def _with_key_twice(values: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of maps that have a duplicate key; ``None`` for other types."""
    if not pa.types.is_map(values.type):
        return None
    entries = _map_entries(values)
    rows = np.repeat(np.arange(len(values)), _list_lengths(entries))
    keys = pa.table({"row": rows, "key": entries.flatten().field(0)})
    counts = keys.group_by(["row", "key"]).aggregate([([], "count_all")])
    bad = np.zeros(len(values), np.bool_)
    bad[counts.filter(pc.greater(counts["count_all"], 1))["row"].to_numpy()] = True
    return pa.array(bad)


NO_ZERO_BYTES: Final = Rule(
    "contains a zero byte, which the target's text does not support", _with_zero_byte
)
# Dates and times that every engine reads alike.
KNOWN_YEARS: Final = Rule("has a year outside of 1 to 9999", _beyond_calendar)
NO_NANOSECONDS: Final = Rule(
    "has a fraction of a microsecond, which the target would drop", _with_nanoseconds
)
# Times of day and durations that microseconds in 64 bits express.
WHOLE_MICROSECONDS: Final = Rule(
    "does not fit the target's range of microseconds", _beyond_microseconds
)
EACH_KEY_ONCE: Final = Rule("is a map with a duplicate key", _with_key_twice)


def up_to_characters(limit: int) -> Rule:
    """Return the rule that a text has at most `limit` characters."""
    reason = f"has more characters than the {limit} of the target's column"
    return Rule(reason, partial(_longer_than, limit))


def _longer_than(limit: int, values: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of texts with more than `limit` characters; ``None`` for other types."""
    return pc.greater(pc.utf8_length(values), limit) if is_text(values.type) else None


def one_of(texts: tuple[str, ...]) -> Rule:
    """Return the rule that a text is one of `texts`."""
    shown = ", ".join(map(repr, texts[:5]))
    return Rule(
        f"is not one of the target's {len(texts)} values ({shown}, ...)", partial(_not_among, texts)
    )


def _not_among(texts: tuple[str, ...], values: pa.Array) -> pa.BooleanArray | None:
    """Return a mask of texts other than `texts`; ``None`` for other types."""
    if not is_text(values.type):
        return None
    known = pc.is_in(values, value_set=pa.array(texts, values.type))
    return pc.and_(pc.invert(known), values.is_valid())


@dataclass(frozen=True, slots=True)
class ColumnCheck:
    """Rules for one column."""

    column: str  # name of the column
    rules: tuple[Rule, ...]  # about each value in it, however deep
    nullable: bool = True  # whether the column itself may be null

    def find(self, values: pa.Array) -> Iterator[tuple[npt.NDArray[np.int64], str]]:
        """Yield the positions of values that break a rule, and the rule's reason."""
        rows = np.arange(len(values))
        damaged = _invalid_values(values)
        if len(damaged):
            yield damaged, _DAMAGED
            rows = np.setdiff1d(rows, damaged)
            values = values.take(pa.array(rows))
        if not self.nullable and values.null_count:
            yield rows[_positions(values.is_null())], _NULL
        for leaf, parents in _nested_arrays(values):
            for rule in self.rules:
                bad = rule.bad(leaf)
                if bad is not None and pc.any(bad).as_py():
                    positions = _positions(bad)
                    broken = positions if parents is None else np.unique(parents[positions])
                    yield rows[broken], rule.reason


@dataclass(frozen=True, slots=True)
class RowChecks:
    """Rules for all columns of a sink (see `godwit.plan.staging.RowCheck`)."""

    columns: tuple[ColumnCheck, ...]

    def __call__(self, rows: pa.RecordBatch) -> Rejections | None:
        """Find the rows that break a rule; the first rule that a row breaks is its reason."""
        reasons: dict[int, str] = {}
        for check in self.columns:
            for positions, reason in check.find(rows.column(check.column)):
                for position in positions.tolist():
                    reasons.setdefault(position, f"column {check.column!r} {reason}")
        if not reasons:
            return None
        ordered = sorted(reasons)
        return Rejections(
            rows=np.array(ordered, np.int64), reasons=[reasons[position] for position in ordered]
        )


def _within_years(dtype: pa.DataType) -> tuple[int, int] | None:
    """Return the integers of the first and the last time of the years 1 to 9999 in a type.

    ``None`` if the type cannot leave these years.
    """
    if dtype == pa.date32():
        return _FIRST_DAY, _LAST_DAY
    if dtype == pa.date64():
        return _FIRST_DAY * 86_400_000, _LAST_DAY * 86_400_000 + 86_399_999
    if dtype.unit == "ns":
        return None
    per_second = _PER_SECOND[dtype.unit]
    return _FIRST_DAY * 86_400 * per_second, (_LAST_DAY + 1) * 86_400 * per_second - 1


def _invalid_values(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the positions of values that are invalid for their type, by bisection."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return np.zeros(1, np.int64)
        half = len(values) // 2
        return np.concatenate(
            [_invalid_values(values[:half]), _invalid_values(values[half:]) + half]
        )
    return np.zeros(0, np.int64)


def _nested_arrays(
    values: pa.Array, parents: npt.NDArray[np.int64] | None = None
) -> Iterator[tuple[pa.Array, npt.NDArray[np.int64] | None]]:
    """Yield an array and those nested in it, each with its values' outer rows.

    ``None``: each value is a row.
    """
    dtype = values.type
    if pa.types.is_dictionary(dtype):
        yield from _nested_arrays(values.dictionary_decode(), parents)
    elif pa.types.is_struct(dtype):
        for child in values.flatten():
            yield from _nested_arrays(child, parents)
    elif is_list(dtype) or pa.types.is_map(dtype):
        if pa.types.is_map(dtype):
            yield values, parents
            values = _map_entries(values)
        rows = np.arange(len(values)) if parents is None else parents
        yield from _nested_arrays(values.flatten(), np.repeat(rows, _list_lengths(values)))
    else:
        yield values, parents


def _map_entries(maps: pa.Array) -> pa.Array:
    """Return the entries of maps as lists of structs."""
    return maps.cast(pa.list_(pa.struct([maps.type.key_field, maps.type.item_field])))


def _list_lengths(lists: pa.Array) -> npt.NDArray[np.int64]:
    """Return the lengths of lists, shape ``(n,)``; 0 for null."""
    lengths = pc.list_value_length(lists).fill_null(0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def _positions(mask: Any) -> npt.NDArray[np.int64]:
    """Return the positions of the true values in a mask."""
    return np.flatnonzero(mask.fill_null(fill_value=False).to_numpy(zero_copy_only=False))
