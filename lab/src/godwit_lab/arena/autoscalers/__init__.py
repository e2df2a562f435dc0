"""Autoscalers of the arena: Godwit's, and five of the literature, each in a file of its own.

A *rule* is a callable of the statistics of a period (`ScalingSituation`) that returns a number of
executors.  The five are followed at once (`paced` is false): each has the waiting times of its
paper, and Godwit's own pace would add to them.  Times that a paper states in its own decision
intervals are statistics periods here (`PERIOD_S`), so that all of them decide equally often.

What every rule lacks here: parallelism of single operators.  An executor runs key groups of all
operators, as a worker of Timely and a slot of Flink with slot sharing do, so demands of operators
are added up and rounded once.

The loop that carries decisions out refuses to give an executor back where those that stay would be
busy for more than 90 % of the time; this protects all rules alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.control.scaling import Custom, latency
from godwit_lab.arena.autoscalers.conttune import ContTune
from godwit_lab.arena.autoscalers.dhalion import Dhalion
from godwit_lab.arena.autoscalers.ds2 import DS2
from godwit_lab.arena.autoscalers.flink import Flink
from godwit_lab.arena.autoscalers.hpa import HPA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.control.scaling import ScalingModel
    from godwit.control.situation import ScalingSituation

PERIOD_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaler:
    """One autoscaler of the arena."""

    name: str
    source: str  # where it is described
    make: Callable[[float], ScalingModel]  # for a latency target in seconds; a rule per match


def _followed_at_once(
    name: str, source: str, make: Callable[[], Callable[[ScalingSituation], int]]
) -> Autoscaler:
    """Return an autoscaler whose rule waits by itself, and which knows no latency target."""
    return Autoscaler(
        name=name,
        source=source,
        make=lambda _target_s: Custom(function=make(), name=name, paced=False),
    )


AUTOSCALERS: Mapping[str, Autoscaler] = {
    autoscaler.name: autoscaler
    for autoscaler in (
        Autoscaler(
            name="godwit",
            source="gw.control.latency, as it is by default",
            make=lambda target_s: latency(f"{target_s} seconds"),
        ),
        _followed_at_once("ds2", "Kalavri et al., OSDI 2018", DS2),
        _followed_at_once("dhalion", "Floratou et al., VLDB 2017", Dhalion),
        _followed_at_once("hpa", "Varga, Balassi and Kiss 2021, on Kubernetes' HPA", HPA),
        _followed_at_once("flink", "autoscaler of Flink's Kubernetes operator", Flink),
        _followed_at_once("conttune", "Lian et al., VLDB 2023", ContTune),
    )
}
