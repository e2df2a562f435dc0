"""Entries of a run for the journal, beside events and figures of epochs.

``flow``: the graph (`godwit.plan.explain`), when the run begins, when its components change, and
again now and then, since old segments are deleted.  ``placement``: where key groups are, of those
that changed place.  ``load``: loads of key groups over some epochs
(`godwit.migration.outcome.LoadSummary`).  ``stream``: figures of the same epochs
(`StreamSummary`), from which `godwit what-if` plays the stream with other executors; for that one
has to know besides the loads what of an epoch's time is fixed and what grows with its rows, how
many rows came when, where key groups were, and which components run together.

Invariant: an epoch adds no more than the key groups that it moved, four bytes each, and one line
with its figures to the next summary, which has at most `_EPOCHS` of them and two bytes for the
place of each key group.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from godwit.engine.policies import Topology, busiest_lane_s, topology_of
from godwit.migration.outcome import packed_column, unpacked_column
from godwit.model.assignment import Assignment
from godwit.model.errors import GodwitError
from godwit.plan.explain import graph_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.engine.policies import CommittedEpoch, FlowEpoch
    from godwit.migration.outcome import LoadSummary
    from godwit.placement.arrays import FloatArray
    from godwit.plan.compiled import CompiledFlow


_GRAPH_EVERY: Final = 256  # epochs, fewer than a journal keeps


class RunRecorder:
    """Makes the journal's entries of a run from committed epochs.

    `note` takes kind and values of entries for the journal.
    """

    def __init__(
        self,
        note: Callable[[str, Callable[[], Mapping[str, Any]]], None],
        *,
        trigger_s: float = 0.0,  # least time between the beginnings of epochs with input
    ) -> None:
        self._note, self._trigger_s = note, trigger_s
        self._stream = StreamRecorder()
        self._flow: CompiledFlow | None = None
        self._topology = Topology(stages=())
        self._graph_due = 0
        self._places: Mapping[str, Assignment] = {}

    def committed(self, epoch: FlowEpoch) -> None:
        """Record the flow, moved key groups and figures of a committed epoch in the journal."""
        flow, number = epoch.flow, epoch.outcome.epoch
        if flow is not self._flow or number >= self._graph_due:
            if flow is not self._flow:
                self._topology = topology_of(flow, self._trigger_s)
                self._stream.forget()
            self._flow, self._graph_due = flow, number + _GRAPH_EVERY
            self._note("flow", lambda: graph_of(flow))
        before = self._places
        self._places = {name: plan.assignment for name, plan in epoch.component_views.items()}
        moved = {
            name: (before.get(name), assignment)
            for name, assignment in self._places.items()
            if assignment is not before.get(name) and assignment != before.get(name)
        }
        if moved:
            self._note("placement", lambda: placement_entry(number, moved))
        self._stream.observe(epoch, self._topology, epoch.at_s)

    def loads(self, load: LoadSummary) -> None:
        """Record a summary of loads and epochs in the journal."""
        self._note("load", load.to_dict)
        if (stream := self._stream.summary(self._topology)) is not None:
            self._note(STREAM, stream.to_dict)


def placement_entry(
    epoch: int, moved: Mapping[str, tuple[Assignment | None, Assignment]]
) -> dict[str, Any]:
    """Return the journal's entry about key groups that changed executor or lane.

    `moved`: component → its previous assignment (``None`` if unknown), and the present one.
    """
    return {
        "epoch": epoch,
        "components": {name: _changed_places(before, now) for name, (before, now) in moved.items()},
    }


def _changed_places(before: Assignment | None, now: Assignment) -> dict[str, Any]:
    """Return, as plain values, the key groups that changed executor or lane, and where they are.

    Lanes are numbered over all executors.
    """
    flat = now.flat_lanes()
    changed = np.ones(len(flat), np.bool_)
    if before is not None and (before.executors, before.lanes) == (now.executors, now.lanes):
        changed = before.flat_lanes() != flat
    key_groups = np.flatnonzero(changed)
    return {
        "executors": list(now.executors),
        "lanes": list(now.lanes),
        "keyGroups": len(flat),
        "key_groups": packed_column(np.diff(key_groups, prepend=0).astype("<u2")),
        "lane_of": packed_column(flat[key_groups].astype("<u2")),
    }


STREAM: Final = "stream"
"""Kind of the journal's entries of `StreamSummary`."""
_EPOCHS: Final = 512
_PLACES: Final = 2**16
_COLUMNS: Final = ("epoch", "ended_s", "took_ms", "rows", "busiest_ms", "busy_ms", "touched")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochColumns:
    """Figures of epochs with input, oldest first; shape ``(n,)`` each."""

    epoch: FloatArray  # their numbers
    ended_s: FloatArray  # when each was committed, in Unix time
    took_ms: FloatArray  # from its start to its commit
    rows: FloatArray  # source rows
    # time of the busiest lane of every stage, summed over stages, and of all lanes together
    busiest_ms: FloatArray
    busy_ms: FloatArray
    touched: FloatArray  # key groups that had rows, of all components

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def joined(cls, parts: list[EpochColumns]) -> EpochColumns:
        """Return the columns of several parts, one after the other."""
        return cls(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
        )

    def where(self, mask: np.ndarray) -> EpochColumns:
        """Return the columns of the epochs that `mask` selects."""
        return EpochColumns(**{name: getattr(self, name)[mask] for name in _COLUMNS})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamSummary:
    """Epochs with input since the last summary, and where they ran."""

    epoch: int  # the last of them
    topology: Topology
    assignments: Mapping[str, Assignment]  # component → where its key groups are
    epochs: EpochColumns

    @property
    def lanes(self) -> dict[str, int]:
        """Executor → number of its lanes."""
        return {
            name: lanes
            for assignment in self.assignments.values()
            for name, lanes in zip(assignment.executors, assignment.lanes, strict=True)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain values for the journal."""
        columns = {name: getattr(self.epochs, name) for name in _COLUMNS}
        return {
            "epoch": self.epoch,
            "stages": [list(stage) for stage in self.topology.stages],
            "downstream": [list(link) for link in self.topology.downstream],
            "trigger_s": self.topology.trigger_s,
            "epochs": {name: np.round(column, 3).tolist() for name, column in columns.items()},
            "places": {
                name: {
                    "executors": list(assignment.executors),
                    "lanes": list(assignment.lanes),
                    "lane_of": packed_column(assignment.flat_lanes().astype("<u2")),
                }
                for name, assignment in self.assignments.items()
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> StreamSummary | None:
        """Restore a summary from `to_dict`; ``None`` if the values are no summary."""
        try:
            columns = {name_: np.array(values["epochs"][name_], np.float64) for name_ in _COLUMNS}
            assignments = {
                str(component): _read_assignment(places)
                for component, places in values["places"].items()
            }
            topology = Topology(
                stages=tuple(tuple(map(str, stage)) for stage in values["stages"]),
                downstream=tuple(
                    (str(sender), str(receiver)) for sender, receiver in values["downstream"]
                ),
                trigger_s=float(values["trigger_s"]),
            )
            epoch = int(values["epoch"])
        except (LookupError, TypeError, ValueError, AttributeError, zlib.error, GodwitError):
            return None
        if len({column.shape for column in columns.values()}) > 1:
            return None
        all_columns = np.stack([*columns.values()])
        is_valid = all_columns.ndim == 2 and bool(
            (np.isfinite(all_columns) & (all_columns >= 0)).all()
        )
        if not is_valid or not topology.components or topology.trigger_s < 0:
            return None
        if set(topology.components) != assignments.keys():
            return None
        return cls(
            epoch=epoch,
            topology=topology,
            assignments=assignments,
            epochs=EpochColumns(**columns),
        )


def _read_assignment(places: Mapping[str, Any]) -> Assignment:
    """Read a component's assignment from its plain values in the journal (`places`), or raise."""
    lanes = [int(count) for count in places["lanes"]]
    if not 0 < sum(lanes) <= _PLACES:
        raise ValueError
    flat = unpacked_column(places["lane_of"]).astype(np.int64)
    first = np.cumsum([0, *lanes[:-1]])
    executor_of = np.searchsorted(first, flat, "right") - 1
    return Assignment(
        version=0,
        executors=tuple(map(str, places["executors"])),
        lanes=tuple(lanes),
        executor_of=executor_of.astype(np.int32),
        lane_of=(flat - first[executor_of]).astype(np.int32),
    )


class StreamRecorder:
    """Gathers figures of epochs until a summary is due; of many, the last ones."""

    def __init__(self) -> None:
        self._epochs: deque[tuple[float, ...]] = deque(maxlen=_EPOCHS)
        self._latest: CommittedEpoch | None = None

    def observe(self, epoch: CommittedEpoch, topology: Topology, now_s: float) -> None:
        """Add a committed epoch, if it had input and was measured."""
        outcome = epoch.outcome
        if outcome.batch is None or not outcome.loads:
            return
        self._latest = epoch
        loads = outcome.loads.values()
        self._epochs.append(
            (
                float(outcome.epoch),
                now_s,
                epoch.took_s * 1e3,
                float(outcome.rows_in),
                1e3 * sum(busiest_lane_s(stage, epoch) for stage in topology.stages),
                float(sum(load.busy_ms.sum() for load in loads)),
                float(sum(len(load.key_groups) for load in loads)),
            )
        )

    def forget(self) -> None:
        """Drop the measurements, because the components have changed."""
        self._epochs.clear()
        self._latest = None

    def summary(self, topology: Topology) -> StreamSummary | None:
        """Return the measurements since the last summary; ``None`` if there are none."""
        latest, self._latest = self._latest, None
        if latest is None:
            return None
        columns = np.array(self._epochs).T
        self._epochs.clear()
        return StreamSummary(
            epoch=latest.outcome.epoch,
            topology=topology,
            assignments={
                name: latest.component_views[name].assignment
                for name in topology.components
                if name in latest.component_views
            },
            epochs=EpochColumns(**dict(zip(_COLUMNS, columns, strict=True))),
        )
