"""Hot keys of functions with ``merge=``: states in parts, so that a hot key has several lanes.

All rows of a key go to one lane, and a function's state cannot be combined before the exchange.  If
the user says how two states are merged, a hot key gets *parts* (`godwit.operators.hot_keys`):
rows are divided among them by a hash of their values, and each part has a state of its own, which
begins empty.  The key's earlier state stays unchanged meanwhile.  When a key leaves its parts,
because it cools down or gets other parts, their states are merged into its own in that epoch.  Of
several named states, each is merged by its own declaration: two values, two lists, or the values of
an item that both maps have; items that only one map has stay unchanged.

Parts are entries of states of their own, identified by key and part.  So the first state is the
same with and without ``merge=``, which may be added to an operator that has state; and to merge
parts, a lane reads only key groups of the second state, which has parts of hot keys and nothing
else.

Invariant: every row has been processed with one state of its key, and no state is dropped before it
was merged.  A key leaves its parts in an epoch in which none of their rows waits.  The key's lane
reads the parts as the last epoch left them, and the lanes of the parts remove them, in one commit.
All states of a part are merged in one epoch.

Source: key expansion, Madsen et al. (Enorm) §4.4.2; partial states of split keys, Nasir et al.
("The Power of Both Choices", 2015), by values instead of load (`docs/design/hot-keys.md`).
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
from godwit.checkpoint.records import Grid, HotKey, StateId
from godwit.columns.arrays import mask_of, values_of
from godwit.columns.groups import group_rows
from godwit.columns.hashing import hash_keys
from godwit.columns.python_values import rows_as_tuples
from godwit.library.calls import without_garbage_collection, without_misfits
from godwit.library.process import ProcessOperator
from godwit.library.states.lists import ListOfKey
from godwit.library.states.operator import ProcessOfStates
from godwit.library.states.values import ValueOfKey
from godwit.model.errors import StateEncodingError, UserFunctionError
from godwit.model.frames import function_failed
from godwit.model.key_groups import key_groups_of
from godwit.model.naming import function_name, type_name
from godwit.operators.declared import part_state_of
from godwit.operators.hot_keys import MAX_PARTS, PART, WHOLE, Spreads, hash_undivided
from godwit.operators.operator import STATE, KeyedOperator, OperatorInput, OperatorOutput
from godwit.operators.ordering import order_by
from godwit.store.changes import StateRows
from godwit.store.columns import StateSchema
from godwit.time.event_time import EpochTime
from godwit.values.checks import UnencodableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.evolution import StateDescription, StateUpgrade, WrittenState
    from godwit.library.states.stored import Cells, Entries, LaneKeys
    from godwit.operators.declared import Declared
    from godwit.operators.operator import Changed
    from godwit.time.event_time import Arrivals

PART_FIELD: Final = pa.field(PART, pa.int32())
"""Key column with the number of a part; null: the whole key."""


class DividesHotKeys(KeyedOperator):
    """Base of operators whose hot keys have parts that are merged when keys leave them.

    Before an operator with a `process_keys`, it makes two states of each of that operator's: one of
    whole keys, and one of parts.
    """

    reads_touched = False

    def __init__(self, *, keys: pa.Schema, **options: Any) -> None:
        super().__init__(keys=pa.schema([*keys, PART_FIELD]), **options)  # type: ignore[call-arg]
        self._own, self.max_parts = keys, MAX_PARTS
        self._whole_of = {
            part_state_of(description.state): description.state for description in super().states
        }
        self.part_states = tuple(self._whole_of)

    @abstractmethod
    def merge_left_parts(
        self,
        merging: Mapping[str, StateRows],  # state → entries of parts, by the parts' numbers
        of_entries: Mapping[str, list[int]],  # state → number of the key of each entry
        *states: Any,  # of the keys, as `process_keys` has them
        only: int | None = None,  # number of the key to do it for; ``None``: for all
    ) -> None:
        """Merge the states of parts that hot keys give up into the states of the keys.

        It may be repeated for a key whose states were restored.

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
        data, misfits = without_misfits(self, data)
        merging: dict[str, StateRows] = {}
        removed: dict[str, StateRows] = {}
        for state, rows in data.left_parts.items():
            at_home, to_remove = entries_left(data, rows, self.keys.names)
            merging[self._whole_of[state]], removed[state] = (
                rows.take(at_home),
                rows.take(to_remove),
            )
        whole = [whole_of(rows, self.schema.keys) for rows in merging.values()]
        groups, identities, groups_of_entries = data.grouped_with(len(self.hash_columns), whole)
        output = OperatorOutput()
        if groups.count:
            prepare = None
            if any(groups_of_entries):
                groups_of_state = dict(zip(merging, groups_of_entries, strict=True))
                prepare = partial(self.merge_left_parts, merging, groups_of_state)
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
        return replace(output, changed=changed).with_failed(misfits)

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
    assert data.here is not None, "a lane sets the operator's epoch before it reads entries"
    assert data.time.spreads is not None, "some key leaves its parts"
    hashes, parts = hash_undivided(rows.keys.select(keys)), values_of(rows.keys.column(PART))
    is_left = np.zeros(len(hashes), np.bool_)
    for key_hash, left_parts in data.time.spreads.former_parts.items():
        is_left |= (hashes == key_hash) & np.isin(parts, left_parts)
    at_home = np.flatnonzero(is_left & data.here[key_groups_of(hashes, data.num_key_groups)])
    is_here = is_left & data.here[key_groups_of(rows.hashes, data.num_key_groups)]
    return at_home[order_by(parts[at_home].astype(np.int64))], np.flatnonzero(is_here)


