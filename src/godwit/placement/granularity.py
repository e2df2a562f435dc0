"""Numbers of key groups that are too small for the lanes, or for the load.

Key groups are the units of balancing.  With ``k`` of equal load a lane the busiest lane has at most
``1 + 1/k`` times the mean, so fewer than four leave a quarter idle; and a key group is processed by
one lane, so one that needs more than a lane's time delays every epoch, wherever it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIN_PER_LANE: Final = 4
GOOD_PER_LANE: Final = 16
MAX_LOAD: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFewKeyGroups:
    """Why a number of key groups is too small, and a better one."""

    reason: str
    suggested: int


def too_few_key_groups(
    num_key_groups: int, num_lanes: int, max_load: float = 0.0, *, limit: int = 32_768
) -> TooFewKeyGroups | None:
    """Return why a number of key groups is too small; ``None`` if it suffices.

    `max_load`: greatest load of a key group, as a share of a lane's time; of one that has several
    keys. `limit`: the greatest number possible.

    Examples
    --------
    >>> too_few_key_groups(16, 8).suggested
    128
    >>> too_few_key_groups(256, 8, 1.5).reason
    'one key group needs 1.5 times the time of a lane'
    >>> too_few_key_groups(256, 8) is None
    True
    """
    if num_key_groups >= limit:
        return None
    if num_key_groups < MIN_PER_LANE * num_lanes:
        needed, per_lane = GOOD_PER_LANE * num_lanes, num_key_groups / num_lanes
        reason = f"{num_lanes} lanes have {per_lane:.1f} key groups each, fewer than {MIN_PER_LANE}"
    elif max_load > MAX_LOAD:
        needed = int(num_key_groups * 4 * max_load)
        reason = f"one key group needs {max_load:.1f} times the time of a lane"
    else:
        return None
    suggested = 1 << max(needed - 1, 1).bit_length()
    return TooFewKeyGroups(reason=reason, suggested=min(suggested, limit))
