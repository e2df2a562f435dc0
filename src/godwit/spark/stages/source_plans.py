"""Checks of a source's plan and its maps, and the streams that the plan reads.

A flow's sources run as one streaming query whose epochs Godwit commits.  An operation that Spark
would give state of its own (or would refuse at the start, long after the line that wrote it) is
found in the analysed logical plan, where Spark says of every node whether its rows stream.

Spark numbers the distinct streams of a plan in the order in which it comes upon them, and writes an
offset for every place where one is read (`godwit.checkpoint.spark_log`).  Streams are told apart as
Spark does: by equality of the nodes of the analysed plan.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import AnalysisException

from godwit.checkpoint.spark_log import DEFAULT_INTERVAL, OffsetLayout, Reading
from godwit.engine.lane.lane_flow import shipments
from godwit.engine.lane.source_side import NumberedSplit, gather_batches, ship_input, ship_splits
from godwit.model.errors import InvalidFlowError
from godwit.model.log_lines import add_to_log_context
from godwit.spark.stages.source_rows import read_feeds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from godwit.engine.lane.lane_flow import Feed, LaneFlow
    from godwit.engine.lane.messages import EpochInstruction
    from godwit.engine.lane.wire import Blob
    from godwit.sources.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Operations that a flow does not take, and what to do instead."""

    nodes: frozenset[str]  # classes of Spark's logical plan
    does: str  # what the DataFrame does that it should not
    but: str  # why not
    remedy: str  # what to do


_CHECKER: Final = "org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker"
_OWN_STATE = "Spark would keep that state by itself, over all epochs, where it cannot move"
_ONE_EPOCH = "it would see the rows of one epoch only"
_PROCESS = "Use key_by(...).process(...), whose function gets the rows of a key and its state."

_REFUSALS = (
    _Refusal(
        nodes=frozenset({"Aggregate", "AggregateInPandas"}),
        does="aggregates (groupBy, agg, cube, pivot)",
        but=_OWN_STATE,
        remedy="Use key_by(...).compute(...), which aggregates all rows of a key so far.",
    ),
    _Refusal(
        nodes=frozenset({"Deduplicate", "DeduplicateWithinWatermark", "Distinct"}),
        does="removes duplicates (distinct, dropDuplicates, SELECT DISTINCT)",
        but=_OWN_STATE,
        remedy='Use stream.drop_duplicates("id", within="1 hour"), with the columns that tell '
        "rows apart.",
    ),
    _Refusal(
        nodes=frozenset({"GlobalLimit", "LocalLimit", "Offset", "Tail"}),
        does="counts rows (limit, offset)",
        but="Spark would count them over all epochs: later rows would be left out for ever",
        remedy="Remove it; what an epoch reads is bounded by options of the source, such as "
        "maxFilesPerTrigger or maxOffsetsPerTrigger.",
    ),
    _Refusal(
        nodes=frozenset({"Sort"}),
        does="sorts (orderBy, sortWithinPartitions)",
        but="a stream has no end to sort up to",
        remedy="Remove it; where order matters within a key, sort its rows in process(...).",
    ),
    _Refusal(
        nodes=frozenset({"Window"}),
        does="uses window functions (over(...))",
        but=_ONE_EPOCH,
        remedy=_PROCESS,
    ),
    _Refusal(
        nodes=frozenset(
            {
                "FlatMapGroupsWithState",
                "FlatMapGroupsInPandasWithState",
                "TransformWithState",
                "TransformWithStateInPySpark",
            }
        ),
        does="keeps state per group (applyInPandasWithState, transformWithState)",
        but=_OWN_STATE,
        remedy=_PROCESS,
    ),
    _Refusal(
        nodes=frozenset(
            {
                "CoGroup",
                "FlatMapCoGroupsInArrow",
                "FlatMapCoGroupsInPandas",
                "FlatMapGroupsInArrow",
                "FlatMapGroupsInPandas",
                "MapGroups",
            }
        ),
        does="works on groups of rows (applyInPandas, applyInArrow)",
        but=_ONE_EPOCH,
        remedy=_PROCESS,
    ),
    _Refusal(
        nodes=frozenset({"Except", "Intersect"}),
        does="compares its rows with others (intersect, exceptAll, subtract)",
        but="Spark does that to tables only",
        remedy='Join with the table: how="left_semi" keeps the rows that it has, how="left_anti" '
        "the others.",
    ),
    _Refusal(
        nodes=frozenset({"EventTimeWatermark"}),
        does="sets a watermark (withWatermark)",
        but="nothing in a flow would follow it, so no row would ever be late",
        remedy="Remove withWatermark, and give the source its times, as in flow.source(..., "
        'event_time="ts", slack="5 minutes").',
    ),
)

