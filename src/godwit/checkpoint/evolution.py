"""Flow versions: the schema of state when it was written, and whether a changed flow can read it.

Problem: programs change between runs.  What is in the checkpoint was written by operators that may
since have been renamed, removed, or given other results, and has to be read as what it was written.

A `FlowVersion` describes every operator's states and every sink's rows.  Versions form a line
(``previous``), and each reference in the checkpoint names the version that it was written under.
So bytes are opened under the description of that version, their columns compared by name and type,
and then brought to today's by a `StateUpgrade`.

Invariants: a part of the state that some version did not have is gone, even if a later version has
one of the same name again (`described`); and no description depends on the session's time zone,
since instants are instants (`type_text`).

`insist_on_compatible` is the one comparison there is: what was written under one description is
read under another only if nothing differs by which it would mean something else; columns are found
by name, so their order makes no difference, and one that is new is empty.  An operator's own part
is the values: results of aggregates, types of Python state.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from godwit.model.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

__all__ = [
    "Columns",
    "FlowVersion",
    "OperatorVersion",
    "StateDescription",
    "StateUpgrade",
    "WrittenState",
    "changed_columns",
    "changed_meaning",
    "columns_of",
    "described",
    "differences",
    "insist_on_compatible",
    "plain",
    "refuse",
    "type_text",
    "without_zones",
]

_ZONE = re.compile(r"(timestamp\[\w+), tz=[^\]]*\]")


Columns: TypeAlias = tuple[tuple[str, str], ...]
"""Names and Arrow types (as text) of columns, in the order they are written in."""


class StateDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Schema of one state of one operator."""

    columns: Columns  # state columns, without the key columns
    # ``"arrow"``: the columns are the state; ``"msgpack"`` or ``"pickle"``: one binary column holds
    # Python values
    codec: Literal["arrow", "msgpack", "pickle"]
    # Plain values. Of aggregates: result → ``state``, the names of its columns, and ``aggregate``,
    # what the aggregate says of itself. Of Python values: what their type looks like.
    type: Any = None
    # columns that distinguish the entries of one key; none where a key has one
    entries: Columns = ()
    windows: Any = None  # windows of event time that the entries are panes of, as plain values
    # what else the meaning of entries depends on, by name, as plain values: the column of the event
    # time, the side of a join that a column is of, the clock of timers
    means: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read earlier forms: types with a time zone, and meanings among the windows."""
        replaced: dict[str, Any] = {
            "columns": without_zones(self.columns),
            "entries": without_zones(self.entries),
        }
        if self.codec == "arrow":
            replaced["type"] = without_zones(self.type)
        if isinstance(self.windows, list) and not self.means:
            replaced["windows"], replaced["means"] = _parted(self.windows)
        for name, value in replaced.items():
            if value != getattr(self, name):
                msgspec.structs.force_setattr(self, name, value)


def _parted(windows: list[Any]) -> tuple[list[Any] | None, dict[str, Any]]:
    """Part windows from what else earlier versions noted among them."""
    panes = [w for w in windows if not isinstance(w, dict) or {"length_us", "gap_us"} & w.keys()]
    means = {name: value for w in windows if w not in panes for name, value in w.items()}
    if panes:
        means.setdefault("output", "append")
    if "clock" in means:
        means["clock of timers"] = means.pop("clock")
    if "sides" in means:
        left, right = means.pop("sides")
        means["origins"] = {"left": {"sources": left}, "right": {"sources": right}}
    return panes or None, means


class StateUpgrade(Protocol):
    """Brings state columns as they were written to what they are today. Picklable."""

    def __call__(self, values: pa.RecordBatch) -> pa.RecordBatch:
        """Return as many rows, in the same order."""


class OperatorVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One operator in one flow version."""

    kind: str  # ``"compute"`` or ``"process"``
    keys: Columns  # key columns, in the order they are hashed
    states: dict[str, StateDescription]  # state's name → what it looks like
    waiting: Columns = ()  # columns of the rows that wait for it: key columns, then the others
    formerly: str = ""  # name that the program says it had before; empty if it says none
    # whether somebody chose its name; otherwise it follows from what the operator does
    named: bool = True
    # Operator that it is a part of, by whose name people know it: what becomes of that one becomes
    # of its parts. Empty if it stands for itself.
    part_of: str = ""
    # digest of the way that its rows take, and of its function; empty if it was not noted
    origin: str = ""

    def __post_init__(self) -> None:
        """Read types with a time zone, of earlier versions."""
        for name in ("keys", "waiting"):
            msgspec.structs.force_setattr(self, name, without_zones(getattr(self, name)))


class FlowVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Operators and sinks of a flow from some epoch on."""

    previous: int = -1  # the version that it follows; -1 for the first
    operators: dict[str, OperatorVersion] = msgspec.field(default_factory=dict)  # by name
    # operators that were removed from the flow, but whose state is carried on, as they last were
    kept: dict[str, OperatorVersion] = msgspec.field(default_factory=dict)
    # name → columns of the rows that are staged for it
    sinks: dict[str, Columns] = msgspec.field(default_factory=dict)
    sources: tuple[str, ...] = ()  # names of the sources, in the order in which Spark numbers them
    # source → column of its event time, of those that ever had one that counted
    times: dict[str, str] = msgspec.field(default_factory=dict)
    # name in the previous version → name in this one; all at once
    renamed: dict[str, str] = msgspec.field(default_factory=dict)
    dropped: tuple[str, ...] = ()  # operators of the previous version whose state is gone

    def __post_init__(self) -> None:
        """Read types with a time zone, of earlier versions."""
        msgspec.structs.force_setattr(self, "sinks", without_zones(self.sinks))

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


def type_text(dtype: pa.DataType) -> str:
    """Describe a type; in which zone instants are shown is no part of it."""
    return _ZONE.sub(r"\1, tz=UTC]", str(dtype))


def columns_of(schema: Iterable[pa.Field]) -> Columns:
    """Describe columns."""
    return tuple((field.name, type_text(field.type)) for field in schema)


def without_zones(value: Any) -> Any:
    """Return plain values with every type of instants in UTC."""
    if isinstance(value, str):
        return _ZONE.sub(r"\1, tz=UTC]", value)
    if isinstance(value, dict):
        return {name: without_zones(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(without_zones, value))
    return value


def plain(value: Any) -> Any:
    """Return `value` as it comes back from a record: tuples as lists."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenState:
    """Schema of a state under an earlier flow version, and which parts of it still count."""

    # as written, but `type` holds only those results of an aggregating operator, and those fields
    # of records, that every later version has too
    description: StateDescription
    # names of the state columns that every later version has too: others were let go
    live: frozenset[str]
    # name of a record → its fields that were written, and that some later version did not have
    gone: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, description: StateDescription) -> WrittenState:
        """Take all of a description to count still."""
        return _narrowed(description, ())

    def live_in(self, today: StateDescription) -> frozenset[str]:
        """Names of the columns that today's program reads as what they were, if it has them."""
        results = _results(self.description)
        if results is None:
            return self.live
        common = {k: v for k, v in results.items() if k in (_results(today) or {})}
        return self.live & _columns_of_results(common)


def described(
    versions: Mapping[int, FlowVersion], latest: int, operator: str, state: str, flow: int
) -> WrittenState | None:
    """Find what an operator's state looked like under an earlier flow version.

    Returns ``None`` if the operator or the state was not there.
    """
    line: list[StateDescription | None] = []
    number, name = latest, operator
    while number >= flow:
        version = versions[number]
        current = version.operator(name)
        if current is None:
            return None
        line.append(current.states.get(state))
        if number == flow:
            break
        before = version.name_before(name)
        if before is None:
            return None
        number, name = version.previous, before
    else:
        return None
    *later, written = line
    return None if written is None else _narrowed(written, later)


def _narrowed(written: StateDescription, later: Iterable[StateDescription | None]) -> WrittenState:
    """Leave out what any of the later descriptions does not have; ``None`` has nothing."""
    live = {name for name, _ in written.columns}
    results = _results(written)
    records = _records(written)
    gone: dict[str, set[str]] = {}
    for description in later:
        live &= {name for name, _ in description.columns} if description else set()
        if results is not None:
            types = (_results(description) if description else None) or {}
            results = {k: v for k, v in results.items() if k in types}
        for record, fields in _records(description).items():
            lost = records.get(record, fields) - fields
            gone.setdefault(record, set()).update(lost)
    narrowed = written
    if results is not None:
        narrowed = msgspec.structs.replace(written, type=results)
        live &= _columns_of_results(results)
    gone = {record: fields for record, fields in gone.items() if fields}
    if gone:
        classes = {
            name: {
                **described_as,
                "fields": {k: v for k, v in described_as["fields"].items() if k not in gone[name]},
            }
            if name in gone
            else described_as
            for name, described_as in written.type["classes"].items()
        }
        narrowed = msgspec.structs.replace(written, type={**written.type, "classes": classes})
    return WrittenState(
        description=narrowed,
        live=frozenset(live),
        gone={record: frozenset(fields) for record, fields in gone.items()},
    )


