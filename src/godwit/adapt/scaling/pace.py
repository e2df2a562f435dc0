"""At what pace a scaling model is followed.

Problem: models answer anew every period, from measurements that are noisy and that the last answer
has not yet changed: executors take their time to come, and key groups to move.

The rules: (1) nothing is decided while executors that were asked for are on their way and would be
enough; (2) out at once, in only after several periods have wanted it; (3) between wanting more and
wanting fewer lies a range in which nothing changes (the model's `Wanted.comfortable`), and who
needs more gets well into it (`Wanted.aim`); (4) no decision is taken back within the cool-down, and
one in the same direction waits for the last one to show: one period after everybody has come; (5)
what a cluster refuses is asked for again only after the cool-down.

Invariant: a step in the rate needs at most two decisions, the second for what a period that saw
only part of it could not tell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from godwit.adapt.ports import PoolView
    from godwit.adapt.scaling.model import Situation, Wanted

__all__ = ["Pace", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is to be done."""

    # ``"out"``, ``"in"``, ``"refused"``: it is wanted and cannot be, or ``"stay"``
    kind: Literal["out", "in", "refused", "stay"]
    executors: int  # how many there are to be
    reason: str = ""  # why it cannot be, or has to wait; the model's own reason otherwise


class Pace:
    """Remembers what was decided when.

    cool_down_s: How long a decision is not taken back.
    patience: Periods in a row that must want fewer executors.
    """

    def __init__(self, *, cool_down_s: float, patience: int = 2) -> None:
        self._cool_down_s, self._patience = cool_down_s, patience
        self._wanted_fewer = 0
        self._last: tuple[Literal["out", "in"], float] | None = None
        self._arrived = True

    def decided(self, kind: Literal["out", "in"], at_s: float) -> None:
        """Take note of a decision, of this run or of one before."""
        self._last, self._wanted_fewer = (kind, at_s), 0
        self._arrived = False

    def step(self, wanted: Wanted, situation: Situation, pool: PoolView, *, paced: bool) -> Step:
        """Say what is to be done about a model's answer; to be asked once a period."""
        have = situation.executors
        coming = have + pool.pending
        arrived, self._arrived = self._arrived, pool.pending == 0
        most = situation.most if pool.most is None else min(situation.most, pool.most)
        bounded = min(max(wanted.executors, situation.least), most)
        roomy = max(bounded, min(max(wanted.comfortable, situation.least), most))
        self._wanted_fewer = self._wanted_fewer + 1 if have > roomy else 0
        if bounded > coming:
            # Into the range: at its edge noise would soon ask for one more.
            aim = (bounded + roomy) // 2 if wanted.aim is None else wanted.aim
            within = min(max(aim, bounded), roomy)
            return self._more(within, situation, pool, paced=paced, arrived=arrived)
        if have > roomy and not pool.pending:
            return self._fewer(roomy, situation, paced=paced)
        if max(wanted.executors, situation.least) > most <= coming:
            limit = "limit" if most == situation.most else "cluster's limit"
            return Step(kind="refused", executors=coming, reason=f"{most} is the {limit}")
        if wanted.unattainable:
            return Step(kind="refused", executors=coming, reason=wanted.unattainable)
        return Step(kind="stay", executors=have)

    def _since_s(self, now_s: float) -> float:
        return float("inf") if self._last is None else now_s - self._last[1]

    def _more(
        self, bounded: int, situation: Situation, pool: PoolView, *, paced: bool, arrived: bool
    ) -> Step:
        since_s = self._since_s(situation.now_s)
        cooling = since_s < self._cool_down_s
        if pool.refused and cooling:
            return Step(kind="refused", executors=situation.executors, reason=pool.refused)
        if paced and cooling and self._last is not None:
            if self._last[0] == "in":
                return Step(kind="stay", executors=situation.executors, reason="cooling down")
            if not arrived or pool.pending:
                reason = "the last ones have only just been asked for"
                return Step(kind="stay", executors=situation.executors, reason=reason)
        return Step(kind="out", executors=bounded)

    def _fewer(self, roomy: int, situation: Situation, *, paced: bool) -> Step:
        stay = Step(kind="stay", executors=situation.executors, reason="cooling down")
        if paced and self._since_s(situation.now_s) < self._cool_down_s:
            return stay
        if paced and self._wanted_fewer < self._patience:
            return Step(kind="stay", executors=situation.executors, reason="it may pass")
        return Step(kind="in", executors=roomy)
