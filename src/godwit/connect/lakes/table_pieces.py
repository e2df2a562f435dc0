"""Files of a versioned table, such as one of Delta Lake or Iceberg, as pieces that epochs read.

A table says, of each version, which rows of which files it adds and takes away: a list of *pieces*
in an order that never changes.  So a position is a version, the number of a piece, and a row of its
file.  The table's own code finds versions and pieces; how far an epoch goes, and how its pieces are
divided among tasks, is here.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, Literal, Protocol, TypeVar

import numpy as np

from godwit.connect.files.file_formats import FileRange, ParquetFormat
from godwit.model.errors import SourceError
from godwit.model.text import counted
from godwit.sources.source import Split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from godwit.connect.files.directory import File
    from godwit.connect.files.file_formats import FileLayout, FilePlace

PARQUET: Final = ParquetFormat()
_MIN_SPLIT_BYTES: Final = 64 << 10
_MAX_LAYOUTS: Final = 4096  # remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePiece(ABC):
    """Rows of a data file with one sign, from `start` to `stop` by their numbers in the file."""

    timestamp_ms: int
    sign: Literal[-1, 1] = 1
    start: int = 0
    stop: int | None = None  # None: to the end
    is_skipped: bool = False  # the filters leave out all of its rows

    @property
    @abstractmethod
    def file_path(self) -> str:
        """Path of the file, as stored in the table."""

    @property
    @abstractmethod
    def file_bytes(self) -> int:
        """Size of the file; 0 if it is not known."""

    @property
    @abstractmethod
    def file_rows(self) -> int | None:
        """Number of rows of the file, including deleted ones; ``None``: unknown."""

    @property
    @abstractmethod
    def among_rows(self) -> int | None:
        """Upper bound of its rows if it has only the rows of a deletion vector, else ``None``."""

    @property
    def deleted_rows(self) -> int:
        """Number of rows between `start` and `stop` that are known to be deleted."""
        return 0

    @property
    @abstractmethod
    def is_exact(self) -> bool:
        """True if the number of rows is known without reading the file."""

    @property
    @abstractmethod
    def version_name(self) -> str:
        """Version of the table, for errors and plans."""

    @property
    def is_cut(self) -> bool:
        """True if the piece covers only a part of the file."""
        return self.start > 0 or self.stop is not None


PieceT = TypeVar("PieceT", bound=TablePiece)
PlaceT = TypeVar("PlaceT")
_ReadT_contra = TypeVar("_ReadT_contra", bound=TablePiece, contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPieces(Generic[PieceT, PlaceT]):
    """Pieces of a version, from a place in it on, up to another."""

    pieces: Sequence[PieceT]
    first: int  # piece to begin at
    row: int  # of it
    stop: tuple[int, int] | None  # piece and row not to exceed; None: to the end of the version
    is_commit: bool  # False: all rows of a version, rather than its changes
    place: Callable[[int, int], PlaceT]  # of a piece and a row
    after: PlaceT  # where they end

    def ranges(self) -> Iterator[tuple[int, PieceT]]:
        """Yield the pieces with their numbers, cut at the start and the end."""
        for number in range(self.first, len(self.pieces)):
            row, stop = self.row if number == self.first else 0, None
            if self.stop is not None and number >= self.stop[0]:
                stop = self.stop[1]
                if number > self.stop[0] or stop <= row:
                    return
            piece = self.pieces[number]
            yield (
                number,
                piece if not row and stop is None else replace(piece, start=row, stop=stop),
            )


def pieces_between(
    versions: Iterable[VersionPieces[PieceT, PlaceT]],
) -> tuple[list[PieceT], int]:
    """Return the pieces of versions, and the number of those that filters skip."""
    pieces = [piece for version in versions for _, piece in version.ranges()]
    between = [piece for piece in pieces if not piece.is_skipped]
    return between, len(pieces) - len(between)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochLimits:
    """Limits of an epoch; ``None``: unlimited."""

    rows: int | None
    files: int | None
    whole: bool  # an epoch has all that a version changes, or nothing of it
    versions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEnd(Generic[PlaceT]):
    """Place at which an epoch ends."""

    place: PlaceT
    taken: int  # files
    skipped: int  # that filters leave out


def epoch_end(
    versions: Iterable[VersionPieces[PieceT, PlaceT]],
    begin: PlaceT,
    limits: EpochLimits,
    num_rows: Callable[[PieceT], int],
) -> EpochEnd[PlaceT]:
    """Return where an epoch that begins at a place ends, given its limits.

    An epoch has at least one piece, if the versions have any.  If a version cannot be read, the
    epoch ends before it, and the next one raises the error.

    `num_rows`: an upper bound of the rows of a piece.
    """
    place, rows_left, num_pieces, skipped = begin, limits.rows, 0, 0
    next_versions = iter(versions)
    for number_of_version in itertools.count():
        if num_pieces and limits.versions is not None and number_of_version >= limits.versions:
            break
        try:
            version = next(next_versions, None)
        except SourceError:
            if num_pieces:
                break
            raise
        if version is None:
            break
        is_whole = limits.whole and version.is_commit
        if is_whole and num_pieces:
            read_pieces = [piece for piece in version.pieces if not piece.is_skipped]
            if limits.files is not None and num_pieces + len(read_pieces) > limits.files:
                break
            if rows_left is not None and sum(map(num_rows, read_pieces)) > rows_left:
                break
        for number, piece in version.ranges():
            if piece.is_skipped:
                skipped += 1
                continue
            end = None
            if not is_whole and num_pieces and (rows_left == 0 or num_pieces == limits.files):
                end = piece.start
            elif rows_left is not None:
                count = num_rows(piece)
                if not is_whole and piece.among_rows is None and count > rows_left:
                    end = piece.start + rows_left
                rows_left = max(rows_left - count, 0)
            if end is not None:
                return EpochEnd(
                    place=version.place(number, end), taken=num_pieces + 1, skipped=skipped
                )
            num_pieces += 1
        place = version.after
    return EpochEnd(place=place, taken=num_pieces, skipped=skipped)


class PieceFiles(Protocol[_ReadT_contra]):
    """Access to the files of pieces."""

    def file_of(self, piece: _ReadT_contra) -> tuple[FilePlace, File]:
        """Return the location of a piece's file."""

    def reading_piece(self, piece: _ReadT_contra) -> AbstractContextManager[None]:
        """Translate errors of a block that reads a piece's file."""


