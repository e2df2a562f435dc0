"""State of an operator at a committed epoch as readable rows, from the checkpoint alone.

A query need not run, and a running one is not affected: committed state never changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from godwit.checkpoint.blocks import read_batch
from godwit.checkpoint.collection import reading_while_collected
from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.entries import (
    BatchCache,
    ColumnsByName,
    EntryLayout,
    Former,
    in_utc,
    read_chain,
)
from godwit.checkpoint.evolution import description_in
from godwit.checkpoint.records import StateId
from godwit.columns.arrays import values_of
from godwit.columns.types import visible_names
from godwit.library.parts import PART_FIELD
from godwit.library.process import columns_beside_state
from godwit.library.states.stored import PAGE
from godwit.library.windows.compute import SPAN
from godwit.library.windows.operator import first_needed_pane
from godwit.model.errors import CheckpointError
from godwit.model.naming import RESERVED_PREFIX, did_you_mean, listing
from godwit.operators.aggregate import HIGH
from godwit.operators.declared import TIMERS, part_state_of
from godwit.operators.hot_keys import PART
from godwit.store.changes import EntryRange
from godwit.store.columns import StateSchema
from godwit.time.grid import BEGINNING
from godwit.values.values import state_as_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from godwit.checkpoint.chains import Chains, KeyGroupChain
    from godwit.checkpoint.evolution import StateDescription, WrittenState
    from godwit.checkpoint.records import CommitRecord
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.store.changes import StateRows


class NoStateError(CheckpointError):
    """The operator has no state yet, or nothing is committed."""


class UnknownStateError(CheckpointError):
    """There is no such operator, or it has no state of that name."""


class SeveralStatesError(CheckpointError):
    """The operator has several states, but the request selects none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReader:
    """State of one operator at one epoch; picklable, so that executors can read it."""

    storage: CheckpointStorage
    state: StateId  # the state that was asked for, which may be stored in parts
    chains: tuple[KeyGroupChain, ...]  # of the key groups that have state
    layouts: Mapping[StateId, EntryLayout]
    live: EntryRange | None  # panes that some open window needs; None for state without panes
    described: StateDescription
    shown: _Shown
    num_keys: int  # key columns
    # keys may have parts, each of which is a row; the part of an undivided key is null
    in_parts: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows that `read` returns."""
        return self.shown.schema

    def of_whole_keys(self, stored: StateSchema) -> StateReader:
        """Return the reader for entries whose parts were put together, with these columns."""
        shown = _Shown.of(self.described, stored, self.num_keys)
        return replace(self, shown=shown, in_parts=False)

    def read(self, chain: KeyGroupChain, cache: BatchCache) -> pa.RecordBatch:
        """Return the entries of one key group, as shown to users."""
        with reading_while_collected(self.storage):
            rows = read_chain(self.storage, chain, self.layouts[chain.state], cache=cache)
        rows = rows if self.live is None else rows.take(self.live.positions(rows.keys))
        rows = without_derived(rows)
        if self.in_parts and PART not in rows.keys.schema.names:
            rows = replace(rows, keys=with_null_part(rows.keys, self.num_keys))
        return self.shown(chain.key_group, rows)


def shown_at(view: StateReader, record: CommitRecord, rows: StateRows) -> pa.RecordBatch:
    """Return entries, as of the epoch of a commit record, as shown to users; key groups are 0."""
    if view.live is not None:
        closed = record.expired.get(str(view.state), BEGINNING)
        first = first_needed_pane(view.described, closed)
        assert first is not None, "the state has panes"
        rows = rows.take(replace(view.live, first=first).positions(rows.keys))
    return view.shown(0, without_derived(rows))


def view_state(
    storage: CheckpointStorage, operator: str, epoch: int | None, state: str | None
) -> StateReader:
    """Return a reader of an operator's state; see `godwit.read_state` for parameters and errors."""
    return view_of(CommitLog.open_read_only(storage), operator, epoch, state)


def state_table(
    storage: CheckpointStorage, operator: str, epoch: int | None, state: str | None
) -> pa.Table:
    """Return an operator's state, as `view_state` reads it; an empty table if it has none yet."""
    try:
        view = view_state(storage, operator, epoch, state)
    except NoStateError:
        return pa.table({})
    cache = BatchCache(storage)
    return pa.Table.from_batches([view.read(chain, cache) for chain in view.chains], view.schema)


