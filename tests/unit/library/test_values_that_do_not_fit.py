"""Values at the ends of their types: conditions as in Spark, and errors that name what failed."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

import godwit as gw
from godwit.columns.failures import failed, naming
from godwit.library.aggregates import expressions
from godwit.library.aggregates.sums import SumOverflowError
from godwit.model.errors import EpochFailedError

ENDS = [-(2**63), 2**63 - 1, 2**53 + 1, -(2**53) - 1, 0, None]
DOUBLES = [math.inf, -math.inf, math.nan, -0.0, 5e-324, 2.0**53, 2.0**63, None]


@pytest.mark.parametrize("sign", ["<", "<=", "=", "<>", ">", ">="])
@pytest.mark.parametrize("dtype", ["double", "float"])
@pytest.mark.parametrize("swapped", [False, True])
def test_integers_of_any_size_are_compared_with_doubles_as_spark_does(
    sign: str, dtype: str, swapped: bool
) -> None:
    rows = [("a", long, real) for long in ENDS for real in DOUBLES]
    flow = gw.Flow("f", num_key_groups=2)
    keyed = flow.source("s", gw.testing.stream(f"k string, l bigint, d {dtype}")).key_by("k")
    where = f"d {sign} l" if swapped else f"l {sign} d"
    flow.sink("o", keyed.compute(n=gw.count(where=where)), gw.sinks.noop())
    (row,) = gw.testing.run(flow, {"s": rows}).rows("o").to_pylist()

    def rank(value: float) -> tuple[bool, float]:  # NaN is the largest, and equals itself
        return (math.isnan(value), 0.0 if math.isnan(value) else value)

    def holds(left: float, right: float) -> bool:
        one, other = rank(left), rank(right)
        return {
            "<": one < other,
            "<=": one <= other,
            "=": one == other,
            "<>": one != other,
            ">": one > other,
            ">=": one >= other,
        }[sign]

    cast = pa.float32() if dtype == "float" else pa.float64()
    pairs = [
        (float(long), pa.array([real], cast)[0].as_py())
        for _, long, real in rows
        if long is not None and real is not None
    ]
    pairs = [pair[::-1] for pair in pairs] if swapped else pairs
    assert row["n"] == sum(holds(*pair) for pair in pairs)


def test_a_failure_of_arrow_names_operator_result_columns_and_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(sign: str, left: Any, right: Any) -> Any:
        if 7 in left.to_pylist():
            raise pa.ArrowInvalid("Integer value 7 not in range")
        return compared(sign, left, right)

    compared = expressions.compare
    monkeypatch.setattr(expressions, "compare", refuses)
    flow = gw.Flow("f", num_key_groups=2)
    keyed = flow.source("s", gw.testing.stream("k string, l bigint, d double")).key_by("k")
    flow.sink("o", keyed.compute(name="sums", big=gw.count(where="l > d")), gw.sinks.noop())
    with pytest.raises(
        EpochFailedError,
        match=r"Operator 'sums', result 'big' of l, d,.*l is 7, d is 1\.5.*7 not in range",
    ):
        gw.testing.run(flow, {"s": [("a", 1, 0.5), ("b", 7, 1.5)]})


def test_failures_on_values_are_named_and_others_pass() -> None:
    message = "Sink 'o' cannot compute with a value"
    with (
        pytest.raises(EpochFailedError, match=message) as caught,
        naming("Sink 'o'", sink="o"),
    ):
        pa.array([300]).cast(pa.int8())
    assert caught.value.context["sink"] == "o"
    for error in (MemoryError("none left"), KeyError("k"), EpochFailedError("x", remedy="y")):
        with pytest.raises(type(error)), naming("Sink 'o'"):
            raise error
    assert "(v is 1)" in failed("Operator 'o'", ValueError("too large."), row="v is 1").message
    assert issubclass(SumOverflowError, ArithmeticError)  # whose own text names the key
