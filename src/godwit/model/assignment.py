"""The assignment: executor and lane that own each key group of a component.

An assignment is total (every key group has exactly one place), immutable and versioned.  One epoch
runs under one assignment, so there is never a row to misroute (paper 1 §3.2 reroutes instead).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from godwit.model.errors import InvalidPlanError
from godwit.model.frames import user_call, user_class
from godwit.model.key_groups import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

IntArray = npt.NDArray[np.int32]


@user_class
@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Move:
    """Move of a key group from one executor to another.

    Attributes
    ----------
    key_group
        The key group that moves.
    source, destination
        Names of executors.
    state_bytes
        Bytes of state that the destination needs; 0 if unknown.

    Examples
    --------
    >>> gw.migration.Move(key_group=7, source="1", destination="2", state_bytes=2048).destination
    '2'
    """

    key_group: int
    source: str
    destination: str
    state_bytes: int = 0


@user_class
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """Assignment of the key groups of one component to executors and their lanes.

    Attributes
    ----------
    version
        Number of the version; grows by one with every change.
    executors
        Names of the executors; ``executor_of`` has indices into this.
    lanes
        Number of lanes (concurrent tasks) of each executor; same length as ``executors``.
    executor_of
        Shape ``(num_key_groups,)``: index into ``executors``.
    lane_of
        Shape ``(num_key_groups,)``: lane within that executor, ``0 <= lane < lanes[executor]``.

    Raises
    ------
    InvalidPlanError
        If an executor or lane is out of range, or the lengths do not match.

    Examples
    --------
    >>> assignment = gw.migration.even_assignment(4, ["1", "2"], [1, 1])
    >>> assignment.executor(3), assignment.key_groups("1").tolist()
    ('2', [0, 2])
    """

    version: int
    executors: tuple[str, ...]
    lanes: tuple[int, ...]
    executor_of: IntArray
    lane_of: IntArray

    def __repr__(self) -> str:
        owned = np.bincount(self.executor_of, minlength=len(self.executors)).tolist()
        shown = ", ".join(
            f"{name}: {count}" for name, count in zip(self.executors[:8], owned, strict=False)
        )
        further = f", and {len(self.executors) - 8} more" if len(self.executors) > 8 else ""
        return f"<Assignment {self.version}: key groups of {shown}{further}>"

    def __post_init__(self) -> None:
        if not self.executors:
            raise InvalidPlanError("An assignment needs at least one executor.")
        if len(set(self.executors)) != len(self.executors):
            raise InvalidPlanError(f"An executor is named twice: {self.executors}.")
        if len(self.lanes) != len(self.executors) or any(n < 1 for n in self.lanes):
            raise InvalidPlanError(
                f"Every executor needs a number of lanes of at least 1; got lanes {self.lanes} "
                f"for executors {self.executors}."
            )
        if self.executor_of.shape != self.lane_of.shape or self.executor_of.ndim != 1:
            raise InvalidPlanError(
                f"executor_of and lane_of must be vectors of one length; got shapes "
                f"{self.executor_of.shape} and {self.lane_of.shape}."
            )
        bad = (self.executor_of < 0) | (self.executor_of >= len(self.executors))
        if not bad.any():
            bad = (self.lane_of < 0) | (self.lane_of >= np.asarray(self.lanes)[self.executor_of])
        if bad.any():
            raise InvalidPlanError(
                f"The assignment is not total: key groups {np.flatnonzero(bad)[:10].tolist()} "
                f"have no place ({int(bad.sum())} of {len(bad)}).",
                remedy="Give every key group an executor and a lane that exist.",
            )
        self.executor_of.setflags(write=False)
        self.lane_of.setflags(write=False)

    @property
    def num_key_groups(self) -> int:
        """Number of key groups.

        Examples
        --------
        >>> gw.migration.even_assignment(4, ["1", "2"], [1, 1]).num_key_groups
        4
        """
        return len(self.executor_of)

    def __eq__(self, other: object) -> bool:
        """Return true if both give every key group the same place, whatever their versions."""
        return (
            isinstance(other, Assignment)
            and self.executors == other.executors
            and self.lanes == other.lanes
            and np.array_equal(self.executor_of, other.executor_of)
            and np.array_equal(self.lane_of, other.lane_of)
        )

    __hash__ = None  # type: ignore[assignment]

    def executor(self, key_group: int) -> str:
        """Return the name of the executor that owns a key group.

        Parameters
        ----------
        key_group
            Number of the key group, from 0.

        Raises
        ------
        InvalidPlanError
            If there is no key group of that number.

        Examples
        --------
        >>> gw.migration.even_assignment(4, ["1", "2"], [1, 1]).executor(3)
        '2'
        """
        if not 0 <= key_group < self.num_key_groups:
            raise InvalidPlanError(
                f"Key group {key_group} does not exist.",
                remedy=f"Key groups are numbered 0 to {self.num_key_groups - 1}.",
            )
        return self.executors[int(self.executor_of[key_group])]

    def key_groups(self, executor: str, lane: int | None = None) -> IntArray:
        """Return the numbers of the key groups of an executor, ascending.

        Parameters
        ----------
        executor
            Name of the executor.
        lane
            Number of one of its lanes, whose key groups alone are returned; ``None``: of all lanes.

        Raises
        ------
        InvalidPlanError
            If the assignment has no executor of that name.

        Examples
        --------
        >>> gw.migration.even_assignment(8, ["1", "2"], [2, 2]).key_groups("1", lane=0).tolist()
        [0, 4]
        """
        if executor not in self.executors:
            raise InvalidPlanError(
                f"There is no executor {executor!r} in this assignment.",
                remedy=f"Executors are {', '.join(self.executors)}.",
            )
        owned = self.executor_of == self.executors.index(executor)
        if lane is not None:
            owned &= self.lane_of == lane
        return np.flatnonzero(owned).astype(np.int32)

    @property
    def num_owned(self) -> dict[str, int]:
        """Executor → number of the key groups that it owns.

        Examples
        --------
        >>> gw.migration.even_assignment(5, ["1", "2"], [1, 1]).num_owned
        {'1': 3, '2': 2}
        """
        counts = np.bincount(self.executor_of, minlength=len(self.executors)).tolist()
        return dict(zip(self.executors, counts, strict=True))

    def places(self) -> Iterator[tuple[str, int]]:
        """Yield the lanes of all executors, each as executor name and number of the lane there.

        Examples
        --------
        >>> list(gw.migration.even_assignment(4, ["1", "2"], [1, 2]).places())
        [('1', 0), ('2', 0), ('2', 1)]
        """
        for executor, lanes in zip(self.executors, self.lanes, strict=True):
            for lane in range(lanes):
                yield executor, lane

    def flat_lanes(self) -> IntArray:
        """Return the number of each key group's lane; `places` yields the lanes in this order.

        Examples
        --------
        >>> gw.migration.even_assignment(4, ["1", "2"], [1, 2]).flat_lanes().tolist()
        [0, 1, 2, 0]
        """
        first = np.concatenate(([0], np.cumsum(self.lanes)[:-1]))
        return (first[self.executor_of] + self.lane_of).astype(np.int32)

    def moved(self, places: Mapping[int, str]) -> Assignment:
        """Return the next version, with some key groups moved to other executors.

        A moved key group gets the lane with the fewest key groups at its destination; of several,
        the lowest.

        Parameters
        ----------
        places
            Key group → name of its new executor.

        Raises
        ------
        InvalidPlanError
            If a key group or an executor does not exist.

        Examples
        --------
        >>> gw.migration.even_assignment(4, ["1", "2"], [1, 1]).moved({0: "2"}).num_owned
        {'1': 1, '2': 3}
        """
        executor_of, lane_of = self.executor_of.copy(), self.lane_of.copy()
        for key_group, executor in sorted(places.items()):
            if not 0 <= key_group < self.num_key_groups:
                raise InvalidPlanError(
                    f"Key group {key_group} does not exist.",
                    remedy=f"Key groups are numbered 0 to {self.num_key_groups - 1}.",
                )
            if executor not in self.executors:
                raise InvalidPlanError(
                    f"Key group {key_group} is sent to executor {executor!r}, which does "
                    "not exist.",
                    remedy=f"Executors are {', '.join(self.executors)}.",
                )
            e = self.executors.index(executor)
            if executor_of[key_group] == e:
                continue
            executor_of[key_group] = -1
            counts = np.bincount(lane_of[executor_of == e], minlength=self.lanes[e])
            executor_of[key_group], lane_of[key_group] = e, int(counts.argmin())
        return replace(self, version=self.version + 1, executor_of=executor_of, lane_of=lane_of)

    def on(self, executors: Sequence[str], lanes: Sequence[int]) -> Assignment:
        """Return the same assignment over another list of executors, with these numbers of lanes.

        The list must have every executor that owns a key group; use `moved` first to empty the
        others.

        Parameters
        ----------
        executors
            Names of the executors.
        lanes
            Number of lanes of each.

        Raises
        ------
        InvalidPlanError
            If an executor that owns a key group is not listed.

        Examples
        --------
        >>> assignment = gw.migration.even_assignment(4, ["1", "2"], [1, 1])
        >>> assignment.on(["1", "2", "3"], [1, 1, 1]).num_owned
        {'1': 2, '2': 2, '3': 0}
        """
        position = {name: i for i, name in enumerate(executors)}
        index = np.array([position.get(name, -1) for name in self.executors], np.int32)
        return replace(
            self,
            version=self.version + 1,
            executors=tuple(executors),
            lanes=tuple(lanes),
            executor_of=index[self.executor_of],
            lane_of=self.lane_of.copy(),
        )

    def moves_to(self, target: Assignment) -> tuple[Move, ...]:
        """Return the moves that lead from this assignment to another one, in order of key groups.

        Parameters
        ----------
        target
            Assignment of the same number of key groups; its executors may differ.

        Returns
        -------
        tuple of Move
            One for each key group that changes its executor, with ``state_bytes=0``.

        Raises
        ------
        InvalidPlanError
            If `target` has fewer key groups.

        Examples
        --------
        >>> before = gw.migration.even_assignment(4, ["1", "2"], [1, 1])
        >>> before.moves_to(before.moved({0: "2"}))
        (Move(key_group=0, source='1', destination='2', state_bytes=0),)
        """
        return tuple(
            Move(
                key_group=key_group,
                source=self.executor(key_group),
                destination=target.executor(key_group),
            )
            for key_group in range(self.num_key_groups)
            if self.executor(key_group) != target.executor(key_group)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the assignment as a dict of plain values for JSON; `from_dict` reads it again.

        Examples
        --------
        >>> gw.migration.even_assignment(4, ["1", "2"], [1, 1]).to_dict()["executors"]
        ['1', '2']
        """
        return {
            "version": self.version,
            "executors": list(self.executors),
            "lanes": list(self.lanes),
            "num_key_groups": self.num_key_groups,
            "executor_of": pack(self.executor_of),
            "lane_of": pack(self.lane_of),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Assignment:
        """Return the assignment that `to_dict` turned into plain values.

        Parameters
        ----------
        values
            Result of `to_dict`, also after a way through JSON.

        Raises
        ------
        KeyError
            If a value that `to_dict` returns is missing.
        InvalidPlanError
            If the values are no valid assignment.

        Examples
        --------
        >>> assignment = gw.migration.even_assignment(4, ["1", "2"], [1, 1])
        >>> gw.migration.Assignment.from_dict(assignment.to_dict()) == assignment
        True
        """
        return cls(
            version=values["version"],
            executors=tuple(values["executors"]),
            lanes=tuple(values["lanes"]),
            executor_of=unpack(values["executor_of"], values["num_key_groups"]),
            lane_of=unpack(values["lane_of"], values["num_key_groups"]),
        )


@user_call
def even_assignment(
    num_key_groups: int, executors: Sequence[str], lanes: Sequence[int]
) -> Assignment:
    """Assign key groups evenly, round robin, to all lanes of all executors.

    Parameters
    ----------
    num_key_groups
        Number of key groups.
    executors
        Names of the executors.
    lanes
        Number of lanes (concurrent tasks) of each executor, in the same order.

    Raises
    ------
    InvalidPlanError
        If there is no executor, one is named twice, or a number of lanes is missing or below 1.

    Examples
    --------
    >>> gw.migration.even_assignment(4, ["a", "b"], [1, 1]).key_groups("b").tolist()
    [1, 3]
    """
    places = [
        (executor, lane) for executor, num_lanes in enumerate(lanes) for lane in range(num_lanes)
    ]
    # Round robin over executors before lanes, so that few key groups still use every executor.
    places.sort(key=lambda place: (place[1], place[0]))
    place_of_key_group = (
        [places[key_group % len(places)] for key_group in range(num_key_groups)] if places else []
    )
    return Assignment(
        version=0,
        executors=tuple(executors),
        lanes=tuple(lanes),
        executor_of=np.array([executor for executor, _ in place_of_key_group], np.int32),
        lane_of=np.array([lane for _, lane in place_of_key_group], np.int32),
    )
