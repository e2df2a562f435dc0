"""Copies of key groups in an executor's local store, beside the epochs.

They are brought forward from the checkpoint, sent to another executor, received from one, and
dropped.  A copy is a cache of what is committed, so all of this may be late, repeated or lost
without any harm.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from godwit.checkpoint.hydration import Hydration, pack_copies, recover_chains, unpack_copies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.entries import EntryLayout
    from godwit.checkpoint.records import StateId
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.messages import StateInstruction
    from godwit.store.columns import StateSchema
    from godwit.store.local_store import LocalStore

__all__ = ["drop_copies", "receive_copies", "send_copies", "warm_copies"]


def warm_copies(
    store: LocalStore,
    key_groups: Sequence[int],
    instruction: StateInstruction,
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
    instruction
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
    num_key_groups = len(instruction.floor)
    local = store.state(str(instruction.state), layout.schema, num_key_groups)
    hydration = Hydration(
        local=local,
        layout=layout,
        homes=_homes(num_key_groups, lanes),
        storage=storage,
        segments=instruction.segments,
        snapshots=instruction.snapshots,
        floor=instruction.floor,
        load=np.ones(num_key_groups, np.bool_),
        recover=partial(recover_chains, storage, instruction.recorded_as, committed),
    )
    warmed = np.array(sorted(key_groups), np.int64)
    needed = np.zeros(num_key_groups, np.bool_)
    needed[warmed] = True
    hydration.bring_forward(needed)
    return dict(zip(warmed.tolist(), local.versions[warmed].tolist(), strict=True))


def send_copies(
    store: LocalStore,
    key_groups: Sequence[int],
    *,
    state: StateId,
    schema: StateSchema,
    num_key_groups: int,
    run_id: str,
) -> Iterator[bytes]:
    """Write down copies of one state that lie here, for `receive_copies`."""
    local = store.state(str(state), schema, num_key_groups)
    return pack_copies(
        local, np.array(sorted(key_groups), np.int64), run_id=run_id, state=str(state)
    )


def receive_copies(
    store: LocalStore,
    key_groups: Sequence[int],
    sent: Iterable[bytes],
    *,
    state: StateId,
    schema: StateSchema,
    num_key_groups: int,
    run_id: str,
    lanes: int,
) -> dict[int, int]:
    """Take copies of one state that another executor sent.

    Returns
    -------
    dict of int to int
        Key group → version, of those that came.

    Raises
    ------
    MigrationError
        If what came is not what was asked for, or not all that was sent.
    """
    local = store.state(str(state), schema, num_key_groups)
    asked = np.array(sorted(key_groups), np.int64)
    local.refresh(asked)
    came: dict[int, int] = {}
    unpacked = unpack_copies(sent, asked, run_id=run_id, state=str(state), schema=schema)
    for copies in unpacked:
        local.replace(copies, _homes(num_key_groups, lanes))
        came.update(zip(copies.key_groups.tolist(), copies.epochs.tolist(), strict=True))
    return came


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


def _homes(num_key_groups: int, lanes: int) -> npt.NDArray[np.int32]:
    """Deal key groups out over the tables of lanes, any of which may have them later."""
    return np.arange(num_key_groups, dtype=np.int32) % lanes
