"""OpenLineage events of a query: a run of a job, its input and output datasets, and its end.

A run begins with the start of a query, so a restart is another run of the same job.  Events are
sent when the query starts, when a start finds another flow in the checkpoint, and at the end.  The
client and its transport are those of ``openlineage-python``, which reads ``OPENLINEAGE_*`` of the
environment and ``openlineage.yml``.  It sends on a thread of its own here: a receiver that is away
delays neither epochs nor the end of the query by more than seconds.
"""

from __future__ import annotations

import logging
import os
import threading
from datetime import UTC, datetime
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    error_message_run,
    job_type_job,
    processing_engine_run,
    schema_dataset,
)
from openlineage.client.uuid import generate_new_uuid

from godwit.model.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.plan.compiled import CompiledFlow

_logger = logging.getLogger("godwit")

_PRODUCER: Final = "https://github.com/godwit-streams/godwit"
_NAMESPACE: Final = "godwit"  # of jobs by default, and of datasets that no URI names
_JOBS: Final = "OPENLINEAGE_NAMESPACE"
"""Environment variable with the namespace of jobs, as of OpenLineage's other integrations."""
_PATHS: Final = ("hdfs", "viewfs", "webhdfs", "dbfs")
"""Schemes of file systems, whose names of data have a slash in front; all others have none."""
_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "wasbs"}
"""Other schemes of the same data."""
_CLOSING_S: Final = 5.0
_MAX_EVENTS: Final = 100  # that wait for the receiver
_STATES: Final = {
    "FlowChanged": RunState.RUNNING,
    "QueryStopped": RunState.COMPLETE,
    "QueryFailed": RunState.FAIL,
}


class LineageRecorder:
    """Records the life of a query as OpenLineage events.

    `emit` takes an event; `name` is the job's.
    """

    def __init__(self, flow: CompiledFlow, name: str, emit: Any) -> None:
        self._emit = emit
        from godwit import __version__  # noqa: PLC0415  the package is not whole before

        engine = processing_engine_run.ProcessingEngineRunFacet(
            version=__version__,
            name="Godwit",
            openlineageAdapterVersion=__version__,
            producer=_PRODUCER,
        )
        self._run_facets = {"processing_engine": engine}
        kind = job_type_job.JobTypeJobFacet(
            processingType="STREAMING", integration="GODWIT", jobType="QUERY", producer=_PRODUCER
        )
        namespace = printable(os.environ.get(_JOBS) or _NAMESPACE)
        self._job = Job(namespace=namespace, name=printable(name), facets={"jobType": kind})
        self._run_id = str(generate_new_uuid())  # sorted by time, as the specification advises
        self._inputs = [
            InputDataset(namespace=namespace, name=dataset, facets=facets)
            for namespace, dataset, facets in _inputs_of(flow)
        ]
        self._outputs = [
            OutputDataset(namespace=namespace, name=dataset, facets=facets)
            for namespace, dataset, facets in _outputs_of(flow)
        ]

    def start(self) -> None:
        """Record that the query is about to start."""
        self._emit_run_event(RunState.START, datetime.now(UTC).timestamp(), {})

    def add(self, kind: str, values: Mapping[str, Any]) -> None:
        """Record an entry of the journal, if it is an event that begins, changes or ends a run."""
        if kind != "event" or (state := _STATES.get(values["kind"])) is None:
            return
        facets: dict[str, Any] = {}
        if state is RunState.FAIL:
            error = printable(values["error"])
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                message=error, programmingLanguage="PYTHON", producer=_PRODUCER
            )
        self._emit_run_event(state, values["at_s"], facets)

    def flush(self) -> None:
        """No-op: events are sent at once."""

    def _emit_run_event(self, state: RunState, at_s: float, facets: dict[str, Any]) -> None:
        """Emit an event of the run."""
        self._emit(
            RunEvent(
                eventType=state,
                eventTime=datetime.fromtimestamp(at_s, UTC).isoformat(),
                run=Run(runId=self._run_id, facets={**self._run_facets, **facets}),
                job=self._job,
                inputs=self._inputs,
                outputs=self._outputs,
                producer=_PRODUCER,
            )
        )