def view_of(log: CommitLog, operator: str, epoch: int | None, state: str | None) -> StateReader:
    """Return a reader of an operator's state by an open log; see `view_state`."""
    storage = log.storage
    if log.latest_epoch < 0:
        raise NoStateError(
            f"No epoch is committed yet in the checkpoint {storage.uri!r}.",
            remedy="Read its state once the query has committed an epoch.",
        )
    with reading_while_collected(storage):
        chains = log.chains if epoch is None else log.chains_at(epoch)
    version = log.version(chains.flow)
    described_operator = version.operator(operator)
    if described_operator is None:
        known = [*version.operators, *version.retained]
        raise UnknownStateError(
            f"The checkpoint {storage.uri!r} has no operator {operator!r}.",
            remedy=f"{did_you_mean(operator, known)}Its operators are {listing(known)}.",
        )
    described = described_operator.states
    state_id = _state_id(
        operator, state, [name for name in described if not _has_parts(described[name])]
    )
    states = [state_id]
    part_state = part_state_of(state_id.state)
    parts = [StateId(operator, part_state)] if _has_parts(described.get(part_state)) else []
    states += [
        StateId(part, state_id.state)
        for part in version.parts_of(operator)
        if (part_version := version.operator(part)) is not None
        and part_version.kind == described_operator.kind
    ]
    all_chains = (
        chains.chain(state_, key_group)
        for state_ in (*states, *parts)
        for key_group in range(chains.num_key_groups)
    )
    with_state = [chain for chain in all_chains if chain.snapshot is not None or chain.segments]
    if not with_state:
        raise NoStateError(
            f"Operator {operator!r} has no state in the checkpoint {storage.uri!r}.",
            remedy="Read it once the operator has processed rows.",
        )
    described_as, num_keys = described_operator.states[state_id.state], len(described_operator.keys)
    entries = num_keys + len(described_as.entries)
    with reading_while_collected(storage):
        states_with_entries = {chain.state for chain in with_state}
        layouts = _layouts_without_flow(log, chains, states_with_entries - {*parts}, entries)
        layouts |= _layouts_without_flow(log, chains, states_with_entries & {*parts}, entries + 1)
    stored = next(iter(layouts.values())).schema
    if parts and PART not in stored.keys.names:
        no_keys = pa.RecordBatch.from_pylist([], schema=stored.keys)
        stored = StateSchema(with_null_part(no_keys, num_keys).schema, stored.values)
    shown = _Shown.of(described_as, stored, num_keys + len(parts))
    live = _live_panes(log, chains.epoch, state_id, described_as, num_keys)
    return StateReader(
        storage=storage,
        state=state_id,
        chains=tuple(with_state),
        layouts=layouts,
        live=live,
        described=described_as,
        shown=shown,
        num_keys=num_keys,
        in_parts=bool(parts),
    )


def without_derived(rows: StateRows) -> StateRows:
    """Return entries without retained closed windows, which other entries imply."""
    if SPAN not in rows.keys.schema.names:
        return rows
    return rows.take(np.flatnonzero(values_of(rows.keys.column(SPAN)) >= 0))


def _has_parts(described_as: StateDescription | None) -> bool:
    """Return true if a state stores parts of hot keys; see `godwit.library.parts`."""
    return described_as is not None and [name for name, _ in described_as.entries][:1] == [PART]


def with_null_part(keys: pa.RecordBatch, num_keys: int) -> pa.RecordBatch:
    """Return the key columns of undivided keys with a null column for the part."""
    none = pa.nulls(keys.num_rows, PART_FIELD.type)
    columns, fields = keys.columns, list(keys.schema)
    return pa.RecordBatch.from_arrays(
        [*columns[:num_keys], none, *columns[num_keys:]],
        schema=pa.schema([*fields[:num_keys], PART_FIELD, *fields[num_keys:]]),
    )


def _layouts_without_flow(
    log: CommitLog, chains: Chains, states: Iterable[StateId], num_keys: int
) -> dict[StateId, EntryLayout]:
    """Return layouts for reading states without the flow: all columns ever written, as written.

    Columns that a flow version did not have, or that were dropped since, are null there.
    `num_keys`: of the first columns, which are the key.
    """
    written: dict[StateId, dict[int, WrittenState]] = {}
    schemas: list[tuple[int, WrittenState, pa.Schema]] = []
    for state in sorted(states):
        blocks = {segment.flow: segment.block for segment in chains.segments(state)}
        blocks.update((snapshot.flow, snapshot.block) for snapshot in chains.snapshots(state))
        written[state] = {}
        for flow, block in blocks.items():
            versions = log.versions_since(flow)
            described = description_in(versions, chains.flow, state.operator, state.state, flow)
            assert described is not None, "the version that wrote a state describes it"
            written[state][flow] = described
            schemas.append((flow, described, in_utc(read_batch(log.storage, block)).schema))
    keys: pa.Schema = pa.schema([])
    fields: dict[str, pa.Field] = {}
    for _, described, columns in sorted(schemas, key=lambda written: -written[0]):
        first_value = 1 + num_keys
        keys = pa.schema(list(columns)[1:first_value])
        for field in list(columns)[first_value : first_value + len(described.description.columns)]:
            if field.name in described.live:
                fields.setdefault(field.name, field)
    schema = StateSchema(keys, pa.schema(fields.values()))
    return {
        state: EntryLayout(
            name=str(state),
            schema=schema,
            former={
                flow: Former(
                    columns=described.description.columns,
                    upgrade=ColumnsByName(schema=schema.values, live=described.live),
                )
                for flow, described in descriptions.items()
            },
        )
        for state, descriptions in written.items()
    }


