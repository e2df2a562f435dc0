"""What a flow's state looked like when it was written, and how a changed flow takes it up.

Problem: programs change between runs.  What is in the checkpoint was written by operators that may
since have been renamed, removed, or given other results, and has to be read as what it was written.

A `FlowVersion` describes every operator's states and every sink's rows.  Versions form a line
(``previous``), and each reference in the checkpoint names the version that it was written under.
So bytes are opened under the description of that version, their columns compared by name and type,
and then brought to today's by a `StateUpgrade`.

Invariant: a part of the state that some version did not have is gone, even if a later version has
one of the same name again (`described`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

__all__ = [
    "Columns",
    "FlowVersion",
    "OperatorVersion",
    "StateDescription",
    "StateUpgrade",
    "columns_of",
    "described",
    "differences",
    "plain",
]

Columns: TypeAlias = tuple[tuple[str, str], ...]
"""Names and Arrow types (as text) of columns, in the order they are written in."""


class StateDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What one state of one operator looks like.

    Attributes
    ----------
    columns
        State columns, without the key columns.
    codec
        ``"arrow"``: the columns are the state; ``"msgpack"`` or ``"pickle"``: one binary column
        holds Python values.
    type
        Plain values. Of aggregates: result → ``state``, the names of its columns, and
        ``aggregate``, what the aggregate says of itself. Of Python values: what their type looks
        like.
    entries
        Columns that tell the entries of one key apart; none where a key has one.
    windows
        Windows of event time that the entries are panes of, as plain values.
    """

    columns: Columns
    codec: Literal["arrow", "msgpack", "pickle"]
    type: Any = None
    entries: Columns = ()
    windows: Any = None


class StateUpgrade(Protocol):
    """Brings state columns as they were written to what they are today. Picklable."""

    def __call__(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Give as many rows, in the same order."""


class OperatorVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One operator in one flow version.

    Attributes
    ----------
    kind
        ``"compute"`` or ``"process"``.
    keys
        Key columns, in the order they are hashed.
    states
        State's name → what it looks like.
    waiting
        Columns of the rows that wait for it: key columns, then the others.
    formerly
        Name that the program says it had before; empty if it says none.
    named
        Whether somebody chose its name; otherwise it follows from what the operator does.
    part_of
        Operator that it is a part of, by whose name people know it: what becomes of that one
        becomes of its parts. Empty if it stands for itself.
    """

    kind: str
    keys: Columns
    states: dict[str, StateDescription]
    waiting: Columns = ()
    formerly: str = ""
    named: bool = True
    part_of: str = ""


class FlowVersion(msgspec.Struct, frozen=True, kw_only=True):
    """What a flow's operators and sinks are from some epoch on.

    Attributes
    ----------
    previous
        The version that it follows; -1 for the first.
    operators
        By name.
    sinks
        Name → columns of the rows that are staged for it.
    kept
        Operators that were removed from the flow, but whose state is carried on, as they last
        were.
    sources
        Names of the sources, in the order in which Spark numbers them.
    times
        Source → column of its event time, of those that ever had one that counted.
    renamed
        Name in the previous version → name in this one; all at once.
    dropped
        Operators of the previous version whose state is gone.
    """

    previous: int = -1
    operators: dict[str, OperatorVersion] = msgspec.field(default_factory=dict)
    kept: dict[str, OperatorVersion] = msgspec.field(default_factory=dict)
    sinks: dict[str, Columns] = msgspec.field(default_factory=dict)
    sources: tuple[str, ...] = ()
    times: dict[str, str] = msgspec.field(default_factory=dict)
    renamed: dict[str, str] = msgspec.field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    def operator(self, name: str) -> OperatorVersion | None:
        """Operator of that name that has state, in the flow or kept."""
        return self.operators.get(name) or self.kept.get(name)

    def parts_of(self, name: str) -> tuple[str, ...]:
        """Names of the parts of an operator."""
        every = {**self.operators, **self.kept}
        return tuple(part for part, operator in every.items() if operator.part_of == name)

    def name_before(self, operator: str) -> str | None:
        """Name of an operator in the previous version; ``None`` if it was not there."""
        for old, new in self.renamed.items():
            if new == operator:
                return old
        return None if operator in self.renamed or operator in self.dropped else operator


def columns_of(schema: Iterable[pa.Field]) -> Columns:
    """Describe columns."""
    return tuple((field.name, str(field.type)) for field in schema)


def plain(value: Any) -> Any:
    """Give `value` as it comes back from a record: tuples as lists."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def described(
    versions: Mapping[int, FlowVersion], latest: int, operator: str, state: str, flow: int
) -> StateDescription | None:
    """Find what an operator's state looked like under an earlier flow version.

    Parameters
    ----------
    versions
        Every version from `flow` to `latest`, by number.
    latest
        The version in which the operator has the name `operator`.
    operator, state
        Whose state.
    flow
        The version that wrote it.

    Returns
    -------
    StateDescription or None
        As written, but `type` holds only those results of an aggregating operator that every later
        version has too: others were let go. ``None`` if the operator was not there.
    """
    line: list[StateDescription] = []
    number, name = latest, operator
    while number >= flow:
        version = versions[number]
        found = version.operator(name)
        if found is None or state not in found.states:
            return None
        line.append(found.states[state])
        if number == flow:
            break
        before = version.name_before(name)
        if before is None:
            return None
        number, name = version.previous, before
    else:
        return None
    written = line[-1]
    if written.codec != "arrow" or not isinstance(written.type, dict):
        return written
    stayed = [later.type for later in line[:-1] if isinstance(later.type, dict)]
    kept = {k: v for k, v in written.type.items() if all(k in later for later in stayed)}
    return msgspec.structs.replace(written, type=kept)


def differences(where: str, old: Any, new: Any) -> Iterator[str]:
    """Say in what way two plain values differ, field by field."""
    yield from _differences(where, (), plain(old), plain(new))


def _differences(where: str, path: tuple[str, ...], old: Any, new: Any) -> Iterator[str]:
    name = ".".join(path)
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield f"{where}{name} was {old!r} and is {new!r}"
        return
    for field in sorted({*old, *new}, key=str):
        here = (*path, str(field))
        if field not in new:
            yield f"{where}{'.'.join(here)} was {old[field]!r} and is gone"
        elif field not in old:
            yield f"{where}{'.'.join(here)} is new, as {new[field]!r}"
        else:
            yield from _differences(where, here, old[field], new[field])
