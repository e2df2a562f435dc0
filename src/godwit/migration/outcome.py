"""Outcome of an epoch as one value, and recent loads of key groups.

Facts for the protocol, load statistics, progress and the journal are projections of an outcome, so
they agree.

Planners and the controller need the load of every key group, also after a restart of the driver;
but thousands of numbers per epoch are too much for the journal.  So epochs are summed, and the sums
are written periodically: four columns, two bytes a number (the logarithm, exact to a tenth of a
percent), compressed.  The period grows with the number of key groups, so that an epoch adds some
kilobytes to the journal at most.
"""

from __future__ import annotations

import base64
import zlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from godwit.model.key_groups import KeyGroupLoad, KeyGroupPairs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.model.key_groups import OperatorWork


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentTraffic:
    """Rows and bytes sent to one component in one epoch, counted by the senders."""

    key_groups: tuple[int, ...]  # key groups with sent rows, ascending
    # rows, size_bytes: rows (or partial states) sent to each, and their share of the bytes
    rows: tuple[int, ...]
    size_bytes: tuple[int, ...]
    crossed_bytes: int  # bytes sent to other executors than the sender's
    cpu_ms: float = 0.0  # CPU time of operators upstream to split and serialise them
    # component upstream → rows from its key groups to those of this one, before any combining,
    # where significant (`godwit.model.key_groups`)
    pairs: Mapping[str, KeyGroupPairs] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOutcome:
    """All results and costs of one committed epoch."""

    epoch: int
    batch: int | None = None  # number of its micro-batch; ``None``: an epoch without input
    # rows_in, rows_out: source rows after the DataFrame maps, and rows given to sinks and operators
    rows_in: int = 0
    rows_out: int = 0
    sink_rows: Mapping[str, int] = field(default_factory=dict)  # sink → rows staged for it
    # component → load of its key groups
    loads: Mapping[str, KeyGroupLoad] = field(default_factory=dict)
    # component → bytes to read to restore all its key groups
    total_state_bytes: Mapping[str, int] = field(default_factory=dict)
    # component → rows that operators upstream sent to it; sources are not counted
    traffic: Mapping[str, ComponentTraffic] = field(default_factory=dict)
    # (operator, downstream operator) → number of rows from one to the other, and their bytes in
    # memory, with or without an exchange between them
    streams: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    # executor_cpu_ms, executor_busy_ms: executor → CPU milliseconds of its lanes for key groups,
    # and milliseconds that they were busy, all components together
    executor_cpu_ms: Mapping[str, float] = field(default_factory=dict)
    executor_busy_ms: Mapping[str, float] = field(default_factory=dict)
    # component → key groups whose rows went to the wait buffer
    waited: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    # component → executor → key group → epoch up to which the copy there is complete
    reach: Mapping[str, Mapping[str, Mapping[int, int]]] = field(default_factory=dict)
    # executor → state → key group → version of the table in the local store there
    tables: Mapping[str, Mapping[Any, Mapping[int, int]]] = field(default_factory=dict)
    # source, or ``<source>/<operator>`` where maps recompute the event time → watermark after
    # the epoch, microseconds since 1970-01-01 UTC
    watermarks: Mapping[str, int] = field(default_factory=dict)
    # watermark that the epoch of a query of Spark's ran with; ``None`` before there is one
    query_watermark: int | None = None
    # operator → reason → rows outside of all its windows: ``late`` for all of them, too far
    # ``ahead`` of the clock, ``untimed``
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # operator → key, as JSON → share of a hot key in the operator's work: of rows if senders
    # combine them, of rows and pairs of a join, else of time
    hot_keys: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # operator → its work, and the keys with most of it
    key_work: Mapping[str, OperatorWork] = field(default_factory=dict)
    # operator → partials of closed windows whose key was in two slots
    held_twice: Mapping[str, int] = field(default_factory=dict)
    # of state that lanes have begun to read, and have still to read
    unread_bytes: int = 0
    # of a run with a bound on the memory of state: bytes of the tables of all executors, number of
    # key groups whose entries left them, and of keys whose entries were fetched
    table_bytes: int = 0
    evicted: Mapping[str, int] = field(default_factory=dict)
    fetched_keys: int = 0
    # state of a slot → key groups without entries
    empty: Mapping[Any, frozenset[int]] = field(default_factory=dict)
    # changelog_bytes, snapshot_bytes: bytes written
    changelog_bytes: int = 0
    snapshot_bytes: int = 0
    # phase of the lanes → milliseconds, the sum over lanes
    lane_ms: Mapping[str, float] = field(default_factory=dict)
    # kind → requests of the lanes to the object store of the checkpoint
    lane_requests: Mapping[str, int] = field(default_factory=dict)


