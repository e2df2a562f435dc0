"""Lineage: layouts by which operators read what earlier flow versions wrote.

Problem: a checkpoint's segments, snapshots and waiting rows were written under several flow
versions, and lanes read all of them as state and rows of today.

Each operator says for itself how its state is brought forward (`KeyedOperator.upgrade_state_from`).
Rows that wait for an operator that aggregates are partial states, and are brought forward in the
same way; those of any other operator are its input rows, matched by name, on their way to entries
that must mean the same.

Names tell operators and sides apart, and a program may swap two names.  The digests of
`digest_of_branches` show that: each name then has the digest that the other had.  A digest that is
merely new shows nothing, since code changes.
"""

from __future__ import annotations

import functools
import hashlib
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from godwit.checkpoint.entries import ColumnsByName, EntryLayout, Former, WaitingLayout
from godwit.checkpoint.evolution import (
    FlowVersion,
    OperatorVersion,
    changed_columns,
    changed_meaning,
    columns_of,
    description_in,
    mismatch_error,
)
from godwit.checkpoint.records import StateId
from godwit.model.errors import CheckpointMismatchError, CorruptCheckpointError
from godwit.plan.compiled import SourceInput
from godwit.plan.maps import ArrowMap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from godwit.checkpoint.commit_log import CommitLog
    from godwit.checkpoint.evolution import FlowChanges, StateUpgrade, WrittenState
    from godwit.checkpoint.records import SegmentRef
    from godwit.operators.operator import KeyedOperator
    from godwit.plan.compiled import CompiledFlow

    Layouts: TypeAlias = Mapping[str, tuple[Mapping[str, EntryLayout], WaitingLayout]]


def flow_version(flow: CompiledFlow) -> FlowVersion:
    """Return a flow's operators, sinks and sources as its checkpoint describes them."""
    return FlowVersion(
        operators={operator.name: _operator_version(operator, flow) for operator in flow.operators},
        sinks={output.name: columns_of(output.schema) for output in flow.outputs},
        sources=tuple(sorted(set(flow.sources) - flow.own_sources.keys())),
        times={source: flow.times[source].column for source in sorted(flow.times)},
    )


def _operator_version(operator: KeyedOperator, flow: CompiledFlow) -> OperatorVersion:
    """Return an operator, with the schemas of its states, as the checkpoint describes it."""
    return OperatorVersion(
        kind=operator.kind,
        keys=columns_of(operator.keys),
        states=operator.describe_states(),
        partition_by=operator.partition_by,
        waiting=columns_of(operator.waiting_schema),
        formerly=flow.formerly.get(operator.name, ""),
        named=operator.name not in flow.unnamed,
        part_of=operator.part_of,
        origin=_digest_of_operator(operator, flow),
        reads_changes=_changes_read(operator, flow),
        readers=_readers_of_operator(operator, flow),
        deletes=operator.deletes,
    )


def _readers_of_operator(operator: KeyedOperator, flow: CompiledFlow) -> tuple[str, ...]:
    """Return the sinks, loops and operators that read an operator, or the whole it is part of."""

    def whole(name: str) -> str:
        return flow.operator(name).part_of or name

    own = whole(operator.name)
    return tuple(
        sorted(
            {f"sink {edge.name}" for edge in flow.outputs if whole(edge.operator) == own}
            | {f"loop {edge.loop}" for edge in flow.feedbacks if whole(edge.operator) == own}
            | {
                f"operator {whole(edge.operator)}"
                for edge in flow.inputs
                if not isinstance(edge, SourceInput) and whole(edge.upstream) == own
            }
            - {f"operator {own}"}
        )
    )


def _changes_read(operator: KeyedOperator, flow: CompiledFlow) -> tuple[str, ...]:
    """Return the operators whose output of changes (before, after) an operator reads."""
    loops = {feedback.loop: feedback.operator for feedback in flow.feedbacks}
    senders = {
        loops.get(feed.source) if isinstance(feed, SourceInput) else feed.upstream
        for feed in flow.inputs_of(operator.name)
    }
    return tuple(sorted(name for name in senders if name and flow.operator(name).changes))


