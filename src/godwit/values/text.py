"""State of a key as text, for people, from its bytes alone."""

from __future__ import annotations

import collections
import json
from typing import Any

from godwit.values.values import TaggedValues

__all__ = ["state_as_json"]

_PLAIN = TaggedValues({}, plain=True)


def state_as_json(blob: bytes | memoryview) -> str:
    """Write a state as JSON: records and mappings as objects, all other containers as arrays.

    Examples
    --------
    >>> import msgspec
    >>> state_as_json(msgspec.msgpack.encode({"seen": [1, 2.5]}))
    '{"seen":[1,2.5]}'
    """
    ready = _ready(_PLAIN.decode(blob))
    return json.dumps(ready, ensure_ascii=False, separators=(",", ":"), default=_text)


def _ready(value: Any) -> Any:
    if isinstance(value, dict):
        return {_text(key): _ready(held) for key, held in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return list(map(_ready, value))
    return value


def _text(value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    return str(value)
