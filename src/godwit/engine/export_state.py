"""The state of all operators of a checkpoint as Parquet tables, without Spark.

Each state is written key group by key group, in bounded memory, with the columns of
`gw.read_state`.  Only committed files are read, so a query may be running.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.entries import BatchCache
from godwit.engine.state_view import NoStateError, view_state
from godwit.model.errors import CheckpointError, InvalidInputError
from godwit.model.naming import did_you_mean, listing

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from godwit.checkpoint.storage import CheckpointStorage


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedState:
    """One state that was written, and its file."""

    operator: str
    state: str
    file: Path
    rows: int


def export_states(
    storage: CheckpointStorage,
    directory: Path,
    *,
    operators: Collection[str] = (),
    epoch: int | None = None,
) -> Iterator[ExportedState]:
    """Write the states of operators to Parquet files, ``<operator>.parquet``; yield each.

    An operator with several states has a file for each, ``<operator>-<state>.parquet``; states
    without entries have none. `operators`: by default all. `epoch`: by default the last one.
    Raises `CheckpointError` if there is no such operator or epoch, or a file exists already.
    """
    log = CommitLog.open_read_only(storage)
    if log.latest_epoch < 0:
        raise NoStateError(
            f"No epoch is committed yet in the checkpoint {storage.uri!r}.",
            remedy="Export its state once the query has committed an epoch.",
        )
    version = log.version(log.flow)
    known = {name: own for name, own in version.operators.items() if not own.part_of}
    for name in operators:
        if name not in known:
            raise CheckpointError(
                f"The checkpoint {storage.uri!r} has no operator {name!r}.",
                remedy=f"{did_you_mean(name, [*known])}Its operators are {listing(known)}.",
                operator=name,
            )
    directory.mkdir(parents=True, exist_ok=True)
    for name, own in known.items():
        if operators and name not in operators:
            continue
        states = [state for state in own.states if not state.startswith("broadcast_")]
        for state in states:
            stem = name if len(states) == 1 else f"{name}-{state}"
            exported = _export(storage, name, state, directory / f"{stem}.parquet", epoch)
            if exported is not None:
                yield exported


def _export(
    storage: CheckpointStorage, operator: str, state: str, file: Path, epoch: int | None
) -> ExportedState | None:
    """Write one state to a file; return ``None`` if it has no entries."""
    try:
        view = view_state(storage, operator, epoch, state)
    except NoStateError:
        return None
    if file.exists():
        raise InvalidInputError(
            f"The file {str(file)!r} exists already.", remedy="Give an empty directory."
        )
    cache, count = BatchCache(storage), 0
    part = file.with_name(f".{file.name}.part")
    with pq.ParquetWriter(part, view.schema, compression="zstd") as writer:
        for chain in view.chains:
            batch = view.read(chain, cache)
            count += batch.num_rows
            writer.write_batch(batch)
    part.rename(file)
    return ExportedState(operator=operator, state=state, file=file, rows=count)
