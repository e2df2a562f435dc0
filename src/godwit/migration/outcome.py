"""Outcome of an epoch as one value, from the reports of its lanes and the commit record.

Facts for the protocol, load statistics, progress and the journal are projections of it; nobody
joins several sources to know what an epoch did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from godwit.migration.inputs import EpochSucceeded
from godwit.model.key_groups import PerKeyGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from godwit.model.key_groups import KeyGroupPairs

__all__ = ["ComponentLoad", "ComponentTraffic", "EpochOutcome"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComponentLoad:
    """Cost of the key groups of one component in one epoch: columns, one entry per key group.

    Shape ``(n,)`` each.
    """

    key_groups: npt.NDArray[np.int64]  # those that were touched, ascending
    # rows, keys: rows (or partial states) that came in, and distinct keys among them
    rows: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]
    cpu_ms: npt.NDArray[np.float64]  # CPU time, measured where it is spent
    # bytes of state: what bringing an empty copy to the committed version reads from the
    # checkpoint, its snapshot and the changelog after it
    state_bytes: npt.NDArray[np.int64]
    # Time that lanes were busy with each, in milliseconds: CPU time and whatever they waited for
    # meanwhile (a call, a disk, a core). Empty where it was not measured: then CPU time stands for
    # it.
    busy_ms: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    @property
    def busy_s(self) -> npt.NDArray[np.float64]:
        """Seconds that lanes were busy with each, as far as it was measured."""
        return (self.busy_ms if len(self.busy_ms) else self.cpu_ms) / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentTraffic:
    """Traffic from operators upstream to one component in one epoch, counted by the senders."""

    key_groups: tuple[int, ...]  # those of the component that something was sent to, ascending
    # rows, size_bytes: rows (or partial states) sent to each, and their share of the bytes
    rows: tuple[int, ...]
    size_bytes: tuple[int, ...]
    crossed_bytes: int  # bytes that went to another executor than the sender's
    cpu_ms: float = 0.0  # CPU time that operators upstream spent on parting and serialising them
    # component upstream → rows from its key groups to those of this one, before any were combined,
    # as far as they say anything (`godwit.model.key_groups`)
    pairs: Mapping[str, KeyGroupPairs] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOutcome:
    """One committed epoch."""

    epoch: int
    batch: int | None = None  # the micro-batch that it covered; ``None``: an epoch without input
    # rows_in, rows_out: source rows after the DataFrame maps, and rows given to sinks and operators
    rows_in: int = 0
    rows_out: int = 0
    sink_rows: Mapping[str, int] = field(default_factory=dict)  # sink → rows staged for it
    # component → what its key groups cost
    loads: Mapping[str, ComponentLoad] = field(default_factory=dict)
    # component → what operators upstream sent to it; sources are not counted
    traffic: Mapping[str, ComponentTraffic] = field(default_factory=dict)
    # (Operator, operator that it feeds) → rows that it made for it, and their bytes in memory,
    # whether or not there is an exchange between the two
    streams: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    # executor_cpu_ms, executor_busy_ms: executor → milliseconds of CPU that its lanes spent on key
    # groups, and milliseconds that they were busy with them, all components together
    executor_cpu_ms: Mapping[str, float] = field(default_factory=dict)
    executor_busy_ms: Mapping[str, float] = field(default_factory=dict)
    # component → key groups whose rows went to the wait buffer
    waited: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # component → executor → key group → epoch up to which the copy there misses nothing
    reach: Mapping[str, Mapping[str, Mapping[int, int]]] = field(default_factory=dict)
    # executor → state → key group → version of the table in the local store there
    tables: Mapping[str, Mapping[Any, Mapping[int, int]]] = field(default_factory=dict)
    # source, or ``<source>/<operator>`` where maps compute the event time anew → watermark as the
    # epoch left it, microseconds since 1970-01-01 UTC
    watermarks: Mapping[str, int] = field(default_factory=dict)
    # operator → reason → rows that belong to none of its windows: ``late`` for all of them, too far
    # ``ahead`` of the clock, ``untimed``
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # operator → key, as JSON → share of the operator's rows, of keys that are hot
    hot_keys: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # operator → partials, of windows that were over, of keys that were held in two slots
    held_twice: Mapping[str, int] = field(default_factory=dict)
    # state that is a slot → key groups of which it holds nothing
    empty: Mapping[Any, frozenset[int]] = field(default_factory=dict)
    # changelog_bytes, snapshot_bytes: what was written
    changelog_bytes: int = 0
    snapshot_bytes: int = 0
    # phase of the lanes → milliseconds, the sum over lanes
    lane_ms: Mapping[str, float] = field(default_factory=dict)

    def fact(self) -> EpochSucceeded:
        """Return what the protocol needs to know."""
        return EpochSucceeded(
            epoch=self.epoch,
            waited=self.waited,
            held=self.reach,
            state_bytes={
                name: PerKeyGroup(load.key_groups, load.state_bytes)
                for name, load in self.loads.items()
            },
            empty=self.empty,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the journal; loads summed over key groups."""
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "sink_rows": dict(self.sink_rows),
            "executor_cpu_ms": {name: round(ms, 3) for name, ms in self.executor_cpu_ms.items()},
            "executor_busy_ms": {name: round(ms, 3) for name, ms in self.executor_busy_ms.items()},
            "waiting": {name: len(waited) for name, waited in self.waited.items()},
            "loads": {
                name: {
                    "key_groups": len(load.key_groups),
                    "rows": int(load.rows.sum()),
                    "keys": int(load.keys.sum()),
                    "cpu_ms": round(float(load.cpu_ms.sum()), 3),
                }
                for name, load in self.loads.items()
            },
            "traffic": {
                name: {
                    "rows": sum(sent.rows),
                    "size_bytes": sum(sent.size_bytes),
                    "crossed_bytes": sent.crossed_bytes,
                }
                for name, sent in self.traffic.items()
            },
            "streams": [
                {"from": sender, "to": receiver, "rows": rows, "size_bytes": size}
                for (sender, receiver), (rows, size) in self.streams.items()
            ],
            "watermarks": dict(self.watermarks),
            "left_out": {name: dict(counts) for name, counts in self.left_out.items()},
            "held_twice": dict(self.held_twice),
            "hot_keys": {
                name: {key: round(share, 4) for key, share in keys.items()}
                for name, keys in self.hot_keys.items()
            },
            "changelog_bytes": self.changelog_bytes,
            "snapshot_bytes": self.snapshot_bytes,
            "lane_ms": {phase: round(ms, 1) for phase, ms in self.lane_ms.items()},
        }
