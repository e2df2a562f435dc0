"""The controller: a running stream that balances and scales itself.

Observe → evaluate → decide → act, once a *statistics period*, by the adaptation loop of Madsen et
al., "Integrative dynamic reconfiguration in a parallel stream processing engine", Algorithm 1: give
back executors that have been emptied, plan, decide on scaling *by the plan* (what cannot be
balanced away needs another executor), plan again, carry out within a budget.  Between two periods
only lanes change, within executors, where no state moves.

Everything here is pure: time, the cluster, the coordinator and even the running of a planner come
in through `godwit.control.interfaces`, so the same loop drives Spark and a simulator in virtual
time. Planners are timed for real (`godwit.control.planner_thread`) where a limit is set for them;
without one, as in virtual time, equal observations give equal decisions on every machine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from godwit.control.interfaces import (
        CommittedEpoch,
        Driven,
        ExecutorPool,
        PlannerRunner,
        PoolView,
        Topology,
    )
    from godwit.control.loop import Controller
    from godwit.control.settings import Budget, Control, Means

__all__ = [
    "Budget",
    "CommittedEpoch",
    "Control",
    "Controller",
    "Driven",
    "ExecutorPool",
    "Means",
    "PlannerRunner",
    "PoolView",
    "Topology",
]

_HOMES = {
    "Controller": "godwit.control.loop",
    **dict.fromkeys(("Budget", "Control", "Means"), "godwit.control.settings"),
}

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Import a name at its first use: one policy, such as hot keys, needs no controller."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES.get(name, "godwit.control.interfaces")), name)
