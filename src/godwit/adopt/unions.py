"""Spark's ``Union`` of rows of stateful nodes and of streams.

Every side is computed up to the union: by Spark if nothing below it has state, else in the lanes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from godwit.adopt.grouped import only_rows
from godwit.adopt.lanes import ONLY_TIME
from godwit.adopt.plan import children_of, output_of
from godwit.api.streams import Stream
from godwit.library.passing import PassRows
from godwit.plan.nodes import CustomNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from godwit.adopt.lanes import Adopted, Translator
    from godwit.operators.operator import KeyedOperator


class UnitedSourceRows(PassRows):
    """Rows of a source for a union, without those that only advance the watermark."""

    def unify_columns(self, rows: pa.RecordBatch, input_number: int) -> pa.RecordBatch:
        """Drop the rows that only advance the watermark, and the columns of event time."""
        if ONLY_TIME in rows.schema.names:
            rows = only_rows(rows, ONLY_TIME)
        columns = [rows.column(field.name).cast(field.type) for field in self.inputs]
        own = pa.RecordBatch.from_arrays(columns, schema=self.inputs)
        return super().unify_columns(own, input_number)


def unite(translation: Translator, node: Any, below: list[Adopted | None]) -> Adopted:
    """Translate a union with the rows of a stateful node."""
    output = output_of(node)
    names = [translation.unique(str(attribute.name())) for attribute in output]
    sides = [
        (child, rows, list(zip(names, output_of(child), strict=True)))
        for child, rows in zip(children_of(node), below, strict=True)
    ]
    computed = {
        number: translation.inputs(columns, child, rows, timed=False)
        for number, (child, rows, columns) in enumerate(sides)
        if rows is not None
    }
    schema = next(schema for _, schema in computed.values())
    streams = []
    for number, (child, _, columns) in enumerate(sides):
        if number in computed:
            streams.append(computed[number][0])
            continue
        stream, _ = translation.rows_of_source(columns, child)
        name = translation.unique("rows")
        operator = CustomNode(
            name=name,
            upstream=stream.node,
            keys=(),
            make=partial(_passing_operator, name, schema),
            in_order=True,
            action="pass rows on",
        )
        translation.flow._add_operator(operator)  # noqa: SLF001  as streams do
        streams.append(Stream(translation.flow, operator))
    first, *others = streams
    return translation.result_of(first.union(*others), output, names)


def _passing_operator(name: str, columns: pa.Schema, schemas: Sequence[pa.Schema]) -> KeyedOperator:  # noqa: ARG001
    """Return the operator that passes the rows of a source on; `columns`: of the union."""
    return UnitedSourceRows(name=name, columns=columns)
