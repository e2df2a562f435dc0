"""``compute``: mergeable aggregates per key.

The state of a key is the states of its aggregates, side by side.  An epoch's rows update the state
of the keys they touch; where rows were combined at the source, or a key has partial states on
several executors, partial states are merged instead, in order of arrival.

Invariant: combining any batches and merging the results in order gives what updating with all rows
gives: exactly, except that sums of floats depend on their order in the last bits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.checkpoint.entries import StateRows
from godwit.checkpoint.evolution import StateDescription, columns_of, refuse
from godwit.columns.arrays import column_of
from godwit.columns.groups import group_rows
from godwit.model.errors import InvalidFlowError
from godwit.operators.aggregates.ordering import pairing
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput
from godwit.operators.slots import Slot, check_distinct, key_named, slots_of
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.checkpoint.evolution import StateUpgrade, WrittenState
    from godwit.columns.groups import Groups
    from godwit.operators.aggregates.aggregate import Aggregate
    from godwit.operators.operator import OperatorInput

__all__ = ["ComputeOperator"]

IntArray = npt.NDArray[np.int64]


class ComputeOperator(KeyedOperator):
    """Aggregates of the rows of each key.

    State columns are named after their aggregate: ``total`` if it has one, ``mean__sum`` and
    ``mean__count`` if it has several.

    Parameters
    ----------
    name
        The operator's name.
    keys
        Key columns.
    inputs
        Columns that the aggregates read.
    aggregates
        Name of the result → aggregate.
    complete
        Whether every epoch puts out all keys.

    Raises
    ------
    InvalidFlowError
        If there are no aggregates, a column is missing or of a type that its aggregate cannot
        take, or two columns would have one name.
    """

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        inputs: pa.Schema,
        aggregates: Mapping[str, Aggregate],
        complete: bool = False,
    ) -> None:
        if not aggregates:
            raise InvalidFlowError(
                f"Operator {name!r} has no aggregates.",
                remedy="Name at least one result, as in compute(total=gw.sum('delay')).",
                operator=name,
            )
        self.name = name
        self.inputs = inputs
        self.complete = complete
        self._slots = tuple(slots_of(name, inputs, aggregates))
        state = pa.schema([field for slot in self._slots for field in slot.fields])
        self.schema = StateSchema(keys=keys, values=state)
        results = [pa.field(slot.name, slot.aggregate.output) for slot in self._slots]
        self.output = pa.schema([*keys, *results])
        check_distinct(name, [*keys.names, *(slot.name for slot in self._slots)])
        check_distinct(name, [*keys.names, *state.names])

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """The key has one row."""
        return (tuple(self.keys.names),)

    @property
    def partials(self) -> ComputeOperator:
        """Its state is made of partial states."""
        return self

    def combine(self, groups: Groups, keys: pa.RecordBatch, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Aggregate raw rows into one partial state per group; `keys` are named in errors."""
        with key_named(lambda: keys.select(self.keys.names)):
            return self._joined(
                self._update(slot, slot.create(groups.count), groups, rows, None)
                for slot in self._slots
            )

    def combined(self, data: OperatorInput) -> StateRows:
        """Give what arrived as partial states: raw rows as one an entry."""
        rows = data.rows
        if data.is_partial:
            return rows
        groups, keys = data.grouped(len(self.keys))
        return StateRows(
            hashes=groups.hashes, keys=keys, values=self.combine(groups, keys, rows.values)
        )

    def merge_partials(self, groups: Groups, partials: pa.RecordBatch) -> pa.RecordBatch:
        """Merge partial states into one per group, neighbours with neighbours in rounds."""
        return self.merge_in_order(partials.take(pa.array(groups.order)), groups.starts)

    def merge_in_order(self, states: pa.RecordBatch, starts: IntArray) -> pa.RecordBatch:
        """Merge the states ``starts[g]:starts[g + 1]`` into one, for every g."""
        for left, right, paired in pairing(starts):
            merged = self.merge(states.take(pa.array(left[paired])), states.take(pa.array(right)))
            alone = np.flatnonzero(~paired)
            if len(alone):
                place = np.empty(len(left), np.int64)
                place[paired] = np.arange(len(right))
                place[alone] = len(right) + np.arange(len(alone))
                rest = states.take(pa.array(left[alone]))
                merged = pa.concat_batches([merged, rest]).take(pa.array(place))
            states = merged
        return states

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Merge states row by row, the earlier ones first."""
        return self._merge(left, right, None)

    @property
    def commutative(self) -> bool:
        """Whether rows may be seen in any order."""
        return all(slot.aggregate.commutative for slot in self._slots)

    @property
    def idempotent(self) -> bool:
        """Whether a row may be seen twice."""
        return all(slot.aggregate.idempotent for slot in self._slots)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Update the states of an epoch's keys with its rows or partial states."""
        if not len(data.rows.hashes):
            if not self.complete:
                return OperatorOutput()
            cpu = time.process_time()
            output = self._of_all_keys(data.state.scan(), data.num_key_groups)
            return OperatorOutput(output=output, closing_ms=(time.process_time() - cpu) * 1e3)
        groups, keys = data.grouped(len(self.keys))
        rows = data.rows.values
        if data.is_partial:
            rows = self.merge_partials(groups, rows)
        known, prior = data.state.find(keys, groups.key_groups)
        state = self.updated(groups, keys, rows, known, prior, are_partial=data.is_partial)
        if not self.complete:
            return OperatorOutput.of_groups(groups, keys, state, output=self.finish(keys, state))
        cpu = time.process_time()
        changed = StateRows(hashes=groups.hashes, keys=keys, values=state)
        output = self._of_all_keys(data.state.scan().then(changed), data.num_key_groups)
        return OperatorOutput.of_groups(
            groups, keys, state, output=output, closing_ms=(time.process_time() - cpu) * 1e3
        )

    def _of_all_keys(self, entries: StateRows, num_key_groups: int) -> pa.RecordBatch:
        """Output of every key; of an entry that is there twice, the later one counts."""
        groups = group_rows(entries.hashes, entries.keys, num_key_groups)
        newest = pa.array(groups.order[groups.starts[1:] - 1])
        return self.finish(entries.keys.take(newest), entries.values.take(newest))

    def updated(
        self,
        groups: Groups,
        keys: pa.RecordBatch,
        rows: pa.RecordBatch,
        known: npt.NDArray[np.bool_],
        prior: pa.RecordBatch,
        *,
        are_partial: bool,
    ) -> pa.RecordBatch:
        """State of G entries after an epoch's rows (N) or partial states (G); prior where known."""
        if are_partial and not known.any():
            return rows
        before = self._before(known, prior)
        if are_partial:
            return self._merge(before, rows, keys)
        return self._joined(
            self._update(slot, slot.of(before), groups, rows, keys) for slot in self._slots
        )

    def finish(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> pa.RecordBatch:
        """Output rows for `keys` with `state`."""
        return pa.RecordBatch.from_arrays(
            [*keys.columns, *self.results(keys, state)], schema=self.output
        )

    def results(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> list[pa.Array]:
        """Results of every aggregate for `keys` with `state`."""
        return [self._finish(slot, slot.of(state), keys) for slot in self._slots]

    @property
    def kind(self) -> str:
        """The call that makes one."""
        return "compute"

    def describe_state(self, state: str = STATE) -> StateDescription:  # noqa: ARG002
        """Say what the state columns are, and what each aggregate says of itself."""
        return StateDescription(
            columns=columns_of(self.schema.values),
            codec="arrow",
            type={slot.name: slot.description for slot in self._slots},
        )

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:  # noqa: ARG002
        """Leave the columns of aggregates that are the same as they are.

        Raises
        ------
        CheckpointMismatchError
            If an aggregate of the same name was another one.
        """
        stored = written.description
        results = stored.type if isinstance(stored.type, dict) else {}
        changed: list[str] = []
        upgrades: dict[str, StateUpgrade] = {}
        for slot in self._slots:
            found = list(slot.differences(stored)) if slot.name in results else []
            upgrade = slot.upgrade_from(stored) if found else None
            if upgrade is None:
                changed += found
            else:
                upgrades[slot.name] = upgrade
        if changed:
            raise refuse(
                f"The state of operator {self.name!r}",
                changed,
                "Give the changed aggregate a result name of its own, under which it starts "
                "empty, or undo the change.",
                operator=self.name,
            )
        if not upgrades:
            return None
        columns = {slot.name: tuple(f.name for f in slot.fields) for slot in self._slots}
        return _ResultsBroughtForward(
            upgrades={columns[name]: upgrade for name, upgrade in upgrades.items()}
        )

    def new_columns(self, state: str, count: int) -> pa.RecordBatch:  # noqa: ARG002
        """Give the states of keys that have seen no row."""
        return self._joined(slot.create(count) for slot in self._slots)

    def _before(self, known: npt.NDArray[np.bool_], prior: pa.RecordBatch) -> pa.RecordBatch:
        """State of each key before the epoch; that of keys without state is newly created."""
        if known.all():
            return prior
        created = self.new_columns("", len(known))
        if not known.any():
            return created
        there = column_of(known, None, pa.bool_())
        columns = [
            pc.if_else(there, old, new)
            for old, new in zip(prior.columns, created.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.values)

    def _update(
        self,
        slot: Slot,
        states: pa.RecordBatch,
        groups: Groups,
        rows: pa.RecordBatch,
        keys: pa.RecordBatch | None,
    ) -> pa.RecordBatch:
        columns = [rows.column(name) for name in slot.columns]
        return slot.call(
            "update",
            lambda: slot.aggregate.update(states, groups.of_row, *columns),
            count=groups.count,
            keys=keys,
        )

    def _merge(
        self, left: pa.RecordBatch, right: pa.RecordBatch, keys: pa.RecordBatch | None
    ) -> pa.RecordBatch:
        def merge(slot: Slot) -> pa.RecordBatch:
            return slot.call(
                "merge",
                lambda: slot.aggregate.merge(slot.of(left), slot.of(right)),
                count=left.num_rows,
                keys=keys,
            )

        return self._joined(merge(slot) for slot in self._slots)

    def _finish(self, slot: Slot, states: pa.RecordBatch, keys: pa.RecordBatch) -> pa.Array:
        return slot.call(
            "finish", lambda: slot.aggregate.finish(states), count=states.num_rows, keys=keys
        )

    def _joined(self, parts: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        columns = [column for part in parts for column in part.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResultsBroughtForward:
    """A `StateUpgrade` of some aggregates.

    Attributes
    ----------
    upgrades
        Names of an aggregate's columns → brings these forward.
    """

    upgrades: Mapping[tuple[str, ...], StateUpgrade]

    def __call__(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Give as many states."""
        for names, upgrade in self.upgrades.items():
            upgraded = upgrade(values.select(list(names)))
            for name, column in zip(names, upgraded.columns, strict=True):
                values = values.set_column(values.schema.get_field_index(name), name, column)
        return values
