"""Key groups: the fixed number of parts that a key space is split into by a stable hash.

A key group is the unit of state, of load statistics, of planning and of migration.  The papers
call it task (1), key group (2, 3), substream (4) and shard (5).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["DEFAULT_NUM_KEY_GROUPS", "MAX_NUM_KEY_GROUPS", "key_groups_of"]

DEFAULT_NUM_KEY_GROUPS = 256
MAX_NUM_KEY_GROUPS = 32_768


def key_groups_of(hashes: npt.NDArray[np.int64], num_key_groups: int) -> npt.NDArray[np.int32]:
    """Key group of each hash: ``pmod(hash, num_key_groups)``, as Spark computes it.

    Examples
    --------
    >>> key_groups_of(np.array([5, -1]), 4).tolist()
    [1, 3]
    """
    if num_key_groups & (num_key_groups - 1) == 0:
        return (hashes & (num_key_groups - 1)).astype(np.int32)
    return np.mod(hashes, num_key_groups).astype(np.int32)
