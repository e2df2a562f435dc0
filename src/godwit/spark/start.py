"""`Flow.explain` and `Flow.start` on a classic Spark session."""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import IllegalArgumentException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from godwit.engine.initial_state import initial_state_of
from godwit.model.errors import CheckpointError, GodwitError, InvalidFlowError
from godwit.model.locations import hadoop_location
from godwit.model.log_lines import chosen_format, log_as
from godwit.model.naming import function_name
from godwit.model.secrets import shown_uri, unless_confidential
from godwit.plan.explain import UserNames
from godwit.plan.maps import map_dataframe
from godwit.runtime.dispatcher import EventDispatcher
from godwit.runtime.entry_points import open_observers, opener_of
from godwit.runtime.failures import epoch_failed, parse_traceback, short_message
from godwit.runtime.query import Query, end_terminated, is_running
from godwit.runtime.settings import interval_s
from godwit.runtime.source_loop import SourceLoop
from godwit.runtime.threads import EpochGate
from godwit.sinks.checks import check_places
from godwit.spark.batch_rows import BatchRows, is_stopped, quick_local_logs, wait_for_sources
from godwit.spark.micro_batch_epochs import MicroBatchEpochs, MicroBatchRows
from godwit.spark.micro_batch_query import MicroBatchQuery
from godwit.spark.opening import open_run
from godwit.spark.platform.executors import check_executors, warn_of_settings
from godwit.spark.platform.executors_python import check_executors_python
from godwit.spark.platform.sessions import (
    check_encoding,
    check_session,
    context_is_stopped,
    unless_stopped,
)
from godwit.spark.progress import SparkProgress
from godwit.spark.stages.pickling import check_picklable
from godwit.spark.stages.source_plans import (
    check_offset_log,
    check_plan,
    directories_read,
    leaves_column,
    offset_layout,
)
from godwit.spark.stages.source_rows import (
    arrow_schema,
    feed_frames,
    feeds_of,
    rows_of_dataframe,
    streaming_dataframe,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.api.flow import LogicalFlow
    from godwit.checkpoint.commit_log import CommitLog
    from godwit.engine.recovery import Recovery
    from godwit.plan.compiled import CompiledFlow
    from godwit.runtime.entry_points import ControllerOpener, Observer
    from godwit.runtime.lifecycle import EpochDriver
    from godwit.runtime.run import QueryRun
    from godwit.runtime.settings import Options

    _Driven = tuple[
        Callable[[Recovery, CommitLog], BatchRows], Callable[[QueryRun, Any], EpochDriver]
    ]


_ARROW_ROWS = "200000"
_WITHDRAW_S = 10.0
_QUERY_LOGS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


def compile_flow(flow: LogicalFlow, session: SparkSession) -> CompiledFlow:
    """Return the flow compiled with the columns that its sources have in the Spark session."""

    def resolve(source: str, maps: tuple[Callable[[DataFrame], DataFrame], ...]) -> pa.Schema:
        """Return the columns of a source after maps over DataFrames."""
        dataframe = flow.sources[source]
        for function in maps:
            dataframe = map_dataframe(source, [function], dataframe)
            name = function_name(function)
            where = f"Map {name!r} on source {source!r}"
            check_plan(dataframe, where, source=source, function=name)
        return arrow_schema(dataframe)

    @cache
    def retimed(
        source: str, maps: tuple[Callable[[DataFrame], DataFrame], ...], column: str
    ) -> int:
        """Return which map, counted from 1, changes the event time last; 0: none."""
        frames = [flow.sources[source]]
        for function in maps:
            frames.append(map_dataframe(source, [function], frames[-1]))
        changes = [
            number
            for number, (before, after) in enumerate(pairwise(frames), 1)
            if not leaves_column(before, after, column)
        ]
        return max(changes, default=0)

    with _without_error_logs():
        zone = session.conf.get("spark.sql.session.timeZone")
        compiled = flow.compile(resolve, retimed, zone=zone or "UTC")
    check_picklable(flow)
    return compiled


def check_places_of(
    flow: LogicalFlow, compiled: CompiledFlow, checkpoint: str | None = None
) -> None:
    """Raise if places of a flow overlap, also those that its DataFrames read."""
    read = {name: directories_read(frame) for name, frame in flow.sources.items()}
    check_places(compiled, checkpoint, read=read)


def start(flow: LogicalFlow, options: Options) -> Query:
    """Start the flow; see `godwit.spark.flow.Flow.start`."""
    log_as(chosen_format(options.observability.log))
    spark = session_of(flow, options.session)
    compiled = compile_flow(flow, spark)
    check_places_of(flow, compiled, options.checkpoint)
    if (controllers := opener_of(options)) is not None:
        controllers.check(compiled)  # refused while nothing is touched
    name = options.name or flow.name
    end_terminated(name)
    _check_name(spark, name)
    check_executors(spark.sparkContext, options.executors)
    warn_of_settings(spark.sparkContext)
    if flow.sources:
        check_encoding(spark.sparkContext, hadoop_location(options.checkpoint))
    check_executors_python(spark.sparkContext, options.executors)
    initial = initial_state_of(
        options.initial, options.initial_watermark, compiled, rows_of_dataframe
    )
    rows_of, driver_of = (
        _driven_by_spark(flow, compiled, options)
        if flow.sources
        else _driven_by_loop(options, controllers)
    )
    dispatcher = EventDispatcher(flow.name, UserNames(compiled.operators), query=name)
    gate = EpochGate(
        partial(unless_stopped, context=spark.sparkContext, flow=flow.name),
        is_cancellation=comes_of_cancelled_jobs,
    )
    with ExitStack() as undo:
        undo.callback(dispatcher.close)
        observers: dict[str, Observer] = {}
        for observer_name, observer in open_observers(compiled, options):
            undo.callback(observer.close)
            observers[observer_name] = observer
            if observer.recorder is not None:
                dispatcher.add_recorder(observer_name, observer.recorder)
        run, source = open_run(
            compiled,
            partial(compile_flow, flow, spark),
            rows_of,
            options,
            spark,
            dispatcher=dispatcher,
            gate=gate,
            initial=initial,
        )
        undo.callback(run.release)
        undo.callback(run.close)
        undo.callback(_stop_failed_start, spark, name, gate)
        create = flow._query_type or Query  # noqa: SLF001  adopted queries answer as Spark's
        query: Query = create(
            flow.name,
            name=name,
            run=run,
            driver=driver_of(run, source),
            dispatcher=dispatcher,
            observers=observers,
        )
        undo.pop_all()
    return query


def _driven_by_spark(flow: LogicalFlow, compiled: CompiledFlow, options: Options) -> _Driven:
    """Return factories of rows and driver for a query over DataFrames: micro-batches are epochs."""
    trigger = options.trigger
    if flow.own_sources:
        interval_s(trigger)  # refused while nothing is touched, as what Spark refuses
    check_offset_log(next(iter(flow.sources.values())).sparkSession)
    frames = feed_frames(feeds_of(compiled), flow.sources)
    rows = streaming_dataframe(frames)
    _check_interval(rows, options)
    offsets = offset_layout(frames, flow.sources)

    def driver(run: QueryRun, source: MicroBatchRows) -> EpochDriver:
        """Create the driver of micro-batches and of epochs between them."""
        epochs = MicroBatchEpochs(run, source, trigger=trigger)

        def start_spark(options: Options) -> StreamingQuery:
            """Start Spark's query."""
            return _start_spark(rows, options, flow.name, run, epochs.run_micro_batch)

        return MicroBatchQuery(
            start_spark(options),
            epochs,
            run=run,
            trigger=trigger,
            start_bounded=lambda: start_spark(replace(options, trigger={"availableNow": True})),
        )

    return partial(MicroBatchRows, rows=rows, offsets=offsets, trigger=trigger), driver


def _driven_by_loop(options: Options, controllers: ControllerOpener | None) -> _Driven:
    """Return factories of rows and driver for a query over Godwit's sources, polled by a loop."""
    interval = interval_s(options.trigger)  # refused while nothing is touched
    longest_s = None if controllers is None else controllers.longest_epoch_s(interval)

    def driver(run: QueryRun, source: BatchRows) -> EpochDriver:
        """Create the driver that polls Godwit's own sources."""
        return SourceLoop(run, source.positions, trigger=options.trigger, longest_s=longest_s)

    return BatchRows, driver


def session_of(flow: LogicalFlow, given: SparkSession | None) -> SparkSession:
    """Return the Spark session of a flow: its DataFrames' own, `given`, or the active one.

    Raises `InvalidFlowError` if that session cannot run the flow.
    """
    own_session = next((frame.sparkSession for frame in flow.sources.values()), None)
    if given is None:
        session = SparkSession.builder.getOrCreate() if own_session is None else own_session
    elif own_session is None or own_session._jsparkSession == getattr(  # noqa: SLF001
        given, "_jsparkSession", None
    ):
        session = given
    else:
        raise InvalidFlowError(
            f"Flow {flow.name!r} was started in a session other than that of its DataFrames.",
            remedy="Leave session= out, or read the DataFrames in that session.",
            flow=flow.name,
        )
    if not hasattr(session, "_jsparkSession"):
        raise InvalidFlowError(
            f"Flow {flow.name!r} was to be started in a Spark Connect session.",
            remedy="Give a classic session (SparkSession.builder.master(...)): placing tasks on "
            "executors needs the SparkContext.",
            flow=flow.name,
        )
    check_session(session, flow.name)
    return session


def _stop_failed_start(spark: SparkSession, name: str, gate: EpochGate) -> None:
    """Stop Spark's query, if it has begun, after a start that failed or was interrupted.

    The query would continue without a lease on the checkpoint.
    """
    gate.close()
    for query in [] if context_is_stopped(spark.sparkContext) else spark.streams.active:
        if query.name == name:
            query.stop()
    gate.wait_until_idle(_WITHDRAW_S)


def _start_spark(
    rows: DataFrame,
    options: Options,
    flow_name: str,
    run: QueryRun,
    # carries out the epoch of a micro-batch, which has a number; asks whether the query is stopped
    epoch: Callable[[DataFrame, int, Callable[[], bool]], dict[str, float]],
) -> StreamingQuery:
    """Start Spark's streaming query, which calls `epoch` with every micro-batch."""
    progress = SparkProgress(rows.sparkSession)
    stopped = partial(is_stopped, rows.sparkSession)

    def in_session(batch: DataFrame, number: int) -> None:
        """Run the epoch of a micro-batch in the query's Spark session."""
        # Each streaming query has a session of its own, so this touches no other.
        batch.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _ARROW_ROWS)
        try:
            progress.add(epoch(batch, number, stopped))
        except Exception as error:  # noqa: BLE001  told to Spark, in few lines
            # Spark gets the text of the error; the gate has recorded the error itself.
            raise error_for_spark(
                error, flow_name, batch.sparkSession, cut_short=run.gate.cut_short
            ) from None

    writer = rows.writeStream.foreachBatch(in_session).queryName(options.name or flow_name)
    if options.trigger is not None:
        trigger: dict[str, Any] = dict(options.trigger)
        writer = writer.trigger(**trigger)
    uri = f"{hadoop_location(options.checkpoint)}/spark"
    with without_credentials(uri), quick_local_logs(rows.sparkSession, uri):
        started = writer.option("checkpointLocation", uri).start()
        wait_for_sources(started)
    return started


