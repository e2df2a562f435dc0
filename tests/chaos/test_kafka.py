"""Drawn flows over Kafka and files live through killed drivers, lanes and brokers, row by row."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka", reason="Kafka tests need confluent-kafka.")

from tests.chaos.kafka.histories import SOURCES, STEPS, TARGETS, History, draw_history
from tests.chaos.kafka.rounds import Driver, LocalDriver, live
from tests.chaos.kafka.spark_driver import SparkDriver
from tests.support.long_tests import minutes_long

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kafka_broker import KafkaBroker

pytestmark = [pytest.mark.campaign, pytest.mark.kafka]

HISTORIES = {
    f"{source}-{seed}": draw_history(seed, rounds, sources=(source,))
    for source, rounds, seeds in [("kafka", 6, (70, 577)), ("files", 10, (244, 4443))]
    for seed in seeds
}


def test_a_history_is_the_same_whenever_it_is_drawn() -> None:
    assert draw_history(3, 10) == draw_history(3, 10)
    assert draw_history(3, 10) != draw_history(4, 10)


def test_a_driver_dies_between_every_source_and_every_target_and_at_every_point() -> None:
    pairs, points = set(), set()
    for history in HISTORIES.values():
        died_at = {told["step"] for told in history.rounds if told["deed"] == "kill at"}
        if died_at & {"committed", "answered", "delivering", "commit"}:
            for kind, target in history.outputs.items():
                if kind != "windows":  # which give no rows to most epochs
                    pairs.add((history.source, target))
        points |= died_at
    assert pairs == set(product(SOURCES, TARGETS))
    assert points == set(STEPS)


@pytest.mark.parametrize("name", HISTORIES)
def test_every_row_comes_once_whatever_dies(
    kafka: KafkaBroker, tmp_path: Path, request: pytest.FixtureRequest, name: str
) -> None:
    check(HISTORIES[name], LocalDriver(), kafka, tmp_path, request)


@pytest.mark.spark
@pytest.mark.parametrize(("seed", "rounds"), [(1949, 3), pytest.param(9, 4, marks=minutes_long)])
def test_every_row_comes_once_whatever_dies_on_spark(
    kafka: KafkaBroker, tmp_path: Path, request: pytest.FixtureRequest, seed: int, rounds: int
) -> None:
    driver = SparkDriver(resident=True)
    history = draw_history(seed, rounds, sources=("kafka",), parts=driver.parts)
    check(history, driver, kafka, tmp_path, request)


def check(
    history: History,
    driver: Driver,
    kafka: KafkaBroker,
    directory: Path,
    request: pytest.FixtureRequest,
) -> None:
    if kafka.server is None:
        pytest.skip("The cluster is not the tests' own: its brokers are not to be killed.")
    dsn = None
    if "postgres" in (*history.outputs.values(), history.rejects):
        dsn = request.getfixturevalue("postgres_server").dsn
    try:
        assert live(history, directory, kafka, dsn, driver) == []
    finally:
        driver.kill()
