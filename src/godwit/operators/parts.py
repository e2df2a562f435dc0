"""Parts of hot keys whose states are merged: rows dealt to them, and entries that they leave.

A part has its entries in states of its own, whose identity begins with the key and the number of
the part; a whole key has none there.  When a key leaves its parts, the lane of the key reads their
entries as the last epoch left them, and the lanes of the parts remove them, by the same commit.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from godwit.checkpoint.evolution import columns_of
from godwit.checkpoint.records import StateId
from godwit.columns.arrays import mask_of, values_of
from godwit.model.errors import UserFunctionError
from godwit.model.frames import function_failed
from godwit.model.key_groups import key_groups_of
from godwit.model.naming import function_name
from godwit.operators.calls import without_garbage_collection
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput
from godwit.operators.ordering import order_by
from godwit.operators.spreading import MAX_PARTS, PART, hash_undivided
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.entries import StateRows
    from godwit.checkpoint.evolution import StateDescription, StateUpgrade, WrittenState
    from godwit.operators.operator import Changed, OperatorInput
    from godwit.operators.states.stored import Entries
    from godwit.time.event_time import Arrivals, EpochTime

PART_FIELD: Final = pa.field(PART, pa.int32())
"""Key column with the number of a part; null: the whole key."""
PARTS: Final = "parts"
"""Name of the state of parts of an operator with one state, and beginning of those of others."""


class DividesHotKeys(KeyedOperator):
    """Base of operators whose hot keys have parts that are merged when keys leave them.

    Before an operator with a `process_keys`, it makes two states of each of that operator's: one of
    whole keys, and one of parts.
    """

    def __init__(self, *, keys: pa.Schema, **options: Any) -> None:
        super().__init__(keys=pa.schema([*keys, PART_FIELD]), **options)  # type: ignore[call-arg]
        self._own, self.max_parts = keys, MAX_PARTS
        self._whole_of = {
            part_state_of(description.state): description.state for description in super().states
        }
        self.part_states = tuple(self._whole_of)

    @abstractmethod
    def merge_left(
        self,
        merging: Mapping[str, StateRows],  # state → entries of parts, by the parts' numbers
        of_entries: Mapping[str, list[int]],  # state → number of the key of each entry
        *states: Any,  # of the keys, as `process_keys` has them
    ) -> None:
        """Merge the states of parts that hot keys give up into the states of the keys.

        `merging`: state's name → entries of parts. `of_entries`: likewise, the key number of each
        entry. `states`: of the keys, as `process_keys` has them.
        """

    process_keys: Callable[..., OperatorOutput]

    @property
    def keys(self) -> pa.Schema:
        """Key columns that the user named, without the internal column for parts of a hot key."""
        return self._own

    @property
    def states(self) -> tuple[StateId, ...]:
        """States of whole keys, then those of parts."""
        return (*super().states, *(StateId(self.name, state) for state in self.part_states))

    def schema_of(self, state: str) -> StateSchema:
        """Return the key and state columns of a state of whole keys, or of parts."""
        schema = super().schema_of(self._whole_of.get(state, state))
        if state in self._whole_of:
            return schema
        keys = pa.schema([field for field in schema.keys if field.name != PART])
        return StateSchema(keys=keys, values=schema.values)

    def describe_state(self, state: str = STATE) -> StateDescription:
        """Describe a state of whole keys, or of parts, for the checkpoint."""
        described = super().describe_state(self._whole_of.get(state, state))
        if state not in self._whole_of:
            return described
        entries = (*columns_of([PART_FIELD]), *described.entries)
        return msgspec.structs.replace(described, entries=entries)

    def check_stored_state(
        self, state: str, stored: StateDescription, today: StateDescription
    ) -> None:
        """Raise if stored state does not fit; the states of parts are checked as those of keys."""
        part = columns_of([PART_FIELD])
        if stored.entries[:1] == today.entries[:1] == part:
            stored, today = (
                msgspec.structs.replace(layout, entries=layout.entries[1:])
                for layout in (stored, today)
            )
        super().check_stored_state(self._whole_of.get(state, state), stored, today)

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:
        """Return the upgrade of values, which is the same for whole keys and for parts."""
        return super().values_from(self._whole_of.get(state, state), written)

    @without_garbage_collection()
    def process(self, data: OperatorInput) -> OperatorOutput:
        """Merge the states of parts that keys give up, then process the keys and parts."""
        merging: dict[str, StateRows] = {}
        removed: dict[str, StateRows] = {}
        for state, rows in data.left_parts.items():
            home, here = entries_left(data, rows, self.keys.names)
            merging[self._whole_of[state]], removed[state] = rows.take(home), rows.take(here)
        whole = [whole_of(rows, self.schema.keys) for rows in merging.values()]
        groups, identities, of_entries = data.grouped_with(len(self.hash_columns), whole)
        output = OperatorOutput()
        if groups.count:
            prepare = None
            if any(of_entries):
                of_state = dict(zip(merging, of_entries, strict=True))
                prepare = partial(self.merge_left, merging, of_state)
            states = {
                name: _WholeAndParts(data.states[name], data.states[parts])
                for parts, name in self._whole_of.items()
            }
            output = self.process_keys(data, groups, identities, states=states, prepare=prepare)
        changed: dict[str, Changed] = {}
        for state, entries in output.changed.items():
            changed |= _split_changes(state, *entries)
        for state, rows in removed.items():
            changed = with_removed(changed, state, rows, data.num_key_groups)
        return replace(output, changed=changed)

    @property
    def hash_columns(self) -> pa.Schema:
        """Key columns, then the part; a null part does not change the hash of the key."""
        return self.schema.keys

    def needs_state(self, time: EpochTime) -> bool:
        """Return whether the epoch must fail if state is missing: as also if parts are merged."""
        merges = time.spreads is not None and bool(time.spreads.former_parts)
        return super().needs_state(time) or merges

    def reads_all_keys(self, time: EpochTime) -> bool:
        """Return whether the epoch reads the state of keys without rows: if it merges parts."""
        return super().reads_all_keys(time) or self.needs_state(time)

    def arrange(
        self,
        rows: pa.RecordBatch,
        time: EpochTime,
        input_number: int = 0,  # noqa: ARG002
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Arrivals | None]:
        """Assign rows of hot keys to parts by the rows' hash; others go to the undivided key."""
        return in_parts(rows, self.keys.names, time), None, None


