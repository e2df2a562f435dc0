"""Instant and smooth migration: rows switch to an empty standby slot at the destination.

Two components, each of one state, are the two slots of every key group of one operator: each slot
has a place, copies and losses like any key group, so the rest of the protocol is independent of
slots.  One slot of each key group takes rows.  A migration without state activates the standby
slot, between two epochs, if it is empty.  A key group whose other slot is not empty yet, after an
earlier instant migration, migrates live; so do key groups that leave a draining executor, since
both slots must leave it.

Invariant: a slot gets entries only while it takes rows, and begins to take rows only when it is
empty, so at any time a key group has at most one slot more than it needs.

Source: instant and smooth migration, Madsen et al. (Enorm) §4.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.model import events

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.migration.component import TrackedComponent
    from godwit.migration.messages import SlotPair
    from godwit.migration.state import ProtocolState


def pair_of(run: ProtocolState, component: str) -> tuple[SlotPair, int] | None:
    """Return a component's slots (of two-phase windows), and its number among them (0 or 1).

    ``None`` if it has no slots.
    """
    states = run.copies.states(component)
    for pair in run.slots:
        for slot, state in enumerate(pair.states):
            if states == (state,):
                return pair, slot
    return None


def active_key_groups(
    component: TrackedComponent, run: ProtocolState
) -> tuple[frozenset[int] | None, frozenset[int]]:
    """Return the key groups whose rows a slot takes, and those that are switching smoothly.

    Of the latter the other slot still takes rows of earlier panes. The first is ``None`` for a
    component without slots.
    """
    pair_and_slot = pair_of(run, component.name)
    if pair_and_slot is None:
        return None, frozenset()
    pair, slot = pair_and_slot
    size = component.assignment.num_key_groups
    takes = frozenset(key_group for key_group in range(size) if pair.is_active(slot, key_group))
    return takes, takes & pair.smooth


def _pair_and_other(
    component: TrackedComponent, components: Mapping[str, TrackedComponent], run: ProtocolState
) -> tuple[SlotPair, int, TrackedComponent] | None:
    """Return a component's slot pair, its slot (0 or 1), and the component of the other slot.

    ``None`` if it has no slots.
    """
    pair_and_slot = pair_of(run, component.name)
    if pair_and_slot is None:
        return None
    pair, slot = pair_and_slot
    states = (pair.states[1 - slot],)
    other = next((c for c in components.values() if run.copies.states(c.name) == states), None)
    return None if other is None else (pair, slot, other)


def instant_key_groups(
    component: TrackedComponent, components: Mapping[str, TrackedComponent], run: ProtocolState
) -> frozenset[int]:
    """Return the key groups of two-phase windows that can migrate without state.

    Their standby slot is empty.
    """
    pair_and_slots = _pair_and_other(component, components, run)
    if pair_and_slots is None:
        return frozenset()
    pair, slot, other = pair_and_slots
    busy = other.suspended.keys() | other.transfers.keys() | other.waiting
    if other.migration is not None:
        busy |= other.migration.moves.keys()
    size, executor = component.assignment.num_key_groups, component.assignment.executor
    return frozenset(
        key_group
        for key_group in pair.empty[1 - slot] - busy
        if key_group < size
        and pair.is_active(slot, key_group)
        and executor(key_group) not in run.draining
    )


def activate_standby(
    component: TrackedComponent, components: Mapping[str, TrackedComponent], run: ProtocolState
) -> None:
    """Switch migrating key groups to their empty standby slots; called between epochs."""
    migration = component.migration
    if migration is None or not migration.strategy.activates_standby or migration.activated:
        return
    migration.activated = True
    pair_and_slots = _pair_and_other(component, components, run)
    if pair_and_slots is None:
        return  # regrouped since the request: it migrates live
    pair, slot, other = pair_and_slots
    activating = instant_key_groups(component, components, run)
    places = {
        key_group: move.destination
        for key_group, move in migration.moves.items()
        if key_group in activating
    }
    if not places:
        return
    for key_group, destination in places.items():
        del migration.moves[key_group]
        pair.second ^= {key_group}
        pair.smooth.discard(key_group)
        if migration.strategy.is_smooth:
            pair.smooth.add(key_group)
        pair.empty[1 - slot].discard(key_group)
        source = other.assignment.executor(key_group)
        if source != destination:
            other.retired.setdefault(source, set()).add(key_group)
    migration.moved += len(places)
    migration.ends_after = run.horizon
    lags = {
        key_group
        for key_group, destination_ in places.items()
        if other.lag(run, key_group, destination_) > migration.bounds.max_lag
    }
    other.switch_to(run, other.arranged(run, places))
    other.load = (other.load - places.keys()) | lags
    run.announce(events.KeyGroupsLoaded, other.name, lags)
