"""Rows of an Iceberg table: a snapshot, then the files or the changes of later snapshots.

A position is a place in the history of a branch (`godwit.connect.iceberg.history`).  Columns are
known by their field ids, so a column that is renamed meanwhile is read on under its former name.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Unpack

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import _pyarrow_schema_ensure_small_types, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import ManifestGroupPlanner

from godwit.columns.types import to_schema
from godwit.connect.files.file_types import common_schema
from godwit.connect.iceberg.filters import columns_cut_with_overflow, expression_of
from godwit.connect.iceberg.history import MAX_STEPS, History, IcebergPiece, SnapshotPlace, Step
from godwit.connect.iceberg.rows import Access, IcebergPieceReader, place_of_table
from godwit.connect.lakes.table_pieces import PieceSplitter, epoch_end, pieces_between
from godwit.connect.lakes.table_rows import TableRows
from godwit.model.errors import GodwitError, SourceError
from godwit.model.naming import listing
from godwit.model.secrets import Secrets, shown_uri
from godwit.sources.source import Lag, Source, Split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from godwit.connect.files.directory import File
    from godwit.connect.files.file_formats import FilePlace
    from godwit.connect.lakes.table_rows import TableArguments
    from godwit.sources.source import Position

_MAX_FORMAT_VERSION: Final = 3


class IcebergSource(Source):
    """Rows or changes of an Iceberg table (options: `godwit.connect.iceberg.read.iceberg`)."""

    def __init__(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, str],
        snapshot: int | None,
        tag: str | None,
        branch: str,
        existing: bool,
        keys: Sequence[str] | None,
        whole_snapshots: bool,
        **rows: Unpack[TableArguments],
    ) -> None:
        self._table_name = table
        self._properties = dict(catalog) if isinstance(catalog, Mapping) else {}
        self._catalog_name = (
            catalog if isinstance(catalog, str) else self._properties.pop("name", "default")
        )
        self._secrets = Secrets.of_values(self._properties)
        for text in self._properties.values():
            self._secrets |= Secrets.of_uri(str(text))
        if snapshot is not None and tag is not None:
            raise SourceError(
                f"The source of the Iceberg table {table!r} has both snapshot= and tag=.",
                remedy="Give only one of them.",
            )
        self._rows = TableRows.checked(
            rows,
            format_name="Iceberg",
            table=("table", table),
            version="snapshot",
            whole=whole_snapshots,
        )
        if self._rows.signed:
            self.kind = "changes"
        self._first, self._start_tag, self._branch, self._reads_existing = (
            snapshot,
            tag,
            branch,
            existing,
        )
        self._keys = None if keys is None else tuple(keys)
        if keys is not None:
            self.table_keys = tuple(keys)
        self._reader: IcebergPieceReader | None = None
        self._schema = pa.schema([])
        self._start_position: Position | None = None
        self._forget_table()

    def _forget_table(self) -> None:
        """Clear the driver's caches of the table."""
        self._catalog: Catalog | None = None
        self._access: Access | None = None
        self._history: History | None = None
        self._known_pieces: OrderedDict[Step, list[IcebergPiece]] = OrderedDict()
        self._splitter = PieceSplitter[IcebergPiece](self)

    def __repr__(self) -> str:
        return f"<{self.identity}>"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the driver's caches; copies only read splits."""
        driver = {"_catalog", "_access", "_history", "_known_pieces", "_splitter"}
        return {name: value for name, value in self.__dict__.items() if name not in driver}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_table()

    @property
    def identity(self) -> str:
        """Kind of rows, table, branch and catalog, without credentials."""
        rows = "changes" if self._rows.signed else "rows"
        uri = shown_uri(str(self._properties.get("uri", "")))
        branch = "" if self._branch == "main" else f", branch {self._branch}"
        return (
            f"{rows} of the Iceberg table {self._table_name} in {uri or self._catalog_name}{branch}"
        )

    @property
    def datasets(self) -> tuple[str, ...]:
        """The table, after its catalog."""
        return (f"iceberg://{self._catalog_name}/{self._table_name}",)

    @property
    def places(self) -> tuple[str, ...]:
        """The table, if the main branch is read, which is the one that sinks write to."""
        if self._branch != "main":
            return ()
        return (place_of_table(self._properties, self._catalog_name, self._table_name),)

    # -- the table --------------------------------------------------------------------------------

    def _load_newest(self) -> Table:
        """Return the newest version of the table; raise if it cannot be read."""
        with self._translating_errors("table"):
            try:
                if self._catalog is None:
                    self._catalog = load_catalog(self._catalog_name, **self._properties)
                table = self._catalog.load_table(self._table_name)
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                raise SourceError(
                    f"There is no Iceberg table {self._table_name!r}.",
                    remedy="Check its name and the catalog; create the table first.",
                    table=self._table_name,
                ) from error
        version = table.metadata.format_version
        if version > _MAX_FORMAT_VERSION:
            raise SourceError(
                f"The Iceberg table {self._table_name!r} has format version {version}, but only "
                f"versions up to {_MAX_FORMAT_VERSION} are supported.",
                remedy="Read a table of an earlier format.",
                table=self._table_name,
            )
        if "encryption.key-id" in table.properties:
            raise SourceError(
                f"The Iceberg table {self._table_name!r} is encrypted, which is not supported.",
                remedy="Read a copy that is not encrypted.",
                table=self._table_name,
            )
        return table

    def _newest_history(self) -> History:
        """Return the history of the newest version of the table."""
        table = self._load_newest()
        metadata = table.metadata
        self._check_columns(metadata)
        self._access = Access(
            properties=dict(table.io.properties),
            name_mapping=metadata.name_mapping(),
            format_version=metadata.format_version,
        )
        if self._history is not None and self._history.metadata.table_uuid != metadata.table_uuid:
            self._known_pieces.clear()
        self._history = History(
            metadata,
            table.io,
            shown=self._table_name,
            branch=self._branch,
            changes=self._rows.signed,
            on_skip=self._report_skipped if self._rows.skips else None,
            may_have_rows=self._file_test(metadata, table),
            known=self._known_pieces,
        )
        return self._history

    def _report_skipped(self, snapshot: int) -> None:
        """Report a snapshot that is skipped."""
        self.report(
            f"Snapshot {snapshot} of the Iceberg table {self._table_name!r} updates or deletes "
            "rows, and is skipped."
        )

    def _file_test(self, metadata: TableMetadata, table: Table) -> Callable[[DataFile], bool]:
        """Return a test for files that may have rows for the filters, by partition and metrics."""
        if not self._rows.filters:
            return lambda _: True
        columns, newest = self._look_up_columns().columns, metadata.schema()
        names = {name: newest.find_column_name(field.field_id) for name, field in columns.items()}

        def planner_of(names: Mapping[str, str | None]) -> ManifestGroupPlanner:
            expression = expression_of(self._rows.filters, names, newest)
            return ManifestGroupPlanner(metadata, table.io, expression)

        metrics_may_match = planner_of(names)._build_metrics_evaluator()  # noqa: SLF001  the library's own test
        partitions: dict[int, Callable[[DataFile], bool]] = {}

        def partition_test(spec_id: int) -> Callable[[DataFile], bool]:
            unsafe = columns_cut_with_overflow(metadata.specs()[spec_id], newest)
            planner = planner_of(
                {
                    column_name: None if current_name in unsafe else current_name
                    for column_name, current_name in names.items()
                }
            )
            try:
                return planner._build_partition_evaluator(spec_id)  # noqa: SLF001
            except OverflowError:  # the library steps beyond the first or the last moment
                return lambda _: True

        def may_have_rows(file: DataFile) -> bool:
            if file.spec_id not in partitions:
                partitions[file.spec_id] = partition_test(file.spec_id)
            return partitions[file.spec_id](file) and metrics_may_match(file)

        return may_have_rows

    # -- columns ----------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """Columns that were selected, by default those of the newest version."""
        self._look_up_columns()
        return self._schema

    def _look_up_columns(self) -> IcebergPieceReader:
        """Return the reader of the columns; look them up in the table once."""
        if self._reader is not None:
            return self._reader
        newest = self._load_newest().schema()
        shown = self._table_name
        output_names = self._rows.names
        if output_names is None:
            output_names = tuple(field.name for field in newest.fields)
        fields = {field.name: field for field in newest.fields}
        read_names = list(dict.fromkeys([*output_names, *self._rows.filtered]))
        if missing := [name for name in read_names if name not in fields]:
            raise SourceError(
                f"The Iceberg table {shown!r} has no columns {listing(missing)}; it has "
                f"{listing(list(fields))}.",
                remedy="Correct columns= or filters=.",
                table=shown,
            )
        # Files may lack a required column whose value is that of the partition.
        columns = {name: fields[name].model_copy(update={"required": False}) for name in read_names}
        arrow = schema_to_pyarrow(Schema(*columns.values()), include_field_ids=False)
        arrow = common_schema(_pyarrow_schema_ensure_small_types(arrow))
        types = to_schema(arrow, where=f"The Iceberg table {shown!r}")
        schema = self._rows.schema([types.field(name) for name in output_names], self._keys or ())
        if self._keys is None:
            identifier_names = [
                newest.find_column_name(number) for number in newest.identifier_field_ids
            ]
            names = [name for name in identifier_names if name in schema.names and name is not None]
            self.table_keys = tuple(names) if len(names) == len(identifier_names) else ()
        self._rows.check_filters(types)
        self._schema = schema
        self._reader = IcebergPieceReader(
            columns=columns, types=types, schema=schema, rows=self._rows
        )
        return self._reader

    def _check_columns(self, metadata: TableMetadata) -> None:
        """Raise if the newest version lacks a column that is read, or has changed its type.

        Columns that are new are reported.
        """
        newest = metadata.schema()
        known_ids = {field.field_id for field in self._look_up_columns().columns.values()}
        new_names = [field.name for field in newest.fields if field.field_id not in known_ids]
        if new_names and self._rows.names is None:
            self.report(
                f"The Iceberg table {self._table_name!r} has new columns {listing(new_names)}, "
                "which the query will read after a restart."
            )
        for name, field in self._look_up_columns().columns.items():
            for inner in Schema(field)._lazy_id_to_field.values():  # noqa: SLF001
                current = newest._lazy_id_to_field.get(inner.field_id)  # noqa: SLF001
                if current is None:
                    change = "has been dropped from it"
                elif current.field_type.is_primitive and current.field_type != inner.field_type:
                    change = f"now has type {current.field_type}, not {inner.field_type}"
                else:
                    continue
                raise SourceError(
                    f"The column {name!r} of the Iceberg table {self._table_name!r} {change}.",
                    remedy="Start the query again, to read the columns of the newest version.",
                    table=self._table_name,
                    column=name,
                )

    # -- progress ---------------------------------------------------------------------------------

    def open(self, position: Position | None) -> None:
        """Load the table; raise if reading cannot continue from `position`."""
        self._start_position = None
        history = self._newest_history()
        if position is None:
            self._start_position = self._first_place(history).encoded()
        else:
            start = self._checked_place(history, position)
            steps = history.path(start, self._place_after_newest(history))
            next(iter(steps), None)  # raises if the snapshots in between have gone

    def start(self) -> Position:
        """Return the place before the first row of a new query."""
        if self._start_position is None:
            self._start_position = self._first_place(
                self._history or self._newest_history()
            ).encoded()
        return self._start_position

    def _first_place(self, history: History) -> SnapshotPlace:
        """Return the place at which a new query begins."""
        metadata, number = history.metadata, self._first
        if self._start_tag is not None:
            ref = metadata.refs.get(self._start_tag)
            if ref is None:
                raise SourceError(
                    f"The Iceberg table {self._table_name!r} has no tag {self._start_tag!r}.",
                    remedy=f"Give one of {listing(list(metadata.refs))}, or snapshot=.",
                    table=self._table_name,
                )
            number = ref.snapshot_id
        elif number is None:
            number = history.head
        elif metadata.snapshot_by_id(number) is None:
            raise SourceError(
                f"The Iceberg table {self._table_name!r} has no snapshot {number}.",
                remedy="It may have expired. Give a later one, or omit snapshot=.",
                table=self._table_name,
            )
        place = SnapshotPlace(table=str(metadata.table_uuid), snapshot=number)
        return replace(place, part="all") if self._reads_existing and number is not None else place

    def _place_after_newest(self, history: History) -> SnapshotPlace:
        """Return the place after the newest snapshot of the branch."""
        return SnapshotPlace(table=str(history.metadata.table_uuid), snapshot=history.head)

    def _checked_place(self, history: History, position: Position) -> SnapshotPlace:
        """Return the place of a position; raise if it belongs to another table."""
        place = SnapshotPlace.decoded(position)
        if place.table != str(history.metadata.table_uuid):
            raise SourceError(
                f"The Iceberg table {self._table_name!r} was dropped and created again since the "
                "query read it.",
                remedy="Start a new query, with a new checkpoint; or give the source another name "
                "in the flow, so that it reads the new table from its start.",
                table=self._table_name,
            )
        return place

    def end(self, position: Position) -> Position:
        """Return the place after the newest snapshot."""
        history = self._newest_history()
        self._checked_place(history, position)
        return self._place_after_newest(history).encoded()

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the position after an epoch of at most `limit` rows, not beyond `until`."""
        history = self._history or self._newest_history()
        if until is not None:
            begin, target = self._checked_place(history, position), SnapshotPlace.decoded(until)
        else:
            begin = SnapshotPlace.decoded(position)
            if not begin.part and begin == self._place_after_newest(history):
                history = self._newest_history()
            begin, target = (
                self._checked_place(history, position),
                self._place_after_newest(history),
            )
        with self._translating_errors("metadata"):
            versions = history.versions(begin, target)
            limits = self._rows.limits(limit, MAX_STEPS)
            return epoch_end(versions, begin, limits, self._splitter.num_rows).place.encoded()

    def precedes(self, position: Position, other: Position) -> bool:
        """Return whether `position` is an earlier point of the same step."""
        earlier, later = SnapshotPlace.decoded(position), SnapshotPlace.decoded(other)
        if (earlier.table, earlier.snapshot) != (later.table, later.snapshot) or not earlier.part:
            return False
        if not later.part:
            return True
        is_same_step = earlier.step == later.step
        return is_same_step and (earlier.file, earlier.row) < (later.file, later.row)

    # -- splits -----------------------------------------------------------------------------------

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return about `parallelism` splits: groups of small files, and parts of large ones."""
        history = self._history or self._newest_history()
        with self._translating_errors("metadata"):
            place = self._checked_place(history, begin)
            pieces, skipped = pieces_between(history.versions(place, SnapshotPlace.decoded(end)))
        filtered = bool(self._rows.filters)
        splits = self._splitter.splits(pieces, parallelism, skipped=skipped, filtered=filtered)
        return [replace(split, payload=(self._access, split.payload)) for split in splits]

    def file_of(self, piece: IcebergPiece) -> tuple[FilePlace, File]:
        """Return the location of a piece's file."""
        assert self._access is not None, "known after the table is loaded"
        return self._access.file(piece.path, piece.size)

    def reading_piece(self, piece: IcebergPiece) -> AbstractContextManager[None]:
        """Translate errors of a block that reads a piece's file."""
        return self._translating_errors(f"file {piece.path!r}", piece)

    # -- rows -------------------------------------------------------------------------------------

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split; raise if one of its files is missing or unreadable."""
        reader = self._look_up_columns()
        access, pieces = split.payload
        for piece in pieces:
            with self.reading_piece(piece):
                yield from reader.read(access, piece, columns)

    @contextlib.contextmanager
    def _translating_errors(self, what: str, piece: IcebergPiece | None = None) -> Iterator[None]:
        """Translate errors of a block that reads metadata or a file."""
        try:
            yield
        except GodwitError:
            raise
        except FileNotFoundError as error:
            of_snapshot = "" if piece is None else f" of snapshot {piece.snapshot}"
            raise SourceError(
                f"The {what}{of_snapshot} of the Iceberg table {self._table_name!r} no longer "
                "exists: its snapshot expired before it was read, or its files were removed by "
                "hand.",
                remedy="Start a new query, with a new checkpoint, from the newest snapshot. Keep "
                "snapshots for longer than a query stops or lags behind "
                "(history.expire.max-snapshot-age-ms).",
                table=self._table_name,
            ) from self._secrets.cause(error)
        except Exception as error:  # noqa: BLE001  catalogs' and stores' errors share no base
            text = (str(error).splitlines() or [type(error).__name__])[0].removesuffix(".")
            raise SourceError(
                f"The {what} of the Iceberg table {self._table_name!r} cannot be read: "
                f"{self._secrets.hide(text)}.",
                remedy="Check the catalog's properties (catalog=...), the credentials, and "
                "whether other engines can read the table.",
                table=self._table_name,
            ) from self._secrets.cause(error)

    # -- reports ----------------------------------------------------------------------------------

    def lag(self, position: Position) -> Lag:
        """Return the lag to the newest known snapshot: rows, bytes, and the oldest one's time."""
        if (history := self._history) is None:
            return Lag()
        rows: int | None = 0
        size, oldest = 0, None
        try:
            place = self._checked_place(history, position)
            for step, _, _, _ in history.path(place, self._place_after_newest(history)):
                added = history.added(step)
                rows = None if added is None or rows is None else rows + added[0]
                size += 0 if added is None else added[1]
                if oldest is None and added != (0, 0) and step.snapshot is not None:
                    snapshot = history.metadata.snapshot_by_id(step.snapshot)
                    oldest = None if snapshot is None else snapshot.timestamp_ms * 1000
        except (GodwitError, OSError):
            return Lag()
        return Lag(rows=rows, size_bytes=size, oldest_us=oldest)

    def describe(self, position: Position) -> dict[str, Any]:
        place = SnapshotPlace.decoded(position)
        if not place.part:
            return {"snapshot": place.snapshot}
        name = "snapshot" if place.part == "step" else "all rows of snapshot"
        return {name: place.snapshot, "reading": f"file {place.file} at row {place.row:,}"}

    def close(self) -> None:
        """Close the catalog."""
        if self._catalog is not None:
            self._catalog.close()
        self._forget_table()
