"""Changes of a program since its checkpoint was written, and whether its state still fits.

Operators are found by name: those that stayed, came back or were renamed keep their state, the
others start empty, and whatever the program no longer has is kept.  Renamings are declared, and
done once.  What would make one operator take another's state for its own is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from godwit.checkpoint.evolution import FlowVersion, OperatorVersion, differences
from godwit.model.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from godwit.checkpoint.records import EditRecord

__all__ = ["FlowChanges", "changes_to", "edited"]

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
    returned: tuple[str, ...]  # operators that were removed, and find the state that they left
    removed: tuple[str, ...]  # operators that are gone from the flow, and whose state is kept
    # what became of the results of operators that aggregate, and of the columns of sinks, in words
    results: tuple[str, ...] = ()


def changes_to(
    today: FlowVersion,
    stored: FlowVersion | None,
    *,
    previous: int,
    uri: str,
    edits: Sequence[EditRecord] = (),
) -> FlowChanges:
    """Find what a program changed.

    `stored`: the version that counts in the checkpoint; ``None`` before the first epoch.
    """
    if stored is None:
        return FlowChanges(
            version=today, renamed={}, added=tuple(today.operators), returned=(), removed=()
        )
    _check_sources(today, stored, uri)
    times = _times(today, stored, uri)
    names = {*stored.operators, *stored.kept}
    stored = edited(stored, edits)
    problems: list[str] = []
    renamed = _renamed(today, stored, problems)
    origin = {new: old for old, new in renamed.items()}
    added: list[str] = []
    returned: list[str] = []
    results: list[str] = []
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
        problems += differences(f"{where}keys", before.keys, operator.keys)
        problems += _other_part(name, renamed.get(before.part_of, before.part_of), operator)
        problems += _lost_states(name, before, operator)
        results += _results(name, before, operator)
    reused = {origin.get(name, name) for name in today.operators if name not in added}
    carried = {**stored.kept, **stored.operators}
    kept = {name: carried[name] for name in sorted(carried.keys() - reused)}
    removed = tuple(name for name in kept if name in stored.operators)
    problems += _mistaken(today, stored, added, removed)
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
        today, previous=previous, kept=kept, times=times, renamed=total, dropped=stored.dropped
    )
    same = not edits and _read_back(version) == msgspec.structs.replace(stored, previous=previous)
    return FlowChanges(
        version=None if same else version,
        renamed=total,
        added=tuple(added),
        returned=tuple(returned),
        removed=removed,
        results=(*results, *_columns(today, stored)),
    )


def edited(version: FlowVersion, edits: Sequence[EditRecord]) -> FlowVersion:
    """Return a flow version as it is after some edits; `renamed` and `dropped` say which."""
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
                for part in [name for name, of in named.items() if of.part_of == old]:
                    named[part] = msgspec.structs.replace(named[part], part_of=new)
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


def _check_sources(today: FlowVersion, stored: FlowVersion, uri: str) -> None:
    """Refuse other sources; that a single one was renamed makes no difference to Spark."""
    if len(today.sources) == len(stored.sources) == 1 or today.sources == stored.sources:
        return
    problems = [
        f"source {name!r} was added" for name in today.sources if name not in stored.sources
    ]
    problems += [f"source {name!r} is gone" for name in stored.sources if name not in today.sources]
    raise CheckpointMismatchError(
        f"The checkpoint {uri!r} does not fit this flow: {'; '.join(problems)}. Spark keeps how "
        "far each source was read by the source's number, and these would change.",
        remedy="Start the flow with the sources that it had; give a new source a flow and a "
        "checkpoint of its own.",
        uri=uri,
        differences=problems,
    )


def _times(today: FlowVersion, stored: FlowVersion, uri: str) -> dict[str, str]:
    """Columns of event time; refuses another one, since the watermark and the state are of it."""
    before = dict(stored.times)
    if len(today.sources) == len(stored.sources) == 1:
        before = dict.fromkeys(today.sources, *before.values()) if before else {}
    problems = [
        f"the event time of source {source!r} was {before[source]!r} and is {column!r}"
        for source, column in today.times.items()
        if before.get(source, column) != column
    ]
    if problems:
        raise CheckpointMismatchError(
            f"The checkpoint {uri!r} does not fit this flow: {'; '.join(problems)}. Its watermark "
            "and the windows and timers that are open are of the other column.",
            remedy="Leave event_time= as it was; a column that only has another name now gets its "
            "old one in the DataFrame, by withColumnRenamed. A flow that is to go by another time "
            "needs a checkpoint of its own.",
            uri=uri,
            differences=problems,
        )
    return dict(sorted({**before, **today.times}.items()))


def _other_part(name: str, part_of: str, now: OperatorVersion) -> Iterator[str]:
    """Refuse state of an operator that only happens to have the name of a part, or had it."""
    if part_of != now.part_of:
        was, becomes = (
            f"a part of {whole!r}" if whole else "an operator of its own"
            for whole in (part_of, now.part_of)
        )
        yield (
            f"operator {name!r} was {was} and is {becomes} (rename or drop the one in the "
            "checkpoint: `godwit checkpoint rename`, `godwit checkpoint drop`)"
        )


def _lost_states(name: str, before: OperatorVersion, now: OperatorVersion) -> Iterator[str]:
    """Find states of an operator that the program no longer declares."""
    lost = sorted(before.states.keys() - now.states.keys())
    if lost == [_TIMERS] and not any(_CLOCK in state.means for state in now.states.values()):
        return  # timers come and go
    if lost == ["state"]:
        yield (
            f"operator {name!r} kept a single state, which is a state named 'state' among several: "
            "declare that one too"
        )
    elif lost:
        yield (
            f"operator {name!r} no longer has {', '.join(map(repr, lost))}, of which there is "
            "state: declare what it had, since a state that no function touches costs nothing"
        )


def _results(name: str, before: OperatorVersion, now: OperatorVersion) -> Iterator[str]:
    """Describe what became of an operator's aggregates."""
    for state, described_as in now.states.items():
        was = before.states.get(state)
        if was is None or not (isinstance(was.type, dict) and isinstance(described_as.type, dict)):
            continue
        if was.codec == described_as.codec == "arrow":
            for result in described_as.type.keys() - was.type.keys():
                yield f"{name}.{result} starts empty"
            for result in was.type.keys() - described_as.type.keys():
                yield f"{name}.{result} was let go"