def _results(description: StateDescription) -> dict[str, Any] | None:
    """Results of an operator that aggregates, whose columns are found by them."""
    is_aggregate = description.codec == "arrow" and isinstance(description.type, dict)
    return description.type if is_aggregate else None


def _columns_of_results(results: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(column for result in results.values() for column in result["state"])


def _records(description: StateDescription | None) -> dict[str, frozenset[str]]:
    """Names of the fields of every record that a state of Python values may hold."""
    if description is None or description.codec != "msgpack":
        return {}
    return {
        name: frozenset(described_as["fields"])
        for name, described_as in description.type["classes"].items()
        if "fields" in described_as
    }


def differences(where: str, old: Any, new: Any) -> Iterator[str]:
    """Describe in what way two plain values differ, field by field."""
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


_ORIGINS = "origins"
_START_EMPTY = (
    "Give the operator a name of its own, under which it starts empty, or undo the change."
)


def insist_on_compatible(
    subject: str,
    stored: StateDescription,
    today: StateDescription,
    *,
    found: Iterable[str] = (),
    remedy: str = _START_EMPTY,
    **context: Any,
) -> None:
    """Refuse state that would mean something else if it was read under today's description."""
    found = [*found, *changed_meaning(stored, today)]
    if (stored.codec == "arrow") != (today.codec == "arrow"):
        found.append(f"its state was written as {stored.codec} and is {today.codec}")
    elif stored.codec != "arrow" or stored.type is None:  # results are found by their own names
        found += changed_columns(stored.columns, today.columns, are_rows=stored.codec == "arrow")
    if found:
        raise refuse(f"The state of {subject}", found, remedy, **context)


def changed_meaning(stored: StateDescription, today: StateDescription) -> Iterator[str]:
    """Say by what entries, and rows on their way to them, mean something else than they did.

    Meanings that only one of the two descriptions has are not compared: an earlier version did not
    write them down, or there is nothing yet, or no more, that has them.
    """
    yield from differences("entries", stored.entries, today.entries)
    yield from differences("windows", _in_order(stored.windows), _in_order(today.windows))
    was, now = dict(stored.means), dict(today.means)
    yield from _exchanged(was.pop(_ORIGINS, None), now.pop(_ORIGINS, None))
    yield from _differences_in_both("", plain(was), plain(now))


def changed_columns(stored: Columns, today: Columns, *, are_rows: bool) -> Iterator[str]:
    """Report which columns would be read as something else.

    `are_rows`: whether they are columns of rows, which may have been renamed.
    """
    was, now = dict(stored), dict(today)
    for name, dtype in stored:
        if now.get(name, dtype) != dtype:
            yield f"column {name} was {dtype!r} and is {now[name]!r}"
    gone = [name for name in was if name not in now]
    added = [name for name in now if name not in was]
    if are_rows and gone and added:
        yield (
            f"column {', '.join(gone)} is gone and {', '.join(added)} is new (if it was renamed, "
            "give it its old name; else take away the one first, and add the other later)"
        )


def refuse(
    what: str, problems: Iterable[str], remedy: str, **context: Any
) -> CheckpointMismatchError:
    """Make the error that says every difference."""
    problems = list(problems)
    return CheckpointMismatchError(
        f"{what} in the checkpoint does not fit: {'; '.join(problems)}.",
        remedy=remedy,
        **context,
        differences=problems,
    )


def _differences_in_both(where: str, was: Any, now: Any) -> Iterator[str]:
    if isinstance(was, dict) and isinstance(now, dict):
        for name in sorted(was.keys() & now.keys()):
            yield from _differences_in_both(f"{where} {name}".lstrip(), was[name], now[name])
    elif was != now:
        yield f"{where} was {was!r} and is {now!r}"


def _exchanged(was: Any, now: Any) -> Iterator[str]:
    """Report sides of a join that have changed places."""
    if not (was and now):
        return
    was, now = plain(was), plain(now)
    known = [
        name for name in was["left"] if all(name in of for of in (*was.values(), *now.values()))
    ]
    old, new = (
        [[of[side][name] for name in known] for side in ("left", "right")] for of in (was, now)
    )
    if old != new and old == new[::-1]:
        yield "left and right have changed places"


def _in_order(windows: Any) -> Any:
    """Windows by what they are: in which order a program names them makes no difference."""
    if not windows:
        return None
    bounds = ("length_us", "every_us", "offset_us", "gap_us")
    return sorted(windows, key=lambda window: [window.get(bound, -1) for bound in bounds])
