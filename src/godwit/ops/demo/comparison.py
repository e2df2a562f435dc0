"""The verdict of a demo: a streamed result compared with a batch query over the same rows.

All compared columns are exact (counts, integer sums, extremes, and means that both sides divide
from the same integers), so "equal" means equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text

from godwit.model.text import counted
from godwit.ops.console import tell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from rich.console import Console

_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of a streamed result with a batch query's."""

    what: str  # which result
    rows: int  # rows of the batch query
    differences: tuple[str, ...]  # what differs, one sentence each, in order of keys

    @property
    def equal(self) -> bool:
        """True if there are no differences."""
        return not self.differences


def compare(what: str, streamed: pa.Table, batch: pa.Table, keys: Sequence[str]) -> Comparison:
    """Compare two tables row by row, matched by `keys`, on the columns of `batch`.

    `what`: the result's name. `streamed`: may have a column ``epoch``, the epoch that delivered a
    row; then only the newest row of a key counts.
    """
    names = [name for name in batch.column_names if name not in keys]
    identity = [*keys, *({"epoch"} & {*streamed.column_names})]
    streamed = streamed.sort_by("epoch") if len(identity) > len(keys) else streamed
    doubled = streamed.num_rows - streamed.group_by(identity).aggregate([]).num_rows
    stream_rows, batch_rows = _by_key(streamed, keys, names), _by_key(batch, keys, names)
    differences = [f"{doubled} keys are duplicated in the stream's rows"] if doubled else []
    for key in sorted(stream_rows.keys() | batch_rows.keys(), key=repr):
        key_text = ", ".join(f"{column}={value!r}" for column, value in zip(keys, key, strict=True))
        if key not in stream_rows:
            differences.append(f"{key_text}: missing in the stream; batch has {batch_rows[key]}")
        elif key not in batch_rows:
            differences.append(f"{key_text}: only in the stream, which has {stream_rows[key]}")
        elif stream_rows[key] != batch_rows[key]:
            differences.append(
                f"{key_text}: stream has {stream_rows[key]}, batch has {batch_rows[key]}"
            )
    return Comparison(what=what, rows=len(batch_rows), differences=tuple(differences))


def tell_comparison(console: Console, name: str, comparison: Comparison) -> None:
    """Print whether a result equals that of the batch query, and the first differences."""
    if comparison.equal:
        verdict = Text.assemble(
            ("equal", "green"), f" to the batch query, all {comparison.rows:,} rows"
        )
    else:
        differences = counted(len(comparison.differences), "difference")
        verdict = Text.assemble((differences, "red"), " from the batch query")
    console.print(Text(f"{name}: ") + verdict, soft_wrap=True)
    for difference in comparison.differences[:_SHOWN]:
        tell(console, f"  {difference}")


def _by_key(
    table: pa.Table, keys: Sequence[str], names: Sequence[str]
) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    """Return values of the columns `keys` → last row, which has only the columns `names`."""
    return {
        tuple(row[key] for key in keys): {name: row[name] for name in names}
        for row in table.select([*keys, *names]).to_pylist()
    }
