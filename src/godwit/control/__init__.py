"""The controller, which balances and scales a running stream.

Observe → evaluate → decide → act, once a *statistics period*, by the adaptation loop of Madsen et
al., "Integrative dynamic reconfiguration in a parallel stream processing engine", Algorithm 1: give
back executors that have been emptied, plan, decide on scaling *by the plan* (what cannot be
balanced away needs another executor), plan again, carry out within a budget.  Between two periods
only lanes change, within executors, where no state moves.

Everything here is pure: time, the cluster, the coordinator and even the running of a planner come
in through `godwit.control.interfaces`, so the same loop drives Spark and a simulator in virtual
time. Planners are timed for real (`godwit.control.planner_thread`) where a limit is set for them;
without one, as in virtual time, equal observations give equal decisions on every machine.

The names here are those of ``gw.control``, for users; other packages import from the modules.
"""

from typing import TYPE_CHECKING

from godwit.model.naming import lazily

if TYPE_CHECKING:
    from godwit.control.adaptation import Adaptation
    from godwit.control.forecast import Forecast
    from godwit.control.fusing import Fusion
    from godwit.control.scaling import fixed, latency, load_range, scripted, utilisation
    from godwit.control.settings import Budget, Cadence, Means, Search, Worth
    from godwit.control.spreading import Spreading
    from godwit.control.windows import Splitting

__all__ = [
    "Adaptation",
    "Budget",
    "Cadence",
    "Forecast",
    "Fusion",
    "Means",
    "Search",
    "Splitting",
    "Spreading",
    "Worth",
    "fixed",
    "latency",
    "load_range",
    "scripted",
    "utilisation",
]

if not TYPE_CHECKING:  # a type checker would take every name for granted
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "godwit.control.adaptation": ("Adaptation",),
            "godwit.control.forecast": ("Forecast",),
            "godwit.control.fusing": ("Fusion",),
            "godwit.control.scaling": ("fixed", "latency", "load_range", "scripted", "utilisation"),
            "godwit.control.settings": ("Budget", "Cadence", "Means", "Search", "Worth"),
            "godwit.control.spreading": ("Spreading",),
            "godwit.control.windows": ("Splitting",),
        },
        {"Control": "gw.Control"},
    )
