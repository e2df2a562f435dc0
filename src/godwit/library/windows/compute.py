"""``window(...).compute``: mergeable aggregates per key and window.

The state is a partial per key and pane.  A window is merged from its panes when it closes, or, in
update mode, whenever one of its panes changes.  The panes of a window are merged in order of event
time: an aggregate sees the rows of a pane in order of arrival, and the panes in order of time.

If windows overlap, rows of an epoch may go to a partial per key and window instead, as the epoch's
time says (`EpochTime.duplicated`).  Such a window has a partial of its own, and its panes from
epochs without it: so the layout may change at any time.

Closed windows are retained if later ones are made of them (`godwit.library.windows.kept`): as
entries, too, which a late row changes besides its pane.

Invariant: every row is in the partial of its pane, or in those of all its windows that were open;
never in both.  A retained window equals its panes merged.
"""

from __future__ import annotations

import time as cpu_clock
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from godwit.columns.arrays import column_of, values_of
from godwit.columns.groups import group_rows
from godwit.library.compute import ComputeOperator
from godwit.library.windows.closing import KeyedStates, Pieces
from godwit.library.windows.kept import kept_spans
from godwit.library.windows.operator import (
    PANE,
    EventTimeOperator,
    entries_in_range,
    output_schema,
    window_bounds,
)
from godwit.library.windows.sharing import PaneMeter
from godwit.model.errors import InvalidInputError
from godwit.model.key_groups import key_groups_of
from godwit.model.naming import RESERVED_PREFIX
from godwit.operators.initial import column_or_none, times_of, with_column
from godwit.operators.operator import STATE, OperatorOutput
from godwit.operators.ordering import starts_run
from godwit.operators.window_specs import WINDOW_END, WINDOW_START
from godwit.store.changes import EntryRange, StateRows
from godwit.store.columns import take_rows
from godwit.time.calendar import CalendarGrid
from godwit.time.event_time import WindowWork
from godwit.time.grid import END

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from godwit.columns.groups import Groups
    from godwit.library.windows.consolidation import ConsolidationStep
    from godwit.library.windows.kept import KeptSpans
    from godwit.operators.aggregate import Aggregate
    from godwit.operators.operator import Changed, EntryColumns, OperatorInput, StateView
    from godwit.time.event_time import EpochTime, RowTime
    from godwit.time.grid import PaneGrid, WindowsOfPanes

IntArray = npt.NDArray[np.int64]
Steps: TypeAlias = "Mapping[tuple[int, int], ConsolidationStep]"
"""Window, as positions of its first pane and the end → how it is merged from parts."""

SPAN: Final = f"{RESERVED_PREFIX}_span"
"""Column of the state: microseconds of a window that has a state of its own, 0 of a pane; negative
of a window that was built of panes, and stays."""
SPAN_TYPE: Final = pa.int64()


