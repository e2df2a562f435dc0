"""Snapshots of an Iceberg table as steps, and the pieces of files that each step adds or removes.

A *place* is a snapshot whose rows are read, or a point within a step: the whole table of a snapshot
(``"all"``), what a snapshot changes of its parent (``"step"``), or the difference of two snapshots
of which neither led to the other (``"jump"``), as after a roll-back.  The pieces of a step are in
the order of its manifests, which never change, so a number names the same piece in every run.

**A snapshot alone** says what it changed: its own manifests have the entries that it added and
those that it deleted.  So its parent may have expired.  A jump needs both snapshots.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pyiceberg.avro.file import AvroFile
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    _inherit_from_manifest,
)
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform

from godwit.connect.lakes.table_pieces import TablePiece, VersionPieces
from godwit.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from godwit.sources.source import Position

Part: TypeAlias = Literal["", "all", "step", "jump"]
MAX_STEPS: Final = 256
"""Number of steps whose pieces are cached, and limit of an epoch."""
_FileKey: TypeAlias = "tuple[str, tuple[Deletes, ...]]"
_Side: TypeAlias = "tuple[Literal[-1, 1], Counter[_FileKey], list[tuple[_FileKey, ManifestEntry]]]"
_READERS: Final = 8  # of manifests at once
_PATH_ID: Final = 2147483546  # of the column of delete files with the path of a data file
_REFERENCED: Final = 17  # place, in an entry of format 3, of the only data file of deletes
_BLOB: Final = 18  # and of the offset of a deletion vector in its file, before its size


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlace:
    """Progress in a table."""

    table: str  # UUID, which a table that is dropped and created again does not have
    snapshot: int | None  # whose rows are read; ``None``: before the first
    part: Part = ""  # of the step that is not read to its end
    since: int | None = None  # snapshot before that step
    file: int = 0  # piece of the step
    row: int = 0  # of the piece's file

    @classmethod
    def decoded(cls, position: Position) -> SnapshotPlace:
        """Return a decoded position."""
        return cls(**position)

    def encoded(self) -> Position:
        """Return the position as plain values."""
        place = {"table": self.table, "snapshot": self.snapshot}
        if not self.part:
            return place
        return {**place, "part": self.part, "since": self.since, "file": self.file, "row": self.row}

    @property
    def step(self) -> Step | None:
        """The step that is not yet read completely."""
        return Step(self.part, self.since, self.snapshot) if self.part else None


@dataclass(frozen=True, slots=True)
class Step:
    """Transition from the rows of a snapshot to those of another."""

    part: Part
    since: int | None
    snapshot: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletes:
    """A file of deleted rows of data files, by position."""

    path: str
    file_format: str
    rows: int
    blob: tuple[int, int] | None = None  # offset and bytes of the deletion vector of a data file


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergPiece(TablePiece):
    """Rows of a data file that a step adds or takes away; a value that can be pickled."""

    path: str
    size: int
    rows: int  # of the whole file
    snapshot: int
    constants: tuple[tuple[int, Any], ...]  # field ids of identity partitions → values
    gone: tuple[Deletes, ...] = ()  # rows that are not among those of the piece
    among: tuple[Deletes, ...] | None = None  # only these rows; ``None``: all

    @property
    def file_path(self) -> str:
        return self.path

    @property
    def file_bytes(self) -> int:
        return self.size

    @property
    def file_rows(self) -> int:
        return self.rows

    @property
    def among_rows(self) -> int | None:
        return None if self.among is None else sum(deletes.rows for deletes in self.among)

    @property
    def is_exact(self) -> bool:
        return not self.gone and self.among is None

    @property
    def version_name(self) -> str:
        return f"snapshot {self.snapshot}"


class History:
    """Steps and pieces of one version of a table's metadata."""

    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        *,
        shown: str,
        branch: str,
        changes: bool,
        on_skip: Callable[[int], None] | None,
        may_have_rows: Callable[[DataFile], bool],
        known: OrderedDict[Step, list[IcebergPiece]],
    ) -> None:
        self.metadata, self.io = metadata, io
        self._name_in_errors, self._branch = shown, branch
        self._changes, self._on_skip = changes, on_skip
        self._may_have_rows = may_have_rows
        self._known_pieces = known  # pieces of steps, which stay the same

    @property
    def head(self) -> int | None:
        """Newest snapshot of the branch; ``None`` if the table has none."""
        if (ref := self.metadata.refs.get(self._branch)) is not None:
            return ref.snapshot_id
        if self._branch == "main":
            return self.metadata.current_snapshot_id
        raise SourceError(
            f"The Iceberg table {self._name_in_errors!r} has no branch {self._branch!r}.",
            remedy="Create the branch, or give another one by branch=.",
            table=self._name_in_errors,
        )

    # -- steps ------------------------------------------------------------------------------------

    def path(
        self, begin: SnapshotPlace, target: SnapshotPlace
    ) -> Iterator[tuple[Step, int, int, SnapshotPlace | None]]:
        """Yield the steps between two places.

        Each with the piece and row to begin at, and the place within it to end at (``None``: to its
        end). Raises if the table's history does not lead from one to the other.
        """
        snapshot, first = begin.snapshot, begin.step
        if first is not None:
            if first == target.step:
                yield first, begin.file, begin.row, target
                return
            yield first, begin.file, begin.row, None
        last = target.step
        goal = target.snapshot if last is None else last.since
        if last is not None and last.part == "all":
            raise self._source_error(
                f"has been read up to snapshot {snapshot}, which does not lead to {target}",
                "Start the query again.",
            )
        for step in self._steps_between(snapshot, goal):
            yield step, 0, 0, None
        if last is not None:
            yield last, 0, 0, target

    def versions(
        self, begin: SnapshotPlace, target: SnapshotPlace
    ) -> Iterator[VersionPieces[IcebergPiece, SnapshotPlace]]:
        """Yield the pieces of the steps between two places."""
        for step, first, row, stop in self.path(begin, target):
            here = SnapshotPlace(
                table=begin.table, snapshot=step.snapshot, part=step.part, since=step.since
            )
            yield VersionPieces(
                pieces=self.pieces(step),
                first=first,
                row=row,
                stop=None if stop is None else (stop.file, stop.row),
                is_commit=step.part != "all",
                place=partial(_place_in, here),
                after=SnapshotPlace(table=begin.table, snapshot=step.snapshot)
                if stop is None
                else stop,
            )

    def _steps_between(self, snapshot: int | None, goal: int | None) -> list[Step]:
        """Return the steps from the rows of one snapshot to those of another."""
        if snapshot == goal:
            return []
        steps: list[Step] = []
        oldest = None if goal is None else self.metadata.snapshot_by_id(goal)
        if goal is not None and oldest is None:
            raise self._expired_error(goal)
        while oldest is not None:
            number = oldest.parent_snapshot_id
            parent = None if number is None else self.metadata.snapshot_by_id(number)
            if parent is None and snapshot is None:
                # Snapshots before it may have expired, which pyiceberg does not leave as a parent.
                return [Step("jump", None, oldest.snapshot_id), *steps[::-1]]
            steps.append(Step("step", number, oldest.snapshot_id))
            if number == snapshot:
                return steps[::-1]
            oldest = parent
        if snapshot is not None and self.metadata.snapshot_by_id(snapshot) is None:
            raise self._expired_error(snapshot)
        if self._changes:
            return [Step("jump", snapshot, goal)]
        raise self._source_error(
            f"has been read up to snapshot {snapshot}, which did not lead to snapshot {goal} of "
            f"branch {self._branch!r}: the table was rolled back or replaced, or snapshots in "
            "between have expired",
            "Use changes=True, which deletes the rows that left the table; or start a new query, "
            "with a new checkpoint.",
        )

    # -- pieces -----------------------------------------------------------------------------------

    def pieces(self, step: Step) -> list[IcebergPiece]:
        """Return the pieces of a step; raise if they cannot be read."""
        if step not in self._known_pieces:
            self._known_pieces[step] = self._find_pieces(step)
            if len(self._known_pieces) > MAX_STEPS:
                self._known_pieces.popitem(last=False)
        self._known_pieces.move_to_end(step)
        return self._known_pieces[step]

    def added(self, step: Step) -> tuple[int, int] | None:
        """Estimate the rows and bytes that a step adds; ``None``: unknown before it is read.

        Of a step that is not read yet, the summary of its snapshot tells.
        """
        if step in self._known_pieces:
            pieces = [piece for piece in self._known_pieces[step] if not piece.is_skipped]
            return sum(_max_rows(p) for p in pieces), sum(p.size for p in pieces)
        snapshot = None if step.snapshot is None else self.metadata.snapshot_by_id(step.snapshot)
        if snapshot is None or snapshot.summary is None or step.part == "jump":
            return None
        if snapshot.summary.operation is Operation.REPLACE and step.part == "step":
            return 0, 0
        facts = snapshot.summary.additional_properties
        names = ("total-records", "total-files-size")
        if step.part == "step":
            names = ("added-records", "added-files-size")
        rows, size = (int(facts.get(name, 0)) for name in names)
        return rows, size

    def _find_pieces(self, step: Step) -> list[IcebergPiece]:
        if step.part == "all":
            return self._difference_of_rows(None, step.snapshot)
        if step.part == "jump":
            return self._difference_of_rows(step.since, step.snapshot)
        snapshot = self._existing_snapshot(step.snapshot)
        if snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE:
            return []  # the same rows in other files
        pieces = self._changed_pieces(snapshot)
        if self._changes or all(piece.sign == 1 for piece in pieces):
            return pieces
        if self._on_skip is not None:
            self._on_skip(snapshot.snapshot_id)
            return []
        raise self._source_error(
            f"has snapshot {snapshot.snapshot_id}, which updates or deletes rows",
            'Use changes=True; or skip such snapshots by on_change="skip"; or start a new query, '
            "with a new checkpoint, from a later snapshot.",
        )

    def _changed_pieces(self, snapshot: Snapshot) -> list[IcebergPiece]:
        """Return the changes of a snapshot against its parent, from its own manifests."""
        manifests = snapshot.manifests(self.io)
        snapshot_id = snapshot.snapshot_id
        own_manifests = [
            manifest for manifest in manifests if manifest.added_snapshot_id == snapshot_id
        ]
        added, removed = [], []
        for entry in self._manifest_entries(own_manifests, ManifestContent.DATA):
            if entry.status == ManifestEntryStatus.DELETED:
                removed.append(entry)
            elif entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot_id:
                added.append(entry)
        changed = [
            entry
            for entry in self._manifest_entries(own_manifests, ManifestContent.DELETES)
            if _is_change(entry, snapshot_id)
        ]
        if not removed and not changed:
            return [self._piece_of_file(entry, 1, snapshot) for entry in added]
        deletes = list(self._manifest_entries(manifests, ManifestContent.DELETES))
        deletes_before = self._index_deletes(
            added_entry for added_entry in deletes if not _is_added(added_entry, snapshot_id)
        )
        deletes_after = self._index_deletes(
            added_entry
            for added_entry in deletes
            if added_entry.status != ManifestEntryStatus.DELETED
        )
        pieces = [
            self._piece_of_file(entry, -1, snapshot, gone=deletes_before.deletes(entry))
            for entry in removed
        ]
        if changed:
            kept_entries = (
                entry
                for entry in self._manifest_entries(manifests, ManifestContent.DATA)
                if entry.status != ManifestEntryStatus.DELETED and not _is_added(entry, snapshot_id)
            )
            for entry in kept_entries:
                pieces += self._moved_deletes(
                    entry, deletes_before.deletes(entry), deletes_after.deletes(entry), snapshot
                )
        added_pieces = [
            self._piece_of_file(added_entry, 1, snapshot, gone=deletes_after.deletes(added_entry))
            for added_entry in added
        ]
        return sorted([*pieces, *added_pieces], key=lambda piece: piece.sign)  # which is stable

    def _moved_deletes(
        self,
        entry: ManifestEntry,
        before: tuple[Deletes, ...],
        after: tuple[Deletes, ...],
        snapshot: Snapshot,
    ) -> Iterator[IcebergPiece]:
        """Yield the rows of a file that a change of its delete files deletes, or restores."""
        if before == after:
            return
        if set(after) - set(before):
            yield self._piece_of_file(entry, -1, snapshot, gone=before, among=after)
        if set(before) - set(after):
            yield self._piece_of_file(entry, 1, snapshot, gone=after, among=before)

    def _difference_of_rows(self, since: int | None, until: int | None) -> list[IcebergPiece]:
        """Return the difference between all rows of two snapshots; ``None``: no rows."""
        if since is None and until is None:
            return []
        snapshot = self._existing_snapshot(until if until is not None else since)
        old, new = self._live_files(since), self._live_files(until)
        old_counts, new_counts = Counter(key for key, _ in old), Counter(key for key, _ in new)
        removed, added = old_counts - new_counts, new_counts - old_counts
        pieces: list[IcebergPiece] = []
        sides: tuple[_Side, _Side] = ((-1, removed, old), (1, added, new))
        for sign, counts, entries in sides:
            for key, entry in entries:
                if counts[key]:
                    counts[key] -= 1
                    pieces.append(self._piece_of_file(entry, sign, snapshot, gone=key[1]))
        return pieces

    def _live_files(self, number: int | None) -> list[tuple[_FileKey, ManifestEntry]]:
        """Return the files of a snapshot, each with its path and deletes."""
        if number is None:
            return []
        manifests = self._existing_snapshot(number).manifests(self.io)
        deletes = self._manifest_entries(manifests, ManifestContent.DELETES)
        index = self._index_deletes(e for e in deletes if e.status != ManifestEntryStatus.DELETED)
        files = [
            entry
            for entry in self._manifest_entries(manifests, ManifestContent.DATA)
            if entry.status != ManifestEntryStatus.DELETED
        ]
        files.sort(key=lambda entry: entry.sequence_number or 0)  # oldest first
        return [((entry.data_file.file_path, index.deletes(entry)), entry) for entry in files]

    def _manifest_entries(
        self, manifests: Iterable[ManifestFile], content: ManifestContent
    ) -> Iterator[ManifestEntry]:
        """Yield all entries of manifests of one kind, deleted ones too."""
        chosen = [manifest for manifest in manifests if manifest.content == content]
        if len(chosen) == 1:
            yield from _entries_of(chosen[0], self.io)
        elif chosen:
            with ThreadPoolExecutor(min(len(chosen), _READERS)) as pool:
                yield from chain.from_iterable(pool.map(_entries_of, chosen, repeat(self.io)))

    def _index_deletes(self, entries: Iterable[ManifestEntry]) -> _DeleteIndex:
        """Return an index of delete files; raise if some cannot be read."""
        index = _DeleteIndex()
        for entry in entries:
            file = entry.data_file
            if file.content == DataFileContent.EQUALITY_DELETES:
                raise self._unreadable_error(
                    "has equality deletes, as Flink writes them, which are not supported",
                    "Compact the table with the engine that wrote them (CALL "
                    "system.rewrite_data_files), and start a new query from that snapshot.",
                )
            is_vector = file.file_format.name == "PUFFIN" and file[_BLOB] is not None
            if file.file_format.name != "PARQUET" and not is_vector:
                raise self._unreadable_error(
                    f"has deletes in {file.file_format.name}, which are not supported",
                    "Compact the table with the engine that wrote them, and start a new query "
                    "from that snapshot.",
                )
            self._check_not_encrypted(file)
            index.add(entry)
        return index

    def _piece_of_file(
        self,
        entry: ManifestEntry,
        sign: Literal[-1, 1],
        snapshot: Snapshot,
        *,
        gone: tuple[Deletes, ...] = (),
        among: tuple[Deletes, ...] | None = None,
    ) -> IcebergPiece:
        """Return a piece of a data file; raise if the file cannot be read."""
        data_file = entry.data_file
        if data_file.file_format.name != "PARQUET":
            raise self._unreadable_error(
                f"has data files in {data_file.file_format.name}, but only Parquet is supported",
                "Rewrite them: set 'write.format.default' = 'parquet', and CALL "
                "system.rewrite_data_files with rewrite-all.",
            )
        self._check_not_encrypted(data_file)
        return IcebergPiece(
            path=data_file.file_path,
            size=data_file.file_size_in_bytes,
            rows=data_file.record_count,
            sign=sign,
            snapshot=snapshot.snapshot_id,
            timestamp_ms=snapshot.timestamp_ms,
            constants=tuple(self._partition_constants(data_file).items()),
            is_skipped=not self._may_have_rows(data_file),
            gone=gone,
            among=among,
        )

    def _partition_constants(self, file: DataFile) -> Mapping[int, Any]:
        """Return the values of identity partitions, which files may omit, by field id."""
        spec = self.metadata.specs()[file.spec_id]
        return {
            field.source_id: file.partition[place]
            for place, field in enumerate(spec.fields)
            if isinstance(field.transform, IdentityTransform)
        }

    def _check_not_encrypted(self, file: DataFile) -> None:
        """Raise if a file is encrypted."""
        if file.key_metadata is not None:
            raise self._unreadable_error(
                "is encrypted, which is not supported", "Read a copy that is not encrypted."
            )

    def _existing_snapshot(self, number: int | None) -> Snapshot:
        """Return a snapshot; raise if it has expired."""
        snapshot = None if number is None else self.metadata.snapshot_by_id(number)
        if snapshot is None:
            raise self._expired_error(number)
        return snapshot

    def _expired_error(self, number: int | None) -> SourceError:
        return self._source_error(
            f"no longer has snapshot {number}, from which the query continues: it has expired, or "
            "the table's history was replaced",
            "Start a new query, with a new checkpoint, from the newest snapshot. Keep snapshots "
            "for longer than a query stops or lags behind (history.expire.max-snapshot-age-ms), "
            "or keep them by a tag.",
        )

    def _unreadable_error(self, what: str, remedy: str) -> SourceError:
        return self._source_error(what, remedy)

    def _source_error(self, what: str, remedy: str) -> SourceError:
        return SourceError(
            f"The Iceberg table {self._name_in_errors!r} {what}.",
            remedy=remedy,
            table=self._name_in_errors,
        )