@contextmanager
def _without_error_logs() -> Iterator[None]:
    """Context that silences PySpark's long logs of errors that are also raised."""
    # Instances of PySpark's own class: it expects them under these names.
    logs = [PySparkLogger.getLogger(name) for name in _QUERY_LOGS]
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        yield
    finally:
        for log, was in zip(logs, before, strict=True):
            log.disabled = was


def _check_interval(rows: DataFrame, options: Options) -> None:
    """Raise if Spark cannot parse the interval of a trigger."""
    interval = (options.trigger or {}).get("processingTime")
    if interval is not None:
        try:
            rows.writeStream.trigger(processingTime=str(interval))
        except IllegalArgumentException:
            raise InvalidFlowError(
                f"Spark cannot read {interval!r}, the trigger processingTime of start.",
                remedy='Give an interval such as "500 milliseconds", "1 second" or "2 minutes".',
            ) from None


def _check_name(spark: SparkSession, name: str) -> None:
    """Raise if a query of the same name is active in the session."""
    if is_running(name) or any(query.name == name for query in spark.streams.active):
        raise InvalidFlowError(
            f"A streaming query named {name!r} is running in this session already.",
            remedy="Stop it first, or start this one under another name, as in "
            f"flow.start(name={name + '-2'!r}).",
        )


