"""An epoch's cost: a few parameters, fitted to real runs.

A fixed time, the source side, which all cores share, then for every level its slowest lane::

    epoch = fixed + (source_row / cores + serial_row) · rows
            + Σ over levels of max over lanes of lane

    lane  = row · rows + key · keys + key_group · key groups touched + bytes brought forward / read
            + load_key_group · key groups loaded
            + row_between_executors · rows that came from another executor

A lane on an executor of speed s takes 1/s of that; a user's function adds its own time per row and
key.  Waiting for a lost task, garbage collection, the JVM's first epochs and the noise of a shared
machine are not in it.  ``calibration.json``, written by ``godwit_lab.experiments.calibration`` from
real epochs, has the defaults, says from which, and how far the model is from others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from godwit.model.errors import InvalidProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Costs of an epoch's steps in milliseconds on a core of speed 1.

    Raises `InvalidProblemError` if a cost is negative, or the speed of reading is not positive.
    """

    fixed_ms: float  # an epoch, whatever is in it
    source_row_ms: float  # a row on the source side; the cores share them
    row_ms: float  # a row in the lane
    key_ms: float  # a distinct key in the lane
    key_group_ms: float  # a key group touched in the lane
    # a row that came from an operator on another executor, in the lane that gets it
    between_executors_row_ms: float = 0.0
    # a source row in a part of the epoch that takes rows one after another, such as a serial sink
    serial_row_ms: float = 0.0
    read_bytes_per_ms: float = 200_000.0  # how fast a lane brings state forward
    # a key group whose state a lane loads, besides the reading
    load_key_group_ms: float = 0.3
    warm_fixed_ms: float = 100.0  # an order to warm copies, besides the transfer

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value > 0 if field.name == "read_bytes_per_ms" else value >= 0):
                raise InvalidProblemError(
                    f"The cost model's {field.name} is {value}.",
                    remedy="Give a number that is not negative; for a speed, a positive one.",
                    field=field.name,
                    value=value,
                )

    @classmethod
    def calibrated(cls) -> CostModel:
        """Return the cost model that was fitted to real runs."""
        return cls(**calibration()["parameters"])


@cache
def calibration() -> Mapping[str, Any]:
    """Return ``calibration.json``: the fitted cost model, its origin and its errors.

    ``parameters`` has the fields of `CostModel`, and ``runs`` each measured run.
    """
    text = files("godwit_lab.simulator").joinpath("calibration.json").read_text("utf-8")
    values: Mapping[str, Any] = json.loads(text)
    return values
