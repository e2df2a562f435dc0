"""``gw.write_stream(df)``: the builder of ``df.writeStream``, name for name.

A query is translated, and refused if it cannot be adopted, when it is started; nothing is read or
written before.
"""

from __future__ import annotations

import shutil
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkAttributeError,
    PySparkValueError,
)
from pyspark.sql.streaming.readwriter import DataStreamWriter

from godwit.adopt.delivery import RowByRow
from godwit.adopt.own_checkpoint import (
    as_of_query,
    check_same_operators,
    chosen_checkpoint,
    has_begun,
)
from godwit.adopt.query import SparkQuery
from godwit.adopt.spark_checkpoint import initial_state_from
from godwit.adopt.spark_files import FILE_FORMATS, place_of_table
from godwit.adopt.spark_progress import began_in_spark, has_epochs
from godwit.adopt.spark_states import FunctionState
from godwit.adopt.targets import (
    FORMATS,
    WAYS_OUT,
    Target,
    delivered,
    refused_setting,
    table_of,
)
from godwit.adopt.translate import AdoptedQuery, translate
from godwit.model.errors import CheckpointMismatchError
from godwit.model.frames import user_call
from godwit.model.naming import did_you_mean, listing, type_name
from godwit.runtime.settings import checked_trigger

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from godwit.api.streams import Stream
    from godwit.control.settings import Control
    from godwit.model.errors import GodwitError
    from godwit.sinks.sink import Sink
    from godwit.spark.flow import Flow

_BRIEF: Final = frozenset({"console", "memory", "noop"})
"""Formats for which Spark creates a temporary checkpoint, as for functions."""
_MODES: Final = ("append", "update", "complete")
_SETTINGS: Final = (
    "adaptation",
    "checkpointing",
    "components",
    "executors",
    "lanes",
    "observability",
    "on_divergence",
    "policy",
    "sizing",
)
"""Parameters of `godwit.Flow.start` that `StreamWriter.settings` takes."""


class ReadPlan(NamedTuple):
    """A flow without a sink, and the stream of its result (see `read_plan`)."""

    flow: Flow
    stream: Stream


@user_call
def write_stream(dataframe: DataFrame) -> StreamWriter:
    """Return the writer of a streaming DataFrame, as ``dataframe.writeStream``.

    Parameters
    ----------
    dataframe
        Any streaming DataFrame of a classic Spark session: its logical plan is the query.

    Returns
    -------
    StreamWriter
        A builder with the names of ``DataStreamWriter``, whose ``start`` returns a `Query` of
        Godwit's.

    Raises
    ------
    UnsupportedQueryError
        If `dataframe` is not a streaming DataFrame of a classic session.

    Examples
    --------
    >>> rows = spark.readStream.schema("k string").json("in/")  # doctest: +SKIP
    >>> counts = rows.groupBy("k").count()  # doctest: +SKIP
    >>> gw.write_stream(counts).outputMode("update").format("console").start()  # doctest: +SKIP
    >>> try:
    ...     gw.write_stream("in/")
    ... except gw.errors.UnsupportedQueryError as error:
    ...     print(error.message)
    A value of type str is not a DataFrame.
    """
    check_streaming(dataframe)
    return StreamWriter(dataframe)


@user_call
def sql(session: SparkSession, text: str) -> StreamWriter:
    """Return the writer of a query in SQL over streams that are registered as views.

    Parameters
    ----------
    session
        Classic Spark session with the views.
    text
        A query, as for ``session.sql``.

    Returns
    -------
    StreamWriter
        As of `write_stream`.

    Raises
    ------
    UnsupportedQueryError
        If the query reads no stream.

    Examples
    --------
    >>> gw.sql(spark, "SELECT k, count(*) n FROM rows GROUP BY k").start()  # doctest: +SKIP
    >>> try:
    ...     gw.sql("SELECT k FROM rows", "out/")
    ... except gw.errors.UnsupportedQueryError as error:
    ...     print(error.message)
    A value of type str is not a Spark session.
    """
    if not callable(getattr(session, "sql", None)):
        raise refused_setting(
            f"A value of type {type_name(session)} is not a Spark session.",
            'Give the session first, as in gw.sql(spark, "SELECT ...").',
        )
    return write_stream(session.sql(text))


