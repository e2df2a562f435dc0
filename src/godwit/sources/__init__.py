"""Sources of Godwit's own: rows come as Arrow batches, without Spark's micro-batch engine.

Each function makes a source for ``flow.source(name, source)``. Nothing is touched until the flow
is started.

=========  ============================================  ==========================
source     rows                                          position
=========  ============================================  ==========================
`memory`   what a program adds, for tests                a number of rows
`rate`     numbered rows, any number a second            a number of rows
`nexmark`  bids, auctions and persons of the benchmark   a number of rows
=========  ============================================  ==========================

The contract of all sources is in `godwit.sources.source`, the first file to read: derive from
`Source` to write your own, and check it by ``gw.testing.check_source``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.model.frames import user_call
from godwit.sources.generated import RateSource
from godwit.sources.memory import MemorySource
from godwit.sources.nexmark import NexmarkKind, NexmarkSource
from godwit.sources.source import Lag, Position, Source, Split

if TYPE_CHECKING:
    import datetime as dt
    from typing import Any

    from godwit.columns.types import SchemaLike

__all__ = ["Lag", "MemorySource", "Position", "Source", "Split", "memory", "nexmark", "rate"]


@user_call
def memory(
    schema: SchemaLike,
    rows: Any = None,
    *,
    name: str = "memory",
    max_rows_per_epoch: int | None = None,
) -> MemorySource:
    """Rows that the program adds, for tests: ``source.add(rows)``, also while a query runs.

    Parameters
    ----------
    schema
        Columns: an Arrow schema, a dict of column name → type, text such as
        ``"symbol string, price double"``, or a PySpark ``StructType``.
    rows
        Rows to begin with, as ``add`` takes them: dicts, tuples, an Arrow table or record batch, or
        a pandas DataFrame. A column that a dict does not have is null.
    name
        Name in errors and in the checkpoint.
    max_rows_per_epoch
        How many rows an epoch reads at most; by default all there are.

    Examples
    --------
    >>> source = memory("symbol string, price double", [("A", 9.5)])
    >>> source.add([{"symbol": "B"}])
    >>> source
    <memory source 'memory': 2 rows>
    """
    source = MemorySource(schema, name=name, max_rows_per_epoch=max_rows_per_epoch)
    if rows is not None:
        source.add(rows)
    return source


@user_call
def rate(
    rows_per_second: float = 1.0,
    *,
    num_keys: int | None = None,
    paced: bool = True,
    max_rows_per_epoch: int | None = None,
    num_rows: int | None = None,
    start: dt.datetime | str | None = None,
    seed: int = 0,
) -> Source:
    """Numbered rows: columns ``timestamp`` and ``value`` (0, 1, 2, ...), and ``key`` if asked for.

    Parameters
    ----------
    rows_per_second
        Row *i* happens ``i / rows_per_second`` after the start: its ``timestamp``.
    num_keys
        Adds a column ``key`` (bigint), drawn from so many keys.
    paced
        Whether a row comes when its moment is reached. ``False``: as fast as they are read, with
        moments that run ahead of the clock; give `max_rows_per_epoch` or `num_rows` too.
    max_rows_per_epoch
        How many rows an epoch reads at most; by default all that are due.
    num_rows
        After how many rows it ends; by default never.
    start
        The first row's moment, a datetime or ISO 8601 text; by default when the query starts for
        the first time.
    seed
        Another seed, other keys. The same seed and start give the same rows, always.
    """
    return RateSource(
        rows_per_s=rows_per_second,
        num_keys=num_keys,
        paced=paced,
        max_rows_per_epoch=max_rows_per_epoch,
        num_rows=num_rows,
        start=start,
        seed=seed,
    )


@user_call
def nexmark(
    kind: NexmarkKind,
    *,
    events_per_second: float = 10_000.0,
    paced: bool = True,
    max_rows_per_epoch: int | None = None,
    num_rows: int | None = None,
    start: dt.datetime | str | None = None,
    seed: int = 0,
) -> Source:
    """Bids, auctions or persons of the NEXMark benchmark, an auction house.

    Of 50 events one is a person, 3 are auctions and 46 are bids. Three sources of one seed, one
    start and one rate make one auction house: bids are for auctions that there are by then.

    Parameters
    ----------
    kind
        ``"bids"``, ``"auctions"`` or ``"persons"``: each has columns of its own, and its event time
        in ``date_time``.
    events_per_second
        Rate of all three kinds together.
    paced, max_rows_per_epoch, num_rows, start, seed
        As in `rate`.
    """
    return NexmarkSource(
        kind,
        events_per_s=events_per_second,
        paced=paced,
        max_rows_per_epoch=max_rows_per_epoch,
        num_rows=num_rows,
        start=start,
        seed=seed,
    )
