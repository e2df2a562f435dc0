"""Parts of hot keys whose states are merged: rows dealt to them, and entries that they leave.

A part has its entries in states of its own, whose identity begins with the key and the number of
the part; a whole key has none there.  When a key leaves its parts, the lane of the key reads their
entries as the last epoch left them, and the lanes of the parts remove them, by the same commit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.columns.arrays import values_of
from godwit.model.errors import UserFunctionError
from godwit.model.frames import function_failed
from godwit.model.key_groups import key_groups_of
from godwit.model.naming import function_name
from godwit.operators.operator import STATE, KeyedOperator
from godwit.operators.ordering import order_by
from godwit.operators.spreading import PART, hash_undivided
from godwit.operators.windows.event_time import NO_ARRIVALS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from godwit.checkpoint.entries import StateRows
    from godwit.operators.operator import Changed, OperatorInput
    from godwit.operators.windows.event_time import Arrivals, EpochTime

PART_FIELD: Final = pa.field(PART, pa.int32())
"""Key column with the number of a part; null: the whole key."""
PARTS: Final = "parts"
"""Name of the state of parts of an operator with one state, and beginning of those of others."""


class DividesHotKeys(KeyedOperator):
    """Base of operators whose hot keys have parts that are merged when keys leave them."""

    @property
    def hash_columns(self) -> pa.Schema:
        """Key columns, then the part; a null part does not change the hash of the key."""
        return self.schema.keys

    def needs_state(self, time: EpochTime) -> bool:
        """Return whether the epoch must fail if state of a key group is missing.

        It must if it merges parts of hot keys: rows cannot wait for state then.
        """
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
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Arrivals]:
        """Assign rows of hot keys to parts by the rows' hash; other rows go to the undivided key.

        Returns the rows with their part; no left-out rows; and their event times.
        """
        return in_parts(rows, self.keys.names, time), None, NO_ARRIVALS


def in_parts(rows: pa.RecordBatch, keys: Sequence[str], time: EpochTime) -> pa.RecordBatch:
    """Insert a column with each row's part behind the key columns.

    Rows of hot keys go to parts by the hash of the row, others to the undivided key. `keys`: names
    of the key columns, which come first in `rows`.
    """
    at, parts = len(keys), pa.nulls(rows.num_rows, PART_FIELD.type)
    if time.spreads is not None and time.spreads.keys:
        hashes = hash_undivided(rows.select(keys))
        routes = time.spreads.current.route_rows(hashes, 0, rows)
        if routes is not None:  # every row goes to one part, so they are in their order
            parts = pa.array(routes[1], PART_FIELD.type, mask=routes[1] == 0)
    columns, names = rows.columns, rows.schema.names
    return pa.RecordBatch.from_arrays(
        [*columns[:at], parts, *columns[at:]], names=[*names[:at], PART, *names[at:]]
    )


def entries_left(
    data: OperatorInput, rows: StateRows, keys: Sequence[str]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return positions of entries of given-up parts: those to merge here, those to remove here.

    Those to merge are in the order of the parts' numbers. `keys`: names of the key columns.
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
    """Return entries of parts under their undivided keys, with the key columns `identity`."""
    own = rows.keys.select(identity.names[:-1])
    none = pa.nulls(len(rows.hashes), PART_FIELD.type)
    keys = pa.RecordBatch.from_arrays([*own.columns, none], schema=identity)
    return replace(rows, hashes=hash_undivided(own), keys=keys)


def part_state_of(state: str) -> str:
    """Return the name of the state that stores the parts of a state."""
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
    """Merge two states of a key by the user's function, and return the result; errors name the key.

    `named`: further fields of the error.
    """
    try:
        merged = merge(*states)
    except BaseException as error:
        raise function_failed(operator, merge, key, error) from error
    if merged is None:
        of = "".join(f"state {name!r} of " for name in named.values())
        raise UserFunctionError(
            f"{function_name(merge)}, given as merge= of {of}operator {operator!r}, returned "
            f"nothing for key {key!r}.",
            remedy="Return the merged state, also if it is the first argument, changed.",
            operator=operator,
            key=key,
            **named,
        )
    return merged
