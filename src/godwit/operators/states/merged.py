"""Named states of a function in parts, so that a hot key has several lanes.

As for one state (`godwit.operators.merged`), rows of a hot key are divided among parts, each part
has named states of its own, and they are merged into those of the key when it leaves its parts.
Each declaration says how two states are merged: two values, two lists, or the values of an item
that both maps have.  Items that only one map has stay unchanged.

The parts of a state are entries of another state, whose key columns end with the part.  Look-ups of
the function's states go to the state of whole keys or to that of parts (`_WholeAndParts`), and
changes are split likewise; the states themselves know nothing of parts.

Invariant: as for one state, with all states of a part merged in one epoch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from godwit.checkpoint.evolution import columns_of
from godwit.checkpoint.records import StateId
from godwit.columns.arrays import mask_of, values_of
from godwit.columns.groups import group_rows
from godwit.columns.hashing import hash_keys
from godwit.columns.python_values import rows_as_tuples
from godwit.model.naming import function_name
from godwit.operators.calls import without_garbage_collection
from godwit.operators.operator import OperatorOutput
from godwit.operators.parts import (
    PART_FIELD,
    DividesHotKeys,
    call_merge,
    entries_left,
    part_state_of,
    whole_of,
    with_removed,
)
from godwit.operators.spreading import MAX_PARTS, PART
from godwit.operators.states.lists import ListOfKey
from godwit.operators.states.operator import ProcessOfStates
from godwit.operators.states.values import ValueOfKey
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from godwit.checkpoint.entries import StateRows
    from godwit.checkpoint.evolution import StateDescription, StateUpgrade, WrittenState
    from godwit.operators.operator import Changed, OperatorInput
    from godwit.operators.states.declared import Declared
    from godwit.operators.states.stored import Cells, Entries, LaneKeys


class MergedStates(DividesHotKeys, ProcessOfStates):
    """A user's function called per key, or per part of a hot one, with several named states."""

    def __init__(self, *, keys: pa.Schema, states: Mapping[str, Declared], **options: Any) -> None:
        super().__init__(keys=pa.schema([*keys, PART_FIELD]), states=states, **options)
        self._own, self.max_parts = keys, MAX_PARTS
        # Declarations were checked: every state has a merge function.
        self._merges = {name: of.merge for name, of in states.items() if of.merge is not None}
        self._state_of = {part_state_of(name): name for name in self.stored}
        self.part_states = tuple(sorted(self._state_of))

    @property
    def keys(self) -> pa.Schema:
        """Key columns that the user named, without the internal column for parts of a hot key."""
        return self._own

    @property
    def states(self) -> tuple[StateId, ...]:
        """Declared states of whole keys, and for each the state of its parts."""
        return tuple(StateId(self.name, s) for s in (*sorted(self.stored), *self.part_states))

    def schema_of(self, state: str) -> StateSchema:
        """Return the key and state columns of a state of whole keys, or of parts."""
        of_parts = self.stored[self._state_of.get(state, state)].schema
        if state in self._state_of:
            return of_parts
        keys = pa.schema([field for field in of_parts.keys if field.name != PART])
        return StateSchema(keys=keys, values=of_parts.values)

    def describe_state(self, state: str = "") -> StateDescription:
        """Describe a state of whole keys, or of parts, for the checkpoint."""
        if state not in self._state_of:
            return super().describe_state(state)
        described = super().describe_state(self._state_of[state])
        entries = (*columns_of(pa.schema([PART_FIELD])), *described.entries)
        return msgspec.structs.replace(described, entries=entries)

    def check_stored_state(
        self, state: str, stored: StateDescription, today: StateDescription
    ) -> None:
        """Raise if stored state does not fit the declared state, of whole keys or of parts.

        `stored`, `today`: descriptions of the state in the checkpoint and of the declared one.
        """
        entries = tuple(column for column in stored.entries if column[0] != PART)
        stored = msgspec.structs.replace(stored, entries=entries)
        super().check_stored_state(self._state_of.get(state, state), stored, today)

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:
        """Return the upgrade of the values of `state`, stored as `written`.

        ``None`` if none is needed. State of the parts of divided keys is upgraded like that of
        whole keys.
        """
        return super().values_from(self._state_of.get(state, state), written)

    @without_garbage_collection()
    def process(self, data: OperatorInput) -> OperatorOutput:
        """Merge the states of parts that keys give up, then call the function per key or part."""
        merging: dict[str, StateRows] = {}
        removed: dict[str, StateRows] = {}
        for state, rows in data.left_parts.items():
            home, here = entries_left(data, rows, self.keys.names)
            merging[self._state_of[state]] = rows.take(home)
            removed[state] = rows.take(here)
        whole = [whole_of(rows, self.schema.keys) for rows in merging.values()]
        groups, identities, of_entries = data.grouped_with(len(self.hash_columns), whole)
        output = OperatorOutput()
        if groups.count:
            of_state = dict(zip(merging, of_entries, strict=True))

            def prepare(lane: LaneKeys, cells: Mapping[str, Cells]) -> None:
                """Merge the parts that keys leave into the states of the keys."""
                if any(of_entries):
                    self._merge(merging, of_state, lane, cells)

            states = {
                name: _WholeAndParts(data.states[name], data.states[part_state_of(name)])
                for name in self.stored
            }
            output = self._call_for_keys(data, groups, identities, states=states, prepare=prepare)
        changed: dict[str, Changed] = {}
        for name, entries in output.changed.items():
            changed |= _split_changes(name, *entries)
        for state, rows in removed.items():
            changed = with_removed(changed, state, rows, data.num_key_groups)
        return replace(output, changed=changed)

    def _merge(
        self,
        merging: Mapping[str, StateRows],  # state → entries of parts, by the parts' numbers
        of_entries: Mapping[str, list[int]],  # the key of each entry
        lane: LaneKeys,
        cells: Mapping[str, Cells],  # states of the keys
    ) -> None:
        """Merge the states of given-up parts into the states of their keys.

        `merging`: state → entries of these parts. `of_entries`: state → key number of each entry.
        """
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
        """Return the result of the user's merge function for the state `name`, and check its type.

        `item`: the key of a map's item, for errors.
        """
        stored, merge = self.stored[name], self._merges[name]
        merged = call_merge(merge, (state, other), stored.operator, key, state=name)
        of_item = "".join(f", item {one!r}" for one in item)
        stored.encoded(
            [[merged] if item else merged],
            lambda _: f"key {key!r}{of_item}, which {function_name(merge)} (merge=) returned,",
        )
        return merged


