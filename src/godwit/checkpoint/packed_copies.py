"""Packed copies: key groups of one state on their way from one executor's local store to another's.

Problem: a copy can be had from whoever holds one, and not only from the checkpoint.  But a local
store is a cache that may be gone, cut short, of another run, or in the middle of an epoch, and what
arrives may be less than what was sent.

Invariant: what `unpack_copies` returns is the committed state of key groups that were asked for,
each at its version, of the run and state that were asked for, and all of it; anything else raises.
Every byte is under a checksum, as in the checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa

from godwit.checkpoint.blocks import decode_batch, encode_batch
from godwit.checkpoint.entries import EntryLayout, StateRows, pack_entries
from godwit.checkpoint.framing import decode_record, encode_record
from godwit.checkpoint.paths import ALIGNMENT
from godwit.model.errors import (
    CheckpointMismatchError,
    CorruptCheckpointError,
    MigrationError,
    StateEncodingError,
)
from godwit.store.changes import Changes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from godwit.store.local_state import LocalState
    from godwit.store.schema import StateSchema

__all__ = ["pack_copies", "unpack_copies"]

_PACK_BYTES: Final = 4 * 2**20
"""State in one pack, roughly: more would take more memory, and the table's lock for longer."""


_NOT_OURS: Final = (CorruptCheckpointError, CheckpointMismatchError, StateEncodingError)


class _Pack(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in front of the rows."""

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
    """Write down what is held of some key groups; those that are not here are left out.

    Lanes may go on writing them meanwhile: a key group is copied between the changes of two epochs.

    `key_groups`: which, ascending.
    """
    held = key_groups[local.take_up(key_groups) >= 0]
    ends = np.cumsum(local.state_bytes(held))
    sent = 0
    for part in np.split(held, np.flatnonzero(np.diff(ends // _PACK_BYTES)) + 1):
        for copy in local.copy_out(part):
            rows = StateRows(hashes=copy.hashes, keys=copy.keys, values=copy.values)
            body = encode_batch(pack_entries(rows)).to_pybytes()
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
    """Give what `pack_copies` sent, to be put in the place of whatever is held.

    `packs`: all of them, in order.
    Raises `MigrationError` if one is damaged, of something else, or missing.  What was given until
    then is as good as the checkpoint's.
    """
    layout = EntryLayout(name=state, schema=schema)
    came, sent = 0, -1
    for data in packs:
        try:
            pack = decode_record(data, _Pack, path=f"copies of {state}")
            whose = (pack.run_id, pack.state)
            if whose == (run_id, state) and pack.key_groups:
                body = pa.py_buffer(data)[ALIGNMENT : ALIGNMENT + pack.size_bytes]
                changes = _changes(pack, layout.read(decode_batch(body), 0), schema)
        except _NOT_OURS as error:
            raise _refused(state, f"what came is damaged ({error.message})") from error
        if whose != (run_id, state):
            raise _refused(state, f"what came is of {pack.state!r} in run {pack.run_id!r}")
        if not pack.key_groups:
            sent = pack.packs
            continue
        if not np.isin(changes.key_groups, key_groups).all():
            raise _refused(state, "key groups came that nobody asked for")
        came += 1
        yield changes
    if came != sent:
        raise _refused(state, "not everything came that was sent")


def _changes(pack: _Pack, rows: StateRows, schema: StateSchema) -> Changes:
    changes = Changes(
        key_groups=np.array(pack.key_groups, np.int64),
        ends=np.array(pack.row_ends, np.int64),
        epochs=np.array(pack.versions, np.int64),
        hashes=rows.hashes,
        keys=rows.keys,
        values=rows.values,
    )
    changes.check(schema, f"copies of {pack.state}")
    return changes


def _refused(state: str, why: str) -> MigrationError:
    return MigrationError(
        f"Copies of {state!r} cannot be taken from another executor: {why}.",
        remedy="They are read from the checkpoint.",
        state=state,
    )
