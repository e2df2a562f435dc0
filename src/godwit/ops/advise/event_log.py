"""Spark's event logs: a stream of lines, and the stateful stages of streaming queries in it.

**Lines.**  One file, or a directory ``eventlog_v2_<application>`` of numbered ones; plain or
compressed by zstd (the default since Spark 4.0), or packed with gzip by hand; complete, still being
written, or cut short by a crash.  The codec is recognised by the first bytes, not by the name.  The
invariant: memory does not grow with the log.  Files are read in pieces, and no line is believed to
be larger than it may be.

**Stages.**  A stage is stateful if one of its RDDs holds state stores.  Spark reports it when it
is submitted (which query, which micro-batch, on how many slots), of each task when it ends, and of
the stage when it is complete; nothing is kept of it afterwards.  Lines of other kinds are not even
decoded.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.fs

from godwit.model.errors import GodwitError
from godwit.model.naming import listing
from godwit.model.text import human_bytes
from godwit.ops.entries import mapping
from godwit.sinks.file_systems import open_any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PIECE: Final = 2**20
# Of a file that is cut short, decompressed data are lost from the damaged piece on.
_SMALL_PIECE: Final = 2**14
_LINE_BYTES: Final = 64 * 2**20
_ROLLED = re.compile(r"events_(\d{1,9})_.+")
_LOGS = re.compile(r"(eventlog_v2_|local-|app-|application_|spark-).+")
_COMPRESSED: Final = {"zstd": b"\x28\xb5\x2f\xfd", "gzip": b"\x1f\x8b"}
# In a framing of Spark's own, which no library for Python reads.
_REFUSED: Final = {"lz4": b"LZ4Block", "snappy": b"\x82SNAPPY\x00", "LZF": b"ZV"}
_DAMAGE = (OSError, pa.ArrowException, EOFError, ValueError)


class EventLogError(GodwitError):
    """An event log of Spark cannot be read, or has no stateful stages."""


@dataclass(slots=True, kw_only=True)
class EventLog:
    """One application's log."""

    # where it is, and the paths there, in order
    filesystem: Any
    files: tuple[str, ...]
    unfinished: bool  # whether the application was still running when it was written, by its name
    # faults of the log, in sentences; complete once all lines are read
    notes: list[str] = field(default_factory=list)
    # files of which not all could be read; likewise
    cut_short: set[str] = field(default_factory=set)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of all files; lines after damage are skipped, with a note."""
        for path in self.files:
            yield from self._lines_of(path)

    def _lines_of(self, path: str) -> Iterator[bytes]:
        """Yield the lines of a file; lines that are too long are skipped, with a note."""
        unfinished = bytearray()
        too_long = False
        for piece in self._read_pieces(path):
            *ended_lines, unfinished_line = piece.split(b"\n")
            for ended_line in ended_lines:
                line = bytes(unfinished) + ended_line
                unfinished.clear()
                if line.strip() and not too_long:
                    yield line
                too_long = False
            unfinished += unfinished_line
            if len(unfinished) > _LINE_BYTES:
                unfinished.clear()
                too_long = True
                self.notes.append(
                    f"{path} has an event of more than {human_bytes(_LINE_BYTES)}, which is "
                    "skipped."
                )
        if unfinished.strip() and not too_long and path not in self.cut_short:
            yield bytes(unfinished)

    def _read_pieces(self, path: str) -> Iterator[bytes]:
        """Yield the bytes of a file, decompressed, in pieces."""
        try:
            with self.filesystem.open_input_stream(path, compression=None) as file:
                start = file.read(8)
            with self.filesystem.open_input_stream(path, compression=None) as file:
                yield from _decompressed_pieces(path, file, start)
        except _DAMAGE as error:
            self.cut_short.add(path)
            self.notes.append(f"{path} is truncated or damaged: {error}. The rest is missing.")


def open_event_log(path: str) -> EventLog:
    """Return the event log at a path.

    `path`: a file, or a directory of rolled ones; a path, or a URI that ``pyarrow.fs`` opens.
    Raises `EventLogError` if there is no event log there, or several.
    """
    try:
        filesystem, root = open_any(path, None, error=EventLogError)
        info = filesystem.get_file_info(root)
        if info.type == pa.fs.FileType.NotFound:
            raise EventLogError(
                f"{path!r} does not exist.",
                remedy="Give a file or directory that Spark wrote under spark.eventLog.dir.",
                path=path,
            )
        if info.type == pa.fs.FileType.File:
            files, unfinished = [info], root.endswith(".inprogress")
            notes: list[str] = []
        else:
            inside = filesystem.get_file_info(pa.fs.FileSelector(root))
            files, notes = _files_of_rolled(path, inside)
            unfinished = any(
                i.base_name.startswith("appstatus_") and i.base_name.endswith(".inprogress")
                for i in inside
            )
    except (OSError, pa.ArrowException) as error:
        raise EventLogError(
            f"The event log {path!r} cannot be read: {error}.",
            remedy="Give a path that can be read, or a URI that pyarrow.fs opens.",
            path=path,
        ) from error
    if not any(file.size for file in files):
        raise EventLogError(
            f"The event log {path!r} is empty.",
            remedy="Spark writes it in pieces while the application runs; try again later.",
            path=path,
        )
    return EventLog(
        filesystem=filesystem,
        files=tuple(file.path for file in files),
        unfinished=unfinished,
        notes=notes,
    )


def _files_of_rolled(path: str, inside: list[Any]) -> tuple[list[Any], list[str]]:
    """Return the files of a rolled log in order, and the names of missing ones.

    `inside`: the files of its directory.
    """
    numbered = sorted(
        (int(match[1]), not file.base_name.endswith(".compact"), file)
        for file in inside
        if (match := _ROLLED.fullmatch(file.base_name))
    )
    if not numbered:
        logs = sorted(file_.base_name for file_ in inside if _LOGS.fullmatch(file_.base_name))
        raise EventLogError(
            f"{path!r} contains {'several event logs' if logs else 'no event log'}.",
            remedy=f"Give one of them: {listing(logs)}."
            if logs
            else "Give a file or directory that Spark wrote under spark.eventLog.dir.",
            path=path,
        )
    # A compacted file stands for itself and all before it.
    compacted = max((number_ for number_, is_plain, _ in numbered if not is_plain), default=0)
    current = [
        (number, file)
        for number, is_plain, file in numbered
        if number > compacted or (number == compacted and not is_plain)
    ]
    notes = [
        f"Of the rolled log {path}, file {missing} is missing."
        for (number_before, _), (number_after, _) in pairwise(current)
        for missing in range(number_before + 1, min(number_after, number_before + 10))
    ]
    if compacted:
        notes.append(f"The rolled log {path} was compacted: what Spark dropped is missing.")
    return [file for _, file in current], notes


def _decompressed_pieces(path: str, file: Any, start: bytes) -> Iterator[bytes]:
    """Yield the bytes of a file, decompressed; raise for a codec that is not supported.

    `start`: its first bytes.
    """
    for codec, magic in _REFUSED.items():
        if start.startswith(magic):
            raise EventLogError(
                f"The event log {path!r} is compressed by {codec}, which is not supported.",
                remedy="Write the log with spark.eventLog.compression.codec=zstd, the default, "
                "or spark.eventLog.compress=false; or decompress the file.",
                path=path,
            )
    for codec, magic in _COMPRESSED.items():
        if start.startswith(magic):
            yield from _read_pieces(pa.CompressedInputStream(file, codec), _SMALL_PIECE)
            return
    yield from _read_pieces(file, _PIECE)


def _read_pieces(file: Any, size: int) -> Iterator[bytes]:
    """Yield the content of a file in pieces of at most `size` bytes."""
    while piece := file.read(size):
        yield piece


_PREFIX: Final = b'{"Event":"'
_STREAMING: Final = "org.apache.spark.sql.streaming.StreamingQueryListener$"
_MOST_OPEN: Final = 1000
_MOST_QUERIES: Final = 1000


_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Integers in Spark's log, with at most the digits of a long."""


