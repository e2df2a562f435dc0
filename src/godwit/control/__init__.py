"""Settings of the controller, beside ``gw.Control``, and rules for the number of executors."""

from typing import TYPE_CHECKING

from godwit.model.naming import lazily

if TYPE_CHECKING:
    from godwit.adapt.forecast import Forecast
    from godwit.adapt.fusing import Fusion
    from godwit.adapt.scaling import fixed, latency, load_range, scripted, utilisation
    from godwit.adapt.settings import Budget, Cadence, Means, Search, Worth
    from godwit.adapt.spreading import Spreading
    from godwit.adapt.windows import Splitting

__all__ = [
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
            "godwit.adapt.forecast": ("Forecast",),
            "godwit.adapt.fusing": ("Fusion",),
            "godwit.adapt.scaling": ("fixed", "latency", "load_range", "scripted", "utilisation"),
            "godwit.adapt.settings": ("Budget", "Cadence", "Means", "Search", "Worth"),
            "godwit.adapt.spreading": ("Spreading",),
            "godwit.adapt.windows": ("Splitting",),
        },
        {"Control": "gw.Control"},
    )
