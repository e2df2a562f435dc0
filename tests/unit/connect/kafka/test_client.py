"""What clients of Kafka log is passed on, but not without bounds."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("confluent_kafka", reason="Kafka needs confluent-kafka.")

from godwit.connect.kafka.client import LibraryLog


def test_of_lines_of_one_kind_a_few_are_logged_and_the_others_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 100.0
    log = LibraryLog(logging.getLogger("godwit.test"), lambda: now_s)
    for number in range(1_000):
        now_s += 0.001
        log.log(logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka#consumer-1", f"away {number}")
        if number % 100 == 0:
            log.log(logging.WARNING, "%s [%s] %s", "FAIL", "rdkafka#consumer-2", "another one")
    said = [record.getMessage() for record in caplog.records]
    first = [f"FAIL [rdkafka#consumer-1] away {number}" for number in range(5)]
    assert [text for text in said if "consumer-1" in text] == first
    assert [text for text in said if "consumer-2" in text] == [
        "FAIL [rdkafka#consumer-2] another one"
    ] * 5
    caplog.clear()
    now_s += 10
    for _ in range(2):
        log.log(logging.ERROR, "%s [%s] %s", "FAIL", "rdkafka#consumer-1", "back")
    left_out = " (995 similar lines were suppressed before)"
    assert [record.getMessage() for record in caplog.records] == [
        f"FAIL [rdkafka#consumer-1] back{left_out}",
        "FAIL [rdkafka#consumer-1] back",
    ]
