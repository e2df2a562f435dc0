"""Orders of rows by several ranks, against NumPy's own."""

from __future__ import annotations

import numpy as np
import pytest

from godwit.operators.ordering import order_by


@pytest.mark.parametrize(
    "bits",
    [
        (3,),
        (62,),
        (63,),
        (3, 4),
        (20, 40),
        (40, 62),
        (62, 5),
        (63, 63),
        (1, 30, 30),
        (0, 62, 0, 62),
    ],
)
@pytest.mark.parametrize("rows", [0, 1, 2, 500])
def test_rows_are_ordered_as_by_lexsort_however_many_bits_ranks_have(
    bits: tuple[int, ...], rows: int
) -> None:
    rng = np.random.default_rng(7)
    ranks = []
    for of in bits:
        few = rng.integers(0, 1 << of, max(rows // 8, 1), np.int64, endpoint=of == 0)
        rank = rng.choice(few, rows)
        rank[:1] = (1 << of) - 1  # as wide as it is said to be
        ranks.append(rank)
    assert order_by(*ranks).tolist() == np.lexsort(ranks[::-1]).tolist()
