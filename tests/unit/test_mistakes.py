"""Mistakes of the first hour are answered at once, with what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import godwit as gw
from godwit.model.durations import elapsed_text

if TYPE_CHECKING:
    from collections.abc import Callable

MISTAKES: list[tuple[Callable[[Any], object], str]] = [
    (lambda m: m.sources.kafka("kafka://host:9092", "t"), "'host:9092' alone"),
    (lambda m: m.sources.kafka("http://host:9092", "t"), "'host:9092' alone"),
    (lambda m: m.sources.kafka("host", "t"), "host:port"),
    (lambda m: m.sinks.kafka("host:99999", "t"), "host:port"),
    (lambda m: m.sources.kafka("h:1", "t", startingOffsets="latest"), "here it is start="),
    (lambda m: m.sources.kafka("h:1", subscribe="t"), "here it is topics="),
    (lambda m: m.sources.kafka("h:1", "t", failOnDataLoss=False), "here it is on_data_loss="),
    (lambda m: m.sources.csv("in", sep=";"), "here it is delimiter="),
    (lambda m: m.sinks.parquet("out", partitionBy="k"), "here it is partition_by="),
    (lambda m: m.sinks.postgres("jdbc:postgresql://h/db", "t"), "without jdbc:"),
]


@pytest.mark.parametrize(("make", "words"), MISTAKES)
def test_a_mistake_is_answered_with_what_to_do(make: Callable[[Any], object], words: str) -> None:
    with pytest.raises(gw.GodwitError) as caught:
        make(gw)
    assert words in str(caught.value)


@pytest.mark.parametrize("server", ["h:1", "PLAINTEXT://h:9092", "[::1]:9092", "a:1,b:2"])
def test_servers_that_kafka_takes_are_taken(server: str) -> None:
    gw.sources.kafka(server, "t")


def test_long_times_have_long_units() -> None:
    texts = [elapsed_text(ms) for ms in (850, 12_345, 600_000, 36_000_000, 864_000_000)]
    assert texts == ["850 ms", "12.3 s", "10.0 min", "10.0 h", "10.0 days"]
