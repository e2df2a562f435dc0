"""An order to warm, carried out: copies from other executors first, then what they miss.

Invariant: what is warm in the end was brought forward from the checkpoint, whatever came before; a
peer that sends nothing, or something else, costs time and nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from godwit.migration import Delivery, Warmed
from godwit.model.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy.typing as npt
    from numpy import int64

    from godwit.checkpoint.records import StateId
    from godwit.engine.instructions import Instructor
    from godwit.engine.lane.messages import StateInstruction
    from godwit.migration import PeerCopies, StartWarming

__all__ = ["warm_states"]

_Versions = dict["StateId", "npt.NDArray[int64]"]
"""State → shape ``(num_key_groups,)``: versions; -1 where there is none."""


def warm_states(
    order: StartWarming,  # whose copies, and where
    instructor: Instructor,  # knows what brings a copy forward
    *,
    # state → shape ``(num_key_groups,)``: versions that the executor holds now
    held_versions: Callable[[StateId], npt.NDArray[int64]],
    transfers: Iterable[PeerCopies],  # what peers are to send, each when its links are free
    # has a peer send its copies; returns, of each state, key group → version of what came
    fetch: Callable[[PeerCopies], Mapping[StateId, Mapping[int, int]]],
    # brings copies of one state to the committed version; returns key group → version of the
    # table that is there then
    bring: Callable[[StateInstruction, int], Mapping[int, int]],
    now_s: Callable[[], float],  # the time, in seconds
) -> Warmed:
    """Warm the copies of all states of a component.

    Raises `MigrationError` if a peer has sent what nobody has committed.
    """
    versions: _Versions = {state: held_versions(state).copy() for state in order.states}
    nothing_here = [g for g in order.key_groups if all(v[g] < 0 for v in versions.values())]
    deliveries = list(_delivered(transfers, fetch, versions, now_s))
    sent = {g for d in deliveries if not d.failure for g in d.key_groups}
    began_s = now_s()
    tables, reached = {}, []
    for state in order.states:
        instruction, committed = instructor.catching_up(state, versions[state], order.key_groups)
        if (versions[state] > committed).any():
            raise MigrationError(
                f"A copy of {str(state)!r} came that is ahead of epoch {committed}, the last one "
                f"committed.",
                remedy="It does not count, and goes.",
                state=str(state),
            )
        versions_now = tables[state] = bring(instruction, committed)
        # A key group that has no state at all is as warm as can be: its copy misses nothing.
        reached.append({g: max(versions_now.get(g, -1), committed) for g in order.key_groups})
    reach = {g: min(epochs[g] for epochs in reached) for g in order.key_groups}
    rest = tuple(g for g in nothing_here if g not in sent)
    if rest:
        spent_ms = 1e3 * (now_s() - began_s)
        deliveries.append(Delivery(source=None, key_groups=rest, duration_ms=spent_ms))
    return Warmed(tables=tables, reach=reach, deliveries=tuple(deliveries))


def _delivered(
    transfers: Iterable[PeerCopies],
    fetch: Callable[[PeerCopies], Mapping[StateId, Mapping[int, int]]],
    versions: _Versions,
    now_s: Callable[[], float],
) -> Iterator[Delivery]:
    """Have peers send, and note in `versions` what came."""
    for asked in transfers:
        began_s, failure = now_s(), ""
        try:
            came = fetch(asked)
        except Exception as error:  # noqa: BLE001  whatever it is, the checkpoint has it too
            failure = str(error).split("\n", 1)[0]
        else:
            for state, of_state in came.items():
                for g, version in of_state.items():
                    versions[state][g] = max(version, int(versions[state][g]))
        yield Delivery(
            source=asked.executor,
            key_groups=asked.key_groups,
            duration_ms=1e3 * (now_s() - began_s),
            failure=failure,
        )
