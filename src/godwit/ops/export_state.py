"""`godwit export-state`: the state of a query as Parquet tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.entries import BatchCache
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.errors import CheckpointError, InvalidInputError
from godwit.model.naming import did_you_mean, listing
from godwit.model.text import counted, printable
from godwit.ops.state_view import NoStateError, view_state

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterator


def add_export_state_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit export-state`, and its function as ``run``."""
    parser.description = (
        "Write the state of every operator to a Parquet file of its own, with the columns of "
        "gw.read_state: the key columns, and the partial results, values or rows that are stored. "
        "The checkpoint is only read, so the query may be running. Another flow can begin with a "
        'file: flow.start(initial={"totals": "exported/totals.parquet"}). Exit status 0; 2 if '
        "there is no such state."
    )
    parser.add_argument("path", metavar="CHECKPOINT", help="directory of the checkpoint")
    parser.add_argument("directory", metavar="DIR", type=Path, help="where the files are written")
    parser.add_argument(
        "--operator",
        action="append",
        default=[],
        metavar="NAME",
        help="only this operator; may be repeated",
    )
    parser.add_argument(
        "--epoch", type=int, metavar="N", help="a retained epoch; by default the last one"
    )
    parser.set_defaults(run=_run_export_state)


def _run_export_state(args: argparse.Namespace) -> int:
    """Write the files, and print a line about each; return status 0."""
    storage = CheckpointStorage.open(args.path)
    exported = export_states(storage, args.directory, operators=args.operator, epoch=args.epoch)
    for state, rows, file in exported:
        print(printable(f"{state}: {counted(rows, 'row')} in {file}"))
    return 0


def export_states(
    storage: CheckpointStorage,
    directory: Path,
    *,
    operators: Collection[str] = (),
    epoch: int | None = None,
) -> Iterator[tuple[str, int, Path]]:
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
    operator_versions = {
        name: operator_version
        for name, operator_version in version.operators.items()
        if not operator_version.part_of
    }
    for name in operators:
        if name not in operator_versions:
            raise CheckpointError(
                f"The checkpoint {storage.uri!r} has no operator {name!r}.",
                remedy=f"{did_you_mean(name, [*operator_versions])}Its operators are "
                f"{listing(operator_versions)}.",
                operator=name,
            )
    directory.mkdir(parents=True, exist_ok=True)
    for name, operator_version in operator_versions.items():
        if operators and name not in operators:
            continue
        states = [state for state in operator_version.states if not state.startswith("broadcast_")]
        for state in states:
            stem = name if len(states) == 1 else f"{name}-{state}"
            file = directory / f"{stem}.parquet"
            rows = _export_state(storage, name, state, file, epoch)
            if rows is not None:
                yield f"{name}/{state}", rows, file


def _export_state(
    storage: CheckpointStorage, operator: str, state: str, file: Path, epoch: int | None
) -> int | None:
    """Write one state to a file; return its rows, ``None`` if it has no entries."""
    try:
        view = view_state(storage, operator, epoch, state)
    except NoStateError:
        return None
    if file.exists():
        raise InvalidInputError(
            f"The file {str(file)!r} already exists.", remedy="Give an empty directory."
        )
    cache, count = BatchCache(storage), 0
    part = file.with_name(f".{file.name}.part")
    with pq.ParquetWriter(part, view.schema, compression="zstd") as writer:
        for chain in view.chains:
            batch = view.read(chain, cache)
            count += batch.num_rows
            writer.write_batch(batch)
    part.rename(file)
    return count
