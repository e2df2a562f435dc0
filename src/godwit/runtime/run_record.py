"""Entries of a run for the journal, beside events and figures of epochs.

``flow``: the graph (`godwit.plan.explain`), when the run begins, when its components change, and
again now and then, since old segments are deleted.  ``placement``: where key groups are, of those
that changed place.  ``load`` and ``stream``: loads of key groups over some epochs
(`godwit.migration.outcome.LoadSummary`), and figures of the same epochs
(`godwit.engine.stream_record`).

Invariant: an epoch adds no more than the key groups that it moved, four bytes each, beside what
`LoadSummary` and `StreamSummary` bound by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from godwit.engine.policies import Topology, topology_of
from godwit.engine.stream_record import STREAM, StreamRecorder
from godwit.migration.outcome import packed_column
from godwit.plan.explain import graph_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from godwit.engine.policies import FlowEpoch
    from godwit.migration.outcome import LoadSummary
    from godwit.model.assignment import Assignment
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