_INTERRUPTED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling an epoch, which was cut short: "
    "java.lang.InterruptedException"
)
"""By this text Spark knows that an epoch did not fail, and ended because the query is to stop."""


def comes_of_cancelled_jobs(error: BaseException) -> bool:
    """Return whether an error was caused by the cancellation of the epoch's Spark jobs.

    Aborting an epoch cancels its jobs, which Py4J reports as an error.
    """
    if not isinstance(error, GodwitError):
        return True
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, Py4JError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def error_for_spark(
    error: Exception, flow: str, spark: SparkSession, *, cut_short: bool
) -> Exception:
    """Return an exception with a short message, to be raised to Spark for an epoch's error.

    `cut_short`: the query is being stopped. Then Spark searches the text of an error for an
    interruption, by a regular expression that recurses once per character: on long texts, such as
    Java stacks, its thread ends with a StackOverflowError.
    """
    if cut_short:
        suppress_log_stack(spark)
        return InterruptedError(_INTERRUPTED)
    ours = error if isinstance(error, GodwitError) else parse_traceback(short_message(error))
    if ours is not None:
        suppress_log_stack(spark)
    failure = ours or epoch_failed(flow, error)
    message = failure.message.replace("py4j.protocol.Py4J", "Py4J")  # what Spark searches for
    return type(failure)(message, remedy=failure.remedy)


