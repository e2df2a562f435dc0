"""Hash functions of the planners that place key groups by hash.

Problem: placements that depend on the key group and a seed only, the same on every machine.

Source: the splitmix64 finaliser (Steele, Lea and Flood, OOPSLA 2014) as mixing function; Carter and
Wegman's ``((a·x + b) mod p) mod n`` as 2-universal family.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from godwit.planning.arrays import IntArray

__all__ = ["hash_choice", "universal_hash"]

_PRIME = (1 << 61) - 1


def hash_choice(num_key_groups: int, choices: int, seed: int) -> IntArray:
    """Shape ``(m,)``: a choice in ``[0, choices)`` for every key group, as if at random.

    Examples
    --------
    >>> np.array_equal(hash_choice(100, 7, 1), hash_choice(100, 7, 1))
    True
    """
    x: npt.NDArray[np.uint64] = np.arange(num_key_groups, dtype=np.uint64)
    with np.errstate(over="ignore"):
        x = x + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return (x % np.uint64(choices)).astype(np.int32)


def universal_hash(num_key_groups: int, choices: int, rng: np.random.Generator) -> IntArray:
    """Shape ``(m,)``: ``((a·k + b) mod p) mod choices`` with a ≥ 1 and b drawn from `rng`.

    For any two key groups the chance of the same choice is at most 1/choices.
    """
    a = int(rng.integers(1, _PRIME))
    b = int(rng.integers(0, _PRIME))
    return np.array([((a * k + b) % _PRIME) % choices for k in range(num_key_groups)], np.int32)
