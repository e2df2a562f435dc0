"""What is to be done though no row arrives: now, or once what stands in the way is over.

The problem: epochs are held while a migration stops the world or no executor is there, and an
operator closes nothing while key groups of it are suspended.  Nothing is due then, and yet a query
whose input has ended has not done its work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from godwit.engine.event_time import EventTimes
    from godwit.migration.views import ProtocolView

__all__ = ["is_due", "is_pending"]


def is_due(view: ProtocolView, times: EventTimes, *, clock_us: int, silence_us: int) -> bool:
    """Whether an epoch has something to do now even if it has no input."""
    return view.due or (
        not view.holds
        and times.is_due(clock_us=clock_us, silence_us=silence_us, components=view.components)
    )


def is_pending(view: ProtocolView, times: EventTimes, *, clock_us: int, silence_us: int) -> bool:
    """Whether it has, or will have once epochs are not held and no key group is suspended."""
    return (
        view.waiting
        or view.due
        or times.is_due(clock_us=clock_us, silence_us=silence_us, components={})
    )
