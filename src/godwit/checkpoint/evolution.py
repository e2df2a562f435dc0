"""Flow versions: schemas of state over time, and checks that a changed flow can read it.

A `FlowVersion` describes every operator's states and every sink's rows.  Versions form a line
(``previous``), and each reference in the checkpoint names the version that it was written under.
So bytes are read by the description of that version, their columns are compared by name and type,
and then converted to the present ones by a `StateUpgrade`.

Invariants: a part of the state that some version did not have is lost, even if a later version has
one of the same name again (`description_in`); and descriptions do not depend on the session's time
zone (`type_text`).

`check_compatible` is the single comparison of descriptions: columns are found by name, in any
order, and a new one is empty.

`compare_flows` compares whole flows.  Operators are found by name: those that stayed, returned or
were renamed keep their state, the others start empty, and the state of removed operators is
retained. Renamings are declared, and applied once (`_Renamings`).  Flows in which an operator would
take another's state are refused, and so are operators that would start empty while another's state
is left behind, unless the program declares it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from godwit.model.errors import CheckpointMismatchError
from godwit.model.naming import RESERVED_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from godwit.checkpoint.records import EditRecord

_ZONE = re.compile(r"(timestamp\[\w+), tz=[^\]]*\]")


STATELESS: Final = "rows"
"""Kind of the operators that pass rows to a sink, and have no state that could be left behind."""
Columns: TypeAlias = tuple[tuple[str, str], ...]
"""Names and Arrow types (as text) of columns, in the order they are written in."""


class StateDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Schema of one state of one operator."""

    columns: Columns  # state columns, without the key columns
    # ``"arrow"``: the columns are the state; ``"msgpack"`` or ``"pickle"``: one binary column holds
    # Python values
    codec: Literal["arrow", "msgpack", "pickle"]
    # plain values; of aggregates: result → ``state``, the names of its columns, and ``aggregate``,
    # the aggregate's description; of Python values: a description of their type
    type: Any = None
    # columns that distinguish the entries of one key; none if a key has one
    entries: Columns = ()
    windows: Any = None  # windows of event time that the entries are panes of, as plain values
    # other meaning of entries, by name, as plain values: the column of the event time, the side of
    # a join of a column, the clock of timers
    means: dict[str, Any] = msgspec.field(default_factory=dict)


StateUpgrade: TypeAlias = "Callable[[pa.RecordBatch], pa.RecordBatch]"
"""Converts rows of state columns of an earlier flow version to the present one. Picklable."""


class OperatorVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One operator in one flow version: its states, keys and results."""

    kind: str  # such as ``"compute"`` or ``"process"``
    keys: Columns  # key columns, in the order they are hashed
    states: dict[str, StateDescription]  # by name
    # key columns whose hash decides a row's key group; empty: all of them
    partition_by: tuple[str, ...] = ()
    waiting: Columns = ()  # columns of the rows that wait for it: key columns, then the others
    formerly: str = ""  # declared former name; empty without one
    named: bool = True  # the user chose its name; otherwise the name is derived
    # operator that it is a part of, with whose name and changes; empty if it is not a part
    part_of: str = ""
    # digest of the upstream path of its rows and of its function; empty if it was not recorded
    origin: str = ""
    # operators whose changes of results it reads; ``None`` if it was not recorded
    reads_changes: tuple[str, ...] | None = None
    # sinks and operators that read its output; ``None`` if it was not recorded
    readers: tuple[str, ...] | None = None
    # names of states of earlier versions that it deletes, if there are any
    deletes: tuple[str, ...] = ()
    left: int = -1  # of a removed operator: the last flow version that had it


class FlowVersion(msgspec.Struct, frozen=True, kw_only=True):
    """Operators and sinks of a flow from some epoch on."""

    previous: int = -1  # -1 for the first
    operators: dict[str, OperatorVersion] = msgspec.field(default_factory=dict)  # by name
    # removed operators whose state is retained, as they last were
    retained: dict[str, OperatorVersion] = msgspec.field(default_factory=dict, name="kept")
    # name → columns of the rows that are staged for it
    sinks: dict[str, Columns] = msgspec.field(default_factory=dict)
    sources: tuple[str, ...] = ()  # names of the sources, in the order in which Spark numbers them
    # source → column of its event time, for sources that ever had one in use
    times: dict[str, str] = msgspec.field(default_factory=dict)
    # name in the previous version → name in this one; all at once
    renamed: dict[str, str] = msgspec.field(default_factory=dict)
    dropped: tuple[str, ...] = ()  # operators of the previous version whose state is gone
    # operator of the previous version → states that it deletes
    deleted_states: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    def operator(self, name: str) -> OperatorVersion | None:
        """Return the operator `name`, of the flow or removed from it; ``None`` if it is unknown."""
        return self.operators.get(name) or self.retained.get(name)

    def parts_of(self, name: str) -> tuple[str, ...]:
        """Return the names of the operators that are parts of the operator `name`."""
        every = {**self.operators, **self.retained}
        return tuple(part for part, operator in every.items() if operator.part_of == name)

    def name_before(self, operator: str) -> str | None:
        """Return the operator's name in the previous flow version; ``None`` if it is new."""
        for old, new in self.renamed.items():
            if new == operator:
                return old
        return None if operator in self.renamed or operator in self.dropped else operator


