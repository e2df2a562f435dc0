"""State of a controller that survives restarts of its query.

Events tell of every decision, but a journal is bounded and epochs fill it within minutes; so what
still counts is written down as a whole, now and then, and the next run goes on from the last of it.

Invariant: nothing depends on it. Of another version, damaged or gone, it costs a cool-down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerMemory:
    """Overrides, the last scaling decision, usual rates, and numbers of executors."""

    # manual change → end of its override, in Unix time
    overrides: Mapping[str, float] = field(default_factory=dict)
    scaled: str = ""  # ``"out"``, ``"in"``, or nothing yet
    scaled_s: float = 0.0  # when
    rates_per_s: tuple[float, ...] = ()  # at which rows arrived in the last intervals
    # rates of days, for a forecast (`RateHistory.to_dict`), and how long executors took to come
    rates: Mapping[str, Any] = field(default_factory=dict)
    came_s: float = 0.0
    # numbers of executors in use, oldest first, each change one: what planners that expect further
    # changes go by (paper 1 §5.2)
    sizes: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the memory as plain values for the journal."""
        return {
            "overrides": dict(self.overrides),
            "scaled": self.scaled,
            "scaled_s": self.scaled_s,
            "rates_per_s": list(self.rates_per_s),
            "sizes": list(self.sizes),
            **({"rates": dict(self.rates), "came_s": self.came_s} if self.rates else {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ControllerMemory | None:
        """Restore a memory from `to_dict`; ``None`` if the values are not valid."""
        try:
            rates = tuple(float(rate) for rate in values["rates_per_s"])
            overrides = {str(what): float(t) for what, t in values["overrides"].items()}
            scaled, scaled_s = str(values["scaled"]), float(values["scaled_s"])
            sizes = tuple(int(size) for size in values.get("sizes", ()))
            history, came_s = dict(values.get("rates", {})), float(values.get("came_s", 0.0))
        except (LookupError, TypeError, ValueError, AttributeError):
            return None
        if not all(map(math.isfinite, (*rates, *overrides.values(), scaled_s, came_s))):
            return None
        if min(*rates, *sizes, came_s, 0.0) < 0 or scaled not in ("", "in", "out"):
            return None
        return cls(
            overrides=overrides,
            scaled=scaled,
            scaled_s=scaled_s,
            rates_per_s=rates,
            rates=history,
            came_s=came_s,
            sizes=sizes,
        )
