"""Steps with an epoch's rows that several sinks share: cast, gather, deduplicate by key.

Everything streams: an epoch may be larger than the driver's memory, so only key columns are ever
held as a whole, and only where a target cannot take one key twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.checkpoint.entries import type_in_utc
from godwit.columns.hashing import canonical_floats
from godwit.columns.signed import CHANGE
from godwit.model.errors import SinkError
from godwit.model.naming import did_you_mean, listing
from godwit.sinks.changes import netted_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from godwit.columns.signed import Kind
    from godwit.sinks.sink import EpochOutput, SinkContext

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)

GATHERED_ROWS = 131_072
GATHERED_BYTES = 32 * 2**20


def is_complete_result(output: EpochOutput, context: SinkContext) -> bool:
    """Return whether an epoch's rows are the whole result, replacing earlier ones."""
    return context.complete if output.complete is None else output.complete


def column_names(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names as a tuple; a single string is one name."""
    return (names,) if isinstance(names, str) else tuple(names)


def upsert_keys(context: SinkContext, keys: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns that identify a row, by default those of the result; or raise."""
    if context.kind != "rows" and CHANGE.name in context.schema.names:  # see `context_of_table`
        raise SinkError(
            f"Sink {context.name!r} is to upsert changes of a table, and cannot delete rows.",
            remedy="Call as_rows() on the stream before it, and append the rows with their column "
            "'change'; or delete the rows with -1 in a function (gw.sinks.foreach_table).",
            sink=context.name,
        )
    unique = context.unique_keys
    given_columns = None if keys is None else tuple(dict.fromkeys(column_names(keys)))
    if given_columns == () or (given_columns is None and not unique):
        raise SinkError(
            f"Sink {context.name!r} is to upsert, but no columns identify its rows.",
            remedy='Name the columns that identify a row (keys=[...]), or use mode="append".',
            sink=context.name,
        )
    if given_columns is None and () in unique:
        raise SinkError(
            f"Sink {context.name!r} is to upsert the one row that is the result of a whole stream, "
            "and no column identifies it.",
            remedy="Add a constant column in a map before the sink and name it, as in "
            'keys=["id"]; or use mode="append", which writes a row for each epoch.',
            sink=context.name,
        )
    key_columns = unique[0] if given_columns is None else given_columns
    require_columns(context, key_columns, "keys")
    # A column that a map made may tell rows apart as well as the window it was made of.
    may_suffice = context.mapped and not set(key_columns) < set(unique[0] if unique else ())
    if (
        unique
        and not may_suffice
        and not any(set(unique_columns) <= set(key_columns) for unique_columns in unique)
    ):
        narrowest = unique[-1]
        missing = [name for name in narrowest if name not in key_columns]
        raise SinkError(
            f"Sink {context.name!r}: rows that have the same {listing(key_columns)} would "
            "replace one "
            f"another, though they are different results, which {listing(unique[0])} tell apart.",
            remedy=f"Add {listing(missing)} to keys, or leave keys out. If only the newest row is "
            "wanted, give the column another name in a map before the sink.",
            sink=context.name,
            columns=missing,
        )
    return key_columns


def require_columns(context: SinkContext, names: Iterable[str], option: str) -> None:
    """Raise `SinkError` if any of `names`, given as `option`, is not a column of the rows."""
    unknown = [name for name in names if name not in context.schema.names]
    if unknown:
        raise SinkError(
            f"Sink {context.name!r}: {option} names {', '.join(map(repr, unknown))}, which the "
            f"rows do not have.",
            remedy=f"{did_you_mean(unknown[0], context.schema.names)}Columns are "
            f"{listing(context.schema.names)}.",
            sink=context.name,
            columns=unknown,
        )


def storable_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema as targets store it: timestamps in microseconds, instants in UTC.

    An instant is the same in every time zone; Delta Lake and the owner file of a directory know
    only UTC.
    """
    return with_plain_types(
        schema,
        lambda dtype: (
            type_in_utc(pa.timestamp("us", dtype.tz)) if pa.types.is_timestamp(dtype) else dtype
        ),
    )


def instants_in_utc(schema: pa.Schema) -> pa.Schema:
    """Return a schema with instants in UTC, so that time zones make no difference."""
    return with_plain_types(schema, type_in_utc)


_Change: TypeAlias = "Callable[[pa.DataType], pa.DataType]"


def with_plain_types(schema: pa.Schema, change: _Change) -> pa.Schema:
    """Return a schema with `change` applied to all types, at any depth, from the inside out."""
    return pa.schema(
        [
            pa.field(field.name, _with_leaves_changed(field.type, change), nullable=field.nullable)
            for field in schema
        ]
    )


def _with_leaves_changed(dtype: pa.DataType, change: _Change) -> pa.DataType:
    """Return a type with `change` applied to it and in it; dictionaries become their values."""

    def inner(field: pa.Field) -> pa.Field:
        """Change the type of a nested field."""
        return field.with_type(_with_leaves_changed(field.type, change))

    if pa.types.is_dictionary(dtype):
        return _with_leaves_changed(dtype.value_type, change)
    if pa.types.is_list(dtype):
        return pa.list_(inner(dtype.value_field))
    if pa.types.is_large_list(dtype):
        return pa.large_list(inner(dtype.value_field))
    if pa.types.is_fixed_size_list(dtype):
        return change(pa.list_(inner(dtype.value_field), dtype.list_size))
    if pa.types.is_struct(dtype):
        return pa.struct([inner(field) for field in dtype])
    if pa.types.is_map(dtype):
        return pa.map_(
            inner(dtype.key_field), inner(dtype.item_field), keys_sorted=dtype.keys_sorted
        )
    return change(dtype)


def cast_batches(
    output: EpochOutput, schema: pa.Schema, sink: str, needed: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield an epoch's batches, cast to `schema` without loss.

    Rows that an earlier flow staged have that flow's columns. They are converted by name: columns
    that are gone are left out, new ones are null; raises if one of the `needed` ones is new.
    """
    missing = [name for name in needed if name not in output.schema.names]
    if missing:
        raise SinkError(
            f"Sink {sink!r}, epoch {output.epoch}: the rows were made by an earlier flow, without "
            f"column {missing[0]!r}, which now tells rows apart.",
            remedy="Start the earlier flow once more, which delivers this epoch; then this one.",
            sink=sink,
            epoch=output.epoch,
            columns=missing,
        )
    for batch in output.batches():
        if batch.schema.equals(schema):
            yield batch
            continue
        try:
            yield _checked_cast(schema, batch, output.schema.names)
        except (pa.ArrowInvalid, ValueError) as error:
            raise SinkError(
                f"Sink {sink!r}, epoch {output.epoch}: the rows do not fit the declared columns: "
                f"{error}.",
                remedy="Cast or round the column in the flow, before the sink.",
                sink=sink,
                epoch=output.epoch,
            ) from error


def _checked_cast(schema: pa.Schema, batch: pa.RecordBatch, announced: list[str]) -> pa.RecordBatch:
    """Return a batch cast to `schema`; raise unless its columns have the names `announced`."""
    if batch.schema.names != announced:
        raise ValueError(f"columns {batch.schema.names} where {announced} were announced")
    return with_columns_of(schema, batch)


def with_columns_of(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with the columns of `schema`, by name: others are dropped, new ones null."""
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def join_small_batches(
    batches: Iterable[pa.RecordBatch],
    *,
    rows: int = GATHERED_ROWS,
    size_bytes: int = GATHERED_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in larger batches, of `rows` rows or `size_bytes`, in the same order.

    A batch that large stays as it is: joined, texts of 2 GiB would be too many for one column. An
    epoch comes in several batches per lane, which would make as many tiny row groups.
    """
    batches_held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if batches_held and held_bytes + batch.nbytes > 2 * size_bytes:
            yield pa.concat_batches(batches_held)
            batches_held, held_rows, held_bytes = [], 0, 0
        batches_held.append(batch)
        held_rows += batch.num_rows
        held_bytes += batch.nbytes
        if held_rows >= rows or held_bytes >= size_bytes:
            yield pa.concat_batches(batches_held)
            batches_held, held_rows, held_bytes = [], 0, 0
    if batches_held:
        yield pa.concat_batches(batches_held)


def rows_to_write(
    output: EpochOutput,
    schema: pa.Schema,
    keys: Sequence[str],
    sink: str,
    kind: Kind = "rows",
    *,
    version: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield an epoch's rows in larger batches; if they are upserts by `keys`, each key's last one.

    A merge refuses to change a row twice, and inserts a new one as often as it comes. With `keys`,
    changes of a table are netted: `schema` has the column ``change``, and deletes come first.
    `version`: column by which rows of a key are ordered; ``None``: they are in order.
    """
    if not keys:
        return join_small_batches(cast_batches(output, schema, sink))
    if kind == "rows" and version is None:
        return join_small_batches(without_replaced_rows(output, schema, keys, sink))
    needed = [*keys, *([] if version is None else [version])]
    needed += [] if kind == "rows" else [CHANGE.name]

    def read() -> Iterable[pa.RecordBatch]:
        """Return the changes, the same ones at every call."""
        return cast_batches(output, schema, sink, needed)

    are_few = output.num_rows <= GATHERED_ROWS
    return join_small_batches(netted_rows(read, keys, kind, version=version, are_few=are_few))


def split_batch(batch: _Rows, *, rows: int, size_bytes: int) -> Iterator[_Rows]:
    """Yield parts of a batch of at most `rows` rows and about `size_bytes`."""
    if batch.num_rows <= rows and (batch.nbytes <= size_bytes or batch.num_rows <= 1):
        yield batch
        return
    half = batch.num_rows // 2
    for part in (batch.slice(0, half), batch.slice(half)):
        yield from split_batch(part, rows=rows, size_bytes=size_bytes)


def last_of_each_key(keys: pa.Table) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that no later row with the same key replaces.

    `keys`: N rows of key columns, oldest first. Nulls are equal to nulls, NaN to NaN, 0.0 to -0.0.
    Returns shape ``(N,)``: whether the row is the last one of its key.

    Examples
    --------
    >>> last_of_each_key(pa.table({"k": ["a", "b", "a"]})).tolist()
    [False, True, True]
    """
    mask = np.zeros(keys.num_rows, np.bool_)
    names = [str(position) for position in range(keys.num_columns)]
    numbered = pa.array(np.arange(keys.num_rows))
    rows = _normalised_floats(keys).rename_columns(names).append_column("row", numbered)
    last = rows.group_by(names, use_threads=False).aggregate([("row", "max")])
    mask[last.column("row_max").to_numpy()] = True
    return mask


def has_key_among(keys: pa.Table, others: pa.Table) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows of `keys` that are in `others`, which has the same columns.

    Returns shape ``(N,)`` for N rows of `keys`. Equality is that of `last_of_each_key`.

    Examples
    --------
    >>> has_key_among(pa.table({"k": ["a", "b", "a"]}), pa.table({"k": ["a", "c"]})).tolist()
    [True, False, True]
    """
    mask = np.zeros(keys.num_rows, np.bool_)
    names = [str(position) for position in range(keys.num_columns)]
    numbered = pa.array(np.arange(keys.num_rows + others.num_rows))
    rows = _normalised_floats(pa.concat_tables([keys, others])).rename_columns(names)
    groups = (
        rows.append_column("row", numbered)
        .group_by(names, use_threads=False)
        .aggregate([("row", "list"), ("row", "max")])
    )
    shared = groups.filter(pc.greater_equal(groups.column("row_max"), keys.num_rows))
    positions = pc.list_flatten(shared.column("row_list")).to_numpy()
    mask[positions[positions < keys.num_rows]] = True
    return mask


def _normalised_floats(rows: _Rows, names: Iterable[str] | None = None) -> _Rows:
    """Return rows whose equal floats have equal bits; `names`: the columns to change."""
    for name in rows.schema.names if names is None else names:
        position = rows.schema.get_field_index(name)
        field = rows.schema.field(position)
        if pa.types.is_floating(field.type):
            column = rows.column(position)
            if isinstance(column, pa.ChunkedArray):
                column = column.combine_chunks()
            rows = rows.set_column(position, field, canonical_floats(column))
    return rows


def without_replaced_rows(
    output: EpochOutput, schema: pa.Schema, keys: Sequence[str], sink: str
) -> Iterator[pa.RecordBatch]:
    """Yield an epoch's batches without rows that a later row of the same key replaces.

    Equal floats in keys get equal bits. Reads the output twice, so that only the key columns are in
    memory at once.
    """
    key_schema = pa.schema([schema.field(name) for name in keys])
    key_batches = [batch.select(list(keys)) for batch in cast_batches(output, schema, sink, keys)]
    mask = last_of_each_key(pa.Table.from_batches(key_batches, schema=key_schema))
    del key_batches
    start = 0
    for batch in cast_batches(output, schema, sink):
        part = mask[start : start + batch.num_rows]
        start += batch.num_rows
        alike = _normalised_floats(batch, keys)
        yield alike if part.all() else alike.filter(pa.array(part))
