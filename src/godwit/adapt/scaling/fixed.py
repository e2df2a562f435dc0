"""A set number of executors, always or by the time that has passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.adapt.durations import seconds
from godwit.adapt.scaling.model import Wanted, checked_count
from godwit.model.errors import InvalidControlError
from godwit.model.frames import user_call

if TYPE_CHECKING:
    from godwit.adapt.durations import Duration
    from godwit.adapt.scaling.model import Situation

__all__ = ["Fixed", "Scripted", "fixed", "scripted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """See `fixed`."""

    executors: int
    name: str = "fixed"
    paced: bool = False

    def wanted(self, situation: Situation) -> Wanted:  # noqa: ARG002
        """See `ScalingModel.wanted`."""
        count = self.executors
        return Wanted(executors=count, comfortable=count, reason=f"{count} were asked for")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """See `scripted`."""

    steps: tuple[tuple[float, int], ...]
    name: str = "scripted"
    paced: bool = False

    def wanted(self, situation: Situation) -> Wanted:
        """See `ScalingModel.wanted`."""
        passed_s = situation.now_s - situation.started_s
        count = situation.executors
        for since_s, executors in self.steps:
            if since_s <= passed_s:
                count = executors
        return Wanted(
            executors=count,
            comfortable=count,
            reason=f"the script says {count}",
            numbers={"passed_s": passed_s},
        )


@user_call
def fixed(executors: int) -> Fixed:
    """Keep a set number of executors: what dies is replaced.

    Raises
    ------
    InvalidControlError
        If it is no number, or less than 1.
    """
    return Fixed(executors=checked_count(executors))


@user_call
def scripted(steps: Mapping[Duration, int]) -> Scripted:
    """Set the number of executors by the time since the start of the run.

    Parameters
    ----------
    steps
        Time since the start → number of executors from then on, as in ``{0: 2, "1 minute": 4}``.

    Raises
    ------
    InvalidControlError
        If there is no step, or one is no time or no number.
    """
    if not isinstance(steps, Mapping) or not steps:
        raise InvalidControlError(
            f"The script for the number of executors is {steps!r}.",
            remedy='Give steps, as in gw.scripted({0: 2, "1 minute": 4}).',
        )
    read = {
        seconds(since, "A step of the script", least_s=0.0): checked_count(count)
        for since, count in steps.items()
    }
    return Scripted(steps=tuple(sorted(read.items())))