class WindowedCompute(EventTimeOperator, ComputeOperator):
    """Operator of aggregates per key and window."""

    kind = "windowed compute"
    reads_touched = True

    def __init__(
        self,
        *,
        name: str,
        keys: tuple[str, ...],
        arriving: pa.Schema,  # columns of the rows as they come: key columns first
        time: RowTime,  # one of them
        inputs: pa.Schema,
        aggregates: Mapping[str, Aggregate],
        grid: PaneGrid,
        update: bool,  # whether windows are emitted as they grow
        share: bool | None = None,  # whether they share panes; None: as measured costs say
        lateness_us: int = 0,  # how long a window that has come out takes rows
        # Column of the output that says how long a row's window is, and length → text.
        lengths: tuple[str, Mapping[int, str]] | None = None,
    ) -> None:
        time_type = arriving.field(time.column).type
        key_fields = [arriving.field(key) for key in keys]
        pane_fields = [pa.field(PANE, time_type)]
        overlap = grid.panes_per_window > 1 and not isinstance(grid, CalendarGrid)
        if overlap and not update and not lateness_us:
            pane_fields.append(pa.field(SPAN, SPAN_TYPE))
        panes = pa.schema([*key_fields, *pane_fields])
        super().__init__(name=name, keys=panes, inputs=inputs, aggregates=aggregates, narrow=False)
        self.arriving, self.grid, self.update = arriving, grid, update
        self.time = self.window_time = time
        self.share, self.lateness_us, self.lengths = share, lateness_us, lengths
        self.output_delay_us = lateness_us  # a window that comes out again is that old
        bounds = window_bounds(time_type)
        if lengths is not None:
            bounds.append(pa.field(lengths[0], pa.string()))
        results = list(self.output)[len(panes) :]
        self.output = output_schema(name, [*key_fields, *bounds], results)

    @property
    def may_duplicate(self) -> bool:
        """True if rows may be added to a state per window instead of one per pane."""
        return SPAN in self.schema.keys.names

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """The key columns and the window, which identify a row."""
        return self.unique_keys_of_windows(len(self.grid.windows))

    @property
    def kept(self) -> KeptSpans | None:
        """Kinds of closed windows that are retained to build later ones; ``None``: none are.

        Windows whose states are sets or sketches are not: such a state has the size of all its
        panes' states.
        """
        large = any(pa.types.is_large_binary(dtype) for dtype in self.schema.values.types)
        shares = self.may_duplicate and self.commutative and not large
        return kept_spans(self.grid) if shares else None

    @property
    def kept_mark(self) -> int | None:
        return None if self.kept is None else self.kept.mark

    def window_meter(self) -> PaneMeter | None:
        may_share = self.may_duplicate and self.commutative
        return PaneMeter(self.grid, self.share) if may_share else None

    def initial_entries(self, state: str, rows: pa.RecordBatch) -> EntryColumns:
        """Return entries for partial states by ``pane``, or by ``window_start`` and ``window_end``.

        Overlapping windows then have a partial of their own.
        """
        time_type, spans = self.schema.keys.field(self.pane_position).type, None
        if column_or_none(rows, PANE) is None:
            if self.grid.panes_per_window > 1 and not self.may_duplicate:
                raise InvalidInputError(
                    f"The initial state of operator {self.name!r} is given by window, but its "
                    "windows overlap and are emitted as they grow, so they share panes.",
                    remedy=(
                        "Give partial states by pane, in a column 'pane', or start without "
                        "initial state."
                    ),
                    operator=self.name,
                )
            starts = times_of(self.name, rows, WINDOW_START, time_type)
            rows = with_column(rows, PANE, column_of(starts, None, time_type))
            if self.may_duplicate:
                ends = times_of(self.name, rows, WINDOW_END, time_type)
                spans = column_of(ends - starts, None, SPAN_TYPE)
        if self.may_duplicate and column_or_none(rows, SPAN) is None:
            zeros = column_of(np.zeros(rows.num_rows, np.int64), None, SPAN_TYPE)
            rows = with_column(rows, SPAN, zeros if spans is None else spans)
        return super().initial_entries(state, rows)

    def process(self, data: OperatorInput) -> OperatorOutput:
        """Update partial states of keys and panes; emit windows that close or (update) changed."""
        work, time = WindowWork(), data.time
        open_after = time.closed - self.lateness_us
        groups, changed, output, closing_ms = None, None, None, 0.0
        if len(data.rows.hashes):
            groups, changed = self._update_states(data, work)
            if self.update:
                output = self._updated_output(groups, changed, data.state, open_after, END)
        retained = None
        if not self.update and self.closes(time):
            cpu = cpu_clock.process_time()
            output, retained = self._close_windows(data, changed, work)
            closing_ms = (cpu_clock.process_time() - cpu) * 1e3
        if self.lateness_us and not self.update and groups is not None and changed is not None:
            updated_output = self._updated_output(
                groups, changed, data.state, open_after, time.closed
            )
            output = (
                updated_output if output is None else pa.concat_batches([updated_output, output])
            )
        return OperatorOutput(
            output=output,
            groups=groups,
            changed=_entries_to_write(groups, changed, retained, data.num_key_groups),
            closing_ms=closing_ms,
            windows=work if self.may_duplicate else None,
        )

    def _update_states(self, data: OperatorInput, work: WindowWork) -> tuple[Groups, StateRows]:
        """Update states of keys and panes (or windows) with rows; return groups and new states."""
        position = self.pane_position
        if self.may_duplicate and data.time.duplicated:
            partials = self.as_partials(data)
            work.count_keys(partials.keys.column(position), partials.hashes)
            with work.timing("spread"):
                windows = self.grid.windows_of(
                    values_of(partials.keys.column(position)), data.time.closed, END
                )
                rows_of_windows = self._copy_to_windows(
                    partials, windows, windows.end - windows.start
                )
                data = replace(data, rows=rows_of_windows, is_partial=True)
                groups, keys, rows = self._group_rows(data)
            work.spread = len(rows_of_windows.hashes)
        else:
            if self.kept is not None and data.time.kept_since < END:
                data = self._add_to_retained(data, self.kept)
            groups, keys, rows = self._group_rows(data)
            if self.may_duplicate:
                pane_positions = np.flatnonzero(values_of(keys.column(position + 1)) == 0)
                panes = keys.column(position).take(pa.array(pane_positions))
                work.count_keys(panes, groups.hashes[pane_positions])
        with work.timing("write"):
            known, prior = data.state.find(keys, groups.key_groups)
        state = self.update_states(groups, keys, rows, known, prior, are_partial=data.is_partial)
        work.written = groups.count
        return groups, StateRows(hashes=groups.hashes, keys=keys, values=state)

    def _group_rows(self, data: OperatorInput) -> tuple[Groups, pa.RecordBatch, pa.RecordBatch]:
        """Group rows by key and pane; return groups, keys, and rows (or a partial per group)."""
        groups, keys = data.grouped(self.pane_position)
        rows = data.rows.values
        return groups, keys, self.merge_partials(groups, rows) if data.is_partial else rows

    def _add_to_retained(self, data: OperatorInput, kept_spans: KeptSpans) -> OperatorInput:
        """Return the input with copies of late rows for retained windows that contain them."""
        panes, time = values_of(data.rows.keys.column(self.pane_position)), data.time
        if int(panes.min()) >= time.closed:
            return data
        partials = self.as_partials(data)
        panes = values_of(partials.keys.column(self.pane_position))
        windows = kept_spans.available(panes, time.kept_since, time.closed)
        if not len(windows.pane):
            return data
        late = self._copy_to_windows(partials, windows, windows.start - windows.end)
        return replace(data, rows=partials.followed_by(late), is_partial=True)

    def _copy_to_windows(
        self, partials: StateRows, windows: WindowsOfPanes, spans: npt.NDArray[np.int64]
    ) -> StateRows:
        """Copy partial states of panes to the windows, of these spans, that contain them."""
        position = self.pane_position
        user_keys = partials.keys.select(list(range(position))).take(pa.array(windows.pane))
        starts = column_of(windows.start, None, partials.keys.column(position).type)
        window_columns = [starts, column_of(spans, None, SPAN_TYPE)]
        return StateRows(
            hashes=partials.hashes[windows.pane],
            keys=pa.RecordBatch.from_arrays(
                [*user_keys.columns, *window_columns], schema=self.schema.keys
            ),
            values=partials.values.take(pa.array(windows.pane)),
        )

    def pieces(
        self, entries: StateRows, time: EpochTime, kept_spans: KeptSpans | None = None
    ) -> tuple[Pieces, npt.NDArray[np.integer]]:
        """Assign entries to the windows that close; see `Pieces.of`."""
        return Pieces.of(self.grid, *self._starts_and_spans(entries.keys), time, kept_spans)

    def _starts_and_spans(self, keys: pa.RecordBatch) -> tuple[IntArray, IntArray | None]:
        """Return each entry's start and span (window length; 0: a pane); ``None``: no spans."""
        position = self.pane_position
        spans = values_of(keys.column(position + 1)) if self.may_duplicate else None
        return values_of(keys.column(position)), spans

    def _close_windows(
        self, data: OperatorInput, changed: StateRows | None, work: WindowWork
    ) -> tuple[pa.RecordBatch, StateRows | None]:
        """Return the output of the windows that close, and the closed windows to retain."""
        kept_spans, time = self.kept, data.time
        if kept_spans is None or time.kept_since == END:
            with work.timing("scan"):
                entries, closing = self.closing_entries(data, changed)
            work.scanned = len(entries.hashes)
            return self.output_of_closed(entries, closing, time, work), None
        first, end = self.closing_panes(time)
        first_staying, end_staying = kept_spans.grid.closing(time.closed, time.until)
        if first_staying < end_staying:
            first, end = min(first, first_staying), max(end, end_staying)
        part = EntryRange(column=self.pane_position, first=first, end=end)
        with work.timing("scan"):
            changed, steps = entries_in_range(changed, part), None
            if kept_spans.any_retained_from(first, time.kept_since, time.closed):
                entries, pieces, piece_of, steps = self._read_planned(
                    data, part, changed, kept_spans
                )
            else:
                entries = data.state.scan(part)
                entries = entries if changed is None else entries.followed_by(changed)
                pieces, piece_of = self.pieces(entries, time, kept_spans)
        work.scanned = len(entries.hashes)
        return self._build_windows(
            entries, pieces, piece_of, work, repeats=changed is not None, steps=steps
        )

    def _read_planned(
        self,
        data: OperatorInput,
        entry_range: EntryRange,
        changed: StateRows | None,
        kept_spans: KeptSpans,
    ) -> tuple[StateRows, Pieces, npt.NDArray[np.integer], Steps]:
        """Plan how to build the closing windows, and read only the entries that the plan needs.

        Most panes are in windows that are retained. Returns the entries, the pieces, the piece of
        each entry, and the plan.
        """
        columns = (self.pane_position, self.pane_position + 1)
        changed_columns = (
            []
            if changed is None
            else [values_of(changed.keys.column(column)) for column in columns]
        )
        planned: list[tuple[Pieces, npt.NDArray[np.integer], Any]] = []

        def choose(stored: Sequence[IntArray]) -> npt.NDArray[np.bool_]:
            """Select the stored entries that the plan reads."""
            starts, spans = stored
            if changed_columns:
                starts, spans = (
                    np.append(starts, changed_columns[0]),
                    np.append(spans, changed_columns[1]),
                )
            pieces, piece_of = Pieces.of(self.grid, starts, spans, data.time, kept_spans)
            sizes = np.bincount(piece_of, minlength=pieces.count + 1)[: pieces.count]
            all_keys = int(sizes.max(initial=0))
            steps = pieces.plan(sizes, all_keys, overlapping=self.idempotent)
            is_read = np.zeros(pieces.count + 1, np.bool_)
            is_read[list(pieces.pieces_read(steps))] = True
            read: npt.NDArray[np.bool_] = is_read[piece_of]
            planned.append((pieces, np.where(read, piece_of, pieces.count), steps))
            return read[: len(stored[0])]

        entries = data.state.select(columns, entry_range, choose)
        ((pieces, piece_of, steps),) = planned
        read = piece_of < pieces.count
        if changed is not None:
            of_changed = np.flatnonzero(read[-len(changed.hashes) :])
            entries = entries.followed_by(changed.take(of_changed))
        return entries, pieces, piece_of[read], steps

    def output_of_closed(
        self,
        entries: StateRows,  # stored entries of the panes of windows that close
        changed: StateRows | None,  # entries that this epoch changed, instead of the stored ones
        time: EpochTime,
        work: WindowWork,  # records the merged keys and CPU time
    ) -> pa.RecordBatch:
        """Merge entries into the windows that close, and return the rows that they emit."""
        entries = entries if changed is None else entries.followed_by(changed)
        pieces = self.pieces(entries, time)
        return self._build_windows(entries, *pieces, work, repeats=changed is not None)[0]

    def _build_windows(
        self,
        entries: StateRows,
        pieces: Pieces,
        piece_of: npt.NDArray[np.integer],  # shape ``(n,)``: the piece of each entry
        work: WindowWork,
        *,
        repeats: bool,  # a key may have several entries in a piece; the last one counts
        steps: Steps | None = None,  # as planned before the entries were read; ``None``: by them
    ) -> tuple[pa.RecordBatch, StateRows | None]:
        """Merge entries into windows; return the output of those that close, and those to retain.

        `repeats`: of several entries of a key and piece, the last counts. Entries are ordered by
        piece and key once; not even that if every window is one piece, as without overlaps.
        """
        cpu = cpu_clock.process_time()
        windows, count = pieces.to_build, pieces.count
        if not windows:
            return self.empty_output(), None
        of_pieces = np.flatnonzero(piece_of < count)
        if len(of_pieces) < len(piece_of):  # windows that are not over yet, or were before
            entries, piece_of = entries.take(of_pieces), piece_of[of_pieces]
        own = entries.keys.select(list(range(self.pane_position)))
        single = [only for w in windows if (only := pieces.only_piece(w)) is not None]
        merged = 0
        if not repeats and len(single) == len(windows):
            order = np.argsort(piece_of, kind="stable")
            bounds = np.searchsorted(piece_of[order], np.arange(count + 1))
            parts = [order[bounds[only] : bounds[only + 1]] for only in single]
            rows = np.concatenate(parts)
            sizes = [len(part) for part in parts]
            states = take_rows(entries.values, rows)
        else:
            groups = group_rows(entries.hashes, own, 1)
            order = groups.order[np.argsort(piece_of[groups.order], kind="stable")]
            piece, key = piece_of[order], groups.of_row[order]
            if repeats:  # of an entry that is there twice, the later one counts
                newest = np.ones(len(order), np.bool_)
                newest[:-1] = (piece[1:] != piece[:-1]) | (key[1:] != key[:-1])
                order, piece, key = order[newest], piece[newest], key[newest]
            ordered = take_rows(entries.values, order)
            bounds = np.searchsorted(piece, np.arange(count + 1))
            of_piece = [
                KeyedStates(keys=key[first:end], states=ordered.slice(first, end - first))
                for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
            ]
            if steps is None:
                steps = pieces.plan(np.diff(bounds), groups.count, overlapping=self.idempotent)
            built, merged = pieces.build(of_piece, steps, self.merge)
            sizes = [len(window.keys) for window in built]
            rows = groups.first_row[np.concatenate([closed.keys for closed in built])]
            states = pa.concat_batches([closed.states for closed in built])
        spent_ms = (cpu_clock.process_time() - cpu) * 1e3
        work.keys = max(work.keys, *sizes)
        if merged:
            work.merged, work.merge_ms = merged, spent_ms
        else:
            work.scan_ms += spent_ms
        closed = sum(sizes[: len(pieces.windows)])
        keys = own.take(pa.array(rows))
        starts = np.repeat([window.start for window in windows], sizes)
        ends = np.repeat([window.end for window in windows], sizes)
        staying = None
        if closed < len(rows):
            moment = self.schema.keys.field(self.pane_position).type
            apart = [
                column_of(starts[closed:], None, moment),
                column_of((starts - ends)[closed:], None, SPAN_TYPE),
            ]
            staying = StateRows(
                hashes=entries.hashes[rows[closed:]],
                keys=pa.RecordBatch.from_arrays(
                    [*keys.slice(closed).columns, *apart], schema=self.schema.keys
                ),
                values=states.slice(closed),
            )
            work.written += len(staying.hashes)
        windows_over = (keys.slice(0, closed), starts[:closed], ends[:closed])
        return self.window_rows(*windows_over, states.slice(0, closed)), staying

    def with_panes(self, rows: pa.RecordBatch, panes: pa.Array) -> pa.RecordBatch:
        """Insert the columns that identify an entry: its pane, and a span of 0 (no window)."""
        if not self.may_duplicate:
            return self.insert_identity(rows, panes)
        no_span = column_of(np.zeros(len(panes), np.int64), None, SPAN_TYPE)
        return self.insert_identity(rows, panes, no_span)

    def _updated_output(
        self, groups: Groups, changed: StateRows, state: StateView, after: int, until: int
    ) -> pa.RecordBatch:
        """Return the output of windows in ``(after, until]`` whose panes changed (update mode)."""
        entries, is_changed = changed, np.ones(len(changed.hashes), np.bool_)
        if self.grid.panes_per_window > 1:
            entries, is_changed = self._with_neighbours(groups, changed, state, after)
        return self._merge_open_windows(entries, after, until, is_changed)

    @property
    def means(self) -> dict[str, Any]:
        """Meaning of the output, for the checkpoint: time columns, and "update" or "append"."""
        return {**super().means, "output": "update" if self.update else "append"}

    def window_rows(
        self, keys: pa.RecordBatch, starts: IntArray, ends: IntArray, state: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Return the output rows of n windows, from their keys, bounds and states."""
        time_type = self.schema.keys.field(self.pane_position).type
        bounds = [
            column_of(self.grid.instants(numbers), None, time_type) for numbers in (starts, ends)
        ]
        if self.lengths is not None:
            distinct_lengths, length_of_window = np.unique(ends - starts, return_inverse=True)
            texts = [self.lengths[1][length] for length in distinct_lengths.tolist()]
            bounds.append(pa.array(texts, pa.string()).take(pa.array(length_of_window)))
        columns = [*keys.columns, *bounds]
        windows = pa.RecordBatch.from_arrays(columns, names=self.output.names[: len(columns)])
        return self.finish(windows, state)

    def _merge_open_windows(
        self, entries: StateRows, after: int, until: int, is_changed: npt.NDArray[np.bool_]
    ) -> pa.RecordBatch:
        """Merge the panes of open windows that contain a changed pane; return their output.

        `entries` has every key and pane at most once; `is_changed`: mask of the changed ones. The
        windows end in ``(after, until]``.
        """
        panes = values_of(entries.keys.column(self.pane_position))
        windows = self.grid.windows_of(panes, after, until)
        user_keys = entries.keys.select(list(range(self.pane_position)))
        keys = group_rows(entries.hashes, user_keys, 1).of_row[windows.pane]
        order = np.lexsort((panes[windows.pane], windows.start, windows.kind, keys))
        pane, kind, start = windows.pane[order], windows.kind[order], windows.start[order]
        key = keys[order]
        first_panes = np.flatnonzero(starts_run(key, kind, start))
        sizes = np.diff(np.append(first_panes, len(order)))
        if len(order):
            window_changed = np.logical_or.reduceat(is_changed[pane], first_panes)
            pane = pane[np.repeat(window_changed, sizes)]
            sizes, first_panes = sizes[window_changed], first_panes[window_changed]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        state = self.merge_in_order(take_rows(entries.values, pane), starts)
        keys = user_keys.take(pa.array(pane[starts[:-1]]))
        return self.window_rows(keys, start[first_panes], windows.end[order][first_panes], state)

    def _with_neighbours(
        self, groups: Groups, changed: StateRows, state: StateView, closed: int
    ) -> tuple[StateRows, npt.NDArray[np.bool_]]:
        """Return all entries of open windows with a changed entry, and a mask of the changed ones.

        `closed`: event time up to which windows are closed.
        """
        width, position = self.grid.width_us, self.pane_position
        panes = values_of(changed.keys.column(position))
        user_keys = changed.keys.select(list(range(position)))
        key_groups = group_rows(changed.hashes, user_keys, 1)
        max_distance = self.grid.panes_per_window - 1
        offsets = np.arange(-max_distance, max_distance + 1) * width
        # What changed comes first: of two alike the one at hand stays, and is not looked up.
        nearby_panes = np.concatenate([panes, (panes[:, None] + offsets).ravel()])
        key = np.concatenate([key_groups.of_row, np.repeat(key_groups.of_row, len(offsets))])
        order = np.lexsort((nearby_panes, key))
        nearby_entries = order[starts_run(nearby_panes[order], key[order])]
        nearby_entries = nearby_entries[
            (nearby_entries >= len(panes))
            & (nearby_panes[nearby_entries] >= self.grid.first_open(closed))
        ]
        rows = key_groups.first_row[key[nearby_entries]]
        time_type = self.schema.keys.field(position).type
        keys = pa.RecordBatch.from_arrays(
            [
                *user_keys.take(pa.array(rows)).columns,
                column_of(nearby_panes[nearby_entries], None, time_type),
            ],
            schema=self.schema.keys,
        )
        known, values = state.find(keys, groups.key_groups[rows])
        stored = pa.array(np.flatnonzero(known))
        entries = changed.followed_by(
            StateRows(
                hashes=changed.hashes[rows[known]],
                keys=keys.take(stored),
                values=values.take(stored),
            )
        )
        return entries, np.arange(len(entries.hashes)) < len(panes)


def _entries_to_write(
    groups: Groups | None,
    changed: StateRows | None,  # of the groups
    retained: StateRows | None,
    num_key_groups: int,
) -> dict[str, Changed]:
    """Return the entries to write: `changed`, and retained closed windows (`retained`)."""
    if groups is None or changed is None:
        rows, key_groups = retained, np.zeros(0, np.int32)
    else:
        rows, key_groups = changed, groups.key_groups
        rows = rows if retained is None else rows.followed_by(retained)
    if rows is None:
        return {}
    if retained is not None:
        retained_groups = key_groups_of(retained.hashes, num_key_groups)
        key_groups = np.concatenate([key_groups, retained_groups])
        order = np.argsort(key_groups, kind="stable")
        rows, key_groups = rows.take(order), key_groups[order]
    return {STATE: (rows, key_groups)}
