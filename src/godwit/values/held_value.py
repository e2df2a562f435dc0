"""What holds a value, and is taken for it: ``state += 1``, ``if state:``, ``state == 0``.

Python would answer some of these without a word, and wrongly: every object is true, and equal to
nothing else.
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["HoldsValue"]


class HoldsValue:
    """Refuses to be used as its ``value``, and says how to reach that."""

    __slots__ = ()

    value: Any

    def _refuse(self, *_: object) -> NoReturn:
        msg = (
            f"this is a {type(self).__name__}, which holds a value and is none: use its .value, as "
            "in state.value += 1"
        )
        raise TypeError(msg)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        msg = (
            f"a {type(self).__name__} has no {name!r}: it holds a value, so use its .value, as in "
            f"state.value.{name}"
        )
        raise AttributeError(msg)

    __hash__ = object.__hash__
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __bool__ = __len__ = __iter__ = __contains__ = _refuse
    __getitem__ = __setitem__ = __delitem__ = _refuse
    __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = _refuse
    __mul__ = __rmul__ = __imul__ = __truediv__ = __rtruediv__ = __itruediv__ = _refuse
    __or__ = __ror__ = __ior__ = __and__ = __iand__ = __int__ = __float__ = __index__ = _refuse
