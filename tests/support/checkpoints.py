"""Checkpoints for the command line to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.support.records import segment_ref

from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.evolution import FlowVersion, OperatorVersion, StateDescription
from godwit.checkpoint.records import CommitRecord, FlowIdentity
from godwit.checkpoint.storage import CheckpointStorage

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ROWS", "write_checkpoint"]

FLOW = FlowVersion(
    operators={
        "op": OperatorVersion(
            kind="compute",
            keys=(("k", "string"),),
            states={"state": StateDescription(columns=(), codec="arrow", type={})},
        )
    }
)
ROWS = pa.record_batch({"hash": pa.array([1, 5, 2], pa.int64()), "k": ["a", "b", "c"]})


def write_checkpoint(
    path: Path,
    *,
    name: str,
    epochs: int,
    inline_limit_bytes: int = 0,
    manifest_interval: int | None = None,
) -> CheckpointStorage:
    """Write one of so many epochs that retains three, each with one segment of `ROWS`."""
    storage = CheckpointStorage.open(path)
    identity = FlowIdentity(name=name, num_key_groups=4)
    interval: dict[str, Any] = {}
    if manifest_interval is not None:
        interval["manifest_interval"] = manifest_interval
    log = CommitLog.create_or_open(
        storage, identity, "some-run", flow=FLOW, retain_epochs=3, **interval
    )
    for epoch in range(epochs):
        with BlockWriter(
            storage, epoch=epoch, name="a", inline_limit_bytes=inline_limit_bytes
        ) as writer:
            writer.add(encode_batch(ROWS))
            (block,) = writer.close()
        segment = segment_ref(epoch=epoch, block=block, key_groups=(1, 2), row_ends=(2, 3))
        log.commit(CommitRecord(epoch=epoch, run_id="some-run", segments=(segment,)))
    return storage
