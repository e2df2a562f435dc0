"""Rows of a Delta table: a snapshot, then the files or the changes of later versions.

A position is a place between the pieces of a version (`godwit.connect.delta.pieces`).  Columns and
filters may be chosen otherwise at a restart.

**Maintenance**: compaction (OPTIMIZE, Z-ordering) says in the log that it changes no data, and is
passed over.  A file that VACUUM has removed before it was read is an error that says so.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack

import pyarrow as pa

from godwit.columns.types import to_schema
from godwit.connect.delta.columns import (
    DeltaColumn,
    check_later_columns,
    chosen_columns,
)
from godwit.connect.delta.log import DataFile, Log, check_protocol
from godwit.connect.delta.pieces import (
    DeltaFiles,
    DeltaPiece,
    DeltaPosition,
    added_pieces,
    changed_pieces,
    position_of,
    snapshot_pieces,
)
from godwit.connect.delta.place import TablePlace
from godwit.connect.delta.pruning import FileFilter
from godwit.connect.delta.rows import DeltaPieceReader
from godwit.connect.lakes.table_pieces import (
    PieceSplitter,
    VersionPieces,
    epoch_end,
    pieces_between,
)
from godwit.connect.lakes.table_rows import TableRows
from godwit.model.errors import GodwitError, SourceError
from godwit.model.naming import check_number, listing
from godwit.sinks.file_systems import destination_of, place_of
from godwit.sources.source import Lag, Source, Split, moment_us

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping, Sequence

    from godwit.connect.delta.log import Commit, Metadata
    from godwit.connect.lakes.table_rows import TableArguments
    from godwit.sources.source import Position

_MAX_VERSIONS: Final = 64  # whose pieces are remembered
_EMPTY_VERSIONS: Final = 100  # after this many without rows, the position moves on anyway
_SKIPPED_FILES: Final = 1000  # likewise


class DeltaSource(Source):
    """Rows or changes of a Delta table; options are those of `godwit.connect.delta.read.delta`."""

    def __init__(
        self,
        path: str,
        *,
        version: int | None,
        timestamp: dt.datetime | str | None,
        snapshot: bool,
        keys: Sequence[str],
        whole_versions: bool,
        storage_options: Mapping[str, str] | None,
        **rows: Unpack[TableArguments],
    ) -> None:
        if version is not None:
            check_number("version", version, least=0, error=SourceError)
        self._table = TablePlace(path, storage_options)
        self._destination = destination_of(path)
        self._table_place = place_of(self._destination, storage_options or {})
        self._log = Log(self._table)
        self._rows = TableRows.checked(
            rows,
            format_name="Delta",
            table=("path", self._table.shown),
            version="version",
            whole=whole_versions,
        )
        if self._rows.signed:
            self.kind = "changes"
        self.table_keys = tuple(keys)
        self._version, self._snapshot = version, snapshot
        self._timestamp_us = (
            None if timestamp is None else moment_us(timestamp, "A Delta source has timestamp")
        )
        if version is not None and timestamp is not None:
            raise SourceError(
                f"The source of the Delta table {self._table.shown!r} has version= and timestamp=.",
                remedy="Give only one of them.",
            )
        self._columns: dict[str, DeltaColumn] | None = None  # of the rows and filters
        self._schema = pa.schema([])
        self._schema_version = -1
        self._filter: FileFilter | None = None
        self._start_position: DeltaPosition | None = None
        self._is_open = False
        self._announced_columns: set[str] = set()  # columns that were added meanwhile
        self._ids: list[tuple[int, str]] = []  # from which version the table has which id
        self._cached_pieces: OrderedDict[tuple[int, bool], list[DeltaPiece]] = OrderedDict()
        self._splitter = PieceSplitter[DeltaPiece](DeltaFiles(self._table))

    def __repr__(self) -> str:
        return f"<{self.identity}>"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the driver's caches; copies only read splits."""
        forgotten: dict[str, Any] = {
            "_cached_pieces": OrderedDict(),
            "_layouts": OrderedDict(),
            "_log": None,
        }
        return {**self.__dict__, **forgotten}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._log = Log(self._table)
        self._cached_pieces, self._splitter = OrderedDict(), PieceSplitter(DeltaFiles(self._table))

    @property
    def identity(self) -> str:
        """Kind of rows and path of the table, without credentials."""
        return (
            f"{'changes' if self._rows.signed else 'rows'} of the Delta table {self._table.shown}"
        )

    @property
    def datasets(self) -> tuple[str, ...]:
        """Canonical path or URI of the table, as of sinks."""
        return (self._destination,)

    @property
    def places(self) -> tuple[str, ...]:
        """Name of the table's directory, the same for all spellings of its path."""
        return (self._table_place,)

    # -- columns ----------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """Columns that were selected, by default those of the newest version."""
        with self._table.reading("log"):
            self._look_up_columns()
        return self._schema

    def _look_up_columns(self) -> dict[str, DeltaColumn]:
        """Return the columns that are read, by name; read them from the log once."""
        if self._columns is not None:
            return self._columns
        newest = self._log.versions().stop - 1
        metadata = self._log.snapshot(newest).metadata
        shown = self._table.shown
        output_columns = chosen_columns(metadata, self._rows.names, shown)
        filter_columns = chosen_columns(metadata, self._rows.filtered, shown)
        columns = {**output_columns, **filter_columns}
        schema = self._rows.schema(
            [column.field for column in output_columns.values()], self.table_keys
        )
        self._schema = to_schema(schema, where=f"The Delta table {shown!r}")
        self._rows.check_filters(pa.schema([column.field for column in filter_columns.values()]))
        if self._rows.filters:
            self._filter = FileFilter(self._rows.filters, columns)
        self._columns, self._schema_version = columns, newest
        return columns

    def _check_columns(self, version: int, metadata: Metadata) -> None:
        """Raise if the columns of a version cannot be read; report new columns."""
        columns = self._look_up_columns()
        follows = version > self._schema_version
        new = check_later_columns(
            columns.values(), metadata, self._table.shown, version, follows=follows
        )
        new = [name for name in new if name not in self._announced_columns]
        self._announced_columns.update(new)
        if follows and new and self._rows.names is None:
            self.report(
                f"Version {version} of the Delta table {self._table.shown!r} adds "
                f"{listing(new)}, which the query will read after a restart."
            )

    # -- life cycle -------------------------------------------------------------------------------

    def open(self, position: Position | None) -> None:
        """Read the log; raise if there is no table, or no way to continue from `position`."""
        with self._table.reading("log"):
            if self._is_open:  # once more: it may be another table by now
                self._log, self._cached_pieces = Log(self._table), OrderedDict()
            self._is_open = True
            self._look_up_columns()
            versions = self._log.versions()
            if position is None:
                self._open_new(versions)
            else:
                self._check_can_continue(position, versions)

    def _open_new(self, versions: range) -> None:
        """Find the version at which a new query begins."""
        version = self._version
        if self._timestamp_us is not None:
            version = self._log.version_at(self._timestamp_us)
        elif version is None:
            version = versions.stop - 1
        if version >= versions.stop:
            raise SourceError(
                f"The Delta table {self._table.shown!r} has no version {version}; its newest is "
                f"{versions.stop - 1}.",
                remedy="Give an existing version=.",
                path=self._table.shown,
            )
        state = self._log.snapshot(version)
        self._check_columns(version, state.metadata)
        self._ids = [(0, state.metadata.table_id)]
        self._start_position = DeltaPosition.after(version)
        if self._snapshot:
            self._start_position = DeltaPosition(version=version, is_commit=False)
            self._remember_pieces((version, False), snapshot_pieces(state))

    def _check_can_continue(self, position: Position, versions: range) -> None:
        """Check that a query can continue at a position."""
        place = position_of(position)
        first = place.version + (0 if place.is_commit else 1)
        newest = versions.stop - 1
        is_other = newest < first - 1
        current = None
        if not is_other:
            current = self._log.snapshot(newest).metadata.table_id
        if current is not None and current != position["table"]:
            later = range(max(first, versions.start), versions.stop)
            is_other = all(self._log.commit(number).metadata is None for number in later)
        if is_other:
            raise SourceError(
                f"The Delta table {self._table.shown!r} was deleted and created again since the "
                "query read it.",
                remedy="Start a new query, with a new checkpoint.",
                path=self._table.shown,
            )
        if first <= newest and first < versions.start:
            raise self._log.removed_error(first)
        self._ids = [(0, position["table"])]

    def start(self) -> Position:
        if self._start_position is None:
            self.open(None)
        assert self._start_position is not None, "opened"
        return self._position_of_place(self._start_position)

    def _position_of_place(self, place: DeltaPosition) -> Position:
        """Return a place as a position for commit records."""
        ids = [
            table_id for version, table_id in self._ids if version < place.version or not version
        ]
        return {
            "table": ids[-1],
            "version": place.version,
            "commit": place.is_commit,
            "piece": place.piece,
            "row": place.row,
        }

    def precedes(self, position: Position, other: Position) -> bool:
        return position_of(position) < position_of(other)

    # -- pieces -----------------------------------------------------------------------------------

    def _remember_pieces(self, key: tuple[int, bool], pieces: list[DeltaPiece]) -> list[DeltaPiece]:
        """Remember the pieces of a version or snapshot; return them, with filters applied."""
        if self._filter is not None:
            pieces = [
                piece if self._filter.may_have_rows(piece.file) else replace(piece, is_skipped=True)
                for piece in pieces
            ]
        self._cached_pieces[key] = pieces
        if len(self._cached_pieces) > _MAX_VERSIONS:
            self._cached_pieces.popitem(last=False)
        return pieces

    def _pieces_of(self, version: int, *, is_commit: bool) -> list[DeltaPiece]:
        """Return the pieces of a version, or of its snapshot; raise if they cannot be read."""
        key = (version, is_commit)
        if key in self._cached_pieces:
            return self._cached_pieces[key]
        if not is_commit:
            return self._remember_pieces(key, snapshot_pieces(self._log.snapshot(version)))
        commit = self._log.commit(version)
        if commit.protocol is not None:
            check_protocol(commit.protocol, self._table.shown)
        if commit.metadata is not None:
            self._check_columns(version, commit.metadata)
            if commit.metadata.table_id != self._ids[-1][1] and version > self._ids[-1][0]:
                self._ids.append((version, commit.metadata.table_id))
        if self._rows.signed:
            return self._remember_pieces(
                key, changed_pieces(commit, partial(self._with_partition_values, commit))
            )
        if commit.removes or commit.operation == "RESTORE":
            if self._rows.skips:
                self.report(
                    f"Version {version} of the Delta table {self._table.shown!r} "
                    f"({commit.operation or 'unnamed'}) updates or deletes rows, and is skipped."
                )
                return self._remember_pieces(key, [])
            raise SourceError(
                f"Version {version} of the Delta table {self._table.shown!r} "
                f"({commit.operation or 'unnamed'}) updates or deletes rows, but the source "
                "reads only new rows.",
                remedy="To read changes of rows, use changes=True, in a new query. To skip such "
                'versions, with the rows that they add, use on_change="skip".',
                path=self._table.shown,
                version=version,
            )
        return self._remember_pieces(key, added_pieces(commit, commit.adds))

    def _with_partition_values(self, commit: Commit, file: DataFile) -> DataFile:
        """Return a removed file with its partition's values, which old writers omit."""
        if file.partition is not None:
            return file
        before = self._log.snapshot(commit.version - 1)
        if not before.metadata.partition_by:
            return replace(file, partition={})
        return before.files[file.path]

    def _pieces_by_version(
        self, begin: DeltaPosition, end: DeltaPosition | None
    ) -> Iterator[VersionPieces[DeltaPiece, DeltaPosition]]:
        """Yield the pieces of the versions from a place on."""
        place = begin
        while end is None or place < end:
            if place.is_commit and not self._log.has(place.version):
                if end is not None:
                    raise self._log.removed_error(place.version)
                return
            after = DeltaPosition.after(place.version)
            is_last = end is not None and end < after
            yield VersionPieces(
                pieces=self._pieces_of(place.version, is_commit=place.is_commit),
                first=place.piece,
                row=place.row,
                stop=(end.piece, end.row) if is_last and end is not None else None,
                is_commit=place.is_commit,
                place=partial(_place_in, place),
                after=end if is_last and end is not None else after,
            )
            place = after

    # -- progress ---------------------------------------------------------------------------------

    def end(self, position: Position) -> Position:
        """Return the position after the newest version."""
        begin = position_of(position)
        newest = DeltaPosition.after(self._log.versions().stop - 1)
        if newest <= begin:
            return position
        with self._table.reading("log"):
            try:
                versions = self._pieces_by_version(begin, newest)
                if all(piece.is_skipped for v in versions for _, piece in v.ranges()):
                    return position
            except SourceError:
                pass  # the epoch that reaches the version raises it
            return self._position_of_place(newest)

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the position after an epoch of at most `limit` rows, not beyond `until`."""
        begin = position_of(position)
        bound = None if until is None else position_of(until)
        with self._table.reading("log"):
            versions = self._pieces_by_version(begin, bound)
            end = epoch_end(versions, begin, self._rows.limits(limit), self._splitter.num_rows)
        place = end.place
        is_far = place.version - begin.version >= _EMPTY_VERSIONS or end.skipped >= _SKIPPED_FILES
        has_moved = place != begin and (end.taken or is_far)
        return self._position_of_place(place) if has_moved else position

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return about `parallelism` splits: groups of small files, and parts of large ones."""
        with self._table.reading("log"):
            pieces, skipped = pieces_between(
                self._pieces_by_version(position_of(begin), position_of(end))
            )
        pieces = [replace(piece, file=replace(piece.file, stats=None)) for piece in pieces]
        filtered = self._filter is not None
        return self._splitter.splits(pieces, parallelism, skipped=skipped, filtered=filtered)

    # -- rows -------------------------------------------------------------------------------------

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split; raise if one of its files is missing or unreadable."""
        known = self._look_up_columns()
        reader = DeltaPieceReader(
            table=self._table,
            schema=self._schema,
            columns=known,
            rows=self._rows,
        )
        for piece in split.payload:
            with self._table.reading(f"file {piece.file.path!r}", piece.version):
                yield from reader.read(piece, columns)

    # -- reports ----------------------------------------------------------------------------------

    def committed(self, position: Position) -> None:
        """Forget the files of the snapshot once all of them were read."""
        place = position_of(position)
        for version, is_commit in list(self._cached_pieces):
            if place.is_commit and not is_commit and version < place.version:
                del self._cached_pieces[version, is_commit]
                self._log.forget_snapshot()

    def lag(self, position: Position) -> Lag:
        """Return the lag: rows and bytes of the pieces after a position, and the oldest time."""
        rows: int | None = 0
        size, oldest = 0.0, []
        try:
            for version in self._pieces_by_version(position_of(position), None):
                for _, piece in version.ranges():
                    if piece.is_skipped:
                        continue
                    count = self._splitter.known_rows(piece)
                    rows = None if count is None or rows is None else rows + count
                    size += piece.file.size
                    oldest.append(piece.timestamp_ms * 1000)
        except (GodwitError, OSError):
            return Lag()
        return Lag(rows=rows, size_bytes=int(size), oldest_us=min(oldest, default=None))

    def describe(self, position: Position) -> dict[str, Any]:
        place = position_of(position)
        if place.is_commit and not (place.piece or place.row):
            return {"version": place.version - 1}
        part = "version" if place.is_commit else "snapshot of version"
        return {part: place.version, "reading": f"file {place.piece} at row {place.row:,}"}


def _place_in(version: DeltaPosition, piece: int, row: int) -> DeltaPosition:
    """Return a place in a version."""
    return replace(version, piece=piece, row=row)
