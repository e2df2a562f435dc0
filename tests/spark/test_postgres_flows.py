"""PostgreSQL in, PostgreSQL out, on Spark: the copy has the rows of the table."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.postgres_server import drop_slots
from tests.support.postgres_sinks import execute

import godwit as gw

pytest.importorskip("psycopg", reason="PostgreSQL tests need psycopg.")

from godwit.connect.postgres.sink import PostgresSink
from godwit.connect.postgres.source import PostgresSource

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

SLOT = "copied_on_spark"


class DiedError(Exception):
    """The driver is gone."""


def test_a_copied_table_follows_whatever_dies_in_between(
    spark: SparkSession, postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(
        postgres,
        "CREATE TABLE orders (id int PRIMARY KEY, city text, note text)",
        "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
        "INSERT INTO orders SELECT i, 'c' || i % 7, repeat('x', i) FROM "
        "generate_series(1, 3000, 2) i",
    )
    rng = random.Random(3)

    def change() -> None:
        number = rng.randrange(3000)
        execute(
            postgres,
            f"INSERT INTO orders VALUES ({number}, 'new') ON CONFLICT (id) "
            "DO UPDATE SET city = 'changed'",
            f"DELETE FROM orders WHERE id % 40 = {number % 40}",
            f"UPDATE orders SET id = -id, note = '' WHERE id = {rng.randrange(3000)}",
        )

    def start() -> Any:
        flow = gw.Flow("copy", num_key_groups=8)
        source = gw.sources.postgres(postgres, "orders", slot=SLOT, max_rows_per_epoch=400)
        newest = flow.source("orders", source).key_by("id").latest()
        flow.sink("copy", newest, gw.sinks.postgres(postgres, "copy", mode="upsert"))
        return flow.start(checkpoint=tmp_path / "ck", session=spark)

    def dying(_: Any, *__: Any) -> Any:
        raise DiedError

    try:
        for owner, name in ((PostgresSink, "deliver"), (PostgresSource, "splits"), (None, "")):
            with monkeypatch.context() as patch:
                query = start()
                change()
                if owner is not None:
                    patch.setattr(owner, name, dying)
                    with pytest.raises(gw.errors.GodwitError, match="DiedError"):
                        query.awaitTermination()
                    continue
                for _ in range(3):
                    change()
                    query.processAllAvailable()
                    left = "SELECT * FROM orders ORDER BY id"
                    assert execute(postgres, "SELECT id, city, note FROM copy ORDER BY id") == (
                        execute(postgres, left)
                    )
                query.stop()
    finally:
        drop_slots(postgres, SLOT)
