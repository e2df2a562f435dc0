"""State on demand: the new owner of a key group fetches the entries of the keys that rows touch.

With the strategy ``on_demand`` a key group changes its owner before its state has come.  The next
epoch finds the entries of its rows' keys in the blocks of the checkpoint, so hot keys come first,
and later epochs complete the rest behind their own work (`godwit.checkpoint.partial_copies`).  That
needs operators that read no other keys, a checkpoint whose blocks are on a disk of this machine,
and enough state to be worth an index of the blocks.

Invariant: the results do not depend on it.  A lane that cannot fetch entries on demand loads whole
key groups, and the epoch takes longer.

Source: fetch-on-demand of Meces (Gu et al., USENIX ATC 2022), from a checkpoint and not from the
former owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.model.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import numpy.typing as npt

    from godwit.model.assignment import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemand:
    """States that new owners of key groups can fetch on demand.

    `obstacles`: state → reason why it has to be loaded whole, empty if it has not; other states are
    loaded whole. `min_bytes`: state that one lane has to fetch at least.
    """

    obstacles: Mapping[Any, str] = field(default_factory=dict)
    min_bytes: int = 0

    def obstacle(self, states: Collection[Any]) -> str:
        """Return the reason why states of a component cannot be fetched on demand; else empty."""
        if not states:
            return "it has no state"
        reasons = (self.obstacles.get(state, "its state is loaded whole") for state in states)
        return next(filter(None, reasons), "")

    def too_little(
        self,
        key_groups: Collection[int],
        target: Assignment,
        state_bytes: npt.NDArray[np.int64],
    ) -> str:
        """Return why key groups have too little state at their lanes of `target`; else empty."""
        chosen = np.fromiter(key_groups, np.int64)
        lanes = target.executor_of[chosen] * max(target.lanes) + target.lane_of[chosen]
        most = int(np.bincount(lanes, state_bytes[chosen]).max(initial=0)) if chosen.size else 0
        if most >= self.min_bytes:
            return ""
        return f"no lane gets {human_bytes(self.min_bytes)} of state, but {human_bytes(most)}"
