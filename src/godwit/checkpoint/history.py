"""The chain of commit records: whose history a record continues.

Problem: epochs of a fork have the same numbers as those of the checkpoint that it was copied from.
A record that comes from elsewhere, by a restored backup or a mixed-up directory, is whole by its
checksum and names a state that this checkpoint never had.

Invariant: a record carries the digest of the record before it, and that one of its own predecessor;
so the digest of one epoch stands for everything that was committed up to there.  Two checkpoints
agree on an epoch exactly if its digests are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.checkpoint.records import CommitRecord, FlowIdentity

__all__ = ["HistoryPoint", "Relation", "link_problems"]

Relation = Literal["shared", "ahead", "diverged", "unknown"]
"""How a point lies to a checkpoint: it is one of its epochs (``"shared"``), a later one of its
history (``"ahead"``), an epoch of another history (``"diverged"``), or one whose record has been
collected (``"unknown"``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPoint:
    """One epoch of one history; what a target stores to know whom it was written by."""

    query_id: str  # the query that committed the epoch
    # id of its checkpoint's history; a copy of the checkpoint goes on under another one
    history: str
    epoch: int  # number of the epoch
    digest: str  # of the epoch's record, and through it of all records before


def link_problems(
    identity: FlowIdentity, record: CommitRecord, *, before: CommitRecord | None, digest: str
) -> Iterator[str]:
    """Say why a record does not continue this checkpoint's history, if it does not.

    `before`: the record of the epoch before; ``None`` if there is none or it is not at hand.
    `digest`: digest of the record before, as it is here; empty if it is not known.
    """
    if not record.history:
        if before is not None and before.history:
            yield (
                "it does not name its predecessor, though earlier records do: a version of Godwit "
                "wrote it that writes no format 3"
            )
        return
    origin = identity.origin_of(record.epoch)
    whose = f"run {record.run_id!r} of query {record.query_id or 'unknown'} committed it"
    if (record.history, record.query_id) != (origin.history, origin.query_id):
        yield (
            f"it is of a fork: {whose}, in history {record.history}, and epoch {record.epoch} of "
            f"this checkpoint is of query {origin.query_id or 'unknown'}, history {origin.history}"
        )
    elif record.previous != digest and (digest or record.epoch == 0):
        yield (
            f"it is of a fork: {whose}, after another epoch {record.epoch - 1} than the one that "
            f"is here (digest {record.previous or 'none'}, not {digest or 'none'})"
        )
