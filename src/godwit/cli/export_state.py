"""`godwit export-state`: the state of a query as Parquet tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.text import counted, printable

if TYPE_CHECKING:
    import argparse


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
        help="only this operator; may be given several times",
    )
    parser.add_argument(
        "--epoch", type=int, metavar="N", help="a retained epoch; by default the last one"
    )
    parser.set_defaults(run=_run_export_state)


def _run_export_state(args: argparse.Namespace) -> int:
    """Write the files, and print a line about each; return status 0."""
    from godwit.engine.export_state import export_states  # noqa: PLC0415  loads Arrow's formats

    storage = CheckpointStorage.open(args.path)
    exported = export_states(storage, args.directory, operators=args.operator, epoch=args.epoch)
    for written in exported:
        name = f"{written.operator}/{written.state}"
        print(printable(f"{name}: {counted(written.rows, 'row')} in {written.file}"))
    return 0
