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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from godwit.model.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from godwit.state.records import EditRecord

__all__ = [
    "Columns",
    "FlowChanges",
    "FlowVersion",
    "OperatorVersion",
    "SinkVersion",
    "StateDescription",
    "StateUpgrade",
    "changes_to",
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
    """

    columns: Columns
    codec: Literal["arrow", "msgpack", "pickle"]
    type: Any = None


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
    """

    kind: str
    keys: Columns
    states: dict[str, StateDescription]
    waiting: Columns = ()
    formerly: str = ""
    named: bool = True


class SinkVersion(msgspec.Struct, frozen=True, kw_only=True):
    """What the rows of one sink look like in one flow version.

    Attributes
    ----------
    columns
        Columns of the staged rows.
    keys
        Names of those that tell rows apart; empty if none do.
    complete
        Whether every epoch delivers all rows there are.
    """

    columns: Columns
    keys: tuple[str, ...] = ()
    complete: bool = False


class FlowVersion(msgspec.Struct, frozen=True, kw_only=True):
    """What a flow's operators and sinks are from some epoch on.

    Attributes
    ----------
    previous
        The version that it follows; -1 for the first.
    operators, sinks
        By name.
    kept
        Operators that were removed from the flow, but whose state is carried on, as they last
        were.
    sources
        Names of the sources, in the order in which Spark numbers them.
    renamed
        Name in the previous version → name in this one; all at once.
    dropped
        Operators of the previous version whose state is gone.
    """

    previous: int = -1
    operators: dict[str, OperatorVersion] = msgspec.field(default_factory=dict)
    kept: dict[str, OperatorVersion] = msgspec.field(default_factory=dict)
    sinks: dict[str, SinkVersion] = msgspec.field(default_factory=dict)
    sources: tuple[str, ...] = ()
    renamed: dict[str, str] = msgspec.field(default_factory=dict)
    dropped: tuple[str, ...] = ()

    def operator(self, name: str) -> OperatorVersion | None:
        """Operator of that name that has state, in the flow or kept."""
        return self.operators.get(name) or self.kept.get(name)

    def name_before(self, operator: str) -> str | None:
        """Name of an operator in the previous version; ``None`` if it was not there."""
        for old, new in self.renamed.items():
            if new == operator:
                return old
        return None if operator in self.renamed or operator in self.dropped else operator


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowChanges:
    """What became of a flow's operators from one version to the next.

    Attributes
    ----------
    version
        The version to write; ``None`` if nothing changed.
    renamed
        Old name → new name.
    added
        Operators that start without state.
    returned
        Operators that were removed, and find the state that they left.
    removed
        Operators that are gone from the flow, and whose state is kept.
    results
        What became of the results of operators that aggregate, in words.
    """

    version: FlowVersion | None
    renamed: Mapping[str, str]
    added: tuple[str, ...]
    returned: tuple[str, ...]
    removed: tuple[str, ...]
    results: tuple[str, ...] = ()


def changes_to(
    given: FlowVersion,
    stored: FlowVersion | None,
    *,
    previous: int,
    uri: str,
    edits: Sequence[EditRecord] = (),
) -> FlowChanges:
    """Find what a program changed.

    Parameters
    ----------
    given
        The flow of the program.
    stored
        The version that counts in the checkpoint; ``None`` before the first epoch.
    previous
        Its number.
    uri
        The checkpoint, for messages.
    edits
        What is to be renamed and dropped before that.

    Raises
    ------
    CheckpointMismatchError
        If an operator cannot take up its state whatever it holds: it has other key columns, is of
        another kind, or says that it had a name that does not fit.
    """
    if stored is None:
        return FlowChanges(
            version=given, renamed={}, added=tuple(given.operators), returned=(), removed=()
        )
    _insist_on_sources(given, stored, uri)
    names = {*stored.operators, *stored.kept}
    stored = edited(stored, edits)
    problems: list[str] = []
    renamed = _renamed(given, stored, problems)
    origin = {new: old for old, new in renamed.items()}
    added: list[str] = []
    returned: list[str] = []
    results: list[str] = []
    for name, operator in given.operators.items():
        old = origin.get(name, name)
        before = None if old == name and name in renamed else stored.operator(old)
        if before is None:
            added.append(name)
            continue
        if old not in stored.operators:
            returned.append(name)
        where = f"operator {name!r}: "
        problems += differences(f"{where}kind", before.kind, operator.kind)
        problems += differences(f"{where}keys", before.keys, operator.keys)
        results += _results(name, before, operator)
    taken = {origin.get(name, name) for name in given.operators if name not in added}
    carried = {**stored.kept, **stored.operators}
    kept = {name: carried[name] for name in sorted(carried.keys() - taken)}
    removed = tuple(name for name in kept if name in stored.operators)
    problems += _mistaken(given, stored, added, removed)
    if problems:
        raise CheckpointMismatchError(
            f"The checkpoint {uri!r} does not fit this flow: {'; '.join(problems)}.",
            remedy="Give an operator the name that its state has (name=, or formerly= to rename "
            "it); one that is to start empty needs a name that the checkpoint does not have.",
            uri=uri,
            differences=problems,
        )
    # From the names in the checkpoint, through those after the edits, to those of the program.
    to = {name: stored.renamed.get(name, name) for name in names - set(stored.dropped)}
    total = {name: renamed.get(after, after) for name, after in to.items()}
    total = {old: new for old, new in total.items() if old != new}
    version = msgspec.structs.replace(
        given, previous=previous, kept=kept, renamed=total, dropped=stored.dropped
    )
    same = not edits and _read_back(version) == msgspec.structs.replace(stored, previous=previous)
    return FlowChanges(
        version=None if same else version,
        renamed=total,
        added=tuple(added),
        returned=tuple(returned),
        removed=removed,
        results=tuple(results),
    )


def edited(version: FlowVersion, edits: Sequence[EditRecord]) -> FlowVersion:
    """Give a flow version as it is after some edits; `renamed` and `dropped` say which."""
    renamed: dict[str, str] = {}
    dropped: list[str] = []
    operators, kept = dict(version.operators), dict(version.kept)
    for edit in edits:
        for name in edit.dropped:
            operators.pop(name, None)
            kept.pop(name, None)
            dropped.append(_origin(renamed, name))
            renamed.pop(_origin(renamed, name), None)
        for old, new in edit.renamed.items():
            for named in (operators, kept):
                if old in named:
                    named[new] = named.pop(old)
            renamed[_origin(renamed, old)] = new
    return msgspec.structs.replace(
        version,
        operators=operators,
        kept=kept,
        renamed={old: new for old, new in renamed.items() if old != new},
        dropped=tuple(dropped),
    )


def _origin(renamed: Mapping[str, str], name: str) -> str:
    """Name that an operator had before the edits."""
    return next((old for old, new in renamed.items() if new == name), name)


def _insist_on_sources(given: FlowVersion, stored: FlowVersion, uri: str) -> None:
    """Refuse other sources; that a single one was renamed makes no difference to Spark."""
    if len(given.sources) == len(stored.sources) == 1 or given.sources == stored.sources:
        return
    found = [f"source {name!r} was added" for name in given.sources if name not in stored.sources]
    found += [f"source {name!r} is gone" for name in stored.sources if name not in given.sources]
    raise CheckpointMismatchError(
        f"The checkpoint {uri!r} does not fit this flow: {'; '.join(found)}. Spark keeps how far "
        "each source was read by the source's number, and these would change.",
        remedy="Start the flow with the sources that it had; give a new source a flow and a "
        "checkpoint of its own.",
        uri=uri,
        differences=found,
    )


def _results(name: str, before: OperatorVersion, now: OperatorVersion) -> Iterator[str]:
    """Say what became of an operator's aggregates."""
    for state, described_as in now.states.items():
        was = before.states.get(state)
        if was is None or not (isinstance(was.type, dict) and isinstance(described_as.type, dict)):
            continue
        if was.codec == described_as.codec == "arrow":
            for result in described_as.type.keys() - was.type.keys():
                yield f"{name}.{result} starts empty"
            for result in was.type.keys() - described_as.type.keys():
                yield f"{name}.{result} was let go"


def _mistaken(
    given: FlowVersion, stored: FlowVersion, added: Sequence[str], removed: Sequence[str]
) -> Iterator[str]:
    """Find operators that nobody named, and that lost their state because of that."""
    for name in added:
        operator = given.operators[name]
        for old in removed:
            before = stored.operators[old]
            alike = (operator.kind, operator.keys) == (before.kind, before.keys)
            if alike and not operator.named and not before.named:
                yield (
                    f"operator {name!r}, which nobody named, would start empty, and {old!r} of the "
                    f"same keys is gone; if it is the same one, say name={old!r}"
                )


def _read_back(version: FlowVersion) -> FlowVersion:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(version), type=FlowVersion)


def _renamed(given: FlowVersion, stored: FlowVersion, problems: list[str]) -> dict[str, str]:
    """Old name → new name, for the renamings that are yet to be done."""
    wanted = {name: o.formerly for name, o in given.operators.items() if o.formerly}
    renamed: dict[str, str] = {}
    for new, old in wanted.items():
        known = stored.operators.get(new)
        if known is not None and known.formerly == old:
            continue  # done by an earlier run
        if stored.operator(old) is None:
            if stored.operator(new) is None:
                names = ", ".join(
                    repr(name) for name in sorted({**stored.operators, **stored.kept})
                )
                problems.append(
                    f"operator {new!r} says that it was {old!r}, but the checkpoint's operators "
                    f"are {names}"
                )
            continue
        if stored.operator(new) is not None and new not in wanted.values():
            problems.append(
                f"operator {new!r} says that it was {old!r}, but the checkpoint has state of both"
            )
            continue
        renamed[old] = new
    return renamed


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