def type_text(dtype: pa.DataType) -> str:
    """Return a type as text, without the time zone of timestamps."""
    return _in_utc(str(dtype))


def columns_of(schema: Iterable[pa.Field]) -> Columns:
    """Return a schema as a checkpoint stores it: name and type of each column, as text."""
    return tuple((field.name, type_text(field.type)) for field in schema)


def _in_utc(text: str) -> str:
    """Return the text of a type with its time zone replaced by UTC."""
    # Nearly every type has no zone, and a start describes each column several times.
    return _ZONE.sub(r"\1, tz=UTC]", text) if "tz=" in text else text


def without_zones(value: Any) -> Any:
    """Return plain values in which the texts of types have time zone UTC."""
    if isinstance(value, str):
        return _in_utc(value)
    if isinstance(value, dict):
        return {name: without_zones(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(without_zones, value))
    return value


def plain(value: Any) -> Any:
    """Return a value as msgpack decodes it: tuples become lists."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenState:
    """Schema of a state in an earlier flow version, and the parts that are still valid."""

    # as written, but `type` holds only those results of an aggregating operator, and those fields
    # of records, that every later version has too
    description: StateDescription
    # names of the state columns that every later version has too: others were dropped
    live: frozenset[str]
    # name of a record → its fields that were written, and that some later version did not have
    gone: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, description: StateDescription) -> WrittenState:
        """Wrap the description of a state that no later flow version has changed."""
        return _narrow_to_valid(description, ())

    def columns_kept_in(self, today: StateDescription) -> frozenset[str]:
        """Return the names of stored columns that mean the same in the description `today`."""
        results = _aggregates_of(self.description)
        if results is None:
            return self.live
        common = {k: v for k, v in results.items() if k in (_aggregates_of(today) or {})}
        return self.live & _columns_of_aggregates(common)


def description_in(
    versions: Mapping[int, FlowVersion], latest: int, operator: str, state: str, flow: int
) -> WrittenState | None:
    """Return the description of a state in flow version `flow`; ``None`` if it did not exist.

    `operator`, `state`: their names in version `latest`.
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
    return None if written is None else _narrow_to_valid(written, later)


def _narrow_to_valid(
    written: StateDescription, later: Iterable[StateDescription | None]
) -> WrittenState:
    """Reduce a state's description to columns, results and fields that all `later` ones have."""
    live = {name for name, _ in written.columns}
    results = _aggregates_of(written)
    records = _class_fields(written)
    lost_fields: dict[str, set[str]] = {}
    for description in later:
        live &= {name for name, _ in description.columns} if description else set()
        if results is not None:
            types = (_aggregates_of(description) if description else None) or {}
            results = {name_: value for name_, value in results.items() if name_ in types}
        for record, fields in _class_fields(description).items():
            newly_lost = records.get(record, fields) - fields
            lost_fields.setdefault(record, set()).update(newly_lost)
    narrowed = written
    if results is not None:
        narrowed = msgspec.structs.replace(written, type=results)
        live &= _columns_of_aggregates(results)
    lost_fields = {record: fields for record, fields in lost_fields.items() if fields}
    if lost_fields:
        classes = {
            name: {
                **described_as,
                "fields": {
                    name_: value
                    for name_, value in described_as["fields"].items()
                    if name_ not in lost_fields[name]
                },
            }
            if name in lost_fields
            else described_as
            for name, described_as in written.type["classes"].items()
        }
        narrowed = msgspec.structs.replace(written, type={**written.type, "classes": classes})
    return WrittenState(
        description=narrowed,
        live=frozenset(live),
        gone={record: frozenset(fields) for record, fields in lost_fields.items()},
    )


def _aggregates_of(description: StateDescription) -> dict[str, Any] | None:
    """Return result → description of its aggregate; ``None`` if the operator does not aggregate."""
    is_aggregate = description.codec == "arrow" and isinstance(description.type, dict)
    return description.type if is_aggregate else None


def _columns_of_aggregates(results: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the state columns that the results of an operator have."""
    return frozenset(column for result in results.values() for column in result["state"])


def _class_fields(description: StateDescription | None) -> dict[str, frozenset[str]]:
    """Return class → names of its fields, for the classes in a state of Python values."""
    if description is None or description.codec != "msgpack":
        return {}
    return {
        name: frozenset(described_as["fields"])
        for name, described_as in description.type["classes"].items()
        if "fields" in described_as
    }


def differences(where: str, old: Any, new: Any) -> Iterator[str]:
    """Yield a text for each difference of two values, such as ``type.x was 1 and is 2``.

    The values are compared as msgpack decodes them; dicts field by field, at any depth. `where`:
    path that precedes the fields, with its final dot.
    """
    old, new = plain(old), plain(new)
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield f"{where.removesuffix('.')} was {old!r} and is {new!r}"
        return
    for field in sorted({*old, *new}, key=str):
        if field not in new:
            yield f"{where}{field} was {old[field]!r} and is gone"
        elif field not in old:
            yield f"{where}{field} is new, as {new[field]!r}"
        else:
            yield from differences(f"{where}{field}.", old[field], new[field])


ORIGINS = "origins"
"""Entry of `StateDescription.means`: name → where the rows under it come from."""
_START_EMPTY = (
    "Give the operator a name of its own that starts empty, as in name=gw.types.Identity("
    '"other", starts_empty=True), or undo the change.'
)


def check_compatible(
    subject: str,
    stored: StateDescription,
    today: StateDescription,
    *,
    problems: Iterable[str] = (),
    remedy: str = _START_EMPTY,
    **context: Any,
) -> None:
    """Raise `CheckpointMismatchError` if stored state does not fit the description of today's.

    `subject`: the state's owner, as text. `problems`: further differences, found by the caller.
    `context`: further context of the error.
    """
    every = [*problems, *changed_meaning(stored, today)]
    if (stored.codec == "arrow") != (today.codec == "arrow"):
        every.append(f"its state was written as {stored.codec} and is {today.codec}")
    elif stored.codec != "arrow" or stored.type is None:  # results are found by their own names
        every += changed_columns(stored.columns, today.columns, are_rows=stored.codec == "arrow")
    if every:
        raise mismatch_error(f"The state of {subject}", every, remedy, **context)


def changed_meaning(stored: StateDescription, today: StateDescription) -> Iterator[str]:
    """Yield changes by which stored entries or rows would be interpreted differently.

    Only properties that both descriptions have are compared, since earlier versions stored fewer.
    """
    yield from differences("entries", stored.entries, today.entries)
    yield from differences(
        "windows", _sorted_windows(stored.windows), _sorted_windows(today.windows)
    )
    stored_means, todays_means = dict(stored.means), dict(today.means)
    yield from _swapped_names(stored_means.pop(ORIGINS, None), todays_means.pop(ORIGINS, None))
    yield from _changed_values("", plain(stored_means), plain(todays_means))


def changed_columns(stored: Columns, today: Columns, *, are_rows: bool) -> Iterator[str]:
    """Yield a text for each stored column whose type differs from today's column of that name.

    `are_rows`: the columns are of rows; then also one for columns that may have been renamed.
    """
    stored_types, todays_types = dict(stored), dict(today)
    for name, dtype in stored:
        if todays_types.get(name, dtype) != dtype:
            yield f"column {name} was {dtype!r} and is {todays_types[name]!r}"
    removed = [name for name in stored_types if name not in todays_types]
    added = [name for name in todays_types if name not in stored_types]
    if are_rows and removed and added:
        yield (
            f"column {', '.join(removed)} is gone and {', '.join(added)} is new (if it was "
            "renamed, "
            "give it its old name; else remove the old one, and add the new one in a later start)"
        )


def mismatch_error(
    what: str, problems: Iterable[str], remedy: str, **context: Any
) -> CheckpointMismatchError:
    """Return the error that stored data (`what`, as text) does not fit, with all `problems`."""
    problems = list(problems)
    return CheckpointMismatchError(
        f"{what} in the checkpoint does not fit: {'; '.join(problems)}.",
        remedy=remedy,
        **context,
        differences=problems,
    )


def flow_mismatch(
    uri: str, problems: Sequence[str], why: str = "", *, remedy: str
) -> CheckpointMismatchError:
    """Return the error that a flow does not fit its checkpoint.

    `why`: the danger of running it, as text.
    """
    return CheckpointMismatchError(
        f"The checkpoint {uri!r} does not fit this flow: {'; '.join(problems)}. {why}".rstrip(),
        remedy=remedy,
        uri=uri,
        differences=list(problems),
    )


def _changed_values(where: str, before: Any, now: Any) -> Iterator[str]:
    """Yield, as text, the plain values that changed; `where`: the path of names to them."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() & now.keys()):
            yield from _changed_values(f"{where} {name}".lstrip(), before[name], now[name])
    elif before != now:
        yield f"{where} was {before!r} and is {now!r}"


def _swapped_names(before: Any, now: Any) -> Iterator[str]:
    """Yield, as text, names that were swapped, such as those of a join's left and right input.

    Origins are compared by their common fields, since earlier versions may have stored fewer.
    """
    if not (before and now):
        return
    before, now = plain(before), plain(now)
    names = [name for name in before if name in now]
    all_origins = [origins[name] for origins in (before, now) for name in names]
    common_fields = (
        [field for field in before[names[0]] if all(field in origin for origin in all_origins)]
        if names
        else []
    )
    old, new = (
        {name: [origins[name][field] for field in common_fields] for name in names}
        for origins in (before, now)
    )
    swapped = [
        name
        for name in names
        if old[name] != new[name] and old[name] in new.values() and new[name] in old.values()
    ]
    if len(swapped) > 1:
        yield f"{' and '.join(swapped)} have changed places"


def _sorted_windows(windows: Any) -> Any:
    """Return the plain values of windows sorted, since their order in a program is irrelevant."""
    if not windows:
        return None
    bounds = ("length_us", "every_us", "offset_us", "gap_us")
    return sorted(windows, key=lambda window: [window.get(bound, -1) for bound in bounds])


_TIMERS = "timers"
"""State that holds the timers of an operator of several states."""
_CLOCK = "clock of timers"
"""Entry of `StateDescription.means` of a state that holds timers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowChanges:
    """Changes of a flow's operators from one version to the next."""

    version: FlowVersion | None  # the version to write; ``None`` if nothing changed
    renamed: Mapping[str, str]  # old name → new name
    added: tuple[str, ...]  # operators that start without state
    returned: tuple[str, ...]  # operators that were removed earlier and return to their state
    removed: tuple[str, ...]  # operators removed from the flow, whose state is retained
    # changed results of aggregating operators, and changed columns of sinks, as text
    results: tuple[str, ...] = ()
    repartitioned: tuple[str, ...] = ()  # operators whose state must be repartitioned


def compare_flows(
    today: FlowVersion,
    stored: FlowVersion | None,
    *,
    previous: int,
    uri: str,
    edits: Sequence[EditRecord] = (),
    repartition: bool = False,
    regroup: bool = False,
    starts_empty: Collection[str] = (),
) -> FlowChanges:
    """Return changes from the stored flow to today's; raise if they do not allow a restart.

    `stored`: version of the last committed epoch; ``None`` before the first. `previous`: its
    number. `edits`: those to apply to it. `repartition`: other columns may decide the key groups of
    an operator's rows. `regroup`: all state is placed in another number of key groups.
    `starts_empty`: operators that may start empty beside state of removed ones.
    """
    if stored is None:
        return FlowChanges(
            version=today, renamed={}, added=tuple(today.operators), returned=(), removed=()
        )
    _check_sources(today, stored, uri)
    times = _event_time_columns(today, stored, uri)
    names = {*stored.operators, *stored.retained}
    stored = apply_edits(stored, edits)
    problems: list[str] = []
    former = {name: own.formerly for name, own in today.operators.items() if own.formerly}
    renamed = _Renamings(today, stored, former).resolve(problems)
    origin = {new: old for old, new in renamed.items()}
    added: list[str] = []
    returned: list[str] = []
    results: list[str] = []
    repartitioned: list[str] = []
    for name, operator in today.operators.items():
        old = origin.get(name, name)
        before = None if old == name and name in renamed else stored.operator(old)
        if before is None:
            added.append(name)
            continue
        if old not in stored.operators:
            returned.append(name)
        where = f"operator {name!r}: "
        problems += differences(f"{where}kind", before.kind, operator.kind)
        problems += _changed_keys(where, before.keys, operator.keys)
        moved = list(_changed_partition(name, before, operator))
        if moved and repartition:
            repartitioned.append(name)
        else:
            problems += moved
        problems += _changed_part(name, renamed.get(before.part_of, before.part_of), operator)
        problems += _lost_states(name, before, operator)
        results += _changed_results(name, before, operator)
    reused = {origin.get(name, name) for name in today.operators if name not in added}
    carried = {**stored.retained, **stored.operators}
    retained = {
        name: msgspec.structs.replace(carried[name], left=previous)
        if name in stored.operators
        else carried[name]
        for name in sorted(carried.keys() - reused)
    }
    removed = tuple(name for name in retained if name in stored.operators)
    problems += _undeclared_name_exchanges(today, stored, renamed)
    problems += _left_behind(today, stored, added, removed, starts_empty)
    if problems:
        raise flow_mismatch(
            uri,
            problems,
            remedy="Give an operator the name that its state has, or rename it by "
            "name=gw.types.Identity(name, formerly=...); one that is to start empty needs a name "
            "that the checkpoint does not have, and starts_empty=True of Identity where another's "
            "state stays behind.",
        )
    if (repartitioned or regroup) and (renamed or edits):
        partitioned = [f"operator {name!r} is to be repartitioned" for name in repartitioned]
        raise flow_mismatch(
            uri,
            [*partitioned, *(["its number of key groups is to change"] if regroup else [])],
            "The same start renames or drops operators.",
            remedy="Do one after the other: start once with partition_by= and num_key_groups= as "
            "they were.",
        )
    # From the names in the checkpoint, through those after the edits, to those of the program.
    to = {name: stored.renamed.get(name, name) for name in names - set(stored.dropped)}
    deleted = {
        name: states
        for name, after in to.items()
        if after in stored.operators
        and (present := today.operators.get(renamed.get(after, after))) is not None
        and (states := _deleted_states(stored.operators[after], present))
    }
    total = {name: renamed.get(after, after) for name, after in to.items()}
    total = {old: new for old, new in total.items() if old != new}
    version = msgspec.structs.replace(
        today,
        previous=previous,
        retained=retained,
        times=times,
        renamed=total,
        dropped=stored.dropped,
        deleted_states=deleted,
    )
    as_stored = msgspec.msgpack.decode(msgspec.msgpack.encode(version), type=FlowVersion)
    same = not edits and as_stored == msgspec.structs.replace(stored, previous=previous)
    return FlowChanges(
        version=None if same else version,
        renamed=total,
        added=tuple(added),
        returned=tuple(returned),
        removed=removed,
        results=(
            *results,
            *map(partitioned_anew, repartitioned),
            *_changed_sinks(today, stored),
        ),
        repartitioned=tuple(repartitioned),
    )


def apply_edits(version: FlowVersion, edits: Sequence[EditRecord]) -> FlowVersion:
    """Return a flow version with edits applied; its `renamed` and `dropped` list them."""
    renamed: dict[str, str] = {}
    dropped: list[str] = []
    operators, retained = dict(version.operators), dict(version.retained)
    for edit in edits:
        for name in edit.dropped:
            operators.pop(name, None)
            retained.pop(name, None)
            dropped.append(_name_before_edits(renamed, name))
            renamed.pop(_name_before_edits(renamed, name), None)
        for old, new in edit.renamed.items():
            for versions in (operators, retained):
                if old in versions:
                    versions[new] = versions.pop(old)
                for part in [
                    name for name, part_version in versions.items() if part_version.part_of == old
                ]:
                    versions[part] = msgspec.structs.replace(versions[part], part_of=new)
            renamed[_name_before_edits(renamed, old)] = new
    return msgspec.structs.replace(
        version,
        operators=operators,
        retained=retained,
        renamed={old: new for old, new in renamed.items() if old != new},
        dropped=tuple(dropped),
        deleted_states={},
    )


def _name_before_edits(renamed: Mapping[str, str], name: str) -> str:
    """Return an operator's name before the edits; `renamed`: old → new name."""
    return next((old for old, new in renamed.items() if new == name), name)


def _check_sources(today: FlowVersion, stored: FlowVersion, uri: str) -> None:
    """Raise if DataFrame sources were added or removed; a single one may be renamed."""
    if len(today.sources) == len(stored.sources) == 1 or today.sources == stored.sources:
        return
    if not stored.sources:  # all were of Godwit's own, so Spark has no numbers yet
        return
    problems = [
        f"source {name!r} was added" for name in today.sources if name not in stored.sources
    ]
    problems += [f"source {name!r} is gone" for name in stored.sources if name not in today.sources]
    raise flow_mismatch(
        uri,
        problems,
        "Spark stores offsets by the number of each source, and these numbers would change.",
        remedy="Start the flow with the sources that it had; give a new source a flow and a "
        "checkpoint of its own.",
    )


def _event_time_columns(today: FlowVersion, stored: FlowVersion, uri: str) -> dict[str, str]:
    """Return source → event-time column; raise if the column of a source was replaced."""
    stored_times = dict(stored.times)
    if len(today.sources) == len(stored.sources) == 1:  # it may have another name now
        (stored_source,), (todays_source,) = stored.sources, today.sources
        stored_times = {
            todays_source if source == stored_source else source: column
            for source, column in stored_times.items()
        }
    problems = [
        f"the event time of source {source!r} was {stored_times[source]!r} and is {column!r}"
        for source, column in today.times.items()
        if stored_times.get(source, column) != column
    ]
    if problems:
        raise flow_mismatch(
            uri,
            problems,
            "The stored watermark, open windows and timers belong to the other column.",
            remedy="Leave event_time= as it was; a column that only has another name now gets its "
            "old one in the DataFrame, by withColumnRenamed. A flow that is to go by another time "
            "needs a checkpoint of its own.",
        )
    return dict(sorted({**stored_times, **today.times}.items()))


def partitioned_anew(operator: str) -> str:
    """Return the text of a repartitioning in `events.FlowChanged`; the controller reads it back."""
    return f"{operator} is partitioned anew"


def _changed_partition(name: str, stored: OperatorVersion, today: OperatorVersion) -> Iterator[str]:
    """Yield a problem if other columns decide the key groups of an operator's entries."""
    if stored.partition_by != today.partition_by:
        stored_columns, todays_columns = (
            ", ".join(version.partition_by or (column for column, _ in version.keys))
            for version in (stored, today)
        )
        yield (
            f"operator {name!r} was partitioned by {stored_columns} and is by {todays_columns} "
            "(leave partition_by= "
            "as it was, or have its state rewritten: checkpointing=gw.Checkpointing("
            "repartition=True))"
        )


def _changed_part(name: str, part_of: str, now: OperatorVersion) -> Iterator[str]:
    """Yield a problem if the operator has become a part of another one, or has ceased to be."""
    if part_of != now.part_of:
        stored_role, todays_role = (
            f"a part of {parent!r}" if parent else "an operator of its own"
            for parent in (part_of, now.part_of)
        )
        yield (
            f"operator {name!r} was {stored_role} and is {todays_role} (rename or drop the one "
            "in the "
            "checkpoint: `godwit checkpoint rename`, `godwit checkpoint drop`)"
        )


def _lost_states(name: str, before: OperatorVersion, now: OperatorVersion) -> Iterator[str]:
    """Yield a problem if an operator has state under names that it no longer declares."""
    # Parts of hot keys come and go: where keys are in parts, recovery refuses.
    part = f"{RESERVED_PREFIX}_part"
    whole = {n for n, state in before.states.items() if part not in dict(state.entries)}
    lost = sorted(whole - now.states.keys() - set(now.deletes))
    if lost == [_TIMERS] and not any(_CLOCK in state.means for state in now.states.values()):
        return  # timers come and go
    if lost == ["state"]:
        yield (
            f"operator {name!r} had a single state, which is now a state named 'state': declare a "
            "state of that name too"
        )
    elif lost:
        yield (
            f"operator {name!r} no longer has {', '.join(map(repr, lost))}, of which there is "
            "state: declare what it had, since a state that no function touches costs nothing"
        )


def _deleted_states(before: OperatorVersion, now: OperatorVersion) -> tuple[str, ...]:
    """Return the states of an operator that its present version deletes."""
    return tuple(sorted((before.states.keys() - now.states.keys()) & set(now.deletes)))


def _changed_results(name: str, before: OperatorVersion, now: OperatorVersion) -> Iterator[str]:
    """Yield, as text, the aggregates that an operator gained or lost."""
    for state, described_as in now.states.items():
        stored = before.states.get(state)
        if stored is None or not (
            isinstance(stored.type, dict) and isinstance(described_as.type, dict)
        ):
            continue
        if stored.codec == described_as.codec == "arrow":
            for result in described_as.type.keys() - stored.type.keys():
                yield f"{name}.{result} starts empty"
            for result in stored.type.keys() - described_as.type.keys():
                yield f"{name}.{result} was dropped"


def _changed_keys(where: str, before: Columns, now: Columns) -> Iterator[str]:
    """Yield differences of key columns; operators with divided hot keys have one column more."""
    part = (f"{RESERVED_PREFIX}_part", "int32")
    if part in before and part not in now:
        yield f"{where}it had spread=, and has none"
    if part in now and part not in before:
        yield f"{where}it had no spread=, and has it"
    stored_columns, todays_columns = (
        [(name, dtype) for name, dtype in columns if not name.startswith(RESERVED_PREFIX)]
        for columns in (before, now)
    )
    yield from differences(f"{where}keys", stored_columns, todays_columns)


def _changed_sinks(today: FlowVersion, stored: FlowVersion) -> Iterator[str]:
    """Yield, as text, the columns of sinks that were added, removed or changed in type."""
    for sink, columns in today.sinks.items():
        where = f"sink {sink}: "
        yield from differences(where, dict(stored.sinks.get(sink, columns)), dict(columns))


@dataclass(frozen=True, slots=True)
class _Renamings:
    """Links of ``formerly=``: which ask for a renaming, and which were done by an earlier start.

    A link that the last start had too is *repeated*: left in the program, or a new renaming.  It is
    a new renaming if another operator takes the state under its own new name, since it has none
    then. In a cycle of repeated links, or where the operator of the former name leaves the flow at
    this start, both are possible: only if the operators still look as they did can they be told
    apart.
    """

    today: FlowVersion
    stored: FlowVersion
    former: Mapping[str, str]  # new name → ``formerly=``

    def resolve(self, problems: list[str]) -> dict[str, str]:
        """Return old → new name of the operators to rename; append to `problems`."""
        renamed: dict[str, str] = {}
        for new, old in self.former.items():
            if not self._is_requested(new, problems):
                continue
            is_taken = new in self.former.values()
            if self.stored.operator(old) is None:
                if (self.stored.operator(new) is None or is_taken) and not self._is_part(new):
                    names = sorted({**self.stored.operators, **self.stored.retained})
                    problems.append(
                        f"operator {new!r} says that it was {old!r}, but the checkpoint's "
                        f"operators are {', '.join(map(repr, names))}"
                    )
            elif self.stored.operator(new) is not None and not is_taken:
                problems.append(
                    f"operator {new!r} says that it was {old!r}, but the checkpoint has state of "
                    "both"
                )
            else:
                renamed[old] = new
        return renamed

    def _is_part(self, name: str) -> bool:
        return bool(self.today.operators[name].part_of)

    def _is_repeated(self, new: str) -> bool:
        """Return true if the last start had the same link."""
        known = self.stored.operators.get(new)
        return known is not None and known.formerly == self.former[new]

    def _is_requested(self, new: str, problems: list[str]) -> bool:
        """Return true if a link is a renaming now; append to `problems` if that is undecided."""
        whole = self.today.operators[new].part_of
        if whole in self.former:
            return self._is_requested(whole, [])  # a part follows its whole
        if not self._is_repeated(new):
            return True
        takers = {old: taker for taker, old in self.former.items()}
        chain = [new]
        while (taker := takers.get(chain[-1], new)) != new:
            chain.append(taker)
            if not self._is_repeated(taker):
                return True
        is_cycle = chain[-1] in takers
        names = chain if is_cycle else [new]
        moved, stayed = _compare_likeness(
            [_definition_without_name(self.today.operators[name]) for name in names],
            [_definition_without_name(self.stored.operator(self.former[name])) for name in names],
            [_definition_without_name(self.stored.operators[name]) for name in names],
        )
        if moved and stayed:  # all alike
            moved, stayed = False, self._readers_stayed(names)
        old = self.former[new]
        leaves = old in self.stored.operators and old not in self.today.operators
        if moved != stayed or not (is_cycle or leaves):
            return moved
        if new == min(names):
            problems.append(self._undecided_problem(names))
        return False

    def _readers_stayed(self, names: Iterable[str]) -> bool:
        """Return true if the same sinks and operators read operators that are alike, each its own.

        False if two have the same readers, or the last start did not note them.
        """
        readers = [self.today.operators[name].readers for name in names]
        before = [self.stored.operators[name].readers for name in names]
        return readers == before and None not in before and len({*readers}) == len(readers)

    def _undecided_problem(self, names: Sequence[str]) -> str:
        """Return the problem that a second renaming of these operators is undecided."""
        links = " and ".join(f"{name!r} was {self.former[name]!r}" for name in sorted(names))
        return (
            f"by formerly= {links}, as the last start had it, and nothing tells whether that was "
            "left in the program or is meant once more (if it was left, remove formerly=; if it is "
            "meant, first start the program as it was, without formerly=, until an epoch is "
            "committed)"
        )


def _compare_likeness(
    signatures: list[Any], moved: list[Any], stayed: list[Any]
) -> tuple[bool, bool]:
    """Return two flags: operators look like moved ones, and like ones that stayed.

    All decide it; else a part that is like one side, where none is like the other.
    """
    equal_looks = [
        [left == right for left, right in zip(signatures, side, strict=True)]
        for side in (moved, stayed)
    ]
    if all(equal_looks[0]) or all(equal_looks[1]):
        return all(equal_looks[0]), all(equal_looks[1])
    return any(equal_looks[0]) and not any(equal_looks[1]), any(equal_looks[1]) and not any(
        equal_looks[0]
    )


def _definition_without_name(operator: OperatorVersion | None) -> Any:
    """Return an operator's function, input, keys and states as plain values, without its name."""
    if operator is None:
        return None
    return plain([operator.origin, operator.kind, operator.keys, operator.states])


def _undeclared_name_exchanges(
    today: FlowVersion, stored: FlowVersion, renamed: Mapping[str, str]
) -> Iterator[str]:
    """Yield a problem for two operators that look exchanged, without a declaration."""
    linked = {*renamed, *renamed.values()}
    names = [
        position
        for position in today.operators
        if position in stored.operators and position not in linked
    ]
    todays_definition = {name: _definition_without_name(today.operators[name]) for name in names}
    stored_definition = {name: _definition_without_name(stored.operators[name]) for name in names}
    changed = [
        position
        for position in names
        if todays_definition[position] != stored_definition[position]
        and today.operators[position].origin
        and not _is_stateless(position, stored)
    ]
    for position, name in enumerate(changed):
        for other in changed[position + 1 :]:
            if (
                todays_definition[name] == stored_definition[other]
                and todays_definition[other] == stored_definition[name]
            ):
                yield (
                    f"operators {name!r} and {other!r} have exchanged their names (give both "
                    "formerly=, or their old names)"
                )


def _is_stateless(name: str, version: FlowVersion) -> bool:
    """Return true if an operator of a flow version is of a kind that never has state."""
    return version.operators[name].kind == STATELESS


def _left_behind(
    today: FlowVersion,
    stored: FlowVersion,
    added: Sequence[str],
    removed: Sequence[str],
    starts_empty: Collection[str],
) -> Iterator[str]:
    """Yield a problem for each operator that would start empty beside unused state.

    It may be a removed one under another name. `starts_empty`: operators that are meant to.
    """
    unused = [
        unused_name
        for unused_name in removed
        if not stored.operators[unused_name].part_of and not _is_stateless(unused_name, stored)
    ]
    for name in added if unused else ():
        operator = today.operators[name]
        if operator.part_of or name in starts_empty or _is_stateless(name, today):
            continue
        candidates = [
            old
            for old in unused
            for stored_operator in [stored.operators[old]]
            if (operator.kind, operator.keys) == (stored_operator.kind, stored_operator.keys)
        ]
        advice = (
            f"if it is to start empty, give it name=gw.types.Identity({name!r}, starts_empty=True)"
        )
        if candidates:
            is_generated = not (
                operator.named
                or any(stored.operators[unused_name].named for unused_name in candidates)
            )
            names = " or ".join(
                f"name={old!r}"
                if is_generated
                else f"name=gw.types.Identity({name!r}, formerly={old!r})"
                for old in candidates
            )
            advice = f"if it is the same operator, give it {names}; {advice}"
        yield (
            f"operator {name!r} would start empty, while no operator reads the state of "
            f"{' and '.join(map(repr, unused))} any more ({advice})"
        )
