"""``process`` with ``merge=``: a function's state in parts, so that a hot key has several lanes.

All rows of a key go to one lane, and a function's state cannot be combined before the exchange.  If
the user says how two states are merged, a hot key gets *parts* (`godwit.operators.spreading`): rows
are divided among them by a hash of their values, and each part has a state of its own, which begins
empty.  The key's earlier state stays unchanged meanwhile.  When a key leaves its parts, because it
cools down or gets other parts, their states are merged into its own in that epoch.

Parts are entries of a second state, identified by key and part.  So the first state is the same
with and without ``merge=``, which may be added to an operator that has state; and to merge parts, a
lane reads only key groups of the second state, which has parts of hot keys and nothing else.

Invariant: every row has been processed with one state of its key, and no state is dropped before it
was merged.  A key leaves its parts in an epoch in which none of their rows waits.  The key's lane
reads the parts as the last epoch left them, and the lanes of the parts remove them, in one commit.

Source: key expansion, Madsen et al. (Enorm) §4.4.2; partial states of split keys, Nasir et al.
("The Power of Both Choices", 2015), by values in place of load (`docs/decisions/0069`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from godwit.checkpoint.entries import StateRows
from godwit.checkpoint.evolution import columns_of
from godwit.checkpoint.records import StateId
from godwit.columns.arrays import mask_of
from godwit.columns.python_values import rows_as_tuples
from godwit.model.errors import StateEncodingError
from godwit.model.naming import function_name, type_name
from godwit.operators.calls import Meter, columns_of_rows, without_garbage_collection
from godwit.operators.emitted import emitted_batch
from godwit.operators.operator import STATE, OperatorOutput
from godwit.operators.parts import (
    PART_FIELD,
    PARTS,
    DividesHotKeys,
    call_merge,
    entries_left,
    whole_of,
    with_removed,
)
from godwit.operators.process import ProcessOperator
from godwit.operators.spreading import MAX_PARTS, PART
from godwit.store.columns import StateSchema
from godwit.values.checks import UnencodableError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from godwit.checkpoint.evolution import StateDescription
    from godwit.columns.groups import Groups
    from godwit.operators.operator import OperatorInput


class MergedProcess(DividesHotKeys, ProcessOperator):
    """A user's function called per key, or per part of a hot one."""

    part_states = (PARTS,)

    def __init__(self, *, merge: Callable[[Any, Any], Any], **options: Any) -> None:
        super().__init__(**options)
        self.merge, self.max_parts = merge, MAX_PARTS
        self._whole = self.schema
        self.schema = StateSchema(
            keys=pa.schema([*self._whole.keys, PART_FIELD]), values=self._whole.values
        )

    @property
    def keys(self) -> pa.Schema:
        """Key columns without the part, as for an operator without ``merge=``."""
        return self._whole.keys

    @property
    def states(self) -> tuple[StateId, ...]:
        """State of whole keys, and state of parts."""
        return StateId(self.name, STATE), StateId(self.name, PARTS)

    def schema_of(self, state: str) -> StateSchema:
        """Columns of the state of whole keys, or of that of parts."""
        return self.schema if state == PARTS else self._whole

    def describe_state(self, state: str = STATE) -> StateDescription:
        """Describe the state of whole keys, or of parts, for the checkpoint."""
        described = super().describe_state()
        if state != PARTS:
            return described
        return msgspec.structs.replace(described, entries=columns_of(pa.schema([PART_FIELD])))

    @without_garbage_collection()
    def process(self, data: OperatorInput) -> OperatorOutput:
        """Merge the states of parts that keys give up, then call the function per key or part."""
        merging, removed_parts = self._parts_to_merge(data)
        groups, identities, (of_merging,) = data.grouped_with(len(self.hash_columns), [merging])
        if not groups.count:
            return OperatorOutput(
                changed=with_removed({}, PARTS, removed_parts, data.num_key_groups)
            )
        own = identities.select(self.keys.names)
        mask = mask_of(identities.column(PART))
        is_part = np.ones(groups.count, np.bool_) if mask is None else mask
        of_state = (
            (STATE, own, np.flatnonzero(~is_part)),
            (PARTS, identities, np.flatnonzero(is_part)),
        )
        known, blobs = _look_up_states(data, groups, of_state)
        keys = rows_as_tuples(own)
        meter = Meter(groups.key_groups)
        states = self._decode_states(known, blobs, keys)
        columns = columns_of_rows(self, data.rows, groups, keys)
        meter.add_by_bytes(blobs)
        self._merge_into(states, known, of_merging, merging, keys)
        emitted, ends, removed = self._call_for_keys(columns, groups, keys, states, meter)
        output = emitted_batch(self, emitted, ends, keys)
        if self._is_immutable:
            states = [state.value for state in states]
        meter.skip()
        blobs, dropped = self._encode_states(states, removed, keys)
        meter.add_by_bytes(blobs)
        changed = {}
        for state, identity, which in of_state:
            if len(which):
                rows = pa.array(which)
                entries = StateRows(
                    hashes=groups.hashes[which],
                    keys=identity.take(rows),
                    values=pa.RecordBatch.from_arrays(
                        [blobs.take(rows)], schema=self.schema.values
                    ),
                    removed=None if dropped is None else dropped[which],
                )
                changed[state] = entries, groups.key_groups[which]
        return OperatorOutput(
            groups=groups,
            changed=with_removed(changed, PARTS, removed_parts, data.num_key_groups),
            output=output,
            cpu_ms=meter.cpu_ms,
            busy_ms=meter.busy_ms,
        )

    def _parts_to_merge(self, data: OperatorInput) -> tuple[StateRows, StateRows]:
        """Return states of parts to merge in this lane, and state entries to remove.

        The states are in the order of their parts' numbers, under the undivided key.
        """
        rows = data.left_parts.get(PARTS)
        if rows is None:
            nothing = StateRows(
                hashes=np.empty(0, np.int64),
                keys=pa.RecordBatch.from_pylist([], schema=self.schema.keys),
                values=pa.RecordBatch.from_pylist([], schema=self.schema.values),
            )
            return nothing, nothing
        home, here = entries_left(data, rows, self.keys.names)
        return whole_of(rows.take(home), self.schema.keys), rows.take(here)

    def _merge_into(
        self,
        states: list[Any],  # of each key; changed
        known: npt.NDArray[np.bool_],  # shape ``(n,)``: keys that have a state, and not a new one
        of_merging: list[int],  # key of each part
        merging: StateRows,
        keys: list[tuple[Any, ...]],
    ) -> None:
        """Merge states of parts into `states`, in place.

        `of_merging`: position of each one's key.
        """
        if not of_merging:
            return
        parts = self._decode_states(
            np.ones(len(of_merging), np.bool_),
            merging.values.column(0),
            [keys[group] for group in of_merging],
        )
        has_state = known.copy()
        for group, part in zip(of_merging, parts, strict=True):
            if not has_state[group]:  # nothing says that a new state changes nothing
                states[group], has_state[group] = part, True
            elif self._is_immutable:
                states[group].value = self._merged(states[group].value, part.value, keys[group])
            else:
                states[group] = self._merged(states[group], part, keys[group])

    def _merged(self, state: Any, part: Any, key: tuple[Any, ...]) -> Any:
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


def _look_up_states(
    data: OperatorInput,
    groups: Groups,
    of_state: tuple[tuple[str, pa.RecordBatch, npt.NDArray[np.intp]], ...],
) -> tuple[npt.NDArray[np.bool_], pa.Array]:
    """Look up the states of keys and of parts.

    `of_state`: state, key columns and positions of the groups that belong to it. Returns a mask of
    groups with a state, and the encoded states.
    """
    known = np.zeros(groups.count, np.bool_)
    blobs, order = [], []
    for state, identity, which in of_state:
        if len(which):
            keys = identity.take(pa.array(which))
            known[which], prior = data.states[state].find(keys, groups.key_groups[which])
            blobs.append(prior.column(0))
            order.append(which)
    if len(blobs) == 1:
        return known, blobs[0]
    back = np.argsort(np.concatenate(order), kind="stable")
    return known, pa.concat_arrays(blobs).take(pa.array(back))
