"""A function of the user's that says how many executors there should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.adapt.scaling.model import Wanted, checked_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.adapt.scaling.model import Situation

__all__ = ["Custom", "custom"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom:
    """See `custom`."""

    function: Callable[[Situation], int | Wanted]
    name: str
    paced: bool = True

    def wanted(self, situation: Situation) -> Wanted:
        """See `ScalingModel.wanted`."""
        said = self.function(situation)
        if isinstance(said, Wanted):
            return said
        count = checked_count(said)
        return Wanted(executors=count, comfortable=count, reason=f"{self.name} says {count}")


def custom(function: Callable[[Situation], int | Wanted], *, name: str = "") -> Custom:
    """Let a function say how many executors there should be.

    function: Is given the situation once a period; returns a number, or a `Wanted` with its
    reasons.
    name: For events; by default the function's own.
    """
    return Custom(function=function, name=name or getattr(function, "__name__", "scaling function"))
