"""Operators whose functions read broadcast tables (`godwit.operators.broadcast`)."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from godwit.checkpoint.evolution import ORIGINS, StateDescription
from godwit.checkpoint.records import StateId
from godwit.model.key_groups import key_groups_of
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.broadcast import Broadcast, BroadcastTable, null_hash_of
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from godwit.checkpoint.evolution import StateUpgrade, WrittenState
    from godwit.operators.operator import OperatorInput
    from godwit.store.columns import StateSchema
    from godwit.time.event_time import EpochTime


def _with_user_names(description: StateDescription) -> StateDescription:
    """Replace internal column names in the description of a table's state by the user's."""
    entries = tuple((n.removeprefix(f"{RESERVED_PREFIX}_"), t) for n, t in description.entries)
    return msgspec.structs.replace(description, entries=entries)


class BroadcastOperator(KeyedOperator):
    """An operator whose functions read tables; all else is that of the operator that it wraps."""

    def __init__(self, inner: KeyedOperator, broadcasts: Sequence[Broadcast]) -> None:
        self.inner, self.broadcasts = inner, tuple(broadcasts)
        self.name, self.function, self.output = inner.name, inner.function, inner.output
        self.failures_to = inner.failures_to
        self.inputs, self.schema, self.repeatable = inner.inputs, inner.schema, inner.repeatable
        self.broadcast_inputs = frozenset(n for b in self.broadcasts for n in b.inputs)
        self._by_state = {broadcast.state: broadcast for broadcast in self.broadcasts}

    @property
    def kind(self) -> str:  # type: ignore[override]  # that of an instance
        """Kind of the wrapped operator."""
        return self.inner.kind

    @cached_property
    def null_hash(self) -> int:
        """Hash of the null key, under which broadcast tables are stored."""
        return null_hash_of(self.keys)

    def table_key_group(self, num_key_groups: int) -> int:
        return int(key_groups_of(np.array([self.null_hash]), num_key_groups)[0])

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Apply the epoch's rows of broadcast tables, then process the rows of the main input."""
        mappings, changed = {}, {}
        for broadcast in self.broadcasts:
            table = data.tables.get(broadcast.name)
            if table is None:
                table = BroadcastTable.empty(broadcast)
            rows = [
                data.broadcast[number]
                for number in sorted(broadcast.inputs)
                if number in data.broadcast
            ]
            if rows:
                entries = broadcast.entries(rows)
                table = table.updated_with(entries)
                if data.writes_tables:
                    key_groups = np.full(
                        len(entries.hashes), self.table_key_group(data.num_key_groups), np.int32
                    )
                    changed[broadcast.state] = (entries, key_groups)
            mappings[broadcast.name] = table.mapping
        states = {name: view for name, view in data.states.items() if name not in self._by_state}
        output = self.inner.process(replace(data, states=states, named=mappings))
        return replace(output, changed={**output.changed, **changed})

    @property
    def has_timers(self) -> bool:
        return self.inner.has_timers

    def reads_all_keys(self, time: EpochTime) -> bool:
        return self.inner.reads_all_keys(time)

    @property
    def states(self) -> tuple[StateId, ...]:
        """States of the wrapped operator, then those of the broadcast tables."""
        return (*self.inner.states, *(StateId(self.name, b.state) for b in self.broadcasts))

    def schema_of(self, state: str) -> StateSchema:
        table = self._by_state.get(state)
        return self.inner.schema_of(state) if table is None else table.schema

    def describe_state(self, state: str = STATE) -> StateDescription:
        """Describe a state of the wrapped operator, or of a broadcast table, for the checkpoint."""
        table = self._by_state.get(state)
        if table is None:
            return self.inner.describe_state(state)
        origins = {f"table {broadcast.name!r}": broadcast.origin for broadcast in self.broadcasts}
        return msgspec.structs.replace(table.describe(), means={ORIGINS: origins})

    def check_stored_state(
        self, state: str, stored: StateDescription, today: StateDescription
    ) -> None:
        """Raise if stored state does not fit the wrapped operator or the broadcast table."""
        if state in self._by_state:
            super().check_stored_state(state, _with_user_names(stored), _with_user_names(today))
        else:
            self.inner.check_stored_state(state, stored, today)

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:
        """Return the upgrade of the wrapped operator's state; tables never need one."""
        return None if state in self._by_state else self.inner.values_from(state, written)

    def new_columns(self, state: str, count: int) -> pa.RecordBatch:
        if state in self._by_state:
            return super().new_columns(state, count)
        return self.inner.new_columns(state, count)
