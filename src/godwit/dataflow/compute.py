"""``compute``: mergeable aggregates per key.

The state of a key is the states of its aggregates, side by side.  An epoch's rows update the state
of the keys they touch; where rows were combined at the source, or a key has partial states on
several executors, partial states are merged instead, in order of arrival.

Invariant: combining any batches and merging the results in order gives what updating with all rows
gives: exactly, except that sums of floats depend on their order in the last bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.dataflow.aggregates.aggregate import Aggregate, Aggregator, BoundAggregate
from godwit.dataflow.aggregates.ordering import pairing
from godwit.dataflow.aggregates.sums import SumOverflowError
from godwit.dataflow.arrays import column_of
from godwit.dataflow.faults import user_traceback
from godwit.dataflow.operator import Advance, MergeableOperator, Step
from godwit.model.errors import (
    CheckpointMismatchError,
    EpochFailedError,
    GodwitError,
    InvalidFlowError,
    UserFunctionError,
)
from godwit.state.evolution import StateDescription, columns_of, differences
from godwit.state.schema import StateSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from godwit.dataflow.groups import Groups
    from godwit.state.evolution import StateUpgrade

__all__ = ["ComputeOperator"]


class ComputeOperator(MergeableOperator):
    """Aggregates of the rows of each key; see `MergeableOperator` for what its methods are.

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
        Whether every epoch puts out all keys. `Advance.output` is empty then: the lane calls
        `finish` on the whole state.

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
        self._slots = tuple(_slots(name, inputs, aggregates))
        state = pa.schema([field for slot in self._slots for field in slot.fields])
        self.schema = StateSchema(keys=keys, values=state)
        results = [pa.field(slot.name, slot.aggregate.output) for slot in self._slots]
        self.output = pa.schema([*keys, *results])
        _check_distinct(name, [*keys.names, *(slot.name for slot in self._slots)])
        _check_distinct(name, [*keys.names, *state.names])

    def combine(self, groups: Groups, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Aggregate raw rows into one partial state per group."""
        return self._joined(
            self._update(slot, slot.create(groups.count), groups, rows, None)
            for slot in self._slots
        )

    def merge_partials(self, groups: Groups, partials: pa.RecordBatch) -> pa.RecordBatch:
        """Merge partial states into one per group, neighbours with neighbours in rounds."""
        states = partials.take(pa.array(groups.order))
        for left, right, paired in pairing(groups.starts):
            merged = self._merge(
                states.take(pa.array(left[paired])), states.take(pa.array(right)), None
            )
            alone = np.flatnonzero(~paired)
            if len(alone):
                place = np.empty(len(left), np.int64)
                place[paired] = np.arange(len(right))
                place[alone] = len(right) + np.arange(len(alone))
                rest = states.take(pa.array(left[alone]))
                merged = pa.concat_batches([merged, rest]).take(pa.array(place))
            states = merged
        return states

    def advance(self, step: Step) -> Advance:
        """Update the states of an epoch's keys with its rows or partial states."""
        before = self._before(step)
        if not step.partial:
            state = self._joined(
                self._update(slot, slot.of(before), step.groups, step.rows, step.keys)
                for slot in self._slots
            )
        elif step.known.any():
            state = self._merge(before, step.rows, step.keys)
        else:
            state = step.rows
        changed = slice(0, 0) if self.complete else slice(None)
        output = self.finish(step.keys[changed], state[changed])
        return Advance(state=state, removed=None, output=output)

    def finish(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> pa.RecordBatch:
        """Output rows for `keys` with `state`."""
        results = [self._finish(slot, slot.of(state), keys) for slot in self._slots]
        return pa.RecordBatch.from_arrays([*keys.columns, *results], schema=self.output)

    @property
    def kind(self) -> str:
        """The call that makes one."""
        return "compute"

    def describe_state(self) -> StateDescription:
        """Say what the state columns are, and what each aggregate says of itself."""
        return StateDescription(
            columns=columns_of(self.schema.values),
            codec="arrow",
            type={slot.name: slot.description for slot in self._slots},
        )

    def upgrade_from(self, stored: StateDescription) -> StateUpgrade | None:
        """Find every aggregate's columns by name; a new aggregate starts empty for every key.

        Raises
        ------
        CheckpointMismatchError
            If an aggregate of the same name was another one.
        """
        today = self.describe_state()
        if stored.codec != today.codec:
            raise self._unlike([f"its state was written as {stored.codec}"])
        results = stored.type if isinstance(stored.type, dict) else {}
        changed = [
            difference
            for slot in self._slots
            if slot.name in results
            for difference in slot.differences(stored)
        ]
        if changed:
            raise self._unlike(changed)
        if stored.columns == today.columns and results.keys() == today.type.keys():
            return None
        return _ColumnsByName(operator=self, kept=frozenset(results))

    def from_columns(self, values: pa.RecordBatch, kept: frozenset[str]) -> pa.RecordBatch:
        """Give today's state columns: those of the results in `kept` as they are, others new.

        Parameters
        ----------
        values
            State columns, in any order, maybe with others between them.
        kept
            Names of results.
        """
        columns: list[pa.Array] = []
        for slot in self._slots:
            if slot.name in kept:
                columns += [values.column(field.name) for field in slot.fields]
            else:
                columns += slot.create(values.num_rows).columns
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.values)

    def _unlike(self, found: list[str]) -> CheckpointMismatchError:
        return CheckpointMismatchError(
            f"The state of operator {self.name!r} in the checkpoint does not fit: "
            f"{'; '.join(found)}.",
            remedy="Give the changed aggregate a result name of its own, under which it starts "
            "empty, or undo the change.",
            operator=self.name,
            differences=found,
        )

    def _before(self, step: Step) -> pa.RecordBatch:
        """State of each key before the step; that of keys without state is newly created."""
        if step.known.all():
            return step.prior
        created = self._joined(slot.create(step.groups.count) for slot in self._slots)
        if not step.known.any():
            return created
        known = column_of(step.known, None, pa.bool_())
        columns = [
            pc.if_else(known, prior, new)
            for prior, new in zip(step.prior.columns, created.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.values)

    def _update(
        self,
        slot: _Slot,
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
        def merge(slot: _Slot) -> pa.RecordBatch:
            return slot.call(
                "merge",
                lambda: slot.aggregate.merge(slot.of(left), slot.of(right)),
                count=left.num_rows,
                keys=keys,
            )

        return self._joined(merge(slot) for slot in self._slots)

    def _finish(self, slot: _Slot, states: pa.RecordBatch, keys: pa.RecordBatch) -> pa.Array:
        return slot.call(
            "finish", lambda: slot.aggregate.finish(states), count=states.num_rows, keys=keys
        )

    def _joined(self, parts: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        columns = [column for part in parts for column in part.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnsByName:
    """A `StateUpgrade` of aggregates that were reordered, added or taken away."""

    operator: ComputeOperator
    kept: frozenset[str]

    def __call__(self, values: pa.RecordBatch) -> pa.RecordBatch:
        return self.operator.from_columns(values, self.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """One aggregate's place in an operator.

    Attributes
    ----------
    operator, name
        Names of the operator and of the result.
    aggregate
        The aggregate.
    columns
        Names of its columns among the operator's inputs.
    first
        Position of its first column among the operator's state columns.
    fields
        Its state columns, by the operator's names.
    """

    operator: str
    name: str
    aggregate: BoundAggregate
    columns: tuple[str, ...]
    first: int
    fields: tuple[pa.Field, ...]

    def of(self, state: pa.RecordBatch) -> pa.RecordBatch:
        """Return the aggregate's own columns, by its own names."""
        columns = [state.column(self.first + i) for i in range(len(self.fields))]
        return pa.RecordBatch.from_arrays(columns, schema=self.aggregate.state)

    @property
    def description(self) -> dict[str, object]:
        """What the checkpoint keeps of it."""
        return {
            "state": [field.name for field in self.fields],
            "aggregate": self.aggregate.describe(),
        }

    def differences(self, stored: StateDescription) -> Iterator[str]:
        """Say in what way the aggregate is not the one that was stored."""
        where = f"result {self.name!r}: "
        found = list(differences(where, stored.type[self.name], self.description))
        yield from found
        types = dict(stored.columns)
        for name, dtype in () if found else columns_of(self.fields):
            if types.get(name) != dtype:
                yield f"{where}its state column {name!r} was {types.get(name)} and is {dtype}"

    def create(self, count: int) -> pa.RecordBatch:
        """Return new states."""
        return self.call("create", lambda: self.aggregate.create(count), count=count, keys=None)

    def call(
        self, method: str, function: Callable[[], Any], *, count: int, keys: pa.RecordBatch | None
    ) -> Any:
        """Call one of the aggregate's functions; say where it failed if it does."""
        try:
            result = function()
        except SumOverflowError as error:
            raise self._overflow(error, keys) from error
        except GodwitError:
            raise
        except (Exception, SystemExit) as error:
            if not isinstance(self.aggregate, Aggregator):
                raise
            raise self._failure(
                f"{method}() raised {type(error).__name__}: {error}",
                f"Correct the function; its traceback is:\n{user_traceback(error)}",
            ) from error
        if isinstance(self.aggregate, Aggregator):
            self._check(method, result, count)
        return result

    def _check(self, method: str, result: Any, count: int) -> None:
        """Check what a function of the user returned."""
        if method == "finish":
            wanted, kind, dtype = "pyarrow.Array", pa.Array, self.aggregate.output
            found = getattr(result, "type", None)
        else:
            wanted, kind, dtype = "pyarrow.RecordBatch", pa.RecordBatch, self.aggregate.state
            found = getattr(result, "schema", None)
        if not isinstance(result, kind):
            raise self._failure(
                f"{method}() returned a value of type {type(result).__name__}",
                f"Return a {wanted}.",
            )
        if found != dtype:
            raise self._failure(
                f"{method}() returned {_flat(found)} where {_flat(dtype)} is declared",
                "Cast the result, or correct the declaration.",
            )
        if len(result) != count:
            raise self._failure(
                f"{method}() returned {len(result)} rows for {count} states",
                "Return one row for every state, in their order.",
            )

    def _failure(self, what: str, remedy: str) -> UserFunctionError:
        kind = type(self.aggregate).__qualname__
        return UserFunctionError(
            f"Aggregate {self.name!r} ({kind}) of operator {self.operator!r}: {what}.",
            remedy=remedy,
            operator=self.operator,
            aggregate=self.name,
        )

    def _overflow(self, error: SumOverflowError, keys: pa.RecordBatch | None) -> EpochFailedError:
        key = (
            None if keys is None else tuple(column[error.group].as_py() for column in keys.columns)
        )
        whose = "a key" if key is None else f"key {key!r}"
        return EpochFailedError(
            f"Aggregate {self.name!r} of operator {self.operator!r}: the sum for {whose} does not "
            f"fit {error.dtype}.",
            remedy="Cast the column in a map: integers to decimal(28, 0), or anything to double.",
            operator=self.operator,
            aggregate=self.name,
            key=key,
        )


def _slots(operator: str, inputs: pa.Schema, aggregates: Mapping[str, Aggregate]) -> list[_Slot]:
    slots = []
    first = 0
    for name, aggregate in aggregates.items():
        try:
            bound = aggregate.bind(inputs)
        except InvalidFlowError as error:
            raise InvalidFlowError(
                f"Result {name!r} of operator {operator!r}: {error.message}",
                remedy=error.remedy,
                **{**error.context, "operator": operator, "result": name},
            ) from error
        single = len(bound.state) == 1
        fields = tuple(
            pa.field(name if single else f"{name}__{field.name}", field.type)
            for field in bound.state
        )
        slots.append(
            _Slot(
                operator=operator,
                name=name,
                aggregate=bound,
                columns=tuple(aggregate.columns),
                first=first,
                fields=fields,
            )
        )
        first += len(fields)
    return slots


def _check_distinct(operator: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidFlowError(
            f"Operator {operator!r} would have several columns named {twice[0]!r}.",
            remedy="Give its results names that differ from the key columns and from each other.",
            operator=operator,
            columns=twice,
        )


def _flat(declared: object) -> str:
    """Return a schema on one line."""
    if isinstance(declared, pa.Schema):
        return "columns " + ", ".join(f"{field.name}: {field.type}" for field in declared)
    return f"type {declared}"
