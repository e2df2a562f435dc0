"""Executors that die: a migration that nobody planned.

Their key groups get a new place at once, so that the assignment stays total; what has no state
there is suspended or loaded, and the rest of the stream goes on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from godwit.migration.commands import LoadKeyGroups, SuspendKeyGroups
from godwit.migration.placement import spread
from godwit.migration.strategy import LossPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from godwit.migration.component import TrackedComponent
    from godwit.migration.situation import Situation

__all__ = ["cool", "relocate"]


def relocate(component: TrackedComponent, run: Situation) -> None:
    """Give key groups of executors that are gone a new place, at once."""
    component.orphaned |= not run.executors
    gone = [
        name
        for name in component.assignment.executors
        if component.orphaned or name not in run.executors
    ]
    if not gone or not run.executors:
        return
    component.orphaned = False
    lost = [g for name in gone for g in component.assignment.key_groups(name).tolist()]
    places = _refuges(component, run, lost)
    component.switch_to(run, component.arranged(run, places))
    cool(component, run, lost)


def _refuges(component: TrackedComponent, run: Situation, lost: Iterable[int]) -> dict[int, str]:
    """Where the lost go: as planned, else to the freshest copy, else evenly."""
    places: dict[int, str] = {}
    homeless: list[int] = []
    migration, enough = component.migration, run.policy.recovery.max_lag
    for g in lost:
        transfer = component.transfers.get(g)
        copies = [
            (component.lag(run, g, name), name) for name in run.copies.holders(component.name, g)
        ]
        if migration is not None and g in migration.moves:
            places[g] = migration.moves.pop(g).destination
            migration.moved += 1
        elif migration is not None and transfer is not None and transfer.planned:
            places[g] = transfer.destination
            component.transfers[g] = replace(transfer, planned=False)
            migration.moved += 1
        elif copies and min(copies)[0] <= enough:
            places[g] = min(copies)[1]
        else:
            homeless.append(g)
    return places | spread(
        homeless,
        candidates=run.executors.keys() - run.draining or run.executors.keys(),
        assignment=component.assignment,
        state_bytes=dict(enumerate(component.state_bytes.tolist())),
    )


def cool(component: TrackedComponent, run: Situation, key_groups: Iterable[int]) -> None:
    """Suspend key groups, or have them loaded, that have no fresh copy where they now are."""
    suspended, load = [], []
    for g in key_groups:
        if g in component.suspended:
            continue
        if component.lag(run, g, component.assignment.executor(g)) <= run.policy.recovery.max_lag:
            component.load.discard(g)
        elif run.on_cold is LossPolicy.LOAD:
            load.append(g)
        else:
            suspended.append(g)
            continue
        transfer = component.transfers.get(g)
        if transfer is not None and not transfer.planned:
            del component.transfers[g]
    component.suspended.update(dict.fromkeys(suspended, run.committed))
    component.load = (component.load - set(suspended)) | set(load)
    run.order(SuspendKeyGroups, component.name, suspended)
    run.order(LoadKeyGroups, component.name, load)