_JOINS = frozenset({"AsOfJoin", "Join"})
_TWO_STREAMS = _Refusal(
    nodes=_JOINS,
    does="joins two streams",
    but=_OWN_STATE,
    remedy="Make each a source of its own, and join the streams: "
    "left.key_by(...).join(right.key_by(...), between=...) by event time, or join_newest(...). "
    "Joins with tables that do not stream are fine.",
)


def check_plan(
    dataframe: DataFrame, where: str, *, epochs_are_batches: bool = False, **context: str
) -> None:
    """Raise if a streaming DataFrame needs state in Spark.

    `where`: subject of the error, such as ``"Source 'flights'"``; `context`: its fields.
    `epochs_are_batches`: the flow is a query of Spark's, where functions get the groups of a batch.
    """
    plan = _analysed_plan(dataframe)
    for node in _walk_nodes(plan):
        if not node.isStreaming():
            continue
        kind = node.getClass().getSimpleName()
        if kind in _JOINS:
            refusal = _TWO_STREAMS if all(c.isStreaming() for c in _children(node)) else None
        else:
            refusal = next((refusal for refusal in _REFUSALS if kind in refusal.nodes), None)
        if refusal is not None and not (epochs_are_batches and refusal.but is _ONE_EPOCH):
            raise InvalidFlowError(
                f"{where} {refusal.does}, but {refusal.but}.", remedy=refusal.remedy, **context
            )
    try:
        _check_for_streaming(dataframe, plan)
    except AnalysisException as error:
        reason = re.sub(r"^\[[^]]*\] | SQLSTATE: \w+$|[.;]+$", "", str(error).splitlines()[0])
        raise InvalidFlowError(
            f"{where} does what Spark cannot do with a stream: {reason}.",
            remedy="Remove it, or do it to a table before it is joined.",
            **context,
        ) from None


def leaves_column(before: DataFrame, after: DataFrame, column: str) -> bool:
    """Return whether a map leaves a column unchanged in all rows.

    Spark gives every column that an expression makes an identity of its own, and keeps that of a
    column that is only filtered, selected or joined to others. A union has the identities of its
    first part whatever the others hold, so rows that a map unites with others do not count as left.
    """
    plans = [_analysed_plan(frame) for frame in (before, after)]
    old, new = (
        [
            attribute.exprId()
            for attribute in _scala_to_list(plan.output())
            if attribute.name() == column
        ]
        for plan in plans
    )
    unions = [
        sum(node.getClass().getSimpleName() == "Union" for node in _walk_nodes(plan))
        for plan in plans
    ]
    return len(old) == len(new) == 1 and old[0].equals(new[0]) and unions[0] == unions[1]


def streams_in(dataframe: DataFrame) -> list[Any]:
    """Return the nodes of a plan that read streams, in the order in which Spark visits them."""
    streams = []
    pending = [_analysed_plan(dataframe)]
    while pending:
        node = pending.pop()
        children = _children(node)
        if not children and node.isStreaming():
            streams.append(node)
        pending.extend(reversed(children))
    return streams


def _analysed_plan(dataframe: Any) -> Any:
    """Return the analysed logical plan of a DataFrame."""
    return dataframe._jdf.queryExecution().analyzed()  # noqa: SLF001  not in PySpark's API


def _check_for_streaming(dataframe: Any, plan: Any) -> None:
    """Run Spark's checks for streaming plans on a DataFrame."""
    jvm = dataframe.sparkSession._jvm  # noqa: SLF001  not in PySpark's API
    append = getattr(jvm, "org.apache.spark.sql.streaming.OutputMode").Append()
    checker = getattr(jvm, _CHECKER)
    checker.checkForStreaming(plan, append)


def _walk_nodes(plan: Any) -> Iterator[Any]:
    """Yield all nodes of a plan."""
    pending = [plan]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(_children(node))


def _children(node: Any) -> list[Any]:
    """Return the children of a node of Spark's plan."""
    return _scala_to_list(node.children())


def _scala_to_list(sequence: Any) -> list[Any]:
    """Return a Scala sequence as a list."""
    return [sequence.apply(i) for i in range(sequence.size())]


