"""How many executors there should be: models that say it, and the pace at which it is followed.

A model (`ScalingModel`) is a pure function of the situation, as the plan would leave it; it may say
anything at any time.  The pace (`Pace`) sees to it that the stream does not pay for its moods:
limits, hysteresis, cool-down, patience.
"""

from godwit.adapt.scaling.custom import custom
from godwit.adapt.scaling.fixed import fixed, scripted
from godwit.adapt.scaling.latency import latency
from godwit.adapt.scaling.model import ScalingModel, Situation, Station, Wanted
from godwit.adapt.scaling.pace import Pace, Step
from godwit.adapt.scaling.utilisation import utilisation

__all__ = [
    "Pace",
    "ScalingModel",
    "Situation",
    "Station",
    "Step",
    "Wanted",
    "custom",
    "fixed",
    "latency",
    "scripted",
    "utilisation",
]