class PieceSplitter(Generic[PieceT]):
    """Divides pieces among tasks; remembers the row groups of files."""

    def __init__(self, files: PieceFiles[PieceT]) -> None:
        self._files = files
        self._layouts: OrderedDict[str, FileLayout] = OrderedDict()

    def splits(
        self, pieces: Sequence[PieceT], parallelism: int, *, skipped: int, filtered: bool
    ) -> list[Split]:
        """Return about `parallelism` splits: groups of small files, and parts of large ones.

        The payload of a split is its pieces.  `skipped`: number of files that filters leave out.
        `filtered`: they leave out rows too.
        """
        total = sum(self._size_of(piece) for piece in pieces)
        target = max(total / max(parallelism, 1), _MIN_SPLIT_BYTES)
        parts = [part for piece in pieces for part in self._cut(piece, target)]
        grouped: dict[int, list[PieceT]] = {}
        bytes_before = 0.0
        for part in parts:
            size = self._size_of(part)
            grouped.setdefault(int((bytes_before + size / 2) / target), []).append(part)
            bytes_before += size
        return [
            self._split(group, skipped if number == 0 else 0, filtered=filtered)
            for number, group in enumerate(grouped.values())
        ]

    def num_rows(self, piece: PieceT) -> int:
        """Return an upper bound of the rows of a piece, with deleted ones."""
        stop = self._file_rows(piece) if piece.stop is None else piece.stop
        rows = stop - piece.start
        return rows if piece.among_rows is None else min(rows, piece.among_rows)

    def known_rows(self, piece: PieceT) -> int | None:
        """Return an upper bound of a piece's rows; ``None`` if its file would have to be read."""
        is_known = piece.stop is not None or piece.file_rows is not None
        if is_known or piece.file_path in self._layouts:
            return self.num_rows(piece) - piece.deleted_rows
        return piece.among_rows

    def _file_rows(self, piece: PieceT) -> int:
        """Return the number of rows of a piece's file."""
        return self._layout_of(piece).rows if piece.file_rows is None else piece.file_rows

    def _layout_of(self, piece: PieceT) -> FileLayout:
        """Return the row groups of a piece's file."""
        path = piece.file_path
        if path not in self._layouts:
            with self._files.reading_piece(piece):
                self._layouts[path] = PARQUET.layout(*self._files.file_of(piece))
            if len(self._layouts) > _MAX_LAYOUTS:
                self._layouts.popitem(last=False)
        return self._layouts[path]

    def _size_of(self, piece: PieceT) -> float:
        """Return the bytes of a piece, in proportion to its rows."""
        if not piece.is_cut:
            return piece.file_bytes
        rows = self._file_rows(piece)
        stop = rows if piece.stop is None else piece.stop
        return piece.file_bytes * (stop - piece.start) / max(rows, 1)

    def _cut(self, piece: PieceT, target: float) -> Iterator[PieceT]:
        """Yield parts of a piece, about the size of a split, cut between row groups."""
        if self._size_of(piece) <= target:
            yield piece
            return
        layout = self._layout_of(piece)
        stop = layout.rows if piece.stop is None else piece.stop
        _, file = self._files.file_of(piece)
        bounded = FileRange(
            file=replace(file, size=max(file.size, 1)), start=piece.start, stop=stop
        )
        edges = [piece.start, *PARQUET.cut_row_groups(bounded, layout, target / 8), stop]
        for start, part_end in itertools.pairwise(edges):
            yield replace(piece, start=start, stop=piece.stop if part_end == stop else part_end)

    def _split(self, group: Sequence[PieceT], skipped: int, *, filtered: bool) -> Split:
        """Return a split of pieces; adjacent parts of one file become one."""
        pieces: list[PieceT] = []
        for part in group:
            joins = bool(part.start and pieces and pieces[-1].stop == part.start)
            if joins and part == replace(pieces[-1], start=part.start, stop=part.stop):
                pieces[-1] = replace(pieces[-1], stop=part.stop)
            else:
                pieces.append(part)
        counts = [self.known_rows(piece) for piece in pieces]
        known_counts = [count for count in counts if count is not None]
        first = pieces[0]
        description = first.file_path
        if len(pieces) > 1:
            description = f"{counted(len(pieces), 'file')} from {description}"
        elif first.is_cut:
            description = (
                f"{description} from {first.start} to {first.stop or first.file_rows or 'end'}"
            )
        if skipped:
            description += f", {counted(skipped, 'file')} skipped by filters"
        return Split(
            rows=sum(known_counts) if len(known_counts) == len(counts) else None,
            exact=not filtered and all(piece.is_exact for piece in pieces),
            size_bytes=sum(int(self._size_of(piece)) for piece in pieces)
            if all(piece.file_bytes for piece in pieces)
            else None,
            what=f"{first.version_name}: {description}",
            payload=tuple(pieces),
            arrived_us=tuple(piece.timestamp_ms * 1000 for piece in pieces if piece.timestamp_ms),
        )


def selected_rows(
    first: int,
    count: int,
    deleted: npt.NDArray[np.int64],
    among: npt.NDArray[np.int64] | None,
) -> npt.NDArray[np.int64] | None:
    """Return the places, in a batch, of the rows that a piece has; ``None``: all.

    `first`: number of the batch's first row in the file; `count`: its rows.  `deleted`, `among`:
    numbers of rows in order, those that the piece leaves out and those that it is about (``None``:
    all).

    Examples
    --------
    >>> selected_rows(100, 4, np.array([7, 102]), None).tolist()
    [0, 1, 3]
    """
    low, high = np.searchsorted(deleted, [first, first + count])
    if among is None and low == high:
        return None
    mask = np.full(count, among is None)
    if among is not None:
        start, stop = np.searchsorted(among, [first, first + count])
        mask[among[start:stop] - first] = True
    mask[deleted[low:high] - first] = False
    return np.flatnonzero(mask)
