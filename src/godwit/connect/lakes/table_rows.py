"""Rows of a versioned table: the options of its source, and the columns that it adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from godwit.columns.signed import CHANGE
from godwit.connect.lakes.row_filters import checked_filters
from godwit.connect.lakes.table_pieces import EpochLimits
from godwit.model.errors import SourceError
from godwit.model.naming import check_number, listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow.compute as pc

    from godwit.connect.lakes.row_filters import Filters, Predicate
    from godwit.connect.lakes.table_pieces import TablePiece

TIMESTAMP: Final = "timestamp"
"""Kind of an added column: the time of a row's commit; the other kind is the commit's number."""

_INCLUDED: Final = {TIMESTAMP: pa.timestamp("us", "UTC")}


class TableArguments(TypedDict):
    """Options that all sources of versioned tables have."""

    changes: bool
    columns: Sequence[str] | None
    filters: Filters | None
    include: Sequence[str] | Mapping[str, str]
    on_change: str
    max_rows_per_epoch: int | None
    max_files_per_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Options of a versioned table's source that select the rows to read; can be pickled.

    Construct by `checked`.
    """

    where: str  # names the source in errors
    context: Mapping[str, str]  # of errors
    version: str  # kind of a further column: the number of a row's commit
    signed: bool  # rows have a sign
    skips: bool  # leave out versions that update or delete rows
    names: tuple[str, ...] | None  # of columns; None: all
    filters: tuple[tuple[Predicate, ...], ...]
    include: Mapping[str, str]  # kind → name
    max_rows: int | None
    max_files: int | None
    whole: bool  # an epoch has all of a version or nothing

    @classmethod
    def checked(
        cls,
        arguments: TableArguments,
        *,
        format_name: str,
        table: tuple[str, str],
        version: str,
        whole: bool,
    ) -> TableRows:
        """Return the options of a source; raise `SourceError` for invalid ones.

        `format_name`: of the table; `table`: field of errors and name of the table; `version`:
        the word for its versions.
        """
        for option in ("max_rows_per_epoch", "max_files_per_epoch"):
            if (value := arguments[option]) is not None:
                check_number(option, value, least=1, error=SourceError)
        changes, on_change = arguments["changes"], arguments["on_change"]
        article = "An" if format_name[0] in "AEIOU" else "A"
        if on_change not in {"refuse", "skip"} or (changes and on_change != "refuse"):
            raise SourceError(
                f"on_change={on_change!r} is not valid for {article.lower()} {format_name} "
                f"source{' of changes' if changes else ''}.",
                remedy=f'Give "refuse", or "skip" to skip {version}s that update or delete rows; '
                "a source of changes reads them.",
            )
        names, include = arguments["columns"], arguments["include"]
        included = [include] if isinstance(include, str) else include
        extra_columns = (
            dict(included) if isinstance(included, Mapping) else {name: name for name in included}
        )
        possible = (version, *_INCLUDED)
        if unknown := [kind for kind in extra_columns if kind not in possible]:
            raise SourceError(
                f"{article} {format_name} source cannot include {listing(unknown)}.",
                remedy=f"Give any of {listing(list(possible))}, or a mapping that renames them.",
            )
        where = f"The source of the {format_name} table {table[1]!r}"
        return cls(
            where=where,
            context=dict([table]),
            version=version,
            signed=changes,
            skips=on_change == "skip",
            names=None if names is None else (names,) if isinstance(names, str) else tuple(names),
            filters=checked_filters(arguments["filters"], where),
            include={str(kind): str(name) for kind, name in extra_columns.items()},
            max_rows=arguments["max_rows_per_epoch"],
            max_files=arguments["max_files_per_epoch"],
            whole=whole,
        )

    def limits(self, limit: int | None, versions: int | None = None) -> EpochLimits:
        """Return the limits of an epoch of at most `limit` rows."""
        rows = [number for number in (limit, self.max_rows) if number is not None]
        return EpochLimits(
            rows=min(rows) if rows else None,
            files=self.max_files,
            whole=self.whole,
            versions=versions,
        )

    @property
    def filtered(self) -> list[str]:
        """Names of the columns that filters compare."""
        return list(dict.fromkeys(name for group in self.filters for name, _, _ in group))

    @property
    def expression(self) -> pc.Expression:
        """Filters as an expression of Arrow."""
        return pq.filters_to_expression([list(group) for group in self.filters])

    def check_filters(self, columns: pa.Schema) -> None:
        """Raise `SourceError` if the filters cannot be compared with columns."""
        if not self.filters:
            return
        try:
            columns.empty_table().filter(self.expression)
        except (pa.ArrowException, TypeError, ValueError) as error:
            text = str(error).splitlines()[0].removesuffix(".")
            raise SourceError(
                f"The filters of the {self.where.removeprefix('The ')} do not fit its columns: "
                f"{text}.",
                remedy="Compare columns with values of their type, such as dates with "
                "datetime.date and times with a datetime that has a time zone.",
                **self.context,
            ) from error

    def schema(self, columns: Iterable[pa.Field], keys: Iterable[str]) -> pa.Schema:
        """Return the columns of the rows; raise `SourceError` if they do not fit together.

        `columns`: those of the table that are read.
        """
        fields = [*columns]
        fields += [pa.field(name, self._type_of(kind)) for kind, name in self.include.items()]
        fields += [CHANGE] if self.signed else []
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise SourceError(
                f"{self.where} would have several columns with the same name: {listing(names)}.",
                remedy="Omit the table's column by columns=, or give another name in include=. A "
                f"source of changes adds the column {CHANGE.name!r}.",
                **self.context,
            )
        if missing := [name for name in keys if name not in names]:
            raise SourceError(
                f"{self.where} has keys= {listing(missing)}, which are not among its columns.",
                remedy="Use columns that the source reads.",
                **self.context,
            )
        return pa.schema(fields)

    def _type_of(self, kind: str) -> pa.DataType:
        """Return the type of an added column."""
        return _INCLUDED.get(kind, pa.int64())

    def completed(
        self,
        values: dict[str, pa.Array],
        count: int,
        piece: TablePiece,
        commit: int,
        schema: pa.Schema,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of a piece, with the columns of `schema`, for which the filters hold.

        `values`: columns of the table, those of filters too; `commit`: number of the commit.
        """
        facts: dict[str, Any] = {self.version: commit, TIMESTAMP: piece.timestamp_ms * 1000}
        for kind, name in self.include.items():
            values[name] = pa.repeat(pa.scalar(facts[kind], self._type_of(kind)), count)
        if self.signed:
            values[CHANGE.name] = pa.repeat(pa.scalar(piece.sign, CHANGE.type), count)
        if not self.filters:
            yield pa.RecordBatch.from_arrays([values[name] for name in schema.names], schema=schema)
            return
        names = dict.fromkeys([*schema.names, *self.filtered])
        rows = pa.table({name: values[name] for name in names}).filter(self.expression)
        for batch in rows.select(schema.names).to_batches():
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
