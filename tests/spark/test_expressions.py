"""Expressions of aggregates have the types, values and errors that Spark SQL has in ANSI mode."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.adopted.agreed import agreed, evaluation, remember
from tests.oracles.expressions import drawn_expression, edge_rows

from godwit.library.aggregates.arithmetic import EvaluationError, TypesError, common_type
from godwit.library.aggregates.expressions import (
    Rows,
    _Comparison,
    check_types,
    columns_read,
    parse_condition,
)
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from godwit.library.aggregates.expressions import Expression

pytestmark = pytest.mark.spark

DRAWN, ROWS, FAILING = 280, 24, 12
# Literals that are compared, some with no column on either side.  Spark 4.3 makes true of a null
# that is below a number which its type cannot hold, so nulls are asked for before.
COMPARED = [
    *(
        f"{column} is not null and {column} {sign} {literal}"
        for column, sign in (("l", "<"), ("i", "="), ("x", ">="), ("n", "<="))
        for literal in ("9223372036854775808", "-9223372036854775809", "99999999999999999999")
    ),
    "5 between b and 10",
    "1.5 between i and x",
    "l is not null and l between -9223372036854775809 and 9223372036854775808",
    "9223372036854775808 not in (l, n)",
    "1 < 2 or p",
    "1 > 2.5 and t",
    "1e2 = 100 and 0.5 <> 5e-1 or p",
    "'a' >= 'b' or true < false or s = 'a'",
]
INTERPRETED = {  # compiling a class for expressions that run once would take most of the time
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture
def interpreting(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that interprets expressions."""
    before = {name: spark.conf.get(name, None) for name in INTERPRETED}
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)
    yield spark
    for name, former in before.items():
        spark.conf.unset(name) if former is None else spark.conf.set(name, former)


def evaluated(expression: Expression, rows: pa.RecordBatch) -> tuple[list[Any], pa.DataType]:
    """Values of all rows, and their type; a row that has none has its error."""
    dtype = check_types(expression, rows.schema, "it", "expression")
    columns = dict(zip(rows.schema.names, rows, strict=True))
    fails: dict[int, EvaluationError] = {}
    while True:
        active = pa.array([row not in fails for row in range(rows.num_rows)]) if fails else None
        try:
            found = expression.evaluate(Rows(columns=columns, active=active))
        except EvaluationError as error:
            if error.row in fails:
                raise
            fails[error.row] = error
            continue
        assert found.type == dtype
        return [fails.get(row, value) for row, value in enumerate(found.to_pylist())], dtype


def compares_too_many_digits(expression: Expression, schema: pa.Schema) -> bool:
    """Whether decimals are compared that together take more than 38 digits: Spark cuts some."""
    parts = expression.operands()
    if isinstance(expression, _Comparison):
        try:
            of = [check_types(p, schema, "it", "expression") for p in parts if columns_read(p)]
            common_type(of)
        except TypesError:
            return True
    return any(compares_too_many_digits(part, schema) for part in parts if columns_read(part))


def test_drawn_expressions_are_those_of_spark(interpreting: SparkSession) -> None:
    spark = interpreting
    rng = random.Random(41)
    rows = edge_rows(rng, ROWS)
    found: list[tuple[str, list[Any], pa.DataType]] = []
    drawn = (
        drawn_expression(rng, rng.choice(["number", "number", "text", "truth"]))
        for _ in itertools.count()
    )
    for text in itertools.chain(COMPARED, drawn):
        if len(found) == len(COMPARED) + DRAWN:
            break
        try:
            expression = parse_condition(text, "it")
            check_types(expression, rows.schema, "it", "expression")
        except InvalidFlowError:
            continue  # of literals alone, or of types that have nothing in common
        if compares_too_many_digits(expression, rows.schema):
            continue
        found.append((text, *evaluated(expression, rows)))
    failing = [
        (text, row)
        for text, values, _ in found
        for row, value in enumerate(values)
        if isinstance(value, EvaluationError)
    ]
    asked = rng.sample(failing, FAILING)
    ours = []
    for _, values, dtype in found:
        shown = [None if isinstance(value, EvaluationError) else value for value in values]
        ours.append((str(dtype), list(map(repr, shown))))
    compared = evaluation(spark, [text for text, *_ in found], rows.to_pydict(), failing)
    if agreed(compared, ours):
        return
    table = pa.table(
        {"row": pa.array(range(ROWS)), **dict(zip(rows.schema.names, rows, strict=True))}
    )
    frame = spark.createDataFrame(table).coalesce(1).cache()
    columns = []
    for number, (text, values, _) in enumerate(found):
        fails = [row for row, value in enumerate(values) if isinstance(value, EvaluationError)]
        only = f"case when row not in ({', '.join(map(str, fails))}) then {text} end"
        columns.append(f"{only if fails else text} as c{number}")
    theirs = []
    for first in range(0, len(found), 50):
        result = frame.selectExpr("row", *columns[first : first + 50]).toArrow().sort_by("row")
        theirs += [(str(c.type), list(map(repr, c.to_pylist()))) for c in result.columns[1:]]
    for (text, *_), mine, its in zip(found, ours, theirs, strict=True):
        assert mine == its, text
    for text, row in asked:
        with pytest.raises(Exception, match=r"OVERFLOW|DIVIDE_BY_ZERO|OUT_OF_RANGE|REMAINDER"):
            frame.where(f"row = {row}").selectExpr(f"{text} as it").collect()
    remember(compared, ours, "expressions of aggregates")
