"""Files of tests on a file system in memory, where there is one with room.

Every epoch forces files to disk, and stores map theirs: on a disk that is a third of what a test
costs.  None of them asks a real disk what it keeps over a loss of power; a model of one does
(`tests.oracles.unreliable_disk`), and killed processes lose nothing of a file in memory either.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")
_NEEDED_BYTES = 4 * 2**30


def use_memory_for_files() -> None:
    """Put temporary files of this process and of what it starts in memory, if there is room.

    ``TMPDIR``, where it is set, says otherwise.  What is left in the directory, such as the files
    of tests that failed, stays until the next process that calls this.
    """
    if "TMPDIR" in os.environ or not os.access(_SHARED_MEMORY, os.W_OK):
        return
    prefix = f"godwit-tests-{os.getuid()}-"
    for earlier in _SHARED_MEMORY.glob(f"{prefix}*"):
        if not Path("/proc", earlier.name.removeprefix(prefix)).exists():
            shutil.rmtree(earlier, ignore_errors=True)
    there = os.statvfs(_SHARED_MEMORY)
    if there.f_bavail * there.f_frsize < _NEEDED_BYTES:
        return
    directory = _SHARED_MEMORY / f"{prefix}{os.getpid()}"
    with suppress(FileExistsError):  # another process may have made it
        directory.mkdir(mode=0o711)  # servers of other users have directories in it
        os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
        os.environ.setdefault("SPARK_LOCAL_DIRS", str(directory))
