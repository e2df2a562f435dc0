"""Changes of a running flow that policies propose: components, key columns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.records import PhysicalPlan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Proposal:
    """A change that a policy proposes, or its reason against any."""

    subject: str  # what it is about, for people
    change: Any = None  # what the actor is to do; ``None``: nothing
    reason: str = ""
    gain: float = math.inf  # in the unit of the cost; infinite: it must be, whatever it costs
    cost: float = 0.0  # as far as the policy knows it; the actor may know more
    numbers: Mapping[str, float] = field(default_factory=dict)  # what it rests on
    reverses: frozenset[str] = frozenset()  # manual changes that it would, texts of `ManualChange`


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup:
    """Change of the components that operators belong to."""

    components: Mapping[str, tuple[str, ...]]  # component → its operators
    plan: PhysicalPlan  # that it was decided under


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """Change of the key columns that place an operator's rows."""

    operator: str
    columns: tuple[str, ...]
