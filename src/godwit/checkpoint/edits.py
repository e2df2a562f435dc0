"""Epochs that change a stopped checkpoint: without input, with the given segments and snapshots.

Only the last record has the rows that wait in loops, so the record of such an epoch repeats them.
The output of the last epoch is not repeated: a sink without it would never get it, so such an epoch
is refused until the journal, or the user, confirms its delivery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from godwit.checkpoint.blocks import BlockWriter, read_block
from godwit.checkpoint.journal import JournalReader
from godwit.checkpoint.records import (
    FED_BACK,
    SegmentRef,
)
from godwit.model.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.records import BatchRef, CommitRecord, OutputRef, SnapshotRef


def commit_edit(
    log: CommitLog,
    latest: CommitRecord,
    before: BatchRef | None,
    *,
    segments: Iterable[SegmentRef] = (),
    snapshots: Iterable[SnapshotRef] = (),
    # operator → key groups whose waiting rows are taken out of the wait buffer
    consumed: Mapping[str, list[int]] | None = None,
    delivered: bool,
    **fields: Any,
) -> None:
    """Commit an epoch without input that has the given segments and snapshots.

    `before`: last committed batch, from which sources continue. `delivered`: see `remove_key`.
    `fields`: other fields of the record, which are as in the last one otherwise. Raises
    `CheckpointError` if sinks may lack the last epoch.
    """
    with_rows = {ref.sink for ref in latest.outputs if ref.rows}
    # Its record has no rows for a sink, which is not the whole result of any.
    sinks = {
        name: msgspec.structs.replace(sink, complete=False)
        if sink.complete
        else msgspec.structs.replace(
            sink, before=latest.epoch if name in with_rows else sink.before
        )
        for name, sink in latest.sinks.items()
    }
    check_delivered(log, latest, delivered=delivered)
    log.commit(
        msgspec.structs.replace(
            latest,
            epoch=latest.epoch + 1,
            batch=None,
            before=before,
            segments=tuple(segments),
            snapshots=tuple(snapshots),
            outputs=_repeat_loop_rows(log, latest),
            consumed=dict(consumed or {}),
            sinks=sinks,
            **fields,
        )
    )


def check_delivered(log: CommitLog, latest: CommitRecord, *, delivered: bool) -> None:
    """Raise `CheckpointError` if sinks may lack the epoch `latest`; `delivered`: they do not."""
    lacking = [] if delivered else undelivered_sinks(log)
    if lacking:
        raise CheckpointError(
            f"Epoch {latest.epoch}, the last one, has rows for "
            f"{', '.join(map(repr, lacking))}, and nothing says that they were "
            "delivered. This change is an epoch of its own, and only the last epoch is delivered "
            "at a start.",
            remedy="Start the query once, which delivers them. Then, or if you see them at the "
            "target already, say so: --delivered.",
        )


def undelivered_sinks(log: CommitLog) -> list[str]:
    """Return the sinks to which the last epoch's rows may not have been delivered yet.

    They would never get these rows if another epoch were committed now. Sinks of whole results are
    left out, since their next rows replace these.
    """
    latest = log.latest
    if latest is None:
        return []
    with_rows = {ref.sink for ref in latest.outputs if ref.rows} & {*latest.sinks}
    changed_only = sorted(name for name in with_rows if not latest.sinks[name].complete)
    return [] if not changed_only or _was_delivered(log, latest) else changed_only


def _was_delivered(log: CommitLog, latest: CommitRecord) -> bool:
    """Return true if the journal shows that the epoch `latest` was delivered to all sinks.

    Only entries of the run that committed it count: a journal outlives epochs that a repair takes
    back.
    """
    entries = JournalReader(log.storage).entries_of_run(latest.run_id)
    values = (entry.get("event") for entry in entries)
    events = (event for event in values if isinstance(event, dict))
    return any(e.get("kind") == "EpochCommitted" and e.get("epoch") == latest.epoch for e in events)


def _repeat_loop_rows(log: CommitLog, latest: CommitRecord) -> tuple[OutputRef, ...]:
    """Copy the rows that feedback loops have yet to process into the next epoch's output."""
    refs = [ref for ref in latest.outputs if ref.rows and ref.sink.startswith(FED_BACK)]
    if not refs:
        return ()
    with BlockWriter(log.storage, epoch=latest.epoch + 1, name="loops") as writer:
        for ref in refs:
            writer.add(read_block(log.storage, ref.block))
        blocks = writer.close()
    return tuple(
        msgspec.structs.replace(ref, block=block) for ref, block in zip(refs, blocks, strict=True)
    )