_ORDINARY: Final = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "false",
    "spark.sql.streaming.offsetLog.formatVersion": "1",
}
_INTERVAL: Final = "spark.sql.streaming.fileSource.log.compactInterval"
_WHAT: Final = {
    "kafka": ("assign", "subscribe", "subscribepattern"),
    "socket": ("host", "port"),
    "rate": (),
    "rate-micro-batch": (),
}
"""Format → options that say which data it is; of files and tables that have a path, that."""
_TABLES: Final = ("delta", "iceberg")
_HOW: Final = re.compile(
    "max|min|start|end|fail|fetch|poll|timeout|interval|retr|partition|rate|rows|batch|mode|"
    "password|secret|token|credential|user|key|auth|ssl|cert|region|clean|latest"
)
"""Options, of formats that are not known, that say how data are read and not which."""


def check_offset_log(spark: SparkSession) -> None:
    """Raise if a session's settings change the format of Spark's offset log."""
    for setting, value in _ORDINARY.items():
        setting_value = spark.conf.get(setting, value)
        if setting_value != value:
            raise InvalidFlowError(
                f"The session sets {setting} to {setting_value!r}, but Godwit reads Spark's "
                "offset log in its ordinary format.",
                remedy=f"spark.conf.unset({setting!r}) before the flow is started.",
            )


