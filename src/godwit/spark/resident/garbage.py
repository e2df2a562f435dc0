"""Garbage collection of a driver whose lanes stay.

The problem: now and then Python searches all objects of a process for reference cycles, and every
thread waits.  A driver with PySpark, Arrow and pandas has some hundred thousand, nearly all of them
for good; the search takes 100 ms and more, several times as long as a small epoch.

From the first start of a query's resident lanes to the end of the query, objects that are older
are left out of these searches; newer ones are searched as usual.
"""

from __future__ import annotations

import gc
import threading
from typing import Final

_lock: Final = threading.Lock()
_queries: Final[set[str]] = set()  # that have resident lanes


def pause_collection(query: str) -> None:
    """Exclude present objects from garbage collection until `resume_collection` is called.

    The second call for a query changes nothing.
    """
    with _lock:
        if not _queries:
            gc.collect()  # unreachable cycles must not be frozen
            gc.freeze()
        _queries.add(query)


def resume_collection(query: str) -> None:
    """Collect garbage as usual, once every query that called `pause_collection` has called this."""
    with _lock:
        if query in _queries:
            _queries.discard(query)
            if not _queries:
                gc.unfreeze()
