"""Rows joined with a static table are those that a loop over all pairs finds."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.rounds import rounds

from godwit.adopt import static_joins
from godwit.adopt.encoding import order_keys
from godwit.adopt.functions import Form
from godwit.adopt.static_joins import StaticJoin
from godwit.library.aggregates.expressions import Column

_FLOAT, _TEXT = pa.float64(), pa.string()


def _column(draw: random.Random, values: tuple[Any, ...], size: int, dtype: Any) -> pa.Array:
    return pa.array([draw.choice(values) for _ in range(size)], dtype)


@pytest.mark.parametrize("how", ["inner", "outer", "semi", "anti"])
@pytest.mark.parametrize("seed", range(rounds(2, 4)))
def test_joined_rows_are_those_of_all_pairs(how: str, seed: int) -> None:
    draw = random.Random(seed)
    size, others = draw.choice((0, 1, 9)), draw.choice((0, 1, 7))
    columns = {
        "#rows": pa.nulls(size, pa.bool_()),
        "a": _column(draw, (1.0, 2.0, float("nan"), None), size, _FLOAT),
        "k": _column(draw, ("x", "y", None), size, _TEXT),
        "n": pa.array(range(size), pa.int64()),
    }
    table = {
        "b": _column(draw, (1.0, float("nan"), None), others, _FLOAT),
        "l": _column(draw, ("x", "y", None), others, _TEXT),
        "m": _column(draw, (0, 3, 5), others, pa.int64()),
    }
    less = Form(name="LessThan", arguments=(Column("m"), Column("n")), dtype=pa.bool_())
    step = StaticJoin(
        how=how,
        table=table,
        size=others,
        equal=(
            (Column("a"), Column("b"), True, "a <=> b"),
            (Column("k"), Column("l"), False, "k = l"),
        ),
        conditions=((less, "m < n"),) if seed % 2 else (),
    )
    result = step.apply(columns)
    names = ["a", "k", "n"] + (["b", "l", "m"] if how in {"inner", "outer"} else [])
    rows = list(zip(*(result[name].to_pylist() for name in names), strict=True))
    assert list(map(repr, rows)) == list(map(repr, _by_loop(columns, table, how, seed % 2 == 1)))
    assert len(result["#rows"]) == len(rows)


def test_the_keys_of_the_table_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def recorded(keys: pa.Array) -> pa.Array:
        lengths.append(len(keys))
        return order_keys(keys)

    monkeypatch.setattr(static_joins, "order_keys", recorded)
    step = _step_of({"l": pa.array([*"abcab", None])})
    step = pickle.loads(pickle.dumps(step))
    for _ in range(2):
        columns = {"#rows": pa.nulls(3, pa.bool_()), "k": pa.array(["b", None, "x"])}
        assert step.apply(columns)["l"].to_pylist() == ["b", "b"]
    assert lengths == [6, 3, 3]


def test_keys_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_joins, "_hash_keys", lambda keys: np.zeros(len(keys), np.int64))
    step = _step_of({"l": pa.array(["a", "b", "a"]), "m": pa.array([1, 2, 3])})
    columns = {"#rows": pa.nulls(3, pa.bool_()), "k": pa.array(["b", "a", "x"])}
    assert step.apply(columns)["m"].to_pylist() == [2, 1, 3]


def _step_of(table: dict[str, pa.Array]) -> StaticJoin:
    """Return the inner join of ``k`` with ``l`` of a table."""
    equal = ((Column("k"), Column("l"), False, "k = l"),)
    size = len(table["l"])
    return StaticJoin(how="inner", table=table, size=size, equal=equal, conditions=())


def _by_loop(
    columns: dict[str, pa.Array], table: dict[str, pa.Array], how: str, is_less: bool
) -> list[tuple[Any, ...]]:
    """Return the joined rows, in order."""
    joined: list[tuple[Any, ...]] = []
    partners = list(zip(*(table[name].to_pylist() for name in "blm"), strict=True))
    for row in zip(*(columns[name].to_pylist() for name in "akn"), strict=True):
        met = [
            other
            for other in partners
            if repr(row[0]) == repr(other[0])
            and row[1] is not None
            and row[1] == other[1]
            and (not is_less or other[2] < row[2])
        ]
        if how == "semi":
            joined += [row] if met else []
        elif how == "anti":
            joined += [] if met else [row]
        elif how == "outer" and not met:
            joined.append((*row, None, None, None))
        else:
            joined += [(*row, *other) for other in met]
    return joined
