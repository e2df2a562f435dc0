"""As many executors as keep their lanes busy for a set share of the time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.adapt.durations import seconds
from godwit.adapt.scaling.model import Wanted, catching_up
from godwit.model.errors import InvalidControlError
from godwit.model.frames import user_call

if TYPE_CHECKING:
    from godwit.adapt.durations import Duration
    from godwit.adapt.scaling.model import Situation

__all__ = ["Utilisation", "utilisation"]

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """See `utilisation`."""

    target: float
    slack: float
    catch_up_s: float
    name: str = "utilisation"
    paced: bool = True

    def wanted(self, situation: Situation) -> Wanted:
        """See `ScalingModel.wanted`."""
        behind = catching_up(situation, self.catch_up_s)

        def fewest(offered: float, target: float) -> int:
            return max(1, math.ceil(offered / (situation.lanes * target) - ROUNDING))

        busy = situation.offered / (situation.lanes * max(situation.executors, 1))
        numbers = {"utilisation": busy, "offered_lanes": situation.offered}
        if situation.backlog_rows:
            numbers["backlog_rows"] = situation.backlog_rows
        return Wanted(
            executors=fewest(situation.offered, self.target),
            comfortable=fewest(behind.offered, self.target * (1 - self.slack)),
            reason=f"lanes should be busy for {self.target:.0%} of the time",
            numbers=numbers,
            aim=fewest(situation.offered, self.target * math.sqrt(1 - self.slack)),
        )


@user_call
def utilisation(
    target: float = 0.7, *, slack: float = 0.2, catch_up: Duration = 60.0
) -> Utilisation:
    """Scale so that lanes are busy for a share of their time, counting all rows that arrive.

    Parameters
    ----------
    target
        The share, above 0 and at most 1.
    slack
        Executors go only if the rest would stay under the target by this share of it.
    catch_up
        Executors go only if the rest would work off within this time what sources hold back,
        beside what comes. Nobody is asked for because of it: it will be worked off in the end.

    Raises
    ------
    InvalidControlError
        If a share is out of range, or `catch_up` is no time.
    """
    if not isinstance(target, int | float) or not 0 < target <= 1:
        raise InvalidControlError(
            f"A utilisation of {target!r} cannot be aimed at.",
            remedy="Give a share above 0 and at most 1, such as 0.7.",
            target=target,
        )
    check_slack(slack)
    return Utilisation(
        target=target, slack=slack, catch_up_s=seconds(catch_up, "The time to catch up")
    )


def check_slack(slack: float) -> None:
    """Refuse a slack that would let nothing or everything change.

    Raises `InvalidControlError` if it is no share below 1.
    """
    if not isinstance(slack, int | float) or not 0 <= slack < 1:
        raise InvalidControlError(
            f"A slack of {slack!r} is none.",
            remedy="Give a share that is at least 0 and below 1, such as 0.2.",
            slack=slack,
        )
