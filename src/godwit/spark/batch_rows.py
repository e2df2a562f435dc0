"""Source rows of a run's batches: Godwit's own sources by positions, DataFrames by Spark's log.

Of Godwit's own sources (`BatchRows`), splits travel with the orders of an epoch, so no RDD holds
them and the JVM knows nothing new.  A task is made for each; where there are many more than cores,
tasks read several, of like size together.  Splits are numbered through the epoch, so the order of
rows does not depend on which task reads them.  A small epoch has no source stage: the driver reads
its splits and does what that stage does.  The number of rows is known here, so nothing is expected
and nothing read in vain.

Of DataFrames (`MicroBatches`), Spark plans a micro-batch, writes its plan to its log without
forcing it to the disk, and calls us.  After a power failure its newest entries may be gone while
our commit is there; Spark then plans the same number again, with the rows that have arrived
meanwhile.  Taken for a replay, the new rows would be lost.  Invariants: a commit record carries a
digest of the offsets of the micro-batch that it covers, source by source, and of the files behind
them where an offset is only a number; a replay has the same digest or is refused; and on local
disks Spark's entries are durable before our commit is.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import logging
import pickle
import re
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from godwit.checkpoint.records import PLAYED, BatchRef
from godwit.checkpoint.spark_log import SPARK, log_offset, offsets_in, read_entry, reorder_offsets
from godwit.checkpoint.storage import LocalStorage
from godwit.engine.source_positions import SourcePositions
from godwit.model.errors import CheckpointError, CheckpointMismatchError
from godwit.runtime.settings import is_bounded, is_once, known_interval_s
from godwit.sinks.file_systems import force_file
from godwit.spark.stages import pickling
from godwit.spark.stages.source_plans import Program
from godwit.spark.stages.stages import EpochRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.engine.cluster import SourceBatch
    from godwit.engine.lane.lane_flow import LaneFlow
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.engine.lane.source_side import NumberedSplit
    from godwit.engine.recovery import Recovery
    from godwit.sources.source import Split


_TASKS_A_CORE: Final = 4


class BatchRows:
    """Rows of Godwit's own sources, and their positions; the commit record is the only log."""

    def __init__(self, recovery: Recovery, log: CommitLog) -> None:
        sources = recovery.flow.own_sources
        self.positions = SourcePositions(sources, recovery.sources, log=log)
        # Reading is done by copies that were never opened, here as on executors.
        self._copies = pickle.loads(pickling.dumps(dict(sources)))  # noqa: S301  our own

    def program(self, lanes: LaneFlow) -> Program:
        """Return the program that executors get: the lanes, and the source side of these rows."""
        return Program(lanes=lanes, sources=self._copies)

    def open(self) -> None:
        """Open the sources at the positions of the last commit record."""
        self.positions.open()

    def read(self, batch: SourceBatch[DataFrame], instruction: EpochInstruction) -> EpochRows:
        """Return a batch's rows, for the epoch's source stage."""
        return assign_splits(batch, len(instruction.places))


def assign_splits(batch: SourceBatch[Any], cores: int) -> EpochRows:
    """Return an epoch's splits assigned to the driver if rows are few, else to tasks."""
    if batch.has_few_rows:
        return EpochRows(here=batch.splits)
    # What a source puts into its splits may be of the main script.
    return EpochRows(
        tasks=tuple(pickling.dumps(task) for task in distribute_splits(batch.splits, cores))
    )


def distribute_splits(
    splits: Sequence[NumberedSplit], cores: int
) -> list[tuple[NumberedSplit, ...]]:
    """Return the splits of each task: one each, unless there are many more than cores."""
    if len(splits) <= _TASKS_A_CORE * cores:
        return [(split,) for split in splits]
    # The longest first, each to the task that has least.
    tasks: list[list[NumberedSplit]] = [[] for _ in range(cores)]
    loads = [(0, core) for core in range(cores)]
    for split in sorted(splits, key=lambda numbered: -_estimate_bytes(numbered.split)):
        load, core = heapq.heappop(loads)
        tasks[core].append(split)
        heapq.heappush(loads, (load + max(_estimate_bytes(split.split), 1), core))
    return [tuple(sorted(task, key=lambda numbered: numbered.number)) for task in tasks]


