"""A hot key of a function with named states, on Spark: merged parts are what a plain run has."""

from __future__ import annotations

import json
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.spark.streams import Inbox, rows_of

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KEYS = ("hot", "warm", "cold")
ASKED = -1


def note(key: tuple[str], rows: Any, states: gw.types.States) -> Iterator[tuple[str, str]]:
    """Keep the sum of a key's numbers, all of them, and how often each came; tell when asked."""
    for row in rows:
        if row.v == ASKED:
            times = sorted(states.times.items())
            yield key[0], json.dumps([states.total.value, sorted(states.seen), times])
        else:
            states.total.value += row.v
            states.seen.append(row.v)
            states.times[row.v] = states.times.get(row.v, 0) + 1


def states(merge: Any = None) -> dict[str, Any]:
    """Declare the states of `note`."""
    return {
        "total": gw.ValueState(int, merge=merge),
        "seen": gw.ListState(int, merge=merge),
        "times": gw.MapState(int, int, merge=merge),
    }


def test_merged_states_of_parts_are_those_of_a_plain_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = Inbox(spark=spark, directory=tmp_path / "in", columns="k string, v long, n long")
    flow = gw.Flow("parts", num_key_groups=8)
    keyed = flow.source("rows", inbox.stream()).key_by("k")
    sinks = {"plain": gw.sinks.memory(), "parts": gw.sinks.memory()}
    for name, sink in sinks.items():
        declared = states(add if name == "parts" else None)
        noted = keyed.process(note, state=declared, output="k string, told string", name=name)
        flow.sink(f"{name}_out", noted, sink)
    rng = np.random.default_rng(3)

    def epoch() -> list[tuple[str, int, int]]:
        """Rows of which most have one key."""
        keys = rng.choice(KEYS, 80, p=[0.8, 0.1, 0.1]).tolist()
        return list(zip(keys, rng.integers(0, 9, 80).tolist(), range(80), strict=True))

    def parts() -> set[int | None]:
        frame = gw.read_state(spark, tmp_path / "ck", "parts", state="seen")
        return {part for (part,) in rows_of(frame.where("k = 'hot'").select("part"))}

    inbox.put(epoch())
    query = flow.start(checkpoint=tmp_path / "ck")
    try:
        query.processAllAvailable()
        query.hot_keys.spread("parts", "hot", left=3)
        inbox.put(epoch(), epoch())
        query.processAllAvailable()
        assert query.hot_keys["parts"] == {'["hot"]': (3, 1)}
        assert len(parts() - {None}) == 3
        query.hot_keys.gather("parts", "hot")
        inbox.put(epoch())
        query.processAllAvailable()
        assert query.hot_keys["parts"] == {}
        assert parts() == {None}
        inbox.put([(key, ASKED, 0) for key in KEYS])
        query.processAllAvailable()
    finally:
        query.stop()
    told: dict[str, dict[str, str]] = {
        name: dict(row for table in sink.epochs.values() for row in rows_of(table))
        for name, sink in sinks.items()
    }
    assert told["parts"].keys() == set(KEYS)
    assert told["parts"] == told["plain"]
