"""Arrays in mapped files instead of on the heap, so that the kernel can take their memory back."""

from __future__ import annotations

import mmap
import tempfile
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from godwit.store.image import storage_full

if TYPE_CHECKING:
    from pathlib import Path

_T = TypeVar("_T", bound=np.generic)
_MIN_BYTES: Final = 1 << 20


def mapped(array: npt.NDArray[_T], directory: Path) -> npt.NDArray[_T]:
    """Return a large array as a mapped file without a name in a directory, for reading only.

    Small ones stay as they are. The file is gone with the array, or with the process. Raises
    `StorageFullError` if the disk is full.
    """
    if array.nbytes < _MIN_BYTES:
        return array
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(array.data)
            file.flush()
            memory: Any = mmap.mmap(file.fileno(), array.nbytes, access=mmap.ACCESS_READ)
    except OSError as error:
        raise storage_full(error, directory, array.nbytes) from error
    return np.frombuffer(memory, array.dtype)
