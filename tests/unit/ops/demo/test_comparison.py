from __future__ import annotations

import pyarrow as pa
import pytest

from godwit.ops.demo.comparison import compare

BATCH = pa.table({"plane": ["N1", None, "N3"], "total": [1, 2, None]})


def test_equal_tables_in_another_order_have_no_differences() -> None:
    streamed = pa.table({"total": [None, 1, 2], "plane": ["N3", "N1", None]})
    compared = compare("totals", streamed, BATCH, ["plane"])
    assert compared.equal
    assert compared.rows == 3


@pytest.mark.parametrize(
    ("planes", "totals", "difference"),
    [
        (["N1", None], [1, 2], "plane='N3': missing in the stream; batch has {'total': None}"),
        (["N1", None, "N3"], [1, 3, None], ("plane=None: stream has {'total': 3}, batch has "
         "{'total': 2}")),
        (["N1", None, "N3"], [1, 2, 0], ("plane='N3': stream has {'total': 0}, batch has "
         "{'total': None}")),
        (["N1", None, "N3", "N4"], [1, 2, None, 9], ("plane='N4': only in the stream, which has "
         "{'total': 9}")),
        (["N1", None, "N3", "N1"], [1, 2, None, 1], "1 keys are duplicated in the stream's rows"),
    ],
)  # fmt: skip
def test_each_kind_of_difference_is_told(
    planes: list[str | None], totals: list[int | None], difference: str
) -> None:
    compared = compare("totals", pa.table({"plane": planes, "total": totals}), BATCH, ["plane"])
    assert compared.differences == (difference,)
    assert not compared.equal


def test_the_newest_row_of_a_key_is_the_one_of_its_last_epoch() -> None:
    delivered = pa.table(
        {
            "plane": ["N1", "N3", "N1", None],
            "total": [1, None, 5, 2],
            "epoch": [3, 1, 0, 2],
        }
    )
    assert compare("totals", delivered, BATCH, ["plane"]).equal


def test_a_key_delivered_twice_by_one_epoch_is_a_difference() -> None:
    delivered = pa.table(
        {"plane": ["N1", "N1", None, "N3"], "total": [1, 1, 2, None], "epoch": [3, 3, 0, 0]}
    )
    differences = compare("totals", delivered, BATCH, ["plane"]).differences
    assert differences == ("1 keys are duplicated in the stream's rows",)