def suppress_log_stack(spark: SparkSession) -> None:
    """Keep Spark from logging, with its stacks, the error that ends the query of this thread.

    Callers that wait for the query get that error. Other queries are logged as usual.
    """
    query = spark.sparkContext.getLocalProperty("sql.streaming.queryId") or "unknown"
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  logging has no Python API
    with suppress(Exception):  # with another logger than Log4j the stacks stay visible
        log4j = jvm.org.apache.logging.log4j
        result = getattr(log4j.core, "Filter$Result")
        pattern = rf"(?s).*id = {re.escape(query)},.*terminated with error.*"
        mine = log4j.core.filter.RegexFilter.createFilter(
            pattern, None, False, result.DENY, result.NEUTRAL
        )
        mine.start()
        logger = log4j.LogManager.getContext(False).getConfiguration().getLoggerConfig(_LOGGER)
        for earlier in _filters:  # theirs has been logged by now, or not
            logger.removeFilter(earlier)
        _filters[:] = [mine]
        logger.addFilter(mine)


_LOGGER = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"
_filters: list[Any] = []


@contextmanager
def without_credentials(uri: str) -> Iterator[None]:
    """Context that replaces errors of Spark that contain the credentials in a URI."""
    try:
        yield
    except Exception as error:
        if unless_confidential(error) is not None:
            raise
        raise CheckpointError(
            f"Spark cannot start on the checkpoint {shown_uri(uri)!r}: {short_message(error)}.",
            remedy="Check that Spark, too, reaches the location, with the credentials that its "
            "Hadoop configuration has.",
            uri=shown_uri(uri),
        ) from None
