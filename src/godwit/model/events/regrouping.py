"""Events of components that are made anew while the stream runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from godwit.model.events.event import Event
from godwit.model.wording import counted, human_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ComponentsRegrouped", "FormsCompared", "RegroupingCancelled", "RegroupingStarted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RegroupingEvent(Event):
    """Fields of all regrouping events.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FormsCompared(Event):
    """A period of windows ended whose consolidation goes together or apart, as costs say.

    Attributes
    ----------
    operator
        The windowed aggregate.
    form, cheaper
        ``"split"`` or ``"combined"``: what it was, and what it should be.
    epochs
        Epochs of the period; what follows is for all of them together.
    split_ms, combined_ms
        CPU time in either form.
    split_latency_ms, combined_latency_ms
        How long migrations take in either form.
    max_latency_ms
        How long they may; ``None``: as long as they like.
    within
        Whether those of `cheaper` take no longer.
    numbers
        What it rests on: figure → value.
    """

    operator: str
    form: str
    cheaper: str
    epochs: int
    split_ms: float
    combined_ms: float
    split_latency_ms: float
    combined_latency_ms: float
    max_latency_ms: float | None = None
    within: bool = True
    numbers: Mapping[str, float] = field(default_factory=dict)

    def _line(self) -> str:
        bound = ""
        if self.max_latency_ms is not None:
            bound = f" of {self.max_latency_ms:.0f} ms allowed"
            if not self.within:
                bound += f", which neither keeps to: {self.cheaper} comes closest"
        better = "stays so" if self.form == self.cheaper else f"{self.cheaper} would be better"
        return (
            f"{self.operator} is {self.form} and {better}: over {counted(self.epochs, 'epoch')} "
            f"split {self.split_ms:.1f} ms of CPU, combined {self.combined_ms:.1f} ms; "
            f"migrations take {self.split_latency_ms:.0f} ms split, "
            f"{self.combined_latency_ms:.0f} ms combined{bound}"
        )
