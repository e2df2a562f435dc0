"""A stream that is keyed by no column gives what it gives keyed by a constant column."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.rounds import rounds

import godwit as gw

if TYPE_CHECKING:
    from collections.abc import Callable

COLUMNS = pa.schema({"one": pa.int32(), "v": pa.int64(), "ts": pa.timestamp("us", "UTC")})
MINUTE_US = 60_000_000


def results(rng: random.Random) -> dict[str, Any]:
    """Some aggregates."""
    known = {
        "n": gw.count(),
        "total": gw.sum("v * 2 - 1"),
        "late": gw.count(where="v % 3 = 0"),
        "often": gw.most_frequent("v % 4", 2),
        "top": gw.top_k("v", 3),
        "last": gw.last("v"),
        "ratio": gw.mean("case when v <> 0 then 12 / v end"),
    }
    names = rng.sample([*known], rng.randint(1, 4))
    return {name: known[name] for name in names}


def operator(rng: random.Random) -> Callable[[Any], Any]:
    """An operator over a keyed stream."""
    aggregates = results(rng)
    minutes = rng.randint(1, 6)
    kind = rng.choice(["plain", "changes", "complete", "tumbling", "hopping", "session", "rows"])
    if kind in ("plain", "changes", "complete"):
        output: Any = "update" if kind == "plain" else kind
        return lambda keyed: keyed.compute(aggregates, output=output, name="o")
    window: Any = {
        "tumbling": gw.tumbling(f"{minutes} minutes"),
        "hopping": gw.hopping(f"{2 * minutes} minutes", every=f"{minutes} minutes"),
        "session": gw.session(f"{minutes} minutes"),
        "rows": gw.rows(minutes),
    }[kind]
    apart: Any = {"consolidate": "apart"} if kind in ("tumbling", "hopping") else {}
    if kind in ("tumbling", "hopping"):
        aggregates.pop("last", None)  # windows apart see no order that rows have
        aggregates.setdefault("n", gw.count())
    return lambda keyed: keyed.window(window, name="o", **apart).compute(aggregates)


@pytest.mark.parametrize("seed", range(rounds(3, 25)))
def test_results_are_those_of_a_constant_key(seed: int) -> None:
    rng = random.Random(seed)
    of = operator(rng)
    epochs = []
    now = 1_772_323_200_000_000
    for _ in range(rng.randint(2, 4)):
        rows = []
        for _ in range(rng.randint(0, 40)):
            now += rng.choice([0, 0, MINUTE_US // 2, 3 * MINUTE_US])
            value = None if rng.random() < 0.1 else rng.randrange(-6, 7)
            rows.append((1, value, now))
        columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, COLUMNS, strict=True)]
        epochs.append(pa.table(arrays, schema=COLUMNS))
    emitted = []
    for keys in ([], ["one"]):
        flow = gw.Flow("either", num_key_groups=4)
        stream = flow.source("rows", gw.testing.stream(COLUMNS), event_time="ts")
        flow.sink("out", of(stream.key_by(*keys)), gw.sinks.noop())
        with gw.testing.cluster(flow, executors=2) as played:
            for number, rows_of_epoch in enumerate(epochs):
                played.epoch({"rows": rows_of_epoch})
                played.migrate("12"[number % 2], component="o")
            played.end_input()
            found = played.rows("out")
        emitted.append(found.select([n for n in found.column_names if n != "one"]).to_pylist())
    assert emitted[0] == emitted[1]
