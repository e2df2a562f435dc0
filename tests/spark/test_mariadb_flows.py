"""MariaDB in, MariaDB out, on Spark: the copy has the rows of the table."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw

pytest.importorskip("pymysql", reason="MariaDB tests need PyMySQL.")

from godwit.connect.mariadb.server import MariaServer, parse_dsn, query
from godwit.connect.mariadb.source import MariaDBSource
from godwit.connect.sql.sink import SqlSink

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.mariadb]


class DiedError(Exception):
    """The driver is gone."""


def test_a_copied_table_follows_whatever_dies_in_between(
    spark: SparkSession, mariadb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(3)

    def execute(*statements: str) -> list[Any]:
        with contextlib.closing(MariaServer(parse_dsn(mariadb, ""), "").connect()) as connection:
            return [query(connection, statement) for statement in statements][-1]

    def change() -> None:
        number = rng.randrange(3000)
        execute(
            f"INSERT INTO orders VALUES ({number}, 'new', '') "
            "ON DUPLICATE KEY UPDATE city = 'changed'",
            f"DELETE FROM orders WHERE id % 40 = {number % 40}",
            f"UPDATE orders SET id = -id, note = 'é' WHERE id = {rng.randrange(3000)}",
        )

    def start() -> Any:
        flow = gw.Flow("copy", num_key_groups=8)
        source = gw.sources.mariadb(mariadb, "orders", max_rows_per_epoch=400)
        newest = flow.source("orders", source).key_by("id").latest()
        flow.sink("copy", newest, gw.sinks.sql(mariadb, "copy", mode="upsert"))
        return flow.start(checkpoint=tmp_path / "ck", session=spark)

    def dying(_: Any, *__: Any) -> Any:
        raise DiedError

    execute(
        "CREATE TABLE orders (id int PRIMARY KEY, city varchar(20), note varchar(3000))",
        "INSERT INTO orders SELECT seq, concat('c', seq % 7), repeat('x', seq) "
        "FROM seq_1_to_3000_step_2",
    )
    for owner, name in ((SqlSink, "deliver"), (MariaDBSource, "splits"), (None, "")):
        with monkeypatch.context() as patch:
            query_of_copy = start()
            change()
            if owner is not None:
                patch.setattr(owner, name, dying)
                with pytest.raises(gw.errors.GodwitError, match="DiedError"):
                    query_of_copy.awaitTermination()
                continue
            for _ in range(3):
                change()
                query_of_copy.processAllAvailable()
                columns = "SELECT id, city, note FROM"
                assert execute(f"{columns} copy ORDER BY id") == (
                    execute(f"{columns} orders ORDER BY id")
                )
            query_of_copy.stop()
