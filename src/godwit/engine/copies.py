"""Copies of key groups in local stores: warming, sending and dropping in the background.

A copy is a cache of committed state, so all of this may be late, repeated or lost without harm.
Invariant: every copy is brought forward from the checkpoint before it counts as warm; a peer that
sends nothing, or other data, costs only time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from godwit.checkpoint.hydration import catch_up_copies, pack_copies, recover_chains, unpack_copies
from godwit.checkpoint.partial_copies import drop, prepare
from godwit.migration.coordinator import Warmed
from godwit.migration.sources import Delivery
from godwit.model.errors import MigrationError
from godwit.model.key_groups import key_group_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt
    from numpy import int64

    from godwit.checkpoint.entries import EntryLayout
    from godwit.checkpoint.records import StateId
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.instructions import Instructor
    from godwit.engine.lane.messages import StateInstruction
    from godwit.migration.messages import PeerCopies, StartWarming
    from godwit.store.local_store import LocalState

_Versions = dict["StateId", "npt.NDArray[int64]"]
"""State → shape ``(num_key_groups,)``: versions; -1: no copy."""


def warm_states(
    order: StartWarming,
    instructor: Instructor,
    *,
    held_versions: Callable[[StateId], npt.NDArray[int64]],
    transfers: Iterable[PeerCopies],
    fetch: Callable[[PeerCopies], Mapping[StateId, Mapping[int, int]]],
    catch_up: Callable[[StateInstruction, int], Mapping[int, int]],
    now_s: Callable[[], float],
) -> Warmed:
    """Bring copies of all states of a component up to date, by an order; return the result.

    `instructor`: builds instructions to bring copies forward. `held_versions`: state → versions on
    the executor now, shape ``(num_key_groups,)``. `transfers`: requests to peers, each yielded when
    its links are free. `fetch`: requests a peer's copies; returns state → key group → received
    version. `catch_up`: replays the changelog of one state to the committed version; returns key
    group → its version afterwards.

    An order only to index state returns nothing. Raises `MigrationError` if a peer has sent an
    epoch that is not committed.
    """
    versions: _Versions = {state: held_versions(state).copy() for state in order.states}
    if order.index_only:
        for state in order.states:
            catch_up(*instructor.catching_up(state, versions[state], order.key_groups))
        return Warmed(tables={}, reach={})
    absent_groups = [
        key_group
        for key_group in order.key_groups
        if all(copy_versions[key_group] < 0 for copy_versions in versions.values())
    ]
    deliveries = list(_fetch_from_peers(transfers, fetch, versions, now_s))
    sent = {
        key_group
        for delivery in deliveries
        if not delivery.failure
        for key_group in delivery.key_groups
    }
    began_s = now_s()
    tables, reached_versions = {}, []
    for state in order.states:
        instruction, committed = instructor.catching_up(state, versions[state], order.key_groups)
        if (versions[state] > committed).any():
            raise MigrationError(
                f"A peer sent a copy of {str(state)!r} is newer than epoch {committed}, the last "
                "committed one.",
                remedy="The copy is discarded.",
                state=str(state),
            )
        versions_now = tables[state] = catch_up(instruction, committed)
        # The copy of a key group without any state is complete.
        reached_versions.append(
            {
                key_group: max(versions_now.get(key_group, -1), committed)
                for key_group in order.key_groups
            }
        )
    reach = {
        key_group: min(epochs[key_group] for epochs in reached_versions)
        for key_group in order.key_groups
    }
    recovered_groups = tuple(key_group for key_group in absent_groups if key_group not in sent)
    if recovered_groups:
        spent_ms = 1e3 * (now_s() - began_s)
        deliveries.append(Delivery(source=None, key_groups=recovered_groups, duration_ms=spent_ms))
    return Warmed(tables=tables, reach=reach, deliveries=tuple(deliveries))


def _fetch_from_peers(
    transfers: Iterable[PeerCopies],
    fetch: Callable[[PeerCopies], Mapping[StateId, Mapping[int, int]]],
    versions: _Versions,
    now_s: Callable[[], float],
) -> Iterator[Delivery]:
    """Fetch copies from peers, record their versions in `versions`, and yield each delivery.

    A delivery has the key groups that came: peers send no partial copies.
    """
    for request in transfers:
        began_s, failure, key_groups = now_s(), "", request.key_groups
        try:
            received = fetch(request)
        except Exception as error:  # noqa: BLE001  the checkpoint has the state too
            failure = str(error).split("\n", 1)[0]
        else:
            arrived = {
                key_group
                for received_versions in received.values()
                for key_group in received_versions
            }
            key_groups = tuple(key_group for key_group in key_groups if key_group in arrived)
            for state, received_versions in received.items():
                for key_group, version in received_versions.items():
                    versions[state][key_group] = max(version, int(versions[state][key_group]))
        yield Delivery(
            source=request.executor,
            key_groups=key_groups,
            duration_ms=1e3 * (now_s() - began_s),
            failure=failure,
        )


# -- on the executor that holds or gets them -------------------------------------------------------


def warm_copies(
    local: LocalState,
    key_groups: Sequence[int],
    instruction: StateInstruction,
    *,
    layout: EntryLayout,
    storage: CheckpointStorage,
    committed: int,
    lanes: int,
    index_only: bool = False,
) -> dict[int, int]:
    """Bring copies of one state in `local` up to date; return key group → version afterwards.

    `instruction`: chains to the version `committed`. `layout`: of the state in the checkpoint.
    `lanes`: number of lanes of the executor. `index_only`: make no copies, but index the state.
    """
    warmed = np.array(sorted(key_groups), np.int64)
    if index_only:
        prepare(
            local,
            key_group_mask(warmed, local.num_key_groups),
            instruction.segments,
            instruction.snapshots,
            storage=storage,
            epoch=committed,
        )
        return {}
    catch_up_copies(
        local,
        key_group_mask(warmed, local.num_key_groups),
        layout=layout,
        storage=storage,
        segments=instruction.segments,
        snapshots=instruction.snapshots,
        floor=instruction.floor,
        load=np.ones(local.num_key_groups, np.bool_),
        recover=partial(recover_chains, storage, instruction.recorded_as, committed),
        homes=local.spare_homes(_default_tables(local, lanes)),
    )
    return dict(zip(warmed.tolist(), local.versions[warmed].tolist(), strict=True))


def send_copies(
    local: LocalState, key_groups: Sequence[int], *, state: StateId, run_id: str
) -> Iterator[bytes]:
    """Serialise this executor's copies of one state, for `receive_copies` of the same run."""
    asked = np.array(sorted(key_groups), np.int64)
    return pack_copies(local, asked, run_id=run_id, state=str(state))


