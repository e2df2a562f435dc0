"""``compute``: mergeable aggregates per key.

The state of a key is the states of its aggregates, side by side.  An epoch's rows update the state
of the keys they touch; where rows were combined at the source, or a key has partial states on
several executors, partial states are merged instead, in order of arrival.

Invariant: combining any batches and merging the results in order gives what updating with all rows
gives: exactly, except that sums of floats depend on their order in the last bits.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.checkpoint.evolution import (
    StateDescription,
    columns_of,
    differences,
    mismatch_error,
    without_zones,
)
from godwit.columns.failures import FAILURES, failed
from godwit.columns.groups import group_rows
from godwit.columns.signed import CHANGE, with_sign
from godwit.columns.types import columns_text
from godwit.library.aggregates.conditions import RowError, user_aggregate
from godwit.library.aggregates.sums import SumOverflowError
from godwit.model.errors import (
    EpochFailedError,
    GodwitError,
    InvalidFlowError,
    UserFunctionError,
)
from godwit.model.frames import user_traceback
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.aggregate import (
    HIGH,
    Aggregate,
    Aggregator,
    BoundAggregate,
    BuiltIn,
)
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput
from godwit.operators.ordering import expand_ranges, pairing, rows_by_group
from godwit.store.changes import StateRows
from godwit.store.columns import StateSchema, take_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from godwit.checkpoint.evolution import StateUpgrade, WrittenState
    from godwit.columns.groups import Groups
    from godwit.operators.aggregate import Aggregate
    from godwit.operators.operator import OperatorInput
    from godwit.plan.nodes import OutputMode

IntArray = npt.NDArray[np.int64]
_MAX_TRIED: Final = 10_000  # rows that are tried alone to find the one that fails


class ComputeOperator(KeyedOperator):
    """Operator of mergeable aggregates per key.

    State columns are named after their result: ``total`` if its aggregate has one, ``mean__sum``
    and ``mean__count`` if it has several.
    """

    kind = "compute"
    mergeable = True
    reads_touched = True

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        inputs: pa.Schema,
        aggregates: Mapping[str, Aggregate],
        mode: OutputMode = "update",
        # whether states are results whenever they are stored, so that sums need no wider ones
        narrow: bool = True,
    ) -> None:
        if not aggregates:
            raise InvalidFlowError(
                f"Operator {name!r} has no aggregates.",
                remedy="Pass at least one aggregate, as in compute(total=gw.sum('delay')).",
                operator=name,
            )
        self.name = name
        self.inputs = inputs
        self.complete = mode == "complete"
        self.changes = mode == "changes"
        self._results = _bind_results(name, inputs, aggregates, narrow=narrow)
        # Merges what does not fit on the way, as if states were no results.
        self._wide: ComputeOperator | None = None
        if narrow and any(result.is_narrowed for result in self._results):
            self._wide = ComputeOperator(
                name=name, keys=keys, inputs=inputs, aggregates=aggregates, narrow=False
            )
        state = pa.schema([field for result in self._results for field in result.fields])
        self.schema = StateSchema(keys=keys, values=state)
        results = [pa.field(result.name, result.aggregate.output) for result in self._results]
        self.output = pa.schema([*keys, *results, *([CHANGE] if self.changes else [])])
        _check_distinct(name, self.output.names)
        _check_distinct(name, [*keys.names, *state.names])

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """The key columns, which identify a row of the result; none with ``output="changes"``."""
        return () if self.changes else (tuple(self.keys.names),)

    def aggregate_of(self, result: str) -> BoundAggregate:
        """Return the aggregate of a result."""
        return next(own.aggregate for own in self._results if own.name == result)

    def combine(
        self, groups: Groups, keys: pa.RecordBatch, rows: pa.RecordBatch
    ) -> pa.RecordBatch | None:
        """Aggregate raw rows into one partial state per group; errors name one of the `keys`.

        ``None`` if the sum of these rows alone does not fit; that of all rows may.
        """
        try:
            return self.aggregate_rows(rows, groups.of_row, groups.count, lambda: keys)
        except EpochFailedError as error:
            if self._wide is None or not _is_overflow(error):
                raise
            return None

    def aggregate_rows(
        self,
        rows: pa.RecordBatch,
        of_row: IntArray,
        count: int,
        keys: Callable[[], pa.RecordBatch],  # returns the states' keys, for errors
    ) -> pa.RecordBatch:
        """Aggregate raw rows into `count` partial states; `of_row`: number of each row's state.

        `keys`: returns the key of each state, of which errors name one.
        """
        with _naming_key(lambda: keys().select(self.keys.names)):
            return self._side_by_side(
                result.update(result.create(count), of_row, rows, None) for result in self._results
            )

    def as_partials(self, data: OperatorInput) -> StateRows:
        """Return an epoch's rows as partial states; unchanged if their sender combined them."""
        rows = data.rows
        if data.is_partial:
            return rows
        groups, keys = data.grouped(len(self.keys))
        values = self.aggregate_rows(rows.values, groups.of_row, groups.count, lambda: keys)
        return StateRows(hashes=groups.hashes, keys=keys, values=values)

    def merge_partials(self, groups: Groups, partials: pa.RecordBatch) -> pa.RecordBatch:
        """Merge the partial states of each group, in order of arrival, into one state per group."""
        return self.merge_in_order(take_rows(partials, groups.order), groups.starts)

    def merge_in_order(self, states: pa.RecordBatch, starts: IntArray) -> pa.RecordBatch:
        """Merge the states ``starts[g]:starts[g + 1]`` into one state, for every group g."""
        sizes = np.diff(starts)
        several = np.flatnonzero(sizes > 1)
        if 4 * len(several) > len(sizes) or sizes.min(initial=1) < 1:
            return self._merged_in_rounds(states, starts)
        if not len(several):
            return states
        # Most are alone, and stay where they are.
        _, rows = expand_ranges(starts[several], sizes[several])
        starts_of_several = np.concatenate([[0], np.cumsum(sizes[several])])
        merged = self._merged_in_rounds(take_rows(states, rows), starts_of_several)
        merged_positions = starts[:-1].copy()
        merged_positions[several] = states.num_rows + np.arange(len(several))
        return take_rows(pa.concat_batches([states, merged]), merged_positions)

    def _merged_in_rounds(self, states: pa.RecordBatch, starts: IntArray) -> pa.RecordBatch:
        """Merge the states of each group in rounds, each of which merges pairs of neighbours."""
        for left, right, paired in pairing(starts):
            merged = self.merge(take_rows(states, left[paired]), take_rows(states, right))
            unpaired = np.flatnonzero(~paired)
            if len(unpaired):
                positions = np.empty(len(left), np.int64)
                positions[paired] = np.arange(len(right))
                positions[unpaired] = len(right) + np.arange(len(unpaired))
                unpaired_states = take_rows(states, left[unpaired])
                merged = take_rows(pa.concat_batches([merged, unpaired_states]), positions)
            states = merged
        return states

    def merge(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        """Merge two batches of states row by row; `left` has the states of the earlier rows."""
        return self._merge_naming_key(left, right, None)

    @property
    def commutative(self) -> bool:
        return all(result.aggregate.commutative for result in self._results)

    @property
    def idempotent(self) -> bool:
        """True if a row that is added twice changes no aggregate's state."""
        return all(result.aggregate.idempotent for result in self._results)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Update the states of the epoch's keys, and emit the keys' new results."""
        if not len(data.rows.hashes):
            if not self.complete:
                return OperatorOutput()
            cpu = time.process_time()
            output = self._complete_output(data.state.scan(), data.num_key_groups)
            return OperatorOutput(output=output, closing_ms=(time.process_time() - cpu) * 1e3)
        groups, keys = data.grouped(len(self.keys))
        known, prior = data.state.find(keys, groups.key_groups)
        state = self.new_states(data, groups, keys, known, prior)
        if not self.complete:
            results = self.finish(keys, state)
            if self.changes:
                results = self._changelog_rows(known, keys, prior, results)
            return OperatorOutput.of_groups(groups, keys, state, output=results)
        cpu = time.process_time()
        changed = StateRows(hashes=groups.hashes, keys=keys, values=state)
        output = self._complete_output(data.state.scan().followed_by(changed), data.num_key_groups)
        return OperatorOutput.of_groups(
            groups, keys, state, output=output, closing_ms=(time.process_time() - cpu) * 1e3
        )

    def new_states(
        self,
        data: OperatorInput,
        groups: Groups,
        keys: pa.RecordBatch,
        known: npt.NDArray[np.bool_],
        prior: pa.RecordBatch,
    ) -> pa.RecordBatch:
        """Return the states of groups with the epoch's rows added; see `update_states`."""
        rows = data.rows.values
        if not data.is_partial:
            return self.update_states(groups, keys, rows, known, prior, are_partial=False)
        try:
            merged = self.merge_partials(groups, rows)
            return self.update_states(groups, keys, merged, known, prior, are_partial=True)
        except EpochFailedError as error:
            if self._wide is None or not _is_overflow(error):
                raise
        wide_operator, stored = self._wide, np.flatnonzero(known)
        parts = [_with_columns_of(wide_operator, part) for part in (take_rows(prior, stored), rows)]
        order, starts = rows_by_group(np.concatenate([stored, groups.of_row]), groups.count)
        exact = wide_operator.merge_in_order(take_rows(pa.concat_batches(parts), order), starts)
        wide_operator.results(keys, exact)  # which raises if one does not fit
        return exact.select(self.schema.values.names)

    def _complete_output(self, entries: StateRows, num_key_groups: int) -> pa.RecordBatch:
        """Return the result of every key (complete output), from the last of its entries."""
        groups = group_rows(entries.hashes, entries.keys, num_key_groups)
        newest = pa.array(groups.order[groups.starts[1:] - 1])
        return self.finish(entries.keys.take(newest), entries.values.take(newest))

    def _changelog_rows(
        self,
        known: npt.NDArray[np.bool_],
        keys: pa.RecordBatch,
        prior: pa.RecordBatch,
        new_results: pa.RecordBatch,
    ) -> pa.RecordBatch:
        """Return the old results that no longer hold (change -1), then the new ones (change 1).

        `known`: mask of the keys that had a result before. `prior`: states before
        the epoch. Results that did not change are left out.
        """
        stored = pa.array(known)
        old_results = self.finish(keys.filter(stored), prior.filter(stored))
        is_same = np.zeros(len(known), np.bool_)
        is_same[known] = same_rows(old_results, new_results.filter(stored))
        parts = [
            with_sign(part.filter(pa.array(mask)), sign)
            for part, mask, sign in ((old_results, ~is_same[known], -1), (new_results, ~is_same, 1))
        ]
        return pa.concat_batches(parts)

    def update_states(
        self,
        groups: Groups,
        keys: pa.RecordBatch,
        rows: pa.RecordBatch,
        known: npt.NDArray[np.bool_],
        prior: pa.RecordBatch,
        *,
        are_partial: bool,
    ) -> pa.RecordBatch:
        """Return the states of groups with their raw rows or partial states added.

        `keys`: key of each group. `known`: mask of the groups that have stored state, which is in
        `prior`. `are_partial`: `rows` are partial states, one of each group.
        """
        if are_partial and not known.any():
            return rows
        before = self.prior_or_new(known, prior)
        if are_partial:
            return self._merge_naming_key(before, rows, keys)
        return self._side_by_side(
            result.update(result.of(before), groups.of_row, rows, keys) for result in self._results
        )

    def finish(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> pa.RecordBatch:
        """Return the output rows of `keys`, whose states are `state`."""
        schema = pa.schema(list(self.output)[:-1]) if self.changes else self.output
        return pa.RecordBatch.from_arrays(
            [*keys.columns, *self.results(keys, state)], schema=schema
        )

    def results(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> list[pa.Array]:
        """Return one column of results per aggregate, for states of `keys`."""
        own = keys.select(self.keys.names)
        return [result.finish(result.of(state), own) for result in self._results]

    def describe_state(self, state: str = STATE) -> StateDescription:  # noqa: ARG002
        """Describe the state columns and each aggregate for the checkpoint."""
        return StateDescription(
            columns=columns_of(self.schema.values),
            codec="arrow",
            type={result.name: result.description for result in self._results},
        )

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:  # noqa: ARG002
        """Return the upgrade of the states of changed aggregates; ``None`` if no aggregate changed.

        Raises if the checkpoint has an incompatible aggregate under the same name.
        """
        stored = written.description
        results = stored.type if isinstance(stored.type, dict) else {}
        changed: list[str] = []
        upgrades: dict[tuple[str, ...], StateUpgrade] = {}
        for result in self._results:
            differs = list(result.differences(stored)) if result.name in results else []
            upgrade = result.upgrade_from(stored) if differs else None
            if upgrade is None:
                changed += differs
            else:
                upgrades[tuple(field.name for field in result.fields)] = upgrade
        if changed:
            raise mismatch_error(
                f"The state of operator {self.name!r}",
                changed,
                "Give the changed aggregate a result name of its own, under which it starts "
                "empty, or undo the change.",
                operator=self.name,
            )
        return partial(_upgrade_results, upgrades) if upgrades else None

    def new_columns(self, state: str, count: int) -> pa.RecordBatch:  # noqa: ARG002
        return self._side_by_side(result.create(count) for result in self._results)

    def _merge_naming_key(
        self, left: pa.RecordBatch, right: pa.RecordBatch, keys: pa.RecordBatch | None
    ) -> pa.RecordBatch:
        """Merge two batches of states row by row; errors name one of the `keys`."""
        return self._side_by_side(
            result.merge(result.of(left), result.of(right), keys) for result in self._results
        )

    def _side_by_side(self, parts: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
        """Join batches with the state columns of one aggregate each into one batch."""
        columns = [column for part in parts for column in part.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.values)


def _is_overflow(error: EpochFailedError) -> bool:
    """Return whether an epoch fails because a sum or mean does not fit its type."""
    cause = error.__cause__
    return isinstance(cause, SumOverflowError) or (
        isinstance(cause, EpochFailedError) and _is_overflow(cause)
    )


def _with_columns_of(wide: ComputeOperator, states: pa.RecordBatch) -> pa.RecordBatch:
    """Return states with null for the state columns that only `wide` has."""
    names, schema = states.schema.names, wide.schema.values
    columns = [
        states.column(field.name) if field.name in names else pa.nulls(states.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def same_rows(left: pa.RecordBatch, right: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return a mask of equal rows; null equals null, NaN equals nothing."""
    is_same = np.ones(left.num_rows, np.bool_)
    for left_column, right_column in zip(left.columns, right.columns, strict=True):
        if pa.types.is_nested(left_column.type):
            same_positions = np.flatnonzero(is_same)
            pairs = zip(
                *(
                    column.take(pa.array(same_positions)).to_pylist()
                    for column in (left_column, right_column)
                ),
                strict=True,
            )
            is_same[same_positions] = [old == new for old, new in pairs]
            continue
        is_equal = pc.fill_null(pc.equal(left_column, right_column), fill_value=False)
        both_null = pc.and_(pc.is_null(left_column), pc.is_null(right_column))
        is_same &= pc.or_(is_equal, both_null).to_numpy(zero_copy_only=False)
    return is_same


def _upgrade_results(
    upgrades: Mapping[tuple[str, ...], StateUpgrade],  # by names of an aggregate's state columns
    values: pa.RecordBatch,
) -> pa.RecordBatch:
    """Return state columns in which those of some aggregates are upgraded."""
    for names, upgrade in upgrades.items():
        upgraded = upgrade(values.select(list(names)))
        for name, column in zip(names, upgraded.columns, strict=True):
            values = values.set_column(values.schema.get_field_index(name), name, column)
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """One result of an operator: its aggregate, state columns and checked calls.

    An aggregate may be the user's: what its functions return is checked, and what they raise is
    reported with the operator, the result and the user's own line.
    """

    operator: str
    name: str
    aggregate: BoundAggregate
    columns: tuple[str, ...]  # names of its columns among the operator's inputs
    first: int  # position of its first column among the operator's state columns
    fields: tuple[pa.Field, ...]  # its state columns, by the operator's names
    is_narrowed: bool  # whether its state has no room for sums that do not fit on the way
    is_users: bool  # whether a class of the user computes it

    def of(self, state: pa.RecordBatch) -> pa.RecordBatch:
        """Return this aggregate's state columns, named without the prefix of the result."""
        columns = [state.column(self.first + i) for i in range(len(self.fields))]
        return pa.RecordBatch.from_arrays(columns, schema=self.aggregate.state)

    @property
    def description(self) -> dict[str, object]:
        """Plain values that describe the result's columns and aggregate in the checkpoint."""
        return {
            "state": [field.name for field in self.fields],
            "aggregate": without_zones(self.aggregate.describe()),
        }

    def differences(self, stored: StateDescription) -> Iterator[str]:
        """Yield the differences between the stored aggregate and the declared one, as text."""
        where = f"result {self.name!r}: "
        stored_description, description = (
            _without_high(d) for d in (stored.type[self.name], self.description)
        )
        aggregate_differences = list(differences(where, stored_description, description))
        yield from aggregate_differences
        types = dict(stored.columns)
        for name, dtype in () if aggregate_differences else columns_of(self.fields):
            if types.get(name) != dtype and not name.startswith(HIGH):
                yield f"{where}its state column {name!r} was {types.get(name)} and is {dtype}"

    def upgrade_from(self, stored: StateDescription) -> StateUpgrade | None:
        """Return the upgrade of states that a stored aggregate wrote; ``None`` if it has none."""
        if not isinstance(self.aggregate, BuiltIn):
            return None
        return self.aggregate.upgrade_from(stored.type[self.name]["aggregate"])

    def create(self, count: int) -> pa.RecordBatch:
        """Return the initial states of `count` keys."""
        return self._call_aggregate("create", count, None, count)

    def update(
        self,
        states: pa.RecordBatch,
        of_row: IntArray,
        rows: pa.RecordBatch,
        keys: pa.RecordBatch | None,
    ) -> pa.RecordBatch:
        """Return the states with rows added; `of_row`: position of each row's state."""
        columns = [rows.column(name) for name in self.columns]
        return self._call_aggregate("update", states.num_rows, keys, states, of_row, *columns)

    def merge(
        self, left: pa.RecordBatch, right: pa.RecordBatch, keys: pa.RecordBatch | None
    ) -> pa.RecordBatch:
        """Merge two batches of states row by row; `left` has the states of the earlier rows."""
        return self._call_aggregate("merge", left.num_rows, keys, left, right)

    def finish(self, states: pa.RecordBatch, keys: pa.RecordBatch) -> pa.Array:
        """Return the aggregate's result for each state; errors name one of the `keys`."""
        return self._call_aggregate("finish", states.num_rows, keys, states)

    def _call_aggregate(
        self, method: str, count: int, keys: pa.RecordBatch | None, *arguments: Any
    ) -> Any:
        """Call a method of the aggregate, and check its `count` rows; errors name one of `keys`."""
        try:
            result = getattr(self.aggregate, method)(*arguments)
        except (SumOverflowError, RowError) as error:
            raise self._failed_for_key(error, keys) from error
        except GodwitError:
            raise
        except (Exception, SystemExit) as error:
            if not self.is_users:
                if isinstance(error, MemoryError) or not isinstance(error, FAILURES):
                    raise
                raise failed(
                    f"Operator {self.operator!r}, result {self.name!r}{self._columns_read_text()},",
                    error,
                    row=self._failing_row(arguments[2:]) if method == "update" else "",
                    operator=self.operator,
                    result=self.name,
                ) from error
            raise self._contract_broken(
                f"{method}() raised {type(error).__name__}: {error}",
                f"Correct the function; its traceback is:\n{user_traceback(error)}",
            ) from error
        if self.is_users:
            self._check_result(method, result, count)
        return result

    def _columns_read_text(self) -> str:
        """Return the columns that the aggregate reads, as text for errors."""
        return f" of {', '.join(self.columns)}" if self.columns else ""

    def _failing_row(self, columns: Sequence[pa.Array]) -> str:
        """Return the values of the first row that the aggregate fails on alone; empty if none."""
        one_group = np.zeros(1, np.int64)
        for row in range(min(len(columns[0]) if columns else 0, _MAX_TRIED)):
            values = [column.slice(row, 1) for column in columns]
            try:
                self.aggregate.update(self.aggregate.create(1), one_group, *values)
            except FAILURES:
                named_values = zip(self.columns, values, strict=True)
                return ", ".join(f"{name} is {value[0]}"[:200] for name, value in named_values)
        return ""

    def _check_result(self, method: str, result: Any, count: int) -> None:
        """Raise if a user's aggregate returned a value of a wrong type or not `count` rows."""
        if method == "finish":
            kind, dtype = pa.Array, self.aggregate.output
            returned = getattr(result, "type", None)
        else:
            kind, dtype = pa.RecordBatch, self.aggregate.state
            returned = getattr(result, "schema", None)
        if not isinstance(result, kind):
            raise self._contract_broken(
                f"{method}() returned a value of type {type(result).__name__}",
                f"Return a pyarrow.{kind.__name__}.",
            )
        if returned != dtype:
            raise self._contract_broken(
                f"{method}() returned {_one_line(returned)} where {_one_line(dtype)} is declared",
                "Cast the result, or correct the declaration.",
            )
        if len(result) != count:
            raise self._contract_broken(
                f"{method}() returned {len(result)} rows for {count} states",
                "Return one row for every state, in their order.",
            )

    def _contract_broken(self, what: str, remedy: str) -> UserFunctionError:
        """Return the error that a user's aggregate broke its contract; `what`: how."""
        kind = type(user_aggregate(self.aggregate)).__qualname__
        return UserFunctionError(
            f"Aggregate {self.name!r} ({kind}) of operator {self.operator!r}: {what}.",
            remedy=remedy,
            operator=self.operator,
            aggregate=self.name,
        )

    def _failed_for_key(
        self, error: SumOverflowError | RowError, keys: pa.RecordBatch | None
    ) -> EpochFailedError:
        """Return the error that a sum, or an expression, has no value in its type for a key."""
        key = None if keys is None else _key_of(error.group, keys)
        whose = "a key" if key is None else f"key {key!r}"
        if isinstance(error, RowError):
            what = f"{error.text!r} cannot be computed for {whose}: {error.reason}"
            remedy = (
                'Filter such rows out, as in where="b <> 0", choose another value for them, as '
                'in "case when b <> 0 then a / b end", or cast the columns to wider types in a '
                "map."
            )
        else:
            what = f"the {error.what} for {whose} does not fit {error.dtype}"
            remedy = error.remedy
        return EpochFailedError(
            f"Aggregate {self.name!r} of operator {self.operator!r}: {what}.",
            remedy=remedy,
            operator=self.operator,
            aggregate=self.name,
            key=key,
            group=error.group,
        )


def _without_high(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a result without the column `HIGH`, which older states lack."""
    columns = [name for name in description["state"] if not name.startswith(HIGH)]
    return {**description, "state": columns}


def _key_of(group: int, keys: pa.RecordBatch) -> tuple[Any, ...]:
    """Return the key of a group as users know it; without columns that they did not name."""
    named = [name for name in keys.schema.names if not name.startswith(RESERVED_PREFIX)]
    return tuple(keys.column(name)[group].as_py() for name in named)


@contextmanager
def _naming_key(keys: Callable[[], pa.RecordBatch]) -> Iterator[None]:
    """Context that adds the key of the group to an `EpochFailedError` raised within it."""
    try:
        yield
    except EpochFailedError as error:
        group = error.context.pop("group", None)
        if group is None or error.context.get("key") is not None:
            raise
        key = _key_of(group, keys())
        message = error.message.replace("for a key", f"for key {key!r}")
        raise EpochFailedError(
            message, remedy=error.remedy, **{**error.context, "key": key}
        ) from error


def _bind_results(
    operator: str, inputs: pa.Schema, aggregates: Mapping[str, Aggregate], *, narrow: bool
) -> tuple[_Result, ...]:
    """Bind an operator's aggregates, and give their state columns distinct names."""
    results = []
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
        whole = bound
        if narrow and isinstance(bound, BuiltIn):
            bound = bound.narrow
        single = len(bound.state) - (HIGH in bound.state.names) == 1
        fields = tuple(
            pa.field(
                f"{HIGH}_{name}"
                if field.name == HIGH
                else name
                if single
                else f"{name}__{field.name}",
                field.type,
            )
            for field in bound.state
        )
        results.append(
            _Result(
                operator=operator,
                name=name,
                aggregate=bound,
                columns=tuple(aggregate.columns),
                first=first,
                fields=fields,
                is_narrowed=bound is not whole,
                is_users=isinstance(user_aggregate(bound), Aggregator),
            )
        )
        first += len(fields)
    return tuple(results)


def _check_distinct(operator: str, names: list[str]) -> None:
    """Raise `InvalidFlowError` if two columns of an operator have the same name."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidFlowError(
            f"Operator {operator!r} would have several columns named {repeated[0]!r}.",
            remedy="Give its results names that differ from the key columns and from each other.",
            operator=operator,
            columns=repeated,
        )


def _one_line(declared: object) -> str:
    """Return a schema or type as one line of text, for messages."""
    if isinstance(declared, pa.Schema):
        return f"columns {columns_text(declared)}"
    return f"type {declared}"
