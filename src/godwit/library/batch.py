"""``process_batch``: a user's function over all rows of a lane and epoch at once, as tables.

For users who vectorise: one call instead of one per key.  The function gets the rows in order of
arrival, the states of their keys as a table, and the key of each row; it returns the rows to emit
and the new states.  State consists of columns, as for the aggregates of ``compute``, so nothing is
encoded.

Key groups move, so which keys a call gets together may change.  The result for a key must depend on
the key's rows and state alone.

Invariant: a key's state after an epoch is the row that the function returned for it; a key without
such a row keeps its state.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from godwit.columns.groups import group_rows
from godwit.columns.hashing import hash_keys
from godwit.columns.python_values import UTC, in_zone
from godwit.columns.tables import is_pandas
from godwit.columns.types import columns_text, is_instant, visible_schema
from godwit.model.errors import InvalidFlowError, UserFunctionError
from godwit.model.frames import function_failed
from godwit.model.naming import did_you_mean, function_name, listing
from godwit.model.signatures import awaiting_hint
from godwit.operators.declared import CALLED
from godwit.operators.failed_calls import MAX_SEARCH_CALLS, FailedCalls, is_divertible
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput, changed_by_key
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from godwit.columns.groups import Groups
    from godwit.operators.declared import Frames, StateColumns
    from godwit.operators.operator import OperatorInput


class BatchProcess(KeyedOperator):
    """A user's function called once per lane and epoch; see `KeyedOperator` for its methods."""

    kind = "process_batch"
    reads_touched = True

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        inputs: pa.Schema,  # columns of its rows, besides the key columns
        function: Callable[..., Any],  # ``function(rows, states, key_of_row)``
        state: StateColumns,
        output: pa.Schema,  # columns of the rows that the function returns; nothing is added
        frames: Frames = "arrow",
        zone: str = UTC,  # the session's, of timestamps without one that the function returns
    ) -> None:
        if frames != "arrow" and find_spec(frames) is None:
            raise InvalidFlowError(
                f"Operator {name!r} has frames={frames!r}, but {frames} is not installed.",
                remedy=f"Run pip install {frames}, on the driver and on the executors.",
                operator=name,
            )
        both = [column for column in state.columns.names if column in keys.names]
        if both:
            raise InvalidFlowError(
                f"Operator {name!r} has {listing(both)} both as key and as state.",
                remedy="Leave the key columns out of state=: the table of states has them anyway.",
                operator=name,
            )
        self.name, self.inputs, self.output, self.function = name, inputs, output, function
        self.schema = StateSchema(keys=keys, values=state.columns)
        self.frames, self._state, self._zone = frames, state, zone

    def new_columns(self, state: str, count: int) -> pa.RecordBatch:  # noqa: ARG002
        columns = []
        for column in self.schema.values:
            default = self._state.defaults.get(column.name)
            columns.append(pa.repeat(pa.scalar(default, column.type), count))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.values)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Call the user's function once for all rows of the lane."""
        if not len(data.rows.hashes):
            return OperatorOutput()
        groups, keys = data.grouped(len(self.keys))
        known, prior = data.state.find(keys, groups.key_groups)
        failed = FailedCalls.of(self, data.rows, groups.order)
        called = _Called(
            rows=_side_by_side(data.rows.keys, data.rows.values),
            keys=keys,
            states=self.prior_or_new(known, prior),
            groups=groups,
        )
        results = self._call_with_halving(called, (0, groups.count), failed)
        result = results[0] if len(results) == 1 else self._join_results(results)
        changed_keys = result.which
        return OperatorOutput(
            output=result.output,
            failed=None if failed is None else failed.to_batch(),
            groups=groups,
            changed=changed_by_key(
                groups,
                changed_keys,
                keys.take(pa.array(changed_keys)),
                result.values,
                result.removed,
            ),
        )

    def _join_results(self, results: Sequence[_Result]) -> _Result:
        """Join the results of calls for parts of the keys."""
        outputs = [result.output for result in results if result.output is not None]
        return _Result(
            output=pa.concat_batches(outputs) if outputs else None,
            which=np.concatenate([np.empty(0, np.int64), *(each.which for each in results)]),
            values=pa.concat_batches([self.new_columns(STATE, 0), *(r.values for r in results)]),
            removed=np.concatenate([np.empty(0, np.bool_), *(each.removed for each in results)]),
        )

    def _call_with_halving(
        self, called: _Called, span: tuple[int, int], failed: FailedCalls | None
    ) -> list[_Result]:
        """Call the function for a span of keys; if it fails, for both halves of them.

        Keys for which it fails alone, or together once `MAX_SEARCH_CALLS` calls were made, are
        `failed` (``None``: raise). A function may be called with any set of keys, so the results of
        the others are as if it had been called with all.
        """
        try:
            called.count += 1
            return [self._call_once(called, span)]
        except UserFunctionError as error:
            cause = error if error.__cause__ is None else error.__cause__
            if failed is None or not (cause is error or is_divertible(cause)):
                raise
            first, end = span
            if end - first == 1 or called.count >= MAX_SEARCH_CALLS:
                starts = called.groups.starts
                failed.add(self.function, cause, (int(starts[first]), int(starts[end])))
                return []
        middle = (first + end) // 2
        return [
            *self._call_with_halving(called, (first, middle), failed),
            *self._call_with_halving(called, (middle, end), failed),
        ]

    def _call_once(self, called: _Called, span: tuple[int, int]) -> _Result:
        """Call the function for a span of keys; return its result, checked."""
        rows, keys, states, key_of_row = called.of(span)
        result = self._call_function(rows, keys, states, key_of_row)
        output, new_states, dropped = self._unpack_result(result)
        changed_keys, values = self._new_states(new_states, keys)
        removed = np.zeros(keys.num_rows, np.bool_)
        if dropped is not None:
            removed = self._keys_to_drop(dropped, keys.num_rows)
            changed_keys, values = self._add_dropped(changed_keys, values, removed)
        return _Result(
            output=None if output is None else self._to_batch(output, self.output, "rows to emit"),
            which=changed_keys + span[0],
            values=values,
            removed=removed[changed_keys],
        )

    def _call_function(
        self,
        rows: pa.Table,
        keys: pa.RecordBatch,
        states: pa.RecordBatch,
        key_of_row: npt.NDArray[np.int64],
    ) -> Any:
        """Call the user's function with rows and states; raise `UserFunctionError`."""
        as_frame = _READERS[self.frames]
        try:
            return self.function(as_frame(rows), as_frame(_side_by_side(keys, states)), key_of_row)
        except BaseException as error:
            raise function_failed(
                self.name,
                self.function,
                None,
                error,
                called=CALLED,
                rows_of=f"{len(key_of_row)} rows of {keys.num_rows} keys",
            ) from error

    def _unpack_result(self, result: Any) -> tuple[Any, Any, Any]:
        """Split the function's result into emitted rows, new states, and keys to drop, or raise.

        The state of a key to drop is deleted.
        """
        if result is None:
            return None, None, None
        if isinstance(result, tuple) and len(result) in (2, 3):
            return result[0], result[1], result[2] if len(result) == 3 else None
        raise self._wrong_result(
            f"a {type(result).__name__}"
            + (f" of {len(result)}" if isinstance(result, tuple) else ""),
            f"{awaiting_hint(result, is_plain=True)}Return two tables, rows to emit and new "
            "states, each of which may be None; to drop states, also return a boolean for each "
            "row of `states`.",
        )

    def _new_states(
        self, states: Any, keys: pa.RecordBatch
    ) -> tuple[npt.NDArray[np.int64], pa.RecordBatch]:
        """Convert the states that the function returned; raise for a wrong number.

        Returns the position of each state's key in `keys`, and the states.
        """
        columns = self.schema.values
        if states is None:
            return np.empty(0, np.int64), pa.RecordBatch.from_pylist([], columns)
        table = _as_table(states)
        names = set(visible_schema(keys.schema).names)
        has_keys = table is not None and bool(names) and names <= set(table.schema.names)
        if not has_keys:
            values = self._to_batch(table, columns, "states", returned=states)
            if values.num_rows != keys.num_rows:
                raise self._wrong_result(
                    f"{values.num_rows} states for {keys.num_rows} keys",
                    f"Return a row for each row of `states`, in order; or add the key columns, "
                    f"{listing(keys.schema.names)}, and return those that changed.",
                )
            return np.arange(keys.num_rows), values
        keys_and_values = self._to_batch(table, pa.schema([*keys.schema, *columns]), "states")
        returned_keys = keys_and_values.select(keys.schema.names)
        values = keys_and_values.select(columns.names)
        if returned_keys.equals(keys):
            return np.arange(keys.num_rows), values
        return self._positions_of_keys(returned_keys, keys), values

    def _positions_of_keys(
        self, returned: pa.RecordBatch, keys: pa.RecordBatch
    ) -> npt.NDArray[np.int64]:
        """Return the position in `keys` of each returned key; refuse unknown and repeated keys."""
        all_keys = pa.concat_batches([keys, returned])
        group_of = group_rows(hash_keys(all_keys), all_keys, 1).of_row
        position_of_group = np.full(int(group_of.max(initial=-1)) + 1, -1, np.int64)
        position_of_group[group_of[: keys.num_rows]] = np.arange(keys.num_rows)
        positions: npt.NDArray[np.int64] = position_of_group[group_of[keys.num_rows :]]
        num_returned = np.bincount(positions[positions >= 0], minlength=1)
        misplaced, fault = np.flatnonzero(positions < 0), "for a key that has no row in the epoch"
        if not len(misplaced) and num_returned.max() > 1:
            misplaced, fault = (
                np.flatnonzero(positions == num_returned.argmax())[1:],
                "a second time",
            )
        if len(misplaced):
            key = tuple(column[int(misplaced[0])].as_py() for column in returned.columns)
            raise self._wrong_result(
                f"a state {fault}: {key!r}",
                "Return at most one state for each row of `states`.",
            )
        return positions

    def _keys_to_drop(self, dropped: Any, count: int) -> npt.NDArray[np.bool_]:
        """Return the mask of the keys to drop that the function returned; or raise."""
        try:
            mask = np.asarray(dropped)
        except Exception:  # noqa: BLE001 - of another library
            mask = np.empty(0)
        if mask.dtype != np.bool_ or mask.shape != (count,):
            raise self._wrong_result(
                f"{dropped!r:.60} for the keys to drop",
                f"Return {count} booleans, one for each row of `states`.",
            )
        return mask

    def _add_dropped(
        self,
        positions: npt.NDArray[np.int64],
        values: pa.RecordBatch,
        removed: npt.NDArray[np.bool_],
    ) -> tuple[npt.NDArray[np.int64], pa.RecordBatch]:
        """Append the keys that are only dropped to the keys (positions) and states to write."""
        others = removed.copy()
        others[positions] = False
        more = np.flatnonzero(others)
        if not len(more):
            return positions, values
        return np.concatenate([positions, more]), pa.concat_batches(
            [values, self.new_columns(STATE, len(more))]
        )

    def _to_batch(
        self, frame: Any, schema: pa.Schema, what: str, *, returned: Any = None
    ) -> pa.RecordBatch:
        """Convert a table that the function returned to the declared columns; raise if it misfits.

        `what`: the table's name for errors, such as "states". `returned`: the object whose type
        errors name, if it is not `frame`.
        """
        table = _as_table(frame)
        if table is None:
            raise self._wrong_result(
                f"a {type(frame if returned is None else returned).__name__} for the {what}",
                "Return a table: of Arrow, pandas or Polars, or None.",
            )
        names = table.schema.names
        missing = [name for name in schema.names if name not in names]
        unknown = [name for name in names if name not in schema.names]
        if missing or unknown:
            problem, hint = "", ""
            if missing:
                problem, hint = f"without column {missing[0]!r}", did_you_mean(missing[0], unknown)
            else:
                problem = f"with an unknown column {unknown[0]!r}"
            raise self._wrong_result(
                f"a table {problem} for the {what}",
                f"{hint}Its columns are declared as {columns_text(schema)}.",
            )
        columns = [self._cast_column(table.column(f.name), f, what) for f in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _cast_column(self, column: Any, column_field: pa.Field, what: str) -> pa.Array:
        """Convert a column of the table `what` to its declared type; refuse what does not fit."""
        whole = column
        if isinstance(whole, pa.ChunkedArray):
            # `combine_chunks` copies a single chunk too.
            whole = whole.chunk(0) if whole.num_chunks == 1 else whole.combine_chunks()
        if isinstance(whole, pa.ChunkedArray):  # of no chunks
            whole = pa.nulls(0, whole.type)
        if whole.type == column_field.type:
            return whole
        try:
            return self._with_zone(whole, column_field.type).cast(column_field.type)
        except pa.ArrowException as error:
            raise self._wrong_result(
                f"{whole.type} in column {column_field.name!r} of the {what}, which is "
                f"{column_field.type} ({error})",
                "Convert it, or declare its type.",
                column=column_field.name,
            ) from error

    def _with_zone(self, column: pa.Array, dtype: pa.DataType) -> pa.Array:
        """Return timestamps with the session's time zone, if they have none and `dtype` has one."""
        is_naive = pa.types.is_timestamp(column.type) and not is_instant(column.type)
        if self._zone == UTC or not is_instant(dtype) or not is_naive:
            return column
        times = column.cast(pa.timestamp("us")).to_pylist()
        return pa.array([in_zone(time, dtype, self._zone) for time in times], dtype)

    def _wrong_result(self, what: str, remedy: str, **context: str) -> UserFunctionError:
        """Return the error that the user's function returned something wrong (`what`)."""
        return UserFunctionError(
            f"Operator {self.name!r}: {function_name(self.function)!r} returned {what}.",
            remedy=remedy,
            operator=self.name,
            **context,
        )


@dataclass(slots=True, kw_only=True)
class _Called:
    """The rows and states of all keys of an epoch; a call may get only some of the keys."""

    rows: pa.Table  # in order of arrival
    keys: pa.RecordBatch
    states: pa.RecordBatch  # of each key, before the epoch
    groups: Groups
    count: int = 0  # calls so far

    def of(
        self, span: tuple[int, int]
    ) -> tuple[pa.Table, pa.RecordBatch, pa.RecordBatch, npt.NDArray[np.int64]]:
        """Return rows, keys, states and key of each row for the keys of a span."""
        first, end = span
        if end - first == self.groups.count:
            return self.rows, self.keys, self.states, self.groups.of_row
        of_row = self.groups.of_row
        rows = np.flatnonzero((of_row >= first) & (of_row < end))
        keys, states = (each.slice(first, end - first) for each in (self.keys, self.states))
        return self.rows.take(pa.array(rows)), keys, states, of_row[rows] - first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """Checked result of a call."""

    output: pa.RecordBatch | None
    which: npt.NDArray[np.int64]  # number of the key of each entry to write
    values: pa.RecordBatch  # states of these keys
    removed: npt.NDArray[np.bool_]  # which of these are deleted


def _side_by_side(keys: pa.RecordBatch, values: pa.RecordBatch) -> pa.Table:
    """Return one table of the key columns and the other columns."""
    keys = keys.select(visible_schema(keys.schema).names)
    schema = pa.schema([*keys.schema, *values.schema])
    return pa.Table.from_arrays([*keys.columns, *values.columns], schema=schema)


def _as_table(frame: Any) -> pa.Table | None:
    """Convert a table of pandas, Polars or Arrow to Arrow; ``None`` for anything else."""
    if isinstance(frame, pa.Table):
        return frame
    if is_pandas(frame):
        return pa.Table.from_pandas(frame, preserve_index=False)
    if hasattr(frame, "__arrow_c_stream__") or isinstance(frame, pa.RecordBatch):
        return pa.table(frame)
    return None


def _to_pandas(table: pa.Table) -> Any:
    """Convert an Arrow table to pandas with Arrow types, so that no integer becomes a float."""
    return table.to_pandas(types_mapper=import_module("pandas").ArrowDtype)


def _to_polars(table: pa.Table) -> Any:
    """Convert an Arrow table to a Polars DataFrame."""
    return import_module("polars").from_arrow(table)


_READERS: dict[str, Callable[[pa.Table], Any]] = {
    "arrow": lambda table: table,
    "pandas": _to_pandas,
    "polars": _to_polars,
}
