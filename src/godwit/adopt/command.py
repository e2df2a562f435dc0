"""`godwit adopt`: shows the checkpoint of a Spark query, and how to continue the query."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final

from godwit.checkpoint.spark_log import offsets_in
from godwit.model.text import printable

if TYPE_CHECKING:
    import argparse

    from godwit.adopt.spark_progress import StoppedQuery

_LINES: Final = """\
To continue with this state, start the query that wrote it by

  gw.write_stream(df).outputMode(...) \\
      .from_spark_checkpoint({old!r}) \\
      .option("checkpointLocation", {new!r}) \\
      .start()

Spark's checkpoint is only read. The state is checked against the query before anything starts."""


def add_adopt_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the texts and arguments of `godwit adopt`, and its function as ``run``."""
    parser.description = (
        "Inspect the checkpoint of a stopped Spark streaming query: its last batch, its "
        "watermark and its sources; and print the code that continues the query with its state. "
        "Nothing is written: the state is read when the query starts, since only the query "
        "defines its meaning. Exit status 0; 2 if there is no such checkpoint."
    )
    parser.add_argument("old", metavar="OLD", help="checkpointLocation of the Spark query")
    parser.add_argument(
        "new",
        metavar="NEW",
        nargs="?",
        default="checkpoints/new",
        help="path of the new checkpoint",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run_adopt)


def _run_adopt(args: argparse.Namespace) -> int:
    """Print what a checkpoint has; return status 0."""
    from godwit.adopt.spark_progress import read_progress  # noqa: PLC0415  it loads PySpark

    progress = read_progress(args.old)
    if args.json:
        print(json.dumps(_as_json(progress), indent=2))
        return 0
    for name, value in _as_json(progress).items():
        print(printable(f"{name.replace('_', ' ')}: {value}"))
    print(f"\n{_LINES.format(old=args.old, new=args.new)}")
    return 0


def _as_json(progress: StoppedQuery) -> dict[str, Any]:
    """Return the progress of a query as plain values."""
    watermark = None
    if progress.watermark_ms > 0:
        moment = dt.datetime.fromtimestamp(progress.watermark_ms / 1000, dt.UTC)
        watermark = moment.isoformat(timespec="milliseconds")
    planned = [int(p.partition("/")[2]) for p in progress.files if p.startswith("offsets/")]
    provider = progress.settings.get("spark.sql.streaming.stateStore.providerClass", "")
    return {
        "query": progress.query_id,
        "last_batch": progress.batch,
        "planned_batch": max(planned) if max(planned) > progress.batch else None,
        "watermark": watermark,
        "streams": len(offsets_in(progress.offsets)),
        "state_store": provider.rpartition(".")[2] or None,
    }