class Lineage:
    """OpenLineage events of one query, sent in order by a thread of its own.

    Raises what the client raises for a configuration that it does not understand.
    """

    url = ""  # the transport's own

    def __init__(self, flow: CompiledFlow, name: str) -> None:
        self._client = OpenLineageClient()
        self._queue: Queue[RunEvent | None] = Queue(_MAX_EVENTS)
        self._thread = threading.Thread(
            target=self._send_until_end, name="godwit-lineage", daemon=True
        )
        self._thread.start()
        self.recorder = LineageRecorder(flow, name, self._queue_event)
        self.recorder.start()

    def _queue_event(self, event: RunEvent | None) -> None:
        """Queue an event; while a receiver takes none, later ones are dropped with a warning."""
        try:
            self._queue.put_nowait(event)
        except Full:
            _logger.warning("OpenLineage events are dropped: the receiver accepts none.")

    def _send_until_end(self) -> None:
        """Send queued events until the end; the body of a thread."""
        while (event := self._queue.get()) is not None:
            try:
                self._client.emit(event)
            except Exception as error:  # noqa: BLE001  transports raise what their libraries do
                _logger.warning("An OpenLineage event could not be sent: %s", error)

    def close(self) -> None:
        """Send the rest if the receiver accepts it within seconds; idempotent."""
        self._queue_event(None)
        self._thread.join(_CLOSING_S)
        if self._thread.is_alive():
            _logger.warning(
                "The last OpenLineage events could not be sent within %g s.", _CLOSING_S
            )


def _inputs_of(flow: CompiledFlow) -> Iterable[tuple[str, str, dict[str, Any]]]:
    """Yield namespace, name and facets of the datasets that a flow reads."""
    for name in flow.sources:
        source = flow.own_sources.get(name)
        if source is None:  # a DataFrame, of which Spark knows the rest
            columns = [edge.schema for edge in flow.inputs if getattr(edge, "source", "") == name]
            yield _NAMESPACE, f"{flow.name}.{name}", _schema_facet(columns[0]) if columns else {}
            continue
        for uri in source.datasets or (f"{_NAMESPACE}://{source.identity}",):
            yield *_openlineage_name(uri), _schema_facet(source.schema)


def _outputs_of(flow: CompiledFlow) -> Iterable[tuple[str, str, dict[str, Any]]]:
    """Yield namespace, name and facets of the datasets that a flow writes."""
    for output in flow.outputs:
        uris = getattr(output.sink, "datasets", ()) or (
            f"{_NAMESPACE}://{flow.name}.{output.name}",
        )
        for uri in uris:
            yield *_openlineage_name(uri), _schema_facet(output.schema)


def _openlineage_name(uri: str) -> tuple[str, str]:
    """Return namespace and name of a dataset, as OpenLineage's naming derives them from a URI."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return "file", _path_name(uri)
    if scheme == _NAMESPACE:
        return scheme, printable(rest)
    scheme = _SCHEMES.get(scheme, scheme)
    if scheme == "file":
        return scheme, _path_name(rest)
    authority, slash, path = rest.partition("/")
    name = _path_name(slash + path if scheme in _PATHS else path.lstrip("/"))
    return f"{scheme}://{printable(authority)}", name


def _path_name(path: str) -> str:
    """Return a path as a name: without a slash at its end."""
    return printable(path.rstrip("/")) or "/"


def _schema_facet(schema: pa.Schema) -> dict[str, Any]:
    """Return the facet of a dataset's columns."""
    return {
        "schema": schema_dataset.SchemaDatasetFacet(
            fields=_schema_fields(schema), producer=_PRODUCER
        )
    }


def _schema_fields(columns: Iterable[pa.Field]) -> list[schema_dataset.SchemaDatasetFacetFields]:
    """Return columns, or the fields of a struct, with the fields within them."""
    return [
        schema_dataset.SchemaDatasetFacetFields(
            name=printable(field.name),
            type=_type_name(field.type),
            ordinal_position=place,
            fields=_schema_fields(_inner_fields(field.type)),
        )
        for place, field in enumerate(columns, 1)
    ]


def _type_name(dtype: pa.DataType) -> str:
    """Return the name of a type; of nested ones without the types of their fields."""
    kinds = {"struct": pa.types.is_struct, "array": _is_list, "map": pa.types.is_map}
    return next((name for name, is_kind in kinds.items() if is_kind(dtype)), str(dtype))


def _inner_fields(dtype: pa.DataType) -> list[pa.Field]:
    """Return the fields within a type, by the names of OpenLineage's specification."""
    if pa.types.is_struct(dtype):
        return list(dtype)
    if pa.types.is_map(dtype):
        return [pa.field("key", dtype.key_type), pa.field("value", dtype.item_type)]
    return [pa.field("_element", dtype.value_type)] if _is_list(dtype) else []


def _is_list(dtype: pa.DataType) -> bool:
    """Return whether values of a type are lists."""
    types = pa.types
    return bool(
        types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype)
    )
