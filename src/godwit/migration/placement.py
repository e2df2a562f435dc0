"""Next assignments: towards a target, and away from lost executors.

Pure functions.  Every result is total; ties are broken by name and number, so the same facts lead
to the same assignment.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from godwit.model.assignment import Assignment
from godwit.model.errors import InvalidPlanError
from godwit.placement.solution import move_order

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from godwit.migration.state import ProtocolView
    from godwit.model.assignment import Move


def arrange(
    current: Assignment,
    places: Mapping[int, str],
    *,
    roster: Iterable[str],
    lanes: Mapping[str, int],
    target: Assignment | None = None,
    align: bool = False,
) -> Assignment:
    """Return the next assignment, with some key groups moved and an updated list of executors.

    A key group that moves to its executor in `target` gets its lane in `target`; another gets the
    lane with the fewest key groups. With `align`, key groups that stay on their executor of
    `target` also get their lane of `target`. `roster`: executors to list, in order, even without
    key groups; others that still own key groups follow them.
    """
    names = list(dict.fromkeys((*roster, *current.executors, *places.values())))
    index_of = {name: index for index, name in enumerate(names)}
    owner_before = np.array([index_of[name] for name in current.executors], np.int32)[
        current.executor_of
    ]
    owner = owner_before.copy()
    for key_group, executor in places.items():
        owner[key_group] = index_of[executor]

    listed = set(roster)
    owning = set(np.unique(owner).tolist())
    kept_executors = [
        index for index, name in enumerate(names) if name in listed or index in owning
    ]
    renumbered = np.full(len(names), -1, np.int32)
    renumbered[kept_executors] = np.arange(len(kept_executors), dtype=np.int32)
    num_lanes = np.array([lanes[names[index]] for index in kept_executors], np.int32)

    is_moved = owner != owner_before
    owner = renumbered[owner]
    lane = current.lane_of % num_lanes[owner]
    has_lane = ~is_moved
    if target is not None:
        target_owner = np.array(
            [renumbered[index_of[name]] if name in index_of else -1 for name in target.executors],
            np.int32,
        )[target.executor_of]
        has_target_lane = (target_owner == owner) & (target.lane_of < num_lanes[owner])
        has_target_lane &= is_moved | align
        lane = np.where(has_target_lane, target.lane_of, lane)
        has_lane |= has_target_lane
    for key_group in np.flatnonzero(~has_lane).tolist():
        executor_index = owner[key_group]
        lanes_of_executor = lane[has_lane & (owner == executor_index)]
        lane[key_group] = int(
            np.bincount(lanes_of_executor, minlength=num_lanes[executor_index]).argmin()
        )
        has_lane[key_group] = True
    return Assignment(
        version=current.version + 1,
        executors=tuple(names[index] for index in kept_executors),
        lanes=tuple(num_lanes.tolist()),
        executor_of=owner.astype(np.int32),
        lane_of=lane.astype(np.int32),
    )


def change_lanes(
    component: str, current: Assignment, *, lanes: Mapping[str, int], lane_of: Mapping[int, int]
) -> Assignment:
    """Return the next assignment, with some key groups on other lanes of the same executors.

    If an executor gets fewer lanes, key groups of the removed lanes are distributed over the
    others.

    Raises `InvalidPlanError` if an executor, key group or lane does not exist.
    """
    unknown = sorted(lanes.keys() - set(current.executors))
    if unknown or any(lane_number < 1 for lane_number in lanes.values()):
        raise InvalidPlanError(
            f"Lanes {dict(lanes)} cannot be given to component {component!r}.",
            remedy=f"Give at least 1 to any of its executors: {', '.join(current.executors)}.",
            component=component,
        )
    counts = tuple(
        lanes.get(executor, lane_number)
        for executor, lane_number in zip(current.executors, current.lanes, strict=True)
    )
    limits = np.array(counts, np.int32)[current.executor_of]
    out_of_range = sorted(
        g
        for g, lane_number in lane_of.items()
        if not (0 <= g < len(limits) and 0 <= lane_number < limits[g])
    )
    if out_of_range:
        raise InvalidPlanError(
            f"Key group {out_of_range[0]} of component {component!r} cannot take lane "
            f"{lane_of[out_of_range[0]]} "
            f"({len(out_of_range)} such key groups).",
            remedy=f"Key groups are 0 to {len(limits) - 1}; lanes are {counts} for executors "
            f"{', '.join(current.executors)}, counted from 0.",
            component=component,
            key_groups=tuple(out_of_range),
        )
    changed = current.lane_of % limits
    for key_group, lane in lane_of.items():
        changed[key_group] = lane
    return replace(
        current,
        version=current.version + 1,
        lanes=counts,
        executor_of=current.executor_of.copy(),
        lane_of=changed,
    )


def distribute_evenly(
    key_groups: Iterable[int],
    *,
    candidates: Collection[str],
    assignment: Assignment,
    state_bytes: Mapping[int, int],
) -> dict[int, str]:
    """Distribute key groups over executors evenly, by bytes of state, then by number.

    The largest goes first, each to the executor with the fewest bytes (longest processing time
    first).
    `candidates`: executors that may take them; other key groups that they own in `assignment`
    count. `state_bytes`: key group → bytes of state; 0 if unknown. Returns key group → executor.
    """
    homeless = sorted(key_groups, key=lambda g: (-state_bytes.get(g, 0), g))
    moving = set(homeless)
    heap: list[tuple[int, int, str]] = []
    for name in candidates:
        owned: list[int] = []
        if name in assignment.executors:
            owned = [g for g in assignment.key_groups(name).tolist() if g not in moving]
        heap.append((sum(state_bytes.get(g, 0) for g in owned), len(owned), name))
    heapq.heapify(heap)
    places: dict[int, str] = {}
    for key_group in homeless:
        size, count, name = heap[0]
        places[key_group] = name
        heapq.heapreplace(heap, (size + state_bytes.get(key_group, 0), count + 1, name))
    return places


def check_target(
    component: str,
    current: Assignment,
    target: Assignment,
    *,
    executors: Collection[str],
    draining: Collection[str],
) -> None:
    """Raise `InvalidPlanError` if a plan cannot be carried out on the present executors.

    It has another number of key groups, names an executor that does not exist, or moves a key group
    to one that is draining.
    """
    if target.num_key_groups != current.num_key_groups:
        raise InvalidPlanError(
            f"The plan for component {component!r} places {target.num_key_groups} key groups, "
            f"but the component has {current.num_key_groups}.",
            remedy="Plan on the component's current assignment; the number never changes.",
            component=component,
        )
    unknown = [name for name in target.executors if name not in executors]
    if unknown:
        raise InvalidPlanError(
            f"The plan for component {component!r} uses executors that are not running: "
            f"{', '.join(unknown)}.",
            remedy=f"Plan again on running executors: {', '.join(sorted(executors)) or 'none'}.",
            component=component,
            executors=tuple(unknown),
        )
    moves = current.moves_to(target) if draining else ()
    onto = [move for move in moves if move.destination in draining]
    if onto:
        raise InvalidPlanError(
            f"The plan for component {component!r} moves key group {onto[0].key_group} onto "
            f"executor {onto[0].destination!r}, which is draining ({len(onto)} such moves).",
            remedy="Give the planner the draining executors, so that it only empties them.",
            component=component,
            key_groups=tuple(move.key_group for move in onto),
        )


def with_newcomers(assignment: Assignment, executors: Mapping[str, int]) -> Assignment:
    """Return an assignment that also lists executors (name → lanes) without key groups."""
    new = sorted(executors.keys() - set(assignment.executors), key=lambda name: (len(name), name))
    if not new:
        return assignment
    return assignment.on(
        [*assignment.executors, *new], [*assignment.lanes, *(executors[name] for name in new)]
    )


def shown_assignments(
    view: ProtocolView, shown_name: Callable[[str], str]
) -> dict[str, Assignment]:
    """Return the next epoch's assignment of each component as shown to users, upstream first.

    Two-phase windows are several components internally and one for users, with the assignment of
    the active slots: each key group is where the slot that takes its rows is. `shown_name`: name of
    a component → name for users.
    """
    shown: dict[str, Assignment] = {}
    for name, component in view.components.items():
        shown_component, places = shown_name(name), component.assignment
        if shown_component not in shown:
            shown[shown_component] = places
        elif component.takes:
            merged = with_newcomers(shown[shown_component], view.executors)
            owners = {key_group: places.executor(key_group) for key_group in component.takes}
            shown[shown_component] = merged.moved(
                {
                    key_group: owner
                    for key_group, owner in owners.items()
                    if owner in merged.executors
                }
            )
    return shown


def order_moves(
    moves: Iterable[Move], current: Assignment, loads: Mapping[int, float]
) -> tuple[Move, ...]:
    """Return moves in order: the most overloaded executor first, then the best load per byte.

    An executor's load is that of its key groups, divided by its lanes (1 if it is not listed); a
    key group that is not in `loads` counts 1. Ties go to the smaller name, then key group.
    """
    by_key_group = {move.key_group: move for move in moves}
    names = sorted({*current.executors, *(m.destination for m in by_key_group.values())})
    place = {name: number for number, name in enumerate(names)}
    lanes = dict(zip(current.executors, current.lanes, strict=True))
    size = current.num_key_groups
    now = np.array([place[name] for name in current.executors], np.int32)[current.executor_of]
    after, state_bytes, load = now.copy(), np.zeros(size), np.ones(size)
    for key_group, weight in loads.items():
        load[key_group] = weight
    for key_group, move in by_key_group.items():
        after[key_group], state_bytes[key_group] = place[move.destination], move.state_bytes
    order = move_order(
        now,
        after,
        load=load,
        state_bytes=state_bytes,
        speed=np.array([lanes.get(name, 1) for name in names], np.float64),
        draining=np.zeros(len(names), np.bool_),
    )
    return tuple(by_key_group[key_group] for key_group in order.tolist())
