"""The sinks of a run and those of its checkpoint's last epoch: which of them are the same.

Problem: an epoch is delivered after its commit, so the last epoch of a run may be delivered by the
next one, whose program has changed.  By then a sink may have another name, write elsewhere, or be
new; two may have exchanged names.  Rows must go where they belong, once, and a sink that is
somebody else has no claim on them.

A commit record says of every sink as what its rows were staged: its *writer*, which is the name
that its target knows it by and which never changes, where it wrote, and whether its rows are the
whole result.  A sink of today is the one of that record that the program says it was
(``formerly=``), else the one of its name that wrote where it writes, else the only one that wrote
where it writes, else the one of its name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.checkpoint.records import SinkRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from godwit.checkpoint.records import CommitRecord
    from godwit.plan.compiled import CompiledFlow, Output

__all__ = ["Deliveries", "SinkState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkState:
    """A sink of this run, and what the last epoch says of it.

    Attributes
    ----------
    writer
        Name that the target knows it by.
    complete
        Whether its rows are the whole result.
    former
        Its name in the record of the last epoch; ``None`` if it was not there, so that nothing of
        that epoch is for it.
    former_complete
        Whether the rows of that epoch are the whole result.
    before
        The last epoch before it that had something for it; -1 if none had.
    stays
        Whether it is known to write where it wrote then.
    """

    writer: str
    complete: bool
    former: str | None
    former_complete: bool
    before: int
    stays: bool


class Deliveries:
    """What the sinks of a run are, and what commit records say of them.

    Parameters
    ----------
    flow
        The flow.
    latest
        Record of the last epoch; ``None`` before the first.
    renamed
        Old name → new name of operators since that epoch.
    """

    def __init__(
        self, flow: CompiledFlow, latest: CommitRecord | None, renamed: Mapping[str, str]
    ) -> None:
        outputs = [output for output in flow.outputs if output.sink.wants_rows]
        # Rejected and late rows are never the whole of anything.
        complete = {
            output.name: flow.operator(output.operator).complete
            for output in outputs
            if output.rejects_of is None and not output.left_out
        }
        recorded = {} if latest is None else latest.sinks
        if latest is not None and recorded is None:  # an earlier version did not say
            names = {o.name for o in outputs if not complete.get(o.name)}
            names.update(ref.sink for ref in latest.outputs)
            recorded = {
                name: SinkRecord(writer=name, complete=complete.get(name, False))
                for name in sorted(names)
            }
        assert recorded is not None
        former = _former(outputs, recorded, renamed)
        writers = {name: recorded[old].writer for name, old in former.items()}
        for output in outputs:
            if output.name not in writers:
                writers[output.name] = _unused(output.name, writers.values())
        self._outputs = {output.name: output for output in outputs}
        self._recorded, self._latest = recorded, latest
        self.of: dict[str, SinkState] = {}
        self._emitted: dict[str, int] = {}
        for output in outputs:
            now, old = complete.get(output.name, False), former.get(output.name)
            self.of[output.name] = SinkState(
                writer=writers[output.name],
                complete=now,
                former=old,
                former_complete=now if old is None else recorded[old].complete,
                before=-1 if old is None else recorded[old].before,
                stays=old is not None and recorded[old].target == _target(output) != "",
            )
            self._emitted[output.name] = -1 if old is None else self._last(old, recorded[old])

    def _last(self, name: str, recorded: SinkRecord) -> int:
        """Last epoch that had something for a sink, by its name in the last record."""
        assert self._latest is not None
        has_rows = any(ref.sink == name and ref.rows for ref in self._latest.outputs)
        return self._latest.epoch if has_rows or recorded.complete else recorded.before

    def records(self) -> dict[str, SinkRecord]:
        """Describe the sinks as the record of the next epoch keeps them."""
        return {
            name: SinkRecord(
                writer=self.of[name].writer,
                target=output.sink.destination or "",
                complete=self.of[name].complete,
                formerly=output.formerly,
                before=self._emitted[name],
            )
            for name, output in self._outputs.items()
        }

    def committed(self, record: CommitRecord) -> None:
        """Take note of what an epoch has for the sinks."""
        with_rows = {ref.sink for ref in record.outputs if ref.rows}
        for name, state in self.of.items():
            if state.complete or name in with_rows:
                self._emitted[name] = record.epoch

    def changes(self) -> Iterator[str]:
        """Say in words what became of the sinks of the last epoch, as far as they changed."""
        for name, state in self.of.items():
            if state.former is not None and state.former != name:
                yield f"sink {state.former} is now {name}"
            elif state.former is None and self._latest is not None:
                yield f"sink {name} is new and gets what comes after epoch {self._latest.epoch}"
            elif state.former_complete != state.complete:
                before, now = (
                    "the whole result" if complete else "changed keys"
                    for complete in (state.former_complete, state.complete)
                )
                yield f"sink {name} gets {now}; up to this epoch it got {before}"
        for name, rows in self.left_out().items():
            yield (
                f"sink {name} is gone; {rows} rows that the last epoch has for it are at its "
                "target only if that run got to deliver them"
                if rows
                else f"sink {name} is gone"
            )

    def left_out(self) -> dict[str, int]:
        """Sink of the last epoch that is in this run no more → rows that the epoch has for it."""
        still = {state.former for state in self.of.values()}
        outputs = () if self._latest is None else self._latest.outputs
        return {
            name: sum(ref.rows for ref in outputs if ref.sink == name)
            for name in self._recorded
            if name not in still
        }


def _former(
    outputs: Iterable[Output], recorded: Mapping[str, SinkRecord], renamed: Mapping[str, str]
) -> dict[str, str]:
    """Name of a sink → its name in the last record, for those that were there."""
    found: dict[str, str] = {}
    waiting = list(outputs)
    old_names = {new: old for old, new in renamed.items()}

    def free(name: str) -> bool:
        return name in recorded and name not in found.values()

    def match(output: Output, old: str) -> None:
        if free(old):
            found[output.name] = old
            waiting.remove(output)

    for output in list(waiting):
        done = output.name in recorded and recorded[output.name].formerly == output.formerly
        if output.formerly and not done:
            match(output, output.formerly)
    for output in list(waiting):
        same = output.name in recorded and recorded[output.name].target == _target(output)
        if same and _target(output):
            match(output, output.name)
    then = Counter(recorded[name].target for name in recorded if free(name))
    now = Counter(map(_target, waiting))
    for name in [name for name in recorded if free(name)]:
        target = recorded[name].target
        if target and then[target] == now[target] == 1:
            match(next(output for output in waiting if _target(output) == target), name)
    for output in list(waiting):
        match(output, _derived(output, found, old_names))
    for output in list(waiting):
        match(output, output.name)
    return found


def _target(output: Output) -> str:
    return output.sink.destination or ""


def _derived(output: Output, found: Mapping[str, str], old_names: Mapping[str, str]) -> str:
    """Name that a sink had whose name follows from that of another sink or an operator."""
    if output.rejects_of is not None:
        return f"{found.get(output.rejects_of, output.rejects_of)}_rejects"
    if not output.left_out:
        return output.name
    operator = output.name.removesuffix("_late")
    part = output.operator.removeprefix(operator)
    before = old_names.get(operator, old_names.get(output.operator, operator).removesuffix(part))
    return f"{before}_late"


def _unused(name: str, taken: Iterable[str]) -> str:
    """Make a writer of a new sink's name that no sink has which was renamed."""
    used, writer, number = set(taken), name, 1
    while writer in used:
        number += 1
        writer = f"{name}~{number}"
    return writer
