"""Initial state: version 0 of a new checkpoint, written from rows of its operators' states.

Problem: a flow may begin with the state of another program (a table of totals, another query, a
stopped Spark query), which may be larger than the driver's memory.

The rows of a state come in batches, in any order.  They are converted to entries, hashed, and, once
they exceed `MAX_BYTES`, spilled to files on the driver's disk, each for a range of key groups.
Then, range by range, they are ordered by key and written as one snapshot per key group.  One commit
record without input, epoch 0, names them, the positions of sources and the watermarks; every later
step is that of a recovery.

Invariant: the commit of epoch 0 makes the state; a start that fails before it claims nothing, and
the next one begins again.  The identity of the checkpoint says that it began with state.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from godwit.checkpoint.blocks import BlockWriter, encode_batch
from godwit.checkpoint.entries import in_utc, pack_entries
from godwit.checkpoint.records import BROADCAST, CommitRecord, SnapshotRef, StateId
from godwit.columns.groups import group_rows
from godwit.columns.hashing import canonical_keys
from godwit.columns.python_values import rows_as_tuples
from godwit.columns.tables import is_pandas, micros
from godwit.columns.types import columns_text
from godwit.model.errors import CheckpointMismatchError, InvalidInputError
from godwit.model.key_groups import key_groups_of
from godwit.model.naming import did_you_mean, listing, type_name
from godwit.plan.compiled import UpstreamInput
from godwit.store.changes import StateRows
from godwit.store.columns import take_rows

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator
    from typing import Self

    import numpy.typing as npt

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.records import BatchRef, FlowIdentity
    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow


MAX_BYTES: Final = 128 * 2**20
"""Bytes of a state's entries that the driver has in memory at a time, roughly."""
_REPORT_S: Final = 5.0
_logger = logging.getLogger("godwit")


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialRows:
    """Rows of one state: their columns, and a function that yields them in batches."""

    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialPosition:
    """Positions of sources, and the event time, with which a flow begins with state."""

    batch: BatchRef | None = None  # last batch of the sources whose rows are in the state
    # event time in microseconds up to which windows have been emitted and timers have fired
    watermark_us: int | None = None
    # that of the last batch before: rows are late by it; by default `watermark_us`
    closed_us: int | None = None
    batches_before: int = 0  # batches that the query had before, of which its numbers continue
    # source → watermark, where it is not `watermark_us`
    watermarks: Mapping[str, int] = field(default_factory=dict)
    # writes what sources need beside the record, before it is committed
    prepare: Callable[[CheckpointStorage], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialState:
    """State that a flow begins with, where its checkpoint has no epoch yet."""

    rows: Mapping[StateId, InitialRows]
    position: InitialPosition = field(default_factory=InitialPosition)
    origin: str = "initial="  # where it is from, as text
    max_bytes: int = MAX_BYTES

    @property
    def digest(self) -> str:
        """Digest of the states and their columns, and of the origin; not of the rows."""
        texts = [self.origin]
        texts += [
            f"{state}: {columns_text(self.rows[state].schema)}" for state in sorted(self.rows)
        ]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenInitialState:
    """Entries of one state that a flow began with."""

    state: StateId
    entries: int
    size_bytes: int
    duration_s: float


def check_begins_with(stored: FlowIdentity, initial: InitialState, uri: str) -> None:
    """Raise if a checkpoint with epochs began without this state, or with another one."""
    if stored.initial != initial.digest:
        began = "with another state" if stored.initial else "without state"
        raise CheckpointMismatchError(
            f"The checkpoint {uri!r} has epochs, and began {began}: state can only be given to a "
            "new checkpoint.",
            remedy="Leave the initial state out to go on from the checkpoint, or start with a new "
            "checkpoint.",
            uri=uri,
        )


def write_initial_state(
    flow: CompiledFlow, log: CommitLog, initial: InitialState
) -> tuple[WrittenInitialState, ...]:
    """Commit epoch 0 with the given state; `log`: open under the flow's version, without epochs.

    Raises `InvalidInputError` if rows do not fit their state, or a key is given twice.
    """
    check_states(flow, initial)
    written: list[WrittenInitialState] = []
    refs: list[partial[SnapshotRef]] = []
    with BlockWriter(log.storage, epoch=0, name="initial-state") as writer:
        for state in sorted(initial.rows):
            began_s, count, size = time.monotonic(), 0, 0
            operator = flow.operator(state.operator)
            for key_group, entries in _entries_by_key_group(
                operator, state, initial.rows[state], flow.num_key_groups, initial.max_bytes
            ):
                block = encode_batch(pack_entries(entries))
                writer.add(block)
                count, size = count + len(entries.hashes), size + block.size
                refs.append(
                    partial(
                        SnapshotRef,
                        operator=state.operator,
                        state=state.state,
                        flow=log.flow,
                        key_group=key_group,
                        version=0,
                        rows=len(entries.hashes),
                    )
                )
            seconds = time.monotonic() - began_s
            written.append(
                WrittenInitialState(state=state, entries=count, size_bytes=size, duration_s=seconds)
            )
        blocks = writer.close()
    position = initial.position
    position.prepare(log.storage)
    passed = position.watermark_us
    closed = passed if position.closed_us is None else position.closed_us
    names = [] if passed is None else [name for names in flow.watermarks for name in names]
    timed = [o for o in flow.operators if o.over_event_time or o.has_timers]
    behind = _delays(flow)
    log.commit(
        CommitRecord(
            epoch=0,
            run_id="",
            before=position.batch,
            snapshots=tuple(ref(block=block) for ref, block in zip(refs, blocks, strict=True)),
            watermarks={**dict.fromkeys(names, passed or 0), **position.watermarks},
            expired={}
            if closed is None
            else {str(o.states[0]): closed - behind[o.name] for o in timed},
        )
    )
    return tuple(written)


def _delays(flow: CompiledFlow) -> dict[str, int]:
    """Return how far each operator's watermark is behind its sources', in microseconds."""
    delays: dict[str, int] = {}
    emitted: dict[str, int] = {}
    for operator in flow.operators:
        delay = delays[operator.name] = max(
            (
                emitted.get(edge.upstream, 0) + edge.delay_us
                for edge in flow.inputs_of(operator.name)
                if isinstance(edge, UpstreamInput)
            ),
            default=0,
        )
        emitted[operator.name] = delay + operator.output_delay_us
    return delays


def check_states(flow: CompiledFlow, initial: InitialState) -> None:
    """Raise if the flow lacks an operator or a state that is given, or cannot begin with it."""
    operators = {operator.name: operator for operator in flow.operators if not operator.part_of}
    for state in initial.rows:
        operator = operators.get(state.operator)
        if operator is None:
            raise InvalidInputError(
                f"Initial state is given for {state.operator!r}, which is not an operator.",
                remedy=f"{did_you_mean(state.operator, [*operators])}Its operators are "
                f"{listing(operators)}.",
                operator=state.operator,
            )
        names = [own.state for own in operator.states if _can_begin(operator, own.state)]
        if state.state not in names:
            raise InvalidInputError(
                f"Operator {state.operator!r} cannot begin with a state {state.state!r}.",
                remedy=f"It can begin with {listing(names) or 'no state'}; several are given as "
                "a dict: state → rows.",
                operator=state.operator,
                state=state.state,
            )


def _can_begin(operator: KeyedOperator, state: str) -> bool:
    """Return whether rows can be given for a state: not for tables and parts of hot keys."""
    return not (operator.stateless or state.startswith(BROADCAST) or state in operator.part_states)


def _entries_by_key_group(
    operator: KeyedOperator,
    state: StateId,
    rows: InitialRows,
    num_key_groups: int,
    max_bytes: int,
) -> Iterator[tuple[int, StateRows]]:
    """Yield each key group that has entries, ascending, with these, ordered by key."""
    with EntrySpool(num_key_groups, max_bytes) as spool:
        reported_s, count = time.monotonic(), 0
        for batch in rows.batches():
            if not batch.num_rows:
                continue
            keys, values = operator.initial_entries(state.state, batch)
            keys = canonical_keys(in_utc(keys))
            hashes = operator.hash_of(keys, num_key_groups)
            spool.add(StateRows(hashes=hashes, keys=keys, values=in_utc(values)))
            count += batch.num_rows
            if time.monotonic() - reported_s > _REPORT_S:
                reported_s = time.monotonic()
                _logger.info("initial state of %s: %d rows read", state, count)
        for entries in spool.ranges():
            yield from _grouped(operator, state, entries, num_key_groups)


def _grouped(
    operator: KeyedOperator, state: StateId, entries: StateRows, num_key_groups: int
) -> Iterator[tuple[int, StateRows]]:
    """Yield the entries of some key groups by key group; raise if two are of one key."""
    key_groups, entries = by_key_group(entries, num_key_groups)
    entries = operator.complete_entries(state.state, entries)
    groups = group_rows(entries.hashes, entries.keys, num_key_groups, len(operator.hash_columns))
    if groups.count < len(entries.hashes):
        first = np.zeros(len(entries.hashes), np.bool_)
        first[groups.first_row] = True
        row = int(np.flatnonzero(~first)[0])
        (key,) = rows_as_tuples(entries.keys.select(operator.user_keys.names).slice(row, 1))
        raise InvalidInputError(
            f"The initial state of operator {state.operator!r} has two rows of key {key!r}.",
            remedy="Give one row for every key (and pane or window), as gw.read_state shows them.",
            operator=state.operator,
            key=key,
        )
    yield from slices_of(key_groups, entries)


_ROWS: Final = 1 << 17
"""Rows that are converted at a time."""


def initial_state_of(
    given: Any,
    watermark: dt.datetime | str | None,
    flow: CompiledFlow,
    # returns the rows of a value that only the caller knows, such as a DataFrame; or ``None``
    known: Callable[[Any], InitialRows | None] = lambda _: None,
) -> InitialState | None:
    """Return the state that ``initial=`` gives for operators of a flow; ``None`` if it gives none.

    Raises `InvalidInputError` if it is not a mapping of operators to rows, or to states and rows.
    """
    if given is None or isinstance(given, InitialState):
        if watermark is not None:
            raise InvalidInputError(
                "The option initial_watermark was given without initial.",
                remedy="Give the state that it belongs to, or leave it out.",
            )
        return given
    if not isinstance(given, Mapping):
        raise InvalidInputError(
            f"The option initial is of type {type_name(given)}.",
            remedy='Give operator → rows of its state, as in initial={"totals": table}.',
        )
    operators = {operator.name: operator for operator in flow.operators}
    rows: dict[StateId, InitialRows] = {}
    for name, value in given.items():
        if isinstance(value, Mapping) and not is_pandas(value):
            rows.update(
                (StateId(name, state), _rows_of(name, value_, known))
                for state, value_ in value.items()
            )
            continue
        states = [state_.state for state_ in operators[name].states] if name in operators else []
        if len(states) > 1:
            raise InvalidInputError(
                f"Operator {name!r} has the states {listing(states)}, and initial= one table.",
                remedy=f'Give a table for each: initial={{"{name}": {{"{states[-1]}": table}}}}.',
                operator=name,
            )
        rows[StateId(name, states[0] if states else "state")] = _rows_of(name, value, known)
    watermark_us = None if watermark is None else micros(watermark, "initial_watermark")
    return InitialState(rows=rows, position=InitialPosition(watermark_us=watermark_us))


def _rows_of(operator: str, value: Any, known: Callable[[Any], InitialRows | None]) -> InitialRows:
    """Return the rows of one state; raise if a value has no rows."""
    rows = known(value)
    if rows is not None:
        return rows
    if callable(getattr(value, "to_pyarrow_dataset", None)):  # a table of deltalake
        value = value.to_pyarrow_dataset()
    if isinstance(value, str | os.PathLike):
        import pyarrow.dataset  # noqa: PLC0415  loads Arrow's file formats

        _check_files_alone(operator, value)
        try:
            data = pyarrow.dataset.dataset(value, format="parquet")
        except (OSError, pa.ArrowException) as error:
            raise InvalidInputError(
                f"The initial state of operator {operator!r} cannot be read from "
                f"{os.fspath(value)!r}: {error}.",
                remedy="Give a directory or file in the Parquet format.",
                operator=operator,
            ) from error
        return InitialRows(schema=data.schema, batches=partial(data.to_batches, batch_size=_ROWS))
    if hasattr(value, "schema") and hasattr(value, "scanner"):  # a dataset of Arrow
        return InitialRows(schema=value.schema, batches=partial(value.to_batches, batch_size=_ROWS))
    if isinstance(value, pa.RecordBatch):
        value = pa.Table.from_batches([value])
    elif is_pandas(value):
        value = pa.Table.from_pandas(value, preserve_index=False)
    elif isinstance(value, Sequence) and all(isinstance(row, Mapping) for row in value):
        value = pa.Table.from_pylist(list(value))
    if not isinstance(value, pa.Table):
        raise InvalidInputError(
            f"The initial state of operator {operator!r} is of type {type_name(value)}.",
            remedy="Give a pyarrow.Table, a DataFrame, a list of dicts, a dataset of Arrow, a "
            "deltalake.DeltaTable, or a Parquet directory.",
            operator=operator,
        )
    return InitialRows(schema=value.schema, batches=partial(_batches_of, value))


_TABLES: Final = {
    "_delta_log/*": ("Delta", "deltalake.DeltaTable(path)"),
    "_spark_metadata/*": ("Spark's file sink", "spark.read.parquet(path)"),
    "metadata/*.metadata.json": ("Iceberg", "pyiceberg's table.scan().to_arrow()"),
}
"""Files that say which files of a table count → whose it is, and what reads the table."""


def _check_files_alone(operator: str, path: str | os.PathLike[str]) -> None:
    """Raise if not all files of a directory count, since it is a table with a log."""
    for name, (kind, reader) in _TABLES.items():
        if next(Path(path).glob(name), None) is not None:
            raise InvalidInputError(
                f"The initial state of operator {operator!r} is to be read from "
                f"{os.fspath(path)!r}, which is a table of {kind}: files count only if its log "
                "names them.",
                remedy=f"Give the table: {reader}.",
                operator=operator,
            )


def _batches_of(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table in batches."""
    yield from table.to_batches(max_chunksize=_ROWS)


_RANGES: Final = 64


def by_key_group(
    entries: StateRows, num_key_groups: int
) -> tuple[npt.NDArray[np.int32], StateRows]:
    """Return entries, without removals, in the order of their key groups, and these."""
    key_groups = key_groups_of(entries.hashes, num_key_groups)
    order = np.argsort(key_groups, kind="stable")
    ordered = StateRows(
        hashes=entries.hashes[order],
        keys=take_rows(entries.keys, order),
        values=take_rows(entries.values, order),
    )
    return key_groups[order], ordered


def slices_of(
    key_groups: npt.NDArray[np.int32], entries: StateRows
) -> Iterator[tuple[int, StateRows]]:
    """Yield each key group with its entries, as `by_key_group` orders them."""
    starts = [*np.flatnonzero(np.diff(key_groups, prepend=-1)).tolist(), len(key_groups)]
    for start, end in pairwise(starts):
        yield (
            int(key_groups[start]),
            StateRows(
                hashes=entries.hashes[start:end],
                keys=entries.keys.slice(start, end - start),
                values=entries.values.slice(start, end - start),
            ),
        )


class EntrySpool:
    """Entries in memory, or, once they are too many, in files by ranges of key groups.

    An epoch that writes a whole state (`godwit.engine.repartition`, too) gets its entries in any
    order, and they may be larger than memory. They are added in batches; once they exceed a limit,
    they are written to files, each for a range of key groups, and come back range by range.
    """

    def __init__(self, num_key_groups: int, max_bytes: int) -> None:
        self._width = -(-num_key_groups // min(_RANGES, num_key_groups))
        self._num_key_groups, self._max_bytes = num_key_groups, max_bytes
        self._parts: list[StateRows] = []
        self._bytes = 0
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._files: dict[int, pa.ipc.RecordBatchFileWriter] = {}
        self._num_keys = 0

    def add(self, entries: StateRows) -> None:
        """Add entries; write all to files if they exceed the limit."""
        self._num_keys = entries.keys.num_columns
        self._parts.append(entries)
        self._bytes += entries.hashes.nbytes + entries.keys.nbytes + entries.values.nbytes
        if self._bytes > self._max_bytes:
            self._spill()

    def ranges(self) -> Iterator[StateRows]:
        """Yield all entries, by ranges of key groups, ascending."""
        if self._directory is None:
            if self._parts:
                yield StateRows.concat(self._parts)
            return
        self._spill()
        for number, file in sorted(self._files.items()):
            file.close()
            with pa.memory_map(str(self._path(number))) as mapped:
                table = pa.ipc.open_file(mapped).read_all().combine_chunks()
                (batch,) = table.to_batches()
                columns, names = batch.columns, batch.schema.names
                end = 1 + self._num_keys
                yield StateRows(
                    hashes=columns[0].to_numpy(),
                    keys=pa.RecordBatch.from_arrays(columns[1:end], names[1:end]),
                    values=pa.RecordBatch.from_arrays(columns[end:], names[end:]),
                )
            self._path(number).unlink()

    def _path(self, number: int) -> Path:
        """Return the file of a range of key groups."""
        assert self._directory is not None, "entries were written"
        return Path(self._directory.name) / f"{number}.arrow"

    def _spill(self) -> None:
        """Write the entries in memory to files."""
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="godwit-initial-")
        if not self._parts:
            return
        entries = StateRows.concat(self._parts)
        self._parts, self._bytes = [], 0
        ranges = key_groups_of(entries.hashes, self._num_key_groups) // self._width
        order = np.argsort(ranges, kind="stable")
        batch = take_rows(pack_entries(entries), order)
        starts = np.flatnonzero(np.diff(ranges[order], prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
            number = int(ranges[order[start]])
            file = self._files.get(number)
            if file is None:
                file = self._files[number] = pa.ipc.new_file(self._path(number), batch.schema)
            file.write_batch(batch.slice(start, end - start))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        if self._directory is not None:
            self._directory.cleanup()
