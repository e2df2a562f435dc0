"""A disk that has no room for some files."""

from __future__ import annotations

import os
from pathlib import Path

from godwit.checkpoint.storage import PosixDisk

__all__ = ["FullDisk"]


class FullDisk(PosixDisk):
    """Refuses to write to files whose path has a certain text in it.

    Parameters
    ----------
    part
        The text.
    error
        Number of the error.
    """

    def __init__(self, part: str, error: int) -> None:
        self.part, self.error = part, error

    def write(self, descriptor: int, data: memoryview) -> int:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if self.part in path:
            raise OSError(self.error, os.strerror(self.error), path)
        return super().write(descriptor, data)