def _estimate_bytes(split: Split) -> int:
    """Return the approximate bytes of a split, for comparing splits."""
    if split.size_bytes is not None:
        return split.size_bytes
    return 64 * (split.rows or 0)


_NAMES = ("", ".compact")
"""Endings of the file of an entry of a source's log, which may be merged with others."""


class MicroBatches:
    """Spark's log of one query, as far as micro-batches go."""

    def __init__(
        self,
        storage: CheckpointStorage,  # the checkpoint; Spark's log is a directory of it
        lines: tuple[int, ...],  # number of the source that each line of an entry is of
    ) -> None:
        self._storage, self._lines = storage, lines

    def identify(self, number: int, last: BatchRef | None) -> BatchRef | None:
        """Return the reference to the micro-batch that Spark offers; ``None`` if it is committed.

        `number`: its number. `last`: the last committed one, if any. Raises
        `CheckpointMismatchError` if Spark's log and the checkpoint do not belong together.
        """
        committed = -1 if last is None else last.number
        if number > committed + 1:
            raise self._mismatch(
                f"Spark's progress is at micro-batch {number}, but the last one in the checkpoint "
                f"{self._storage.uri!r} is {committed}: the rows between them would be left out."
            )
        if number < committed:  # Spark notes the end of a micro-batch before it begins the next
            raise self._mismatch(
                f"Spark's progress is at micro-batch {number}, but the checkpoint "
                f"{self._storage.uri!r} has those up to {committed}: their rows would be left out."
            )
        planned = self._read_micro_batch(number)
        if last is None or number > committed:
            return planned
        if planned.digest != last.digest and not (
            self._has_old_digest(last) and self._has_same_offsets(last)
        ):
            raise self._mismatch(
                f"Spark has planned micro-batch {number} again, with other rows than those that "
                f"the checkpoint {self._storage.uri!r} has committed for it: the new ones would be "
                "left out."
            )
        return None

    def check_last(self, last: BatchRef | None) -> None:
        """Raise if the checkpoint's last batch is not from Spark.

        Raises `CheckpointMismatchError` if `godwit.testing` committed the last micro-batch.
        """
        if last is not None and last.digest == PLAYED:
            raise CheckpointMismatchError(
                f"The last epochs of the checkpoint {self._storage.uri!r} were played by "
                "gw.testing, with rows that no Spark source has read, so nothing says how far "
                "the sources were read.",
                remedy="Start with a new checkpoint; or, if this was a query's, from a copy that "
                "was made before it was played on. Play on copies only (`godwit checkpoint copy`).",
                uri=self._storage.uri,
            )

    def force_log(self, batch: BatchRef) -> None:
        """Make Spark's entries of a micro-batch durable, if the checkpoint is on a local disk.

        On other file systems, a file that exists is durable.
        """
        if not isinstance(self._storage, LocalStorage):
            return
        root = Path(self._storage.uri) / SPARK
        files = [root / "metadata", root / "offsets" / str(batch.number)]
        files.append(root / "commits" / str(batch.number - 1))
        files.extend(root / f"{path}{merged}" for path in batch.sources for merged in _NAMES)
        for file in files:
            # Hadoop's checksum lies beside it, and a file that does not match it is not read.
            for path in (file, file.with_name(f".{file.name}.crc")):
                with suppress(FileNotFoundError):
                    force_file(path)
        for directory in dict.fromkeys(file.parent for file in files):
            with suppress(FileNotFoundError):
                force_file(directory)

    def _read_micro_batch(self, number: int) -> BatchRef:
        """Return a micro-batch with offsets and files of Spark's logs; raise if they lack any."""
        offsets = read_entry(self._storage, f"offsets/{number}")
        if offsets is None:
            raise CheckpointError(
                f"Spark's log in {self._storage.uri!r} has no offsets of micro-batch {number}, "
                "which is to be processed now.",
                remedy="The query needs Spark's ordinary progress log; asynchronous progress "
                "tracking is not supported.",
            )
        ends, begins = self._parse_offsets(number, offsets), self._start_offsets(number - 1)
        digest = hashlib.sha256(b"\n".join(ends[source] for source in sorted(ends)))
        sources: dict[str, bytes] = {}
        for source, line in sorted(ends.items()):
            end = log_offset(line)
            if end is None:
                continue
            begin = log_offset(begins.get(source, b"-"))
            if begin is not None and end < begin:
                raise self._mismatch(
                    f"Spark's log in {self._storage.uri!r} has lost what source {source} had read: "
                    f"micro-batch {number} ends at its entry {end}, and the one before at {begin}."
                )
            for entry in range(-1 if begin is None else begin, end):
                path = f"sources/{source}/{entry + 1}"
                files = sorted(self._file_entries(source, entry + 1))
                sources[path] = b"\n".join([b"v1", *files])
                digest.update(b"\0" + path.encode() + b"\0" + sources[path])
        return BatchRef(
            number=number,
            digest=digest.hexdigest(),
            offsets=offsets,
            lines=self._lines,
            sources=sources,
        )

    def _start_offsets(self, number: int) -> dict[int, bytes]:
        """Return number of a source → its offset before a micro-batch."""
        entry = read_entry(self._storage, f"offsets/{number}")
        return {} if entry is None else self._parse_offsets(number, entry)

    def _parse_offsets(self, number: int, entry: bytes) -> dict[int, bytes]:
        """Return number of a source → its offset, from an offset-log entry; raise if it misfits."""
        if reorder_offsets(entry, self._lines, self._lines) is None:
            raise CheckpointError(
                f"Spark's log in {self._storage.uri!r} has {len(offsets_in(entry))} offsets of "
                f"micro-batch {number}, where its plan reads {len(set(self._lines))} sources in "
                f"{len(self._lines)} places.",
                remedy="The query needs Spark's progress log in its ordinary format; report this "
                "if no setting of spark.sql.streaming was changed.",
            )
        return dict(zip(self._lines, offsets_in(entry), strict=True))

    def _has_old_digest(self, last: BatchRef) -> bool:
        """Return whether a record's digest has the former form, computed over lines."""
        return not last.lines and len(self._lines) > len(set(self._lines))

    def _has_same_offsets(self, last: BatchRef) -> bool:
        """Return whether Spark's log has the offsets of a record with a digest of that form."""
        entry = read_entry(self._storage, f"offsets/{last.number}")
        return entry is not None and set(offsets_in(entry)) == set(offsets_in(last.offsets))

    def _file_entries(self, source: int, entry: int) -> Iterator[bytes]:
        """Yield the lines of one entry of a file source's log, also from a compacted file."""
        for name in (f"{entry}{merged}" for merged in _NAMES):
            data = read_entry(self._storage, f"sources/{source}/{name}")
            for line in (data or b"").splitlines()[1:]:
                if json.loads(line).get("batchId") == entry:
                    yield line
            if data is not None:
                return

    @staticmethod
    def _mismatch(message: str) -> CheckpointMismatchError:
        """Return the error that Spark's log and the checkpoint do not belong together."""
        return CheckpointMismatchError(
            message,
            remedy="The directory 'spark' and the rest of the checkpoint belong together: restore "
            "both from the same moment, or let `godwit checkpoint repair` put Spark's log back to "
            "what the checkpoint has committed. Nothing was changed.",
        )


