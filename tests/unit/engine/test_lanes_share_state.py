"""Lanes of one executor share its local store: a key group changes lane, and no state is copied."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import godwit as gw
from godwit.checkpoint.storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from godwit.testing.flows import Run

KEYS, KEY_BYTES = 16, 4_096


def hold(
    key: tuple[int], rows: gw.types.KeyRows, seen: dict[str, Any]
) -> Iterator[tuple[int, int]]:
    """Hold some bytes for every key, and count its rows."""
    for _ in rows:
        seen.setdefault("held", np.random.default_rng(key[0]).bytes(KEY_BYTES))
        seen["rows"] = seen.get("rows", 0) + 1
        yield key[0], seen["rows"]


class Reads:
    """Bytes read from the checkpoint since it was asked last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._size, read = 0, LocalStorage.read

        def counted(storage: LocalStorage, *given: Any, **named: Any) -> Any:
            data = read(storage, *given, **named)
            self._size += len(data)
            return data

        monkeypatch.setattr(LocalStorage, "read", counted)

    def take(self) -> int:
        size, self._size = self._size, 0
        return size


def stream() -> Run:
    """One key group with the state of all keys, on the first lane of the first executor."""
    flow = gw.Flow("shared", num_key_groups=1)
    source = flow.source("rows", gw.testing.stream("k int"))
    counted = source.key_by("k").process(hold, state=dict, output="k int, n int", name="hold")
    flow.sink("out", counted, gw.sinks.memory())
    return gw.testing.cluster(flow, executors={"a": 2, "b": 2})


def move(played: Run, executor: int, lane: int) -> None:
    now = played.placement.assignments["hold"]
    assert (int(now.executor_of[0]), int(now.lane_of[0])) != (executor, lane)
    target = replace(
        now,
        version=now.version + 1,
        executor_of=np.array([executor], np.int32),
        lane_of=np.array([lane], np.int32),
    )
    played.migrate(target, component="hold")
    after = played.placement.assignments["hold"]
    assert (int(after.executor_of[0]), int(after.lane_of[0])) == (executor, lane)


def counts(played: Run) -> list[int]:
    """Take a row of every key; return how many each has had."""
    rows = played.epoch({"rows": [{"k": k} for k in range(KEYS)]})["out"]
    return sorted(rows["n"].to_pylist())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def test_a_lane_takes_a_key_group_over_from_its_sibling_without_reading_or_copying_it(
    reads: Reads,
) -> None:
    with stream() as played:
        assert counts(played) == [1] * KEYS
        played.epoch({"rows": [{"k": KEYS}]})  # from here on the state of the others is at rest
        played.epoch({"rows": [{"k": KEYS}]})
        reads.take()
        played.epoch({"rows": [{"k": KEYS}]})
        usual = reads.take()
        for lane in (1, 0):
            move(played, 0, lane)
            played.epoch({"rows": [{"k": KEYS}]})
            assert reads.take() <= usual + KEY_BYTES  # of the one key that each epoch changes
        assert not [e for e in played.events if isinstance(e, gw.events.KeyGroupsWarmed)]
        assert counts(played) == [2] * KEYS


def test_another_executor_has_to_get_all_of_it() -> None:
    with stream() as played:
        counts(played)
        for _ in range(8):  # what few epochs have changed is not warmed, but read by the next
            played.epoch({"rows": [{"k": KEYS}]})
        move(played, 1, 0)
        (warmed,) = [e for e in played.events if isinstance(e, gw.events.KeyGroupsWarmed)]
        assert warmed.state_bytes >= KEYS * KEY_BYTES
        assert counts(played) == [2] * KEYS