def _digest_of_operator(operator: KeyedOperator, flow: CompiledFlow) -> str:
    """Return a digest of the maps, upstream names and function of an operator."""
    inputs = [
        (feed.source, [m.function if isinstance(m, ArrowMap) else m for m in feed.maps])
        if isinstance(feed, SourceInput)
        else (feed.upstream, feed.maps)
        for feed in flow.inputs_of(operator.name)
    ]
    return digest_of_branches([*inputs, ("", [operator.function])])


def layouts_of(flow: CompiledFlow, stored: CommitLog | None, changes: FlowChanges) -> Layouts:
    """Return operator → layouts to read its stored states, and rows that wait for state.

    `stored`: the flow's checkpoint; ``None`` if it is new. `changes`: differences to the stored
    flow. Raises `CheckpointMismatchError` if stored state or waiting rows do not fit.
    """
    before = {new: old for old, new in changes.renamed.items()}
    return {
        operator.name: (
            {
                state.state: _state_layout(
                    operator, state, before.get(operator.name, operator.name), log
                )
                for state in operator.states
            },
            _waiting_layout(operator, before.get(operator.name, operator.name), log),
        )
        for operator in flow.operators
        for log in [None if operator.name in changes.added else stored]
    }


def _state_layout(
    operator: KeyedOperator, state: StateId, before: str, log: CommitLog | None
) -> EntryLayout:
    """Return the layout to read a state; `before`: its operator's name in the checkpoint."""
    former: dict[int, Former] = {}
    if log is not None:
        stored = StateId(before, state.state)
        former = _former_layouts(operator, stored, log, log.chains.flows_of(stored))
    return EntryLayout(name=str(state), schema=operator.schema_of(state.state), former=former)


def _former_layouts(
    operator: KeyedOperator, stored: StateId, log: CommitLog, flows: Iterable[int]
) -> dict[int, Former]:
    """Return flow version → layout of a state written under it, if that differs from today's."""
    former = {}
    versions = log.versions_since(min(flows, default=log.flow))
    today = columns_of(operator.schema_of(stored.state).values)
    for flow in sorted(flows):
        with _naming_version(flow, stored):
            written = _written_state(versions, log, stored, flow)
            upgrade = operator.upgrade_state_from(stored.state, written)
        if upgrade is not None or written.description.columns != today:
            former[flow] = Former(columns=written.description.columns, upgrade=upgrade)
    return former


def _written_state(
    versions: Mapping[int, FlowVersion], log: CommitLog, stored: StateId, flow: int
) -> WrittenState:
    """Return a state's schema as flow version `flow` described it; raise if it is unknown."""
    written = description_in(versions, log.flow, stored.operator, stored.state, flow)
    if written is None:
        raise CheckpointMismatchError(
            f"State '{stored}' was written under flow version {flow}, but the checkpoint's "
            "description of that version does not have the state.",
            remedy="Run `godwit checkpoint verify` on the checkpoint.",
            state=str(stored),
            flow=flow,
        )
    return written


@contextmanager
def _naming_version(flow: int, stored: StateId) -> Iterator[None]:
    """Context that turns errors in a stored description into `CorruptCheckpointError`."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(
            f"The description of state '{stored}' in flow version {flow} of the checkpoint cannot "
            f"be read ({type(error).__name__}: {error}).",
            remedy="Restore the checkpoint from a copy.",
            state=str(stored),
            flow=flow,
        ) from error


def _waiting_layout(operator: KeyedOperator, before: str, log: CommitLog | None) -> WaitingLayout:
    """Return the layout to read an operator's waiting rows; `before`: its former name."""
    former: dict[int, Former] = {}
    waiting = () if log is None else log.chains.waiting_segments(before)
    if log is not None and waiting:
        flows = {segment.flow for segment in waiting}
        if operator.mergeable:
            (state,) = operator.states
            states = _former_layouts(operator, StateId(before, state.state), log, flows)
            keys = len(operator.schema.keys)
            former = {
                flow: Former(
                    columns=(*columns_of(operator.schema.keys), *state_layout.columns),
                    upgrade=None
                    if state_layout.upgrade is None
                    else _BehindKeys(keys=keys, upgrade=state_layout.upgrade),
                )
                for flow, state_layout in states.items()
            }
        else:
            former = _former_rows(operator, before, waiting, log)
    return WaitingLayout(operator=operator.name, schema=operator.waiting_schema, former=former)


