"""As many executors as keep their lanes busy for a set share of the time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.control.durations import seconds
from godwit.control.scaling.model import Wanted, catching_up
from godwit.model.errors import InvalidControlError

if TYPE_CHECKING:
    from godwit.control.durations import Duration
    from godwit.control.scaling.model import Situation

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
        offered = situation.offered
        numbers = {}
        if situation.backlog_rows:
            numbers["backlog_rows"] = situation.backlog_rows
        situation = catching_up(situation, self.catch_up_s)

        def fewest(target: float) -> int:
            return max(1, math.ceil(situation.offered / (situation.lanes * target) - ROUNDING))

        busy = offered / (situation.lanes * max(situation.executors, 1))
        return Wanted(
            executors=fewest(self.target),
            comfortable=fewest(self.target * (1 - self.slack)),
            reason=f"lanes should be busy for {self.target:.0%} of the time",
            numbers={"utilisation": busy, "offered_lanes": offered, **numbers},
        )


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
        Time within which rows that sources hold back are to be worked off beside those that come.

    Raises
    ------
    InvalidControlError
        If a share is out of range, or `catch_up` is no time.
    """
    if not 0 < target <= 1:
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

    Raises
    ------
    InvalidControlError
        If it is no share below 1.
    """
    if not 0 <= slack < 1:
        raise InvalidControlError(
            f"A slack of {slack!r} is none.",
            remedy="Give a share that is at least 0 and below 1, such as 0.2.",
            slack=slack,
        )
