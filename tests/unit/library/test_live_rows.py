"""Deletes that meet equal rows of their key, against plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from godwit.library.live_rows import rows_after_netting

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "numbers": (pa.int64(), [1, 2, 3]),
    "nulls": (pa.int64(), [1, 2, None]),
    "floats": (pa.float64(), [0.0, -0.0, float("nan"), 1.5]),
    "words": (pa.string(), ["x" * 8, "y" * 8, "z" * 8]),
    "texts": (pa.string(), ["", "x", "yy", None]),
    "bits": (pa.bool_(), [True, False]),
}


def _met(key: list[int], rows: list[tuple[Any, ...]], sign: list[int]) -> list[bool]:
    """Return for each row whether it stays; of equal rows the oldest go."""
    stays = [True] * len(rows)
    groups: dict[Any, list[int]] = {}
    for number, row in enumerate(rows):
        same = tuple("nan" if v != v else v for v in row)  # noqa: PLR0124  NaN equals itself here
        groups.setdefault((key[number], same), []).append(number)
    for group in groups.values():
        inserts = [n for n in group if sign[n] > 0]
        deletes = [n for n in group if sign[n] < 0]
        for number in [n for pair in zip(inserts, deletes, strict=False) for n in pair]:
            stays[number] = False
    return stays


@pytest.mark.parametrize("columns", [*((name,) for name in VALUES), ("numbers", "texts")])
def test_deletes_meet_the_oldest_equal_rows(columns: tuple[str, ...]) -> None:
    rng = np.random.default_rng(len(columns))
    for count in [0, 1, 2, *rng.integers(3, 40, 60).tolist(), 2000]:
        key = rng.integers(0, max(count // 8, 1), count)
        sign = rng.choice([1, 1, 1, -1], count).astype(np.int8)
        values = {
            name: [VALUES[name][1][i] for i in rng.integers(0, len(VALUES[name][1]), count)]
            for name in columns
        }
        arrays = {name: pa.array(values[name], VALUES[name][0]) for name in columns}
        rows = pa.RecordBatch.from_pydict(arrays)
        expected = _met(key.tolist(), list(zip(*values.values(), strict=True)), sign.tolist())
        assert rows_after_netting(key, rows, sign).tolist() == expected
