"""Splits of pieces of a Delta table: their rows, their sizes, and where large files are cut."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from godwit.connect.delta.rows import FORMAT, file_of
from godwit.model.text import counted
from godwit.sources.file_formats import FileRange
from godwit.sources.source import Split

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from godwit.connect.delta.pieces import Piece
    from godwit.connect.delta.place import Table
    from godwit.sources.file_formats import FileLayout

_MIN_SPLIT_BYTES: Final = 64 << 10
_MAX_LAYOUTS: Final = 4096  # remembered


class Splitter:
    """Divides pieces among tasks; remembers the row groups of files."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._layouts: OrderedDict[str, FileLayout] = OrderedDict()

    def splits(
        self, pieces: Sequence[Piece], parallelism: int, *, skipped: int, filtered: bool
    ) -> list[Split]:
        """Return about `parallelism` splits: groups of small files, and parts of large ones.

        `skipped`: number of files that filters leave out. `filtered`: they leave out rows too.
        """
        total = sum(self._size_of(piece) for piece in pieces)
        target = max(total / max(parallelism, 1), _MIN_SPLIT_BYTES)
        parts = [part for piece in pieces for part in self._cut(piece, target)]
        grouped: dict[int, list[Piece]] = {}
        before = 0.0
        for part in parts:
            size = self._size_of(part)
            grouped.setdefault(int((before + size / 2) / target), []).append(part)
            before += size
        return [
            self._split(group, skipped if number == 0 else 0, filtered=filtered)
            for number, group in enumerate(grouped.values())
        ]

    def count(self, piece: Piece) -> int:
        """Return the rows of a piece's file, or of those of them that it is about."""
        if piece.among is not None:
            return max(piece.among.cardinality, 1)
        if piece.file.rows is not None:
            return piece.file.rows
        return self._layout_of(piece).rows

    def _layout_of(self, piece: Piece) -> FileLayout:
        """Return the row groups of a piece's file."""
        path = piece.file.path
        if path not in self._layouts:
            with self._table.reading(f"file {path!r}", piece.version):
                place, file = file_of(self._table, piece)
                self._layouts[path] = FORMAT.layout(place, file)
            if len(self._layouts) > _MAX_LAYOUTS:
                self._layouts.popitem(last=False)
        return self._layouts[path]

    def _size_of(self, piece: Piece) -> float:
        """Return the bytes of a piece, in proportion to its rows."""
        if not piece.is_cut:
            return piece.file.size
        rows = self.count(replace(piece, among=None))
        stop = rows if piece.stop is None else piece.stop
        return piece.file.size * (stop - piece.start) / max(rows, 1)

    def _cut(self, piece: Piece, target: float) -> Iterator[Piece]:
        """Yield parts of a piece that are about as large as a split, cut between row groups."""
        if self._size_of(piece) <= target:
            yield piece
            return
        layout = self._layout_of(piece)
        stop = layout.rows if piece.stop is None else piece.stop
        _, file = file_of(self._table, piece)
        whole = FileRange(file=replace(file, size=max(file.size, 1)), start=piece.start, stop=stop)
        edges = [piece.start, *FORMAT.cut_row_groups(whole, layout, target / 8), stop]
        for start, upto in itertools.pairwise(edges):
            yield replace(piece, start=start, stop=piece.stop if upto == stop else upto)

    def _split(self, group: Sequence[Piece], skipped: int, *, filtered: bool) -> Split:
        """Return a split of pieces; adjacent parts of one file become one."""
        pieces: list[Piece] = []
        for part in group:
            joins = bool(part.start and pieces and pieces[-1].stop == part.start)
            if joins and part == replace(pieces[-1], start=part.start, stop=part.stop):
                pieces[-1] = replace(pieces[-1], stop=part.stop)
            else:
                pieces.append(part)
        counts = [self.known_rows(piece) for piece in pieces]
        known = [count for count in counts if count is not None]
        first = pieces[0]
        what = first.file.path
        if len(pieces) > 1:
            what = f"{counted(len(pieces), 'file')} from {what}"
        elif first.is_cut:
            what = f"{what} from {first.start} to {first.stop or 'end'}"
        if skipped:
            what += f", {counted(skipped, 'file')} skipped by filters"
        return Split(
            rows=sum(known) if len(known) == len(counts) else None,
            exact=not filtered and all(piece.is_exact for piece in pieces),
            size_bytes=sum(int(self._size_of(piece)) for piece in pieces)
            if all(piece.file.size for piece in pieces)
            else None,
            what=f"version {first.version}: {what}",
            payload=tuple(replace(piece, file=replace(piece.file, stats=None)) for piece in pieces),
            arrived_us=tuple(piece.timestamp_ms * 1000 for piece in pieces if piece.timestamp_ms),
        )

    def known_rows(self, piece: Piece) -> int | None:
        """Return the rows of a piece, or a bound of them; ``None`` if they are not known."""
        if piece.among is not None:
            return piece.among.cardinality
        rows = piece.file.rows
        if piece.file.path in self._layouts:
            rows = self._layouts[piece.file.path].rows
        if piece.stop is not None:
            return piece.stop - piece.start
        if rows is None:
            return None
        deleted = 0
        if piece.file.vector is not None and not piece.is_cut:
            deleted = piece.file.vector.cardinality
        return rows - piece.start - deleted