def offset_layout(
    frames: Sequence[tuple[str, DataFrame]],  # that the query unites: source, DataFrame after maps
    sources: Mapping[str, DataFrame],  # those before the maps
) -> OffsetLayout:
    """Return the layout of Spark's offset log: the streams it covers, and the stream of each line.

    Raises `InvalidFlowError` if a map adds a stream that is not a source's.
    """
    streams_of_source = {
        name: _without_duplicates(streams_in(frame)) for name, frame in sources.items()
    }
    numbered: list[Any] = []
    lines: list[int] = []
    for name, frame in frames:
        for stream in streams_in(frame):
            if not any(
                _index_of(stream, streams) is not None for streams in streams_of_source.values()
            ):
                raise InvalidFlowError(
                    f"A map on source {name!r} brings in another stream, "
                    f"{stream.simpleString(100)}.",
                    remedy="Make it a source of its own, with flow.source(...), and unite the "
                    "streams with stream.union(...).",
                    source=name,
                )
            number = _index_of(stream, numbered)
            if number is None:
                number = len(numbered)
                numbered.append(stream)
            lines.append(number)
    return OffsetLayout(
        readings=tuple(
            tuple(
                Reading(source=name, index=index, reads=_stream_identity(stream))
                for name in sorted(streams_of_source)
                if (index := _index_of(stream, streams_of_source[name])) is not None
            )
            for stream in numbered
        ),
        lines=tuple(lines),
        interval=_compaction_interval(frames[0][1].sparkSession),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesOfStream:
    """Directory that a file stream of Spark reads (see `godwit.sinks.checks.ReadDirectory`)."""

    location: str
    pattern: str  # of names of files
    recursive: bool

    def reads(self, path: str) -> bool:
        """Return whether Spark reads a file, by its path within the directory.

        Below the directory Spark reads partitions (``name=value``) only, unless told otherwise.
        """
        *directories, name = path.split("/")
        hidden = any(p[0] == "." or (p[0] == "_" and "=" not in p) for p in [*directories, name])
        below = self.recursive or not directories or any("=" in part for part in directories)
        return below and not hidden and fnmatch.fnmatchcase(name, self.pattern)


def directories_read(dataframe: DataFrame) -> list[FilesOfStream]:
    """Return the directories whose files a streaming DataFrame reads, as far as that is certain.

    Left out are paths and filters with wildcards, whose meaning is Hadoop's.
    """
    directories = []
    context = dataframe.sparkSession.sparkContext
    hadoop = context._jsc.hadoopConfiguration()  # noqa: SLF001  not in PySpark's API
    is_local = str(hadoop.get("fs.defaultFS", "file:///")).startswith("file:")
    for stream in streams_in(dataframe):
        if stream.getClass().getSimpleName() != "StreamingRelation":
            continue
        if not str(stream.sourceName()).startswith("FileSource["):
            continue
        source = stream.dataSource()
        options = {key.lower(): value for key, value in _pairs(source.options())}
        paths = [str(source.paths().apply(index)) for index in range(source.paths().size())]
        pattern = options.get("pathglobfilter", "*")
        for path in [*paths, *([options["path"]] if "path" in options else [])]:
            is_known = is_local or _HAS_SCHEME.match(path)
            if is_known and not _WILDCARDS.intersection(path + pattern.replace("*", "")):
                directories.append(
                    FilesOfStream(
                        location=_hadoop_path(path),
                        pattern=pattern,
                        recursive=options.get("recursivefilelookup", "").lower() == "true",
                    )
                )
    return directories


_HAS_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*:")
_WILDCARDS: Final = frozenset("*?[]{}\\")


def _compaction_interval(spark: SparkSession) -> int:
    """Return the interval at which Spark compacts file logs."""
    value = spark.conf.get(_INTERVAL, str(DEFAULT_INTERVAL))
    return max(1, int(value)) if value is not None and value.isdecimal() else DEFAULT_INTERVAL


def _without_duplicates(streams: Sequence[Any]) -> list[Any]:
    """Return streams without duplicates."""
    distinct: list[Any] = []
    for stream in streams:
        if _index_of(stream, distinct) is None:
            distinct.append(stream)
    return distinct


def _index_of(stream: Any, streams: Sequence[Any]) -> int | None:
    """Return the index of a stream among others, by Spark's equality; ``None`` if absent."""
    return next((index for index, other in enumerate(streams) if other.equals(stream)), None)


def _stream_identity(stream: Any) -> dict[str, str]:
    """Return what a stream reads, as plain values; empty if Spark's plan does not say."""
    kind = stream.getClass().getSimpleName()
    if kind == "StreamingRelation":
        source = stream.dataSource()
        name, options = str(source.className()), dict(_pairs(source.options()))
        paths = source.paths()
        options |= {f"path {index}": str(paths.apply(index)) for index in range(paths.size())}
    elif kind == "StreamingRelationV2":
        name = str(stream.sourceName())
        options = {str(key): str(value) for key, value in stream.extraOptions().items()}
        if stream.identifier().isDefined():
            options = {"table": str(stream.identifier().get().toString())}
    else:
        return {}
    options = {key.lower(): value for key, value in options.items()}
    name = name.lower()
    paths_only = {
        key: _hadoop_path(value) for key, value in options.items() if key.startswith("path")
    }
    if name in _WHAT:
        identity = {key: options[key] for key in _WHAT[name] if key in options}
    elif "table" in options:
        identity = {"table": options["table"]}
    elif paths_only and (kind == "StreamingRelation" or name in _TABLES):
        identity = {key: value for key, value in paths_only.items() if not key.startswith("pathg")}
    else:
        # Options may hold what must not be kept, such as a URL with a password.
        identity = {
            key: hashlib.sha256(value.encode()).hexdigest()[:16]
            for key, value in options.items()
            if not _HOW.search(key)
        }
    return {"format": name, **dict(sorted(identity.items()))}


def _pairs(scala_map: Any) -> Iterator[tuple[str, str]]:
    """Yield the pairs of a Scala map."""
    items = scala_map.iterator()
    while items.hasNext():
        pair = items.next()
        yield str(pair._1()), str(pair._2())  # noqa: SLF001  Scala's name of a part of a pair


def _hadoop_path(path: str) -> str:
    """Return a path in the spelling that Spark uses for files below it."""
    local = re.sub("^file:/*", "/", path)
    if re.match("[A-Za-z][A-Za-z0-9+.-]*:", local) is not None:
        return local.rstrip("/")
    return re.sub("/+", "/", f"{Path.cwd()}/{local}" if local[:1] != "/" else local).rstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The part of a flow that executors need: its lanes, and the source side of its rows.

    Spark's plan reads a micro-batch, tasks read the splits of own sources, and the driver reads few
    rows of either.  An epoch of several kinds has one source side, so its lanes wait for one
    exchange.
    """

    lanes: LaneFlow
    sources: Mapping[str, Source]  # of Godwit's own; they are never opened where tasks run
    # of DataFrames: how their rows are laid out, without maps, which stay on the driver, and schema
    feeds: tuple[Feed, ...] = ()
    schema: pa.Schema | None = None

    def ship(
        self, instruction: EpochInstruction, items: Iterable[Any], partition: int
    ) -> Iterator[Blob]:
        """Combine the source rows of a partition per key, and split them by lane.

        `items` are numbered splits, or Arrow batches without their schema; `partition` tells the
        batches of several partitions apart. The two kinds send rows to different inputs of an
        operator, so the order of their payloads does not depend on the reader.
        """
        add_to_log_context(query=self.lanes.query, epoch=instruction.epoch, phase="read")
        routes = shipments(self.lanes, instruction)
        # A task may run again, while lanes have its first rows; the driver reads for all of them.
        places = 0 if TaskContext.get() is None else len(instruction.places)
        for are_splits, group in groupby(items, lambda item: isinstance(item, NumberedSplit)):
            if are_splits:
                yield from ship_splits(self.lanes, routes, self.sources, group, places=places)
                continue
            batches = (pa.ipc.read_record_batch(pa.py_buffer(data), self.schema) for data in group)
            for number, table in enumerate(gather_batches(batches)):
                for lane_input, rows in read_feeds(self.feeds, table):
                    yield from ship_input(
                        routes[lane_input.index], lane_input, rows, partition, number
                    )
