"""Expressions drawn at random, and rows with the edges of every type to compute them on."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import random

_COLUMNS: dict[str, tuple[pa.DataType, list[object]]] = {
    "b": (pa.int8(), [1, 127, -128, None, 0, -3]),
    "h": (pa.int16(), [2, 32767, -32768, 5, None, 0]),
    "i": (pa.int32(), [3, 2**31 - 1, -(2**31), 0, 7, None]),
    "l": (pa.int64(), [4, 2**63 - 1, -(2**63), None, 2**53 + 1, 0]),
    "f": (pa.float32(), [0.5, -0.0, math.nan, 16777217.0, None, 1e38]),
    "x": (pa.float64(), [0.1, math.inf, -math.inf, math.nan, 0.0, None]),
    "d": (pa.decimal128(12, 2), ["1.25", "9999999999.99", "-0.01", None, "0.00", "-7.50"]),
    "e": (pa.decimal128(38, 10), ["3.0000000001", "9" * 28 + ".5", "-2", "0", None, "1e-10"]),
    "g": (pa.decimal128(5, 5), ["0.33333", "0.99999", "-0.00001", "0", "0.5", None]),
    "n": (pa.decimal128(38, 0), ["12", "9" * 38, "-" + "9" * 38, None, "0", "1"]),
    "s": (pa.string(), ["a", "żółw", "", None, "Straße", "İz"]),
    "u": (pa.string(), ["b", "A", "ΑΣ", "a", None, ""]),
    "t": (pa.bool_(), [True, False, None, True, False, None]),
    "p": (pa.bool_(), [True, True, False, None, False, None]),
}
_NUMBERS = list("bhilfxdegn")
_SMALL = list("bhilfxdg")
_LITERALS = ["1", "0", "-3", "2147483648", "1.5", "0.05", "-2.500", "100", "1e2", "3.0"]


def edge_rows(rng: random.Random, count: int) -> pa.RecordBatch:
    """Return rows of values that are the edges of their types, and nulls."""
    columns = {}
    for name, (dtype, values) in _COLUMNS.items():
        some = [rng.choice(values) for _ in range(count)]
        if pa.types.is_decimal(dtype):
            some = [None if v is None else Decimal(str(v)) for v in some]
        columns[name] = pa.array(some, dtype)
    return pa.record_batch(columns)


def drawn_expression(rng: random.Random, kind: str, depth: int = 3) -> str:
    """Return the text of an expression; `kind`: of its value, number, text or truth."""
    return {"number": _number, "text": _text, "truth": _truth}[kind](rng, depth)


def _number(rng: random.Random, depth: int) -> str:
    """Return an expression whose value is a number."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(_NUMBERS if rng.random() < 0.8 else _LITERALS)
    one, other = _number(rng, depth - 1), _number(rng, depth - 1)
    what = rng.random()
    if what < 0.6:
        text = f"{one} {rng.choice('+-*/%')} {other}"
        return f"({text})" if rng.random() < 0.8 else text
    if what < 0.68:
        # Spark negates decimals in 34 digits, so not whatever is computed.
        return f"(-{rng.choice(_SMALL)})"
    if what < 0.74:
        return f"abs({rng.choice(_SMALL)})"
    if what < 0.8:
        return f"coalesce({one}, {other})"
    if what < 0.85:
        return f"{rng.choice(['least', 'greatest'])}({one}, {other})"
    if what < 0.9:
        return f"if({_truth(rng, depth - 1)}, {one}, {other})"
    if what < 0.93:
        return f"length({_text(rng, depth - 1)})"
    otherwise = f" else {other}" if rng.random() < 0.5 else ""
    return f"(case when {_truth(rng, depth - 1)} then {one}{otherwise} end)"


def _text(rng: random.Random, depth: int) -> str:
    """Return an expression whose value is text."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(["s", "u", "'it''s'"])
    one, other = _text(rng, depth - 1), _text(rng, depth - 1)
    return rng.choice(
        [
            f"({one} || {other})",
            # Spark takes the lower case of an upper case to be that of the text itself.
            f"upper({rng.choice('su')})",
            f"lower({rng.choice('su')})",
            f"coalesce({one}, {other})",
            f"least({one}, {other})",
            f"(case {one} when 'a' then {other} else 'c' end)",
        ]
    )


def _truth(rng: random.Random, depth: int) -> str:
    """Return an expression whose value is a boolean."""
    if depth == 0 or rng.random() < 0.1:
        return rng.choice(["t", "p", "s = u", "i is null", "l is not null"])
    of = rng.random()
    one, other = _number(rng, depth - 1), rng.choice(_NUMBERS)
    if of < 0.4:
        return f"({one} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {other})"
    if of < 0.5:
        return f"({one} is null)"
    if of < 0.6:
        return f"({other} between {rng.choice(_NUMBERS)} and {one})"
    if of < 0.7:
        return f"({other} in (1, {rng.choice(_NUMBERS)}, 100))"
    if of < 0.8:
        return f"(not {_truth(rng, depth - 1)})"
    return f"({_truth(rng, depth - 1)} {rng.choice(['and', 'or'])} {_truth(rng, depth - 1)})"
