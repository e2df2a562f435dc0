"""Migration strategies, limits on migrations, and the policy for lost executors.

A strategy decides *when* a key group switches to its new executor, and if epochs run
meanwhile. All strategies use one protocol, so they can be compared on the same stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from godwit.model.errors import InvalidPlanError
from godwit.model.frames import user_class
from godwit.model.naming import check_number


class Strategy(StrEnum):
    """Ways to migrate: when key groups change their executor, and if their state is copied before.

    Pass one, or its value such as ``"live"``, as ``query.migrate(..., strategy=...)``. ``LIVE``:
    each key group when its copy is up to date; epochs continue. ``DISRUPTIVE``: all at the next
    epoch, which loads their state first. ``ON_DEMAND``: all once their state is indexed, or after
    two seconds; epochs then read the state of the keys of their rows from the checkpoint, and the
    rest behind their work.
    ``STOP_THE_WORLD``: all once their copies are complete; no epoch runs until then. ``INSTANT``
    and ``SMOOTH``: all at the next epoch, without state; two-phase windows only. With ``SMOOTH``,
    rows of panes that have begun still go to the old executor.

    Examples
    --------
    >>> [strategy.value for strategy in gw.migration.Strategy]
    ['live', 'disruptive', 'on_demand', 'stop_the_world', 'instant', 'smooth']
    >>> gw.migration.Strategy.LIVE.warms
    True
    """

    LIVE = "live"
    """Epochs continue; each key group switches when its copy is up to date (Ding et al. §3.2)."""
    DISRUPTIVE = "disruptive"
    """All key groups switch at the next epoch, whose lanes load their state first (Enorm §4.5)."""
    ON_DEMAND = "on_demand"
    """All switch at once, and lanes fetch the state of the keys of their rows (Meces).

    Before, destinations index the state, for up to two seconds. Later epochs fetch the rest, the
    keys of their rows first (Gu et al., ATC 2022). Only for state of some size, and operators that
    read no other keys; see `godwit.migration.on_demand`.
    """
    STOP_THE_WORLD = "stop_the_world"
    """No epoch runs until all copies are complete; then all key groups switch (the baseline)."""
    INSTANT = "instant"
    """All switch at the next epoch, without state: two-phase windows only (Enorm §4.5).

    An empty slot at the destination takes the rows from then on, and results merge both slots.
    """
    SMOOTH = "smooth"
    """As ``INSTANT``, but rows of panes that have begun still go to the old place (Enorm §4.5)."""

    @classmethod
    def _missing_(cls, value: object) -> Strategy:
        """Raise for a strategy that does not exist; called by `enum`."""
        raise InvalidPlanError(
            f"There is no strategy {value!r}.", remedy=f"Use one of {', '.join(cls)}."
        )

    @property
    def warms(self) -> bool:
        """True if copies of the state are brought up to date before key groups switch.

        Examples
        --------
        >>> gw.migration.Strategy.LIVE.warms, gw.migration.Strategy.DISRUPTIVE.warms
        (True, False)
        """
        return self not in (Strategy.DISRUPTIVE, Strategy.ON_DEMAND)

    @property
    def activates_standby(self) -> bool:
        """True if key groups of two-phase windows switch without state, to their standby slots.

        Examples
        --------
        >>> gw.migration.Strategy.INSTANT.activates_standby
        True
        """
        return self in (Strategy.INSTANT, Strategy.SMOOTH)

    @property
    def is_smooth(self) -> bool:
        """True for ``SMOOTH``: rows of panes that have begun still go to the old executor.

        Examples
        --------
        >>> gw.migration.Strategy.SMOOTH.is_smooth
        True
        """
        return self is Strategy.SMOOTH

    @property
    def holds_epochs(self) -> bool:
        """True if epochs are held from the request until key groups switch.

        Examples
        --------
        >>> [strategy.value for strategy in gw.migration.Strategy if strategy.holds_epochs]
        ['stop_the_world']
        """
        return self is Strategy.STOP_THE_WORLD


class LossPolicy(StrEnum):
    """Treatment of key groups whose executor has no up-to-date copy of their state.

    That is so after the loss of an executor, and at a restart. Pass it as
    ``gw.migration.Policy(on_loss=...)`` or ``gw.migration.Policy(on_start=...)``.

    ``ON_DEMAND``: the next epoch reads the state of the keys of its rows from the checkpoint, and
    later epochs read the rest; where this is not possible, or the state is small, as ``SUSPEND``.
    ``SUSPEND``: their rows wait until a copy is up to date; other key groups continue. ``LOAD``: no
    row waits; where state is small or cannot be fetched on demand, the next epoch loads it first,
    so it takes longer.

    Examples
    --------
    >>> gw.migration.Policy(on_loss=gw.migration.LossPolicy.LOAD).on_loss.value
    'load'
    """

    ON_DEMAND = "on_demand"
    """The next epoch reads the state of its rows' keys, later ones the rest; or as ``SUSPEND``."""
    SUSPEND = "suspend"
    """Their rows wait until a copy is up to date; other key groups continue."""
    LOAD = "load"
    """As ``ON_DEMAND``, or the next epoch loads their state first, so it takes longer."""


