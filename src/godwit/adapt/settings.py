"""Settings of the controller in values by what they concern, with the defaults and checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from godwit.adapt.forecast import Forecast
from godwit.adapt.scaling import custom
from godwit.migration.strategy import Bounds
from godwit.model.durations import seconds
from godwit.model.errors import GodwitError, InvalidControlError
from godwit.model.frames import user_class
from godwit.model.naming import insist_on_number
from godwit.planning import Limits, planner
from godwit.planning.problem import Problem

if TYPE_CHECKING:
    from godwit.adapt.scaling import ScalingModel
    from godwit.model.durations import DurationOrSeconds
    from godwit.planning.registry import Planner

AnyPlanner: TypeAlias = str | Callable[[Problem], Any]
Elasticity: TypeAlias = Literal[
    "resource_centric", "executor_centric", "naive_executor_centric", "static"
]


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on what one period may move, over all components; ``None``: no limit.

    Attributes
    ----------
    max_moves
        Key groups.
    max_bytes
        Bytes of state. A key group that is larger by itself moves alone.
    """

    max_moves: int | None = None
    max_bytes: float | None = 2.0**30

    def __post_init__(self) -> None:
        for name, whole in (("max_moves", True), ("max_bytes", False)):
            value = getattr(self, name)
            if value is not None:
                what = f"The budget's {name}"
                insist_on_number(what, value, least=0, error=InvalidControlError, whole=whole)

    def less(self, moves: int, size_bytes: float) -> Budget:
        """Return the rest of the budget after some moves."""
        return Budget(
            max_moves=None if self.max_moves is None else max(0, self.max_moves - moves),
            max_bytes=None if self.max_bytes is None else max(0.0, self.max_bytes - size_bytes),
        )


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Network and memory of one executor; ``None``: unlimited.

    Attributes
    ----------
    link_bytes_per_s
        What it can take in over the network.
    memory_bytes
        State that it can hold.
    """

    link_bytes_per_s: float | None = 125e6
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        for name in ("link_bytes_per_s", "memory_bytes"):
            value = getattr(self, name)
            if value is not None:
                what = f"What an executor has, {name},"
                insist_on_number(what, value, least=1, error=InvalidControlError, whole=False)


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """Periods, cool-downs and how long manual overrides last.

    Attributes
    ----------
    min_epochs
        Epochs with input that a statistics period has at least.
    lanes_every
        How often lanes are re-balanced within executors; None: never.
    cool_down
        For how long no scaling decision is taken back; three periods if left out.
    respect
        For how long what somebody decided by hand is left alone.
    """

    min_epochs: int = 3
    lanes_every: DurationOrSeconds | None = 0.5
    cool_down: DurationOrSeconds | None = None
    respect: DurationOrSeconds = 60.0

    def __post_init__(self) -> None:
        _check_number("min_epochs", self.min_epochs, least=1, whole=True)
        for name in ("lanes_every", "cool_down", "respect"):
            if name == "respect" or getattr(self, name) is not None:
                seconds(getattr(self, name), f"The setting {name} of the controller")


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Options of a planner, and its time limit.

    Attributes
    ----------
    options
        Options of the planner, by name.
    limits
        Further limits for the planner, such as ``tau``; those on moves and bytes are the budget's.
    every
        Periods from one plan to the next, over whose loads planners with a history plan; `clb` is
        made to be asked once for many (paper 4 §4). What drains is planned for at once.
    time_limit
        Real time that planners may take for one decision, and a scaling function besides. None: as
        long as they take; then equal observations give equal decisions, however busy the machine.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    every: int = 1
    time_limit: DurationOrSeconds | None = 5.0

    def __post_init__(self) -> None:
        if not isinstance(self.options, Mapping):
            raise InvalidControlError(
                f"The planner's options are {self.options!r}.",
                remedy='Give a mapping, as in options={"rounds": 3}.',
            )
        _check_kind("limits", self.limits, Limits)
        _check_number("every", self.every, least=1, whole=True)
        if self.time_limit is not None:
            seconds(self.time_limit, "The setting time_limit of the controller")


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Thresholds and costs that decide if a move is worth it.

    Attributes
    ----------
    max_load_distance
        By how much of the mean an executor's load may differ from it before key groups move.
    theta
        Busiest lane over mean lane above which lanes are re-balanced (paper 5 §3.1).
    horizon
        Periods that the load is taken to stay as it is: what moving costs must come back by then.
    seconds_per_byte
        Time that one link needs for one byte of state.
    means
        Network and memory of an executor, for the bottleneck.
    gain
        ``"positive"``: key groups move only if that gains more than it costs. ``"any"``: a plan is
        carried out as the planner made it, whatever it gains, within the budget; so planners, and
        baselines among them, can be compared as their papers define them.
    """

    max_load_distance: float = 0.1
    theta: float = 1.2
    horizon: int = 10
    seconds_per_byte: float = 1e-8
    means: Means = field(default_factory=Means)
    gain: Literal["positive", "any"] = "positive"

    def __post_init__(self) -> None:
        if self.gain not in ("positive", "any"):
            raise InvalidControlError(
                f"There is no gain {self.gain!r} that moves must have.",
                remedy='Use "positive", or "any" to carry out every plan.',
                gain=self.gain,
            )
        for name, least, whole in (
            ("horizon", 1, True),
            ("theta", 1.0, False),
            ("max_load_distance", 0.0, False),
            ("seconds_per_byte", 0.0, False),
        ):
            _check_number(name, getattr(self, name), least=least, whole=whole)
        _check_kind("means", self.means, Means)


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Settings of the controller: ``flow.start(..., control=gw.Control(...))``.

    Attributes
    ----------
    planner
        Name of a planner, as in ``godwit plan``, or a function of a `Problem` that returns a
        solution or the index of each key group's executor.
    scaling
        How many executors there are to be: `gw.latency`, `gw.utilisation`, `gw.fixed`,
        `gw.scripted`, or a function of a situation. None: as many as there are.
    min_executors, max_executors
        Limits on their number.
    elasticity
        How work and cores are matched, after paper 5 §5. ``"resource_centric"``: key groups move
        between executors; ``"executor_centric"``: key groups stay at home, and cores of other
        executors are lent to where the work is; ``"naive_executor_centric"``: the same, without
        regard to state or locality; ``"static"``: nothing moves.
    period
        Statistics period: how often the loop decides, if there are enough epochs (`cadence`).
    budget
        What one period may move.
    bounds
        What may be in flight at once, see `gw.Bounds`.
    cadence
        Periods, cool-downs and how long manual overrides last; see `gw.Cadence`.
    search
        Options and limits of the planner; see `gw.Search`.
    worth
        Thresholds and costs that decide if a move is worth it; see `gw.Worth`.
    forecast
        Lets executors be asked for before a load that repeats needs them; see `gw.Forecast`.
        None: they are asked for when they are needed.

    Raises
    ------
    InvalidControlError
        Says which setting is wrong, or which contradict each other.

    Examples
    --------
    >>> Control(planner="flux", period="5 seconds").period_s
    5.0
    """

    planner: AnyPlanner = "milp"
    scaling: ScalingModel | Callable[..., Any] | None = None
    min_executors: int = 1
    max_executors: int | None = None
    elasticity: Elasticity = "resource_centric"
    period: DurationOrSeconds = 10.0
    budget: Budget = field(default_factory=Budget)
    # More at once than by hand: executors that have come are idle until the last epoch of it.
    bounds: Bounds = field(default_factory=partial(Bounds, max_moves=128))
    cadence: Cadence = field(default_factory=Cadence)
    search: Search = field(default_factory=Search)
    worth: Worth = field(default_factory=Worth)
    forecast: Forecast | None = None

    def __post_init__(self) -> None:
        for name, kind in (
            ("budget", Budget),
            ("bounds", Bounds),
            ("cadence", Cadence),
            ("search", Search),
            ("worth", Worth),
        ):
            _check_kind(name, getattr(self, name), kind)
        self._check_planner()
        if self.elasticity not in get_args(Elasticity):
            raise InvalidControlError(
                f"There is no elasticity {self.elasticity!r}.",
                remedy=f"Use one of {', '.join(get_args(Elasticity))}.",
                elasticity=self.elasticity,
            )
        _check_number("min_executors", self.min_executors, least=1, whole=True)
        if self.max_executors is not None:
            _check_number("max_executors", self.max_executors, least=1, whole=True)
        seconds(self.period, "The setting period of the controller")
        self._check_scaling()

    def _check_planner(self) -> None:
        """Refuse a planner that is neither a known name nor a function."""
        if callable(self.planner):
            return
        if not isinstance(self.planner, str):
            raise InvalidControlError(
                f"The controller was given {self.planner!r} as its planner.",
                remedy='Give a name, as in planner="milp", or a function of a problem.',
            )
        try:
            known = planner(self.planner)
            known.load()
        except GodwitError as error:
            raise InvalidControlError(
                f"The controller cannot plan by {self.planner!r}: {error.message}",
                remedy=error.remedy,
                planner=self.planner,
            ) from error
        if known.asks != "assignment":
            raise InvalidControlError(
                f"Planner {known.name!r} says nothing about where key groups should be.",
                remedy="Take one whose question is an assignment, such as milp or flux; see "
                "`godwit plan --help`.",
                planner=known.name,
            )
        unknown = sorted(set(self.search.options) - set(known.takes))
        if unknown:
            raise InvalidControlError(
                f"Planner {known.name!r} has no option {unknown[0]!r}.",
                remedy=f"Its options are {', '.join(known.takes) or 'none'}.",
                planner=known.name,
            )

    def _check_scaling(self) -> None:
        """Refuse a scaling model or limits that contradict each other."""
        least, most = self.min_executors, self.max_executors
        if most is not None and most < least:
            raise InvalidControlError(
                f"At least {least} executors and at most {most} contradict each other.",
                remedy="Give min_executors ≤ max_executors.",
                min_executors=least,
                max_executors=most,
            )
        model = self.scaling_model
        missing = [name for name in ("name", "paced") if not hasattr(model, name)]
        if model is not None and missing:
            raise InvalidControlError(
                f"The scaling model {model!r} has no {missing[0]!r}.",
                remedy="Give it what godwit.adapt.scaling.ScalingModel asks for, or a function.",
            )
        ordered = [getattr(model, "executors", None), *(n for _, n in getattr(model, "steps", ()))]
        for asked in ordered:
            if not isinstance(asked, int) or least <= asked <= (most or asked):
                continue
            raise InvalidControlError(
                f"{asked} executors are asked for, and the limits are {least} to {most}.",
                remedy="Change one or the other.",
            )
        if self.cadence.cool_down is not None and self.cool_down_s < self.period_s:
            raise InvalidControlError(
                f"A cool-down of {self.cool_down_s:g} s is over within one period of "
                f"{self.period_s:g} s.",
                remedy="Give at least one period; three are usual.",
            )
        if self.forecast is not None:
            _check_kind("forecast", self.forecast, Forecast)
            if self.scaling is None:
                raise InvalidControlError(
                    "A forecast is of no use where the number of executors stays as it is.",
                    remedy='Say how many there are to be, as in scaling=gw.latency("2 seconds").',
                )
            self.forecast.check(self.period_s)
        if self.scaling is not None and model is None:
            raise InvalidControlError(
                f"The controller was given {self.scaling!r} as its scaling model.",
                remedy='Give gw.latency("2 seconds"), gw.utilisation(0.7), gw.fixed(4), '
                "gw.scripted({0: 2, 60: 4}), or a function.",
            )

    @property
    def registered(self) -> Planner | None:
        """The planner, if it is one of the registry."""
        return planner(self.planner) if isinstance(self.planner, str) else None

    @property
    def planner_name(self) -> str:
        """Name of the planner, for events."""
        if isinstance(self.planner, str):
            return self.planner
        return getattr(self.planner, "__name__", type(self.planner).__name__)

    @property
    def scaling_model(self) -> ScalingModel | None:
        """The scaling model; ``None``: the number of executors stays."""
        model: Any = self.scaling
        if model is None or hasattr(model, "wanted"):
            return model  # type: ignore[no-any-return]
        return custom(model) if callable(model) else None

    @property
    def period_s(self) -> float:
        """Statistics period, in seconds."""
        return seconds(self.period, "The period")

    def longest_epoch_s(self, trigger_s: float) -> float | None:
        """Seconds that an epoch of own sources is to last; ``None``: as long as it takes.

        Executors that come work from the next epoch on. One that took all that a step in the rate
        has left would end long after them.
        """
        if self.scaling_model is None:
            return None
        return max(self.period_s, 2 * trigger_s)

    @property
    def respect_s(self) -> float:
        """Time for which manual overrides are left alone, in seconds."""
        return seconds(self.cadence.respect, "The setting respect")

    @property
    def planning_limit_s(self) -> float:
        """Real time that planners may take for one decision, in seconds; infinite: any."""
        if self.search.time_limit is None:
            return float("inf")
        return seconds(self.search.time_limit, "The setting time_limit")

    @property
    def cool_down_s(self) -> float:
        """Time within which no scaling decision is taken back, in seconds."""
        if self.cadence.cool_down is None:
            return 3 * self.period_s
        return seconds(self.cadence.cool_down, "The cool-down")


def _check_number(name: str, value: Any, *, least: float, whole: bool) -> None:
    """Refuse a setting that is no finite number of at least `least`."""
    what = f"The setting {name} of the controller"
    insist_on_number(what, value, least=least, error=InvalidControlError, whole=whole)
    if value == float("inf"):
        raise InvalidControlError(
            f"{what} is {value!r}.", remedy="Give a finite number.", setting=name, value=value
        )


def _check_kind(name: str, value: object, kind: type) -> None:
    """Refuse a setting of another type."""
    if not isinstance(value, kind):
        raise InvalidControlError(
            f"The setting {name} of the controller is {value!r}.",
            remedy=f"Give a {kind.__name__}.",
        )