_EPOCHS: Final = 16
_KEY_GROUPS: Final = 32_768
_STEPS: Final = 1024  # of the logarithm to base 2, of numbers below 2**63


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadSummary:
    """Loads over some epochs with input, as stored in the journal."""

    epoch: int  # the last of them
    epochs: int  # number of epochs
    num_key_groups: int = 0  # of each component; 0: not known
    # Component → total load of its key groups, and their state bytes after the last epoch. Distinct
    # keys are summed too: a key counts in every epoch that touched it.
    loads: Mapping[str, KeyGroupLoad]

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain values for the journal."""
        return {
            "epoch": self.epoch,
            "epochs": self.epochs,
            "num_key_groups": self.num_key_groups,
            "loads": {
                name: {
                    "key_groups": packed_column(np.diff(load.key_groups, prepend=0).astype("<u2")),
                    "rows": packed_column(_encode_logarithms(load.rows)),
                    "cpu_ms": packed_column(_encode_logarithms(load.cpu_ms)),
                    "busy_ms": packed_column(_encode_logarithms(load.busy_ms)),
                    "state_bytes": packed_column(_encode_logarithms(load.state_bytes)),
                }
                for name, load in self.loads.items()
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LoadSummary | None:
        """Restore a summary from the values of `to_dict`; ``None`` if they are not valid."""
        try:
            loads = {}
            for name, columns in values["loads"].items():
                key_groups = np.cumsum(unpacked_column(columns["key_groups"]), dtype=np.int64)
                numbers = {c: _decode_logarithms(unpacked_column(columns[c])) for c in _COLUMNS}
                if any(len(column) != len(key_groups) for column in numbers.values()):
                    return None
                loads[str(name)] = KeyGroupLoad(
                    key_groups=key_groups,
                    rows=np.rint(numbers["rows"]).astype(np.int64),
                    keys=np.zeros(len(key_groups), np.int64),
                    cpu_ms=numbers["cpu_ms"],
                    busy_ms=numbers["busy_ms"],
                    state_bytes=np.rint(numbers["state_bytes"]).astype(np.int64),
                )
            return cls(
                epoch=int(values["epoch"]),
                epochs=int(values["epochs"]),
                num_key_groups=int(values.get("num_key_groups", 0)),
                loads=loads,
            )
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, zlib.error):
            return None


_COLUMNS: Final = ("rows", "cpu_ms", "busy_ms", "state_bytes")


class RecentLoad:
    """Loads of the last epochs with input."""

    def __init__(self, remembered: LoadSummary | None = None) -> None:
        self._last_outcomes: deque[EpochOutcome] = deque(maxlen=_EPOCHS)
        self._remembered_load = remembered
        self._epochs_unwritten = 0

    def add_epoch(self, outcome: EpochOutcome) -> None:
        """Add the outcome of an epoch; one without input does not count."""
        if outcome.batch is not None:
            self._last_outcomes.append(outcome)
            self._epochs_unwritten += 1

    def busy_ms(self, component: str) -> tuple[Mapping[int, float], ...]:
        """Return key group → busy milliseconds, for each of the last epochs with input."""
        if not self._last_outcomes and self._remembered_load is not None:
            load = self._remembered_load.loads.get(component)
            epochs = max(self._remembered_load.epochs, 1)
            return () if load is None else (_by_key_group(load, 1 / epochs),)
        loads = [o.loads[component] for o in self._last_outcomes if component in o.loads]
        return tuple(_by_key_group(load, 1.0) for load in loads)

    def mean_busy_ms(self, component: str) -> dict[int, float]:
        """Return key group → mean busy milliseconds of lanes in an epoch with input."""
        total: dict[int, float] = {}
        epochs = self.busy_ms(component)
        for epoch in epochs:
            for key_group, busy_ms in epoch.items():
                total[key_group] = total.get(key_group, 0.0) + busy_ms / len(epochs)
        return total

    def mean_keys(self, component: str) -> dict[int, float]:
        """Return key group → mean number of keys that an epoch with input touched."""
        total: dict[int, float] = {}
        loads = [o.loads[component] for o in self._last_outcomes if component in o.loads]
        for load in loads:
            for key_group, keys in zip(load.key_groups.tolist(), load.keys.tolist(), strict=True):
                total[key_group] = total.get(key_group, 0.0) + keys / len(loads)
        return total

    def mean_executor_busy_ms(self) -> dict[str, float]:
        """Return executor → mean busy milliseconds of its lanes in an epoch with input."""
        total: dict[str, float] = {}
        for outcome in self._last_outcomes:
            for executor, busy_ms in outcome.executor_busy_ms.items():
                total[executor] = total.get(executor, 0.0) + busy_ms / len(self._last_outcomes)
        return total

    def mean_pairs(self) -> dict[tuple[str, str], KeyGroupPairs]:
        """Return (sender, receiver component) → mean rows between key groups in an epoch."""
        parts: dict[tuple[str, str], list[KeyGroupPairs]] = {}
        for outcome in self._last_outcomes:
            for downstream, traffic in outcome.traffic.items():
                for upstream, pairs in traffic.pairs.items():
                    parts.setdefault((upstream, downstream), []).append(pairs)
        share = 1 / max(len(self._last_outcomes), 1)
        return {
            between: KeyGroupPairs.total(pairs).times(share)
            for between, pairs in sorted(parts.items())
        }

    def due_summary(self) -> LoadSummary | None:
        """Return a summary of the last epochs if the journal should get one now; else ``None``."""
        if self._epochs_unwritten < _EPOCHS:
            return None
        latest = self._last_outcomes[-1]
        touched = sum(len(load.key_groups) for load in latest.loads.values())
        if self._epochs_unwritten < _EPOCHS * -(-touched // _KEY_GROUPS):
            return None
        self._epochs_unwritten = 0
        names = sorted({name for outcome in self._last_outcomes for name in outcome.loads})
        return LoadSummary(
            epoch=latest.epoch,
            epochs=len(self._last_outcomes),
            loads={
                name: KeyGroupLoad.total(
                    [o.loads[name] for o in self._last_outcomes if name in o.loads]
                )
                for name in names
            },
        )


def _by_key_group(load: KeyGroupLoad, factor: float) -> dict[int, float]:
    """Return key group → busy milliseconds of lanes, multiplied by `factor`."""
    return dict(zip(load.key_groups.tolist(), (load.busy_ms * factor).tolist(), strict=True))


def _encode_logarithms(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Encode non-negative numbers as 16-bit logarithms, exact to a tenth of a percent."""
    steps: npt.NDArray[np.uint16] = np.rint(np.log2(1 + numbers * 1000.0) * _STEPS).astype("<u2")
    return steps


def _decode_logarithms(logarithms: npt.NDArray[np.uint16]) -> npt.NDArray[np.float64]:
    """Decode the numbers that `_encode_logarithms` encoded."""
    return (np.exp2(logarithms / _STEPS) - 1) / 1000.0


def packed_column(column: npt.NDArray[Any]) -> str:
    """Compress an array to base64 text."""
    return base64.b64encode(zlib.compress(column.tobytes())).decode()


def unpacked_column(text: str) -> npt.NDArray[np.uint16]:
    """Decompress an array of 16-bit numbers from base64 text, up to a bound on its size."""
    bound = zlib.decompressobj()
    return np.frombuffer(bound.decompress(base64.b64decode(text), 2 * _KEY_GROUPS), "<u2")