def _is_added(entry: ManifestEntry, snapshot: int) -> bool:
    """Return whether a snapshot added a file."""
    return entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot


def _is_change(entry: ManifestEntry, snapshot: int) -> bool:
    """Return whether an entry of a snapshot's own manifest is a change by that snapshot."""
    return entry.status == ManifestEntryStatus.DELETED or _is_added(entry, snapshot)


def _entries_of(manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    """Return all entries of a manifest; those of deletes with the fields of format 3."""
    if manifest.content == ManifestContent.DATA:
        return manifest.fetch_manifest_entry(io, discard_deleted=False)
    with AvroFile[ManifestEntry](
        io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[3],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as entries:
        return [_inherit_from_manifest(entry, manifest) for entry in entries]


class _DeleteIndex:
    """Delete files by the data files that they apply to.

    Not the library's, which compares partitions as values, so that NaN is none, and which takes the
    deletion vectors of one Puffin file for one.
    """

    def __init__(self) -> None:
        self._deletes_of_file: dict[str, list[tuple[int, Deletes]]] = {}
        self._deletes_of_partition: dict[tuple[Any, ...], list[tuple[int, DataFile, Deletes]]] = {}

    def add(self, entry: ManifestEntry) -> None:
        """Add a delete file."""
        file, sequence = entry.data_file, entry.sequence_number or 0
        path = file[_REFERENCED]
        deletes = Deletes(
            path=file.file_path,
            file_format=file.file_format.name,
            rows=file.record_count,
            blob=None if file[_BLOB] is None else (file[_BLOB], file[_BLOB + 1]),
        )
        if path is not None:
            self._deletes_of_file.setdefault(path, []).append((sequence, deletes))
        else:
            self._deletes_of_partition.setdefault(_comparable_partition(file), []).append(
                (sequence, file, deletes)
            )

    def deletes(self, entry: ManifestEntry) -> tuple[Deletes, ...]:
        """Return the delete files that apply to a data file, in a fixed order."""
        file, min_sequence = entry.data_file, entry.sequence_number or 0
        applying = [
            delete
            for sequence, delete in self._deletes_of_file.get(file.file_path, ())
            if sequence >= min_sequence
        ]
        if self._deletes_of_partition:
            applying += [
                deletes
                for sequence, delete_file, deletes in self._deletes_of_partition.get(
                    _comparable_partition(file), ()
                )
                if sequence >= min_sequence and _may_delete_from(delete_file, file.file_path)
            ]
        return tuple(sorted(applying, key=lambda deletes: deletes.path))


def _comparable_partition(file: DataFile) -> tuple[Any, ...]:
    """Return a partition so that NaN equals itself, and 0.0 is not -0.0."""
    values = [file.partition[place] for place in range(len(file.partition))]
    return (file.spec_id, *map(repr, values))


def _may_delete_from(file: DataFile, path: str) -> bool:
    """Return whether a delete file may have rows of a data file, by the bounds of its paths."""
    low, high = (bounds or {} for bounds in (file.lower_bounds, file.upper_bounds))
    text = path.encode()
    return low.get(_PATH_ID, text) <= text <= high.get(_PATH_ID, text)


def _max_rows(piece: IcebergPiece) -> int:
    """Return an upper bound of the rows of a whole piece."""
    return piece.rows if piece.among_rows is None else min(piece.rows, piece.among_rows)


def _place_in(step: SnapshotPlace, file: int, row: int) -> SnapshotPlace:
    """Return a place in a step."""
    return replace(step, file=file, row=row)
