"""Position of a source of files: the set of files that were read.

It has the key and the version of every file that was read to its end and was still there when files
were listed last, 12 bytes a file, and how far the one file is read that is read in part. Nothing
follows from the order of files: one that turns up with an older modification time than others that
were read is not in the set, so it is read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np

from godwit.sources.directory import File, key_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from godwit.sources.source import Position

OffsetUnit: TypeAlias = Literal["row", "byte"]

_KEY: Final = np.dtype("<u8")
_VERSION: Final = np.dtype("<u4")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartlyRead:
    """A file that is read up to an offset."""

    file: File
    offset: int
    unit: OffsetUnit | None = None  # None: of a position that does not say

    @property
    def key(self) -> int:
        """Key of the file: the hash of its path (`godwit.sources.directory.key_of`)."""
        return key_of(self.file.path)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilePosition:
    """Files that were read."""

    keys: npt.NDArray[np.uint64]  # ascending
    versions: npt.NDArray[np.uint32]  # of the files of these keys
    partly: PartlyRead | None = None

    @staticmethod
    def beginning() -> FilePosition:
        """Return the position before the first file."""
        return FilePosition(keys=np.zeros(0, np.uint64), versions=np.zeros(0, np.uint32))

    @staticmethod
    def of(position: Position) -> FilePosition:
        """Decode a position from a commit record."""
        partly = position["file"]
        return FilePosition(
            keys=np.frombuffer(position["keys"], _KEY).astype(np.uint64),
            versions=np.frombuffer(position["versions"], _VERSION).astype(np.uint32),
            partly=None
            if partly is None
            else PartlyRead(
                file=File(**{field.name: partly[field.name] for field in fields(File)}),
                offset=partly["offset"],
                unit=partly.get("unit"),
            ),
        )

    def encoded(self) -> dict[str, Any]:
        """Encode the position for a commit record."""
        order = np.argsort(self.keys, kind="stable")
        partly = self.partly
        return {
            "keys": self.keys[order].astype(_KEY).tobytes(),
            "versions": self.versions[order].astype(_VERSION).tobytes(),
            "file": None
            if partly is None
            else {**asdict(partly.file), "offset": partly.offset, "unit": partly.unit},
        }

    def describe(self) -> dict[str, Any]:
        """Return the position as a few short values for people."""
        shown: dict[str, Any] = {"files": len(self.keys)}
        if (partly := self.partly) is not None:
            place = " ".join([partly.unit or "", f"{partly.offset:,}"]).strip()
            whole = f" of {partly.file.size:,}" if partly.unit == "byte" else ""
            shown["reading"] = f"{partly.file.path} at {place}{whole}"
        return shown

    def has_read(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return a mask of the files (by key) that have been read to the end."""
        return np.isin(keys, self.keys)


def describe_position(position: Position) -> Position:
    """Return a position of a file source as short values for people; other positions unchanged."""
    is_of_files = isinstance(position, dict) and position.keys() == {"keys", "versions", "file"}
    return FilePosition.of(position).describe() if is_of_files else position
