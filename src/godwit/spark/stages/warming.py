"""Background work on executors: copies of key groups, warmed, sent to one another and dropped.

These jobs run beside the epochs, in a scheduler pool of their own.  What one executor sends another
goes through Spark's shuffle, so it takes the ways, the secrets and the retries that the epochs' own
rows take (`docs/design/migration.md`).
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from godwit.engine import copies
from godwit.engine.lane.executor import current_executor, local_state, local_store_root
from godwit.model.errors import GodwitError, MigrationError
from godwit.spark.stages import pickling
from godwit.spark.stages.exchange import (
    exchange,
    fetch,
    on_executors,
    python_rdd,
    run_streamed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark import SparkContext

    from godwit.checkpoint.entries import EntryLayout
    from godwit.checkpoint.records import StateId
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.lane.messages import StateInstruction
    from godwit.engine.lane.wire import Blob
    from godwit.store.columns import StateSchema
    from godwit.store.local_store import LocalState

POOL = "godwit-warming"
"""Spark scheduler pool of background jobs (effective with ``spark.scheduler.mode=FAIR``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRequest:
    """A state, and the executor that is to hold copies of it."""

    state: StateId
    schema: StateSchema
    num_key_groups: int
    executor: str
    location: str | None  # by which a task is sent there
    lanes: int
    run_id: str
    local_dir: str | None  # of local stores

    def local_state(self, executor: str) -> LocalState:
        """Return the state in the local store of an executor; called on that executor."""
        root = local_store_root(self.local_dir, self.run_id, executor)
        return local_state(root, str(self.state), self.schema, self.num_key_groups)


def warm_copies(
    request: CopyRequest,
    key_groups: Sequence[int],
    instruction: StateInstruction,
    *,
    layout: EntryLayout,
    storage: CheckpointStorage,
    committed: int,
    index_only: bool,
    spark: SparkContext,
) -> dict[int, int]:
    """Bring copies on an executor up to date; block, and return key group → version.

    `index_only`: make no copies, but index the state. `committed`: last committed epoch. Raises
    `MigrationError` if Spark ran the job on another executor, or the job failed.
    """
    shipped = pickling.dumps(layout)  # what upgrades old state may be of the main script

    def warm(_index: int) -> Iterator[Any]:
        """Warm the copies, on the executor."""
        executor = current_executor(request.executor)
        if executor != request.executor:
            yield pickle.dumps((executor, None))
            return
        warmed = partial(
            copies.warm_copies,
            request.local_state(executor),
            key_groups,
            instruction,
            layout=pickle.loads(shipped),  # noqa: S301 - our own driver's
            storage=storage,
            committed=committed,
            lanes=request.lanes,
            index_only=index_only,
        )
        yield _reply(executor, warmed)

    return _checked_versions(request, _run_on_executor(request, warm, spark))


def fetch_copies(
    request: CopyRequest,
    # the executor that holds them, and the location by which a task is sent there
    source: str,
    location: str | None,
    key_groups: Sequence[int],
    spark: SparkContext,
) -> dict[int, int]:
    """Copy key groups from executor `source`; block, and return key group → version.

    `location`: where Spark should run the sender. Raises `MigrationError` if copies are missing, or
    Spark ran a part of the job on another executor.
    """

    def send(_index: int) -> Iterator[Blob]:
        """Send the copies, on the executor that has them."""
        executor = current_executor(source)
        if executor == source:
            local = request.local_state(executor)
            packs = copies.send_copies(
                local, key_groups, state=request.state, run_id=request.run_id
            )
            yield from ((0, pack) for pack in packs)

    def receive(sent: Iterator[bytes]) -> bytes:
        """Store the copies that were sent, on the executor that needs them."""
        executor = current_executor(request.executor)
        if executor != request.executor:
            return pickle.dumps((executor, None))
        received = partial(
            copies.receive_copies,
            request.local_state(executor),
            key_groups,
            sent,
            state=request.state,
            run_id=request.run_id,
            lanes=request.lanes,
        )
        return _reply(executor, received)

    _label_job(f"copies of {request.state} from executor {source} to {request.executor}", spark)
    sent = exchange(on_executors([location], send, spark), 1, spark)
    stage = run_streamed(sent, request.location, receive, spark)
    (reply,) = fetch(python_rdd(stage, spark), spark)
    return _checked_versions(request, reply)


def drop_copies(request: CopyRequest, key_groups: Sequence[int], spark: SparkContext) -> None:
    """Delete copies from an executor's local store, and wait until it is done."""

    def drop(_index: int) -> Iterator[Any]:
        """Delete the copies, on the executor."""
        executor = current_executor(request.executor)
        if executor == request.executor:
            copies.drop_copies(request.local_state(executor), key_groups)
        yield pickle.dumps((executor, None))

    _run_on_executor(request, drop, spark)


def _reply(executor: str, work: Callable[[], dict[int, int]]) -> bytes:
    """Return the pickled name of this executor, and the result of `work` or its `GodwitError`."""
    result: dict[int, int] | GodwitError
    try:
        result = work()
    except GodwitError as error:
        result = error
    return pickle.dumps((executor, result))


def _run_on_executor(request: CopyRequest, work: Any, spark: SparkContext) -> bytes:
    """Run `work` in a Spark task at the request's location; return the bytes that it yields."""
    _label_job(f"copies of {request.state} on executor {request.executor}", spark)
    (reply,) = fetch(python_rdd(on_executors([request.location], work, spark), spark), spark)
    answer: bytes = reply
    return answer


def _label_job(what: str, spark: SparkContext) -> None:
    """Set the scheduler pool of the next job, and its description (`what`) in Spark's UI."""
    spark.setLocalProperty("spark.scheduler.pool", POOL)
    spark.setJobDescription(f"godwit: {what}")


def _checked_versions(request: CopyRequest, reply: bytes) -> dict[int, int]:
    """Return the versions in a task's reply; raise if another executor ran it."""
    executor, result = pickle.loads(reply)  # noqa: S301  our own executor's
    if isinstance(result, GodwitError):
        raise result
    if executor != request.executor:
        raise MigrationError(
            f"Copies of {str(request.state)!r} were to be warmed on executor {request.executor}, "
            f"but Spark ran the job on {executor}.",
            remedy="It will be retried; a larger spark.locality.wait makes Spark wait longer for a "
            "free core.",
        )
    versions: dict[int, int] = result
    return versions