def receive_copies(
    local: LocalState,
    key_groups: Sequence[int],
    sent: Iterable[bytes],
    *,
    state: StateId,
    run_id: str,
    lanes: int,
) -> dict[int, int]:
    """Store copies of one state that another executor sent; return key group → version.

    `lanes`: number of lanes of this executor. Raises `MigrationError` if the received key groups
    are not the requested ones, or incomplete.
    """
    asked = np.array(sorted(key_groups), np.int64)
    local.refresh(asked)
    versions: dict[int, int] = {}
    tables = local.spare_homes(_default_tables(local, lanes))
    for copies in unpack_copies(sent, asked, run_id=run_id, state=str(state), schema=local.schema):
        local.replace(copies, tables)
        versions.update(zip(copies.key_groups.tolist(), copies.epochs.tolist(), strict=True))
    return versions


def drop_copies(local: LocalState, key_groups: Iterable[int]) -> None:
    """Delete copies of one state, and its index if no lane will use it."""
    drop(local, np.array(sorted(key_groups), np.int64))


def _default_tables(local: LocalState, lanes: int) -> npt.NDArray[np.int32]:
    """Return the number of the local table for each key group that is not stored yet.

    One table per lane; numbers are round robin, since the lanes are not known yet.
    """
    return np.arange(local.num_key_groups, dtype=np.int32) % lanes