_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_SOURCES_TIMEOUT_MS = 60_000
_LEFT_OVER = re.compile(r"\.{1,2}\d+\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.tmp(\.crc)?")


@contextmanager
def quick_local_logs(spark: SparkSession, uri: str) -> Iterator[None]:
    """Context in which started queries write logs on a local disk without starting processes.

    Settings of the user are not changed.
    """
    if not uri.startswith("file:") or spark.conf.get(_MANAGER, None) is not None:
        yield
        return
    spark.conf.set(_MANAGER, _BY_FILE_SYSTEM)
    try:
        yield
    finally:
        spark.conf.unset(_MANAGER)


def write_query_id(storage: CheckpointStorage, query_id: str) -> None:
    """Write the query id for Spark into the checkpoint, unless Spark has written one."""
    path = "spark/metadata"
    if query_id and path not in storage.list("spark"):
        storage.write_atomic(path, json.dumps({"id": str(uuid.UUID(query_id))}).encode())


def remove_leftovers(storage: CheckpointStorage) -> None:
    """Delete temporary files that a crash or a stop left in the directories of Spark's log.

    Spark does not begin its first micro-batch in a directory that has any file in it.
    """
    for directory in ("spark/offsets", "spark/commits"):
        for path in storage.list(directory):
            if _LEFT_OVER.fullmatch(path.rpartition("/")[2]):
                storage.delete(path)


