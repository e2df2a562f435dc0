"""The slots of key groups that migrate without their state, as the checkpoint has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from godwit.migration.situation import SlotPair
from godwit.model.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping

    from godwit.checkpoint.chains import Chains
    from godwit.checkpoint.flow_changes import FlowChanges
    from godwit.checkpoint.records import CommitRecord
    from godwit.operators.windows.slots import Slots
    from godwit.plan.compiled import CompiledFlow

__all__ = ["empty_slots", "insist_on_slots", "recorded_slots", "slot_pairs"]


def empty_slots(flow: CompiledFlow, chains: Chains) -> dict[Hashable, frozenset[int]]:
    """State that is a slot → key groups of which it holds nothing."""
    return {
        state: frozenset(np.flatnonzero(chains.is_empty(state)).tolist())
        for operator in flow.operators
        if operator.two_phase is not None and operator.two_phase.slot is not None
        for state in operator.states
    }


def slot_pairs(
    flow: CompiledFlow, chains: Chains, held: Mapping[str, Slots]
) -> tuple[SlotPair, ...]:
    """Slots of the operators whose windows are consolidated apart, as the last epoch left them."""
    empty = empty_slots(flow, chains)
    pairs = []
    for name, slots in held.items():
        role = flow.operator(name).two_phase
        assert role is not None, "no other operator has slots"
        states = tuple(flow.operator(n).states[0] for n in (role.first, role.second))
        pair = SlotPair(
            states=(states[0], states[1]), second=set(np.flatnonzero(slots.active).tolist())
        )
        pair.note(empty)
        pairs.append(pair)
    return tuple(pairs)


def recorded_slots(
    latest: CommitRecord | None, changes: FlowChanges
) -> dict[str, list[tuple[int, int, int, int]]]:
    """Operator, by its name of today → slots of its key groups as the last epoch left them.

    Those of operators that are gone from the flow are kept with their state; those of operators
    that were dropped, or start empty, are not.
    """
    dropped = () if changes.version is None else changes.version.dropped
    recorded = {} if latest is None else latest.slots
    today = {changes.renamed.get(n, n): of for n, of in recorded.items() if n not in dropped}
    return {name: of for name, of in today.items() if name not in changes.added}


def insist_on_slots(flow: CompiledFlow, recorded: Collection[str]) -> None:
    """Refuse to go on without slots that still hold partials of open windows.

    Parameters
    ----------
    flow
        The flow.
    recorded
        Operators of which the checkpoint has slots, by their names of today.

    Raises
    ------
    CheckpointMismatchError
        Names the operator.
    """
    apart = {o.two_phase.first for o in flow.operators if o.two_phase is not None}
    for name in sorted({operator.name for operator in flow.operators}.intersection(recorded)):
        if name not in apart:
            raise CheckpointMismatchError(
                f"Operator {name!r} has key groups in the checkpoint that have migrated without "
                "their state: part of it lies in slots which only an operator has whose windows "
                "are consolidated apart.",
                remedy="Leave consolidate='apart' as it was. To have one component all the same, "
                "start with components= that put its operators together.",
                operator=name,
            )
