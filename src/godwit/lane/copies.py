"""Copies of key groups in an executor's local store: brought forward beside the epochs, dropped.

A copy is a cache of what is committed, so bringing it forward may be late, repeated or lost without
any harm.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from godwit.state.hydration import Hydration, recover_chains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.lane.messages import StateInstruction
    from godwit.state.entries import EntryLayout
    from godwit.state.local_store import LocalStore
    from godwit.state.records import StateId
    from godwit.state.schema import StateSchema
    from godwit.state.storage import CheckpointStorage

__all__ = ["drop_copies", "warm_copies"]


def warm_copies(
    store: LocalStore,
    key_groups: Sequence[int],
    told: StateInstruction,
    *,
    layout: EntryLayout,
    storage: CheckpointStorage,
    committed: int,
    lanes: int,
) -> dict[int, int]:
    """Bring copies of one state forward.

    Parameters
    ----------
    store
        Where they are to be.
    key_groups
        Which.
    told
        What brings them to the committed version.
    layout, storage
        How the state is read, and from where.
    committed
        The committed version.
    lanes
        Number of lanes of the executor.

    Returns
    -------
    dict of int to int
        Key group → version of its table now.
    """
    num_key_groups = len(told.floor)
    local = store.state(str(told.state), layout.schema, num_key_groups)
    hydration = Hydration(
        local=local,
        layout=layout,
        # Any lane of the executor may have them later: they are dealt out evenly.
        homes=np.arange(num_key_groups, dtype=np.int32) % lanes,
        storage=storage,
        segments=told.segments,
        snapshots=told.snapshots,
        floor=told.floor,
        load=np.ones(num_key_groups, np.bool_),
        recover=partial(recover_chains, storage, told.recorded_as, committed),
    )
    warmed = np.array(sorted(key_groups), np.int64)
    needed = np.zeros(num_key_groups, np.bool_)
    needed[warmed] = True
    hydration.bring_forward(needed)
    return dict(zip(warmed.tolist(), local.versions[warmed].tolist(), strict=True))


def drop_copies(
    store: LocalStore,
    key_groups: Sequence[int],
    *,
    state: StateId,
    schema: StateSchema,
    num_key_groups: int,
) -> None:
    """Delete copies of one state."""
    local = store.state(str(state), schema, num_key_groups)
    local.drop(np.array(sorted(key_groups), np.int64))
