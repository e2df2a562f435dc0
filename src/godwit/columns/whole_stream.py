"""The hidden key column of operators on whole streams.

A stream that is keyed by no column is one group.  Its operators have a key column anyway,
which is true in every row and which users never see.  Only this module knows its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from godwit.model.naming import RESERVED_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_KEY: Final = f"{RESERVED_PREFIX}_all"
KEY_OF_ALL: Final = pa.schema([pa.field(_KEY, pa.bool_())])
"""Key columns of an operator on a whole stream."""


def is_keyed_by_none(keys: pa.Schema) -> bool:
    """Return whether key columns are those of an operator on a whole stream."""
    return _KEY in keys.names


def visible_names(names: Iterable[str]) -> list[str]:
    """Return names of columns without the hidden one."""
    return [name for name in names if name != _KEY]


def visible_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without the hidden column."""
    return pa.schema([field for field in schema if field.name != _KEY])


def without_hidden_key(rows: pa.Table) -> pa.Table:
    """Return rows without the hidden column."""
    return rows.drop_columns(_KEY) if _KEY in rows.schema.names else rows


def with_hidden_key(rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return the columns of rows that `names` lists, behind the hidden one."""
    return pa.RecordBatch.from_arrays(
        [pa.repeat(True, rows.num_rows), *rows.select(names).columns], names=[_KEY, *names]
    )
