"""Regroupings as the conductor carries them on: one at a time, a step after every fact.

The invariant: whatever has happened, the one question is what the stage under way needs next, and
nothing that it needs stops an epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from godwit.migration.ends import forget_oldest
from godwit.migration.inputs import ComponentsRegrouped
from godwit.migration.regrouping import OngoingRegrouping
from godwit.migration.regrouping_stages import moves_to_come
from godwit.model import events
from godwit.model.errors import GodwitError, MigrationError

if TYPE_CHECKING:
    from godwit.migration.conductor import Conductor
    from godwit.migration.inputs import LanesRequested, MigrationRequested
    from godwit.migration.regrouping import EndRegrouping, Regrouping

__all__ = ["Regroupings"]


class Regroupings:
    """The regroupings of one run.

    Parameters
    ----------
    conductor
        Told of every step.
    plan
        The physical plan that the run begins under, as whoever regroups knows it.

    Attributes
    ----------
    plan
        The physical plan of the epoch that runs, or of the next one.
    ended
        Regrouping → how it ended.
    """

    def __init__(self, conductor: Conductor, plan: Any) -> None:
        self._conductor = conductor
        self.plan = plan
        self.ended: dict[str, EndRegrouping] = {}
        self._ongoing: OngoingRegrouping | None = None
        self._own = ""

    def begin(self, request: Regrouping) -> None:
        """Begin a regrouping.

        Raises
        ------
        MigrationError
            If one is under way.
        """
        if self._ongoing is not None:
            raise MigrationError(
                f"Regrouping {request.id!r} is refused: {self._ongoing.request.id!r} is under way.",
                remedy="Wait for its end or cancel it, then look at what it left.",
                regrouping=self._ongoing.request.id,
            )
        ongoing = OngoingRegrouping(request=request, stages=list(request.stages))
        if not ongoing.stages:
            self._note_end(request.id, ongoing.end())
            return
        moves = moves_to_come(request.stages, self._conductor.view.components)
        sizes = {name: of for stage in request.stages for name, of in stage.state_bytes.items()}
        self._conductor.announce(
            events.RegroupingStarted,
            regrouping=request.id,
            components=request.components,
            reason=request.reason,
            moves=sum(map(len, moves.values())),
            state_bytes=sum(
                sizes.get(name, {}).get(move.key_group, 0) for name in moves for move in moves[name]
            ),
        )
        self._ongoing = ongoing
        self.go_on()

    def go_on(self) -> None:
        """Do what the regrouping under way needs next, if anything."""
        while (ongoing := self._ongoing) is not None and self._conductor.view.executors:
            if ongoing.is_ready(self._conductor.view):
                self._begin_stage(ongoing)
                continue
            try:
                request = ongoing.next_migration(self._conductor.view)
                if request is None:
                    return
                self._own = request.id
                self._conductor.migrate(request)
            except GodwitError as error:
                self._end(ongoing, error.message)

    def cancel(self, asked: str, reason: str) -> bool:
        """End a regrouping, if that is the name of the one under way."""
        if self._ongoing is None or self._ongoing.request.id != asked:
            return False
        self._end(self._ongoing, reason)
        for component in self._conductor.view.components.values():
            if component.migration is not None and component.migration.startswith(f"{asked}-"):
                self._conductor.cancel(component.migration, reason)
        return True

    def insist_on_staying(self, request: MigrationRequested | LanesRequested) -> None:
        """Refuse what somebody else asks of components that are about to be others.

        Raises
        ------
        MigrationError
            Says which regrouping is in the way.
        """
        ongoing = self._ongoing
        own = getattr(request, "id", None) == self._own
        if ongoing is not None and request.component in ongoing.concerned and not own:
            raise MigrationError(
                f"Component {request.component!r} is being regrouped ({ongoing.request.id}).",
                remedy="Wait for the end of the regrouping or cancel it, then plan again.",
                component=request.component,
            )

    def _note_end(self, regrouping: str, end: EndRegrouping) -> None:
        self.ended[regrouping] = end
        forget_oldest(self.ended)

    def _begin_stage(self, ongoing: OngoingRegrouping) -> None:
        stage = ongoing.stages.pop(0)
        self.plan = stage.plan
        if not ongoing.stages:
            self._ongoing = None
            self._note_end(ongoing.request.id, ongoing.end())
            self._conductor.announce(
                events.ComponentsRegrouped,
                regrouping=ongoing.request.id,
                components=ongoing.request.components,
            )
        self._conductor.regrouped(
            ComponentsRegrouped(
                parts=stage.parts,
                states=stage.states,
                state_bytes={name: stage.state_bytes.get(name, {}) for name in stage.parts},
            )
        )

    def _end(self, ongoing: OngoingRegrouping, reason: str) -> None:
        self._ongoing = None
        self._note_end(ongoing.request.id, ongoing.end(reason))
        self._conductor.announce(
            events.RegroupingCancelled,
            regrouping=ongoing.request.id,
            components=ongoing.request.components,
            reason=reason,
        )
