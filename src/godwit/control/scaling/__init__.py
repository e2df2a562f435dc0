"""How many executors there should be: models that say it, and the pace at which it is followed.

A model (`ScalingModel`) is a pure function of the situation, as the plan would leave it; it may say
anything at any time.  The pace (`Pace`) sees to it that the stream does not pay for its moods:
limits, hysteresis, cool-down, patience.
"""

from godwit.control.scaling.custom import custom
from godwit.control.scaling.fixed import fixed, scripted
from godwit.control.scaling.latency import latency
from godwit.control.scaling.model import ScalingModel, Situation, Station, Wanted
from godwit.control.scaling.pace import Pace, Step
from godwit.control.scaling.utilisation import utilisation

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
