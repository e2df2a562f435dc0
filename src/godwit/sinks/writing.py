"""Ways to write rows: appended, by key, by key and version, as a history, or as changes.

`Writing` has the user's choices, and `TargetLayout` their result for the rows of a stream: the
columns of the target, those that identify its rows, and one epoch's rows as they are written.

With a version (``order_by=``) a row is written unless the target has a newer one of its key.  So a
deleted row stays, with its version and a mark in a column ``deleted``: else an older row that comes
late would be there again.  A history (`godwit.connect.delta.history`) has a row for each version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.columns.signed import CHANGE
from godwit.model.errors import SinkError
from godwit.model.naming import did_you_mean, listing
from godwit.sinks.changes import check_of_rows, context_of_table, rejections_of, rows_schema
from godwit.sinks.rows import require_columns, rows_to_write, upsert_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from godwit.columns.signed import Kind
    from godwit.plan.staging import Rejections, RowCheck
    from godwit.sinks.sink import EpochOutput, SinkContext

Mode: TypeAlias = Literal["append", "upsert", "changes", "history"]

DELETED: Final = "deleted"
HISTORY: Final = ("valid_from", "valid_to", "current")


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Way to write rows, as the user sets it; the sinks' functions have the parameters."""

    mode: str = "append"
    keys: str | Sequence[str] | None = None
    order_by: str | None = None
    rename: Mapping[str, str] | None = None

    def check(self, subject: str, modes: Sequence[str] = ("append", "upsert")) -> None:
        """Raise for a mode that is not one of `modes`, or options that it does not take."""
        if self.mode not in modes:
            raise SinkError(
                f"{subject}: mode {self.mode!r} is not known.", remedy=f"Use {' or '.join(modes)}."
            )
        by_key = [mode for mode in modes if mode in {"upsert", "history"}]
        renamed: Mapping[str, object] = self.rename or {}
        for option, value in (("keys", self.keys), ("order_by", self.order_by)):
            if value is not None and self.mode not in by_key:
                raise SinkError(
                    f"{subject}: {option} mean{'s' * (option != 'keys')} nothing when rows are "
                    "appended.",
                    remedy=f"Use mode={' or '.join(map(repr, by_key))}, or leave {option} out.",
                )
        columns = {"order_by": self.order_by, **{f"rename {n!r}": c for n, c in renamed.items()}}
        for option, name in columns.items():
            if name is not None and not (isinstance(name, str) and name):
                raise SinkError(
                    f"{subject}: {option} is {name!r}, and not the name of a column.",
                    remedy='Give one name, as in order_by="updated_at".',
                )
        if self.mode == "history" and self.order_by is None:
            raise SinkError(
                f"{subject}: a history needs a column that says since when a row is valid.",
                remedy='Name a column with a time or a version, as in order_by="updated_at".',
            )
        unknown = [name for name in self.rename or {} if name not in self._added]
        if unknown:
            raise SinkError(
                f"{subject}: rename names {unknown[0]!r}, which the sink does not add.",
                remedy=f"{did_you_mean(unknown[0], self._added)}It adds "
                f"{listing(self._added) or 'none'}; rename others in a map before the sink.",
            )

    @property
    def _added(self) -> tuple[str, ...]:
        """Columns that the target has beside those of the rows, as they are called by default."""
        if self.mode == "history":
            return HISTORY
        return () if self.order_by is None else (DELETED,)

    def layout(self, context: SinkContext, *, deletes: bool = True) -> TargetLayout:
        """Return how rows are written; raise if that does not fit them.

        `deletes`: the sink can delete rows by key.
        """
        by_key = self.mode in {"upsert", "history"}
        if self.mode == "changes" and (context.kind == "rows" or context.complete):
            what = "a complete result" if context.complete else "rows that are not changes"
            raise SinkError(
                f"Sink {context.name!r} is to write changes of a table, and gets {what}.",
                remedy='Use mode="append"; or output="changes", latest() or as_changes() before '
                "the sink.",
                sink=context.name,
            )
        if not deletes:
            keys = upsert_keys(context, self.keys) if by_key else ()
            return TargetLayout(source=context, context=context, row_keys=keys)
        table = context_of_table(context, by_key=by_key)
        keys = upsert_keys(table, self.keys) if by_key else ()
        if self.order_by is None:
            return TargetLayout(source=context, context=table, row_keys=keys)
        return self._with_versions(context, table, keys, self.order_by)

    def _with_versions(
        self, context: SinkContext, table: SinkContext, keys: tuple[str, ...], order_by: str
    ) -> TargetLayout:
        """Return the layout of a target that has the version of each row."""
        require_columns(table, [order_by], "order_by")
        dtype = table.schema.field(order_by).type
        problem = None
        if context.complete:
            problem = "versions, and gets a complete result, which replaces all rows"
        elif order_by in keys:
            problem = f"order_by={order_by!r}, which is one of its keys"
        elif not _is_ordered(dtype):
            problem = f"order_by={order_by!r}, a column of type {dtype}, whose order is not certain"
        elif self.mode == "history" and context.kind == "changes":
            problem = "a history, and gets changes, which do not say when a row was deleted"
        if problem is not None:
            raise SinkError(
                f"Sink {context.name!r} is to write {problem}.",
                remedy="Order rows by a column of integers, decimals, dates or timestamps that is "
                "not a key. A history is made of rows, or of upserts such as change events before "
                "latest().",
                sink=context.name,
            )
        # A deleted row has no values.
        columns = [
            field_ if field_.name in keys else field_.with_nullable(True) for field_ in table.schema
        ]
        added_names = dict(zip(self._added, self._added, strict=True)) | dict(self.rename or {})
        if self.mode == "history":
            added = [
                pa.field(added_names["valid_to"], dtype),
                pa.field(added_names["current"], pa.bool_()),
            ]
            version = added_names["valid_from"]
            columns = [
                field_.with_name(version) if field_.name == order_by else field_
                for field_ in columns
            ]
        else:
            added = [] if context.kind == "rows" else [pa.field(added_names[DELETED], pa.bool_())]
            version = order_by
        schema = pa.schema([*columns, *added])
        if len(set(schema.names)) < len(schema.names):
            repeated = next(name for name in schema.names if schema.names.count(name) > 1)
            raise SinkError(
                f"Sink {context.name!r} would have column {repeated!r} twice: its own, and that of "
                "the rows.",
                remedy=f'Name the sink\'s column, as in rename={{"{self._added[0]}": "other"}}.',
                sink=context.name,
            )
        is_history = self.mode == "history"
        kind: Kind = "upserts" if is_history and context.kind != "rows" else "rows"
        return TargetLayout(
            source=context,
            context=replace(table, schema=schema, kind=kind),
            row_keys=keys,
            order_by=order_by,
            version=version,
            added=tuple(field.name for field in added),
            is_history=is_history,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLayout:
    """Rows of a stream, and of the target that they are written to."""

    source: SinkContext  # of the rows of the stream
    # with the columns of the target; of the kind "rows" unless rows are deleted by key
    context: SinkContext
    row_keys: tuple[str, ...]  # columns that identify a row of the stream's table; may be empty
    order_by: str = ""  # column with the version, of the stream and of the target; empty: none
    version: str = ""
    added: tuple[str, ...] = ()  # columns of the target that the stream does not have
    is_history: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that identify a row of the target; empty if rows are appended."""
        return (*self.row_keys, self.version) if self.is_history else self.row_keys

    @property
    def valid_to(self) -> str:
        """Column of a history with the end of a row, which is null while it is valid."""
        return self.added[0]

    @property
    def current(self) -> str:
        """Column of a history that is true for the rows that are valid."""
        return self.added[1]

    def rows_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the rows to write, without what a history computes.

        `schema`: the columns of the target, as it stores them.
        """
        if self.is_history:
            schema = pa.schema([field for field in schema if field.name not in self.added])
        return rows_schema(self.context, schema)

    def rows(self, output: EpochOutput, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield an epoch's rows as they are written: if they have keys, one for each key.

        Of a history they are one for each key and version. `schema`: as for `rows_schema`.
        """
        name = self.context.name
        if not self.order_by:
            columns = rows_schema(self.context, schema)
            yield from rows_to_write(output, columns, self.row_keys, name, self.context.kind)
            return
        columns = pa.schema(
            [
                field.with_name(self.order_by) if field.name == self.version else field
                for field in schema
                if field.name not in self.added
            ]
        )
        if self.source.kind != "rows":
            columns = columns.append(CHANGE)
        keys = (*self.row_keys, self.order_by) if self.is_history else self.row_keys
        rows = rows_to_write(
            output,
            columns,
            keys,
            name,
            self.source.kind,
            version=None if self.is_history else self.order_by,
        )
        written = self.rows_schema(schema)
        for batch in rows:
            columns_of_batch = batch.columns
            if self.added and not self.is_history:
                columns_of_batch = [*batch.columns[:-1], pc.less(batch.columns[-1], 0)]
            yield pa.RecordBatch.from_arrays(columns_of_batch, schema=written)

    def check(self, check: RowCheck) -> RowCheck:
        """Return the check for rows of the stream; `check`: that for rows of the target."""
        if not self.order_by:
            return check_of_rows(check, self.context)
        columns = tuple(
            "" if name in self.added else self.order_by if name == self.version else name
            for name in self.context.schema.names
        )
        of_target = _CheckOfTarget(check=check, columns=columns, schema=self.context.schema)
        inner = check_of_rows(of_target, self.source)
        return _CheckOfVersions(check=inner, column=self.order_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckOfTarget:
    """Check of a target's columns, for rows that lack those that the sink adds; picklable."""

    check: RowCheck
    columns: tuple[str, ...]  # of the rows, for each column of the target; empty if it is added
    schema: pa.Schema

    def __call__(self, rows: pa.RecordBatch) -> Rejections | None:
        columns = []
        for source, dtype in zip(self.columns, self.schema.types, strict=True):
            if source:
                columns.append(rows.column(source))
            else:
                constant = False if pa.types.is_boolean(dtype) else None
                columns.append(pa.repeat(pa.scalar(constant, dtype), rows.num_rows))
        return self.check(pa.RecordBatch.from_arrays(columns, names=self.schema.names))


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckOfVersions:
    """Check of rows, none of which may lack its version, whether deleted or not; picklable."""

    check: RowCheck
    column: str

    def __call__(self, rows: pa.RecordBatch) -> Rejections | None:
        rejections = self.check(rows)
        lacking = np.flatnonzero(
            ~rows.column(self.column).is_valid().to_numpy(zero_copy_only=False)
        )
        if not len(lacking):
            return rejections
        reason = f"column {self.column!r} is null, by which rows are ordered"
        reasons = dict.fromkeys(lacking.tolist(), reason)
        if rejections is not None:
            reasons |= dict(zip(rejections.rows.tolist(), rejections.reasons, strict=True))
        return rejections_of(reasons)


def _is_ordered(dtype: pa.DataType) -> bool:
    """Return whether all targets order values of a type alike."""
    return bool(
        pa.types.is_integer(dtype)
        or pa.types.is_decimal(dtype)
        or pa.types.is_date(dtype)
        or pa.types.is_timestamp(dtype)
    )
