"""The contract between a keyed operator and the lane that runs it: `KeyedOperator.process`.

An operator is pure: rows and views of state in, changed entries and output out.  It never sees
files, versions or executors, so the same operator runs on Spark, in the simulator and in a test.
Everything is a column: one call handles all keys that a lane touches in an epoch.

A lane does this with what arrives for one operator in one epoch::

    raw rows ──combine──▶ partial states ──(exchange)─┐
    raw rows ──(exchange)─────────────────────────────┼─▶ process ─▶ changed entries, output
    entries of the local store ──find, scan───────────┘

Engine and lane read everything else from attributes and methods of the operator, which have plain
defaults; no code asks for the kind of an operator.  If state can be made of partial states
(`KeyedOperator.mergeable`), rows may be combined at the source side, before the exchange, where
that pays; the result is the same.

Invariant: the output of an operator depends on nothing but rows, state and the epoch's time; and an
operator reads no expired entries (`KeyedOperator.expired_entries`), which the local store may have
dropped or not.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from godwit.checkpoint.entries import ColumnsByName
from godwit.checkpoint.evolution import (
    StateDescription,
    WrittenState,
    check_compatible,
    columns_of,
)
from godwit.checkpoint.records import StateId
from godwit.columns.arrays import column_of
from godwit.columns.groups import group_repeating_rows, group_rows
from godwit.columns.hashing import hash_keys, hash_placed
from godwit.columns.python_values import UTC
from godwit.columns.types import is_keyed_by_none, visible_schema, with_hidden_key
from godwit.operators.aggregate import HIGH
from godwit.operators.hot_keys import PART
from godwit.operators.initial import stored_columns, with_keys
from godwit.operators.ordering import order_by
from godwit.store.changes import StateRows
from godwit.store.columns import take_rows
from godwit.time.event_time import NO_TIME, NOTHING_DUE, Due
from godwit.time.grid import BEGINNING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from godwit.checkpoint.evolution import StateUpgrade
    from godwit.columns.groups import Groups
    from godwit.model.key_groups import OperatorWork
    from godwit.operators.broadcast import Broadcast, BroadcastTable
    from godwit.store.changes import EntryRange
    from godwit.store.columns import StateSchema
    from godwit.time.event_time import Arrivals, EpochTime, RowTime, WindowWork
    from godwit.time.grid import PaneGrid
    from godwit.values.records import RowClass

STATE: Final = "state"
"""Name of the state of an operator that has one."""

_MANY_ROWS: Final = 32_768
"""Minimum number of rows for which a test for few distinct keys pays off."""

Choose: TypeAlias = "Callable[[Sequence[npt.NDArray[np.int64]]], npt.NDArray[np.bool_]]"
"""Chooses n entries by some of their columns; asked once for all key groups of a lane."""
EntryColumns: TypeAlias = tuple[pa.RecordBatch, pa.RecordBatch]
"""Key columns and state columns of entries."""
Changed: TypeAlias = tuple[StateRows, npt.NDArray[np.int32]]
"""Entries to write, ordered by key group, and the key group of each."""


class StateView(Protocol):
    """Read access to one state of a lane's key groups, as of the last epoch."""

    def find(
        self, keys: pa.RecordBatch, key_groups: npt.NDArray[np.integer]
    ) -> tuple[npt.NDArray[np.bool_], pa.RecordBatch]:
        """Return a mask of the keys that have an entry, and a row of state columns per key."""

    def scan(self, entry_range: EntryRange | None = None) -> StateRows:
        """Return a copy of all entries, or of a range of event time, in arbitrary order."""

    def select(self, columns: Sequence[int], part: EntryRange, choose: Choose) -> StateRows:
        """Return a copy of the entries of a range that `choose` picks.

        `columns`: positions of 64-bit columns that `choose` gets, key columns counted first; it
        returns a mask of the entries to copy.
        """

    def min_after(self, column: int, after: int) -> int:
        """Return the smallest value above `after` in a column of integers (keys count first)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperatorInput:
    """Input of one operator in one lane and epoch: rows, state and time."""

    rows: StateRows
    """N rows in order of arrival: the key columns of their entries, and the operator's `inputs`,
    or, where partial, one or more partial states an entry."""
    is_partial: bool = False  # whether `rows` are partial states
    # event time of each row, where a function gets the rows of each key in order of it
    moments: npt.NDArray[np.int64] | None = None
    states: Mapping[str, StateView]
    time: EpochTime = NO_TIME
    epoch: int = 0
    num_key_groups: int
    # Of an operator with tables that every lane has whole (`godwit.operators.broadcast`):
    tables: Mapping[str, BroadcastTable] = field(default_factory=dict)  # as of the last epoch
    # number of an input → the epoch's rows of a table
    broadcast: Mapping[int, pa.RecordBatch] = field(default_factory=dict)
    writes_tables: bool = False  # whether this lane writes what changes of them
    named: Mapping[str, Any] = field(default_factory=dict)  # what functions get by name
    # State of `KeyedOperator.part_states` → its entries in key groups that some keys leave parts
    # in, of this lane or another; empty if no key leaves parts in this epoch.
    left_parts: Mapping[str, StateRows] = field(default_factory=dict)
    # shape ``(num_key_groups,)``: key groups that this lane processes
    here: npt.NDArray[np.bool_] | None = None

    @property
    def state(self) -> StateView:
        """State of an operator that has a single state."""
        return self.states[STATE]

    def grouped(self, num_hashed: int) -> tuple[Groups, pa.RecordBatch]:
        """Group the rows by all key columns; return the groups, and the key columns of each.

        `num_hashed`: number of key columns, from the first, that the rows' hashes are of.
        """
        rows, groups = self.rows, None
        if len(rows.hashes) >= _MANY_ROWS:
            groups = group_repeating_rows(
                rows.keys, self.num_key_groups, num_hashed, hashes=rows.hashes
            )
        if groups is None:
            groups = group_rows(rows.hashes, rows.keys, self.num_key_groups, num_hashed)
        return groups, take_rows(rows.keys, groups.first_row)

    def grouped_with(
        self, num_keys: int, entries: Sequence[StateRows]
    ) -> tuple[Groups, pa.RecordBatch, list[list[int]]]:
        """Group rows and state entries by key; a key may have entries and no rows.

        Returns the groups of rows; the keys; and, for each of `entries`, the key number of each
        entry.
        """
        if not entries:
            return *self.grouped(self.rows.keys.num_columns), []
        key_positions = list(range(num_keys))
        hashes = [self.rows.hashes, *(input_rows.hashes for input_rows in entries)]
        all_keys = pa.concat_batches(
            [self.rows.keys, *(input_rows.keys.select(key_positions) for input_rows in entries)]
        )
        groups = group_rows(np.concatenate(hashes), all_keys, self.num_key_groups)
        ends = np.cumsum([len(input_rows) for input_rows in hashes])
        row_groups = replace(groups, of_row=groups.of_row[: ends[0]])
        groups_of_entries = [
            groups.of_row[first:end].tolist() for first, end in itertools.pairwise(ends)
        ]
        return row_groups, all_keys.take(pa.array(groups.first_row)), groups_of_entries


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperatorOutput:
    """Output of one operator in one lane and epoch: changed state, rows, costs."""

    output: pa.RecordBatch | None = None  # rows of the operator's `output` schema
    groups: Groups | None = None  # the keys that have rows, or entries that were processed
    changed: Mapping[str, Changed] = field(default_factory=dict)  # name of a state → entries
    next_due: Due = NOTHING_DUE
    """Time at which timers or expiries are due next: of all keys, if the epoch was to look for
    them, else of those that it changed."""
    cpu_ms: npt.NDArray[np.float64] | None = None
    """Shape ``(K,)``: CPU time measured for each of the K key groups in ``groups.key_groups``,
    ascending; ``None`` where the cost of a key does not depend on which key it is, so that it may
    be shared out by rows."""
    busy_ms: npt.NDArray[np.float64] | None = None  # likewise, time that passed, waiting included
    closing_ms: float = 0.0  # CPU time for output that no row of the epoch is the cause of
    windows: WindowWork | None = None  # where the cost of windows is measured
    duplicate_partials: int = 0  # partials, of windows that are over, of keys in both slots
    waiting_deletes: int = 0  # deletes of changes that wait for their rows
    # rows of calls that failed, with the columns of `godwit.operators.failed_calls.FAILED`
    failed: pa.RecordBatch | None = None
    # Which keys have most work, where time does not tell it, as of a join, whose pairs count too.
    key_work: OperatorWork | None = None

    def with_failed(self, others: pa.RecordBatch | None) -> OperatorOutput:
        """Return the output with further rows of failed calls, before those of the function."""
        if others is None:
            return self
        both = [others] if self.failed is None else [others, self.failed]
        return replace(self, failed=pa.concat_batches(both))

    @classmethod
    def of_groups(
        cls,
        groups: Groups,
        keys: pa.RecordBatch,
        values: pa.RecordBatch,
        *,
        removed: npt.NDArray[np.bool_] | None = None,
        **others: Any,
    ) -> OperatorOutput:
        """Return output that writes one entry per group; ``values[g]``: state columns of group g.

        `removed`: mask of the groups whose entry is deleted. `others`: further fields of the
        output.
        """
        rows = StateRows(hashes=groups.hashes, keys=keys, values=values, removed=removed)
        return cls(groups=groups, changed={STATE: (rows, groups.key_groups)}, **others)


def changed_by_key(
    groups: Groups,
    key: npt.NDArray[np.int64],
    keys: pa.RecordBatch,
    values: pa.RecordBatch,
    removed: npt.NDArray[np.bool_] | None = None,
) -> dict[str, Changed]:
    """Return state's name → changed entries, for the operator's only state.

    `key`: group of each entry. `keys`, `values`: its key and state columns. `removed`: mask of the
    entries to delete.
    """
    if not len(key):
        return {}
    removed = removed if removed is not None and removed.any() else None
    if np.any(key[1:] < key[:-1]):
        order = order_by(key)
        keys, values, key = take_rows(keys, order), take_rows(values, order), key[order]
        removed = None if removed is None else removed[order]
    rows = StateRows(hashes=groups.hashes[key], keys=keys, values=values, removed=removed)
    return {STATE: (rows, groups.key_groups[key])}


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPhase:
    """Role of an operator in a two-phase windowed aggregate."""

    first: str  # the operator that is the first slot of the compute part, and known to users
    second: str  # the one that is the second slot
    slot: int | None  # which slot this is; None: it consolidates the partials of both
    grid: PaneGrid
    pane_position: int  # position of the pane among the key columns of an entry


class WindowMeter(Protocol):
    """Meter of an operator's overlapping windows, which share panes or have states of their own."""

    duplicated: bool  # windows have states of their own from the next epoch on

    def add_epoch(self, time: EpochTime, works: Sequence[WindowWork]) -> None:
        """Add the measured window work of one epoch."""


