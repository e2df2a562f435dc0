"""``window(gw.rows(n, every=m)).compute``: aggregates of a key's last n rows, every m rows.

Rows are numbered per key in order of arrival, and cut into *panes* of m rows; window w is the panes
w to w + n/m - 1, and comes out in the epoch in which its last row arrives.  A key has two states:
how many rows it has had, with the partial states of the pane that is open; and, where windows
overlap, the partial states of its last n/m - 1 full panes, each in a slot of its own (its number
modulo n/m - 1).  So an epoch that fills no pane reads and writes one entry a key.

Invariant: the output depends on the order of arrival alone, not on the bounds of epochs.

Source: count windows as in Flink (``countWindow(size, slide)``), except that windows before the
first n rows of a key are not emitted here; panes as in Li et al., "No Pane, No Gain", SIGMOD Record
34(1), 2005.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.checkpoint.evolution import columns_of
from godwit.checkpoint.records import StateId
from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import Groups
from godwit.columns.types import visible_schema
from godwit.library.compute import ComputeOperator
from godwit.model.naming import RESERVED_PREFIX, check_column_names
from godwit.operators.operator import STATE, KeyedOperator, OperatorOutput
from godwit.operators.ordering import expand_ranges
from godwit.store.changes import StateRows
from godwit.store.columns import StateSchema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.checkpoint.evolution import StateDescription, StateUpgrade, WrittenState
    from godwit.operators.aggregate import Aggregate
    from godwit.operators.operator import Changed, OperatorInput, StateView
    from godwit.operators.window_specs import RowWindows

WINDOW_NUMBER: Final = "window_number"
_PANES: Final = "panes"
_COUNT: Final = pa.field(f"{RESERVED_PREFIX}_rows", pa.int64())
_SLOT: Final = pa.field(f"{RESERVED_PREFIX}_slot", pa.int64())

IntArray = npt.NDArray[np.int64]


class RowWindowsOperator(KeyedOperator):
    """Operator of aggregates of each key's last rows, emitted by number of rows."""

    kind = "compute over rows"
    emits: ClassVar[str] = "windows, once each, when their last row has arrived"

    def __init__(
        self,
        *,
        name: str,
        keys: pa.Schema,
        inputs: pa.Schema,
        aggregates: Mapping[str, Aggregate],
        windows: RowWindows,
    ) -> None:
        compute = ComputeOperator(
            name=name, keys=keys, inputs=inputs, aggregates=aggregates, narrow=False
        )
        self.name, self.inputs, self.windows, self._compute = name, inputs, windows, compute
        self._panes_per_window = windows.length // windows.every
        values = compute.schema.values
        self.schema = StateSchema(keys=keys, values=pa.schema([_COUNT, *values]))
        self._panes = StateSchema(keys=pa.schema([*keys, _SLOT]), values=values)
        results = list(compute.output)[len(keys) :]
        self.output = pa.schema([*keys, pa.field(WINDOW_NUMBER, pa.int64()), *results])
        check_column_names(visible_schema(self.output).names, f"The output of operator {name!r}")

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """The key columns and the window's number, which identify a row of the result."""
        return ((*self.keys.names, WINDOW_NUMBER),)

    @property
    def states(self) -> tuple[StateId, ...]:
        """The state of counts and open panes, and, if windows overlap, that of full panes."""
        names = (STATE, _PANES) if self._panes_per_window > 1 else (STATE,)
        return tuple(StateId(self.name, state) for state in names)

    def schema_of(self, state: str) -> StateSchema:
        return self._panes if state == _PANES else self.schema

    def describe_state(self, state: str = STATE) -> StateDescription:
        """Describe one of the states, with the windows' size and step, for the checkpoint."""
        schema, described = self.schema_of(state), self._compute.describe_state()
        # The number of rows is found again, as results are, when aggregates come and go.
        count = {_COUNT.name: {"state": [_COUNT.name], "aggregate": {"name": "rows of the key"}}}
        return msgspec.structs.replace(
            described,
            columns=columns_of(schema.values),
            type=described.type if state == _PANES else {**count, **described.type},
            entries=columns_of(list(schema.keys)[len(self.keys) :]),
            means={"rows of a window": self.windows.length, "rows between": self.windows.every},
        )

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:
        return self._compute.values_from(state, written)

    def new_columns(self, state: str, count: int) -> pa.RecordBatch:
        created = self._compute.new_columns(state, count)
        return created if state == _PANES else self._open_state(np.zeros(count, np.int64), created)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Add an epoch's rows to panes, and emit the windows that have all their rows."""
        if not len(data.rows.hashes):
            return OperatorOutput()
        every, width = self.windows.every, self._panes_per_window
        groups, keys = data.grouped(len(self.keys))
        known, prior = data.state.find(keys, groups.key_groups)
        rows_before = np.where(known, values_of(prior.column(0)), 0)
        rows_after = rows_before + np.diff(groups.starts)
        # Pieces: the panes of each key that have rows of this epoch, in order.
        first = rows_before // every
        count = (rows_after - 1) // every - first + 1
        ends = np.cumsum(count)
        key, pane = expand_ranges(first, count)
        states = self._update_panes(
            data.rows.values,
            groups,
            keys,
            continues=known & (rows_before % every > 0),
            prior=prior,
            ends=ends,
            key=key,
        )
        full_pieces = np.flatnonzero((pane + 1) * every <= rows_after[key])
        changed: dict[str, Changed] = {
            STATE: (
                StateRows(
                    hashes=groups.hashes,
                    keys=keys,
                    values=self._open_state(rows_after, states.take(pa.array(ends - 1))),
                ),
                groups.key_groups,
            )
        }
        full_panes = rows_after // every  # full panes of each key by now
        if width > 1:
            retained = full_pieces[
                pane[full_pieces] > full_panes[key[full_pieces]] - width
            ]  # for windows to come
            if len(retained):
                retained_rows = StateRows(
                    hashes=groups.hashes[key[retained]],
                    keys=self._pane_keys(keys, key[retained], pane[retained]),
                    values=states.take(pa.array(retained)),
                )
                changed[_PANES] = (retained_rows, groups.key_groups[key[retained]])
        oldest = np.maximum(first - width + 1, 0)
        num_windows = np.maximum(full_panes - width + 1 - oldest, 0)
        output = None
        if num_windows.any():
            output = self._merge_full_windows(
                data.states, groups, keys, (oldest, first, num_windows), (key, pane, states)
            )
        return OperatorOutput(output=output, groups=groups, changed=changed)

    def _update_panes(
        self,
        rows: pa.RecordBatch,
        groups: Groups,
        keys: pa.RecordBatch,
        *,
        continues: npt.NDArray[np.bool_],
        prior: pa.RecordBatch,
        ends: IntArray,
        key: IntArray,
    ) -> pa.RecordBatch:
        """Add an epoch's rows to panes; return the partial states of all panes with rows, in order.

        `continues`: mask of keys that have an open pane, whose state is in `prior`. `ends`: end of
        the pieces (new rows of one pane) of each key. `key`: key of each piece.
        """
        every = self.windows.every
        starts = np.append(0, ends[:-1])
        rows_in_pane = np.where(
            continues, values_of(prior.column(0)) % every, 0
        )  # rows of an open pane
        of_row = groups.of_row[groups.order]
        position_in_key = np.arange(len(of_row)) - groups.starts[of_row]
        piece_of_row = np.empty(len(of_row), np.int64)
        piece_of_row[groups.order] = (
            starts[of_row] + (rows_in_pane[of_row] + position_in_key) // every
        )
        has_state = np.zeros(len(key), np.bool_)
        has_state[starts[continues]] = True
        key_indices = pa.array(key)
        pieces = Groups(
            count=len(key),
            of_row=piece_of_row,
            first_row=groups.first_row[key],
            hashes=groups.hashes[key],
            key_groups=groups.key_groups[key],
        )
        return self._compute.update_states(
            pieces,
            keys.take(key_indices),
            rows,
            has_state,
            prior.select(list(range(1, prior.num_columns))).take(key_indices),
            are_partial=False,
        )

    def _merge_full_windows(
        self,
        states: Mapping[str, StateView],
        groups: Groups,
        keys: pa.RecordBatch,
        spans: tuple[IntArray, IntArray, IntArray],
        pieces: tuple[IntArray, IntArray, pa.RecordBatch],
    ) -> pa.RecordBatch:
        """Merge the panes of full windows; return one state per window.

        `spans`: of each key, its first window, its first pane of this epoch, and the number of
        windows. `pieces`: key, pane and partial state of the panes of this epoch.
        """
        oldest, first, num_windows = spans
        key, pane, partials = pieces
        width = self._panes_per_window
        if width > 1:  # panes of earlier epochs, which are read together
            stored_key, stored_pane = expand_ranges(
                oldest, np.where(num_windows, first - oldest, 0)
            )
            stored_keys = self._pane_keys(keys, stored_key, stored_pane)
            known, values = states[_PANES].find(stored_keys, groups.key_groups[stored_key])
            assert known.all(), "panes stay until no window needs them"
            key, pane = np.concatenate([stored_key, key]), np.concatenate([stored_pane, pane])
            partials = pa.concat_batches([values, partials])
        order = np.lexsort((pane, key))
        window_key, window = expand_ranges(oldest, num_windows)
        # Panes of a key are in order and without gaps, from the first pane of its first window on.
        begins = np.searchsorted(key[order], window_key) + window - oldest[window_key]
        parts = order[(begins[:, None] + np.arange(width)).ravel()]
        state = self._compute.merge_in_order(
            partials.take(pa.array(parts)), np.arange(len(window) + 1) * width
        )
        user_keys = keys.take(pa.array(window_key))
        results = self._compute.results(user_keys, state)
        return pa.RecordBatch.from_arrays(
            [*user_keys.columns, pa.array(window, pa.int64()), *results], schema=self.output
        )

    def _open_state(self, count: IntArray, partials: pa.RecordBatch) -> pa.RecordBatch:
        """Build keys' state columns from numbers of rows and the open panes' partial states."""
        columns = [column_of(count, None, pa.int64()), *partials.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.values)

    def _pane_keys(self, keys: pa.RecordBatch, key: IntArray, pane: IntArray) -> pa.RecordBatch:
        """Return the key columns of entries of full panes, of the keys at positions `key`."""
        slot = column_of(pane % (self._panes_per_window - 1), None, pa.int64())
        columns = [*keys.take(pa.array(key)).columns, slot]
        return pa.RecordBatch.from_arrays(columns, schema=self._panes.keys)
