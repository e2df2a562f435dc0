"""Strategies of migration, and their bounds.

A strategy decides only *when* a key group may switch and whether epochs go on meanwhile; all of
them share one protocol, so they can be compared on the same stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from godwit.model.errors import InvalidPlanError
from godwit.model.frames import user_class
from godwit.model.naming import insist_on_number


class Strategy(StrEnum):
    """Rule for when a moving key group may switch; the protocol asks only its properties below."""

    LIVE = "live"
    """Each key group by itself, as soon as its copy is nearly fresh (Ding et al. §3.2)."""
    DISRUPTIVE = "disruptive"
    """All at the next epoch, which waits for the load (Enorm §4.5)."""
    STOP_THE_WORLD = "stop_the_world"
    """All together, once every copy is fresh; no epoch runs until then (the baseline)."""
    INSTANT = "instant"
    """At the next epoch, and no state moves: an empty slot at the destination takes the rows from
    then on. Only windows that are consolidated apart (Enorm §4.5)."""
    SMOOTH = "smooth"
    """Likewise, but rows of panes that have begun go where they went before (Enorm §4.5)."""

    @property
    def warms(self) -> bool:
        """True if copies are warmed before the switch."""
        return self is not Strategy.DISRUPTIVE

    @property
    def activates_standby(self) -> bool:
        """True if key groups activate their standby slots, as far as they can."""
        return self in (Strategy.INSTANT, Strategy.SMOOTH)

    @property
    def is_smooth(self) -> bool:
        """True if panes that have begun stay where they are."""
        return self is Strategy.SMOOTH

    @property
    def holds_epochs(self) -> bool:
        """True if no epoch runs until the switch."""
        return self is Strategy.STOP_THE_WORLD


class LossPolicy(StrEnum):
    """Treatment of key groups without a fresh copy."""

    SUSPEND = "suspend"
    """Their rows wait until a copy is warm; the rest of the stream goes on."""
    LOAD = "load"
    """The next epoch loads them before it processes them."""


class CopiesFrom(StrEnum):
    """Source of the copies that are warmed at another executor."""

    QUICKER = "quicker"
    """From whichever delivered more bytes a second of late."""
    CHECKPOINT = "checkpoint"
    """Always from the checkpoint: executors that hold copies spend nothing."""
    PEERS = "peers"
    """From executors that hold them, as far as there are any; else from the checkpoint."""


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits on one migration.

    Attributes
    ----------
    max_moves
        Key groups in flight at once (warming, or warm and not yet switched).
    max_bytes
        State in flight at once, in bytes. A key group that is larger by itself moves alone.
    max_lag
        A copy that misses at most this many epochs is warm; the lane applies the rest.
    max_rounds
        Where copies keep falling behind, this many rounds of catching up are tried, then the key
        group switches and its lane loads what is missing: every migration ends.

    Raises
    ------
    InvalidPlanError
        If a limit leaves no room for anything.
    """

    max_moves: int = 32
    max_bytes: int = 256 * 2**20
    max_lag: int = 2
    max_rounds: int = 4

    def __post_init__(self) -> None:
        for name, least in (("max_moves", 1), ("max_bytes", 1), ("max_lag", 0), ("max_rounds", 1)):
            insist_on_number(
                f"The bound {name} of a migration",
                getattr(self, name),
                least=least,
                error=InvalidPlanError,
            )


UNBOUNDED = Bounds(max_moves=2**31, max_bytes=2**62, max_lag=0)
"""Bounds of a migration that stops the stream: all at once, nothing left to apply."""


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings of all migrations of a run.

    Attributes
    ----------
    on_loss
        For key groups of an executor that died.
    on_start
        For key groups at the start of a run that resumes a checkpoint: every local store is empty.
    recovery
        Bounds on copies that are warmed because of a loss.
    patience
        Seconds without an answer after which warming is ordered again; doubles with every silence,
        since the state may just be large. An answer to an earlier order counts all the same.
    max_attempts
        Attempts (failed or silent) after which a planned move is withdrawn and a suspended key
        group is loaded by its lane, where the true error shows.
    copies_from
        Where copies come from.

    Raises
    ------
    InvalidPlanError
        If `patience` or `max_attempts` is less than 1.
    """

    on_loss: LossPolicy = LossPolicy.SUSPEND
    on_start: LossPolicy = LossPolicy.LOAD
    recovery: Bounds = field(default_factory=Bounds)
    patience: int = 60
    max_attempts: int = 4
    copies_from: CopiesFrom = CopiesFrom.QUICKER

    def __post_init__(self) -> None:
        for name in ("patience", "max_attempts"):
            insist_on_number(
                f"The migration policy's {name}",
                getattr(self, name),
                least=1,
                error=InvalidPlanError,
            )
        for name, kind in (
            ("on_loss", LossPolicy),
            ("on_start", LossPolicy),
            ("copies_from", CopiesFrom),
        ):
            given = getattr(self, name)
            if given not in tuple(kind):
                raise InvalidPlanError(
                    f"The migration policy's {name} is {given!r}.",
                    remedy=f"Give one of {', '.join(kind)}.",
                    value=given,
                )
            object.__setattr__(self, name, kind(given))
        if not isinstance(self.recovery, Bounds):
            raise InvalidPlanError(
                f"The migration policy's recovery is {self.recovery!r}.",
                remedy="Give gw.Bounds, as in gw.Policy(recovery=gw.Bounds(max_moves=8)).",
                value=self.recovery,
            )