class KeyedOperator(ABC):
    """Contract of a keyed operator. Instances are picklable, and keep no state between calls."""

    kind: ClassVar[str]  # call in the API, such as "compute"; stored in the checkpoint
    name: str  # unique within the flow
    part_of: str = ""  # the user's operator that this one is a part of; empty: it is the user's
    inputs: pa.Schema  # columns of input rows besides the key columns
    schema: StateSchema  # identity columns of an entry, key columns first, and state columns
    output: pa.Schema  # output columns: key columns, then results
    complete: bool = False  # complete mode: every epoch emits the results of all keys
    changes: bool = False  # changelog: emits a changed result with the one that it replaces
    update: bool = False  # windows are emitted as they grow, not when they are over
    window_time: RowTime | None = None  # column of event time of the windows that it computes
    function: Any = None  # the user's function, if any
    failures_to: str = ""  # sink of the rows of calls that fail; empty: a failed call stops all
    # Classes of the rows that the function gets, and of the rows that it returns, if any.
    row_class: RowClass | None = None
    output_class: RowClass | None = None
    zone: str = UTC  # the session's, of datetimes without one that the function returns
    emits: ClassVar[str] = "what the function returns"  # the output of an epoch, as text for users
    over_event_time: ClassVar[bool] = False  # whether rows may be late in event time
    mergeable: ClassVar[bool] = False  # whether state consists of partial states, merged in order
    stateless: ClassVar[bool] = False  # whether it never has an entry of state
    # Whether an epoch that does not read all keys reads only entries with the hashes of its rows,
    # by `StateView.find`.
    reads_touched: ClassVar[bool] = False
    output_delay_us: int = 0  # maximum delay of the output behind the watermark
    # False if a repeated attempt may emit other rows, since the function asks other systems. Lanes
    # that got rows of both attempts are found by a digest of the rows.
    repeatable: bool = True
    # Tables that every lane has whole, and the numbers of the inputs with their rows.
    broadcasts: tuple[Broadcast, ...] = ()
    broadcast_inputs: frozenset[int] = frozenset()
    # Key columns whose hash decides a row's key group; empty: all key columns.  All key columns
    # identify an entry either way.
    partition_by: tuple[str, ...] = ()
    partition_stated: bool = False  # whether the program sets `partition_by`
    # Maximum number of parts of a hot key; 0: all rows of a key go to one lane.  `arrange` divides
    # rows among parts by `EpochTime.spreads`.
    max_parts: int = 0
    # States of parts that are merged into the state of the whole key in the epoch in which the key
    # leaves its parts. Without any, parts keep their state until the watermark has passed
    # `parts_expire_at`.
    part_states: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()  # names of states that it once had, and deletes
    # Whether an epoch without input is due only for an advance of the watermark, and for each.
    due_by_watermark: bool = False
    # Whether part 0, a whole key, is hashed like the other parts, or by its key columns alone.
    hashes_whole: ClassVar[bool] = False

    @abstractmethod
    def process(self, data: OperatorInput) -> OperatorOutput:
        """Process one lane's input in one epoch; also called without rows."""

    # -- rows on their way ---------------------------------------------------------------------

    def unify_columns(self, rows: pa.RecordBatch, input_number: int) -> pa.RecordBatch:  # noqa: ARG002
        """Convert rows of input number `input_number` to the columns that all inputs share.

        By default that adds the key column of an operator on a whole stream.
        """
        if not self.is_global:
            return rows
        names = rows.schema.names if self.over_event_time else self.inputs.names
        return with_hidden_key(rows, names)

    def arrange(
        self,
        rows: pa.RecordBatch,
        time: EpochTime,  # noqa: ARG002
        input_number: int = 0,  # noqa: ARG002
    ) -> tuple[pa.RecordBatch, pa.RecordBatch | None, Arrivals | None]:
        """Assign rows to entries (panes), and split off rows to leave out.

        Returns the accepted rows, with columns that identify their entry; the left-out rows,
        unchanged, with reasons (``None`` if none); and counts and event times of both (``None`` if
        there is nothing to report).
        """
        return rows, None, None

    @property
    def left_out_schema(self) -> pa.Schema | None:
        """Columns of left-out rows; ``None`` if the operator never leaves rows out."""
        return None

    def parts_expire_at(self, newest: int) -> int:  # noqa: ARG002
        """Return the watermark at which parts that a hot key gave up may be dropped.

        `BEGINNING`: at once. `newest`: maximum event time of the rows of earlier epochs.
        """
        return BEGINNING

    def combine(
        self, groups: Groups, keys: pa.RecordBatch, rows: pa.RecordBatch
    ) -> pa.RecordBatch | None:
        """Aggregate raw rows into one partial state per group, if the operator is `mergeable`.

        ``None`` if the partial states have no room for them: each row is then one of its own.
        """
        raise NotImplementedError

    @property
    def commutative(self) -> bool:
        """True if rows may be combined in any order; only if the operator is `mergeable`."""
        return False

    @property
    def waiting_schema(self) -> pa.Schema:
        """Columns of rows that wait for state in migration: partial states, or raw rows."""
        if self.mergeable:
            return pa.schema([*self.schema.keys, *self.schema.values])
        keys = self.schema.keys
        others = [field for field in self.inputs if field.name not in keys.names]
        return pa.schema([*keys, *others])

    # -- time ----------------------------------------------------------------------------------

    def closes(self, time: EpochTime) -> bool:  # noqa: ARG002
        """Return whether rows may be emitted in this epoch because time passed, without timers."""
        return False

    @property
    def has_timers(self) -> bool:
        """True if the operator has timers, or state that expires."""
        return False

    def needs_state(self, time: EpochTime) -> bool:
        """Return whether the epoch must fail if the state of a key group is missing.

        In other epochs rows wait for the state; but windows that close in this epoch cannot wait.
        """
        return time.due

    def reads_all_keys(self, time: EpochTime) -> bool:
        """Return whether an epoch reads the state of keys without rows."""
        return self.complete or time.due or self.closes(time)

    def expired_entries(self, closed: int) -> EntryRange | None:  # noqa: ARG002
        """Return the range of entries that expire once windows up to `closed` have been emitted."""
        return None

    def emitted_by(self, moment: int) -> int:
        """Return the watermark at which all windows of a row with this event time are emitted.

        Without windows it is the first one that is past the row.
        """
        return moment + 1

    def last_emitted(self, newest: int) -> int:
        """Return the maximum event time of the output; `newest`: that of the input."""
        return newest

    # -- roles ---------------------------------------------------------------------------------

    @property
    def two_phase(self) -> TwoPhase | None:
        """Role in a two-phase windowed aggregate; ``None`` if it has none."""
        return None

    @property
    def consolidates(self) -> bool:
        """True if the operator only merges the partials of a two-phase aggregate, without state."""
        return self.two_phase is not None and self.two_phase.slot is None

    def window_meter(self) -> WindowMeter | None:
        """Return a meter of the costs of overlapping windows, if they can share panes."""
        return None

    @property
    def kept_mark(self) -> int | None:
        """Fingerprint of the closed windows that are retained for later ones, if any are."""
        return None

    def table_key_group(self, num_key_groups: int) -> int:
        """Return the key group whose lane writes the broadcast tables to the checkpoint."""
        raise NotImplementedError

    @property
    def keys(self) -> pa.Schema:
        """Key columns, by which rows are hashed; an entry's identity begins with them."""
        return self.schema.keys

    @property
    def is_global(self) -> bool:
        """True if the operator works on a whole stream, which is keyed by no column."""
        return is_keyed_by_none(self.schema.keys)

    @property
    def user_keys(self) -> pa.Schema:
        """Key columns that the user named, without internal ones, as for parts of a hot key."""
        return visible_schema(pa.schema([field for field in self.keys if field.name != PART]))

    @property
    def hash_columns(self) -> pa.Schema:
        """Columns by which rows are hashed: the key columns, and the part of a hot key."""
        return self.keys

    @property
    def placed_by(self) -> pa.Schema:
        """Partition attributes (paper 3, §4.3): columns whose hash decides a row's key group."""
        if not self.partition_by:
            return self.hash_columns
        return pa.schema([self.keys.field(name) for name in self.partition_by])

    def placed_in(self, keys: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the `placed_by` columns in an input whose key columns are `keys`."""
        own = self.user_keys.names
        return tuple(keys[own.index(name)] for name in self.partition_by) or tuple(keys)

    def hash_of(self, rows: pa.RecordBatch, num_key_groups: int) -> npt.NDArray[np.int64]:
        """Hash rows by their `hash_columns`; `key_groups_of` gives the hashes' key groups."""
        keys = rows.select(self.hash_columns.names)
        if not self.partition_by:
            return hash_keys(keys)
        return hash_placed(keys, self.partition_by, num_key_groups)

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """Sets of output columns, each of which identifies a row of the result, widest first.

        A later row with the same values replaces an earlier one. Empty for rows that a function
        emits, and for joins.
        """
        return ()

    # -- states and their evolution ------------------------------------------------------------

    @property
    def states(self) -> tuple[StateId, ...]:
        """States of the operator: one, unless the user has named several."""
        return (StateId(self.name, STATE),)

    def schema_of(self, state: str) -> StateSchema:  # noqa: ARG002
        """Return the key and state columns of a state."""
        return self.schema

    def describe_state(self, state: str = STATE) -> StateDescription:
        """Describe a state for the checkpoint: by default, its columns of Arrow values."""
        return StateDescription(columns=columns_of(self.schema_of(state).values), codec="arrow")

    def describe_states(self) -> dict[str, StateDescription]:
        """Describe the schema of every state for the checkpoint, by name."""
        return {
            description.state: self.describe_state(description.state) for description in self.states
        }

    def upgrade_from(self, stored: StateDescription) -> StateUpgrade | None:
        """Return a converter of the operator's only state from `stored`; ``None`` if that fits."""
        return self.upgrade_state_from(STATE, WrittenState.of(stored))

    def upgrade_state_from(self, state: str, written: WrittenState) -> StateUpgrade | None:
        """Return a converter of entries of a state stored as `written`; ``None`` if they fit.

        Called once for every flow version that stored state has. Columns are matched by name; an
        operator defines only the conversion of values (`values_from`) and the initial values of new
        columns (`new_columns`). State that does not fit raises an error with every difference and a
        remedy.
        """
        stored, today = written.description, self.describe_states()[state]
        self.check_stored_state(state, stored, today)
        values = self.values_from(state, written)
        live = written.columns_kept_in(today)
        as_is = values is None and stored.columns == today.columns
        if as_is and live.issuperset(name for name, _ in today.columns):
            return None
        return ColumnsByName(
            schema=self.schema_of(state).values,
            live=live,
            values=values,
            new=partial(self.new_columns, state),
        )

    def check_stored_state(
        self,
        state: str,  # noqa: ARG002 - for operators of several
        stored: StateDescription,
        today: StateDescription,
    ) -> None:
        """Raise if stored state does not fit today's; see `check_compatible`."""
        check_compatible(f"operator {self.name!r}", stored, today, operator=self.name)

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:  # noqa: ARG002
        """Return a converter of state values stored as `written`; ``None`` if they fit as they are.

        Raises if they cannot be converted.
        """
        return None

    def prior_or_new(self, known: npt.NDArray[np.bool_], prior: pa.RecordBatch) -> pa.RecordBatch:
        """Return the state of each key: from `prior` if the key is `known`, else a new state."""
        if known.all():
            return prior
        new = self.new_columns(STATE, len(known))
        if not known.any():
            return new
        mask = column_of(known, None, pa.bool_())
        pairs = zip(prior.columns, new.columns, strict=True)
        columns = [pc.if_else(mask, old, created) for old, created in pairs]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema.values)

    def initial_entries(self, state: str, rows: pa.RecordBatch) -> EntryColumns:
        """Return key and state columns of entries for rows of a state that a flow begins with.

        The rows have the key columns, and columns as `gw.read_state` shows them. Raises
        `InvalidInputError` if they do not fit.
        """
        schema = self.schema_of(state)
        absent = {
            field.name: partial(pa.nulls, type=field.type)
            for field in schema.values
            if field.name.startswith(HIGH)
        }
        return self.entries_from(state, with_keys(rows, schema.keys), absent)

    def entries_from(
        self, state: str, rows: pa.RecordBatch, absent: Mapping[str, Callable[[int], pa.Array]]
    ) -> EntryColumns:
        """Return the columns of initial rows as key and state columns of entries.

        `absent`: see `stored_columns`.
        """
        schema = self.schema_of(state)
        keys, values = (
            pa.RecordBatch.from_arrays(stored_columns(self.name, rows, part, absent), schema=part)
            for part in (schema.keys, schema.values)
        )
        return keys, values

    def complete_entries(self, state: str, entries: StateRows) -> StateRows:  # noqa: ARG002
        """Fill in what initial entries of one key have from each other; they are ordered by key."""
        return entries

    def new_columns(self, state: str, count: int) -> pa.RecordBatch:
        """Return `count` rows of the state columns that entries of an earlier schema lack."""
        schema = self.schema_of(state).values
        return pa.RecordBatch.from_arrays(
            [pa.nulls(count, field.type) for field in schema], schema=schema
        )
