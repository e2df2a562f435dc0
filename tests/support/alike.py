"""Values of two runs that are equal but for the last bits of floats."""

from __future__ import annotations

import math
import re
from typing import Any

_FLOAT = re.compile(r"-?\d+\.\d+(?:E-?\d+)?")


def alike(ours: Any, theirs: Any) -> bool:
    """Return whether two values are equal; floats may differ in the last bits of a sum."""
    if isinstance(ours, tuple | list) and isinstance(theirs, tuple | list):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        if math.isnan(ours) or math.isnan(theirs):
            return math.isnan(ours) and math.isnan(theirs)
        return math.isclose(ours, theirs, rel_tol=1e-12, abs_tol=1e-12)
    if isinstance(ours, str) and isinstance(theirs, str):
        return ours == theirs or _differ_in_sums(ours, theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


def _differ_in_sums(ours: str, theirs: str) -> bool:
    """Return whether two texts differ in the last bits of floats, not in how these are written."""
    if _FLOAT.sub("", ours) != _FLOAT.sub("", theirs):
        return False
    pairs = list(zip(_FLOAT.findall(ours), _FLOAT.findall(theirs), strict=False))
    same = [(float(own), float(other)) for own, other in pairs if own != other]
    return bool(same) and all(a != b and math.isclose(a, b, rel_tol=1e-12) for a, b in same)
