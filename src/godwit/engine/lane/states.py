"""The states of one operator in one lane and epoch: brought forward together, each for itself.

Invariant: a key group is processed only if all of the operator's states of it are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from godwit.checkpoint.entries import StateRows
from godwit.checkpoint.hydration import Hydration, recover_chains
from godwit.model.key_groups import PerKeyGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from godwit.checkpoint.records import StateId
    from godwit.engine.lane.files import LaneFiles
    from godwit.engine.lane.lane import LaneOperator
    from godwit.engine.lane.messages import EpochInstruction, OperatorInstruction
    from godwit.store.changes import EntryRange
    from godwit.store.local_store import LocalState, LocalStore

__all__ = ["LaneStates"]

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneView:
    """A `godwit.operators.operator.StateView` of some key groups of the local store."""

    local: LocalState
    key_groups: npt.NDArray[np.int64]

    def find(
        self, keys: pa.RecordBatch, key_groups: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Find entries by what tells them apart."""
        return self.local.prior(keys, key_groups)

    def scan(self, part: EntryRange | None = None) -> StateRows:
        """Copy out all entries, or those of a range."""
        found = self.local.scan(self.key_groups, part)
        return StateRows(hashes=found.hashes, keys=found.keys, values=found.values)

    def min_after(self, column: int, after: int) -> int:
        """Least value above `after` in a column of integers."""
        return self.local.least(self.key_groups, column, after=after)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStates:
    """What a lane holds for one operator."""

    hydrations: Mapping[StateId, Hydration]  # state → what brings it forward
    # State → key groups of which a snapshot is due; shape ``(num_key_groups,)``.
    snapshots: Mapping[StateId, Mask]

    @classmethod
    def of(
        cls,
        member: LaneOperator,
        own: OperatorInstruction,
        instruction: EpochInstruction,
        store: LocalStore,
        *,
        lane: int,
        here: Mask,
        gone: EntryRange | None,
    ) -> LaneStates:
        """Take up what an epoch tells of them.

        Parameters
        ----------
        member, own, instruction
            The operator, and the instructions to its lanes.
        store
            The executor's.
        lane
            Number of the lane on its executor.
        here
            Shape ``(num_key_groups,)``: key groups of this lane that are not suspended.
        gone
            Entries that nobody asks for any more, if there are any.
        """
        num_key_groups = len(own.places)
        hydrations, snapshots = {}, {}
        for state in own.states:
            due = np.zeros(num_key_groups, np.bool_)
            due[list(state.to_snapshot)] = True
            snapshots[state.state] = due & here
            layout = member.states[state.state.state]
            hydrations[state.state] = Hydration(
                local=store.state(str(state.state), layout.schema, num_key_groups),
                layout=layout,
                homes=np.full(num_key_groups, lane, np.int32),
                storage=instruction.storage,
                segments=state.segments,
                snapshots=state.snapshots,
                floor=state.floor,
                load=own.load,
                recover=partial(
                    recover_chains, instruction.storage, state.recorded_as, instruction.epoch - 1
                ),
                gone=gone,
            )
        return cls(hydrations=hydrations, snapshots=snapshots)

    def views(self, key_groups: npt.NDArray[np.int64]) -> dict[str, LaneView]:
        """Name of a state → view of some key groups, which are here."""
        return {
            state.state: LaneView(local=hydration.local, key_groups=key_groups)
            for state, hydration in self.hydrations.items()
        }

    def bring_forward(self, needed: Mask, keep_up: Mask) -> Mask:
        """Bring key groups to the committed version; says which are left cold.

        Parameters
        ----------
        needed, keep_up
            As of `Hydration.bring_forward`; what a snapshot is due of is needed too.
        """
        cold = np.zeros(len(needed), np.bool_)
        for state, hydration in self.hydrations.items():
            cold |= hydration.bring_forward(needed | self.snapshots[state], keep_up)
        return cold

    def write_snapshots(self, cold: Mask, files: LaneFiles, gone: EntryRange | None) -> None:
        """Write the snapshots that are due, without entries that nobody asks for any more."""
        live = None if gone is None else gone.rest
        for state, due in self.snapshots.items():
            key_groups = np.flatnonzero(due & ~cold)
            if key_groups.size:
                local = self.hydrations[state].local
                versions = local.versions[key_groups]
                of = dict(zip(key_groups.tolist(), versions.tolist(), strict=True))
                files.snapshots(state, of, local.scan(key_groups, live))

    def versions(self, here: Mask) -> dict[StateId, PerKeyGroup]:
        """State → version of every key group of this lane that the executor holds now."""
        found = {}
        key_groups = np.flatnonzero(here)
        for state, hydration in self.hydrations.items():
            versions = hydration.local.versions[key_groups]
            held = versions >= 0
            found[state] = PerKeyGroup(key_groups[held], versions[held])
        return found
