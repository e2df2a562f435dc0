"""Our hash of a key is the hash that Spark's ``xxhash64`` gives, bit by bit."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from godwit.columns.hashing import hash_keys

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCHEMA = (
    "flag boolean, tiny tinyint, small smallint, whole int, big bigint, single float, real double, "
    "text string, bytes binary, day date, moment timestamp, local timestamp_ntz, "
    "price decimal(10, 2), huge decimal(38, 6), span interval day to second"
)

NOON = dt.datetime(2000, 2, 29, 12)  # noqa: DTZ001 - a timestamp without a zone is meant

EXTREMES: list[dict[str, Any]] = [
    {
        "flag": True,
        "tiny": -128,
        "small": -32768,
        "whole": -(2**31),
        "big": -(2**63),
        "single": -0.0,
        "real": -0.0,
        "text": "",
        "bytes": b"",
        "day": dt.date(1, 1, 1),
        "moment": dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC),
        "local": NOON - dt.timedelta(days=36_500),
        "price": Decimal("-99999999.99"),
        "huge": Decimal("-99999999999999999999999999999999.999999"),
        "span": dt.timedelta(days=-400, microseconds=1),
    },
    {
        "flag": False,
        "tiny": 127,
        "small": 32767,
        "whole": 2**31 - 1,
        "big": 2**63 - 1,
        "single": math.nan,
        "real": math.nan,
        "text": "\U0001f426 migrates" * 20,
        "bytes": bytes(range(256)),
        "day": dt.date(9999, 12, 31),
        "moment": dt.datetime(2200, 1, 1, tzinfo=dt.UTC),
        "local": NOON + dt.timedelta(days=36_500),
        "price": Decimal("0.00"),
        "huge": Decimal("99999999999999999999999999999999.999999"),
        "span": dt.timedelta(0),
    },
    {"single": math.inf, "real": -math.inf, "huge": Decimal("0.000128"), "bytes": b"\x00"},
    {"huge": Decimal("-0.000128"), "single": 1e-45, "real": 5e-324},
    {"huge": Decimal("-0.000129")},
    {},
]


def random_row(rng: random.Random) -> dict[str, Any]:
    row = {
        "flag": rng.random() < 0.5,
        "tiny": rng.randint(-128, 127),
        "small": rng.randint(-32768, 32767),
        "whole": rng.randint(-(2**31), 2**31 - 1),
        "big": rng.randint(-(2**63), 2**63 - 1),
        "single": rng.uniform(-1e6, 1e6),
        "real": rng.uniform(-1e300, 1e300),
        "text": "".join(rng.choices("ab\u00e9\u20ac\U0001f426", k=rng.randint(0, 90))),
        "bytes": rng.randbytes(rng.randint(0, 130)),
        "day": dt.date(1970, 1, 1) + dt.timedelta(days=rng.randint(-9999, 9999)),
        "moment": dt.datetime(2000, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=rng.random() * 1e9),
        "local": NOON + dt.timedelta(seconds=rng.random() * 1e9),
        "price": Decimal(rng.randint(-(10**10) + 1, 10**10 - 1)).scaleb(-2),
        "huge": Decimal(rng.randint(-(2 ** rng.randint(1, 120)), 2**100)).scaleb(-6),
        "span": dt.timedelta(microseconds=rng.randint(-(10**15), 10**15)),
    }
    return {name: None if rng.random() < 0.15 else value for name, value in row.items()}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> tuple[pa.RecordBatch, dict[str, list[int]]]:
    """Return rows of all types, and what Spark makes of each column and of all together."""
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    rng = random.Random(2024)
    values = [*EXTREMES, *(random_row(rng) for _ in range(400))]
    names = spark.createDataFrame([], SCHEMA).columns
    frame = spark.createDataFrame(
        [tuple(row.get(name) for name in names) for row in values], SCHEMA
    )
    hashed = frame.select(
        "*",
        *(F.xxhash64(name).alias(f"hash_{name}") for name in names),
        F.xxhash64(*names).alias("hash_all"),
    )
    table = hashed.toArrow().combine_chunks()
    hashes = {name: table[f"hash_{name}"].to_pylist() for name in [*names, "all"]}
    return table.select(names).to_batches()[0], hashes


def test_every_column_alone_hashes_as_spark_hashes_it(
    rows: tuple[pa.RecordBatch, dict[str, list[int]]],
) -> None:
    batch, hashes = rows
    for name in batch.schema.names:
        assert hash_keys(batch.select([name])).tolist() == hashes[name], name


def test_all_columns_together_hash_as_spark_hashes_them(
    rows: tuple[pa.RecordBatch, dict[str, list[int]]],
) -> None:
    batch, hashes = rows
    assert batch.num_rows == 406
    assert hash_keys(batch).tolist() == hashes["all"]
