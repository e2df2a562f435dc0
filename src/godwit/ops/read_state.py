"""The state of an operator at a committed epoch, as a DataFrame, from the checkpoint alone.

No query has to run, and a running one is not disturbed: committed files never change.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from godwit.checkpoint.entries import BatchCache
from godwit.checkpoint.storage import CheckpointStorage
from godwit.model.frames import user_call
from godwit.ops.state_view import view_state
from godwit.spark.platform.pyspark_versions import spark_schema_of
from godwit.spark.platform.sessions import check_session

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_CHUNKS = 4


@user_call
def read_state(
    spark: SparkSession,
    checkpoint: str | os.PathLike[str],
    operator: str,
    epoch: int | None = None,
    *,
    state: str | None = None,
) -> DataFrame:
    """Read the state of one operator from a checkpoint, as a batch DataFrame.

    Parameters
    ----------
    spark
        Spark session that reads it.
    checkpoint
        Directory of the checkpoint, as given to ``Flow.start``.
    operator
        Name of the operator; ``flow.explain()`` lists them.
    epoch
        Number of a retained epoch (see ``retain_epochs`` of `godwit.Checkpointing`); by default the
        last committed one.
    state
        Name of one of the operator's named states, or ``"timers"`` for its timers.
        Required if it has several states.

    Returns
    -------
    DataFrame
        Rows with the columns ``key_group``, the key columns, and the columns of the state:

        - ``compute`` without windows: one row per key, with the partial results of the aggregates.
        - ``process_batch``: one row per key, with the columns of ``state=``.
        - ``process``: one row per key, with the state as JSON text (with ``codec="pickle"`` as
          pickled bytes), and columns ``timers`` and ``expires`` if it has timers or a time-to-live.
        - ``process`` with ``merge=``: one row per key and ``part``, which is null for a key that is
          not divided.
        - `godwit.ValueState`: one row per key. `godwit.ListState`: one per key and ``page``, a
          piece of up to 64 elements. `godwit.MapState`: one per key and ``item``, the item's key.
          The values are JSON text.
        - Windows: one row per key and ``pane``, the start of a slice of time whose rows are
          aggregated together; two-phase windows have up to two such rows, one in each slot.
        - Joins: one row per stored row, with the ``side`` that it came from: 0 for left, 1 for
          right, 2 for the newest right row of a key.

    Raises
    ------
    CheckpointError
        If there is no such operator or state, it has no state yet, or the epoch is not retained.
    CorruptCheckpointError
        If a needed file is missing or damaged.
    EpochCollectedError
        When the DataFrame is evaluated, if a running query has removed the epoch's files meanwhile.

    Examples
    --------
    >>> gw.read_state(spark, "ck/", "by_plane").show()  # doctest: +SKIP
    >>> gw.testing.run(delays, {"flights": ROWS}).state("by_plane").num_rows
    1
    """
    check_session(spark, str(checkpoint))
    view = view_state(CheckpointStorage.open(checkpoint), operator, epoch, state)
    number = min(len(view.chains), _CHUNKS)
    chunks = [(pickle.dumps(view.chains[i::number]),) for i in range(number)]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the entries of the key groups assigned to this task."""
        cache = BatchCache(view.storage)
        for batch in batches:
            for chunk in batch.column(0).to_pylist():
                for chain in pickle.loads(chunk):  # noqa: S301  our own driver's
                    yield view.read(chain, cache)

    frame = spark.createDataFrame(chunks, "chains binary").repartition(number)
    return frame.mapInArrow(read, spark_schema_of(view.schema))
