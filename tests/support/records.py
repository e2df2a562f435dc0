"""References in checkpoint records, with what most tests do not care about filled in."""

from __future__ import annotations

from typing import Any

from godwit.checkpoint.records import BlockRef, SegmentRef, SnapshotRef

__all__ = ["BLOCK", "segment_ref", "snapshot_ref"]

BLOCK = BlockRef(file="blocks/000000000000-x-ab.blk", offset=0, length=100, checksum=0)


def segment_ref(**fields: Any) -> SegmentRef:
    """A segment that changes key group 1 of ``op/state``, unless it is told otherwise."""
    usual: dict[str, Any] = {"operator": "op", "state": "state", "flow": 0, "epoch": 0, "lane": 0}
    rows = {"kind": "changes", "block": BLOCK, "key_groups": (1,), "row_ends": (1,)}
    return SegmentRef(**usual | rows | fields)


def snapshot_ref(**fields: Any) -> SnapshotRef:
    """A snapshot of key group 1 of ``op/state``, unless it is told otherwise."""
    whose: dict[str, Any] = {"operator": "op", "state": "state", "flow": 0, "key_group": 1}
    return SnapshotRef(**whose | {"version": 0, "rows": 1, "block": BLOCK} | fields)
