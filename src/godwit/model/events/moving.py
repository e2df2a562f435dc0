"""Events of migrations and of regrouping components."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from godwit.model.events.event import Event
from godwit.model.wording import counted, human_bytes, key_groups_listed

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "AssignmentSwitched",
    "ComponentsRegrouped",
    "FormsCompared",
    "KeyGroupsLoaded",
    "KeyGroupsResumed",
    "KeyGroupsSuspended",
    "KeyGroupsWarmed",
    "MigrationCancelled",
    "MigrationFinished",
    "MigrationStarted",
    "PeerTransferFailed",
    "RegroupingCancelled",
    "RegroupingStarted",
    "WarmingStarted",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MigrationEvent(Event):
    migration: str
    component: str

    @property
    def _which(self) -> str:
        return f"migration {self.migration} of {self.component}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationStarted(_MigrationEvent):
    """A plan was accepted and is being carried out."""

    strategy: str
    moves: int
    state_bytes: int = 0

    def _line(self) -> str:
        return (
            f"{self._which} started ({self.strategy}): {counted(self.moves, 'key group')}, "
            f"{human_bytes(self.state_bytes)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationFinished(_MigrationEvent):
    """A migration is over, and an epoch has been committed under its last assignment."""

    moved: int
    withdrawn: int = 0

    def _line(self) -> str:
        rest = f", {self.withdrawn} withdrawn" if self.withdrawn else ""
        return f"{self._which} finished: {counted(self.moved, 'key group')} moved{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationCancelled(_MigrationEvent):
    """A migration ended early; what had moved stays where it is."""

    reason: str
    moved: int = 0
    withdrawn: int = 0

    def _line(self) -> str:
        return (
            f"{self._which} cancelled: {self.reason} "
            f"({self.moved} moved, {self.withdrawn} withdrawn)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeyGroupEvent(Event):
    component: str
    key_groups: tuple[int, ...]

    @property
    def _which(self) -> str:
        return f"{self.component}: {key_groups_listed(self.key_groups)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmingStarted(_KeyGroupEvent):
    """An executor began to load copies in the background."""

    executor: str  # where
    # executors that are to send copies; the rest is read from the checkpoint
    peers: tuple[str, ...] = ()
    why: str = ""  # why from there; empty where there was nothing to choose

    def _line(self) -> str:
        source = f" from {', '.join(self.peers)}" if self.peers else ""
        why = f"{'' if source else ' from the checkpoint'} ({self.why})" if self.why else ""
        return (
            f"{self.component}: warming {key_groups_listed(self.key_groups)} "
            f"at {self.executor}{source}{why}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTransferFailed(_KeyGroupEvent):
    """An executor did not send its copies; they are read from the checkpoint."""

    executor: str
    source: str
    reason: str

    def _line(self) -> str:
        return f"{self._which} did not come from {self.source} to {self.executor}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsWarmed(_KeyGroupEvent):
    """An executor holds fresh copies of key groups that it may own soon."""

    executor: str  # where
    state_bytes: int = 0  # their state; of that, `peer_bytes` came from other executors
    peer_bytes: int = 0
    duration_ms: float = 0.0  # what it took

    def _line(self) -> str:
        peers = f", {human_bytes(self.peer_bytes)} from peers" if self.peer_bytes else ""
        return (
            f"{self._which} warm at {self.executor} "
            f"({human_bytes(self.state_bytes)} in {self.duration_ms:.0f} ms{peers})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsSuspended(_KeyGroupEvent):
    """Key groups have no state where they are; from now on their rows wait."""

    def _line(self) -> str:
        return f"{self._which} suspended, their rows wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsResumed(_KeyGroupEvent):
    """The next epoch processes the rows that waited, in order, and then its own."""

    def _line(self) -> str:
        return f"{self._which} resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroupsLoaded(_KeyGroupEvent):
    """The next epoch loads key groups before it processes them."""

    def _line(self) -> str:
        return f"{self._which} loaded by the next epoch"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSwitched(Event):
    """The next epoch runs under another assignment."""

    component: str
    version: int  # version of the new assignment
    key_groups: tuple[int, ...] = ()  # those that changed executor (none where only lanes changed)

    def _line(self) -> str:
        moved = (
            f"moves {key_groups_listed(self.key_groups)}"
            if self.key_groups
            else "changes lanes only"
        )
        return f"{self.component}: assignment {self.version} {moved}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RegroupingEvent(Event):
    """Fields of all regrouping events."""

    regrouping: str  # its name
    # component that is made anew → its operators, separated by commas
    components: Mapping[str, str]

    @property
    def _made(self) -> str:
        return "; ".join(f"{name} of {of}" for name, of in self.components.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupingStarted(_RegroupingEvent):
    """Another physical plan was accepted; key groups move to be together first."""

    # moves, state_bytes: key groups that have to move for it, and the state that is warmed for them
    moves: int
    state_bytes: int
    reason: str = ""  # why, with the numbers; empty if somebody asked for it

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
    """A period of windows ended whose consolidation goes together or apart, as costs say."""

    operator: str  # the windowed aggregate
    # form, cheaper: ``"split"`` or ``"combined"``: what it was, and what it should be
    form: str
    cheaper: str
    epochs: int  # epochs of the period; what follows is for all of them together
    # split_ms, combined_ms: cPU time in either form
    split_ms: float
    combined_ms: float
    # split_latency_ms, combined_latency_ms: how long migrations take in either form
    split_latency_ms: float
    combined_latency_ms: float
    max_latency_ms: float | None = None  # how long they may; ``None``: as long as they like
    within: bool = True  # whether those of `cheaper` take no longer
    numbers: Mapping[str, float] = field(default_factory=dict)  # what it rests on: figure → value

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
