"""The state of an operator at a committed epoch, as a DataFrame, from the checkpoint alone.

No query has to run, and a running one is not disturbed: what is committed never changes.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from godwit.dataflow.naming import did_you_mean, listing
from godwit.dataflow.state_text import state_as_json
from godwit.model.errors import CheckpointError
from godwit.state.blocks import read_batch
from godwit.state.commit_log import CommitLog
from godwit.state.hydration import REMOVED
from godwit.state.reading import BatchCache, read_chain
from godwit.state.schema import StateSchema
from godwit.state.storage import CheckpointStorage

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from godwit.state.chains import KeyGroupChain

__all__ = ["read_state"]

_CHUNKS = 4


def read_state(
    spark: SparkSession,
    checkpoint: str | os.PathLike[str],
    operator: str,
    epoch: int | None = None,
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

    Returns
    -------
    DataFrame
        One row per key: ``key_group``, the key columns, and the state columns. Structured Python
        state written as msgpack comes as JSON text.

    Raises
    ------
    CheckpointError
        If there is no such operator, or the epoch is not retained.
    CorruptCheckpointError
        If a file that is needed is missing or damaged.
    """
    storage = CheckpointStorage.open(checkpoint)
    log = CommitLog.open_read_only(storage)
    known = list(log.identity.operators)
    if operator not in known:
        raise CheckpointError(
            f"The checkpoint {storage.uri!r} has no operator {operator!r}.",
            remedy=f"{did_you_mean(operator, known)}Its operators are {listing(known)}.",
        )
    if log.latest_epoch < 0:
        raise CheckpointError(
            f"No epoch is committed yet in the checkpoint {storage.uri!r}.",
            remedy="Read its state once the query has processed something.",
        )
    chains = log.chains if epoch is None else log.chains_at(epoch)
    fingerprint = log.identity.operators[operator]
    every = (chains.chain(operator, g) for g in range(chains.num_key_groups))
    held = [chain for chain in every if chain.snapshot is not None or chain.segments]
    if not held:
        raise CheckpointError(
            f"Operator {operator!r} has no state in the checkpoint {storage.uri!r}.",
            remedy="Read it once the operator has seen rows.",
        )
    schema = _state_schema(storage, held[0], [name for name, _ in fingerprint["keys"]])
    readable = fingerprint.get("codec") == "msgpack"
    shown = pa.schema(
        [
            pa.field("key_group", pa.int32()),
            *schema.keys,
            *([pa.field(schema.values[0].name, pa.string())] if readable else schema.values),
        ]
    )
    chunks = [(pickle.dumps(held[i :: _chunks(held)]),) for i in range(_chunks(held))]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cache = BatchCache(storage)
        for batch in batches:
            for chunk in batch.column(0).to_pylist():
                for chain in pickle.loads(chunk):  # noqa: S301  our own driver's
                    yield _shown(storage, chain, schema, shown, cache, readable=readable)

    frame = spark.createDataFrame(chunks, "chains binary").repartition(len(chunks))
    return frame.mapInArrow(read, from_arrow_schema(shown))


def _chunks(held: list[KeyGroupChain]) -> int:
    return min(len(held), _CHUNKS)


def _state_schema(storage: CheckpointStorage, chain: KeyGroupChain, keys: list[str]) -> StateSchema:
    """Columns of the state, as one of its blocks has them."""
    ref = chain.snapshot.block if chain.snapshot is not None else chain.segments[0].block
    fields = list(read_batch(storage, ref).schema)[1:]
    if fields[-1].name == REMOVED:
        fields.pop()
    return StateSchema(pa.schema(fields[: len(keys)]), pa.schema(fields[len(keys) :]))


def _shown(
    storage: CheckpointStorage,
    chain: KeyGroupChain,
    schema: StateSchema,
    shown: pa.Schema,
    cache: BatchCache,
    *,
    readable: bool,
) -> pa.RecordBatch:
    rows = read_chain(storage, chain, schema, cache=cache)
    values: list[Any] = rows.values.columns
    if readable:
        texts = [None if blob is None else state_as_json(blob) for blob in values[0].to_pylist()]
        values = [pa.array(texts, pa.string())]
    key_groups = pa.array([chain.key_group] * len(rows.hashes), pa.int32())
    return pa.RecordBatch.from_arrays([key_groups, *rows.keys.columns, *values], schema=shown)
