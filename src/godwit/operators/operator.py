"""The contract between a keyed operator and the lane that runs it.

An operator is pure: rows and prior state in, new state and output out.  It never sees key groups,
epochs' files or executors, so the same operator runs on Spark, in the simulator and in a test.
Everything is a column: one call handles all keys that a lane touches in an epoch.

A lane does this with what arrives for one operator in one epoch::

    raw rows ──combine──▶ partial states ──(exchange)──▶ merge_partials ─┐
    raw rows ──(exchange)───────────────────────────────────────────────┼─▶ advance ─▶ state, output
    prior state from the local store ───────────────────────────────────┘

Every operator is a `KeyedOperator`.  One whose state can be made of parts is a `MergeableOperator`
too: ``combine`` runs at the source side, before the exchange, where it pays; and such an operator
must give the same result either way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from godwit.checkpoint.compatibility import insist_on_compatible
from godwit.checkpoint.entries import ColumnsByName
from godwit.checkpoint.evolution import WrittenState
from godwit.checkpoint.records import StateId
from godwit.operators.windows.moments import NO_TIME

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from godwit.checkpoint.evolution import StateDescription, StateUpgrade
    from godwit.columns.groups import Groups
    from godwit.operators.windows.moments import OperatorTime
    from godwit.store.schema import StateSchema

__all__ = ["Advance", "KeyedOperator", "MergeableOperator", "Step"]

_STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one lane has for one operator in one epoch.

    Attributes
    ----------
    groups
        Grouping of the rows by key; ``groups.count`` is G, the number of distinct keys.
    keys
        G rows: the key of each group.
    rows
        The raw rows in arrival order (N rows, the operator's ``inputs`` columns), or, where
        `partial`, one partial state per group (G rows, the operator's state columns).
    partial
        Whether `rows` holds partial states. Always false for operators that are not mergeable.
    prior
        G rows of state columns: the committed state of each key. Undefined where not `known`.
    known
        Shape ``(G,)``: whether the key has state.
    time
        The epoch's moments.
    """

    groups: Groups
    keys: pa.RecordBatch
    rows: pa.RecordBatch
    partial: bool
    prior: pa.RecordBatch
    known: npt.NDArray[np.bool_]
    time: OperatorTime = NO_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What an operator made of a `Step`.

    Attributes
    ----------
    state
        G rows of state columns, aligned with ``step.keys``.
    removed
        Shape ``(G,)``: keys whose state is dropped; ``None`` where there are none.
    output
        Any number of rows of the operator's ``output`` schema.
    cpu_ms
        Shape ``(K,)``: CPU time that was measured for each of the K key groups in
        ``step.groups.key_groups``, ascending; ``None`` where the cost of a key does not depend on
        which key it is, so that it may be shared out by rows.
    busy_ms
        Likewise, shape ``(K,)``: time that passed, waiting included.
    """

    state: pa.RecordBatch
    removed: npt.NDArray[np.bool_] | None
    output: pa.RecordBatch
    cpu_ms: npt.NDArray[np.float64] | None = None
    busy_ms: npt.NDArray[np.float64] | None = None


class KeyedOperator(ABC):
    """One keyed operator. Instances are picklable and keep no state between calls.

    Attributes
    ----------
    name
        Unique within the flow.
    inputs
        Columns the operator reads besides the key columns.
    schema
        Columns that tell entries of state apart, which begin with the key columns, and state
        columns.
    output
        Columns of its output: the key columns, then the results.
    complete
        Whether the output of an epoch is every key there is (complete mode) and not only the keys
        that changed (update mode).
    part_of
        Name of the operator that it is a part of, by which users know it; empty if it is none.
    """

    name: str
    part_of: str = ""
    inputs: pa.Schema
    schema: StateSchema
    output: pa.Schema
    complete: bool = False
    function: Any = None
    """Function of the user that it calls, if any."""
    emits: ClassVar[str] = "what the function returns"
    """What comes out in an epoch, for people."""

    def received(self, rows: pa.RecordBatch, given: int) -> pa.RecordBatch:  # noqa: ARG002
        """Give rows that come by one of its inputs the columns that all of them have."""
        return rows

    @abstractmethod
    def advance(self, step: Step) -> Advance:
        """Process one epoch's input of one lane."""

    @property
    def keys(self) -> pa.Schema:
        """Key columns: the first that tell entries apart; their hash chooses the key group."""
        return self.schema.keys

    @property
    def states(self) -> tuple[StateId, ...]:
        """What it keeps: one state, unless the user has named several."""
        return (StateId(self.name, _STATE),)

    def schema_of(self, state: str) -> StateSchema:  # noqa: ARG002
        """Columns of one of its states."""
        return self.schema

    def describe_states(self) -> dict[str, StateDescription]:
        """Say what each of its states looks like."""
        return {_STATE: self.describe_state()}

    def upgrade_from(self, stored: StateDescription) -> StateUpgrade | None:
        """Say how its state becomes today's, if all of it counts; as `upgrade_state_from`."""
        return self.upgrade_state_from(_STATE, WrittenState.of(stored))

    def upgrade_state_from(self, state: str, written: WrittenState) -> StateUpgrade | None:
        """Say how state that was written under another description becomes today's.

        Called once for every flow version that state in the checkpoint was written under, which
        may be several versions back.  Columns are found by name; what an operator has to say of
        its own are values (`values_from`) and what new columns begin with (`new_columns`).

        Returns
        -------
        StateUpgrade or None
            ``None`` if there is nothing to do.

        Raises
        ------
        CheckpointMismatchError
            If such state does not fit; says every difference, and what to do.
        """
        stored, today = written.description, self.describe_states()[state]
        self.insist_on_state(state, stored, today)
        values = self.values_from(state, written)
        live = written.live_in(today)
        as_is = values is None and stored.columns == today.columns
        if as_is and live.issuperset(name for name, _ in today.columns):
            return None
        return ColumnsByName(
            schema=self.schema_of(state).values,
            live=live,
            values=values,
            new=partial(self.new_columns, state),
        )

    def insist_on_state(
        self,
        state: str,  # noqa: ARG002 - for operators of several
        stored: StateDescription,
        today: StateDescription,
    ) -> None:
        """Refuse state that would mean something else; see `insist_on_compatible`."""
        insist_on_compatible(f"operator {self.name!r}", stored, today, operator=self.name)

    def values_from(self, state: str, written: WrittenState) -> StateUpgrade | None:  # noqa: ARG002
        """Say how values become today's; ``None`` if they are as they were.

        Raises
        ------
        CheckpointMismatchError
            If they cannot.
        """
        return None

    def new_columns(self, state: str, count: int) -> pa.RecordBatch:
        """Give state columns of entries that were written when there were none of them."""
        schema = self.schema_of(state).values
        return pa.RecordBatch.from_arrays(
            [pa.nulls(count, field.type) for field in schema], schema=schema
        )

    def needs_state(self, told: OperatorTime) -> bool:
        """Whether no row may wait in an epoch for state that a lane turns out not to have.

        So it is where something is over in the epoch: when the row went on, that would be gone.
        """
        return told.due

    @property
    def unique_keys(self) -> tuple[tuple[str, ...], ...]:
        """Sets of output columns, each of which tells the rows of the result apart, widest first.

        A later row with the same values is the newer state of the same result. None where rows are
        what they are: those that a function emits, pairs of a join.
        """
        return ()

    @property
    def waiting(self) -> pa.Schema:
        """Columns of the rows that wait for it, as they came."""
        keys = self.schema.keys
        others = [field for field in self.inputs if field.name not in keys.names]
        return pa.schema([*keys, *others])

    @property
    @abstractmethod
    def kind(self) -> str:
        """What the user called: ``"compute"`` or ``"process"``."""

    @abstractmethod
    def describe_state(self) -> StateDescription:
        """Say what its state looks like, so that a later program knows what was written."""


class MergeableOperator(KeyedOperator):
    """A keyed operator whose state can be made of partial states, merged in order of arrival.

    Where `complete`, the lane calls `finish` on the whole state.
    """

    @property
    def commutative(self) -> bool:
        """Whether rows may be seen in any order."""
        return False

    @abstractmethod
    def combine(self, groups: Groups, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Aggregate raw rows into one partial state per group (G rows of state columns)."""

    @abstractmethod
    def merge_partials(self, groups: Groups, partials: pa.RecordBatch) -> pa.RecordBatch:
        """Merge partial states (N rows, arrival order) into one per group (G rows)."""

    @abstractmethod
    def finish(self, keys: pa.RecordBatch, state: pa.RecordBatch) -> pa.RecordBatch:
        """Output rows for `keys` with `state`, row by row."""

    @property
    def waiting(self) -> pa.Schema:
        """Columns of the rows that wait for it: partial states, which are small."""
        return pa.schema([*self.schema.keys, *self.schema.values])