def _always_open() -> None:
    """Accept any use of a state that is not passed to a user's function: no call can have ended."""


def _merge_state(state: Any, part: Any, merged: Callable[..., Any]) -> None:
    """Merge the state of a part into the state of its key, in place.

    `merged`: merges two values, two lists of elements, or two values of an item.
    """
    if isinstance(state, ValueOfKey):
        if part.exists:
            state.value = merged(state.value, part.value) if state.exists else part.value
    elif isinstance(state, ListOfKey):
        if part:
            state.replace(merged(list(state), list(part)) if state else list(part))
    else:
        there = [item for item in part if item in state]
        state.update(
            {item: value for item, value in part.items() if item not in state}
            | {item: merged(state[item], part[item], item) for item in there}
        )


class _WholeAndParts:
    """Entries of whole keys in one state, and those of parts in another."""

    def __init__(self, whole: Entries, parts: Entries) -> None:
        self._whole, self._parts = whole, parts

    def find(
        self, keys: pa.RecordBatch, key_groups: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Look up entries by key columns and part; see `Entries.find`.

        Entries of whole keys are in one state, those of parts in another.
        """
        whole, parts = _split_by_part(keys)
        if not len(parts):
            return self._whole.find(_without_part(keys), key_groups)
        if not len(whole):
            return self._parts.find(keys, key_groups)
        known_whole, of_whole = self._whole.find(
            _without_part(keys.take(pa.array(whole))), key_groups[whole]
        )
        known_parts, of_parts = self._parts.find(keys.take(pa.array(parts)), key_groups[parts])
        back = np.argsort(np.concatenate([whole, parts]), kind="stable")
        values = pa.concat_batches([of_whole, of_parts]).take(pa.array(back))
        return np.concatenate([known_whole, known_parts])[back], values


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
        there = self._rows.keys.num_rows
        every = pa.concat_batches([self._rows.keys, keys])
        groups = group_rows(hash_keys(every), every, 1)
        row_of = np.full(groups.count, -1)
        row_of[groups.of_row[:there]] = np.arange(there)
        rows = row_of[groups.of_row[there:]]
        known = rows >= 0
        return known, self._rows.values.take(pa.array(rows, mask=~known))


def _split_by_part(keys: pa.RecordBatch) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the positions of entries of whole keys, and of entries of parts."""
    mask = mask_of(keys.column(PART))
    is_part = np.ones(keys.num_rows, np.bool_) if mask is None else mask
    return np.flatnonzero(~is_part), np.flatnonzero(is_part)


def _without_part(keys: pa.RecordBatch) -> pa.RecordBatch:
    """Return key columns without the column for the part."""
    return keys.select([name for name in keys.schema.names if name != PART])


def _split_changes(
    state: str, rows: StateRows, key_groups: npt.NDArray[np.int32]
) -> dict[str, Changed]:
    """Split changes into those of the state of whole keys and those of the state of parts."""
    changed: dict[str, Changed] = {}
    whole, parts = _split_by_part(rows.keys)
    if len(whole):
        of_whole = rows.take(whole)
        changed[state] = (
            replace(of_whole, keys=_without_part(of_whole.keys)),
            key_groups[whole],
        )
    if len(parts):
        changed[part_state_of(state)] = rows.take(parts), key_groups[parts]
    return changed
