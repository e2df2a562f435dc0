"""Hydration: bringing an executor's copies of key groups to a committed version, in bulk.

The invariant: a key group at version *v* plus every changelog segment of it after *v*, in order of
epochs, is the committed state.  The segments in the driver's instruction cover key groups at
`floor` or later; an executor with an older copy reads the checkpoint itself.

*Packed copies* are key groups on their way from one executor's local store to another's.  A local
store is a cache that may be gone, truncated, of another run, or in the middle of an epoch, and a
transfer may be incomplete.  Invariant: `unpack_copies` returns the complete committed state of the
requested key groups, each at its version, of the requested run and state; anything else raises.
Every byte is under a checksum, as in the checkpoint.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.blocks import decode_batch, encode_batch, read_batch, read_segment
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.entries import EntryLayout, pack_entries
from godwit.checkpoint.framing import decode_record, encode_record
from godwit.checkpoint.partial_copies import PartialCopies
from godwit.checkpoint.records import ALIGNMENT
from godwit.model.errors import (
    CheckpointMismatchError,
    CorruptCheckpointError,
    MigrationError,
    StateEncodingError,
)
from godwit.model.key_groups import key_group_mask
from godwit.store.changes import Changes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from godwit.checkpoint.chains import KeyGroupChain
    from godwit.checkpoint.partial_copies import Touched
    from godwit.checkpoint.records import SegmentRef, SnapshotRef, StateId
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.store.changes import EntryRange, StateRows
    from godwit.store.columns import StateSchema
    from godwit.store.local_store import LocalState

_ROWS_AT_ONCE = 1 << 18
"""More would take more memory, and the table's lock from lanes for longer."""

KeyGroups = npt.NDArray[np.int64]
_Changelog = list[tuple["SegmentRef", KeyGroups]]


def catch_up_copies(
    local: LocalState,
    needed: npt.NDArray[np.bool_],
    keep_up: npt.NDArray[np.bool_] | None = None,
    *,
    layout: EntryLayout,
    storage: CheckpointStorage,
    segments: Iterable[SegmentRef],
    snapshots: Mapping[int, SnapshotRef],
    floor: npt.NDArray[np.int64],
    load: npt.NDArray[np.bool_],
    recover: Callable[[Sequence[int]], Mapping[int, KeyGroupChain]],
    homes: npt.NDArray[np.int32],
    gone: EntryRange | None = None,
    read: Callable[[SegmentRef], StateRows] | None = None,
    touched: Touched | None = None,
    bound_bytes: int = 0,
) -> tuple[npt.NDArray[np.bool_], PartialCopies]:
    """Bring an executor's copies of a state's key groups up to the committed version.

    Arrays have shape ``(num_key_groups,)``.

    `needed`: mask of key groups that this epoch needs.
    `keep_up`: mask of others, which are brought up to date only if that needs no more than the
    changes of the last epoch, or the rest of a copy. So copies that are rarely used do not fall
    behind, and no state is loaded before it is needed.
    `segments`: changelog segments, in any order.
    `floor`: minimum version of a local copy from which `segments` can bring it up to date; -1: they
    can even without a copy (with the key group's snapshot, if `snapshots` has one).
    `load`: mask of key groups that are loaded from the checkpoint if their copy is older than
    `floor`; others are not updated then.
    `recover`: returns key group → its full chain from the checkpoint, for those to load.
    `homes`: index of the local table in which to put a key group that no table has yet.
    `gone`: range of event time whose entries have expired and are left out.
    `read`: reads a segment's entries, for callers that have read it before.
    `touched`: keys whose entries alone are needed of some key groups; if much is missing, the
    others are fetched by later epochs (`godwit.checkpoint.partial_copies`).
    `bound_bytes`: see `PartialCopies`.

    Returns the mask of `needed` key groups that are not up to date, and the partial copies.
    """
    eligible = needed if keep_up is None else needed | keep_up
    key_groups = np.flatnonzero(eligible)
    local.refresh(key_groups, floor[key_groups])
    changelog = _sort_changelog(segments)
    is_absent = eligible & (local.versions < 0)
    if is_absent.any():  # here, or of another process of the executor, which may have loaded them
        changed = key_group_mask(snapshots, len(floor))
        for _, segment_groups in changelog:
            changed[segment_groups] = True
        local.refresh(np.flatnonzero(is_absent & changed))
    if gone is not None:
        local.expire(key_groups, gone)
    parts = PartialCopies(
        local,
        layout=layout,
        storage=storage,
        recover=recover,
        homes=homes,
        gone=gone,
        bound_bytes=bound_bytes,
    )
    parts.follow(eligible, [segment_ for segment_, _ in changelog], snapshots, floor)
    is_partial = np.zeros_like(needed) if touched is None else touched.key_groups & needed
    parts.complete(needed & ~is_partial & (local.bases >= 0))
    if touched is not None:
        is_absent, has_no_floor = is_partial & (local.versions < 0), floor < 0
        parts.fetch(is_partial & (local.bases >= 0), touched)
        parts.begin(
            is_absent & has_no_floor, touched, [segment_ for segment_, _ in changelog], snapshots
        )
        parts.begin_loaded(is_absent & load & ~has_no_floor, touched)
    selected = eligible & (local.versions >= floor)
    is_short = needed & ~selected
    if keep_up is not None:
        selected &= needed | _only_newest_missing(local.versions, changelog, snapshots)
    apply = partial(
        _apply_newer, local, layout=layout, storage=storage, homes=homes, gone=gone, read=read
    )
    apply(snapshots, changelog, selected)
    is_missing = is_short & load
    if is_missing.any():
        chains = recover(np.flatnonzero(is_missing).tolist())
        distinct = {
            id(segment_): segment_ for chain in chains.values() for segment_ in chain.segments
        }
        apply(
            {
                key_group: chain.snapshot
                for key_group, chain in chains.items()
                if chain.snapshot is not None
            },
            _sort_changelog(distinct.values()),
            key_group_mask(chains, len(floor)),
        )
    parts.release(eligible)
    return is_short & ~is_missing, parts


