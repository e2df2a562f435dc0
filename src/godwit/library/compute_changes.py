"""``compute`` over changes: aggregates over the current rows of a table.

Aggregates that can subtract (counts, sums, means, variances) have states that add up in any order,
as those of rows do, so rows may be combined before the exchange.  For all others state has the live
rows too (`godwit.library.live_rows`).  New rows are added to the states of their key; where rows
are deleted, the states of their key are made again of its live rows, which costs as much as the key
has rows.

An epoch is one step: what its changes add up to counts, in whatever order they come.  A delete
whose row is not there (yet) is refused, or waits: a count below zero, or a slot with sign -1.

Invariant: after each epoch results are those of the live rows alone, in the order in which they
arrived; of equal rows the oldest is deleted.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.checkpoint.evolution import columns_of, mismatch_error
from godwit.checkpoint.records import StateId
from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows
from godwit.columns.signed import CHANGE, with_sign
from godwit.library.aggregates import count
from godwit.library.aggregates.conditions import user_aggregate
from godwit.library.aggregates.signed import signed_aggregate, subtracts
from godwit.library.compute import ComputeOperator, same_rows
from godwit.library.latest import signs_or_fail
from godwit.library.live_rows import WAIT, LiveRows, refuse_missing
from godwit.model.errors import InvalidInputError
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput, changed_by_key
from godwit.operators.ordering import descending_ranks, order_by
from godwit.store.changes import StateRows
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.evolution import StateDescription, StateUpgrade, WrittenState
    from godwit.columns.groups import Groups
    from godwit.library.live_rows import Applied
    from godwit.operators.aggregate import Aggregate
    from godwit.operators.operator import Changed, EntryColumns, OperatorInput
    from godwit.plan.nodes import OnMissing, OutputMode

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
_ROWS: Final = f"{RESERVED_PREFIX}_rows"
_LIVE: Final = "rows"
_SLOTS: Final = pa.field(f"{RESERVED_PREFIX}_slots", pa.int64())
_OWED: Final = pa.field(f"{RESERVED_PREFIX}_owed", pa.int64())


class ComputeChanges(KeyedOperator):
    """Operator of aggregates per key over changes."""

    kind = "compute over changes"

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        inputs: pa.Schema,  # with the sign
        aggregates: Mapping[str, Aggregate],
        rows: pa.Schema,  # all columns of the stream
        mode: OutputMode = "update",
        on_missing: OnMissing = "refuse",
        order_by: str | None = None,  # column of rows that precedes the order of arrival
    ) -> None:
        self.name, self.inputs, self.mode, self.on_missing = name, inputs, mode, on_missing
        self._order_by = order_by  # of which `last` is a result, under the same name
        self.complete, self.changes = mode == "complete", mode == "changes"
        bound = {result: aggregate.bind(inputs) for result, aggregate in aggregates.items()}
        subtracting = {
            result_name: function
            for result_name, function in aggregates.items()
            if subtracts(user_aggregate(bound[result_name]))
        }
        others = {
            result_name: function
            for result_name, function in aggregates.items()
            if result_name not in subtracting
        }
        self._subtracting = ComputeOperator(
            name=name,
            keys=keys,
            inputs=inputs,
            aggregates={
                _ROWS: signed_aggregate(count()),
                **{
                    result: signed_aggregate(aggregate) for result, aggregate in subtracting.items()
                },
            },
            narrow=False,
        )
        self._others: ComputeOperator | None = None
        state = self._subtracting.schema.values
        self.mergeable = not others  # type: ignore[misc]  # of the operator, not of its class
        if others:
            self._others = ComputeOperator(
                name=name, keys=keys, inputs=inputs, aggregates=others, narrow=False
            )
            state = pa.schema([*state, _SLOTS, _OWED, *self._others.schema.values])
            read_columns = {column for result in others for column in others[result].columns}
            if not all(bound[result].commutative for result in others):
                read_columns = {*rows.names} - {
                    CHANGE.name
                }  # equal rows must not take another's place
                self.inputs = pa.schema(
                    [
                        *inputs,
                        *(
                            field
                            for field in rows
                            if field.name not in {*inputs.names, *keys.names}
                        ),
                    ]
                )
            columns = [
                field
                for field in self.inputs
                if field.name in read_columns and field.name not in keys.names
            ]
            self._live = LiveRows(name, keys, columns)
        self.schema = StateSchema(keys=keys, values=state)
        results = [pa.field(result, aggregate.output) for result, aggregate in bound.items()]
        self._result_names = list(bound)
        self._table = pa.schema([*keys, *results])
        self.output = self._table if self.complete else pa.schema([*self._table, CHANGE])

    emits: ClassVar[str] = "of keys that changed in the epoch, the new result, or the last one"
    reads_touched = True

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """The key columns in complete mode; else rows have a sign, and no keys of their own."""
        return (tuple(self.keys.names),) if self.complete else ()

    @property
    def commutative(self) -> bool:
        return self.mergeable

    def combine(
        self, groups: Groups, keys: pa.RecordBatch, rows: pa.RecordBatch
    ) -> pa.RecordBatch | None:
        """Aggregate raw changes into one partial state per group; see `ComputeOperator.combine`."""
        signs_or_fail(rows, self.name)
        return self._subtracting.combine(groups, keys, rows)

    @property
    def states(self) -> tuple[StateId, ...]:
        """The state of aggregates, and, unless all of them can subtract, that of live rows."""
        names = (STATE,) if self._others is None else (STATE, _LIVE)
        return tuple(StateId(self.name, state) for state in names)

    def schema_of(self, state: str) -> StateSchema:
        return self._live.schema if state == _LIVE else self.schema

    def describe_state(self, state: str = STATE) -> StateDescription:
        """Describe the aggregates' columns, or those of live rows, for the checkpoint."""
        schema = self.schema_of(state)
        described = self._subtracting.describe_state()
        types: Any = None
        if state != _LIVE:
            types = described.type
            if self._others is not None:
                order = {} if self._order_by is None else {"order_by": self._order_by}
                slots = {"state": [_SLOTS.name, _OWED.name], "aggregate": {"name": "slots"} | order}
                types = {**types, _SLOTS.name: slots, **self._others.describe_state().type}
        return msgspec.structs.replace(
            described,
            columns=columns_of(schema.values),
            type=types,
            entries=columns_of(list(schema.keys)[len(self.keys) :]),
        )

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:
        """Refuse a state with other columns: results cannot be computed from deleted rows."""
        stored, current = written.description, self.describe_state(state)
        differing_columns = sorted({*stored.columns} ^ {*current.columns})
        changed = [f"column {name!r} of its state" for name, _ in differing_columns]
        results = stored.type if isinstance(stored.type, dict) else {}
        changed += [
            f"result {name!r}"
            for name, declared in (current.type or {}).items()
            if name in results and results[name] != declared
        ]
        if changed:
            raise mismatch_error(
                f"The state of operator {self.name!r}, of aggregates over changes,",
                dict.fromkeys(changed),
                "Rename it by name=gw.types.Identity(name, starts_empty=True), and read the "
                "changes from their beginning; or undo the change.",
                operator=self.name,
            )
        return None

    def initial_entries(self, state: str, rows: pa.RecordBatch) -> EntryColumns:  # noqa: ARG002
        """Refuse initial state: results do not identify the rows that they come from."""
        raise InvalidInputError(
            f"Operator {self.name!r} aggregates changes, so its initial state cannot be given "
            "as results.",
            remedy=(
                "Start from the rows of the table: gw.sources.sequence(table, changes) inserts "
                "them before the changes."
            ),
            operator=self.name,
        )

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Apply the epoch's changes to the states of their keys, and emit new results."""
        if not len(data.rows.hashes):
            if not self.complete:
                return OperatorOutput()
            cpu = time.process_time()
            output = self._complete_output(data.state.scan(), data.num_key_groups)
            return OperatorOutput(output=output, closing_ms=(time.process_time() - cpu) * 1e3)
        groups, keys = data.grouped(len(self.keys))
        known, prior = data.state.find(keys, groups.key_groups)
        num_subtracting = len(self._subtracting.schema.values)
        subtracting_states = prior.select(list(range(num_subtracting)))
        if not data.is_partial:
            signs_or_fail(data.rows.values, self.name)
        state = self._subtracting.new_states(data, groups, keys, known, subtracting_states)
        changed: dict[str, Changed] = {}
        missing_deletes = np.zeros(groups.count, np.int64)
        if self._others is not None:
            other_states, missing_deletes, changed = self._apply_to_rows(
                data, groups, keys, known, prior
            )
            state = pa.RecordBatch.from_arrays(
                [*state.columns, *other_states.columns], schema=self.schema.values
            )
        count_before, count_after = (
            np.where(known, values_of(prior.column(0)), 0),
            values_of(state.column(0)),
        )
        if self.on_missing == "refuse":
            refuse_missing(self.name, (count_after < 0) | (missing_deletes > 0), keys, WAIT)
        removed = (count_after == 0) & (missing_deletes == 0)
        if self.on_missing == "wait" and self._others is None and removed.any():
            removed &= _is_nothing(state)
        written = np.flatnonzero(known | ~removed)
        written_indices = pa.array(written)
        changed |= changed_by_key(
            groups,
            written,
            keys.take(written_indices),
            state.take(written_indices),
            removed[written],
        )
        closing_ms = 0.0
        if self.complete:
            cpu = time.process_time()
            rows = StateRows(hashes=groups.hashes, keys=keys, values=state)
            output = self._complete_output(data.state.scan().followed_by(rows), data.num_key_groups)
            closing_ms = (time.process_time() - cpu) * 1e3
        else:
            output = self._changed_results(
                keys, (count_before > 0, prior), (count_after > 0, state)
            )
        return OperatorOutput(
            output=output,
            groups=groups,
            changed=changed,
            closing_ms=closing_ms,
            waiting_deletes=int(np.maximum(np.maximum(-count_after, 0), missing_deletes).sum()),
        )

    def _result_rows(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> pa.RecordBatch:
        """Return the result rows of keys, without a sign."""
        num_subtracting = len(self._subtracting.schema.values)
        subtracting_states = state.select(list(range(num_subtracting)))
        columns = dict(
            zip(
                self._subtracting.output.names[len(self.keys) :],
                self._subtracting.results(keys, subtracting_states),
                strict=True,
            )
        )
        if self._others is not None:
            other_states = state.select(list(range(num_subtracting + 2, state.num_columns)))
            names = self._others.output.names[len(self.keys) :]
            columns |= dict(zip(names, self._others.results(keys, other_states), strict=True))
        return pa.RecordBatch.from_arrays(
            [*keys.columns, *(columns[name] for name in self._result_names)], schema=self._table
        )

    def _complete_output(self, entries: StateRows, num_key_groups: int) -> pa.RecordBatch:
        """Return the result of every key with rows, from the last of its entries."""
        groups = group_rows(entries.hashes, entries.keys, num_key_groups)
        newest = groups.order[groups.starts[1:] - 1]
        newest = newest[values_of(entries.values.column(0))[newest] > 0]
        newest_rows = pa.array(newest)
        return self._result_rows(entries.keys.take(newest_rows), entries.values.take(newest_rows))

    def _changed_results(
        self,
        keys: pa.RecordBatch,
        before: tuple[BoolArray, pa.RecordBatch],
        after: tuple[BoolArray, pa.RecordBatch],
    ) -> pa.RecordBatch:
        """Return results that no longer hold (sign -1), then new ones (sign 1).

        `before`, `after`: mask of the keys with rows, and states. A former result that a new one
        replaces is left out unless both are asked for (``output="changes"``).
        """
        (existed, prior), (exists, state) = before, after
        rows = [
            self._result_rows(keys.filter(pa.array(mask)), values.filter(pa.array(mask)))
            for mask, values in ((existed, prior), (exists, state))
        ]
        is_same = np.zeros(len(existed), np.bool_)
        is_in_both = existed & exists
        if is_in_both.any():
            old, new = (
                part.filter(pa.array(is_in_both[mask]))
                for part, mask in zip(rows, (existed, exists), strict=True)
            )
            is_same[is_in_both] = same_rows(old, new)
        is_withdrawn = existed & ~is_same if self.changes else existed & ~exists
        parts = [
            with_sign(part.filter(pa.array(selected[mask])), sign)
            for part, mask, selected, sign in (
                (rows[0], existed, is_withdrawn, -1),
                (rows[1], exists, exists & ~is_same, 1),
            )
        ]
        return pa.concat_batches(parts)

    # -- live rows -----------------------------------------------------------------------------

    def _apply_to_rows(
        self,
        data: OperatorInput,
        groups: Groups,
        keys: pa.RecordBatch,
        known: BoolArray,
        prior: pa.RecordBatch,
    ) -> tuple[pa.RecordBatch, IntArray, dict[str, Changed]]:
        """Apply changes to live rows, and to the aggregates that cannot subtract.

        Returns their state columns, from `_SLOTS` on; the number of deletes of each key that wait
        for a row; and the changed entries of live rows.
        """
        assert self._others is not None, "rows are stored only if some aggregates cannot subtract"
        num_subtracting = len(self._subtracting.schema.values)
        slots = np.where(known, values_of(prior.column(num_subtracting)), 0)
        missing_deletes = np.where(known, values_of(prior.column(num_subtracting + 1)), 0)
        rows = data.rows.values
        signs = values_of(rows.column(CHANGE.name))
        is_recomputed = missing_deletes > 0  # whether states are made of all live rows
        is_recomputed[groups.of_row[signs < 0]] = True
        live = self._live.apply(
            data.states[_LIVE],
            groups,
            keys,
            key=groups.of_row,
            rows=rows,
            signs=signs,
            slots=slots,
            read=is_recomputed,
        )
        changed = {} if live.changed is None else {_LIVE: live.changed}
        added = np.flatnonzero(live.is_live)
        stored = prior.select(list(range(num_subtracting + 2, prior.num_columns)))
        added = self._in_order(live, added, keys, known & ~is_recomputed, stored)
        key = live.key[added]
        states = self._others.update_states(
            replace(groups, of_row=key),
            keys,
            self._rows_of(live.rows, added, keys.take(pa.array(key))),
            known & ~is_recomputed,
            stored,
            are_partial=False,
        )
        missing_deletes = live.waiting
        count_columns = [
            column_of(part, None, pa.int64()) for part in (live.slots, missing_deletes)
        ]
        states_with_counts = pa.RecordBatch.from_arrays(
            [*count_columns, *states.columns],
            schema=pa.schema([_SLOTS, _OWED, *self._others.schema.values]),
        )
        return states_with_counts, missing_deletes, changed

    def _in_order(
        self,
        live: Applied,
        added: IntArray,
        keys: pa.RecordBatch,
        continues: BoolArray,
        stored: pa.RecordBatch,
    ) -> IntArray:
        """Return the positions of rows, `added`, by key and in the order of their aggregates.

        `continues`: mask of the keys whose aggregates, `stored`, are continued: rows that precede
        their last one are left out. A row without a value in the column to order by is the first.
        """
        key = live.key[added]
        if self._order_by is None:
            return added[order_by(key)]
        assert self._others is not None, "there is a last row"
        last_results = self._others.results(keys, stored)
        last_order_values = last_results[
            self._others.output.names.index(self._order_by) - len(self.keys)
        ]
        values = pa.concat_arrays(
            [last_order_values, live.rows[self._order_by].take(pa.array(added))]
        )
        ranks = descending_ranks(values)
        ranks = np.where(values_of(values.is_valid()), ranks.max(initial=0) - ranks + 1, 0)
        last_rank, rank = ranks[: len(keys)], ranks[len(keys) :]
        is_newer = np.flatnonzero(~continues[key] | (rank >= last_rank[key]))
        return added[is_newer[order_by(key[is_newer], rank[is_newer])]]

    def _rows_of(
        self, rows: pa.RecordBatch, positions: IntArray, keys_of_rows: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Return live rows with the columns that the aggregates read.

        `positions`: their positions in `rows`. `keys_of_rows`: their keys.
        """
        assert self._others is not None, "rows are stored only if some aggregates cannot subtract"
        taken_rows = rows.take(pa.array(positions))
        columns = []
        for field in self._others.inputs:
            if field.name in keys_of_rows.schema.names:
                columns.append(keys_of_rows.column(field.name))
            elif field.name in taken_rows.schema.names:
                columns.append(taken_rows.column(field.name))
            else:  # which only the aggregates that subtract read, or the sign
                columns.append(pa.nulls(len(positions), field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._others.inputs)


def _is_nothing(state: pa.RecordBatch) -> BoolArray:
    """Return a mask of states, of counts and sums, without rows and without waiting deletes.

    A key without rows may have as many of each.
    """
    nothing = np.ones(state.num_rows, np.bool_)
    for column in state.columns:
        zero = pa.scalar(0).cast(column.type)
        nothing &= values_of(pc.fill_null(pc.equal(column, zero), fill_value=True))
    return nothing