def _live_panes(
    log: CommitLog, epoch: int, state: StateId, described_as: StateDescription, num_keys: int
) -> EntryRange | None:
    """Return the range of panes that open windows need; ``None`` for state without panes."""
    closed = log.record(epoch).expired.get(str(state), BEGINNING)
    first = first_needed_pane(described_as, closed)
    return None if first is None else EntryRange(column=num_keys, first=first)


def _state_id(operator: str, state: str | None, states: list[str]) -> StateId:
    """Return the id of the requested state, by default the only one; raise if it does not exist."""
    if state is None and len(states) == 1:
        return StateId(operator, states[0])
    if state not in states:
        problem = "has several states" if state is None else f"has no state {state!r}"
        kind = SeveralStatesError if state is None else UnknownStateError
        raise kind(
            f"Operator {operator!r} {problem}.",
            remedy=f"Pass state=; its states are {listing(states)}.",
            operator=operator,
        )
    return StateId(operator, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """Converts entries of a state to readable rows."""

    schema: pa.Schema  # of the rows
    readable: bool  # the state has values that can be shown as text
    timers: bool  # the state has only timers
    page: int | None  # column with the kind of an entry of a list or map; None for other states
    is_map: bool  # its entries are items of a map
    hidden: frozenset[int]  # positions of identity columns that are not shown

    @classmethod
    def of(cls, described_as: StateDescription, stored: StateSchema, num_keys: int) -> _Shown:
        """Return the conversion of a state; `num_keys`: number of its key columns."""
        readable = described_as.codec == "msgpack"
        timers = not readable and stored.values.names == [TIMERS, "due"]
        page = num_keys if PAGE in (name for name, _ in described_as.entries) else None
        is_map = page is not None and len(described_as.entries) > 1
        visible = visible_names(stored.keys.names)
        hidden = [
            position for position, name in enumerate(stored.keys.names) if name not in visible
        ]
        if is_map and page is not None:
            hidden.append(page)
        keys = [
            _shown_name(field_, stored)
            for position, field_ in enumerate(stored.keys)
            if position not in hidden
        ]
        values = [
            _shown_name(field, stored) for field in stored.values if not field.name.startswith(HIGH)
        ]
        if readable or timers:
            no_rows = pa.RecordBatch.from_arrays(
                [pa.array([], field_.type) for field_ in stored.values], schema=stored.values
            )
            value_fields = [] if timers else [pa.field(stored.values[0].name, pa.string())]
            values = [*value_fields, *(field for field, _ in columns_beside_state(no_rows))]
        return cls(
            schema=pa.schema([pa.field("key_group", pa.int32()), *keys, *values]),
            readable=readable,
            timers=timers,
            page=page,
            is_map=is_map,
            hidden=frozenset(hidden),
        )

    def __call__(self, key_group: int, rows: StateRows) -> pa.RecordBatch:
        """Return the entries of a key group as rows."""
        if self.page is not None:
            pages = rows.keys.column(self.page).to_numpy()
            rows = rows.take(np.flatnonzero(pages == -1 if self.is_map else pages >= 0))
        keys = [column for i, column in enumerate(rows.keys.columns) if i not in self.hidden]
        values: list[Any] = _without_high(rows.values)
        if self.readable or self.timers:
            values = [array for _, array in columns_beside_state(rows.values)]
        if self.readable:
            blobs = rows.values.column(0).to_pylist()
            texts = [None if blob is None else state_as_json(blob) for blob in blobs]
            if self.is_map:  # an item is written as a list of one
                texts = [None if text is None else text[1:-1] for text in texts]
            values = [pa.array(texts, pa.string()), *values]
        key_groups = pa.array([key_group] * len(rows.hashes), pa.int32())
        return pa.RecordBatch.from_arrays([key_groups, *keys, *values], schema=self.schema)


def _without_high(values: pa.RecordBatch) -> list[pa.Array]:
    """Return state columns without those for sums that do not fit; such sums become null."""
    columns = dict(zip(values.schema.names, values.columns, strict=True))
    wide = [name for name in columns if name.startswith(HIGH)]
    for high in wide:
        result = high.removeprefix(f"{HIGH}_")
        low = result if result in columns else f"{result}__sum"
        if columns[high].null_count < len(values):
            columns[low] = pc.if_else(columns[high].is_null(), columns[low], None)
    return [column for name, column in columns.items() if name not in wide]


def _shown_name(field: pa.Field, schema: StateSchema) -> pa.Field:
    """Return a column without Godwit's prefix in its name, unless that name is in use."""
    name = field.name.removeprefix(f"{RESERVED_PREFIX}_")
    taken = {*schema.keys.names, *schema.values.names}
    return field if name in taken else field.with_name(name)
