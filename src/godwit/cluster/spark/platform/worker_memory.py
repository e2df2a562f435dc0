"""What a Python worker has loaded is no garbage, so nobody need search it for some.

After every task PySpark's worker searches all its objects for reference cycles before it takes the
next one.  With PySpark, Arrow and Godwit loaded these are some 85,000 objects and 30 to 60 ms, and
the next task is usually the next stage of the same epoch, which waits.  Nearly all of them stay for
as long as the process lives.
"""

from __future__ import annotations

import gc

__all__ = ["settle"]

_SETTLED_AFTER_TASKS = 2
_tasks: dict[str, int] = {}


def settle(program: str) -> None:
    """Take everything there is now out of later searches; call it at the start of every task.

    The first tasks of a program load what it needs, some of it late; after them this does nothing,
    so that what cycles there are in the state of a running program are found as ever.

    Parameters
    ----------
    program
        What the process runs. When it changes, what the one before has left is searched once more.
    """
    if program not in _tasks:
        _tasks.clear()
        gc.unfreeze()
    done = _tasks.get(program, 0)
    if done < _SETTLED_AFTER_TASKS:
        _tasks[program] = done + 1
        gc.collect()
        gc.freeze()
