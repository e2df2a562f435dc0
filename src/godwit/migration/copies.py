"""Single record of which executor holds which version of which key group.

It answers two queries.  The protocol needs the freshness of a copy: the epoch up to which it is
complete (its *reach*), for all states of a component together.  Instructions need the content of
the local store: the version of each state's table.  Both change by the same facts, at the same
time, so neither can remember a copy that the other has forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from godwit.model.key_groups import PerKeyGroup

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from godwit.model.assignment import Assignment

IntArray = npt.NDArray[np.int64]

_ABSENT: Final = -2
"""Below -1, which is the version of a copy that was never changed."""


_Column = IntArray
"""A number per key group, or `_ABSENT`; as long as the highest key group recorded."""


def _with_numbers(column: _Column | None, numbers: Mapping[int, int]) -> _Column:
    """Return a column with the numbers of some key groups set (key group → number)."""
    new = PerKeyGroup.of(numbers)
    column = np.empty(0, np.int64) if column is None else column
    if len(new):
        missing = int(new.key_groups[-1]) + 1 - len(column)
        if missing > 0:
            column = np.append(column, np.full(missing, _ABSENT, np.int64))
        column[new.key_groups] = new.numbers
    return column


def _minimum_of_parts(parts: Sequence[_Column | None]) -> _Column:
    """Return the minimum of several columns per key group; absent if it is absent in any."""
    size = min(0 if part is None else len(part) for part in parts)
    if not size:
        return np.empty(0, np.int64)
    common: _Column = np.minimum.reduce([part[:size] for part in parts if part is not None])
    return common


def _number_or_absent(column: _Column, key_group: int) -> int:
    """Return the number of a key group; `_ABSENT` if it has none."""
    return int(column[key_group]) if key_group < len(column) else _ABSENT


class Copies:
    """Copies of key groups on executors, as last reported."""

    def __init__(self, states: Mapping[str, Sequence[Hashable]] | None = None) -> None:
        self._states = dict(states or {})
        self._reached_versions: dict[tuple[str, str], _Column] = {}
        self._tables: dict[tuple[str, Hashable], _Column] = {}

    def states(self, component: str) -> tuple[Any, ...]:
        """Return the ids of a component's states."""
        return tuple(self._states.get(component, ()))

    def regroup(
        self,
        parts: Mapping[str, Sequence[str]],
        states: Mapping[str, Sequence[Hashable]],
    ) -> None:
        """Merge or split the records of components that are regrouped.

        `parts`: new component → old ones; the new one has a copy where all old ones have. `states`:
        new component → ids of its states.
        """
        executors = {executor for _, executor in self._reached_versions}
        columns = {
            (name, executor): _minimum_of_parts(
                [self._reached_versions.get((part, executor)) for part in old_parts]
            )
            for name, old_parts in parts.items()
            for executor in executors
        }
        replaced = {name for old_parts in parts.values() for name in old_parts}
        self._reached_versions = {
            key: column for key, column in self._reached_versions.items() if key[0] not in replaced
        } | columns
        self._states = {
            component: component_states
            for component, component_states in self._states.items()
            if component not in replaced
        } | dict(states)

    # Freshness.

    def reach(self, component: str, executor: str, key_group: int) -> int:
        """Return the epoch up to which an executor's copy of a key group is complete.

        An absent copy counts as an empty table, at -1: in the first epochs of a stream every
        executor is nearly up to date.
        """
        column = self._reached_versions.get((component, executor))
        return -1 if column is None else max(_number_or_absent(column, key_group), -1)

    def holders(self, component: str, key_group: int) -> list[str]:
        """Return the executors that have a copy of a key group."""
        return [
            executor
            for (name, executor), column in self._reached_versions.items()
            if name == component and _number_or_absent(column, key_group) != _ABSENT
        ]

    def record_reach(self, component: str, executor: str, epochs: Mapping[int, int]) -> None:
        """Record the epochs up to which an executor's copies are complete: key group → epoch."""
        copy = component, executor
        self._reached_versions[copy] = _with_numbers(self._reached_versions.get(copy), epochs)

    # Content of local stores.

    def versions(self, executor: str, state: Hashable, num_key_groups: int) -> IntArray:
        """Return the version of an executor's copy of a state for each key group; -1: none."""
        return self.versions_of(executor, state, np.arange(num_key_groups))

    def versions_of(self, executor: str, state: Hashable, key_groups: IntArray) -> IntArray:
        """Return the versions of an executor's copies of a state, by ascending key group; -1: none.

        With hundreds of executors, reading all versions would take longer than an epoch.
        """
        versions = np.full(len(key_groups), -1, np.int64)
        column = self._tables.get((executor, state))
        if column is not None:
            known = int(np.searchsorted(key_groups, len(column)))
            versions[:known] = np.maximum(column[key_groups[:known]], -1)
        return versions

    def owners_versions(self, assignment: Assignment, state: Hashable) -> IntArray:
        """Return the version of each key group's copy at the executor that owns it; -1: none."""
        owners = assignment.executor_of
        order = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[order], np.arange(len(assignment.executors) + 1)).tolist()
        versions = np.full(len(owners), -1, np.int64)
        for index, name in enumerate(assignment.executors):
            column = self._tables.get((name, state))
            owned = order[ends[index] : ends[index + 1]]
            if column is not None and len(owned):
                if owned[-1] >= len(column):
                    owned = owned[owned < len(column)]
                versions[owned] = column[owned]
        return np.maximum(versions, -1, out=versions)

    def record_versions(self, executor: str, state: Hashable, versions: Mapping[int, int]) -> None:
        """Record the versions of an executor's copies of a state: key group → version."""
        table = executor, state
        self._tables[table] = _with_numbers(self._tables.get(table), versions)

    # Deletions.

    def forget_copies(self, component: str, executor: str, key_groups: Iterable[int]) -> None:
        """Remove the records of an executor's copies that are deleted or will be."""
        gone = np.fromiter(key_groups, np.int64)
        columns = [self._reached_versions.get((component, executor))]
        columns += [self._tables.get((executor, s)) for s in self._states.get(component, ())]
        for column in columns:
            if column is not None:
                column[gone[gone < len(column)]] = _ABSENT

    def forget_executor(self, executor: str) -> None:
        """Remove the records of all copies of a lost executor."""
        for reach in [key for key in self._reached_versions if key[1] == executor]:
            del self._reached_versions[reach]
        for table in [key for key in self._tables if key[0] == executor]:
            del self._tables[table]
