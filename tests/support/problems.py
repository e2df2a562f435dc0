"""Problems of planners that place key groups anywhere, of a few numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.placement.problem import Problem

if TYPE_CHECKING:
    import numpy.typing as npt


def placed(
    load: npt.ArrayLike, current: npt.ArrayLike, executors: int = 2, **fields: Any
) -> Problem:
    """Key groups on executors ``e0``, ``e1``, ...; each has a byte of state unless told otherwise.

    `fields`: others of `Problem`, and ``state_bytes``.
    """
    places = np.asarray(current, np.int32)
    return Problem(
        executors=tuple(f"e{i}" for i in range(executors)),
        load=np.asarray(load, np.float64),
        state_bytes=fields.pop("state_bytes", np.ones(len(places))),
        current=places,
        **fields,
    )
