"""Spark's ``limit`` of a stream: the first rows of all batches together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from godwit.adopt.grouped import only_rows
from godwit.adopt.lanes import ONLY_TIME
from godwit.adopt.plan import kind_of, output_of
from godwit.adopt.spark_states import LimitState
from godwit.columns.types import KEY_OF_ALL
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.operator import KeyedOperator, OperatorOutput
from godwit.plan.nodes import CustomNode
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.adopt.lanes import Adopted, Translator
    from godwit.operators.operator import OperatorInput

_PASSED: Final = f"{RESERVED_PREFIX}_passed"


class LimitedRows(KeyedOperator):
    """Filter that passes the first rows of a stream."""

    kind = "limited rows"
    emits = "the first rows, as they arrive"

    def __init__(self, *, name: str, columns: pa.Schema, limit: int) -> None:
        self.name, self.inputs, self.output, self.limit = name, columns, columns, limit
        passed = pa.schema([pa.field(_PASSED, pa.int64())])
        self.schema = StateSchema(keys=KEY_OF_ALL, values=passed)

    def unify_columns(self, rows: pa.RecordBatch, input_number: int) -> pa.RecordBatch:
        """Drop the rows that only advance the watermark, and the columns of event time."""
        if ONLY_TIME in rows.schema.names:
            rows = only_rows(rows, ONLY_TIME)
        return super().unify_columns(rows.select(self.inputs.names), input_number)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Emit rows up to the limit, and count them."""
        if not len(data.rows.hashes):
            return OperatorOutput()
        groups, keys = data.grouped(1)
        is_stored, prior = data.state.find(keys, groups.key_groups)
        before = prior.column(0)[0].as_py() if is_stored[0] else 0
        rows = data.rows.values.slice(0, max(self.limit - before, 0))
        passed = pa.RecordBatch.from_arrays(
            [pa.array([before + rows.num_rows])], schema=self.schema.values
        )
        return OperatorOutput.of_groups(groups, keys, passed, output=rows)


def limit(translation: Translator, node: Any, below: list[Adopted | None]) -> Adopted:
    """Translate a ``GlobalLimit``, and the ``LocalLimit`` below it."""
    literal = node.limitExpr()
    if kind_of(literal) != "Literal":
        raise translation.refused(
            node, "its number of rows is not a constant", "Give the number itself."
        )
    if below[0] is not None:
        raise translation.refused(
            node,
            "Spark's limit of another stateful operator's rows is undefined",
            'Remove it, or use outputMode("complete") with orderBy.',
        )
    child = node.child()
    if kind_of(child) == "LocalLimit":
        child = child.child()
    output = output_of(child)
    names = [translation.unique(str(attribute.name())) for attribute in output]
    columns = list(zip(names, output, strict=True))
    stream, _ = translation.rows_of_source(columns, child)
    name = translation.unique("limit")
    new_operator = partial(_limit_operator, name, names, limit=int(literal.value()))
    operator = CustomNode(
        name=name, upstream=stream.node, keys=(), make=new_operator, action="pass the first rows"
    )
    translation.flow._add_operator(operator)  # noqa: SLF001  as streams do
    translation.states.append(LimitState(operator=name))
    return translation.rows_at(node, operator, list(zip(output, names, strict=True)))


def _limit_operator(
    name: str, names: Sequence[str], schemas: Sequence[pa.Schema], *, limit: int
) -> KeyedOperator:
    """Return the operator over a stream with these columns, and those of event time."""
    (schema,) = schemas
    columns = pa.schema([schema.field(column) for column in names])
    return LimitedRows(name=name, columns=columns, limit=limit)
