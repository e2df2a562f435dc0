"""Sinks of results: ``gw.sinks.parquet(...)``, ``gw.sinks.postgres(...)`` and the others.

Each function returns a sink for ``flow.sink(name, stream, sink)``. The target is not accessed until
the query starts; then every sink checks its target before the first epoch.

===============  ==============================  ==========================================
sink             delivery                        needs
===============  ==============================  ==========================================
`parquet`        exactly once                    any file system of ``pyarrow.fs``
`postgres`       exactly once                    ``pip install 'godwit-streams[postgres]'``
`sql`            exactly once                    ``pip install 'godwit-streams[mariadb]'``
`redis`          exactly once                    ``pip install 'godwit-streams[redis]'``
`delta`          exactly once                    ``pip install 'godwit-streams[delta]'``
`iceberg`        exactly once                    ``pip install 'godwit-streams[iceberg]'``
`kafka`          exactly once                    ``pip install 'godwit-streams[kafka]'``
`data_source`    at least once                   a PySpark data source in Python
`foreach`        at least once                   a function of yours
`foreach_table`  at least once                   a function of yours
`memory`         exactly once, in one process    memory on the driver
`console`        at least once                   ``pip install 'godwit-streams[cli]'``
`noop`           none: rows are discarded        nothing
===============  ==============================  ==========================================

A row that a target cannot take fails its epoch before the commit, or goes to the sink that
``rejects=`` names. `delta`, `iceberg`, `kafka`, `postgres`, `redis` and `sql` are connectors: entry
points of the group ``godwit.sinks``, to which other packages may add. To write a sink of your own,
see `gw.sinks.Sink`.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from godwit.api.names import SINKS
from godwit.model import plugins
from godwit.model.errors import SinkError
from godwit.model.frames import user_call
from godwit.model.naming import needs_package
from godwit.sinks.simple_sinks import (
    ConsoleSink,
    ForeachSink,
    ForeachTableSink,
    MemorySink,
    NoopSink,
)
from godwit.sinks.sink import (
    EpochOutput,
    Maintenance,
    Sink,
    SinkContext,
    Views,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from godwit.adopt.data_source.write import data_source as data_source
    from godwit.connect.delta import delta as delta
    from godwit.connect.files.parquet_directory import delivered_files, latest_epoch
    from godwit.connect.files.write import parquet as parquet
    from godwit.connect.iceberg import iceberg as iceberg
    from godwit.connect.kafka.write import kafka as kafka
    from godwit.connect.postgres import postgres as postgres
    from godwit.connect.redis import redis as redis
    from godwit.connect.sql import sql as sql

__all__ = [
    "EpochOutput",
    "Maintenance",
    "MemorySink",
    "Sink",
    "SinkContext",
    "Views",
    "console",
    "delivered_files",
    "foreach",
    "foreach_table",
    "latest_epoch",
    "memory",
    "noop",
    "parquet",
]

_FILES = {
    "parquet": "godwit.connect.files.write",
    **dict.fromkeys(("delivered_files", "latest_epoch"), "godwit.connect.files.parquet_directory"),
}

if not TYPE_CHECKING:  # a type checker would take every name for granted

    def __getattr__(name: str) -> Any:
        """Return a sink of a connector or of another package; suggest one for an unknown name."""
        return plugins.member("sinks", __name__, name, __all__, SINKS, own_modules=_FILES)


def __dir__() -> list[str]:
    return sorted({*__all__, *plugins.names("sinks")})


@user_call
def foreach(fn: Callable[[DataFrame, int], object]) -> ForeachSink:
    """Call ``fn(rows, epoch)`` for every committed epoch; at least once.

    **At least once**: after a crash the function may be called again for the last epoch, with the
    same rows. It is exactly-once if the function is idempotent per epoch: it overwrites
    ``.../epoch=7``, or records the epoch in the transaction that writes the rows. If the function
    raises, the query fails; the epoch stays committed and is delivered again after the next start.

    Parameters
    ----------
    fn
        Called on the driver with a Spark DataFrame of the epoch's rows, and the number of the
        epoch; its result is ignored.

    Raises
    ------
    SinkError
        If `fn` is not callable.

    Examples
    --------
    >>> def publish(rows, epoch):
    ...     rows.write.mode("overwrite").json(f"out/epoch={epoch}")
    >>> flow.sink("published", by_plane, gw.sinks.foreach(publish))
    """
    return ForeachSink(fn)


@user_call
def foreach_table(fn: Callable[[pa.Table, int], object]) -> ForeachTableSink:
    """Call ``fn(rows, epoch)`` for every committed epoch, with one Arrow table; at least once.

    **At least once**, as `foreach`, but without Spark: the whole epoch is in the driver's memory.
    Calls are in order of epochs, one at a time. After a crash the function may be called again for
    the last epoch, with the same rows. It is exactly-once if the function writes rows and epoch
    number in one transaction.

    Parameters
    ----------
    fn
        Called on the driver with a ``pyarrow.Table`` and the number of the epoch; its result is
        ignored. If it raises, the query fails, and the epoch is delivered again after the next
        start.

    Raises
    ------
    SinkError
        If `fn` is not callable.

    Examples
    --------
    >>> by_epoch = {}
    >>> sink = gw.sinks.foreach_table(lambda rows, epoch: by_epoch.update({epoch: rows}))
    """
    return ForeachTableSink(fn)


@user_call
def memory(name: str | None = None) -> MemorySink:
    """Keep results in the driver's memory: ``.table()``, ``.epochs``, and view `name` if given.

    **Exactly-once within a run**: an epoch delivered twice is kept once. Rows are lost when the
    process ends. They may be read from any thread while the query runs.

    Parameters
    ----------
    name
        Name of a Spark temporary view that shows ``.table()`` after every epoch; ``None``: no view.

    Examples
    --------
    >>> results = gw.sinks.memory()  # flow.sink("by_plane", by_plane, results); flow.start(...)
    >>> results.epochs
    mappingproxy({})
    """
    return MemorySink(name)


@user_call
def console(limit: int = 20, *, file: IO[str] | None = None) -> ConsoleSink:
    """Print the first `limit` rows of every epoch as a table; at least once.

    **At least once**: within one run an epoch is printed once; after a restart the last epoch may
    be printed again.

    Parameters
    ----------
    limit
        Maximum number of rows to print of an epoch.
    file
        Open text file to print to; by default standard output.

    Raises
    ------
    SinkError
        If rich is not installed, or `limit` is negative.

    Examples
    --------
    >>> flow.sink("printed", by_plane, gw.sinks.console(limit=5))
    """
    with needs_package("The console sink", "rich", "cli", SinkError):
        import rich  # noqa: F401, PLC0415 - rich is optional
    return ConsoleSink(limit, file=file)


@user_call
def noop() -> NoopSink:
    """Discard all results; for benchmarks and tests.

    Examples
    --------
    >>> flow.sink("measured", by_plane, gw.sinks.noop())
    """
    return NoopSink()
