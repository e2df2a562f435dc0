"""Changes: rows with a sign, in a column of a reserved name.

A stream is of one *kind*, which the plan knows; columns do not tell it:

- ``rows``: every row is an event of its own;
- ``changes``: the rows with sign 1, less those with -1, are a table.  A row with -1 has the values
  of a row that was in the table; an update is the former row with -1, then the new one with 1;
- ``upserts``: a row with 1 replaces the row of its key, and one with -1 deletes it.  A row with -1
  need have no values outside its key.

Changes of one key are in the order of their source.  The rows of an epoch are one step: what they
add up to counts, so a row that comes and goes within an epoch has never been there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import mask_of, values_of
from godwit.model.naming import RESERVED_PREFIX

if TYPE_CHECKING:
    import numpy.typing as npt

Kind: TypeAlias = Literal["rows", "changes", "upserts"]

CHANGE: Final = pa.field("change", pa.int8())
"""Sign of a row: -1 takes a row away, 1 adds one."""

UNCHANGED: Final = pa.field("unchanged", pa.string())
"""Names of columns, one a line, that an upsert leaves as they are; null if it has all of them."""


FORMER: Final = f"{RESERVED_PREFIX}_former"
"""Column of the former row of a key, as a struct, where a sink writes both; null if it has none."""


def signs_of(rows: pa.RecordBatch) -> npt.NDArray[np.int8] | None:
    """Return the signs of changes; ``None`` if a row has another sign than -1 and 1."""
    column = rows.column(CHANGE.name)
    signs: npt.NDArray[np.int8] = values_of(column)
    return signs if mask_of(column) is None and (np.abs(signs) == 1).all() else None


def with_sign(rows: pa.RecordBatch, sign: int) -> pa.RecordBatch:
    """Return rows with a last column `CHANGE`, of one sign: -1 or 1."""
    return rows.append_column(CHANGE, pa.array(np.full(rows.num_rows, sign, np.int8)))


def without_sign(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a table, without those of its changes."""
    return pa.schema([f for f in schema if f.name not in (CHANGE.name, UNCHANGED.name)])


def table_after(changes: pa.Table, keys: tuple[str, ...] | None = None) -> pa.Table:
    """Return the rows of a table, in order of arrival, after changes to it, for tests.

    `keys`: columns of the key, if the rows are upserts; ``None``: they are changes.
    """
    named = without_sign(changes.schema).names if keys is None else list(keys)
    live: dict[str, list[int]] = {}
    signs = changes.column(CHANGE.name).to_pylist()
    for number, row in enumerate(changes.select(named).to_pylist()):
        same = live.setdefault(repr(row), [])
        if keys is not None:
            same.clear()
        if signs[number] == 1:
            same.append(number)
        elif same:
            same.pop(0)
    rows = sorted(number for same in live.values() for number in same)
    return changes.take(rows).select(without_sign(changes.schema).names)
