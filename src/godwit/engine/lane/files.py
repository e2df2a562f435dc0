"""Files of one lane task: at most one each of changelog, snapshots and staged output.

Staged output is in the changelog's file where that has one and is larger, because an object store
charges for each file. A changelog stays for longer than output: the rule at most doubles its bytes.

Invariant: all rows staged for a sink (`stage_output`) have passed its check for rows that the
target cannot take.  A rejected row fails the epoch before its commit, or goes to the sink for
rejected rows; it is never dropped.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.entries import in_utc, pack_entries
from godwit.checkpoint.records import OutputRef, SegmentRef, SnapshotRef
from godwit.columns.arrays import min_of
from godwit.columns.failures import ascii_text, json_rows, naming
from godwit.model.errors import SinkError
from godwit.plan.staging import REJECTED, WrittenFiles, encode_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit.checkpoint.records import StateId
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.messages import LaneReport
    from godwit.plan.staging import Rejections, StagedSink
    from godwit.store.changes import Changes, StateRows


_T = TypeVar("_T")
_Ref: TypeAlias = "tuple[BlockWriter, int, Callable[..., _T]]"


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
        self._joined_bytes = 0  # of output in the changelog's file
        # constructors of the references to blocks, called once the blocks are written, each with
        # the writer of the block and its index there
        self._segment_refs: list[_Ref[SegmentRef]] = []
        self._snapshot_refs: list[_Ref[SnapshotRef]] = []
        self._output_refs: list[_Ref[OutputRef]] = []

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
        index = self._changelog.add(encode_batch(batch, self._compression))
        ref = partial(
            SegmentRef,
            **fields,
            flow=self._flow,
            epoch=self._epoch,
            key_groups=tuple(key_groups[starts].tolist()),
            row_ends=tuple(np.append(starts[1:], len(key_groups)).tolist()),
        )
        self._segment_refs.append((self._changelog, index, ref))

    def write_snapshots(self, state: StateId, contents: Changes) -> None:
        """Write snapshots: the whole state of key groups, each at its version."""
        batch = pack_entries(contents.rows)
        start = 0
        arrays = (contents.key_groups, contents.epochs, contents.ends)
        for key_group, version, end in zip(*(a.tolist() for a in arrays), strict=True):
            part = batch.slice(start, end - start)
            index = self._snapshots.add(encode_batch(part, self._compression))
            ref = partial(
                SnapshotRef,
                operator=state.operator,
                state=state.state,
                flow=self._flow,
                key_group=key_group,
                version=version,
                rows=end - start,
            )
            self._snapshot_refs.append((self._snapshots, index, ref))
            start = end

    def stage(self, sink: str, table: pa.Table, *, time: str | None = None) -> None:
        """Stage rows for a sink; record the minimum event time in the column `time`."""
        for batch in table.combine_chunks().to_batches():
            oldest_us = None if time is None else min_of(batch.column(time))
            block = encode_batch(batch, self._compression)
            self._add_output(sink, "rows", block, batch.num_rows, oldest_us=oldest_us)

    def stage_files(self, sink: str, written: WrittenFiles) -> None:
        """Stage the description of files that are already at the sink's target."""
        rows = sum(file.rows for file in written.files)
        self._add_output(sink, "files", encode_files(written), rows)

    def _add_output(
        self,
        sink: str,
        kind: Literal["rows", "files"],
        block: bytes | pa.Buffer,
        rows: int,
        *,
        oldest_us: int | None = None,
    ) -> None:
        """Add a block of staged output; `oldest_us`: minimum event time of its rows."""
        joined_bytes = self._joined_bytes + memoryview(block).nbytes
        joins = joined_bytes <= self._changelog.file_bytes - self._joined_bytes
        writer = self._changelog if joins else self._outputs
        self._joined_bytes = joined_bytes if joins else self._joined_bytes
        index = writer.add(block)
        ref = partial(
            OutputRef, sink=sink, flow=self._flow, kind=kind, rows=rows, oldest_us=oldest_us
        )
        self._output_refs.append((writer, index, ref))

    def close(self, report: LaneReport) -> None:
        """Close the files, and add references to their contents to the report."""
        writers = (self._changelog, self._snapshots, self._outputs)
        blocks = {writer: writer.close() for writer in writers}
        report.segments += [
            ref(lane=report.place, block=blocks[writer][index])
            for writer, index, ref in self._segment_refs
        ]
        report.snapshots += [
            ref(block=blocks[writer][index]) for writer, index, ref in self._snapshot_refs
        ]
        report.outputs += [
            ref(lane=report.place, block=blocks[writer][index])
            for writer, index, ref in self._output_refs
        ]


