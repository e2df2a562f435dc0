"""Rows of an Iceberg table: a snapshot, then the files or the changes of later snapshots.

A position is a place in the history of a branch (`godwit.connect.iceberg.history`).  Columns are
known by their field ids, so a column that is renamed meanwhile is read on under its former name.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import _pyarrow_schema_ensure_small_types, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import ManifestGroupPlanner

from godwit.columns.signed import CHANGE
from godwit.columns.types import to_schema
from godwit.connect.iceberg.filters import expression_of
from godwit.connect.iceberg.history import MAX_STEPS, History, Piece, Place, Step, cut
from godwit.connect.iceberg.rows import FORMAT, INCLUDED, Access, PieceReader
from godwit.model.errors import GodwitError, SourceError
from godwit.model.naming import check_number, listing
from godwit.model.secrets import Secrets, shown_uri
from godwit.model.text import counted
from godwit.sources.file_formats import FileRange
from godwit.sources.file_types import common_schema
from godwit.sources.row_filters import checked_filters
from godwit.sources.source import Lag, Source, Split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from godwit.sources.file_formats import FileLayout
    from godwit.sources.row_filters import Filters
    from godwit.sources.source import Position

_MIN_SPLIT_BYTES: Final = 64 << 10
_MAX_LAYOUTS: Final = 4096  # remembered
_MAX_FORMAT_VERSION: Final = 3


class IcebergSource(Source):
    """Rows or changes of an Iceberg table (options: `godwit.connect.iceberg.read.iceberg`)."""

    def __init__(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, str],
        changes: bool,
        snapshot: int | None,
        tag: str | None,
        branch: str,
        existing: bool,
        columns: Sequence[str] | None,
        filters: Filters | None,
        include: Sequence[str] | Mapping[str, str],
        keys: Sequence[str] | None,
        on_change: str,
        whole_snapshots: bool,
        max_rows_per_epoch: int | None,
        max_files_per_epoch: int | None,
    ) -> None:
        for option, value in (
            ("max_rows_per_epoch", max_rows_per_epoch),
            ("max_files_per_epoch", max_files_per_epoch),
        ):
            if value is not None:
                check_number(option, value, least=1, error=SourceError)
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
                f"The source of the Iceberg table {table!r} has snapshot= and tag=.",
                remedy="Give one of them.",
            )
        if on_change not in {"refuse", "skip"} or (changes and on_change != "refuse"):
            raise SourceError(
                f"on_change={on_change!r} is not possible for an Iceberg source"
                f"{' of changes' if changes else ''}.",
                remedy='Give "refuse", or "skip" to leave out snapshots that update or delete '
                "rows; a source of changes reads them.",
            )
        self._changes, self._skips = changes, on_change == "skip"
        if changes:
            self.kind = "changes"
        self._first, self._tag, self._branch, self._existing = snapshot, tag, branch, existing
        self._names = None if columns is None else tuple(columns)
        self._filters = checked_filters(filters, f"The source of the Iceberg table {table!r}")
        self._include = _checked_include(include)
        self._keys = None if keys is None else tuple(keys)
        if keys is not None:
            self.table_keys = tuple(keys)
        self._whole = whole_snapshots
        self._max_rows, self._max_files = max_rows_per_epoch, max_files_per_epoch
        self._reader: PieceReader | None = None
        self._schema = pa.schema([])
        self._start: Position | None = None
        self._forget()

    def _forget(self) -> None:
        """Forget what only the driver knows of the table."""
        self._catalog: Catalog | None = None
        self._access: Access | None = None
        self._history: History | None = None
        self._known: OrderedDict[Step, list[Piece]] = OrderedDict()
        self._layouts: OrderedDict[str, FileLayout] = OrderedDict()

    def __repr__(self) -> str:
        return f"<{self.identity}>"

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what the driver knows; copies read splits only."""
        driver = {"_catalog", "_access", "_history", "_known", "_layouts"}
        return {name: value for name, value in self.__dict__.items() if name not in driver}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def identity(self) -> str:
        """Kind of rows, table, branch and catalog, without credentials."""
        rows = "changes" if self._changes else "rows"
        uri = shown_uri(str(self._properties.get("uri", "")))
        branch = "" if self._branch == "main" else f", branch {self._branch}"
        return (
            f"{rows} of the Iceberg table {self._table_name} in {uri or self._catalog_name}{branch}"
        )

    @property
    def datasets(self) -> tuple[str, ...]:
        """The table, after its catalog."""
        return (f"iceberg://{self._catalog_name}/{self._table_name}",)

    # -- the table --------------------------------------------------------------------------------

    def _load(self) -> Table:
        """Return the newest version of the table; raise if it cannot be read."""
        with self._reading("table"):
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
                f"The Iceberg table {self._table_name!r} is of format version {version}, and up to "
                f"{_MAX_FORMAT_VERSION} is read.",
                remedy="Read a table of an earlier format.",
                table=self._table_name,
            )
        if "encryption.key-id" in table.properties:
            raise SourceError(
                f"The Iceberg table {self._table_name!r} is encrypted, which is not read.",
                remedy="Read a copy that is not encrypted.",
                table=self._table_name,
            )
        return table

    def _refresh(self) -> History:
        """Return the history of the newest version of the table."""
        table = self._load()
        metadata = table.metadata
        self._check_columns(metadata)
        self._access = Access(
            properties=dict(table.io.properties),
            name_mapping=metadata.name_mapping(),
            format_version=metadata.format_version,
        )
        if self._history is not None and self._history.metadata.table_uuid != metadata.table_uuid:
            self._known.clear()
        self._history = History(
            metadata,
            table.io,
            shown=self._table_name,
            branch=self._branch,
            changes=self._changes,
            skips=self._skips,
            may_have_rows=self._file_test(metadata, table),
            known=self._known,
        )
        return self._history

    def _file_test(self, metadata: TableMetadata, table: Table) -> Callable[[DataFile], bool]:
        """Return a test for files that may have rows for the filters, by partition and metrics."""
        if not self._filters:
            return lambda _: True
        known, newest = self._look_up_columns().columns, metadata.schema()
        names = {name: newest.find_column_name(field.field_id) for name, field in known.items()}
        expression = expression_of(self._filters, names, newest)
        planner = ManifestGroupPlanner(metadata, table.io, expression)
        metrics = planner._build_metrics_evaluator()  # noqa: SLF001  the library's own test
        partitions: dict[int, Callable[[DataFile], bool]] = {}

        def may_have_rows(file: DataFile) -> bool:
            if file.spec_id not in partitions:
                partitions[file.spec_id] = planner._build_partition_evaluator(file.spec_id)  # noqa: SLF001
            return partitions[file.spec_id](file) and metrics(file)

        return may_have_rows

    # -- columns ----------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """Columns that were chosen, by default those of the newest version."""
        self._look_up_columns()
        return self._schema

    def _look_up_columns(self) -> PieceReader:
        """Return the reader of the columns; look them up in the table once."""
        if self._reader is not None:
            return self._reader
        newest = self._load().schema()
        shown = self._table_name
        chosen = [field.name for field in newest.fields] if self._names is None else self._names
        further = [name for group in self._filters for name, _, _ in group]
        fields = {field.name: field for field in newest.fields}
        missing = [name for name in dict.fromkeys([*chosen, *further]) if name not in fields]
        if missing:
            raise SourceError(
                f"The Iceberg table {shown!r} has no columns {listing(missing)}; it has "
                f"{listing(list(fields))}.",
                remedy="Correct columns= or filters=.",
                table=shown,
            )
        needed = list(dict.fromkeys([*chosen, *further]))
        # Files may lack a required column whose value is that of the partition.
        columns = {name: fields[name].model_copy(update={"required": False}) for name in needed}
        arrow = schema_to_pyarrow(Schema(*columns.values()), include_field_ids=False)
        arrow = common_schema(_pyarrow_schema_ensure_small_types(arrow))
        types = to_schema(arrow, where=f"The Iceberg table {shown!r}")
        rows = [types.field(name) for name in chosen]
        rows += [pa.field(name, INCLUDED[kind]) for kind, name in self._include.items()]
        rows += [CHANGE] if self._changes else []
        names = [field.name for field in rows]
        if len(set(names)) < len(names):
            raise SourceError(
                f"The source of the Iceberg table {shown!r} would have two columns of one name: "
                f"{listing(names)}.",
                remedy="Leave the table's column out, by columns=, or give another name in "
                f"include=. A source of changes adds the column {CHANGE.name!r}.",
                table=shown,
            )
        if self._keys is None:
            known = [newest.find_column_name(number) for number in newest.identifier_field_ids]
            self.table_keys = tuple(name for name in known if name in names and name is not None)
            if len(self.table_keys) < len(known):
                self.table_keys = ()
        elif lacking := [name for name in self._keys if name not in names]:
            raise SourceError(
                f"The source of the Iceberg table {shown!r} has keys= {listing(lacking)}, which it "
                "does not read.",
                remedy="Name columns that the source reads.",
                table=shown,
            )
        self._schema = pa.schema(rows)
        reader = PieceReader(
            columns=columns,
            schema=types,
            filters=self._filters,
            include=self._include,
            signed=self._changes,
        )
        self._check_filters(types)
        self._reader = reader
        return reader

    def _check_filters(self, types: pa.Schema) -> None:
        """Raise if the filters cannot be compared with the columns."""
        if not self._filters:
            return
        try:
            types.empty_table().filter(pq.filters_to_expression([list(g) for g in self._filters]))
        except (pa.ArrowException, TypeError, ValueError) as error:
            text = str(error).splitlines()[0].removesuffix(".")
            raise SourceError(
                f"The filters of the source of the Iceberg table {self._table_name!r} do not fit "
                f"its columns: {text}.",
                remedy="Compare columns with values of their type, such as dates with "
                "datetime.date and times with a datetime that has a time zone.",
                table=self._table_name,
            ) from error

    def _check_columns(self, metadata: TableMetadata) -> None:
        """Raise if the newest version lacks a column that is read, or gave it another type."""
        newest = metadata.schema()
        for name, field in self._look_up_columns().columns.items():
            for inner in Schema(field)._lazy_id_to_field.values():  # noqa: SLF001
                current = newest._lazy_id_to_field.get(inner.field_id)  # noqa: SLF001
                if current is None:
                    what = "has been dropped from it"
                elif current.field_type.is_primitive and current.field_type != inner.field_type:
                    what = f"is of type {current.field_type} now, not {inner.field_type}"
                else:
                    continue
                raise SourceError(
                    f"The column {name!r} of the Iceberg table {self._table_name!r} {what}.",
                    remedy="Start the query again; it then has the columns of the newest version.",
                    table=self._table_name,
                    column=name,
                )

    # -- progress ---------------------------------------------------------------------------------

    def open(self, position: Position | None) -> None:
        """Load the table; raise if it cannot be read on from `position`."""
        self._start = None
        history = self._refresh()
        if position is None:
            self._start = self._first_place(history).encoded()
        else:
            place = self._checked(history, position)
            for _ in history.path(place, self._head(history)):
                break

    def start(self) -> Position:
        """Return the place before the first row of a new query."""
        if self._start is None:
            self._start = self._first_place(self._history or self._refresh()).encoded()
        return self._start

    def _first_place(self, history: History) -> Place:
        """Return the place at which a new query begins."""
        metadata, number = history.metadata, self._first
        if self._tag is not None:
            ref = metadata.refs.get(self._tag)
            if ref is None:
                raise SourceError(
                    f"The Iceberg table {self._table_name!r} has no tag {self._tag!r}.",
                    remedy=f"Give one of {listing(list(metadata.refs))}, or snapshot=.",
                    table=self._table_name,
                )
            number = ref.snapshot_id
        elif number is None:
            number = history.head
        elif metadata.snapshot_by_id(number) is None:
            raise SourceError(
                f"The Iceberg table {self._table_name!r} has no snapshot {number}.",
                remedy="It may have expired. Give a later one, or leave snapshot= out.",
                table=self._table_name,
            )
        place = Place(table=str(metadata.table_uuid), snapshot=number)
        return replace(place, part="all") if self._existing and number is not None else place

    def _head(self, history: History) -> Place:
        """Return the place after the newest snapshot of the branch."""
        return Place(table=str(history.metadata.table_uuid), snapshot=history.head)

    def _checked(self, history: History, position: Position) -> Place:
        """Return the place of a position; raise if it is one of another table."""
        place = Place.decoded(position)
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
        history = self._refresh()
        self._checked(history, position)
        return self._head(history).encoded()

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the position after an epoch of at most `limit` rows, not beyond `until`."""
        limits = [number for number in (limit, self._max_rows) if number is not None]
        rows = min(limits) if limits else None
        history = self._history or self._refresh()
        if until is not None:
            place = self._checked(history, position)
            return self._advance(history, place, Place.decoded(until), rows).encoded()
        place = Place.decoded(position)
        if not place.part and place == self._head(history):
            history = self._refresh()
        place = self._checked(history, position)
        return self._advance(history, place, self._head(history), rows).encoded()

    def _advance(self, history: History, begin: Place, target: Place, rows: int | None) -> Place:
        """Return the place after about `rows` rows, not beyond `target`."""
        with self._reading("metadata"):
            place, left, files = begin, rows, 0
            for number_of_step, (step, first, row, stop) in enumerate(history.path(begin, target)):
                if files and number_of_step >= MAX_STEPS:
                    return place
                try:
                    pieces = history.pieces(step)
                except SourceError:
                    if files:  # those before it are read first
                        return place
                    raise
                is_whole = self._whole and step.part != "all"
                if is_whole and files and self._exceeds(pieces, left, files):
                    return place
                here = Place(
                    table=begin.table, snapshot=step.snapshot, part=step.part, since=step.since
                )
                for number in range(first, len(pieces)):
                    start = row if number == first else 0
                    is_last = stop is not None and stop.file == number
                    if is_last and stop is not None and stop.row <= start:
                        return stop
                    piece = pieces[number]
                    if not piece.skipped:
                        if files and not is_whole and (files == self._max_files or left == 0):
                            return replace(here, file=number, row=start)
                        end = stop.row if is_last and stop is not None else piece.rows
                        count = cut(piece, start, end).max_rows
                        if left is not None:
                            if not is_whole and piece.among is None and count > left:
                                return replace(here, file=number, row=start + left)
                            left = max(left - count, 0)
                        files += 1
                    if is_last and stop is not None:
                        return stop
                place = Place(table=begin.table, snapshot=step.snapshot)
            return place

    def _exceeds(self, pieces: Sequence[Piece], left: int | None, files: int) -> bool:
        """Return whether the pieces of a snapshot are more than the rest of the limits."""
        read = [piece for piece in pieces if not piece.skipped]
        if left is not None and sum(piece.max_rows for piece in read) > left:
            return True
        return self._max_files is not None and files + len(read) > self._max_files

    def precedes(self, position: Position, other: Position) -> bool:
        """Return whether `position` is an earlier point of the same step."""
        before, after = Place.decoded(position), Place.decoded(other)
        if (before.table, before.snapshot) != (after.table, after.snapshot) or not before.part:
            return False
        if not after.part:
            return True
        same = before.step == after.step
        return same and (before.file, before.row) < (after.file, after.row)

    # -- splits -----------------------------------------------------------------------------------

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return about `parallelism` splits: groups of small files, and parts of large ones."""
        history = self._history or self._refresh()
        assert self._access is not None, "known since the table was loaded"
        with self._reading("metadata"):
            pieces = list(self._between(history, self._checked(history, begin), Place.decoded(end)))
        target = max(sum(map(_size, pieces)) / max(parallelism, 1), _MIN_SPLIT_BYTES)
        grouped: dict[int, list[Piece]] = {}
        before = 0.0
        for part in itertools.chain.from_iterable(self._cut(piece, target) for piece in pieces):
            size = _size(part)
            grouped.setdefault(int((before + size / 2) / target), []).append(part)
            before += size
        return [self._split(group, self._access) for group in grouped.values()]

    def _between(self, history: History, begin: Place, end: Place) -> Iterator[Piece]:
        """Yield the pieces between two places."""
        for step, first, row, stop in history.path(begin, end):
            pieces = history.pieces(step)
            upto = len(pieces) if stop is None else min(stop.file + 1, len(pieces))
            for number in range(first, upto):
                start = row if number == first else 0
                last = stop.row if stop is not None and stop.file == number else None
                if not pieces[number].skipped and (last is None or start < last):
                    yield cut(pieces[number], start, last)

    def _cut(self, piece: Piece, target: float) -> Iterator[Piece]:
        """Yield parts of a piece that are about as large as a split, cut between row groups."""
        if _size(piece) <= target:
            yield piece
            return
        layout = self._layout_of(piece)
        assert self._access is not None, "known since the table was loaded"
        _, file = self._access.file(piece.path, piece.size)
        whole = FileRange(file=file, start=piece.start, stop=piece.end)
        edges = [piece.start, *FORMAT.cut_row_groups(whole, layout, target / 8), piece.end]
        for start, upto in itertools.pairwise(edges):
            yield cut(piece, start, piece.stop if upto == piece.end else upto)

    def _layout_of(self, piece: Piece) -> FileLayout:
        """Return the row groups of a piece's file."""
        assert self._access is not None, "known since the table was loaded"
        if piece.path not in self._layouts:
            with self._reading(f"file {piece.path!r}", piece):
                self._layouts[piece.path] = FORMAT.layout(
                    *self._access.file(piece.path, piece.size)
                )
            if len(self._layouts) > _MAX_LAYOUTS:
                self._layouts.popitem(last=False)
        return self._layouts[piece.path]

    def _split(self, group: Sequence[Piece], access: Access) -> Split:
        """Return a split of pieces; adjacent parts of one file become one."""
        pieces: list[Piece] = []
        for part in group:
            if (
                pieces
                and part == cut(pieces[-1], part.start, part.stop)
                and pieces[-1].stop == part.start
            ):
                pieces[-1] = cut(part, pieces[-1].start, part.stop)
            else:
                pieces.append(part)
        first = pieces[0]
        what = first.path
        if len(pieces) > 1:
            what = f"{counted(len(pieces), 'file')} from {what}"
        elif first.is_cut:
            what = f"{what} from {first.start} to {first.end}"
        return Split(
            rows=sum(piece.max_rows for piece in pieces),
            exact=not self._filters and all(piece.is_exact for piece in pieces),
            size_bytes=int(sum(map(_size, pieces))),
            what=f"snapshot {first.snapshot}: {what}",
            payload=(access, tuple(pieces)),
            arrived_us=tuple(piece.timestamp_ms * 1000 for piece in pieces),
        )

    # -- rows -------------------------------------------------------------------------------------

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split; raise if one of its files is gone or cannot be read."""
        reader = self._look_up_columns()
        access, pieces = split.payload
        schema = pa.schema([self._schema.field(name) for name in columns])
        for piece in pieces:
            with self._reading(f"file {piece.path!r}", piece):
                for rows in reader.read(access, piece, columns):
                    yield pa.RecordBatch.from_arrays(rows.columns, schema=schema)

    @contextlib.contextmanager
    def _reading(self, what: str, piece: Piece | None = None) -> Iterator[None]:
        """Translate errors of a block that reads metadata or a file."""
        try:
            yield
        except GodwitError:
            raise
        except FileNotFoundError as error:
            where = "" if piece is None else f" of snapshot {piece.snapshot}"
            raise SourceError(
                f"The {what}{where} of the Iceberg table {self._table_name!r} is gone: its "
                "snapshot expired before it was read, or the files were removed by hand.",
                remedy="Start a new query, with a new checkpoint, from the newest snapshot. Let "
                "snapshots expire later than a query stops or lags behind "
                "(history.expire.max-snapshot-age-ms).",
                table=self._table_name,
            ) from self._secrets.cause(error)
        except Exception as error:  # noqa: BLE001  catalogs' and stores' errors share no base
            text = (str(error).splitlines() or [type(error).__name__])[0].removesuffix(".")
            raise SourceError(
                f"The {what} of the Iceberg table {self._table_name!r} cannot be read: "
                f"{self._secrets.hide(text)}.",
                remedy="Check the catalog's properties (catalog=...), credentials, and that other "
                "engines can read the table.",
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
            place = self._checked(history, position)
            for step, _, _, _ in history.path(place, self._head(history)):
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
        place = Place.decoded(position)
        if not place.part:
            return {"snapshot": place.snapshot}
        name = "snapshot" if place.part == "step" else "all rows of snapshot"
        return {name: place.snapshot, "reading": f"file {place.file} at row {place.row:,}"}

    def close(self) -> None:
        """Close the catalog."""
        if self._catalog is not None:
            self._catalog.close()
        self._forget()


def _size(piece: Piece) -> float:
    """Return the bytes of a piece, in proportion to its rows."""
    return piece.size * (piece.end - piece.start) / max(piece.rows, 1)


def _checked_include(include: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return the further columns, kind → name; raise for an unknown kind."""
    names = [include] if isinstance(include, str) else include
    chosen = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    unknown = [kind for kind in chosen if kind not in INCLUDED]
    if unknown:
        raise SourceError(
            f"An Iceberg source cannot include {listing(unknown)}.",
            remedy=f"Give any of {listing(list(INCLUDED))}, or a mapping that renames them.",
        )
    return {str(kind): str(name) for kind, name in chosen.items()}