@user_call
def read_plan(dataframe: DataFrame, *, mode: str = "append", name: str = "adopted") -> ReadPlan:
    """Return the flow of a streaming DataFrame without starting it, to add more to it.

    Parameters
    ----------
    dataframe
        Any streaming DataFrame of a classic Spark session.
    mode
        Spark's output mode: ``"append"``, ``"update"`` or ``"complete"``.
    name
        Name of the flow.

    Returns
    -------
    ReadPlan
        The flow, and the stream of the result, for operators and sinks.

    Raises
    ------
    UnsupportedQueryError
        If a part of the query cannot be adopted.

    Examples
    --------
    >>> flow, stream = gw.read_plan(counts, mode="update")  # doctest: +SKIP
    >>> flow.sink("counts", stream, gw.sinks.parquet("out/"))  # doctest: +SKIP
    >>> try:
    ...     gw.read_plan("in/")
    ... except gw.errors.UnsupportedQueryError as error:
    ...     print(error.remedy)
    Give the streaming DataFrame itself.
    """
    check_streaming(dataframe)
    query = translate(dataframe, mode=_checked_mode(mode), name=name)
    return ReadPlan(query.flow, query.result_stream("read_plan(...)"))


class StreamWriter:
    """Builder of an adopted query, with the names of Spark's ``DataStreamWriter``.

    `write_stream` returns it. Every method but `start` returns the builder.
    """

    def __init__(self, dataframe: DataFrame) -> None:
        self._dataframe = dataframe
        self._format: str | None = None
        self._mode = "append"
        self._options: dict[str, str] = {}
        self._partition_by: tuple[str, ...] = ()
        self._name: str | None = None
        self._trigger: dict[str, Any] | None = None
        self._batches: Callable[[Any, int], object] | None = None
        self._settings: dict[str, Any] = {}
        self._spark_checkpoint: str | None = None  # checkpoint of the query in Spark
        self._own_sources = False

    if not TYPE_CHECKING:  # type checkers refuse unknown names themselves

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            known = [known for known in dir(type(self)) if not known.startswith("_")]
            hint = did_you_mean(name, known)
            raise refused_setting(
                f"The writer of a stream has no {name!r}.", f"{hint}It has {listing(known)}."
            )

    @user_call
    def format(self, source: str) -> Self:
        """Set the format of the sink; by default ``spark.sql.sources.default``.

        Parameters
        ----------
        source
            ``"parquet"``, ``"json"``, ``"csv"``, ``"orc"``, ``"text"``, ``"delta"``, ``"iceberg"``,
            ``"kafka"``, ``"postgres"``, ``"memory"``, ``"console"`` or ``"noop"``.

        Raises
        ------
        UnsupportedQueryError
            If the format is not known.
        """
        if not isinstance(source, str) or source.lower() not in FORMATS:
            raise unknown_format(source)
        self._format = source.lower()
        self._batches = None
        return self

    @user_call
    def option(self, key: str, value: Any) -> Self:
        """Set an option of the sink, or ``checkpointLocation``.

        Parameters
        ----------
        key
            Name; case does not matter.
        value
            Value: text, a number or a boolean; ``None`` leaves the option out.
        """
        if value is None:
            self._options.pop(str(key).lower(), None)
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            self._options[str(key).lower()] = text
        return self

    @user_call
    def options(self, **options: Any) -> Self:
        """Set several options; see `option`."""
        for key, value in options.items():
            self.option(key, value)
        return self

    @user_call
    def outputMode(self, outputMode: str) -> Self:  # noqa: N802, N803  Spark's names
        """Set the output mode: ``"append"`` (the default), ``"update"`` or ``"complete"``."""
        self._mode = _checked_mode(outputMode)
        return self

    @user_call
    def partitionBy(self, *cols: Any) -> Self:  # noqa: N802  Spark's name
        """Set the columns to partition files by."""
        named = cols[0] if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols
        self._partition_by = tuple(map(str, named))
        return self

    @user_call
    def clusterBy(self, *cols: str) -> Self:  # noqa: N802  Spark's name
        """Refuse to cluster a table, which no sink supports."""
        raise refused_setting(
            f"Godwit's sinks cannot cluster a table by {listing(cols)}.",
            "Remove clusterBy(...), and cluster the table from Spark; or use partitionBy(...).",
        )

    @user_call
    def queryName(self, queryName: str) -> Self:  # noqa: N802, N803  Spark's names
        """Set the name of the query, under which a memory sink has its table."""
        if not isinstance(queryName, str) or not queryName.strip():
            raise refused_setting(
                f"The query name {queryName!r} is not a string.",
                "Give a name.",
                PySparkValueError,
                "VALUE_NOT_NON_EMPTY_STR",
            )
        self._name = queryName
        return self

    @user_call
    def trigger(
        self,
        *,
        processingTime: str | None = None,  # noqa: N803  Spark's names
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,  # noqa: N803
        realTime: str | None = None,  # noqa: N803
    ) -> Self:
        """Set when batches run: ``processingTime=``, ``availableNow=True`` or ``once=True``.

        Raises
        ------
        UnsupportedQueryError
            If not exactly one trigger is given, or one that is not of micro-batches.
        """
        given_arguments = {
            name: value
            for name, value in (
                ("processingTime", processingTime),
                ("once", once),
                ("continuous", continuous),
                ("availableNow", availableNow),
                ("realTime", realTime),
            )
            if value is not None
        }
        if len(given_arguments) != 1:
            raise refused_setting(
                f"{len(given_arguments)} triggers are given instead of one.",
                "Give one, as in once=True.",
                PySparkValueError,
                "ONLY_ALLOW_SINGLE_TRIGGER",
            )
        ((name, value),) = given_arguments.items()
        if name in {"continuous", "realTime"}:
            raise refused_setting(
                f"The trigger {name!r} is not supported: Godwit runs batches.",
                'Use trigger(processingTime="0 seconds"), which starts each batch right after '
                "the previous one.",
            )
        if name in {"once", "availableNow"} and value is not True:
            raise refused_setting(
                f"The trigger has {name}={value!r}.",
                f"Pass {name}=True.",
                PySparkValueError,
                "VALUE_NOT_ALLOWED",
            )
        if name == "processingTime":
            self._check_interval(value)
        self._trigger = {name: value}
        return self

    def _check_interval(self, interval: Any) -> None:
        """Raise as Spark does if it cannot read an interval."""
        try:
            self._dataframe.writeStream.trigger(processingTime=interval)
        except (IllegalArgumentException, PySparkValueError) as error:
            spark = IllegalArgumentException
            raise refused_setting(
                f"Spark cannot read {interval!r} as the interval of a trigger.",
                'Give an interval such as "500 milliseconds", "1 second" or "2 minutes".',
                spark if isinstance(error, spark) else PySparkValueError,
                error.getCondition(),
                error.getSqlState(),
            ) from None

    @user_call
    def foreachBatch(self, func: Callable[[DataFrame, int], object]) -> Self:  # noqa: N802
        """Call a function with the rows of every batch, a DataFrame, and the batch's number."""
        self._batches = func
        return self

    @user_call
    def foreach(self, f: Any) -> Self:
        """Call a function, or an object's ``process``, with every row, on the executors."""
        try:
            DataStreamWriter._construct_foreach_function(f)  # noqa: SLF001  Spark's own check
        except PySparkAttributeError as error:
            raise refused_setting(
                f"foreach got a value of type {type_name(f)}: {error}",
                "Give a function of a row, or an object with a method process(row), and open(...) "
                "and close(...) if it has them.",
                PySparkAttributeError,
                error.getCondition(),
            ) from None
        self._batches = RowByRow(f)
        return self

    @user_call
    def own_sources(self) -> Self:
        """Read by Godwit's own sources, without Spark's micro-batches.

        The lanes read the files, so an epoch starts without Spark's planning. The rows are those
        that Spark reads, and ``maxFilesPerTrigger`` bounds a batch as there; batches may begin at
        other files than Spark's where files have the same modification time. A query that cannot be
        read so exactly is refused at `start`, with the reason. A checkpoint of a query that Spark
        reads does not continue so, nor the reverse.

        Examples
        --------
        >>> gw.write_stream(counts).own_sources().format("noop").start()  # doctest: +SKIP
        """
        self._own_sources = True
        return self

    @user_call
    def control(self, control: Control) -> Self:
        """Set automatic balancing and scaling (`godwit.Control`)."""
        self._settings["control"] = control
        return self

    @user_call
    def settings(self, **settings: Any) -> Self:
        """Set Godwit's own settings of the query: parameters of `godwit.Flow.start`.

        Raises
        ------
        UnsupportedQueryError
            If a setting is not known.
        """
        for name in settings:
            if name not in _SETTINGS:
                raise refused_setting(
                    f"There is no setting {name!r}.",
                    f"{did_you_mean(name, _SETTINGS)}Settings are {listing(_SETTINGS)}.",
                )
        self._settings |= settings
        return self

    @user_call
    def start(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002  Spark's name
        outputMode: str | None = None,  # noqa: N803  Spark's name
        partitionBy: str | list[str] | None = None,  # noqa: N803  Spark's name
        queryName: str | None = None,  # noqa: N803  Spark's name
        **options: Any,
    ) -> SparkQuery:
        """Start the query.

        Parameters
        ----------
        path
            Directory or table to write to, as the option ``path``.
        format, outputMode, partitionBy, queryName, **options
            As the methods of these names.

        Returns
        -------
        SparkQuery
            The running query: a `Query` that answers as Spark's ``StreamingQuery``.

        Raises
        ------
        UnsupportedQueryError
            If a part of the query, or an option, cannot be adopted; nothing has begun then.
        """
        self._set_parameters(format, outputMode, partitionBy, queryName, options)
        if path is not None:
            self.option("path", path)
        return self._translate_and_start(None)

    @user_call
    def toTable(  # noqa: N802  Spark's name
        self,
        tableName: str,  # noqa: N803  Spark's name
        format: str | None = None,  # noqa: A002  Spark's name
        outputMode: str | None = None,  # noqa: N803  Spark's name
        partitionBy: str | list[str] | None = None,  # noqa: N803  Spark's name
        queryName: str | None = None,  # noqa: N803  Spark's name
        **options: Any,
    ) -> SparkQuery:
        """Start the query, and write to a table of Iceberg, or of files in Spark's own catalog.

        Parameters
        ----------
        tableName
            Catalog, namespace and name; without a catalog, Spark's current one.
        format, outputMode, partitionBy, queryName, **options
            As of `start`; the format is ``"iceberg"``, also if none is set and the catalog is
            Iceberg's, ``"postgres"``, or that of a table of files, which is created if it is
            missing.

        Returns
        -------
        SparkQuery
            The running query.

        Raises
        ------
        UnsupportedQueryError
            If the format has no tables by name here, or as for `start`.
        """
        self._set_parameters(format, outputMode, partitionBy, queryName, options)
        catalog, _ = table_of(self._dataframe.sparkSession, str(tableName))
        provider = self._dataframe.sparkSession.conf.get(f"spark.sql.catalog.{catalog}", None)
        if self._format is None and "iceberg" in str(provider):
            self._format = "iceberg"
        is_of_files = self._chosen_format in FILE_FORMATS and catalog == "spark_catalog"
        if self._format not in {"iceberg", "postgres"} and not is_of_files:
            raise refused_setting(
                f"toTable({tableName!r}) would write to a table of the format "
                f"{self._chosen_format!r} that Spark's catalog knows, to which only Spark can "
                "commit.",
                'Use format("iceberg"), start(path) with the path of a Delta table, or '
                "foreachBatch with rows.writeTo(...).append().",
            )
        return self._translate_and_start(str(tableName))

    def _set_parameters(
        self,
        source: str | None,
        mode: str | None,
        partition_by: str | list[str] | None,
        name: str | None,
        options: dict[str, Any],
    ) -> None:
        """Set the given parameters of `start`."""
        if mode is not None:
            self.outputMode(mode)
        if source is not None:
            self.format(source)
        if partition_by is not None:
            self.partitionBy(*([partition_by] if isinstance(partition_by, str) else partition_by))
        if name is not None:
            self.queryName(name)
        self.options(**options)

    @user_call
    def from_spark_checkpoint(self, path: str) -> Self:
        """Start with the state and the progress of the query from Spark.

        The query continues after the last batch that Spark has committed, with the next number of a
        batch. Spark's checkpoint is only read; the new one is that of ``checkpointLocation``. A
        start on a checkpoint that has begun so already continues from it, and does not read `path`.

        Parameters
        ----------
        path
            ``checkpointLocation`` of the same query, which Spark 4.0 or later has run, and which is
            stopped.

        Examples
        --------
        >>> writer = gw.write_stream(counts).outputMode("update")  # doctest: +SKIP
        >>> writer = writer.from_spark_checkpoint("checkpoints/old")  # doctest: +SKIP
        >>> writer.option("checkpointLocation", "checkpoints/new").start()  # doctest: +SKIP
        """
        self._spark_checkpoint = str(path)
        return self

    @property
    def _chosen_format(self) -> str:
        """The format, or Spark's default one."""
        if self._format is not None:
            return self._format
        default = self._dataframe.sparkSession.conf.get("spark.sql.sources.default", "parquet")
        return str(default).lower()

    def _translate_and_start(self, table: str | None) -> SparkQuery:
        """Translate the query and start it; `table`: name of the table that it writes to."""
        checkpoint, temporary = chosen_checkpoint(
            self._options.get("checkpointlocation"),
            self._dataframe.sparkSession,
            query_name=self._name,
            may_be_temporary=self._batches is not None or self._chosen_format in _BRIEF,
        )
        try:
            return self._start_on(checkpoint, table, temporary=temporary)
        except BaseException:
            if temporary:
                shutil.rmtree(checkpoint, ignore_errors=True)
            raise

    def _start_on(self, checkpoint: str, table: str | None, *, temporary: bool) -> SparkQuery:
        """Translate the query and start it on a checkpoint, which ends with it if `temporary`."""
        begins = self._spark_checkpoint is not None or began_in_spark(checkpoint)
        if begins and self._own_sources:
            raise refused_setting(
                "The query starts from the progress of Spark's sources, but own sources have a "
                "different kind of position.",
                "Omit own_sources().",
            )
        if table is not None and self._chosen_format in FILE_FORMATS:
            self._set_place_of(table)
        query = translate(
            self._dataframe,
            mode=self._mode,
            name="adopted",
            whole_windows=begins,
            own_sources=self._own_sources,
        )
        stream, sink = self._stream_and_sink(query, table, checkpoint)
        query.flow.sink("output", stream, sink)
        check_same_operators(checkpoint, query.flow)
        query.flow._query_type = partial(  # noqa: SLF001  a seam for adopted queries
            SparkQuery,
            named=self._name is not None,
            temporary=checkpoint if temporary else None,
            sink="foreachBatch" if self._batches is not None else self._chosen_format,
            metrics={
                state.operator: state.metrics
                for state in query.states
                if isinstance(state, FunctionState)
            },
        )
        try:
            started = query.flow.start(
                checkpoint=checkpoint,
                session=self._dataframe.sparkSession,
                trigger=checked_trigger(self._trigger),
                # Spark's queries may be without a name, and Godwit tells them apart by theirs.
                name=self._name or f"adopted-{zlib.crc32(checkpoint.encode()):08x}",
                initial=self._initial_state(query, checkpoint),
                **self._settings,
            )
        except CheckpointMismatchError as error:
            raise as_of_query(error) from None
        assert isinstance(started, SparkQuery), "own sources were requested"
        return started

    def _set_place_of(self, table: str) -> None:
        """Set the path, the format and the partitions of a table of files; create a new one."""
        place, self._format, self._partition_by = place_of_table(
            self._dataframe.sparkSession,
            table,
            self._dataframe.schema,
            file_format=self._format,
            partition_by=self._partition_by,
            path=self._options.get("path"),
        )
        self.option("path", place)

    def _initial_state(self, query: AdoptedQuery, checkpoint: str) -> Any:
        """Return the `InitialState` of the query; ``None`` if there is none."""
        if self._spark_checkpoint is None or has_epochs(checkpoint, self._spark_checkpoint):
            return None
        return initial_state_from(
            self._spark_checkpoint, self._dataframe, query, query.flow.compiled()
        )

    def _stream_and_sink(
        self, query: AdoptedQuery, table: str | None, checkpoint: str
    ) -> tuple[Stream, Sink]:
        """Return the stream that the sink gets, and the sink; `table`: its name, if it has one."""
        source = "foreachBatch" if self._batches is not None else self._chosen_format
        target = Target(
            format=source,
            mode=self._mode,
            options=self._options,
            partition_by=self._partition_by,
            query_name=self._name,
            table=table,
            rows=self._dataframe,
            begins=self._spark_checkpoint is None and not has_begun(checkpoint),
        )
        if self._batches is not None:
            target.check(())
            return delivered(query, self._batches, checkpoint)
        if source not in FORMATS:
            raise unknown_format(source)
        if source == "memory" and self._mode != "complete" and has_begun(checkpoint):
            raise refused_setting(
                f"A memory sink has only the rows of one run, but the checkpoint {checkpoint!r} "
                "is from an earlier run; Spark also refuses this.",
                "Give a new checkpointLocation, or omit it.",
            )
        return FORMATS[source](target, query)


