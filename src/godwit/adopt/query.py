"""The running adopted query: `Query`, with the answers that Spark's ``StreamingQuery`` gives.

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
    from collections.abc import Mapping

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
        self._named = named
        self._temporary = temporary  # directory that ends with the query
        self._sink = sink  # format
        self._metrics = metrics  # operator → figures of its own
        super().__init__(*args, **kwargs)

    @property
    def name(self) -> Any:
        """Name that ``queryName`` set; ``None`` without."""
        return self._name if self._named else None

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
        durations = self._spark_durations()
        return [self._as_spark_progress(entry, durations) for entry in super().recentProgress]

    @property
    def lastProgress(self) -> Any:  # noqa: N802  StreamingQuery's name
        """Progress of the last batch, as an item of `recentProgress`; ``None`` before it."""
        latest = super().lastProgress
        return None if latest is None else self._as_spark_progress(latest, self._spark_durations())

    def _spark_durations(self) -> Mapping[int, Mapping[str, int]]:
        """Return the durations that Spark measured, by batch: of the last ones, without Godwit's.

        Empty for a query that reads its sources itself.
        """
        spark = getattr(self._driver, "spark_query", None)
        return {
            progress.batchId: {
                name: ms for name, ms in progress.durationMs.items() if "." not in name
            }
            for progress in (() if spark is None else spark.recentProgress)
        }

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

    def _as_spark_progress(
        self, entry: Mapping[str, Any], durations: Mapping[int, Mapping[str, int]]
    ) -> StreamingQueryProgress:
        """Return the progress of an epoch with the Spark keys, and its own beside them.

        `durations`: batch → what Spark measured of it.
        """
        watermarks = [mark for mark in entry["watermarks"].values() if mark is not None]
        sources = [{**_SOURCE, **source} for source in entry.get("sources", ())]
        seconds = entry["durationMs"]["epoch"] / 1e3
        batch = entry["batchId"]
        filled = {
            **entry,
            "id": self.id,
            "runId": self.runId,
            "name": self.name,
            "batchId": self._run.batches - 1 if batch is None else batch,
            "batchDuration": round(seconds * 1e3),
            "durationMs": {
                "addBatch": round(seconds * 1e3),
                "triggerExecution": round(seconds * 1e3),
                **{n: round(ms) for n, ms in entry["durationMs"].items() if n in _DURATIONS},
                **durations.get(batch, {}),
            },
            "phasesMs": entry["durationMs"],
            "eventTime": {"watermark": min(watermarks)} if watermarks else {},
            "stateOperators": [
                _state_operator(name, entry, self._metrics.get(name, {}))
                for name in entry["loads"]
                if name != "sources"
            ],
            "sources": sources,
            "sink": {"description": self._sink, "numOutputRows": entry["numOutputRows"]},
            "inputRowsPerSecond": sum(source["inputRowsPerSecond"] or 0.0 for source in sources),
            "observedMetrics": {},
        }
        progress = StreamingQueryProgress.fromJson(filled)
        for key in filled.keys() - progress.keys():
            progress[key] = filled[key]
        return progress

    def _as_godwit_error(self, error: BaseException) -> GodwitError:
        """Return the error that ended the query, which is a ``StreamingQueryException`` too."""
        failure = super()._as_godwit_error(error)
        return as_spark_error(failure, StreamingQueryException, "STREAM_FAILED")

    def _close_run(self, problems: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Close the run, and remove a checkpoint that is temporary."""
        left = super()._close_run(problems)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
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
