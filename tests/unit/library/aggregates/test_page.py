"""The page of all aggregates has each of them, and says what it makes of which column."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from godwit.columns.types import type_of_text
from godwit.library import aggregates
from godwit.model.errors import InvalidFlowError

PAGE = (Path(__file__).parents[4] / "docs/guide/aggregates.md").read_text("utf-8")

ROWS = [
    [cell.strip().replace("\\", "") for cell in line.strip("|").split(" | ")]
    for line in PAGE.partition("\n## Reference")[0].splitlines()
    if line.startswith("|") and "---" not in line
]
NAMES = [name for name in sorted(aggregates.__all__) if name.islower() and name != "avg"]
TYPES = ROWS[0][1:]
TABLE = {name: row[1:] for row in ROWS[1:] for name in re.findall(r"`(\w+)`", row[0])}


def types_of(cell: str) -> list[tuple[str, pa.DataType]]:
    words = re.split(r", (?![^<(]*[>)])", cell)
    return [(word, type_of_text("x", word, "The page")) for word in words]


def test_every_aggregate_is_in_the_table_of_results_and_states() -> None:
    lines = re.findall(r"^\| (`.*?) \| ", PAGE.partition("\n## Reference")[2], re.MULTILINE)
    assert sorted({*re.findall(r"`(\w+)", " ".join(lines))}) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_result_for_every_type_of_column_is_the_one_in_the_table(name: str) -> None:
    assert sorted(TABLE) == NAMES
    more: dict[str, list[object]] = {
        "top_k": [1],
        "max_by": ["x"],
        "min_by": ["x"],
        "approx_percentile": [0.5],
    }
    aggregate = getattr(aggregates, name)("x", *more.get(name, []))
    for header, result in zip(TYPES, TABLE[name], strict=True):
        for word, dtype in types_of(header):
            inputs = pa.schema({"x": dtype})
            if result == "–":  # noqa: RUF001  a dash of the page
                with pytest.raises(InvalidFlowError, match="does not accept a column of type"):
                    aggregate.bind(inputs)
                continue
            counted = pa.struct({"value": dtype, "count": pa.int64()})
            expected = {
                "the same": dtype,
                "array of it": pa.list_(dtype),
                "array of counts": pa.list_(counted),
            }.get(result)
            if expected is None:
                expected = type_of_text("x", result, "The page")
            assert aggregate.bind(inputs).output == expected, (name, word)
