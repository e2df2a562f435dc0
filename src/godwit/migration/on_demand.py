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

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from godwit.model.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import numpy.typing as npt

    from godwit.migration.strategy import Bounds
    from godwit.model.assignment import Assignment


_FETCH_MS: Final = 2e-3
"""Lane's time to fetch the state of one key, in milliseconds."""
_INDEX_MS: Final = 2e-6
"""Lane's time to find the rows of one byte of state in the checkpoint, once, in milliseconds."""
_LOAD_MS: Final = 3e-5
"""Lane's time to load one byte of state, in milliseconds."""
_LOAD_KEY_GROUP_MS: Final = 0.5
"""Lane's time to load a key group, however little its state."""
_LOADING: Final = 2
"""Factor on the time to load state, for disks that are slower than those measured."""
_COPY_BYTES_PER_S: Final = 30e6
"""Throughput of copies for a live migration, where none was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemand:
    """States that new owners of key groups can fetch on demand.

    `obstacles`: state → reason why it has to be loaded whole, empty if it has not; other states are
    loaded whole. `timed`: states of which some epochs read all keys, as when windows close.
    `min_bytes`: state that one lane has to fetch at least. `local`: the checkpoint is on a local
    disk of the machine.
    """

    obstacles: Mapping[Any, str] = field(default_factory=dict)
    timed: Collection[Any] = ()
    min_bytes: int = 0
    local: bool = False

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
        most = int(_per_lane(key_groups, target, state_bytes).max(initial=0))
        if most >= self.min_bytes:
            return ""
        return f"no lane gets {human_bytes(self.min_bytes)} of state, but {human_bytes(most)}"


def _per_lane(
    key_groups: Collection[int], target: Assignment, numbers: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return the sums of the `numbers` of key groups at the lanes that they have in `target`."""
    chosen = np.fromiter(key_groups, np.int64)
    lanes = target.executor_of[chosen] * max(target.lanes) + target.lane_of[chosen]
    return np.bincount(lanes, numbers[chosen]).astype(np.float64)


def why_load_first(
    key_groups: Collection[int],
    target: Assignment,
    state_bytes: npt.NDArray[np.int64],
    *,
    relief: float,
    period_s: float,
) -> str:
    """Return why the next epoch should load the state of moved key groups; else empty.

    Little state is loaded in milliseconds, and a copy of it counts only an epoch later. If that
    takes less than half of what the busiest lane is relieved of in an epoch, already the epoch that
    loads is shorter. `relief`: share of a lane's time. `period_s`: between two epochs.
    """
    loading_ms = _LOAD_MS * state_bytes + _LOAD_KEY_GROUP_MS
    most_ms = float(_per_lane(key_groups, target, loading_ms).max(initial=0.0))
    relief_ms = 1000 * relief * period_s
    if _LOADING * most_ms >= relief_ms:
        return ""
    return (
        f"a lane loads its state in {most_ms:.2g} ms, and lanes are relieved of {relief_ms:.2g} ms "
        "an epoch"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveCosts:
    """Costs of a migration per epoch, by which it is live or on demand.

    `before_ms`, `after_ms`: busy time of a lane of the slowest executor in an epoch, now and after
    the moves. `coming_ms`: of a lane of the busiest destination, after them. `keys`, `size_bytes`:
    keys whose state a lane there fetches in an epoch, and bytes of state that it gets. `epochs`:
    number of epochs until copies would have come.
    """

    before_ms: float
    after_ms: float
    coming_ms: float
    keys: float
    size_bytes: float
    epochs: float

    def why_on_demand(self) -> str:
        """Return why key groups should not wait for copies; empty if they should.

        A live migration leaves epochs as slow as they are until copies have come. Meanwhile a lane
        that fetches state on demand takes up to twice the time of its work in each epoch, and once
        the time for an index of the state. So the sooner relief has to outweigh both.
        """
        fetching_ms = max(self.after_ms, 2 * (self.coming_ms + self.keys * _FETCH_MS))
        index_ms = self.size_bytes * _INDEX_MS
        if (self.before_ms - fetching_ms) * self.epochs <= index_ms:
            return ""
        return (
            f"lanes take {self.before_ms:.0f} ms an epoch and would for {self.epochs:.2g} epochs, "
            f"but {fetching_ms:.0f} ms while state is fetched, after {index_ms:.0f} ms once"
        )


def move_costs(
    before: Assignment,
    target: Assignment,
    *,
    lanes: Mapping[str, int],
    busy_ms: Mapping[str, float],
    loads: Mapping[int, float],
    keys: Mapping[int, float],
    state_bytes: Mapping[int, int],
    bytes_per_s: float | None,
    period_s: float,
    bounds: Bounds,
) -> MoveCosts:
    """Return the costs of a component's moves.

    `lanes`: executor → number of its lanes. `busy_ms`: executor → busy milliseconds of its lanes in
    an epoch, of all components. `loads`, `keys`, `state_bytes`: key group of the component → busy
    milliseconds, touched keys, bytes of state. `bytes_per_s`: throughput of copies, ``None`` if
    never measured. `period_s`: between two epochs. `bounds`: of a live migration, which switches
    what they admit in one epoch; half of the key groups wait for half of these epochs, or longer.
    """
    moves = before.moves_to(target)
    busy_after_ms = dict(busy_ms)
    arriving_keys, arriving_bytes = dict[str, float](), dict[str, float]()
    for move in moves:
        key_group, source, destination = move.key_group, move.source, move.destination
        busy_after_ms[source] = busy_after_ms.get(source, 0.0) - loads.get(key_group, 0.0)
        busy_after_ms[destination] = busy_after_ms.get(destination, 0.0) + loads.get(key_group, 0.0)
        arriving_keys[destination] = arriving_keys.get(destination, 0.0) + keys.get(key_group, 0.0)
        arriving_bytes[destination] = arriving_bytes.get(destination, 0.0) + state_bytes.get(
            key_group, 0
        )

    def max_per_lane(numbers: Mapping[str, float]) -> float:
        """Return the maximum per lane."""
        return max(
            (number / lanes.get(executor, 1) for executor, number in numbers.items()), default=0.0
        )

    copied_s = max(arriving_bytes.values(), default=0.0) / (bytes_per_s or _COPY_BYTES_PER_S)
    rounds = max(len(moves) / bounds.max_moves, sum(arriving_bytes.values()) / bounds.max_bytes)
    return MoveCosts(
        before_ms=max_per_lane(busy_ms),
        after_ms=max_per_lane(busy_after_ms),
        coming_ms=max_per_lane({executor: busy_after_ms[executor] for executor in arriving_keys}),
        keys=max_per_lane(arriving_keys),
        size_bytes=max_per_lane(arriving_bytes),
        epochs=max(copied_s / period_s, (math.ceil(rounds) - 1) / 2),
    )
