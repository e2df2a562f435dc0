"""Garbage collection of a driver whose lanes stay.

The problem: now and then Python searches all objects of a process for reference cycles, and every
thread waits.  A driver with PySpark, Arrow and pandas has some hundred thousand, nearly all of them
for good; the search takes 100 ms and more, several times as long as a small epoch.

While a query with resident lanes runs, objects that are older than it are left out of these
searches; newer ones are searched as usual.
"""

from __future__ import annotations

import gc
import threading
from typing import Final

_lock: Final = threading.Lock()
_queries = 0  # that have frozen objects


def pause_collection() -> None:
    """Exclude present objects from garbage collection until `resume_collection` is called."""
    global _queries
    with _lock:
        if not _queries:
            gc.collect()  # unreachable cycles must not be frozen
            gc.freeze()
        _queries += 1


def resume_collection() -> None:
    """Collect garbage as usual, once every query that called `pause_collection` has called this."""
    global _queries
    with _lock:
        _queries = max(0, _queries - 1)
        if not _queries:
            gc.unfreeze()
