"""Files of one lane task: at most one each of changelog, snapshots and staged output."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.entries import in_utc, pack_entries
from godwit.checkpoint.records import OutputRef, SegmentRef, SnapshotRef
from godwit.checkpoint.staged_output import encode_files
from godwit.columns.arrays import min_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from godwit.checkpoint.records import StateId
    from godwit.checkpoint.staged_output import WrittenFiles
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.messages import LaneReport
    from godwit.store.changes import Changes, StateRows


class LaneFiles:
    """Files of one attempt of one lane task."""

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
        self._changelog, self._snapshots, self._outputs = (
            BlockWriter(
                storage, epoch=epoch, name=f"{kind}-{name}", inline_limit_bytes=inline_bytes
            )
            for kind in ("changelog", "snapshots", "outputs")
        )
        # constructors of the references to blocks, called once the blocks are written
        self._segment_refs: list[Callable[..., SegmentRef]] = []
        self._snapshot_refs: list[Callable[..., SnapshotRef]] = []
        self._output_refs: list[Callable[..., OutputRef]] = []

    def write_changes(
        self, state: StateId, rows: StateRows, key_groups: npt.NDArray[np.int32]
    ) -> None:
        """Write changed state entries, ordered by key group, as a changelog segment."""
        owner = {"operator": state.operator, "state": state.state}
        self._write_segment({**owner, "kind": "changes"}, pack_entries(rows), key_groups)

    def write_waiting(
        self, operator: str, batch: pa.RecordBatch, key_groups: npt.NDArray[np.int32]
    ) -> None:
        """Write rows of suspended key groups, ordered by key group, to the wait buffer."""
        fields = {"operator": operator, "state": "", "kind": "waiting"}
        self._write_segment(fields, in_utc(batch), key_groups)

    def _write_segment(
        self, fields: Mapping[str, Any], batch: pa.RecordBatch, key_groups: npt.NDArray[np.int32]
    ) -> None:
        """Write rows, ordered by key group, as a segment.

        `fields`: fields of its `SegmentRef` that identify the rows.
        """
        starts = np.flatnonzero(np.diff(key_groups, prepend=-1))
        self._changelog.add(encode_batch(batch, self._compression))
        self._segment_refs.append(
            partial(
                SegmentRef,
                **fields,
                flow=self._flow,
                epoch=self._epoch,
                key_groups=tuple(key_groups[starts].tolist()),
                row_ends=tuple(np.append(starts[1:], len(key_groups)).tolist()),
            )
        )

    def write_snapshots(self, state: StateId, contents: Changes) -> None:
        """Write snapshots: the whole state of key groups, each at its version."""
        batch = pack_entries(contents.rows)
        start = 0
        arrays = (contents.key_groups, contents.epochs, contents.ends)
        for key_group, version, end in zip(*(a.tolist() for a in arrays), strict=True):
            part = batch.slice(start, end - start)
            self._snapshots.add(encode_batch(part, self._compression))
            self._snapshot_refs.append(
                partial(
                    SnapshotRef,
                    operator=state.operator,
                    state=state.state,
                    flow=self._flow,
                    key_group=key_group,
                    version=version,
                    rows=end - start,
                )
            )
            start = end

    def stage(self, sink: str, table: pa.Table, *, time: str | None = None) -> None:
        """Stage rows for a sink; record the minimum event time in the column `time`."""
        for batch in table.combine_chunks().to_batches():
            self._outputs.add(encode_batch(batch, self._compression))
            oldest_us = None if time is None else min_of(batch.column(time))
            self._record_output(sink, "rows", batch.num_rows, oldest_us)

    def stage_files(self, sink: str, written: WrittenFiles) -> None:
        """Stage the description of files that are already at the sink's target."""
        self._outputs.add(encode_files(written))
        self._record_output(sink, "files", sum(file.rows for file in written.files))

    def _record_output(
        self, sink: str, kind: Literal["rows", "files"], rows: int, oldest_us: int | None = None
    ) -> None:
        """Record a reference to staged output; its block is set when the files are closed.

        `oldest_us`: minimum event time of the rows.
        """
        self._output_refs.append(
            partial(
                OutputRef, sink=sink, flow=self._flow, kind=kind, rows=rows, oldest_us=oldest_us
            )
        )

    def close(self, report: LaneReport) -> None:
        """Close the files, and add references to their contents to the report."""
        segments = zip(self._segment_refs, self._changelog.close(), strict=True)
        report.segments += [ref(lane=report.place, block=block) for ref, block in segments]
        snapshots = zip(self._snapshot_refs, self._snapshots.close(), strict=True)
        report.snapshots += [ref(block=block) for ref, block in snapshots]
        outputs = zip(self._output_refs, self._outputs.close(), strict=True)
        report.outputs += [ref(lane=report.place, block=block) for ref, block in outputs]
