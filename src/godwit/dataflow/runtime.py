"""Where a flow meets what runs it, without knowing it.

A flow is a description; only a runtime can resolve the schema of a source, and start it.  Imports
go downward, so the runtime comes to the flow: whoever composes the program calls `register` once
with a function that makes the runtime.  The function is called at first use, so that importing
godwit does not import Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.dataflow.compiled import CompiledFlow
    from godwit.dataflow.flow import Flow

__all__ = ["Runtime", "register", "registered"]


class Runtime(Protocol):
    """What can carry out a flow."""

    def compile(self, flow: Flow) -> CompiledFlow:
        """Resolve the schemas of the sources and bind every operator to them."""

    def explain(self, flow: Flow) -> str:
        """Say how the flow would run."""

    def start(self, flow: Flow, **options: Any) -> Any:
        """Start the flow and return its query."""


_load: Callable[[], Runtime] | None = None
_runtime: Runtime | None = None


def register(load: Callable[[], Runtime] | None) -> None:
    """Name the runtime of this process; a later call replaces an earlier one.

    Parameters
    ----------
    load
        Makes the runtime; called once, at first use. ``None`` takes the runtime away.
    """
    global _load, _runtime
    _load, _runtime = load, None


def registered() -> Runtime:
    """Return the runtime of this process, made at the first call.

    Raises
    ------
    InvalidFlowError
        If none is registered.
    """
    global _runtime
    if _runtime is None:
        if _load is None:
            raise InvalidFlowError(
                "There is no runtime that could start or explain a flow.",
                remedy="Write `import godwit`, which registers the one on Spark, or give "
                "`Flow.compile` and `Flow.explain` a resolver of schemas.",
            )
        _runtime = _load()
    return _runtime
