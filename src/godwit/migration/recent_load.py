"""Recent cost of key groups, for planners and for the run after a restart.

The problem: a load statistic of every key group is what planners and a controller live on, and it
is gone with the driver; but a list of thousands of numbers an epoch would drown the journal.

So epochs are summed up, and the sums are written now and then: four columns, two bytes a number
(the logarithm, exact to a tenth of a percent), packed.  The more key groups there are the rarer, so
that an epoch adds some kilobytes to the journal at most, however many there are.
"""

from __future__ import annotations

import base64
import zlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from godwit.migration.outcome import ComponentLoad
from godwit.model.key_groups import KeyGroupPairs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.migration.outcome import EpochOutcome

__all__ = ["LoadSummary", "RecentLoad"]

_EPOCHS: Final = 16
_KEY_GROUPS: Final = 32_768
_STEPS: Final = 1024  # of the logarithm to base 2, of numbers below 2**63


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadSummary:
    """Loads of some epochs with input, added up."""

    epoch: int  # the last of them
    epochs: int  # how many
    # Component → what its key groups cost in all of them, and their state bytes after the last.
    # Distinct keys are added up too: a key counts in every epoch that touched it.
    loads: Mapping[str, ComponentLoad]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the journal."""
        return {
            "epoch": self.epoch,
            "epochs": self.epochs,
            "loads": {
                name: {
                    "key_groups": _packed(np.diff(load.key_groups, prepend=0).astype("<u2")),
                    "rows": _packed(_logarithms(load.rows)),
                    "cpu_ms": _packed(_logarithms(load.cpu_ms)),
                    "busy_ms": _packed(_logarithms(_busy_ms(load))),
                    "state_bytes": _packed(_logarithms(load.state_bytes)),
                }
                for name, load in self.loads.items()
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LoadSummary | None:
        """Undo `to_dict`, but for rounding; ``None`` if it is damaged or of another version."""
        try:
            loads = {}
            for name, columns in values["loads"].items():
                key_groups = np.cumsum(_unpacked(columns["key_groups"]), dtype=np.int64)
                numbers = {c: _numbers(_unpacked(columns[c])) for c in _COLUMNS}
                if any(len(column) != len(key_groups) for column in numbers.values()):
                    return None
                loads[str(name)] = ComponentLoad(
                    key_groups=key_groups,
                    rows=np.rint(numbers["rows"]).astype(np.int64),
                    keys=np.zeros(len(key_groups), np.int64),
                    cpu_ms=numbers["cpu_ms"],
                    busy_ms=numbers["busy_ms"],
                    state_bytes=np.rint(numbers["state_bytes"]).astype(np.int64),
                )
            return cls(epoch=int(values["epoch"]), epochs=int(values["epochs"]), loads=loads)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, zlib.error):
            return None


_COLUMNS: Final = ("rows", "cpu_ms", "busy_ms", "state_bytes")


class RecentLoad:
    """The last epochs with input."""

    def __init__(self, remembered: LoadSummary | None = None) -> None:
        self._outcomes: deque[EpochOutcome] = deque(maxlen=_EPOCHS)
        self._remembered = remembered
        self._unwritten = 0

    def take(self, outcome: EpochOutcome) -> None:
        """Take the outcome of an epoch."""
        if outcome.batch is not None:
            self._outcomes.append(outcome)
            self._unwritten += 1

    def cpu_ms(self, component: str) -> tuple[Mapping[int, float], ...]:
        """Key group → CPU time, for each of the last epochs with input, oldest first."""
        if not self._outcomes and self._remembered is not None:
            kept = self._remembered.loads.get(component)
            epochs = max(self._remembered.epochs, 1)
            return () if kept is None else (_by_key_group(kept, 1 / epochs),)
        loads = [o.loads[component] for o in self._outcomes if component in o.loads]
        return tuple(_by_key_group(load, 1.0) for load in loads)

    def mean_cpu_ms(self, component: str) -> dict[int, float]:
        """Key group → CPU time an epoch with input cost, the mean over the last ones."""
        total: dict[int, float] = {}
        epochs = self.cpu_ms(component)
        for epoch in epochs:
            for key_group, cpu_ms in epoch.items():
                total[key_group] = total.get(key_group, 0.0) + cpu_ms / len(epochs)
        return total

    def mean_pairs(self) -> dict[tuple[str, str], KeyGroupPairs]:
        """(Component upstream, downstream) → rows an epoch with input sent, by key groups."""
        parts: dict[tuple[str, str], list[KeyGroupPairs]] = {}
        for outcome in self._outcomes:
            for downstream, traffic in outcome.traffic.items():
                for upstream, pairs in traffic.pairs.items():
                    parts.setdefault((upstream, downstream), []).append(pairs)
        share = 1 / max(len(self._outcomes), 1)
        return {
            between: KeyGroupPairs.total(found).times(share)
            for between, found in sorted(parts.items())
        }

    def due_summary(self) -> LoadSummary | None:
        """Sum up the last epochs, if it is time to write that down; ``None`` if it is not."""
        if self._unwritten < _EPOCHS:
            return None
        latest = self._outcomes[-1]
        touched = sum(len(load.key_groups) for load in latest.loads.values())
        if self._unwritten < _EPOCHS * -(-touched // _KEY_GROUPS):
            return None
        self._unwritten = 0
        names = sorted({name for outcome in self._outcomes for name in outcome.loads})
        return LoadSummary(
            epoch=latest.epoch,
            epochs=len(self._outcomes),
            loads={
                name: _summed([o.loads[name] for o in self._outcomes if name in o.loads])
                for name in names
            },
        )


def _busy_ms(load: ComponentLoad) -> npt.NDArray[np.float64]:
    return load.busy_ms if len(load.busy_ms) else load.cpu_ms


def _by_key_group(load: ComponentLoad, factor: float) -> dict[int, float]:
    return dict(zip(load.key_groups.tolist(), (load.cpu_ms * factor).tolist(), strict=True))


def _summed(loads: list[ComponentLoad]) -> ComponentLoad:
    size = 1 + max((int(load.key_groups[-1]) for load in loads if len(load.key_groups)), default=-1)
    rows, keys, state_bytes = np.zeros((3, size), np.int64)
    cpu_ms, busy_ms = np.zeros((2, size))
    touched = np.zeros(size, np.bool_)
    for load in loads:
        touched[load.key_groups] = True
        rows[load.key_groups] += load.rows
        keys[load.key_groups] += load.keys
        cpu_ms[load.key_groups] += load.cpu_ms
        busy_ms[load.key_groups] += _busy_ms(load)
        state_bytes[load.key_groups] = load.state_bytes
    of = np.flatnonzero(touched)
    return ComponentLoad(
        key_groups=of,
        rows=rows[of],
        keys=keys[of],
        cpu_ms=cpu_ms[of],
        busy_ms=busy_ms[of],
        state_bytes=state_bytes[of],
    )


def _logarithms(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Numbers from 0 as steps of the logarithm of a thousandth of one and more."""
    steps: npt.NDArray[np.uint16] = np.rint(np.log2(1 + numbers * 1000.0) * _STEPS).astype("<u2")
    return steps


def _numbers(logarithms: npt.NDArray[np.uint16]) -> npt.NDArray[np.float64]:
    return (np.exp2(logarithms / _STEPS) - 1) / 1000.0


def _packed(column: npt.NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(column.tobytes())).decode()


def _unpacked(text: str) -> npt.NDArray[np.uint16]:
    bound = zlib.decompressobj()
    return np.frombuffer(bound.decompress(base64.b64decode(text), 2 * _KEY_GROUPS), "<u2")
