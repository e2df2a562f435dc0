"""Observers of a running query: ports that show it to people and to other programs.

The core has none: each is an entry point of the group ``godwit.observers``, a function of the
flow and the options of the start, and is imported only if the options ask for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from godwit.model import plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from godwit.ops.query_state import QueryState
    from godwit.plan.compiled import CompiledFlow
    from godwit.runtime.dispatcher import Recorder
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
