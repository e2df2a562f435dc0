"""Texts of unpickled values as in Java, and the iteration order of its maps.

A map is a ``java.util.HashMap``, so its items come in the order of their hash codes.
"""

from __future__ import annotations

import struct
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from godwit.adopt.java_numbers import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_TABLE: Final = 1
"""Number of buckets of the ``HashMap`` into which the JVM unpickles a map."""
_LONGEST: Final = 8
"""Number of items of a bucket above which a table with less than `_TREES` buckets grows."""
_TREES: Final = 64
"""Number of buckets from which a long bucket is a tree in Java, whose order is not followed."""
_INTEGERS: Final = range(-(2**31), 2**31)


def java_text(value: Any, shortest: bool) -> str:
    """Return the text of a value as Java's ``toString`` writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return text_of(value, shortest=shortest)
    if isinstance(value, int | Decimal):
        return str(value)
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{', '.join(java_text(part, shortest) for part in value)}]"
    if isinstance(value, dict):
        items = (
            f"{java_text(key, shortest)}={java_text(item, shortest)}"
            for key, item in unpickled_items(value)
        )
        return f"{{{', '.join(items)}}}"
    raise TypeError(
        f"the function returned a {type(value).__name__} instead of a string, and Java's text of "
        "it differs: return str(...)"
    )


def unpickled_items(value: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the items of a map that a function returned, in their order in the JVM."""
    return hashed(list(value.items()), None, _TABLE)


def buckets_for(size: int) -> int:
    """Return the number of buckets of a ``HashMap`` that is created for a number of items."""
    return 1 << max(0, size - 1).bit_length()


def hashed(
    items: Sequence[tuple[Any, Any]], is_long: bool | None, buckets: int
) -> list[tuple[Any, Any]]:
    """Return the items of a map in the order of a ``HashMap``.

    `is_long`: keys that are integers have 64 bits; ``None``: those that need it. `buckets`: number
    of them while it is empty.
    """
    if len(items) < 2:
        return list(items)
    codes = [_hash_code(key, is_long) for key, _ in items]
    codes = [code ^ (code >> 16) for code in codes]
    sizes: Counter[int] = Counter()  # of the buckets
    for size, code in enumerate(codes, 1):
        bucket = code & (buckets - 1)
        sizes[bucket] += 1
        while size > 0.75 * buckets or (sizes[bucket] > _LONGEST and buckets < _TREES):
            buckets *= 2
            sizes = Counter(earlier & (buckets - 1) for earlier in codes[:size])
            bucket = code & (buckets - 1)
            if size <= 0.75 * buckets:
                break  # a long bucket makes the table grow once for each item
    bucket_of_item = [code & (buckets - 1) for code in codes]
    order = sorted(
        range(len(items)), key=bucket_of_item.__getitem__
    )  # items of a bucket stay in order
    return [items[number] for number in order]


def _hash_code(key: Any, is_long: bool | None) -> int:
    """Return Java's hash code of a key, as an unsigned integer of 32 bits."""
    if isinstance(key, str):
        code = 0
        units = key.encode("utf-16-le", "surrogatepass")
        for (unit,) in struct.iter_unpack("<H", units):
            code = (31 * code + unit) & 0xFFFFFFFF
        return code
    if isinstance(key, bool):
        return 1231 if key else 1237
    if isinstance(key, float):
        (key,) = struct.unpack("<q", struct.pack("<d", key))
        is_long = True
    if isinstance(key, int):
        if is_long or (is_long is None and key not in _INTEGERS):
            key ^= (key & 0xFFFFFFFFFFFFFFFF) >> 32
        return int(key & 0xFFFFFFFF)
    if key is None:
        return 0
    raise TypeError(
        f"the function returned a map with a key of type {type(key).__name__}, whose order in "
        "Spark's map is unknown: use strings or numbers as keys"
    )