def _former_rows(
    operator: KeyedOperator, before: str, waiting: Iterable[SegmentRef], log: CommitLog
) -> dict[int, Former]:
    """Return flow version → layout of waiting rows, if not today's; raise if one does not fit."""
    former = {}
    today = columns_of(operator.waiting_schema)
    states = operator.describe_states()
    written_by = {segment.flow: segment.operator for segment in waiting}
    versions = log.versions_since(min(written_by))
    for flow, name in written_by.items():
        version = log.version(flow).operator(name)
        columns = today if version is None else version.waiting
        changed = list(changed_columns(columns, today, are_rows=True))
        for state, description in states.items():
            stored = StateId(before, state)
            with _naming_version(flow, stored):
                written = description_in(versions, log.flow, before, state, flow)
                if written is not None:
                    changed += changed_meaning(written.description, description)
        if changed:
            raise mismatch_error(
                f"The queue of rows for operator {operator.name!r}",
                dict.fromkeys(changed),
                "Start the flow as it was until no rows wait, and then change it.",
                operator=operator.name,
            )
        if columns != today:
            former[flow] = Former(
                columns=columns, upgrade=ColumnsByName(schema=operator.waiting_schema)
            )
    return former


@dataclass(frozen=True, slots=True, kw_only=True)
class _BehindKeys:
    """A `StateUpgrade` of the columns behind the key columns."""

    keys: int  # how many key columns there are
    upgrade: StateUpgrade  # brings the others forward

    def __call__(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Upgrade the state columns, row by row in the same order."""
        names = values.schema.names
        states = self.upgrade(values.select(names[self.keys :]))
        return pa.RecordBatch.from_arrays(
            [*values.columns[: self.keys], *states.columns],
            names=[*names[: self.keys], *states.schema.names],
        )


def digest_of_branches(branches: Iterable[tuple[str, Iterable[Any]]]) -> str:
    """Return a digest of branches.

    A branch is the name of the source or operator that makes the rows, and the functions behind it.
    """
    way = [(name, list(map(_text_of, functions))) for name, functions in branches]
    return hashlib.blake2b(repr(way).encode(), digest_size=8).hexdigest()


def _text_of(function: Any) -> str:
    """Return text that is equal for functions of equal code."""
    if isinstance(function, functools.partial):
        arguments = (function.args, sorted(function.keywords.items()))
        return f"{_text_of(function.func)}{_fingerprint_text(arguments)}"
    code = getattr(function, "__code__", None)
    if code is None:
        return str(getattr(function, "__qualname__", type(function).__qualname__))
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(_fingerprint_text(cell.cell_contents))
        except ValueError:  # not yet assigned
            cells.append("")
    return f"{_fingerprint_text(code)}{cells}{_fingerprint_text(function.__defaults__)}"


def _fingerprint_text(value: Any) -> str:
    """Return text that is equal for equal plain values and code; sets are sorted.

    Of other values: `_text_of` a callable, else the type's name.
    """
    if isinstance(value, CodeType):
        return repr([value.co_code, value.co_names, *map(_fingerprint_text, value.co_consts)])
    if isinstance(value, (tuple, list)):
        return repr(list(map(_fingerprint_text, value)))
    if isinstance(value, (set, frozenset)):
        return repr(sorted(map(_fingerprint_text, value)))
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    return _text_of(value) if callable(value) else type(value).__qualname__
