"""Pieces of a version of a Delta table, and positions between them.

A version is a list of *pieces*: data files, or parts of what one file changes.  Pieces are in an
order that depends on the version's actions alone, so a position is a version, the number of the
next piece, and the next row in it.

**Changes** of a version come from its change data feed, if it has one; else from the files that it
adds and removes: every row of a removed file leaves the table, and every row of an added file is
new.  Rows that were only copied to another file come twice, with -1 and with 1, which add up to
nothing.  A file that is added and removed at once has another deletion vector: the rows in which
they differ are the changes.  In each version rows with -1 come first, so that a version that is cut
into several epochs never deletes a row that it has inserted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from godwit.connect.files.directory import File
from godwit.connect.lakes.table_pieces import TablePiece

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from godwit.connect.delta.log import Commit, DataFile, DeletionVector, Snapshot
    from godwit.connect.delta.place import TablePlace
    from godwit.sources.source import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaPiece(TablePiece):
    """Rows of a data file, without those of its deletion vector.

    If there is `among`, only the rows of this vector.
    """

    file: DataFile
    version: int
    from_feed: bool = False  # a file of the change data feed, whose rows say their sign
    among: DeletionVector | None = None

    @property
    def file_path(self) -> str:
        return self.file.path

    @property
    def file_bytes(self) -> int:
        return self.file.size

    @property
    def file_rows(self) -> int | None:
        return self.file.rows

    @property
    def among_rows(self) -> int | None:
        return None if self.among is None else self.among.cardinality

    @property
    def deleted_rows(self) -> int:
        if self.file.vector is None or self.is_cut or self.among is not None:
            return 0
        return self.file.vector.cardinality

    @property
    def is_exact(self) -> bool:
        is_whole = self.file.vector is None or not self.is_cut
        return not self.from_feed and self.among is None and is_whole

    @property
    def version_name(self) -> str:
        return f"version {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class DeltaPosition:
    """A position; places are in the order in which a query reaches them."""

    version: int
    is_commit: bool  # False: of the snapshot of the version
    piece: int = 0  # number of the next one
    row: int = 0  # of it

    @staticmethod
    def after(version: int) -> DeltaPosition:
        """Return the place after a whole version: before the pieces of the next one."""
        return DeltaPosition(version=version + 1, is_commit=True)


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """Access to the files of a table's pieces."""

    table: TablePlace

    def file_of(self, piece: DeltaPiece) -> tuple[TablePlace, File]:
        """Return the location of a piece's file."""
        place, path = self.table.place_of(piece.file.path)
        modified_ns = piece.file.modified_ms * 10**6
        return place, File(path=path, size=piece.file.size, modified_ns=modified_ns)

    def reading_piece(self, piece: DeltaPiece) -> AbstractContextManager[None]:
        """Translate errors of a block that reads a piece's file."""
        return self.table.reading(f"file {piece.file.path!r}", piece.version)


def changed_pieces(
    commit: Commit, with_partition: Callable[[DataFile], DataFile]
) -> list[DeltaPiece]:
    """Return the pieces of a version's changes: first deleted rows, then inserted ones.

    `with_partition`: gives a removed file its partition's values, which old writers leave out.
    """
    version_fields: Any = {"version": commit.version, "timestamp_ms": commit.timestamp_ms}
    if commit.changes:
        return [
            DeltaPiece(file=file, sign=sign, from_feed=True, **version_fields)
            for sign in (-1, 1)
            for file in commit.changes
        ]
    adds = {file.path: file for file in commit.adds}
    removed_pieces, added_deletions = [], []
    for removed in commit.removes:
        added = adds.pop(removed.path, None)
        if added is None:
            removed_pieces.append(
                DeltaPiece(file=with_partition(removed), sign=-1, **version_fields)
            )
            continue
        if added.vector is not None:
            file = replace(added, vector=removed.vector)
            removed_pieces.append(
                DeltaPiece(file=file, sign=-1, among=added.vector, **version_fields)
            )
        if removed.vector is not None:
            added_deletions.append(DeltaPiece(file=added, among=removed.vector, **version_fields))
    return [*removed_pieces, *added_deletions, *added_pieces(commit, tuple(adds.values()))]


def added_pieces(commit: Commit, files: Sequence[DataFile]) -> list[DeltaPiece]:
    """Return the pieces of files that a version adds."""
    return [
        DeltaPiece(file=file, version=commit.version, timestamp_ms=commit.timestamp_ms)
        for file in files
    ]


def snapshot_pieces(state: Snapshot) -> list[DeltaPiece]:
    """Return the pieces of a snapshot, the oldest files first."""
    files = sorted(state.files.values(), key=lambda file: (file.modified_ms, file.path))
    return [
        DeltaPiece(file=file, version=state.version, timestamp_ms=file.modified_ms)
        for file in files
    ]


def position_of(position: Position) -> DeltaPosition:
    """Return the place of a position from a commit record."""
    return DeltaPosition(
        version=position["version"],
        is_commit=position["commit"],
        piece=position["piece"],
        row=position["row"],
    )
