"""Rows of a Delta table: a snapshot, then the files or the changes of later versions.

A position is a place between the pieces of a version (`godwit.connect.delta.pieces`).  Columns and
filters may be chosen otherwise at a restart.

**Maintenance**: compaction (OPTIMIZE, Z-ordering) says in the log that it changes no data, and is
passed over.  A file that VACUUM has removed before it was read is an error that says so.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from godwit.columns.signed import CHANGE
from godwit.columns.types import to_schema
from godwit.connect.delta.columns import (
    Column,
    check_later_columns,
    chosen_columns,
)
from godwit.connect.delta.log import DataFile, Log, check_protocol
from godwit.connect.delta.pieces import (
    Budget,
    DeltaPosition,
    Piece,
    added_pieces,
    changed_pieces,
    piece_ranges,
    position_of,
    snapshot_pieces,
)
from godwit.connect.delta.place import Table
from godwit.connect.delta.pruning import RowFilter
from godwit.connect.delta.rows import INCLUDED, PieceReader
from godwit.connect.delta.splits import Splitter
from godwit.model.errors import GodwitError, SourceError
from godwit.model.naming import check_number, listing
from godwit.sources.row_filters import checked_filters
from godwit.sources.source import Lag, Source, Split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.connect.delta.log import Commit, Metadata
    from godwit.sources.row_filters import Filters
    from godwit.sources.source import Position

_MAX_VERSIONS: Final = 64  # whose pieces are remembered
_EMPTY_VERSIONS: Final = 100  # after this many without rows, the position moves on all the same
_SKIPPED_FILES: Final = 1000  # likewise
_logger = logging.getLogger("godwit")


class DeltaSource(Source):
    """Rows or changes of a Delta table; options are those of `godwit.connect.delta.read.delta`."""

    def __init__(
        self,
        path: str,
        *,
        changes: bool,
        version: int | None,
        timestamp: dt.datetime | str | None,
        snapshot: bool,
        columns: Sequence[str] | None,
        filters: Filters | None,
        include: Sequence[str] | Mapping[str, str],
        keys: Sequence[str],
        on_change: str,
        whole_versions: bool,
        max_rows_per_epoch: int | None,
        max_files_per_epoch: int | None,
        storage_options: Mapping[str, str] | None,
    ) -> None:
        for option, value, least in (
            ("max_rows_per_epoch", max_rows_per_epoch, 1),
            ("max_files_per_epoch", max_files_per_epoch, 1),
            ("version", version, 0),
        ):
            if value is not None:
                check_number(option, value, least=least, error=SourceError)
        self._table = Table(path, storage_options)
        self._log = Log(self._table)
        self._changes, self._on_change = changes, on_change
        if changes:
            self.kind = "changes"
        self.table_keys = tuple(keys)
        self._version, self._snapshot = version, snapshot
        self._timestamp_us = None if timestamp is None else _time_us(timestamp)
        if version is not None and timestamp is not None:
            raise SourceError(
                f"The source of the Delta table {self._table.shown!r} has version= and timestamp=.",
                remedy="Give one of them.",
            )
        if on_change not in {"refuse", "skip"} or (changes and on_change != "refuse"):
            raise SourceError(
                f"on_change={on_change!r} is not possible for a Delta source"
                f"{' of changes' if changes else ''}.",
                remedy='Give "refuse", or "skip" to leave out versions that update or delete rows; '
                "a source of changes reads them.",
            )
        names = (columns,) if isinstance(columns, str) else columns
        self._names = None if names is None else tuple(names)
        self._filters = checked_filters(
            filters, f"The source of the Delta table {self._table.shown!r}"
        )
        self._include = _checked_include(include)
        self._whole, self._max_rows = whole_versions, max_rows_per_epoch
        self._max_files = max_files_per_epoch
        self._columns: dict[str, Column] | None = None  # of the rows and filters
        self._schema = pa.schema([])
        self._schema_version = -1
        self._filter: RowFilter | None = None
        self._start: DeltaPosition | None = None
        self._is_open = False
        self._announced: set[str] = set()  # columns that were added meanwhile
        self._ids: list[tuple[int, str]] = []  # from which version the table has which id
        self._pieces: OrderedDict[tuple[int, bool], list[Piece]] = OrderedDict()
        self._splitter = Splitter(self._table)

    def __repr__(self) -> str:
        return f"<{self.identity}>"

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what the driver remembers; copies read splits only."""
        forgotten: dict[str, Any] = {
            "_pieces": OrderedDict(),
            "_layouts": OrderedDict(),
            "_log": None,
        }
        return {**self.__dict__, **forgotten}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._log = Log(self._table)
        self._pieces, self._splitter = OrderedDict(), Splitter(self._table)

    @property
    def identity(self) -> str:
        """Kind of rows and path of the table, without credentials."""
        return f"{'changes' if self._changes else 'rows'} of the Delta table {self._table.shown}"

    # -- columns ----------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """Columns that were chosen, by default those of the newest version."""
        with self._table.reading("log"):
            self._look_up_columns()
        return self._schema

    def _look_up_columns(self) -> dict[str, Column]:
        """Return the columns that are read, by name; read them from the log once."""
        if self._columns is not None:
            return self._columns
        newest = self._log.versions().stop - 1
        metadata = self._log.snapshot(newest).metadata
        shown = self._table.shown
        chosen = chosen_columns(metadata, self._names, shown)
        further = dict.fromkeys(name for group in self._filters for name, _, _ in group)
        columns = {**chosen, **chosen_columns(metadata, list(further), shown)}
        fields = [column.field for column in chosen.values()]
        fields += [pa.field(name, INCLUDED[kind]) for kind, name in self._include.items()]
        fields += [CHANGE] if self._changes else []
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise SourceError(
                f"The source of the Delta table {shown!r} would have two columns of one name: "
                f"{listing(names)}.",
                remedy="Leave the table's column out, by columns=, or give another name in "
                f"include=. A source of changes adds the column {CHANGE.name!r}.",
                path=shown,
            )
        missing = [name for name in self.table_keys if name not in names]
        if missing:
            raise SourceError(
                f"The source of the Delta table {shown!r} has keys= {listing(missing)}, which it "
                "does not read.",
                remedy="Name columns that the source reads.",
                path=shown,
            )
        self._schema = to_schema(pa.schema(fields), where=f"The Delta table {shown!r}")
        self._filter = RowFilter(self._filters, columns, shown) if self._filters else None
        self._columns, self._schema_version = columns, newest
        return columns

    def _check_columns(self, version: int, metadata: Metadata) -> None:
        """Raise if the columns of a version cannot be read; log columns that are new."""
        columns = self._look_up_columns()
        follows = version > self._schema_version
        new = check_later_columns(
            columns.values(), metadata, self._table.shown, version, follows=follows
        )
        new = [name for name in new if name not in self._announced]
        self._announced.update(new)
        if follows and new and self._names is None:
            _logger.warning(
                "Version %s of the Delta table %r adds %s, which the query reads once it was "
                "started again.",
                version,
                self._table.shown,
                listing(new),
            )

    # -- life cycle -------------------------------------------------------------------------------

    def open(self, position: Position | None) -> None:
        """Read the log; raise if there is no table, or no way to continue from `position`."""
        with self._table.reading("log"):
            if self._is_open:  # once more: it may be another table by now
                self._log, self._pieces = Log(self._table), OrderedDict()
            self._is_open = True
            self._look_up_columns()
            versions = self._log.versions()
            if position is None:
                self._open_new(versions)
            else:
                self._reopen(position, versions)

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
                remedy="Give a version= that it has.",
                path=self._table.shown,
            )
        state = self._log.snapshot(version)
        self._check_columns(version, state.metadata)
        self._ids = [(0, state.metadata.table_id)]
        self._start = DeltaPosition.after(version)
        if self._snapshot:
            self._start = DeltaPosition(version=version, is_commit=False)
            self._remember((version, False), snapshot_pieces(state))

    def _reopen(self, position: Position, versions: range) -> None:
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
                f"The Delta table {self._table.shown!r} is another one than the query has read: it "
                "was deleted and created again.",
                remedy="Start a new query, with a new checkpoint.",
                path=self._table.shown,
            )
        if first <= newest and first < versions.start:
            raise self._log.removed_error(first)
        self._ids = [(0, position["table"])]

    def start(self) -> Position:
        if self._start is None:
            self.open(None)
        assert self._start is not None, "opened"
        return self._encoded(self._start)

    def _encoded(self, place: DeltaPosition) -> Position:
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

    def _remember(self, key: tuple[int, bool], pieces: list[Piece]) -> list[Piece]:
        """Remember the pieces of a version or snapshot; return them, with filters applied."""
        if self._filter is not None:
            pieces = [
                piece if self._filter.may_have_rows(piece.file) else replace(piece, is_skipped=True)
                for piece in pieces
            ]
        self._pieces[key] = pieces
        if len(self._pieces) > _MAX_VERSIONS:
            self._pieces.popitem(last=False)
        return pieces

    def _pieces_of(self, version: int, *, is_commit: bool) -> list[Piece]:
        """Return the pieces of a version, or of its snapshot; raise if they cannot be read."""
        key = (version, is_commit)
        if key in self._pieces:
            return self._pieces[key]
        if not is_commit:
            return self._remember(key, snapshot_pieces(self._log.snapshot(version)))
        commit = self._log.commit(version)
        if commit.protocol is not None:
            check_protocol(commit.protocol, self._table.shown)
        if commit.metadata is not None:
            self._check_columns(version, commit.metadata)
            if commit.metadata.table_id != self._ids[-1][1] and version > self._ids[-1][0]:
                self._ids.append((version, commit.metadata.table_id))
        if self._changes:
            return self._remember(
                key, changed_pieces(commit, partial(self._with_partition, commit))
            )
        if commit.removes or commit.operation == "RESTORE":
            if self._on_change == "skip":
                return self._remember(key, [])
            raise SourceError(
                f"Version {version} of the Delta table {self._table.shown!r} ("
                f"{commit.operation or 'unnamed'}) updates or deletes rows, and the source reads "
                "new rows only.",
                remedy="Read changes of rows: changes=True, in a new query. Or leave out such "
                'versions, with the rows that they add: on_change="skip".',
                path=self._table.shown,
                version=version,
            )
        return self._remember(key, added_pieces(commit, commit.adds))

    def _with_partition(self, commit: Commit, file: DataFile) -> DataFile:
        """Return a removed file with its partition's values, which old writers leave out."""
        if file.partition is not None:
            return file
        before = self._log.snapshot(commit.version - 1)
        if not before.metadata.partition_by:
            return replace(file, partition={})
        return before.files[file.path]

    def _groups(
        self, begin: DeltaPosition, end: DeltaPosition | None
    ) -> Iterator[tuple[DeltaPosition, list[Piece]]]:
        """Yield the versions from a place on, each with its first place and its pieces."""
        place = begin
        while end is None or place < end:
            if place.is_commit and not self._log.has(place.version):
                if end is not None:
                    raise self._log.removed_error(place.version)
                return
            yield place, self._pieces_of(place.version, is_commit=place.is_commit)
            place = DeltaPosition.after(place.version)

    # -- progress ---------------------------------------------------------------------------------

    def end(self, position: Position) -> Position:
        """Return the position after the newest version."""
        begin = position_of(position)
        newest = DeltaPosition.after(self._log.versions().stop - 1)
        if newest <= begin:
            return position
        with self._table.reading("log"):
            try:
                groups = self._groups(begin, newest)
                if not any(
                    not piece.is_skipped
                    for place, pieces in groups
                    for piece in pieces[place.piece :]
                ):
                    return position
            except SourceError:
                pass  # the epoch that reaches the version raises it
            return self._encoded(newest)

    def latest(
        self, position: Position, *, limit: int | None = None, until: Position | None = None
    ) -> Position:
        """Return the position after an epoch of at most `limit` rows, not beyond `until`."""
        begin = position_of(position)
        bound = None if until is None else position_of(until)
        limits = [number for number in (limit, self._max_rows) if number is not None]
        with self._table.reading("log"):
            place = self._advance(begin, bound, min(limits) if limits else None)
        return position if place == begin else self._encoded(place)

    def _advance(
        self, begin: DeltaPosition, bound: DeltaPosition | None, rows: int | None
    ) -> DeltaPosition:
        """Return the place after about `rows` rows; `begin` if there are none."""
        place, budget, skipped = begin, Budget(rows, self._max_files), 0
        groups = self._groups(begin, bound)
        while True:
            try:
                group = next(groups, None)
            except SourceError:
                if budget.taken:
                    return place
                raise
            if group is None:
                break
            start, pieces = group
            is_whole = self._whole and start.is_commit
            if is_whole and budget.taken:
                further = [piece for piece in pieces if not piece.is_skipped]
                rows_of_version = 0 if rows is None else sum(map(self._splitter.count, further))
                if not budget.has_room(rows_of_version, len(further)):
                    return place
            for number, piece in piece_ranges(start, pieces, bound):
                if piece.is_skipped:
                    skipped += 1
                    continue
                if not is_whole and budget.is_spent:
                    return replace(start, piece=number, row=piece.start)
                if budget.rows is not None:
                    stop = self._splitter.count(piece) if piece.stop is None else piece.stop
                    may_cut = not is_whole and piece.among is None
                    if may_cut and stop - piece.start > budget.rows:
                        return replace(start, piece=number, row=piece.start + budget.rows)
                    budget.rows = max(budget.rows - (stop - piece.start), 0)
                budget.taken += 1
            place = DeltaPosition.after(start.version)
            if bound is not None and place > bound:
                place = bound
        is_far = place.version - begin.version >= _EMPTY_VERSIONS or skipped >= _SKIPPED_FILES
        return place if budget.taken or is_far else begin

    # -- splits -----------------------------------------------------------------------------------

    def splits(self, begin: Position, end: Position, parallelism: int) -> Sequence[Split]:
        """Return about `parallelism` splits: groups of small files, and parts of large ones."""
        with self._table.reading("log"):
            pieces, skipped = self._between(position_of(begin), position_of(end))
        return self._splitter.splits(
            pieces, parallelism, skipped=skipped, filtered=self._filter is not None
        )

    def _between(self, begin: DeltaPosition, end: DeltaPosition) -> tuple[list[Piece], int]:
        """Return the pieces between two places, and the number of those that are left out."""
        between, skipped = [], 0
        for start, pieces in self._groups(begin, end):
            for _, piece in piece_ranges(start, pieces, end):
                if piece.is_skipped:
                    skipped += 1
                else:
                    between.append(piece)
        return between, skipped

    # -- rows -------------------------------------------------------------------------------------

    def read(self, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split; raise if one of its files is gone or cannot be read."""
        known = self._look_up_columns()
        reader = PieceReader(
            table=self._table,
            schema=self._schema,
            columns=known,
            row_filter=self._filter,
            include=self._include,
            signed=self._changes,
        )
        for piece in split.payload:
            with self._table.reading(f"file {piece.file.path!r}", piece.version):
                yield from reader.read(piece, columns)

    # -- reports ----------------------------------------------------------------------------------

    def committed(self, position: Position) -> None:
        """Forget the files of the snapshot once all of them were read."""
        place = position_of(position)
        for version, is_commit in list(self._pieces):
            if place.is_commit and not is_commit and version < place.version:
                del self._pieces[version, is_commit]
                self._log.forget_snapshot()

    def lag(self, position: Position) -> Lag:
        """Return the lag: rows and bytes of the pieces after a position, and the oldest time."""
        rows: int | None = 0
        size, oldest = 0.0, []
        try:
            for start, pieces in self._groups(position_of(position), None):
                for piece in pieces[start.piece :]:
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


def _checked_include(include: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return the further columns, kind → name; raise for an unknown kind."""
    names = [include] if isinstance(include, str) else include
    chosen = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    unknown = [kind for kind in chosen if kind not in INCLUDED]
    if unknown:
        raise SourceError(
            f"A Delta source cannot include {listing(unknown)}.",
            remedy=f"Give any of {listing(list(INCLUDED))}, or a mapping that renames them.",
        )
    return {str(kind): str(name) for kind, name in chosen.items()}


def _time_us(timestamp: object) -> int:
    """Return the user's timestamp in microseconds of Unix time (UTC without zone), or raise."""
    try:
        moment = dt.datetime.fromisoformat(timestamp) if isinstance(timestamp, str) else timestamp
    except ValueError:
        moment = None
    if not isinstance(moment, dt.datetime):
        raise SourceError(
            f"A Delta source has timestamp={timestamp!r}.",
            remedy='Give a datetime, or text such as "2024-05-01T08:00:00Z".',
        )
    moment = moment.replace(tzinfo=moment.tzinfo or dt.UTC)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
