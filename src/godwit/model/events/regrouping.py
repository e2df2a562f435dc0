"""Events of components that are made anew while the stream runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from godwit.model.events.event import Event
from godwit.model.wording import counted, human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ComponentsRegrouped", "RegroupingCancelled", "RegroupingStarted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RegroupingEvent(Event):
    """What all of them say.

    Attributes
    ----------
    regrouping
        Its name.
    components
        Component that is made anew → its operators, separated by commas.
    """

    regrouping: str
    components: Mapping[str, str]

    @property
    def _made(self) -> str:
        return "; ".join(f"{name} of {of}" for name, of in self.components.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupingStarted(_RegroupingEvent):
    """Another physical plan was accepted; key groups move to be together first.

    Attributes
    ----------
    moves, state_bytes
        Key groups that have to move for it, and the state that is warmed for them.
    reason
        Why, with the numbers; empty if somebody asked for it.
    """

    moves: int
    state_bytes: int
    reason: str = ""

    def _line(self) -> str:
        why = f", since {self.reason}" if self.reason else ""
        return (
            f"regrouping {self.regrouping} started ({self._made}): "
            f"{counted(self.moves, 'key group')} to move, {human_bytes(self.state_bytes)}{why}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentsRegrouped(_RegroupingEvent):
    """The next epoch runs under another physical plan."""

    def _line(self) -> str:
        return f"components regrouped ({self.regrouping}): {self._made}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupingCancelled(_RegroupingEvent):
    """The physical plan stays as it is."""

    reason: str

    def _line(self) -> str:
        return f"regrouping {self.regrouping} cancelled: {self.reason}"