class _Accumulable(msgspec.Struct):
    name: str | None = msgspec.field(name="Name", default=None)
    update: Any = msgspec.field(name="Update", default=None)


class _TaskInfo(msgspec.Struct):
    index: _Long = msgspec.field(name="Index")
    launch_ms: _Long = msgspec.field(name="Launch Time")
    finish_ms: _Long = msgspec.field(name="Finish Time")
    executor: str = msgspec.field(name="Executor ID")
    partition: _Long = msgspec.field(name="Partition ID", default=-1)
    accumulables: list[_Accumulable] = msgspec.field(name="Accumulables", default_factory=list)


class _ShuffleRead(msgspec.Struct):
    remote_bytes: _Long = msgspec.field(name="Remote Bytes Read", default=0)
    local_bytes: _Long = msgspec.field(name="Local Bytes Read", default=0)
    records: _Long = msgspec.field(name="Total Records Read", default=0)


class _TaskMetrics(msgspec.Struct):
    cpu_ns: _Long = msgspec.field(name="Executor CPU Time", default=0)
    shuffle: _ShuffleRead = msgspec.field(name="Shuffle Read Metrics", default_factory=_ShuffleRead)


class _Reason(msgspec.Struct):
    reason: str = msgspec.field(name="Reason", default="")


class _TaskEnd(msgspec.Struct):
    stage: int = msgspec.field(name="Stage ID")
    attempt: int = msgspec.field(name="Stage Attempt ID")
    info: _TaskInfo = msgspec.field(name="Task Info")
    reason: _Reason = msgspec.field(name="Task End Reason", default_factory=_Reason)
    metrics: _TaskMetrics | None = msgspec.field(name="Task Metrics", default=None)


