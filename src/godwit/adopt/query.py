"""The running adopted query: `Query` with the API of Spark's ``StreamingQuery``.

The lines of a program after ``start()`` stay as they are: progress has Spark's keys and attributes,
an unnamed query has no name, and a failure is caught as ``StreamingQueryException``.
"""

from __future__ import annotations

import shutil
import uuid
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress

from godwit.adopt.spark_errors import as_spark_error
from godwit.adopt.targets import refused_setting
from godwit.model.frames import user_call
from godwit.runtime.query import Query

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.model.errors import GodwitError


class SparkQuery(Query):
    """A running adopted query, as `StreamWriter.start` returns it.

    It has the names of ``pyspark.sql.streaming.StreamingQuery`` and those of `Query`. Differences
    from `Query`: `name` is ``None`` unless ``queryName`` set it, items of `recentProgress` are
    ``StreamingQueryProgress``, and errors are also ``StreamingQueryException``.
    """

    def __init__(
        self,
        *args: Any,
        named: bool,
        temporary: str | None,
        sink: str,
        metrics: Mapping[str, Mapping[str, int]],
        **kwargs: Any,
    ) -> None:
        self._settings_by_name = named
        self._temporary_directory = temporary  # directory that ends with the query
        self._sink = sink  # format
        self._metrics = metrics  # operator → figures of its own
        super().__init__(*args, **kwargs)

    @property
    def name(self) -> Any:
        """Name that ``queryName`` set; ``None`` if it was not called."""
        return self._name if self._settings_by_name else None

    @property
    def runId(self) -> str:  # noqa: N802  StreamingQuery's name
        """Identifier of this run, as ``spark.streams`` has it."""
        spark = getattr(self._driver, "spark_query", None)
        return str(
            uuid.uuid5(uuid.NAMESPACE_OID, self._run.run_id) if spark is None else spark.runId
        )

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802  StreamingQuery's name
        """Progress of the last batches, oldest first: ``StreamingQueryProgress`` of Spark.

        Each also has the figures of `Query.recentProgress`, by name. What Godwit does not count,
        such as ``numRowsTotal`` of a state operator, is -1. ``phasesMs`` has the durations of
        Godwit's phases, and ``durationMs`` those of Spark's names.
        """
        return self._as_spark_progress(super().recentProgress)

    @property
    def lastProgress(self) -> Any:  # noqa: N802  StreamingQuery's name
        """Progress of the last batch, as an item of `recentProgress`; ``None`` before it."""
        entries = super().recentProgress
        with_rows = [n for n, entry in enumerate(entries) if entry["batchId"] is not None]
        progress = self._as_spark_progress(entries[max(with_rows, default=0) :])
        return progress[-1] if progress else None

    @user_call
    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait until the query ends, or for `timeout` seconds; see `Query.awaitTermination`."""
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout < 0
        ):
            raise refused_setting(
                f"The timeout of awaitTermination is {timeout!r}.", "Give a number of seconds."
            )
        waited: Any = timeout
        return super().awaitTermination(waited)

    def explain(self, extended: bool = False) -> None:  # noqa: ARG002  Spark's
        """Print the plan of Godwit's flow; `extended` changes nothing."""
        super().explain()

    def _as_spark_progress(self, entries: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Return the progress of epochs with Spark's keys, besides Godwit's.

        Spark measures its part of a micro-batch, and what ``observe`` asks for there. A batch
        without rows has the sources of the one before it, at their ends.
        """
        spark = getattr(self._driver, "spark_query", None)  # else it reads its sources itself
        measured = {p.batchId: p for p in (() if spark is None else spark.recentProgress)}
        first = max(self._run.log.identity.batches_before - 1, 0)  # numbers of a query continue
        sources: list[dict[str, Any]] = []
        progress = []
        for entry in entries:
            idle = entry["batchId"] is None
            sources = (
                [{**source, **_figures_without_rows(source)} for source in sources]
                if idle
                else [{**_SOURCE, **source} for source in entry.get("sources", ())]
            )
            of_spark = None if idle else measured.get(entry["batchId"])
            progress.append(self._one_progress(entry, first + entry["epoch"], sources, of_spark))
        return progress

    def _one_progress(
        self, entry: Mapping[str, Any], batch: int, sources: list[dict[str, Any]], of_spark: Any
    ) -> StreamingQueryProgress:
        """Return the progress of an epoch, with the number of its batch.

        `sources`: figures of these. `of_spark`: Spark's progress of its micro-batch, if known.
        """
        durations = {} if of_spark is None else of_spark.durationMs
        observed = {} if of_spark is None else of_spark.observedMetrics
        watermark = entry["queryWatermark"] or (_NO_WATERMARK if entry["watermarks"] else None)
        epoch_ms = round(entry["durationMs"]["epoch"])
        filled = {
            **entry,
            "id": self.id,
            "runId": self.runId,
            "name": self.name,
            "batchId": batch,
            "batchDuration": epoch_ms,
            "durationMs": {
                "addBatch": epoch_ms,
                "triggerExecution": epoch_ms,
                **{n: round(ms) for n, ms in entry["durationMs"].items() if n in _DURATIONS},
                **{name: ms for name, ms in durations.items() if "." not in name},
            },
            "phasesMs": entry["durationMs"],
            "eventTime": {} if watermark is None else {"watermark": watermark},
            "stateOperators": [
                _state_operator(name, entry, self._metrics.get(name, {}))
                for name in entry["loads"]
                if name != "sources"
            ],
            "sources": sources,
            "sink": {"description": self._sink, "numOutputRows": entry["numOutputRows"]},
            "inputRowsPerSecond": sum(source["inputRowsPerSecond"] or 0.0 for source in sources),
            "observedMetrics": {name: row.asDict(recursive=True) for name, row in observed.items()},
        }
        progress = StreamingQueryProgress.fromJson(filled)
        for key in filled.keys() - progress.keys():
            progress[key] = filled[key]
        progress["observedMetrics"] = observed  # rows within rows, too
        return progress

    def _as_godwit_error(self, error: BaseException) -> GodwitError:
        """Return the error that ended the query, which is a ``StreamingQueryException`` too."""
        failure = super()._as_godwit_error(error)
        return as_spark_error(failure, StreamingQueryException, "STREAM_FAILED", "XXKST")

    def _close_run(self, problems: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Close the run, and remove a temporary checkpoint."""
        left = super()._close_run(problems)
        if self._temporary_directory is not None:
            shutil.rmtree(self._temporary_directory, ignore_errors=True)
        return left


_DURATIONS = frozenset(
    {
        *("addBatch", "commitOffsets", "getBatch", "latestOffset", "queryPlanning"),
        *("triggerExecution", "walCommit"),
    }
)
_SOURCE = {
    **dict.fromkeys(("description", "startOffset", "endOffset", "latestOffset")),
    **dict.fromkeys(("inputRowsPerSecond", "processedRowsPerSecond"), 0.0),
    "numInputRows": -1,
}
"""Progress of a source by Spark's keys, with the values of keys that own sources do not have."""
_NO_WATERMARK = "1970-01-01T00:00:00.000Z"  # as Spark has it before there is one


def _figures_without_rows(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changed metrics of a source for a batch without rows."""
    return {
        "startOffset": source["endOffset"],
        "numInputRows": 0,
        **dict.fromkeys(("inputRowsPerSecond", "processedRowsPerSecond"), 0.0),
    }


def _state_operator(
    component: str, entry: Mapping[str, Any], metrics: Mapping[str, int]
) -> dict[str, Any]:
    """Return the figures of a component with state, by Spark's names; -1: not counted.

    `metrics`: figures of its own.
    """
    load = entry["loads"][component]
    late = sum(counts.get("late", 0) for counts in entry["leftOutRows"].values())
    return {
        "operatorName": component,
        "numRowsTotal": -1,
        "numRowsUpdated": load["keys"],
        "numRowsRemoved": -1,
        "allUpdatesTimeMs": round(load["cpuMs"]),
        "allRemovalsTimeMs": -1,
        "commitTimeMs": -1,
        "memoryUsedBytes": entry["totalStateBytes"].get(component, -1),
        "numRowsDroppedByWatermark": late,
        "numShufflePartitions": load["keyGroups"],
        "numStateStoreInstances": load["keyGroups"],
        "customMetrics": dict(metrics),
    }