def whole_of(rows: StateRows, identity: pa.Schema) -> StateRows:
    """Return entries of parts with the undivided key, which has a null part, as their key.

    `identity`: the key columns.
    """
    key_columns = rows.keys.select(identity.names[:-1])
    null_part = pa.nulls(len(rows.hashes), PART_FIELD.type)
    keys = pa.RecordBatch.from_arrays([*key_columns.columns, null_part], schema=identity)
    return replace(rows, hashes=hash_undivided(key_columns), keys=keys)


def merged_parts(
    operator: DividesHotKeys, state: str, whole: StateRows, parts: StateRows, num_key_groups: int
) -> StateRows:
    """Return a state's entries as if all keys left their parts now, by the operator's own merge.

    `whole`: entries of whole keys, all of the keys that `parts` has entries of.
    """
    if not len(parts.hashes):
        return whole
    hashes = hash_undivided(parts.keys.select(operator.keys.names))
    part_numbers = values_of(parts.keys.column(PART))
    divided_keys = [
        HotKey(
            hash=key_hash, key="", grids=(_grid_of_parts(part_numbers[hashes == key_hash]), WHOLE)
        )
        for key_hash in np.unique(hashes).tolist()
    ]
    identity, inputs = operator.schema.keys, operator.inputs
    rows = StateRows(hashes=hashes[:0], keys=_no_rows(identity), values=_no_rows(inputs))
    names = [described.state for described in operator.states]
    stored = {name: _no_entries(operator.schema_of(name)) for name in names} | {state: whole}
    states: Any = {name: _InMemory(entries) for name, entries in stored.items()}  # only found in
    output = operator.process(
        OperatorInput(
            rows=rows,
            states=states,
            time=EpochTime(spreads=Spreads.of(*divided_keys)),
            num_key_groups=num_key_groups,
            left_parts={part_state_of(state): parts},
            here=np.ones(num_key_groups, np.bool_),
        )
    )
    if state not in output.changed:
        return whole
    all_entries = replace(whole, removed=None).followed_by(output.changed[state][0])
    groups = group_rows(hash_keys(all_entries.keys), all_entries.keys, 1)
    newest = all_entries.take(groups.order[groups.starts[1:] - 1])
    if newest.removed is not None:
        newest = newest.take(np.flatnonzero(~newest.removed))
    return replace(newest, removed=None)