class _Rdd(msgspec.Struct):
    name: str = msgspec.field(name="Name", default="")
    scope: str | None = msgspec.field(name="Scope", default=None)


class _StageInfo(msgspec.Struct):
    stage: int = msgspec.field(name="Stage ID")
    attempt: int = msgspec.field(name="Stage Attempt ID")
    rdds: list[_Rdd] = msgspec.field(name="RDD Info", default_factory=list)
    failure: str | None = msgspec.field(name="Failure Reason", default=None)


class _Stage(msgspec.Struct):
    info: _StageInfo = msgspec.field(name="Stage Info")
    properties: dict[str, Any] | None = msgspec.field(name="Properties", default=None)


class _ExecutorInfo(msgspec.Struct):
    cores: _Long = msgspec.field(name="Total Cores", default=0)


class _Executor(msgspec.Struct):
    executor: str = msgspec.field(name="Executor ID")
    info: _ExecutorInfo = msgspec.field(name="Executor Info", default_factory=_ExecutorInfo)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """One task that succeeded."""

    executor: str  # where
    # from when to when, in milliseconds, as Spark counts
    launch_ms: int
    finish_ms: int
    cpu_s: float  # CPU time
    # what it read from the exchange
    shuffle_bytes: int
    shuffle_rows: int
    # what its state stores held afterwards, as they tell
    state_rows: int
    state_bytes: int

    @property
    def took_s(self) -> float:
        """Duration of the task in seconds."""
        return (self.finish_ms - self.launch_ms) / 1e3


@dataclass(slots=True, kw_only=True)
class StageRun:
    """One stateful stage of one micro-batch."""

    query: str  # identifier of the query, the same over restarts
    batch: int  # number of the micro-batch; -1 if Spark does not say
    operators: tuple[str, ...]  # names of its stateful operators
    place: int  # which of the stages with these operators it is within its micro-batch
    slots: int  # tasks that could run at once when it began; 0 if Spark does not say
    # partition → its first task that succeeded
    tasks: dict[int, TaskRun] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class QueryFigures:
    """Figures of a query's progress."""

    name: str = ""  # its name; empty if it has none
    # micro-batches, and what they took altogether, in seconds
    batches: int = 0
    trigger_s: float = 0.0
    # state operators as of the last one: name, rows, bytes in memory, commit time in seconds summed
    # over micro-batches
    operators: dict[str, dict[str, float]] = field(default_factory=dict)


