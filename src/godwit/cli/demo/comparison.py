"""The verdict: what the stream delivered against one plain batch query over the same files.

Every column compared is exact (counts, integer sums, extremes, and means that both sides divide
from the same integers), so "equal" means equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

__all__ = ["Comparison", "compare", "newest_rows"]

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a result compares with the batch query's.

    Attributes
    ----------
    what
        Which result.
    rows
        Rows of the batch query.
    differences
        What differs, one sentence each, in order of keys.
    """

    what: str
    rows: int
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def newest_rows(delivered: pa.Table, keys: Sequence[str], *, epoch: str = "epoch") -> pa.Table:
    """Return the newest row of every key, of rows that carry the epoch that wrote them.

    Raises
    ------
    ValueError
        If one epoch delivered a key twice, so that "newest" would be ambiguous.
    """
    ordered = delivered.sort_by(epoch)
    last: dict[Key, tuple[int, int]] = {}
    columns = [ordered[name].to_pylist() for name in (*keys, epoch)]
    for row, (*key, number) in enumerate(zip(*columns, strict=True)):
        seen = last.get(tuple(key))
        if seen is not None and seen[0] == number:
            raise ValueError(f"epoch {number} delivered key {tuple(key)} twice")
        last[tuple(key)] = (number, row)
    return ordered.take([row for _, row in last.values()]).drop_columns([epoch])


def compare(what: str, streamed: pa.Table, batch: pa.Table, keys: Sequence[str]) -> Comparison:
    """Compare two tables row by row, matched by `keys`, on the columns of `batch`."""
    names = [name for name in batch.column_names if name not in keys]
    left, right = _by_key(streamed, keys, names), _by_key(batch, keys, names)
    differences = []
    if streamed.num_rows != len(left):
        differences.append(f"{streamed.num_rows - len(left)} keys are in the stream's rows twice")
    for key in sorted(left.keys() | right.keys(), key=repr):
        named = ", ".join(f"{k}={v!r}" for k, v in zip(keys, key, strict=True))
        if key not in left:
            differences.append(f"{named}: missing in the stream; batch has {right[key]}")
        elif key not in right:
            differences.append(f"{named}: only in the stream, which has {left[key]}")
        elif left[key] != right[key]:
            differences.append(f"{named}: stream has {left[key]}, batch has {right[key]}")
    return Comparison(what=what, rows=len(right), differences=tuple(differences))


def _by_key(
    table: pa.Table, keys: Sequence[str], names: Sequence[str]
) -> dict[Key, Mapping[str, Any]]:
    return {
        tuple(row[key] for key in keys): {name: row[name] for name in names}
        for row in table.select([*keys, *names]).to_pylist()
    }
