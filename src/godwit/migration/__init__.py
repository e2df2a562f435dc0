"""Live migration: key groups change executor while the stream flows, and no row is lost.

A local store is a cache of a committed version, so state is never "sent away".  A copy is *warmed*
at the destination while the source continues processing; once it lags by a few epochs at most, the
assignment switches between two epochs and the lane applies the rest.  Invariants:

1. The assignment of an epoch is total and fixed while the epoch runs.
2. A key group that runs is warm where it runs, or was ordered to be loaded there.  A key group
   that is neither is *suspended*: its rows wait in the changelog, and other key groups continue.
3. Key groups and bytes in flight are bounded (a *mini-migration*), for every plan.

`MigrationProtocol` is a state machine without I/O: it has a method for every fact, which returns
the commands that follow (``commands``).  A runtime drives the `Coordinator`, which owns the
protocol and the record of copies, and acts through `Ports`.

The names here are those of ``gw.migration``, for users; other packages import from the modules.

Source: Ding et al., "Optimal operator state migration for elastic data stream processing", §3
(wait buffers, progressive migration, transfer phases); the strategies' names are Madsen et al.,
"Enorm", §4.5.
"""

from typing import TYPE_CHECKING

from godwit.model.naming import lazily

if TYPE_CHECKING:
    from godwit.migration.strategy import Bounds, CopiesFrom, LossPolicy, Policy, Strategy
    from godwit.model.assignment import Assignment, Move, even_assignment

__all__ = [
    "Assignment",
    "Bounds",
    "CopiesFrom",
    "LossPolicy",
    "Move",
    "Policy",
    "Strategy",
    "even_assignment",
]

if not TYPE_CHECKING:  # a type checker would take every name for granted
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "godwit.migration.strategy": (
                "Bounds",
                "CopiesFrom",
                "LossPolicy",
                "Policy",
                "Strategy",
            ),
            "godwit.model.assignment": ("Assignment", "Move", "even_assignment"),
        },
        {},
    )