class StageReader:
    """Reads stages of stateful operators from events.

    `spark_version`, `application`: as the log says; empty if it does not. `queries`: identifier →
    figures, of every streaming query. `events`, `bad_lines`: lines that are events, and lines that
    are not.
    """

    def __init__(self) -> None:
        self.spark_version = self.application = ""
        self.queries: dict[str, QueryFigures] = {}
        self.events = self.bad_lines = 0
        self._cores: dict[str, int] = {}
        self._task_cpus = 1
        self._open_stages: dict[tuple[int, int], StageRun] = {}
        self._stages_seen: dict[str, tuple[int, dict[tuple[str, ...], dict[int, int]]]] = {}
        self._handlers: dict[str, Callable[[bytes], StageRun | None]] = {
            "SparkListenerLogStart": self._log_start,
            "SparkListenerApplicationStart": self._application_start,
            "SparkListenerEnvironmentUpdate": self._store_settings,
            "SparkListenerExecutorAdded": self._executor_added,
            "SparkListenerExecutorRemoved": self._executor_removed,
            "SparkListenerStageSubmitted": self._stage_submitted,
            "SparkListenerTaskEnd": self._task_end,
            "SparkListenerStageCompleted": self._stage_completed,
            f"{_STREAMING}QueryStartedEvent": self._query_started,
            f"{_STREAMING}QueryProgressEvent": self._query_progress,
        }

    def read(self, lines: Iterator[bytes]) -> Iterator[StageRun]:
        """Yield completed stateful stages, in order of their ends; raise for a log not of Spark."""
        for line in lines:
            kind = _event_name(line)
            if kind is None:
                if self.events == 0:
                    raise EventLogError(
                        f"This is not a Spark event log: it begins with {line[:60]!r}.",
                        remedy="Give a log that Spark wrote under spark.eventLog.dir; each line "
                        'is a JSON object that begins with {"Event":.',
                    )
                self.bad_lines += 1
                continue
            self.events += 1
            handler = self._handlers.get(kind)
            if handler is None:
                continue
            try:
                run = handler(line)
            except (msgspec.MsgspecError, ValueError, TypeError, RecursionError, ArithmeticError):
                self.bad_lines += 1
                continue
            if run is not None:
                yield run

    def _log_start(self, line: bytes) -> None:
        """Store Spark's version."""
        self.spark_version = str(mapping(json.loads(line)).get("Spark Version", ""))[:40]

    def _application_start(self, line: bytes) -> None:
        """Store the application's name."""
        self.application = str(mapping(json.loads(line)).get("App Name", ""))[:200]

    def _store_settings(self, line: bytes) -> None:
        """Store the settings that concern scheduling."""
        properties = mapping(json.loads(line)).get("Spark Properties")
        known = dict(properties) if isinstance(properties, list) else mapping(properties)
        self._task_cpus = max(1, int(known.get("spark.task.cpus", 1)))

    def _executor_added(self, line: bytes) -> None:
        """Store an executor's number of cores."""
        added = msgspec.json.decode(line, type=_Executor)
        self._cores[added.executor] = max(0, added.info.cores)

    def _executor_removed(self, line: bytes) -> None:
        """Remove an executor."""
        self._cores.pop(msgspec.json.decode(line, type=_Executor).executor, None)

    def _stage_submitted(self, line: bytes) -> None:
        """Begin a stage, if it has stateful operators."""
        if b"StateStore" not in line:
            return
        submitted = msgspec.json.decode(line, type=_Stage)
        operators = _stateful_operators(submitted.info.rdds)
        properties = submitted.properties or {}
        query = properties.get("sql.streaming.queryId")
        if not operators or query is None:
            return
        batch = int(properties.get("streaming.sql.batchId", -1))
        if len(self._open_stages) >= _MOST_OPEN:  # stages whose end the log has lost
            self._open_stages.pop(next(iter(self._open_stages)))
        info = submitted.info
        self._open_stages[info.stage, info.attempt] = StageRun(
            query=str(query),
            batch=batch,
            operators=operators,
            place=self._place_among_stages(str(query), batch, operators, info.stage),
            slots=sum(cores // self._task_cpus for cores in self._cores.values()),
        )

    def _place_among_stages(
        self, query: str, batch: int, operators: tuple[str, ...], stage: int
    ) -> int:
        """Return the number, from 0, of a stage among a micro-batch's with the same operators."""
        if query not in self._stages_seen or self._stages_seen[query][0] != batch:
            if len(self._stages_seen) >= _MOST_QUERIES:
                self._stages_seen.clear()
            self._stages_seen[query] = (batch, {})
        places = self._stages_seen[query][1].setdefault(operators, {})
        return places.setdefault(stage, len(places))

    def _task_end(self, line: bytes) -> None:
        """Add a task's figures to its stage."""
        if not self._open_stages:
            return
        ended = msgspec.json.decode(line, type=_TaskEnd)
        run = self._open_stages.get((ended.stage, ended.attempt))
        info = ended.info
        if run is None or ended.reason.reason != "Success" or info.finish_ms < info.launch_ms:
            return
        metrics = ended.metrics or _TaskMetrics()
        shuffle = metrics.shuffle
        partition = info.partition if info.partition >= 0 else info.index
        task = TaskRun(
            executor=info.executor,
            launch_ms=info.launch_ms,
            finish_ms=info.finish_ms,
            cpu_s=metrics.cpu_ns / 1e9,
            shuffle_bytes=shuffle.remote_bytes + shuffle.local_bytes,
            shuffle_rows=shuffle.records,
            state_rows=_sum_of_updates(info.accumulables, "number of total state rows"),
            state_bytes=_sum_of_updates(info.accumulables, "memory used by state"),
        )
        run.tasks.setdefault(partition, task)

    def _stage_completed(self, line: bytes) -> StageRun | None:
        """End a stage, and return its run; ``None`` if it is not a stateful stage."""
        if not self._open_stages:
            return None
        info = msgspec.json.decode(line, type=_Stage).info
        run = self._open_stages.pop((info.stage, info.attempt), None)
        return run if run is not None and run.tasks and info.failure is None else None

    def _query_started(self, line: bytes) -> None:
        """Store a streaming query's name."""
        started = mapping(json.loads(line))
        self._query_figures(started.get("id"), started.get("name"))

    def _query_progress(self, line: bytes) -> None:
        """Add a micro-batch's durations to its query."""
        progress = mapping(mapping(json.loads(line)).get("progress"))
        figures = self._query_figures(progress.get("id"), progress.get("name"))
        figures.batches += 1
        took_ms = mapping(progress.get("durationMs")).get("triggerExecution", 0)
        figures.trigger_s += float(took_ms) / 1e3
        for place, operator in enumerate(map(mapping, progress.get("stateOperators") or [])):
            name = f"{place} {operator.get('operatorName', 'operator')}"[:80]
            before = figures.operators.get(name, {})
            commit_s = float(operator.get("commitTimeMs", 0)) / 1e3
            figures.operators[name] = {
                "rows": float(operator.get("numRowsTotal", 0)),
                "memory_bytes": float(operator.get("memoryUsedBytes", 0)),
                "commit_s": before.get("commit_s", 0.0) + commit_s,
            }

    def _query_figures(self, identifier: Any, name: Any) -> QueryFigures:
        """Return the figures of a query, created when it is first seen."""
        key = str(identifier)
        if key not in self.queries and len(self.queries) >= _MOST_QUERIES:
            self.queries.pop(next(iter(self.queries)))
        figures = self.queries.setdefault(key, QueryFigures())
        if name is not None:
            figures.name = str(name)[:200]
        return figures


def _event_name(line: bytes) -> str | None:
    """Return the name of the event in a line; ``None`` if the line is not an event."""
    if line.startswith(_PREFIX):
        end = line.find(b'"', len(_PREFIX), len(_PREFIX) + 200)
        if end >= 0:
            return line[len(_PREFIX) : end].decode("utf-8", "replace")
    try:  # by another writer of JSON than Spark's, or no event at all
        value = mapping(json.loads(line)).get("Event")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _stateful_operators(rdds: list[_Rdd]) -> tuple[str, ...]:
    """Return the names of the stateful operators among the RDDs of a stage."""
    names = set()
    for rdd in rdds:
        if "StateStore" in rdd.name:
            scope = mapping(json.loads(rdd.scope)) if rdd.scope else {}
            names.add(str(scope.get("name", rdd.name))[:80])
    if "StateStoreSave" in names:
        names.discard("StateStoreRestore")  # the other half of the same operator
    return tuple(sorted(names))


def _sum_of_updates(accumulables: list[_Accumulable], name: str) -> int:
    """Return the sum of a task's updates of the accumulator `name`."""
    updates = [a.update for a in accumulables if a.name == name and a.update is not None]
    return sum(msgspec.convert(update, _Long, strict=False) for update in updates)