def rows_of_segment(
    storage: CheckpointStorage, layout: EntryLayout, segment: SegmentRef
) -> StateRows:
    """Read the entries of a changelog segment."""
    return layout.read(read_segment(storage, segment), segment.flow)


def _sort_changelog(segments: Iterable[SegmentRef]) -> _Changelog:
    """Return segments in the order of their epochs, each with its key groups as an array."""
    ordered = sorted(segments, key=lambda segment: (segment.epoch, segment.lane))
    return [(segment, np.array(segment.key_groups, np.int64)) for segment in ordered]


def _only_newest_missing(
    versions: npt.NDArray[np.int64], changelog: _Changelog, snapshots: Iterable[int]
) -> npt.NDArray[np.bool_]:
    """Return a mask of key groups that are cheap to bring up to date.

    They have no new snapshot, and a copy here or no changes before the last epoch's.
    """
    first = np.full(len(versions), np.iinfo(np.int64).max)
    for segment, key_groups in reversed(changelog):
        first[key_groups] = segment.epoch
    newest = changelog[-1][0].epoch if changelog else 0
    little = (versions >= 0) | (first >= newest)
    little[list(snapshots)] = False
    return little


def _apply_newer(
    local: LocalState,
    snapshots: Mapping[int, SnapshotRef],
    changelog: _Changelog,
    selected: npt.NDArray[np.bool_],
    *,
    layout: EntryLayout,
    storage: CheckpointStorage,
    homes: npt.NDArray[np.int32],
    gone: EntryRange | None,
    read: Callable[[SegmentRef], StateRows] | None,
) -> None:
    """Apply newer snapshots, then newer segments, to the copies of the `selected` key groups.

    Segments that change different key groups are applied by one call, for any epochs: in a
    steady run that is one call for all that the last epoch changed.
    """
    versions = local.versions
    parts: list[Changes] = []
    for key_group, snapshot in sorted(snapshots.items()):
        if not selected[key_group] or versions[key_group] >= snapshot.version:
            continue
        rows = layout.read(read_batch(storage, snapshot.block), snapshot.flow)
        part = Changes(
            key_groups=np.array([key_group]),
            ends=np.array([len(rows.hashes)]),
            epochs=np.array([snapshot.version]),
            rows=rows,
        )
        parts.append(part.without(gone))
        if _count_entries(parts) >= _ROWS_AT_ONCE:
            local.replace(Changes.concat(parts), homes)
            parts = []
    if parts:
        local.replace(Changes.concat(parts), homes)
    parts = []
    is_gathered = np.zeros(len(selected), np.bool_)
    for segment, key_groups in changelog:
        is_applied = selected[key_groups] & (versions[key_groups] < segment.epoch)
        if not is_applied.any():
            continue
        applied_groups = key_groups[is_applied]
        if _count_entries(parts) >= _ROWS_AT_ONCE or is_gathered[applied_groups].any():
            local.apply(Changes.concat(parts), homes)
            parts, is_gathered[:] = [], False
        part = Changes(
            key_groups=key_groups,
            ends=np.array(segment.row_ends, np.int64),
            epochs=np.full(len(key_groups), segment.epoch),
            rows=rows_of_segment(storage, layout, segment) if read is None else read(segment),
        )
        parts.append(part.where(is_applied).without(gone))
        is_gathered[applied_groups] = True
    if parts:
        local.apply(Changes.concat(parts), homes)