def wait_for_sources(query: StreamingQuery) -> None:
    """Wait until the sources of a query that was just started have opened their logs.

    A failure of the query before that is reported later, by the query.
    """
    execution: Any = query._jsq.streamingQuery()  # noqa: SLF001  no public way to wait for it
    try:
        execution.awaitInitialization(_SOURCES_TIMEOUT_MS)
    except Exception:  # noqa: BLE001  the query's own error, which the query reports
        return


_logger = logging.getLogger("godwit")


class SparkStream:
    """State of Spark's streaming query, for the threads that run beside it.

    Spark's public interface does not tell a query that was stopped by its own handle
    (``for q in spark.streams.active: q.stop()``) from one whose input has ended: both end
    without an error.  An end counts as an end of the input only where that is certain.
    """

    def __init__(
        self,
        query: StreamingQuery,
        trigger: Mapping[str, object] | None,  # when its micro-batches run
        *,
        batches: Callable[[], int],  # micro-batches that were carried out in this run
    ) -> None:
        self._query, self._trigger, self._batches = query, trigger, batches

    @property
    def is_active(self) -> bool:
        """True while Spark's query is active."""
        return self._query.isActive

    @property
    def has_failed(self) -> bool:
        """True if Spark's query has ended by an error."""
        return self._query.exception() is not None

    def input_has_ended(self) -> bool:
        """Return whether Spark's query has ended without an error, because its input has."""
        if not is_bounded(self._trigger):
            return False
        if is_once(self._trigger) and self._batches():
            return True
        try:
            return self._has_seen_no_rows()  # which ends such a query
        except Exception as error:  # noqa: BLE001  whatever Py4J raises: it is not known
            _logger.warning(
                "It is unknown whether the input has ended or someone has stopped the query, "
                "so windows stay open: %s",
                str(error).partition("\n")[0],
            )
            return False

    def is_stopped(self) -> bool:
        """Return whether Spark's query was stopped from outside."""
        return not self.is_active and not self.input_has_ended()

    def is_quiet(self) -> bool:
        """Return whether Spark has no micro-batch to run, so far as it has looked.

        Between two triggers it has none. Without an interval between them, only a look that has
        shown no rows says so: Spark's status is the same while it looks.
        """
        if not self.is_active:
            return not self.has_failed
        if known_interval_s(self._trigger):
            return not self._query.status["isTriggerActive"] or self._has_seen_no_rows()
        return self._has_seen_no_rows()

    def _has_seen_no_rows(self) -> bool:
        """Return whether Spark's last look at its sources has shown no rows."""
        execution: Any = self._query._jsq.streamingQuery()  # noqa: SLF001  no public way
        return bool(execution.noNewData())


def query_of(spark: SparkSession) -> StreamingQuery | None:
    """Return the streaming query whose micro-batch this thread runs; ``None`` if unknown."""
    try:
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        return spark.streams.get(query_id) if query_id else None
    except Exception:  # noqa: BLE001  whatever Py4J raises; no epoch needs it
        return None


def is_stopped(spark: SparkSession) -> bool:
    """Return whether the query whose micro-batch this thread runs is being stopped."""
    query = query_of(spark)
    try:
        return query is not None and not query.isActive
    except Exception:  # noqa: BLE001  asked because of an error, which is told instead of this one
        return False