def in_parts(rows: pa.RecordBatch, keys: Sequence[str], time: EpochTime) -> pa.RecordBatch:
    """Insert a column with each row's part behind the key columns.

    Rows of hot keys go to parts by the hash of the row, others to the undivided key. `keys`: names
    of the key columns, which come first in `rows`.
    """
    position, parts = len(keys), pa.nulls(rows.num_rows, PART_FIELD.type)
    if time.spreads is not None and time.spreads.keys:
        hashes = hash_undivided(rows.select(keys))
        routes = time.spreads.current.route_rows(hashes, 0, rows)
        if routes is not None:  # every row goes to one part, so they are in their order
            parts = pa.array(routes[1], PART_FIELD.type, mask=routes[1] == 0)
    columns, names = rows.columns, rows.schema.names
    return pa.RecordBatch.from_arrays(
        [*columns[:position], parts, *columns[position:]],
        names=[*names[:position], PART, *names[position:]],
    )


def entries_left(
    data: OperatorInput, rows: StateRows, keys: Sequence[str]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the positions in `rows` of entries of parts that hot keys give up, as two arrays.

    First those whose key this lane processes, to merge, ordered by part number; then those in this
    lane's state, to remove. `keys`: names of the key columns.
    """
    assert data.here is not None, "a lane says what it processes"
    assert data.time.spreads is not None, "some key leaves its parts"
    hashes, parts = hash_undivided(rows.keys.select(keys)), values_of(rows.keys.column(PART))
    is_left = np.zeros(len(hashes), np.bool_)
    for key_hash, left in data.time.spreads.former_parts.items():
        is_left |= (hashes == key_hash) & np.isin(parts, left)
    home = np.flatnonzero(is_left & data.here[key_groups_of(hashes, data.num_key_groups)])
    here = is_left & data.here[key_groups_of(rows.hashes, data.num_key_groups)]
    return home[order_by(parts[home].astype(np.int64))], np.flatnonzero(here)


def whole_of(rows: StateRows, identity: pa.Schema) -> StateRows:
    """Return entries of parts with the undivided key, which has a null part, as their key.

    `identity`: the key columns.
    """
    own = rows.keys.select(identity.names[:-1])
    none = pa.nulls(len(rows.hashes), PART_FIELD.type)
    keys = pa.RecordBatch.from_arrays([*own.columns, none], schema=identity)
    return replace(rows, hashes=hash_undivided(own), keys=keys)


def part_state_of(state: str) -> str:
    """Return the name of the state that stores partial states, of parts of hot keys, of `state`."""
    return PARTS if state == STATE else f"{PARTS}_{state}"


def with_removed(
    changed: dict[str, Changed], state: str, parts: StateRows, num_key_groups: int
) -> dict[str, Changed]:
    """Add the deletion of entries of given-up parts to the changes of a state of parts."""
    if not len(parts.hashes):
        return changed
    removed = np.ones(len(parts.hashes), np.bool_)
    rows, key_groups = replace(parts, removed=removed), key_groups_of(parts.hashes, num_key_groups)
    if state in changed:
        others, of_others = changed[state]
        stay = np.zeros(len(others.hashes), np.bool_) if others.removed is None else others.removed
        rows = replace(others.followed_by(rows), removed=np.concatenate([stay, removed]))
        key_groups = np.concatenate([of_others, key_groups])
    order = order_by(key_groups.astype(np.int64))
    return {**changed, state: (rows.take(order), key_groups[order])}


def call_merge(
    merge: Callable[[Any, Any], Any],
    states: tuple[Any, Any],
    operator: str,
    key: tuple[Any, ...],
    **named: str,  # the state's name, of an operator with named states
) -> Any:
    """Merge two states of a key by the user's function; errors name the key."""
    try:
        merged = merge(*states)
    except BaseException as error:
        raise function_failed(operator, merge, key, error, called="merge(state, other)") from error
    if merged is None:
        of_states = "".join(f"state {name!r} of " for name in named.values())
        raise UserFunctionError(
            f"{function_name(merge)}, given as merge= of {of_states}operator {operator!r}, "
            f"returned nothing for key {key!r}.",
            remedy="Return the merged state, also if it is the first argument, changed.",
            operator=operator,
            key=key,
            **named,
        )
    return merged


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
