"""A scenario: everything that a simulated run is given, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from godwit.cluster.simulated.costs import CostModel
from godwit.migration import Policy
from godwit.model.errors import InvalidProblemError

if TYPE_CHECKING:
    from godwit.cluster.simulated.arrivals import Rate
    from godwit.cluster.simulated.cluster import Cluster
    from godwit.cluster.simulated.components import Component
    from godwit.cluster.simulated.keys import Keys
    from godwit.model.assignment import Assignment

__all__ = ["Scenario"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A cluster, a flow, the rows that come, and what things cost.

    Attributes
    ----------
    cluster
        Where it runs.
    components
        What runs.
    rate, keys
        Rows that come, and their keys.
    duration_s
        How long rows come.
    trigger_s
        Least time from the start of a micro-batch to that of the next; 0: as soon as possible.
    max_rows
        Rows that a micro-batch takes at most: what comes faster waits at the source.
    costs
        What an epoch costs.
    held
        Whether the stream has run for long: every key has state, and executors have copies of what
        they own. Otherwise there is no state at all at first.
    policy
        What holds for migrations during the whole run.
    assignments
        Component → where its key groups are at first; left out: dealt out evenly.
    """

    cluster: Cluster
    components: tuple[Component, ...]
    rate: Rate
    keys: Keys
    duration_s: float
    trigger_s: float = 0.0
    max_rows: int | None = None
    costs: CostModel = field(default_factory=CostModel.calibrated)
    held: bool = True
    policy: Policy = field(default_factory=Policy)
    assignments: dict[str, Assignment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        too_few = self.max_rows is not None and self.max_rows < 1
        if not self.duration_s > 0 or self.trigger_s < 0 or too_few:
            raise InvalidProblemError(
                f"A run of {self.duration_s} s with a trigger of {self.trigger_s} s and "
                f"micro-batches of at most {self.max_rows} rows cannot be simulated.",
                remedy="Give a positive duration, a trigger of at least 0 and at least one row.",
                field="scenario",
            )
