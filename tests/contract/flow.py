"""The flow of all scenarios, and what it gives where nothing happens, by plain dicts.

Rows are numbered per key, so a function that meets a wrong number has proof of a row lost, doubled
or out of order.  On the first level, `order` insists on that and `totals` adds up; on the second,
`shards` counts what `order` gives, and so does `again`, which is keyed as `order` is.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import godwit as gw
from godwit.columns.hashing import hash_keys
from godwit.model.key_groups import key_groups_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from godwit.api.flow import LogicalFlow

__all__ = [
    "COLUMNS",
    "NUM_KEY_GROUPS",
    "SHARDS",
    "Source",
    "Undisturbed",
    "add_operators",
    "key_group_of",
]

NUM_KEY_GROUPS, SHARDS = 16, 5
COLUMNS = "k int, number long"

Row = tuple[int, ...]


@dataclass
class Next:
    """State of `numbered_batch`."""

    next: int = 0


def numbered(key: tuple[int], rows: Any, seen: dict[str, int]) -> Iterable[tuple[int, int, int]]:
    for row in rows:
        if row.number != seen.get("next", 0):
            msg = f"key {key}: number {row.number} came where {seen.get('next', 0)} was due"
            raise ValueError(msg)
        seen["next"] = row.number + 1
        yield key[0], row.number, key[0] % SHARDS


def numbered_batch(rows: pa.Table, states: pa.Table, key_of_row: Any) -> Any:
    """Do what `numbered` does, for all keys at once."""
    order = np.argsort(key_of_row, kind="stable")
    key, number = key_of_row[order], rows["number"].to_numpy()[order]
    due = states["next"].to_numpy()
    place = np.arange(len(key)) - np.searchsorted(key, np.arange(len(due)))[key]
    wrong = np.flatnonzero(number != due[key] + place)
    if len(wrong):
        msg = f"number {number[wrong[0]]} of {states['k'][int(key[wrong[0]])]} came out of turn"
        raise ValueError(msg)
    shard = pa.array(rows["k"].to_numpy() % SHARDS, pa.int32())
    return rows.append_column("shard", shard), pa.table({"next": due + np.bincount(key)})


def add_operators(
    flow: LogicalFlow, source: Any, *, deep: bool, sink: Any, again: bool = False
) -> None:
    """Add the operators to a flow; `sink` makes a sink for a name."""
    keyed = flow.source("rows", source).key_by("k")
    output = "k int, number long, shard int"
    if deep:  # whichever way of the two a function is called, nothing else differs
        order = keyed.process_batch(numbered_batch, state=Next, output=output, name="order")
    else:
        order = keyed.process(numbered, state=dict, output=output, name="order")
    totals = keyed.compute(name="totals", rows=gw.count(), total=gw.sum("number"))
    streams = {"order": order, "totals": totals}
    if deep:
        streams["shards"] = order.key_by("shard").compute(
            name="shards", rows=gw.count(), total=gw.sum("number")
        )
    if again:
        streams["again"] = order.key_by("k").compute(
            name="again", rows=gw.count(), total=gw.sum("number")
        )
    for name, stream in streams.items():
        flow.sink(name, stream, sink(name))


@cache
def key_group_of(key: int) -> int:
    hashes = hash_keys(pa.record_batch({"k": pa.array([key], pa.int32())}))
    return int(key_groups_of(hashes, NUM_KEY_GROUPS)[0])


class Source:
    """Makes the rows, numbered per key."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._next: dict[int, int] = defaultdict(int)

    def rows(self, count: int, keys: int) -> list[tuple[int, int]]:
        made = []
        for _ in range(count):
            key = self._random.randrange(keys)
            made.append((key, self._next[key]))
            self._next[key] += 1
        return made


class Undisturbed:
    """Results of a run in which nothing is disturbed."""

    def __init__(self, *, deep: bool, again: bool = False) -> None:
        self._sums: dict[str, dict[int, list[int]]] = {"totals": {}}
        if deep:
            self._sums["shards"] = {}
        if again:
            self._sums["again"] = {}
        self.order: dict[int, list[int]] = defaultdict(list)
        self.epochs: dict[str, list[Counter[Row]]] = {name: [] for name in ("order", *self._sums)}

    def epoch(self, rows: Sequence[tuple[int, int]]) -> None:
        touched: dict[str, set[int]] = {name: set() for name in self._sums}
        for key, number in rows:
            self.order[key].append(number)
            for name, sums in self._sums.items():
                of = key % SHARDS if name == "shards" else key
                held = sums.setdefault(of, [0, 0])
                held[0] += 1
                held[1] += number
                touched[name].add(of)
        self.epochs["order"].append(Counter((k, n, k % SHARDS) for k, n in rows))
        for name, keys in touched.items():
            self.epochs[name].append(Counter((k, *self._sums[name][k]) for k in keys))

    def newest(self, sink: str) -> dict[int, Row]:
        """Key → its newest row, in a sink of sums."""
        return {key: tuple(sums) for key, sums in self._sums[sink].items()}