def _grid_of_parts(parts: npt.NDArray[np.int32]) -> Grid:
    """Return the division of a key into these parts."""
    numbers = np.unique(parts).tolist()
    return Grid(rows=len(numbers), columns=1, parts=tuple(numbers))


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def _no_entries(schema: StateSchema) -> StateRows:
    """Return no entries of a state."""
    hashes = np.empty(0, np.int64)
    return StateRows(hashes=hashes, keys=_no_rows(schema.keys), values=_no_rows(schema.values))


def with_removed(
    changed: dict[str, Changed], state: str, parts: StateRows, num_key_groups: int
) -> dict[str, Changed]:
    """Add the deletion of entries of given-up parts to the changes of a state of parts."""
    if not len(parts.hashes):
        return changed
    removed = np.ones(len(parts.hashes), np.bool_)
    rows, key_groups = replace(parts, removed=removed), key_groups_of(parts.hashes, num_key_groups)
    if state in changed:
        changes, groups_of_changes = changed[state]
        was_removed = (
            np.zeros(len(changes.hashes), np.bool_) if changes.removed is None else changes.removed
        )
        rows = replace(changes.followed_by(rows), removed=np.concatenate([was_removed, removed]))
        key_groups = np.concatenate([groups_of_changes, key_groups])
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
        described_states = "".join(f"state {name!r} of " for name in named.values())
        raise UserFunctionError(
            f"{function_name(merge)}, given as merge= of {described_states}operator {operator!r}, "
            f"returned nothing for key {key!r}.",
            remedy="Return the merged state, even if it is the first argument, modified in place.",
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
        known_whole, whole_values = self._whole.find(
            _without_part(keys.take(pa.array(whole))), key_groups[whole]
        )
        known_parts, part_values = self._parts.find(keys.take(pa.array(parts)), key_groups[parts])
        original_order = np.argsort(np.concatenate([whole, parts]), kind="stable")
        values = pa.concat_batches([whole_values, part_values]).take(pa.array(original_order))
        return np.concatenate([known_whole, known_parts])[original_order], values


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
        whole_rows = rows.take(whole)
        changed[state] = (
            replace(whole_rows, keys=_without_part(whole_rows.keys)),
            key_groups[whole],
        )
    if len(parts):
        changed[part_state_of(state)] = rows.take(parts), key_groups[parts]
    return changed


class MergedProcess(DividesHotKeys, ProcessOperator):
    """A user's function called per key, or per part of a hot one."""

    def __init__(self, *, merge: Callable[[Any, Any], Any], **options: Any) -> None:
        super().__init__(**options)
        self.merge = merge

    def merge_left_parts(
        self,
        merging: Mapping[str, StateRows],
        of_entries: Mapping[str, list[int]],
        *states: Any,
        only: int | None = None,
    ) -> None:
        """Merge the states of parts that hot keys give up into the states of the keys.

        `merging`: state's name → its entries of parts. `of_entries`: likewise, the key number of
        each entry. `states`: of each key its state, whether that was stored, and the key.
        """
        key_states: list[Any] = states[0]
        known: npt.NDArray[np.bool_] = states[1]
        keys: list[tuple[Any, ...]] = states[2]
        groups_of_parts, blobs = of_entries[STATE], merging[STATE].values.column(0)
        if only is not None:
            selected = np.flatnonzero(np.array(groups_of_parts) == only)
            groups_of_parts, blobs = [only] * len(selected), blobs.take(pa.array(selected))
        parts = self._decode_states(
            np.ones(len(groups_of_parts), np.bool_),
            blobs,
            [keys[group] for group in groups_of_parts],
        )
        has_state = known.copy()
        for group, part_state in zip(groups_of_parts, parts, strict=True):
            if not has_state[group]:  # nothing says that a new state changes nothing
                key_states[group], has_state[group] = part_state, True
            elif self._is_immutable:
                key_states[group].value = self._merged_by_user(
                    key_states[group].value, part_state.value, keys[group]
                )
            else:
                key_states[group] = self._merged_by_user(key_states[group], part_state, keys[group])

    def _merged_by_user(self, state: Any, part: Any, key: tuple[Any, ...]) -> Any:
        """Merge two states of a key by the user's function, and check the result."""
        merged = call_merge(self.merge, (state, part), self.name, key)
        try:
            self._codec.encode([merged])
        except UnencodableError as error:
            raise StateEncodingError(
                f"{function_name(self.merge)}, given as merge= of operator {self.name!r}, returned "
                f"a {type_name(merged)} for key {key!r}, which cannot be its state: {error}.",
                remedy="Return a state of the declared type, or change the declaration.",
                operator=self.name,
                key=key,
            ) from error
        return merged


class MergedStates(DividesHotKeys, ProcessOfStates):
    """A user's function called per key, or per part of a hot one, with several named states."""

    def __init__(self, *, states: Mapping[str, Declared], **options: Any) -> None:
        super().__init__(states=states, **options)
        # Declarations were checked: every state has a merge function.
        self._merges = {
            name: state.merge for name, state in states.items() if state.merge is not None
        }

    def merge_left_parts(
        self,
        merging: Mapping[str, StateRows],
        of_entries: Mapping[str, list[int]],
        *states: Any,
        only: int | None = None,
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
        distinct_parts = group_rows(hash_keys(parts), parts, 1)
        identities = parts.take(pa.array(distinct_parts.first_row))
        group_of = np.empty(distinct_parts.count, np.int64)
        group_of[distinct_parts.of_row] = np.concatenate([of_entries[name] for name in merging])
        in_order = np.argsort(values_of(identities.column(PART)), kind="stable").tolist()
        lane_of_parts = replace(
            lane,
            keys=identities,
            tuples=rows_as_tuples(identities.select(self.keys.names)),
            hashes=distinct_parts.hashes,
            key_groups=distinct_parts.key_groups,
            starts=[0] * (distinct_parts.count + 1),
        )
        for name, rows in merging.items():
            stored = self.stored[name]
            part_cells = stored.cells(stored, lane_of_parts, _InMemory(rows), ())
            for part in in_order:
                group = int(group_of[part])
                if only not in {None, group}:
                    continue
                whole_state = cells[name].handle(cells[name], group, _always_open)
                part_state = part_cells.handle(part_cells, part, _always_open)
                _merge_state(
                    whole_state, part_state, partial(self._merged_by_user, name, lane.tuples[group])
                )

    def _merged_by_user(
        self, name: str, key: tuple[Any, ...], state: Any, other: Any, *item: Any
    ) -> Any:
        """Merge two values of the state `name` by the user's function, and check the result.

        `item`: key of the map's item that they belong to, if the state is a map.
        """
        stored, merge = self.stored[name], self._merges[name]
        merged = call_merge(merge, (state, other), stored.operator, key, state=name)
        described_item = "".join(f", item {part!r}" for part in item)
        stored.encoded(
            [[merged] if item else merged],
            lambda _: (
                f"key {key!r}{described_item}, which {function_name(merge)} (merge=) returned,"
            ),
        )
        return merged


def _always_open() -> None:
    """No-op check that a call is running: these states are merged outside of calls."""


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
    """Entries that were read into memory completely, with a store's look-up."""

    def __init__(self, rows: StateRows) -> None:
        self._rows = rows

    def find(
        self,
        keys: pa.RecordBatch,
        key_groups: npt.NDArray[np.integer],  # noqa: ARG002
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Look up entries by all their key columns; see `Entries.find`."""
        num_rows = self._rows.keys.num_rows
        all_keys = pa.concat_batches([self._rows.keys, keys])
        groups = group_rows(hash_keys(all_keys), all_keys, 1)
        row_of_group = np.full(groups.count, -1)
        row_of_group[groups.of_row[:num_rows]] = np.arange(num_rows)
        rows = row_of_group[groups.of_row[num_rows:]]
        known = rows >= 0
        return known, self._rows.values.take(pa.array(rows, mask=~known))
