"""Named states of a function in parts, so that a hot key has several lanes.

As for one state (`godwit.operators.merged`), rows of a hot key are divided among parts, each part
has named states of its own, and they are merged into those of the key when it leaves its parts.
Each declaration says how two states are merged: two values, two lists, or the values of an item
that both maps have.  Items that only one map has stay unchanged.

States themselves know nothing of parts.

Invariant: as for one state, with all states of a part merged in one epoch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import values_of
from godwit.columns.groups import group_rows
from godwit.columns.hashing import hash_keys
from godwit.columns.python_values import rows_as_tuples
from godwit.model.naming import function_name
from godwit.operators.parts import DividesHotKeys, call_merge
from godwit.operators.spreading import PART
from godwit.operators.states.lists import ListOfKey
from godwit.operators.states.operator import ProcessOfStates
from godwit.operators.states.values import ValueOfKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from godwit.checkpoint.entries import StateRows
    from godwit.operators.states.declared import Declared
    from godwit.operators.states.stored import Cells, LaneKeys


class MergedStates(DividesHotKeys, ProcessOfStates):
    """A user's function called per key, or per part of a hot one, with several named states."""

    def __init__(self, *, states: Mapping[str, Declared], **options: Any) -> None:
        super().__init__(states=states, **options)
        # Declarations were checked: every state has a merge function.
        self._merges = {
            name: state.merge for name, state in states.items() if state.merge is not None
        }

    def merge_left(
        self,
        merging: Mapping[str, StateRows],
        of_entries: Mapping[str, list[int]],
        *states: Any,
    ) -> None:
        """Merge the states of parts that hot keys give up into the states of the keys.

        `merging`: state's name → its entries of parts. `of_entries`: likewise, the key number of
        each entry. `states`: the lane's keys (`LaneKeys`), and state's name → `Cells`.
        """
        lane: LaneKeys = states[0]
        cells: Mapping[str, Cells] = states[1]
        parts = pa.concat_batches(
            [rows.keys.select(self.hash_columns.names) for rows in merging.values()]
        )
        distinct = group_rows(hash_keys(parts), parts, 1)
        identities = parts.take(pa.array(distinct.first_row))
        group_of = np.empty(distinct.count, np.int64)
        group_of[distinct.of_row] = np.concatenate([of_entries[name] for name in merging])
        in_order = np.argsort(values_of(identities.column(PART)), kind="stable").tolist()
        lane_of_parts = replace(
            lane,
            keys=identities,
            tuples=rows_as_tuples(identities.select(self.keys.names)),
            hashes=distinct.hashes,
            key_groups=distinct.key_groups,
            starts=[0] * (distinct.count + 1),
        )
        for name, rows in merging.items():
            stored = self.stored[name]
            of_parts = stored.cells(stored, lane_of_parts, _InMemory(rows), ())
            for part in in_order:
                group = int(group_of[part])
                whole = cells[name].handle(cells[name], group, _always_open)
                other = of_parts.handle(of_parts, part, _always_open)
                _merge_state(whole, other, partial(self._merged, name, lane.tuples[group]))

    def _merged(self, name: str, key: tuple[Any, ...], state: Any, other: Any, *item: Any) -> Any:
        """Merge two values of the state `name` by the user's function, and check the result.

        `item`: key of the map's item that they belong to, if the state is a map.
        """
        stored, merge = self.stored[name], self._merges[name]
        merged = call_merge(merge, (state, other), stored.operator, key, state=name)
        of_item = "".join(f", item {part!r}" for part in item)
        stored.encoded(
            [[merged] if item else merged],
            lambda _: f"key {key!r}{of_item}, which {function_name(merge)} (merge=) returned,",
        )
        return merged


def _always_open() -> None:
    """Do nothing, as the check that a call still runs: these states are merged outside of calls."""


def _merge_state(state: Any, part: Any, merged: Callable[..., Any]) -> None:
    """Merge the state of a part of a hot key into that of the key, in place, by `merged`."""
    if isinstance(state, ValueOfKey):
        if part.exists:
            state.value = merged(state.value, part.value) if state.exists else part.value
    elif isinstance(state, ListOfKey):
        if part:
            state.replace(merged(list(state), list(part)) if state else list(part))
    else:
        common = [item for item in part if item in state]
        state.update(
            {item: value for item, value in part.items() if item not in state}
            | {item: merged(state[item], part[item], item) for item in common}
        )


class _InMemory:
    """Entries that were read whole, as a store has them."""

    def __init__(self, rows: StateRows) -> None:
        self._rows = rows

    def find(
        self,
        keys: pa.RecordBatch,
        key_groups: npt.NDArray[np.integer],  # noqa: ARG002
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Look up entries by all their key columns; see `Entries.find`."""
        num_rows = self._rows.keys.num_rows
        every = pa.concat_batches([self._rows.keys, keys])
        groups = group_rows(hash_keys(every), every, 1)
        row_of = np.full(groups.count, -1)
        row_of[groups.of_row[:num_rows]] = np.arange(num_rows)
        rows = row_of[groups.of_row[num_rows:]]
        known = rows >= 0
        return known, self._rows.values.take(pa.array(rows, mask=~known))
