"""What a scaling model is asked, and what it answers."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from godwit.model.errors import InvalidControlError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ScalingModel", "Situation", "Station", "Wanted", "catching_up", "checked_count"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """One component as a station of the queueing network.

    Attributes
    ----------
    arrival_per_s
        Rows that reach it, as the sources offer them.
    service_per_s
        Rows that one lane of a standard executor processes; 0 where nothing was processed.
    """

    arrival_per_s: float
    service_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """How things stand, balanced as the plan would balance them.

    Attributes
    ----------
    now_s, started_s
        The time, and when the run began, by the controller's clock.
    executors
        Executors that stay: those that are to leave do not count.
    least, most
        Limits on their number.
    lanes
        Standard lanes of one executor: its lanes times its speed, the mean over those that stay.
    offered
        Lanes of standard executors that the rows that arrive would keep busy.
    evenness
        Load index of the busiest executor under the plan over the mean, at least 1.
    arrival_per_s
        Source rows a second.
    stations
        Component → its station.
    epoch_s, fixed_s
        Mean time of an epoch, and what of it is spent on no key group.
    waits_for_epochs
        Whether rows wait for the end of an epoch.
    backlog_rows
        Rows that the sources held back at last, since they give no more than so many at once;
        ``None`` where they do not say.
    """

    now_s: float
    started_s: float
    executors: int
    least: int
    most: int
    lanes: float
    offered: float
    evenness: float
    arrival_per_s: float
    stations: Mapping[str, Station]
    epoch_s: float
    fixed_s: float
    waits_for_epochs: bool = True
    backlog_rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How many executors there should be.

    Attributes
    ----------
    executors
        Fewer are too few.
    comfortable
        More are too many: between the two nothing changes, so that noise changes nothing.
    reason
        In a few words.
    numbers
        What it rests on: name (with its unit) → value.
    unattainable
        Why even `executors` will not do; empty where they do.
    aim
        How many to ask for where there are too few, such that noise asks for no more soon after;
        ``None``: halfway between the two.

    Raises
    ------
    InvalidControlError
        If a number of executors is none, a reason no text, or what it rests on no numbers.
    """

    executors: int
    comfortable: int
    reason: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    unattainable: str = ""
    aim: int | None = None

    def __post_init__(self) -> None:
        for count in (self.executors, self.comfortable, self.aim):
            if count is not None:
                checked_count(count)
        for name in ("reason", "unattainable"):
            if not isinstance(getattr(self, name), str):
                raise _no_answer(name, getattr(self, name), "a text")
        try:
            plain = {str(name): float(value) for name, value in self.numbers.items()}
        except (AttributeError, TypeError, ValueError):
            raise _no_answer("numbers", self.numbers, "a mapping of names to numbers") from None
        object.__setattr__(self, "numbers", plain)


def _no_answer(name: str, value: Any, wanted: str) -> InvalidControlError:
    return InvalidControlError(
        f"A scaling model gave {value!r} as its {name}.", remedy=f"Give {wanted}."
    )


def catching_up(situation: Situation, within_s: float) -> Situation:
    """Return the situation in which what is held back is worked off in some time, too."""
    if not situation.backlog_rows or situation.arrival_per_s <= 0:
        return situation
    more = 1 + situation.backlog_rows / (within_s * situation.arrival_per_s)
    return replace(
        situation,
        offered=situation.offered * more,
        arrival_per_s=situation.arrival_per_s * more,
        stations={
            name: replace(station, arrival_per_s=station.arrival_per_s * more)
            for name, station in situation.stations.items()
        },
    )


class ScalingModel(Protocol):
    """Says how many executors there should be."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def paced(self) -> bool:
        """Whether the answer is an estimate, to be followed with patience, and not an order."""

    def wanted(self, situation: Situation) -> Wanted:
        """Say it. Pure."""


def checked_count(count: Any) -> int:
    """Return a number of executors.

    Raises `InvalidControlError` if it is none.
    """
    try:
        number = operator.index(count)
    except TypeError:
        number = 0
    if number < 1 or isinstance(count, bool):
        raise InvalidControlError(
            f"There cannot be {count!r} executors.", remedy="Give a whole number of at least 1."
        )
    return number
