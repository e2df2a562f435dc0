"""A limit passes the first rows of all batches together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

import godwit as gw
from godwit.adopt.lanes import ONLY_TIME
from godwit.adopt.limits import LimitedRows
from godwit.api.streams import Stream
from godwit.plan.nodes import CustomNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


def _limited(schemas: Sequence[pa.Schema], *, limit: int) -> LimitedRows:
    (schema,) = schemas
    columns = schema.remove(schema.get_field_index(ONLY_TIME))
    return LimitedRows(name="limit", columns=columns, limit=limit)


@pytest.mark.parametrize("limit", [0, 1, 4, 9])
def test_the_first_rows_of_all_batches_pass(limit: int) -> None:
    flow = gw.Flow("adopted", num_key_groups=4)
    source = flow.source("rows", gw.testing.stream(f"n long, {ONLY_TIME} boolean"))
    make = partial(_limited, limit=limit)
    node = CustomNode(name="limit", upstream=source.node, keys=(), make=make, action="limit")
    flow._add_operator(node)
    flow.sink("out", Stream(flow, node), gw.sinks.memory())
    batches = [[3, -1, 1], [], [2, 5, 4], [6]]
    rows = [[{"n": n, ONLY_TIME: n < 0} for n in batch] for batch in batches]
    played = gw.testing.run(flow, {"rows": rows})
    assert played.rows("out")["n"].to_pylist() == [3, 1, 2, 5, 4, 6][:limit]
