"""The state of an operator at a committed epoch, as a DataFrame, from the checkpoint alone.

No query has to run, and a running one is not disturbed: what is committed never changes.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import from_arrow_schema

from godwit.checkpoint.entries import BatchCache
from godwit.checkpoint.storage import CheckpointStorage
from godwit.engine.state_view import view_state
from godwit.model.frames import user_call

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
    """Read the state of one operator.

    Parameters
    ----------
    spark
        The session that is to read it.
    checkpoint
        Directory of the checkpoint, as given to ``Flow.start``.
    operator
        Name of the operator; ``flow.explain()`` lists them.
    epoch
        A retained epoch; by default the last committed one.
    state
        Which of its states, of an operator that has named several; ``"timers"`` for its timers.

    Returns
    -------
    DataFrame
        One row per key: ``key_group``, the key columns, and the state columns. Structured Python
        state written as msgpack comes as JSON text, with the key's ``timers`` and when it
        ``expires`` beside it, if it has any. Of an operator over windows, one row per key
        and pane, with the start of the pane as ``pane``; of one whose windows are consolidated
        apart, one for each of the two slots that hold anything of them. Of a named state that is a
        list, one row per key and ``page``, and of a map, one per key and ``item``.

    Raises
    ------
    CheckpointError
        If there is no such operator, or the epoch is not retained.
    CorruptCheckpointError
        If a file that is needed is missing or damaged.
    EpochCollectedError
        Also when the DataFrame is read later: if a running query has collected the epoch meanwhile.
    """
    view = view_state(CheckpointStorage.open(checkpoint), operator, epoch, state)
    number = min(len(view.chains), _CHUNKS)
    chunks = [(pickle.dumps(view.chains[i::number]),) for i in range(number)]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cache = BatchCache(view.storage)
        for batch in batches:
            for chunk in batch.column(0).to_pylist():
                for chain in pickle.loads(chunk):  # noqa: S301  our own driver's
                    yield view.read(chain, cache)

    frame = spark.createDataFrame(chunks, "chains binary").repartition(number)
    return frame.mapInArrow(read, from_arrow_schema(view.schema))
