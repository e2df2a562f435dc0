"""A query in OpenLineage: one run of a job, the datasets that it reads and writes, and its end.

A run begins with the start of a query, so a restart is another run of the same job.  Events are
sent when the query starts, when a start finds another flow in the checkpoint, and at the end.  The
client and its transport are those of ``openlineage-python``, which reads ``OPENLINEAGE_*`` of the
environment and ``openlineage.yml``.  It sends on a thread of its own here: a receiver that is away
delays neither epochs nor the end of the query by more than seconds.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Final

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

    import pyarrow as pa

    from godwit.plan.compiled import CompiledFlow

_logger = logging.getLogger("godwit")

_PRODUCER: Final = "https://github.com/godwit-streams/godwit"
_NAMESPACE: Final = "godwit"  # of jobs, and of datasets that no URI names
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

        engine = processing_engine_run.ProcessingEngineRunFacet(version=__version__, name="Godwit")
        self._run_facets = {"processing_engine": engine}
        kind = job_type_job.JobTypeJobFacet(
            processingType="STREAMING", integration="GODWIT", jobType="QUERY"
        )
        self._job = Job(namespace=_NAMESPACE, name=printable(name), facets={"jobType": kind})
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
        self._record(RunState.START, datetime.now(UTC).timestamp(), {})

    def add(self, kind: str, values: Mapping[str, Any]) -> None:
        """Record an entry of the journal, if it is an event that begins, changes or ends a run."""
        if kind != "event" or (state := _STATES.get(values["kind"])) is None:
            return
        facets: dict[str, Any] = {}
        if state is RunState.FAIL:
            error = printable(values["error"])
            facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
                message=error, programmingLanguage="python"
            )
        self._record(state, values["at_s"], facets)

    def flush(self) -> None:
        """No-op: events are sent at once."""

    def _record(self, state: RunState, at_s: float, facets: dict[str, Any]) -> None:
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
        self._thread = threading.Thread(target=self._send, name="godwit-lineage", daemon=True)
        self._thread.start()
        self.recorder = LineageRecorder(flow, name, self._put)
        self.recorder.start()

    def _put(self, event: RunEvent | None) -> None:
        """Queue an event; while a receiver takes none, later ones are dropped with a warning."""
        try:
            self._queue.put_nowait(event)
        except Full:
            _logger.warning("OpenLineage events are dropped: the receiver takes none.")

    def _send(self) -> None:
        """Send queued events until the end; the body of a thread."""
        while (event := self._queue.get()) is not None:
            try:
                self._client.emit(event)
            except Exception as error:  # noqa: BLE001  transports raise what their libraries do
                _logger.warning("An OpenLineage event could not be sent: %s", error)

    def close(self) -> None:
        """Send the rest, as far as the receiver takes it within seconds; idempotent."""
        self._put(None)
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
            yield *_named(uri), _schema_facet(source.schema)


def _outputs_of(flow: CompiledFlow) -> Iterable[tuple[str, str, dict[str, Any]]]:
    """Yield namespace, name and facets of the datasets that a flow writes."""
    for output in flow.outputs:
        uris = getattr(output.sink, "datasets", ()) or (
            f"{_NAMESPACE}://{flow.name}.{output.name}",
        )
        for uri in uris:
            yield *_named(uri), _schema_facet(output.schema)


def _named(uri: str) -> tuple[str, str]:
    """Return namespace and name of a dataset, as OpenLineage's naming derives them from a URI."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return "file", printable(uri)
    if scheme in {_NAMESPACE, "file"}:
        return scheme, printable(rest)
    authority, _, path = rest.partition("/")
    return f"{scheme}://{printable(authority)}", printable(path) or "/"


def _schema_facet(schema: pa.Schema) -> dict[str, Any]:
    """Return the facet of a dataset's columns."""
    fields = [
        schema_dataset.SchemaDatasetFacetFields(name=printable(field.name), type=str(field.type))
        for field in schema
    ]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)}
