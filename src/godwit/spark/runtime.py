"""The runtime on Spark, which `Flow.start` and `Flow.explain` find registered."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from godwit.dataflow.maps import map_dataframe
from godwit.dataflow.naming import did_you_mean, listing
from godwit.model.errors import InvalidFlowError
from godwit.spark.feeds import arrow_schema, feeds_of, streaming_dataframe
from godwit.spark.options import Options
from godwit.spark.progress_log import quick_local_logs, wait_for_sources
from godwit.spark.query import Query
from godwit.spark.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from godwit.dataflow.compiled import CompiledFlow
    from godwit.dataflow.flow import Flow

__all__ = ["SparkRuntime"]

_ARROW_ROWS = "200000"


class SparkRuntime:
    """Compiles, explains and starts flows on classic Spark sessions."""

    def compile(self, flow: Flow) -> CompiledFlow:
        """Resolve the schemas of the sources and bind every operator to them."""

        def resolve(source: str, maps: tuple[Callable[[DataFrame], DataFrame], ...]) -> pa.Schema:
            return arrow_schema(map_dataframe(source, maps, flow.sources[source]))

        return flow.compile(resolve)

    def explain(self, flow: Flow) -> str:
        """Say how the flow would run."""
        return self.compile(flow).explain()

    def start(self, flow: Flow, **options: Any) -> Query:
        """Start the flow; see `godwit.spark.options.Options` for the options."""
        chosen = _options(options)
        compiled = self.compile(flow)
        spark = _session(flow)
        _check_name(spark, chosen.name or flow.name)
        rows = streaming_dataframe(feeds_of(compiled), flow.sources)
        query = Query(flow.name)
        run = Run(compiled, rows, chosen, spark, query.emit)

        def start(on_epoch: Callable[[DataFrame, int], None]) -> StreamingQuery:
            def in_session(batch: DataFrame, epoch: int) -> None:
                # Each streaming query has a session of its own, so this touches no other.
                batch.sparkSession.conf.set(
                    "spark.sql.execution.arrow.maxRecordsPerBatch", _ARROW_ROWS
                )
                on_epoch(batch, epoch)

            writer = rows.writeStream.foreachBatch(in_session).queryName(chosen.name or flow.name)
            if chosen.trigger is not None:
                given: dict[str, Any] = dict(chosen.trigger)
                writer = writer.trigger(**given)
            uri = f"{_spark_uri(chosen)}/spark"
            with quick_local_logs(spark, uri):
                started = writer.option("checkpointLocation", uri).start()
                wait_for_sources(started)
            return started

        return query.begin(run, start)


def _options(given: dict[str, Any]) -> Options:
    known = list(Options.__dataclass_fields__)
    for name in given:
        if name not in known:
            raise InvalidFlowError(
                f"start has no option {name!r}.",
                remedy=f"{did_you_mean(name, known)}Its options are {listing(known)}.",
            )
    if "checkpoint" not in given:
        given = {"checkpoint": "", **given}
    return Options(**{**given, "checkpoint": str(given["checkpoint"])})


def _session(flow: Flow) -> SparkSession:
    session = next(iter(flow.sources.values())).sparkSession
    if not hasattr(session, "_jsparkSession"):
        raise InvalidFlowError(
            f"Flow {flow.name!r} reads from a Spark Connect session.",
            remedy="Start it from a classic session (SparkSession.builder.master(...)): placing "
            "tasks on executors needs the SparkContext.",
        )
    assert isinstance(session, SparkSession)
    return session


def _check_name(spark: SparkSession, name: str) -> None:
    if any(query.name == name for query in spark.streams.active):
        raise InvalidFlowError(
            f"A streaming query named {name!r} is running in this session already.",
            remedy="Stop it first, or start this one under another name, as in "
            f"flow.start(name={name + '-2'!r}).",
        )


def _spark_uri(options: Options) -> str:
    # Spark takes a path without a scheme for one of its default file system, which may be HDFS.
    uri = options.checkpoint
    if "://" in uri:
        return uri.rstrip("/")
    return Path(uri).absolute().as_uri()
