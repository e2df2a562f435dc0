"""Settings of Python workers that make tasks start sooner and run with fewer page faults."""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import stat
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_RETAINED_BYTES: Final = 512 * 2**20
_HEAP_BYTES: Final = 32 * 2**20  # the most that the C library allows
_SETTLED_AFTER_TASKS = 2
_tasks: dict[str, int] = {}  # program → tasks that have run


def freeze_loaded_objects(program: str) -> None:
    """Exclude all present objects from later garbage collections; called in every task.

    After every task PySpark's worker searches all its objects for reference cycles before it takes
    the next one, usually the next stage of the same epoch, which waits: with PySpark, Arrow and
    Godwit loaded some 85,000 objects and 30 to 60 ms. Nearly all of them stay for as long as the
    process lives. The first tasks of a program load what it needs; after them this is a no-op, so
    that cycles in the state of a running program are found as usual.
    """
    if program not in _tasks:
        _tasks.clear()
        gc.unfreeze()
    done = _tasks.get(program, 0)
    if done < _SETTLED_AFTER_TASKS:
        _tasks[program] = done + 1
        gc.collect()
        gc.freeze()


@lru_cache(maxsize=1)
def retain_freed_memory() -> bool:
    """Make malloc keep freed memory for the next task; return whether it does.

    An epoch of a million rows takes and frees some hundred MiB of arrays in each worker. By default
    large ones go back to the operating system at once, which clears every page again in the next
    epoch: a quarter of the CPU time of such an epoch. So arrays of up to 32 MiB come from the C
    library's heap, Arrow's too, and up to 512 MiB that are free at its end stay. Done once per
    process, by the first task; nothing is changed if the C library is not glibc.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        if mallopt(_M_MMAP_THRESHOLD, _HEAP_BYTES) and mallopt(_M_TRIM_THRESHOLD, _RETAINED_BYTES):
            pa.set_memory_pool(pa.system_memory_pool())
            return True
    return False


def acknowledge_quickly() -> None:
    """Ask for quick acknowledgement on the TCP connections of this process (on Linux).

    It takes 40 ms off every Python task.  Spark's JVM hands a worker its task in several small
    writes; TCP holds back the second until the first is acknowledged, and the receiver delays that.
    Linux forgets the wish after a while, so every task renews it, for itself and the next one.
    """
    quick = getattr(socket, "TCP_QUICKACK", None)
    if quick is None:
        return
    for descriptor in Path("/proc/self/fd").iterdir():
        fd = int(descriptor.name)
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            connection = socket.socket(fileno=fd)
        except OSError:  # closed meanwhile: the listing's own descriptor
            continue
        try:
            connection.setsockopt(socket.IPPROTO_TCP, quick, 1)
        except OSError:  # not a TCP connection
            pass
        finally:
            connection.detach()  # it is not ours to close
