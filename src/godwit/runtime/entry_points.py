"""Parts of a run that are entry points: observers, and the controller with its policies.

The core shows nothing, and changes nothing by itself.  An observer shows a running query to people
or other programs: an entry point of the group ``godwit.observers``, a function of the flow and the
options of the start, imported only if the options ask for it.  The entry point ``default`` of the
group ``godwit.controllers`` is a class whose instances, made from the options of a start, are a
`ControllerOpener`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, cast, runtime_checkable

from godwit.model import plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from godwit.engine.flow_epochs import FlowEpochs
    from godwit.migration.coordinator import Coordinator
    from godwit.model.events import Event
    from godwit.ops.query_state import QueryState
    from godwit.plan.compiled import CompiledFlow
    from godwit.runtime.dispatcher import Recorder
    from godwit.runtime.ports import RunController, RunPolicies, ScalablePool
    from godwit.runtime.settings import Options


class Observer(Protocol):
    """Port to an open observer."""

    @property
    def url(self) -> str:
        """URL to open, with a token if it needs one; empty if there is none."""

    @property
    def recorder(self) -> Recorder | None:
        """Recorder of what the journal records; ``None`` if the observer reads the journal."""

    def close(self) -> None:
        """Close the port; idempotent."""


@runtime_checkable
class AnswersStates(Protocol):
    """An observer that also answers requests for the state of the query."""

    def answer_states(self, state_of: Callable[..., QueryState]) -> None:
        """Answer them from now on; `state_of`: the query's `Query.state`."""


def open_observers(flow: CompiledFlow, options: Options) -> Iterator[tuple[str, Observer]]:
    """Open the observers that the options ask for, one after the other: name and observer.

    Raises
    ------
    InvalidFlowError
        If the port of an observer cannot be opened, or a package that it needs is missing.
    PluginError
        If the observer is not installed.
    """
    settings = options.observability
    wanted = {
        "metrics": settings.metrics_port is not None,
        "page": settings.ui_port is not None,
        "opentelemetry": settings.opentelemetry,
        "openlineage": settings.openlineage,
    }
    for name, is_wanted in wanted.items():
        if is_wanted:
            yield name, plugins.load("observers", name)(flow, options)


_DEFAULT: Final = "default"


class ControllerOpener(Protocol):
    """Opens the controller and the policies that the options of a start ask for."""

    def check(self, flow: CompiledFlow) -> None:
        """Raise `InvalidFlowError` if a setting has nothing to decide in a flow."""

    def longest_epoch_s(self, trigger_s: float) -> float | None:
        """Return the time in seconds that an epoch over own sources should take at most.

        `trigger_s`: interval of the trigger. ``None``: no limit.
        """

    def needs_past(self, flow: CompiledFlow) -> bool:
        """Return whether controller or policies continue from events of earlier runs."""

    def place(
        self,
        flow: CompiledFlow,
        free: frozenset[str],
        *,
        lanes: int,
        measured: Callable[[], Sequence[Event]],
    ) -> list[dict[str, Any]]:
        """Choose the key columns that select operators' key groups, as options enable it.

        `free`: operators without state in the checkpoint. `lanes`: number of lanes at the start.
        `measured`: returns the events of earlier runs, oldest first, if the state of operators may
        be rewritten now. Returns fields of the events `PartitioningCompared` to announce.
        """

    def fused(self, flow: CompiledFlow, named: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return component → operators to fuse from the start; none of those that are `named`."""

    def open(
        self,
        epochs: FlowEpochs[Any],
        *,
        coordinator: Coordinator,
        pool: ScalablePool,
        state_bytes: Mapping[str, Mapping[int, int]],
        past: list[Event],
        former: RunController | None,
        note: Callable[[str, Callable[[], Mapping[str, Any]]], None],
        trigger_s: float,
        limits_epochs: bool,
    ) -> tuple[RunController | None, RunPolicies]:
        """Open the controller, if options ask for one, and the policies.

        `state_bytes`: component → key group → bytes of state when the run begins. `past`: events
        of earlier runs, oldest first. `former`: the run's controller before its parts were opened
        again. `note`: adds an entry to the journal. `trigger_s`: interval of the trigger.
        `limits_epochs`: whether epochs of an overloaded stream get fewer rows.
        """


def opener_of(options: Options) -> ControllerOpener | None:
    """Return what opens a query's controller and policies; ``None``: nothing changes by itself.

    Raises `PluginError` if options ask for one and it is not installed.
    """
    asked_for = options.control is not None or options.adaptation is not None
    if not asked_for and _DEFAULT not in plugins.names("controllers"):
        return None
    return cast("ControllerOpener", plugins.load("controllers", _DEFAULT)(options))
