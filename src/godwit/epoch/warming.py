"""An order to warm, carried out state by state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.migration import Warmed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt
    from numpy import int64

    from godwit.epoch.instructor import Instructor
    from godwit.lane.messages import StateInstruction
    from godwit.migration import StartWarming
    from godwit.state.records import StateId

__all__ = ["warm_states"]


def warm_states(
    order: StartWarming,
    instructor: Instructor,
    *,
    held: Callable[[StateId], npt.NDArray[int64]],
    bring: Callable[[StateInstruction, int], Mapping[int, int]],
) -> Warmed:
    """Warm the copies of all states of a component.

    Parameters
    ----------
    order
        Whose copies, and where.
    instructor
        Knows what brings a copy forward.
    held
        State → shape ``(num_key_groups,)``: versions that the executor holds now.
    bring
        Brings copies of one state to the committed version; returns key group → version of the
        table that is there then.
    """
    tables, reached = {}, []
    for state in order.states:
        told, committed = instructor.catching_up(state, held(state), order.key_groups)
        versions = tables[state] = bring(told, committed)
        # A key group that has no state at all is as warm as can be: its copy misses nothing.
        reached.append({g: max(versions.get(g, -1), committed) for g in order.key_groups})
    reach = {g: min(epochs[g] for epochs in reached) for g in order.key_groups}
    return Warmed(tables=tables, reach=reach)
