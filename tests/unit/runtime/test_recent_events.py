"""The latest events stay within a bound of memory, whatever comes most."""

from __future__ import annotations

import tracemalloc
from types import MappingProxyType

from godwit.model import events
from godwit.runtime.dispatcher import (
    EPOCH_BYTES,
    MAX_EVENTS,
    OTHER_BYTES,
    EventDispatcher,
    RecentEvents,
    size_of,
)


def committed(epoch: int, sources: int = 1) -> events.EpochCommitted:
    latencies = {name: epoch + n / 7 for n, name in enumerate(("p50", "p95", "p99", "max", "mean"))}
    return events.EpochCommitted(
        epoch=epoch,
        at_s=epoch / 3,
        rows_in=epoch + 1_000,
        duration_ms=epoch / 7,
        watermarks={f"source_{n}": 10**12 + epoch for n in range(sources)},
        latency_ms=latencies,
    )


def stopped(epoch: int, name: str = "q") -> events.QueryStopped:
    return events.QueryStopped(epoch=epoch, at_s=0.0, name=name)


def test_epochs_do_not_push_out_what_was_decided() -> None:
    recent = RecentEvents()
    recent.add(stopped(-1))
    for epoch in range(20_000):
        recent.add(committed(epoch))
    kept = recent.all()
    assert kept[0] == stopped(-1)
    assert [event.epoch for event in kept[1:]] == list(range(20_001 - len(kept), 20_000))
    assert recent.dropped == 20_001 - len(kept)
    assert 1_000 < len(kept) < MAX_EVENTS
    assert recent.last == kept[-1]


def test_events_take_no_more_memory_than_their_bound() -> None:
    tracemalloc.start()
    try:
        recent, before = RecentEvents(), tracemalloc.get_traced_memory()[0]
        for epoch in range(3_000):
            recent.add(committed(epoch, sources=8))
            recent.add(stopped(epoch, name=str(epoch) * 1_000))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert recent.size_bytes <= EPOCH_BYTES + OTHER_BYTES
    assert taken <= 1.1 * recent.size_bytes


def test_an_event_that_is_larger_than_the_bound_stays_until_the_next() -> None:
    recent = RecentEvents()
    large = stopped(0, name="x" * (OTHER_BYTES + 1))
    for event in (stopped(1), large):
        recent.add(event)
    assert (recent.all(), recent.dropped) == ((large,), 1)
    recent.add(stopped(2))
    assert (recent.all(), recent.dropped) == ((stopped(2),), 2)


def test_small_events_are_limited_in_number_and_stay_in_order() -> None:
    recent = RecentEvents()
    for epoch in range(MAX_EVENTS + 50):
        recent.add(stopped(epoch) if epoch % 2 else committed(epoch))
    kept = recent.all()
    assert len(kept) <= MAX_EVENTS
    assert [event.epoch for event in kept] == sorted(event.epoch for event in kept)
    assert recent.dropped == MAX_EVENTS + 50 - len(kept)


def test_the_size_of_an_event_counts_what_it_holds() -> None:
    assert size_of(committed(1)) < 1_600
    assert size_of(committed(1, 50)) > size_of(committed(1)) + 50 * 80
    assert size_of(MappingProxyType({"a": "b" * 500})) > 500
    assert size_of([(1, "x" * 100)]) > 100


def test_the_dispatcher_tells_how_many_events_were_dropped() -> None:
    dispatcher = EventDispatcher("q")
    for epoch in range(4_000):
        dispatcher.emit(committed(epoch))
    assert dispatcher.events_dropped == 4_000 - len(dispatcher.events) > 0
    dispatcher.close()