class CopiesFrom(StrEnum):
    """Place from which the state of moving key groups is copied.

    Pass it as ``gw.migration.Policy(copies_from=...)``.

    ``CHECKPOINT``: always the checkpoint. ``PEERS``: executors that have a copy, else the
    checkpoint. ``QUICKER``: whichever of the two recently delivered more bytes per second.

    Examples
    --------
    >>> gw.migration.Policy(copies_from=gw.migration.CopiesFrom.CHECKPOINT).copies_from.value
    'checkpoint'
    """

    QUICKER = "quicker"
    """From whichever of the two below recently delivered more bytes per second."""
    CHECKPOINT = "checkpoint"
    """Always from the checkpoint, which costs the executors that hold copies no time."""
    PEERS = "peers"
    """From executors that hold a copy, if there are any; else from the checkpoint."""


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits on what one migration has in flight: being copied, or copied and not yet switched.

    Pass it as ``query.migrate(..., bounds=...)`` or ``gw.Control(bounds=...)``.

    Attributes
    ----------
    max_moves
        Maximum number of key groups in flight.
    max_bytes
        Maximum bytes of state in flight. A key group that is larger moves alone.
    max_lag
        Maximum number of epochs that a copy may lack when its key group switches to it; the lane
        applies their changes after the switch.
    max_rounds
        Maximum number of attempts to catch up for a copy that keeps falling behind; then its key
        group switches anyway, and its lane loads the missing changes. So every migration ends.

    Raises
    ------
    InvalidPlanError
        If a limit is below its minimum: 0 for `max_lag`, else 1.

    Examples
    --------
    >>> gentle = gw.migration.Bounds(max_moves=8, max_bytes=32 * 2**20)
    >>> query.migrate(target, bounds=gentle)  # doctest: +SKIP
    >>> gentle.max_moves
    8
    """

    max_moves: int = 32
    max_bytes: int = 256 * 2**20
    max_lag: int = 2
    max_rounds: int = 4

    def __post_init__(self) -> None:
        for name, minimum in (
            ("max_moves", 1),
            ("max_bytes", 1),
            ("max_lag", 0),
            ("max_rounds", 1),
        ):
            check_number(
                f"The bound {name} of a migration",
                getattr(self, name),
                least=minimum,
                error=InvalidPlanError,
            )


UNBOUNDED = Bounds(max_moves=2**31, max_bytes=2**62, max_lag=0)
"""Bounds for ``STOP_THE_WORLD``: all key groups at once, copies complete."""


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings for recovery after the loss of an executor, and for copies of state.

    Pass it as ``flow.start(policy=...)``.

    Attributes
    ----------
    on_loss
        Treatment of the key groups of an executor that was lost: a `LossPolicy`.
    on_start
        Treatment of all key groups when a run resumes a checkpoint, because local stores are empty
        then: a `LossPolicy`.
    recovery
        Limits on copies that are made at once after a loss: a `Bounds`.
    patience
        Maximum time to wait for a copy, in seconds; then it is requested again, and the time to
        wait doubles with every repetition, because the state may be large. A late answer to an
        earlier request still counts.
    max_attempts
        Maximum number of attempts to copy a key group. If the last one fails or gets no answer, a
        planned move is cancelled, and a suspended key group (one whose rows wait for its state) is
        loaded by its lane; if this fails too, the epoch fails.
    copies_from
        Place that copies of state are read from: a `CopiesFrom`.

    Raises
    ------
    InvalidPlanError
        If `patience` or `max_attempts` is less than 1, or another setting has a wrong type.

    Examples
    --------
    >>> gw.migration.Policy(on_loss=gw.migration.LossPolicy.SUSPEND, max_attempts=2).max_attempts
    2
    """

    on_loss: LossPolicy = LossPolicy.ON_DEMAND
    on_start: LossPolicy = LossPolicy.LOAD
    recovery: Bounds = field(default_factory=Bounds)
    patience: int = 60
    max_attempts: int = 4
    copies_from: CopiesFrom = CopiesFrom.QUICKER

    def __post_init__(self) -> None:
        for name in ("patience", "max_attempts"):
            check_number(
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
            value = getattr(self, name)
            if value not in tuple(kind):
                raise InvalidPlanError(
                    f"The migration policy's {name} is {value!r}.",
                    remedy=f"Give one of {', '.join(kind)}.",
                    value=value,
                )
            object.__setattr__(self, name, kind(value))
        if not isinstance(self.recovery, Bounds):
            raise InvalidPlanError(
                f"The migration policy's recovery is {self.recovery!r}.",
                remedy="Give gw.migration.Bounds, as in "
                "gw.migration.Policy(recovery=gw.migration.Bounds(max_moves=8)).",
                value=self.recovery,
            )
