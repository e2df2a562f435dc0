"""Functions of others, run for as long as they take.

For virtual time: what is decided there depends on what was observed and on nothing else, least of
all on how busy the machine is that it is decided on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.adapt.ports import T

__all__ = ["run_untimed"]


def run_untimed(plan: Callable[[], T], *, time_limit_s: float) -> T:  # noqa: ARG001
    """Run it here and now; a `godwit.adapt.PlannerRunner` that gives nothing up."""
    try:
        return plan()
    except SystemExit as error:  # ends nothing but the planner
        raise RuntimeError(f"SystemExit: {error}") from error