def _count_entries(parts: Sequence[Changes]) -> int:
    """Return the number of entries in a list of changes."""
    return sum(len(part.rows.hashes) for part in parts)


def recover_chains(
    storage: CheckpointStorage, state: StateId, epoch: int, key_groups: Iterable[int]
) -> dict[int, KeyGroupChain]:
    """Read the full chains of some key groups from the checkpoint, at a committed epoch.

    `state` has its name of that epoch. This reads a manifest and the records after it; only
    executors that have less state than the driver assumed use it.
    """
    if epoch < 0:
        return {}
    chains = CommitLog.open_read_only(storage).chains_at(epoch)
    return {key_group: chains.chain(state, key_group) for key_group in key_groups}


_PACK_BYTES: Final = 4 * 2**20
"""State in one pack, roughly: more would take more memory, and the table's lock for longer."""


_NOT_OURS: Final = (CorruptCheckpointError, CheckpointMismatchError, StateEncodingError)


class _Pack(msgspec.Struct, frozen=True, kw_only=True):
    """Header of a pack of copies."""

    # run_id, state: whose
    run_id: str
    state: str
    # In the last one, which has no rows: how many were sent before it.  0 in others.
    packs: int = 0
    # key_groups, row_ends, versions: key groups, where the rows of each end, and the last epoch
    # whose changes are in
    key_groups: tuple[int, ...] = ()
    row_ends: tuple[int, ...] = ()
    versions: tuple[int, ...] = ()
    size_bytes: int = 0  # bytes of the rows, an Arrow IPC stream


def pack_copies(
    local: LocalState, key_groups: npt.NDArray[np.int64], *, run_id: str, state: str
) -> Iterator[bytes]:
    """Yield serialised copies of key groups, ascending; missing ones are skipped.

    Lanes may write meanwhile: a key group is copied atomically, between the changes of two epochs.
    """
    present = key_groups[local.refresh(key_groups) >= 0]
    ends = np.cumsum(local.state_bytes(present))
    sent = 0
    for part in np.split(present, np.flatnonzero(np.diff(ends // _PACK_BYTES)) + 1):
        for copy in local.copy_out(part):
            body = encode_batch(pack_entries(copy.rows)).to_pybytes()
            pack = _Pack(
                run_id=run_id,
                state=state,
                key_groups=tuple(copy.key_groups.tolist()),
                row_ends=tuple(copy.ends.tolist()),
                versions=tuple(copy.epochs.tolist()),
                size_bytes=len(body),
            )
            yield encode_record(pack, body)
            sent += 1
    yield encode_record(_Pack(run_id=run_id, state=state, packs=sent))


def unpack_copies(
    packs: Iterable[bytes],
    key_groups: npt.NDArray[np.int64],
    *,
    run_id: str,
    state: str,
    schema: StateSchema,
) -> Iterator[Changes]:
    """Verify and decode copies that `pack_copies` encoded; yield them as changes.

    Raises `MigrationError` if one is damaged, of another state, or missing. Copies yielded before
    that are as good as the checkpoint's.
    """
    layout = EntryLayout(name=state, schema=schema)
    received, sent = 0, -1
    for data in packs:
        try:
            pack = decode_record(data, _Pack, path=f"copies of {state}")
            source = (pack.run_id, pack.state)
            if source == (run_id, state) and pack.key_groups:
                body = pa.py_buffer(data)[ALIGNMENT : ALIGNMENT + pack.size_bytes]
                changes = Changes(
                    key_groups=np.array(pack.key_groups, np.int64),
                    ends=np.array(pack.row_ends, np.int64),
                    epochs=np.array(pack.versions, np.int64),
                    rows=layout.read(decode_batch(body), 0),
                )
                changes.check(schema, f"copies of {state}")
        except _NOT_OURS as error:
            raise _unusable_copies(
                state, f"the received data is damaged ({error.message})"
            ) from error
        if source != (run_id, state):
            raise _unusable_copies(
                state, f"the received data is of {pack.state!r} in run {pack.run_id!r}"
            )
        if not pack.key_groups:
            sent = pack.packs
            continue
        if not np.isin(changes.key_groups, key_groups).all():
            raise _unusable_copies(state, "it sent key groups that were not requested")
        received += 1
        yield changes
    if received != sent:
        raise _unusable_copies(state, "some of the data is missing")


def _unusable_copies(state: str, why: str) -> MigrationError:
    """Return the error that another executor's copies of a state cannot be used.

    `why`: the reason.
    """
    return MigrationError(
        f"Copies of {state!r} cannot be taken from another executor: {why}.",
        remedy="They are read from the checkpoint.",
        state=state,
    )