def stage_output(
    sink: StagedSink,
    rows: pa.Table,
    files: LaneFiles,
    *,
    where: str,
    epoch: int,
    place: int,
) -> None:
    """Stage rows for a sink, without those that its target cannot take.

    `where`: the operator, for errors. `place`: number of the lane, for names of files. Raises
    `SinkError`, with the first row's key, for such rows without a sink for rejected rows.
    """
    if rows.num_rows == 0:
        return
    if sink.check is not None:
        rows = _stage_rejected(sink, rows, files, f"epoch {epoch} of {where}")
        if rows.num_rows == 0:
            return
    if sink.writer is not None:
        with naming(f"Sink {sink.name!r}", sink=sink.name):
            written = sink.writer.write(rows, epoch=epoch, place=place)
        if written is not None:
            target = sink.writer.target
            files.stage_files(sink.name, WrittenFiles(target=target, files=tuple(written)))
            return
    files.stage(sink.name, rows, time=sink.time)


def _stage_rejected(sink: StagedSink, rows: pa.Table, files: LaneFiles, where: str) -> pa.Table:
    """Stage the rows that the sink's check rejects for its `rejects` sink; return the others."""
    assert sink.check is not None
    accepted, rejected = [], []
    # One batch, unless a column's text exceeds the limit of a batch.
    for batch in rows.combine_chunks().to_batches():
        with naming(f"Sink {sink.name!r}", sink=sink.name):
            rejections = sink.check(batch)
        if rejections is None:
            accepted.append(batch)
            continue
        rejected.append(rejected_rows(sink.name, sink.keys, batch, rejections))
        accepted.append(accepted_rows(batch, rejections))
    if not rejected:
        return rows
    refused = pa.concat_tables(rejected)
    if sink.rejects is None:
        where = f"{where}, of which nothing is committed"
        raise rejected_rows_error(sink.name, refused, keyed=bool(sink.keys), where=where)
    files.stage(sink.rejects, refused)
    return pa.Table.from_batches(accepted)


def accepted_rows(rows: pa.RecordBatch, rejections: Rejections) -> pa.RecordBatch:
    """Return the rows that a sink's check did not reject."""
    accepted = np.ones(rows.num_rows, np.bool_)
    accepted[rejections.rows] = False
    return rows.filter(pa.array(accepted))


def rejected_rows(
    sink: str, keys: Sequence[str], rows: pa.RecordBatch, rejections: Rejections
) -> pa.Table:
    """Return the rows that a sink's check rejects: sink, reason, key and row (JSON), as texts.

    `keys`: names of the key columns. The schema is `godwit.plan.staging.REJECTED`.
    """
    refused = rows.take(pa.array(rejections.rows))
    texts: dict[str, list[str]] = {
        "sink": [sink] * refused.num_rows,
        "reason": [ascii_text(reason) for reason in rejections.reasons],
        "key": json_rows(refused, keys),
        "row": json_rows(refused, refused.schema.names),
    }
    return pa.table(texts, schema=REJECTED)


def rejected_rows_error(sink: str, rejected: pa.Table, *, keyed: bool, where: str) -> SinkError:
    """Return the error that a target cannot take some rows, without a `rejects` sink.

    `rejected`: as `rejected_rows` returns them. `keyed`: name the first row by its key.
    """
    first = {name: rejected.column(name)[0].as_py() for name in ("key", "reason", "row")}
    described_row = f"with the key {first['key']}" if keyed else first["row"]
    further = f" ({rejected.num_rows - 1} more like it)" if rejected.num_rows > 1 else ""
    return SinkError(
        f"Sink {sink!r} cannot take a row of {where}: {described_row}, since "
        f"{first['reason']}{further}.",
        remedy="Correct such rows in a map before the sink, or say where rows go that the target "
        'cannot take, as in rejects=gw.sinks.parquet("out/rejected"); then start the query again.',
        sink=sink,
        key=first["key"],
        reason=first["reason"],
        rows=rejected.num_rows,
    )