def _columns(today: FlowVersion, stored: FlowVersion) -> Iterator[str]:
    """Report which columns of sinks are new, gone or of another type."""
    for sink, columns in today.sinks.items():
        where = f"sink {sink}: "
        yield from differences(where, dict(stored.sinks.get(sink, columns)), dict(columns))


def _mistaken(
    today: FlowVersion, stored: FlowVersion, added: Sequence[str], removed: Sequence[str]
) -> Iterator[str]:
    """Find operators that nobody named, and that lost their state because of that."""
    for name in added:
        operator = today.operators[name]
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


def _renamed(today: FlowVersion, stored: FlowVersion, problems: list[str]) -> dict[str, str]:
    """Old name → new name, for the renamings that are yet to be done."""
    renamings = {name: o.formerly for name, o in today.operators.items() if o.formerly}
    renamed: dict[str, str] = {}
    for new, old in renamings.items():
        known = stored.operators.get(new)
        if known is not None and known.formerly == old and not _again(today, stored, new, old):
            continue  # done by an earlier run
        if stored.operator(old) is None:
            if stored.operator(new) is None and not today.operators[new].part_of:
                names = ", ".join(
                    repr(name) for name in sorted({**stored.operators, **stored.kept})
                )
                problems.append(
                    f"operator {new!r} says that it was {old!r}, but the checkpoint's operators "
                    f"are {names}"
                )
            continue
        if stored.operator(new) is not None and new not in renamings.values():
            problems.append(
                f"operator {new!r} says that it was {old!r}, but the checkpoint has state of both"
            )
            continue
        renamed[old] = new
    return renamed


def _again(today: FlowVersion, stored: FlowVersion, new: str, old: str) -> bool:
    """Return whether operators that gave their names to one another have done so once more.

    The program says the same as after the first time; but what is behind a name now was behind the
    one that it says it was.  Code that is new tells nothing, so one such operator is enough, unless
    another is still what it was.
    """
    cycle = [new]
    while old != new:
        if old not in today.operators or old in cycle:
            return False
        cycle.append(old)
        old = today.operators[old].formerly
    was = [stored.operators[name].origin if name in stored.operators else "" for name in cycle]
    now = [today.operators[name].origin for name in cycle]
    moved = [origin == before for origin, before in zip(now, was[1:] + was[:1], strict=True)]
    stayed = [origin == before for origin, before in zip(now, was, strict=True)]
    return "" not in was and any(moved) and not any(stayed)
