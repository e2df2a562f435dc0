"""What one lane task writes: changelog, snapshots and staged output, a file each at most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.entries import StateRows, in_utc, pack_entries
from godwit.checkpoint.records import OutputRef, SegmentRef, SnapshotRef
from godwit.checkpoint.staged_output import encode_files

if TYPE_CHECKING:
    import pyarrow as pa

    from godwit.checkpoint.records import StateId
    from godwit.checkpoint.staged_output import WrittenFiles
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.messages import LaneReport
    from godwit.store.changes import Changes

    _Segment = tuple[str, str, Literal["changes", "waiting"], list[int], list[int]]

__all__ = ["LaneFiles"]


class LaneFiles:
    """The files of one attempt of one lane task."""

    def __init__(
        self,
        *,
        storage: CheckpointStorage,
        epoch: int,
        flow: int,
        name: str,
        inline_bytes: int,
        compression: Literal["lz4", "zstd"] | None,
    ) -> None:
        self._epoch, self._flow, self._compression = epoch, flow, compression
        self._writers = {
            kind: BlockWriter(
                storage, epoch=epoch, name=f"{kind}-{name}", inline_limit_bytes=inline_bytes
            )
            for kind in ("changelog", "snapshots", "outputs")
        }
        self._segments: list[_Segment] = []
        self._snapshots: list[tuple[StateId, int, int, int]] = []
        self._outputs: list[tuple[str, int, Literal["rows", "files"]]] = []

    def changes(self, state: StateId, rows: StateRows, key_groups: npt.NDArray[np.int32]) -> None:
        """Write changed entries, which are ordered by key group."""
        self._segment(state.operator, state.state, "changes", pack_entries(rows), key_groups)

    def waiting(
        self, operator: str, batch: pa.RecordBatch, key_groups: npt.NDArray[np.int32]
    ) -> None:
        """Write rows that wait, which are ordered by key group."""
        self._segment(operator, "", "waiting", in_utc(batch), key_groups)

    def _segment(
        self,
        operator: str,
        state: str,
        kind: Literal["changes", "waiting"],
        batch: pa.RecordBatch,
        key_groups: npt.NDArray[np.int32],
    ) -> None:
        starts = np.flatnonzero(np.diff(key_groups, prepend=-1))
        ends = np.append(starts[1:], len(key_groups))
        self._writers["changelog"].add(encode_batch(batch, self._compression))
        self._segments.append((operator, state, kind, key_groups[starts].tolist(), ends.tolist()))

    def snapshots(self, state: StateId, contents: Changes) -> None:
        """Write the whole state of some key groups, each at its version."""
        batch = pack_entries(
            StateRows(hashes=contents.hashes, keys=contents.keys, values=contents.values)
        )
        start = 0
        arrays = (contents.key_groups, contents.epochs, contents.ends)
        for key_group, version, end in zip(*(a.tolist() for a in arrays), strict=True):
            part = batch.slice(start, end - start)
            self._writers["snapshots"].add(encode_batch(part, self._compression))
            self._snapshots.append((state, key_group, version, end - start))
            start = end

    def stage(self, sink: str, table: pa.Table) -> None:
        """Stage rows for a sink."""
        for batch in table.combine_chunks().to_batches():
            self._writers["outputs"].add(encode_batch(batch, self._compression))
            self._outputs.append((sink, batch.num_rows, "rows"))

    def stage_files(self, sink: str, written: WrittenFiles) -> None:
        """Stage files that are at the sink's target already: their description only."""
        self._writers["outputs"].add(encode_files(written))
        self._outputs.append((sink, sum(file.rows for file in written.files), "files"))

    def close(self, report: LaneReport) -> None:
        """Finish the files and name what is in them."""
        for (operator, state, kind, key_groups, ends), block in zip(
            self._segments, self._writers["changelog"].close(), strict=True
        ):
            report.segments.append(
                SegmentRef(
                    operator=operator,
                    state=state,
                    flow=self._flow,
                    epoch=self._epoch,
                    lane=report.place,
                    kind=kind,
                    block=block,
                    key_groups=tuple(key_groups),
                    row_ends=tuple(ends),
                )
            )
        for (state_id, key_group, version, rows), block in zip(
            self._snapshots, self._writers["snapshots"].close(), strict=True
        ):
            report.snapshots.append(
                SnapshotRef(
                    operator=state_id.operator,
                    state=state_id.state,
                    flow=self._flow,
                    key_group=key_group,
                    version=version,
                    rows=rows,
                    block=block,
                )
            )
        for (sink, rows, contents), block in zip(
            self._outputs, self._writers["outputs"].close(), strict=True
        ):
            report.outputs.append(
                OutputRef(
                    sink=sink,
                    flow=self._flow,
                    lane=report.place,
                    kind=contents,
                    rows=rows,
                    block=block,
                )
            )
