"""Events of migrations, and of the key groups that they move."""

from __future__ import annotations

from dataclasses import dataclass

from godwit.model.events.event import Event
from godwit.model.wording import counted, human_bytes, key_groups_listed

__all__ = [
    "AssignmentSwitched",
    "KeyGroupsLoaded",
    "KeyGroupsResumed",
    "KeyGroupsSuspended",
    "KeyGroupsWarmed",
    "MigrationCancelled",
    "MigrationFinished",
    "MigrationStarted",
    "PeerTransferFailed",
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
    """An executor began to load copies in the background.

    Attributes
    ----------
    executor
        Where.
    peers
        Executors that are to send copies; the rest is read from the checkpoint.
    why
        Why from there; empty where there was nothing to choose.
    """

    executor: str
    peers: tuple[str, ...] = ()
    why: str = ""

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
    """An executor holds fresh copies of key groups that it may own soon.

    Attributes
    ----------
    executor
        Where.
    state_bytes
        Their state; of that, `peer_bytes` came from other executors.
    duration_ms
        What it took.
    """

    executor: str
    state_bytes: int = 0
    peer_bytes: int = 0
    duration_ms: float = 0.0

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
    """The next epoch runs under another assignment.

    Attributes
    ----------
    version
        Version of the new assignment.
    key_groups
        Those that changed executor (none where only lanes changed).
    """

    component: str
    version: int
    key_groups: tuple[int, ...] = ()

    def _line(self) -> str:
        moved = (
            f"moves {key_groups_listed(self.key_groups)}"
            if self.key_groups
            else "changes lanes only"
        )
        return f"{self.component}: assignment {self.version} {moved}"
