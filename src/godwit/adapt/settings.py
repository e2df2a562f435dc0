"""What a user may set of the controller, with the defaults and the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from godwit.adapt.problems import Means
from godwit.adapt.scaling import custom
from godwit.adapt.worth import Budget
from godwit.migration.strategy import Bounds
from godwit.model.checks import insist_on_number
from godwit.model.durations import seconds
from godwit.model.errors import GodwitError, InvalidControlError
from godwit.model.frames import user_class
from godwit.planning import Limits, planner
from godwit.planning.problem import Problem

if TYPE_CHECKING:
    from godwit.adapt.scaling import ScalingModel
    from godwit.model.durations import Duration
    from godwit.planning.planner import Planner

__all__ = ["AnyPlanner", "Control", "PolicyName"]

AnyPlanner: TypeAlias = str | Callable[[Problem], Any]
PolicyName: TypeAlias = Literal[
    "resource_centric", "executor_centric", "naive_executor_centric", "static"
]


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Settings of the controller: ``flow.start(..., control=gw.Control(...))``.

    Attributes
    ----------
    planner
        Name of a planner, as in ``godwit plan``, or a function of a `Problem` that returns a
        solution or the index of each key group's executor.
    options
        The planner's.
    scaling
        How many executors there are to be: `gw.latency`, `gw.utilisation`, `gw.fixed`,
        `gw.scripted`, or a function of a situation. None: as many as there are.
    least, most
        Limits on their number.
    policy
        How work and cores meet, after paper 5 §5: ``"resource_centric"``: key groups move between
        executors; ``"executor_centric"``: key groups stay at home, and cores of other executors
        are lent to where the work is; ``"naive_executor_centric"``: the same, minding neither
        state nor locality; ``"static"``: nothing moves.
    period
        Statistics period: how often the loop decides. It also waits for `least_epochs`.
    least_epochs
        Epochs with input that a period has at least.
    lanes_every
        How often lanes are re-balanced within executors; None: never.
    theta
        Busiest lane over mean lane above which that is done (paper 5 §3.1).
    budget
        What one period may move.
    bounds
        What may be in flight at once, see `gw.Bounds`.
    max_load_distance
        By how much of the mean an executor's load may differ from it before key groups move.
    horizon
        Periods that the load is taken to stay as it is: what moving costs must come back by then.
    cool_down
        For how long no scaling decision is taken back; three periods if left out.
    respect
        For how long what somebody decided by hand is left alone.
    planning_limit
        Real time that planners may take for one decision, and a scaling function besides. None: as
        long as they take; then equal observations give equal decisions, however busy the machine.
    means
        Network and memory of an executor, for the bottleneck.
    seconds_per_byte
        Time that one link needs for one byte of state.
    limits
        Further limits for the planner, such as ``tau``; those on moves and bytes are the budget's.

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
    options: Mapping[str, Any] = field(default_factory=dict)
    scaling: ScalingModel | Callable[..., Any] | None = None
    least: int = 1
    most: int | None = None
    policy: PolicyName = "resource_centric"
    period: Duration = 10.0
    least_epochs: int = 3
    lanes_every: Duration | None = 0.5
    theta: float = 1.2
    budget: Budget = field(default_factory=Budget)
    bounds: Bounds = field(default_factory=Bounds)
    max_load_distance: float = 0.1
    horizon: int = 10
    cool_down: Duration | None = None
    respect: Duration = 60.0
    planning_limit: Duration | None = 5.0
    means: Means = field(default_factory=Means)
    seconds_per_byte: float = 1e-8
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self._check_planner()
        if self.policy not in get_args(PolicyName):
            raise InvalidControlError(
                f"There is no policy {self.policy!r}.",
                remedy=f"Use one of {', '.join(get_args(PolicyName))}.",
                policy=self.policy,
            )
        for name, kind in (
            ("budget", Budget),
            ("bounds", Bounds),
            ("means", Means),
            ("limits", Limits),
        ):
            if not isinstance(getattr(self, name), kind):
                raise InvalidControlError(
                    f"The setting {name} of the controller is {getattr(self, name)!r}.",
                    remedy=f"Give a {kind.__name__}.",
                )
        for name, least, whole in (
            ("least", 1, True),
            ("least_epochs", 1, True),
            ("horizon", 1, True),
            ("theta", 1.0, False),
            ("max_load_distance", 0.0, False),
            ("seconds_per_byte", 0.0, False),
        ):
            _check_number(name, getattr(self, name), least=least, whole=whole)
        if self.most is not None:
            _check_number("most", self.most, least=1, whole=True)
        for name in ("period", "respect"):
            seconds(getattr(self, name), f"The setting {name} of the controller")
        for name in ("planning_limit", "lanes_every"):
            if getattr(self, name) is not None:
                seconds(getattr(self, name), f"The setting {name} of the controller")
        self._check_scaling()

    def _check_planner(self) -> None:
        if not isinstance(self.options, Mapping):
            raise InvalidControlError(
                f"The planner's options are {self.options!r}.",
                remedy='Give a mapping, as in options={"rounds": 3}.',
            )
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
        unknown = sorted(set(self.options) - set(known.takes))
        if unknown:
            raise InvalidControlError(
                f"Planner {known.name!r} has no option {unknown[0]!r}.",
                remedy=f"Its options are {', '.join(known.takes) or 'none'}.",
                planner=known.name,
            )

    def _check_scaling(self) -> None:
        if self.most is not None and self.most < self.least:
            raise InvalidControlError(
                f"At least {self.least} executors and at most {self.most} contradict each other.",
                remedy="Give least ≤ most.",
                least=self.least,
                most=self.most,
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
            if not isinstance(asked, int) or self.least <= asked <= (self.most or asked):
                continue
            raise InvalidControlError(
                f"{asked} executors are asked for, and the limits are {self.least} to {self.most}.",
                remedy="Change one or the other.",
            )
        if self.cool_down is not None and self.cool_down_s < self.period_s:
            raise InvalidControlError(
                f"A cool-down of {self.cool_down_s:g} s is over within one period of "
                f"{self.period_s:g} s.",
                remedy="Give at least one period; three are usual.",
            )
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
        """For events."""
        if isinstance(self.planner, str):
            return self.planner
        return getattr(self.planner, "__name__", type(self.planner).__name__)

    @property
    def scaling_model(self) -> ScalingModel | None:
        """The scaling model; ``None``: the number of executors is nobody's business."""
        given: Any = self.scaling
        if given is None or hasattr(given, "wanted"):
            return given  # type: ignore[no-any-return]
        return custom(given) if callable(given) else None

    @property
    def period_s(self) -> float:
        """Statistics period, in seconds."""
        return seconds(self.period, "The period")

    @property
    def respect_s(self) -> float:
        """For how long manual overrides are left alone, in seconds."""
        return seconds(self.respect, "The setting respect")

    @property
    def planning_limit_s(self) -> float:
        """Real time that planners may take for one decision, in seconds; infinite: any."""
        if self.planning_limit is None:
            return float("inf")
        return seconds(self.planning_limit, "The setting planning_limit")

    @property
    def cool_down_s(self) -> float:
        """For how long no scaling decision is taken back, in seconds."""
        if self.cool_down is None:
            return 3 * self.period_s
        return seconds(self.cool_down, "The cool-down")


def _check_number(name: str, value: Any, *, least: float, whole: bool) -> None:
    what = f"The setting {name} of the controller"
    insist_on_number(what, value, least=least, error=InvalidControlError, whole=whole)
    if value == float("inf"):
        raise InvalidControlError(
            f"{what} is {value!r}.", remedy="Give a finite number.", setting=name, value=value
        )
