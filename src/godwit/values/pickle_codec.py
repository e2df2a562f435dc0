"""Pickle, for state that nothing else holds."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Final

from godwit.values.checks import is_same
from godwit.values.failures import UnencodableError, each

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PickleCodec"]


class PickleCodec:
    """Pickle; reading it runs code, so only checkpoints that are trusted may be opened."""

    name: Final = "pickle"

    def __init__(self, state_type: Any) -> None:
        self._type = state_type

    def encode(self, states: Sequence[Any]) -> list[bytes]:
        """Write every state, and make sure that it comes back equal."""
        blobs = each(_pickled, states)
        read = each(pickle.loads, blobs)
        for index, (state, back) in enumerate(zip(states, read, strict=True)):
            if not _came_back(state, back):
                raise UnencodableError(
                    index, f"it comes back as something else, {back!r:.100}, from a pickle"
                )
        return blobs

    def decode(self, blobs: Sequence[memoryview]) -> list[Any]:
        """Read every state."""
        return each(pickle.loads, blobs)

    def describe(self) -> dict[str, Any]:
        """Return the class: a pickle names the class it is of."""
        name = getattr(self._type, "__qualname__", repr(self._type))
        return {"class": f"{getattr(self._type, '__module__', '')}.{name}"}


def _pickled(state: Any) -> bytes:
    return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)


def _came_back(state: Any, back: Any) -> bool:
    try:
        return _says_equal(state, back) or is_same(state, back)
    except RecursionError:  # it holds itself
        return _pickled(state) == _pickled(back)


def _says_equal(state: Any, back: Any) -> bool:
    try:
        return bool(state == back)
    except RecursionError:
        raise
    except Exception:  # noqa: BLE001 - arrays have no single answer, other classes none at all
        return False
