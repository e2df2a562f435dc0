"""What a scenario streams: how many rows of which keys come in, and who is slow, over time.

A row costs a set time, in which its lane waits and computes nothing, so that more executors can be
shown than there are cores.  Everything is made from a seed: the run without a controller and the
run with one get the same files at the same moments.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from godwit.columns.hashing import hash_keys
from godwit.model.assignment import even_assignment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

__all__ = ["COLUMNS", "FILES_PER_S", "KEY_GROUPS", "ROW_MS", "SCENARIOS", "Scenario", "write_files"]

COLUMNS: Final = "k int, v long"
KEY_GROUPS: Final = 64
FILES_PER_S: Final = 4
ROW_MS: Final = 1.0
"""Time that the function takes for a row, in milliseconds."""

_KEYS: Final = 2000
_HOT_KEYS: Final = 8
_HOT_SHARE: Final = 0.6
_OLDEST_S: Final = 1.6e9
_SCHEMA: Final = pa.schema([("k", pa.int32()), ("v", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One way in which a stream shifts.

    Attributes
    ----------
    name, story
        What it is called, and what happens, in a sentence.
    executors, most
        Executors at the beginning, and those that the controller may use at most.
    rows_per_s
        Rows at rest; one executor can do 1,000 a second at most.
    surge
        Factor of the rate in the middle third.
    jumps
        How often the hot keys jump; 0: there are none.
    slowdown
        How much slower the first executor becomes after a third of the time.
    """

    name: str
    story: str
    executors: int
    most: int
    rows_per_s: int
    surge: float = 1.0
    jumps: int = 0
    slowdown: float = 1.0

    def rate(self, share: float) -> float:
        """Rows per second when `share` of the time is over."""
        return self.rows_per_s * (self.surge if 1 / 3 <= share < 2 / 3 else 1.0)

    def marks(self, seconds: float) -> list[tuple[float, str]]:
        """Give the moments at which something shifts, with what it is."""
        if self.surge > 1:
            return [
                (seconds / 3, f"{self.surge:g} times the rate"),
                (seconds * 2 / 3, "rate as before"),
            ]
        if self.jumps:
            every_s = seconds / self.jumps
            return [(n * every_s, "hot keys jump") for n in range(1, self.jumps)]
        return [(seconds / 3, f"one executor {self.slowdown:g} times slower")]


SCENARIOS: Final = {
    made.name: made
    for made in (
        Scenario(
            name="skew",
            story="Six rows of ten are of a few hot keys on one executor; every few seconds they "
            "become others, on another executor.",
            executors=4,
            most=4,
            rows_per_s=1400,
            jumps=3,
        ),
        Scenario(
            name="surge",
            story="The rate rises fourfold for a third of the time, and falls again.",
            executors=2,
            most=4,
            rows_per_s=600,
            surge=4.0,
        ),
        Scenario(
            name="straggler",
            story="After a third of the time one of the executors becomes three times slower.",
            executors=4,
            most=4,
            rows_per_s=1800,
            slowdown=3.0,
        ),
    )
}


def write_files(
    scenario: Scenario, directory: Path, *, seconds: float, seed: int
) -> list[tuple[float, Path, int]]:
    """Write everything that comes in.

    Returns
    -------
    list
        Of each file: when it comes in, in seconds from the start; its path; its rows.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    keys = np.arange(_KEYS, dtype=np.int32)
    hot = _hot_keys(scenario, keys)
    files, number = [], 0
    for tick in range(round(seconds * FILES_PER_S)):
        at_s = tick / FILES_PER_S
        count = round(scenario.rate(at_s / seconds) / FILES_PER_S)
        chosen = rng.choice(keys, count)
        if hot:
            now = hot[min(int(at_s / seconds * scenario.jumps), scenario.jumps - 1)]
            is_hot = rng.random(count) < _HOT_SHARE
            chosen[is_hot] = rng.choice(now, int(is_hot.sum()))
        values = np.arange(number, number + count, dtype=np.int64)
        path = directory / f"{tick:06d}.parquet"
        pq.write_table(pa.table([chosen, values], schema=_SCHEMA), path)
        # Spark orders files by their time of modification.
        os.utime(path, (_OLDEST_S + tick, _OLDEST_S + tick))
        files.append((at_s, path, count))
        number += count
    return files


def _hot_keys(scenario: Scenario, keys: npt.NDArray[np.int32]) -> Sequence[npt.NDArray[np.int32]]:
    """Choose for each jump keys of one executor, each in a key group of its own."""
    if not scenario.jumps:
        return ()
    names = [str(n) for n in range(scenario.executors)]
    first = even_assignment(KEY_GROUPS, names, [1] * len(names))
    key_group = hash_keys(pa.record_batch({"k": pa.array(keys)})) % KEY_GROUPS
    one_each = {int(g): key for key, g in zip(keys[::-1], key_group[::-1], strict=True)}
    return [
        np.array([one_each[g] for g in first.key_groups(names[n % len(names)])[:_HOT_KEYS]])
        for n in range(scenario.jumps)
    ]
