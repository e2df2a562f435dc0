"""Drawn flows over Kafka live through killed drivers, lanes and brokers, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka", reason="Kafka tests need confluent-kafka.")

from tests.chaos.kafka.histories import draw_history
from tests.chaos.kafka.rounds import LocalDriver, live
from tests.chaos.kafka.spark_driver import SparkDriver
from tests.support.long_tests import minutes_long

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kafka_broker import KafkaBroker
    from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.campaign, pytest.mark.kafka]


def test_a_history_is_the_same_whenever_it_is_drawn() -> None:
    assert draw_history(3, 10) == draw_history(3, 10)
    assert draw_history(3, 10) != draw_history(4, 10)


@pytest.mark.parametrize("seed", [1, 2])
def test_every_row_comes_once_whatever_dies(
    kafka: KafkaBroker, postgres_server: PostgresServer, tmp_path: Path, seed: int
) -> None:
    insist_on_own_server(kafka)
    driver = LocalDriver()
    try:
        history = draw_history(seed, 8, sources=("kafka",))
        assert live(history, tmp_path, kafka, postgres_server.dsn, driver) == []
    finally:
        driver.kill()


@pytest.mark.spark
@pytest.mark.parametrize(("seed", "rounds"), [(169, 3), pytest.param(9, 4, marks=minutes_long)])
def test_every_row_comes_once_whatever_dies_on_spark(
    kafka: KafkaBroker, postgres_server: PostgresServer, tmp_path: Path, seed: int, rounds: int
) -> None:
    insist_on_own_server(kafka)
    driver = SparkDriver(resident=True)
    try:
        history = draw_history(seed, rounds, sources=("kafka",), on_spark=True)
        assert live(history, tmp_path, kafka, postgres_server.dsn, driver) == []
    finally:
        driver.kill()


def insist_on_own_server(kafka: KafkaBroker) -> None:
    if kafka.server is None:
        pytest.skip("The cluster is not the tests' own: its brokers are not to be killed.")
