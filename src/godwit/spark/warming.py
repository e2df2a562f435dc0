"""Background work on executors: warming copies of key groups, and dropping copies.

Warming jobs run beside the epochs, in a scheduler pool of their own.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from godwit.lane import copies
from godwit.lane.executor import current_executor, local_store_root
from godwit.lane.lane import local_store
from godwit.model.errors import GodwitError, MigrationError
from godwit.spark import by_value
from godwit.spark.exchange import on_executors
from godwit.spark.python_stage import fetch, python_rdd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark import SparkContext

    from godwit.epoch.executor import Executor
    from godwit.lane.messages import StateInstruction
    from godwit.state.entries import EntryLayout
    from godwit.state.records import StateId
    from godwit.state.schema import StateSchema
    from godwit.state.storage import CheckpointStorage

__all__ = ["POOL", "Errand", "drop_copies", "start_python", "warm_copies"]

POOL = "godwit-warming"
"""Spark scheduler pool of background jobs (effective with ``spark.scheduler.mode=FAIR``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """Whose copies, and where.

    Attributes
    ----------
    state
        Whose.
    schema, num_key_groups
        Its columns, and the number of its key groups.
    executor, location, lanes
        Name of the executor, how a task is sent there, and how many lanes it has.
    run_id, local_dir
        Where the run's local stores are.
    """

    state: StateId
    schema: StateSchema
    num_key_groups: int
    executor: str
    location: str | None
    lanes: int
    run_id: str
    local_dir: str | None


def warm_copies(
    errand: Errand,
    key_groups: Sequence[int],
    told: StateInstruction,
    *,
    layout: EntryLayout,
    storage: CheckpointStorage,
    committed: int,
    spark: SparkContext,
) -> dict[int, int]:
    """Bring copies forward and return key group → version; blocks until it is done.

    Raises
    ------
    MigrationError
        If Spark ran the job on another executor, or the job failed.
    """
    shipped = by_value.dumps(layout)  # what upgrades old state may be of the main script

    def warm(_index: int) -> Iterator[Any]:
        executor = current_executor(errand.executor)
        try:
            versions = copies.warm_copies(
                local_store(local_store_root(errand.local_dir, errand.run_id, executor)),
                key_groups,
                told,
                layout=pickle.loads(shipped),  # noqa: S301 - our own driver's
                storage=storage,
                committed=committed,
                lanes=errand.lanes,
            )
        except GodwitError as error:
            yield pickle.dumps((executor, error))
        else:
            yield pickle.dumps((executor, versions))

    executor, result = _run(errand, warm, spark)
    if isinstance(result, GodwitError):
        raise result
    if executor != errand.executor:
        raise MigrationError(
            f"Copies of {str(errand.state)!r} were to be warmed on executor {errand.executor}, but "
            f"Spark ran the job on {executor}.",
            remedy="It is tried again; a larger spark.locality.wait makes Spark wait longer for a "
            "free core.",
        )
    warmed: dict[int, int] = result
    return warmed


def drop_copies(errand: Errand, key_groups: Sequence[int], spark: SparkContext) -> None:
    """Delete copies from an executor's local store; blocks until it is done."""

    def drop(_index: int) -> Iterator[Any]:
        executor = current_executor(errand.executor)
        if executor == errand.executor:
            copies.drop_copies(
                local_store(local_store_root(errand.local_dir, errand.run_id, executor)),
                key_groups,
                state=errand.state,
                schema=errand.schema,
                num_key_groups=errand.num_key_groups,
            )
        yield pickle.dumps((executor, None))

    _run(errand, drop, spark)


def start_python(executor: Executor, spark: SparkContext) -> None:
    """Let an executor start its Python, and load there what lanes need; blocks until it has."""

    def load(_index: int) -> Iterator[bytes]:
        import_module("godwit.spark.stages")
        yield b""

    spark.setLocalProperty("spark.scheduler.pool", POOL)
    spark.setJobDescription(f"godwit: Python of executor {executor.name}")
    fetch(python_rdd(on_executors([executor.location], load, spark), spark), spark)


def _run(errand: Errand, work: Any, spark: SparkContext) -> tuple[str, Any]:
    spark.setLocalProperty("spark.scheduler.pool", POOL)
    spark.setJobDescription(f"godwit: copies of {errand.state} on executor {errand.executor}")
    (reply,) = fetch(python_rdd(on_executors([errand.location], work, spark), spark), spark)
    result: tuple[str, Any] = pickle.loads(reply)  # noqa: S301  our own executor's
    return result