def unknown_format(source: Any) -> GodwitError:
    """Return the error that a format is not supported."""
    way = f"Formats are {listing(FORMATS)}; or use foreachBatch."
    way = WAYS_OUT.get(str(source).lower(), way)
    return refused_setting(f"The format {source!r} is not supported.", way)


def _checked_mode(mode: Any) -> str:
    """Return an output mode; raise `UnsupportedQueryError` for another value."""
    message, remedy = f"The output mode {mode!r} is unknown.", f"Modes are {listing(_MODES)}."
    if not isinstance(mode, str) or not mode.strip():
        raise refused_setting(message, remedy, PySparkValueError, "VALUE_NOT_NON_EMPTY_STR")
    if mode.lower() not in _MODES:
        raise refused_setting(
            message, remedy, IllegalArgumentException, "STREAMING_OUTPUT_MODE.INVALID", "42KDE"
        )
    return mode.lower()


def check_streaming(dataframe: Any) -> None:
    """Raise if a value is not a streaming DataFrame of a classic session."""
    if not isinstance(getattr(dataframe, "isStreaming", None), bool):
        raise refused_setting(
            f"A value of type {type_name(dataframe)} is not a DataFrame.",
            "Give the streaming DataFrame itself.",
        )
    if not hasattr(dataframe, "_jdf"):
        raise refused_setting(
            "The DataFrame belongs to a Spark Connect session.",
            "Create it in a classic session (SparkSession.builder.master(...)).",
        )
    if not dataframe.isStreaming:
        raise refused_setting(
            "The DataFrame is not streaming.",
            "Read it with spark.readStream, not spark.read.",
            AnalysisException,
            "WRITE_STREAM_NOT_ALLOWED",
            "42601",
        )
