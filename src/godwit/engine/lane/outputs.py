"""Staging of output for sinks, with a check before the commit for rows that the target cannot take.

Invariant: all rows staged for a sink have passed its check.  A rejected row fails the epoch before
its commit, or goes to the sink for rejected rows; it is never dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from godwit.checkpoint.staged_output import WrittenFiles
from godwit.columns.failures import naming
from godwit.columns.json_texts import ascii_text, json_rows
from godwit.model.errors import SinkError
from godwit.plan.staging import REJECTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.engine.lane.files import LaneFiles
    from godwit.plan.staging import Rejections, StagedSink


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
