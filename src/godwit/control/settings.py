"""Settings of the controller, grouped by concern, with defaults and checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from godwit.control.forecast import Forecast
from godwit.control.scaling import custom
from godwit.migration.strategy import Bounds
from godwit.model import plugins
from godwit.model.errors import GodwitError, InvalidControlError, PluginError
from godwit.model.frames import user_class
from godwit.model.naming import check_number
from godwit.model.signatures import check_signature
from godwit.placement import Limits, planner
from godwit.placement.problem import Problem
from godwit.runtime.ports import ControlSettings
from godwit.time.durations import seconds

if TYPE_CHECKING:
    from godwit.control.scaling import ScalingModel
    from godwit.placement.registry import Planner
    from godwit.time.durations import Duration

AnyPlanner: TypeAlias = str | Callable[[Problem], Any]

BY_PLAN, STATIC = "resource_centric", "static"
"""Elasticities that use the default placement style (`godwit.control.styles`)."""


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on the moves of key groups that the controller makes in one statistics period.

    Pass it as ``gw.Control(budget=...)``. The limits are for all components together.

    Attributes
    ----------
    max_moves
        Maximum number of key groups that move; ``None``: no limit.
    max_bytes
        Maximum bytes of state that move, 1 GiB by default; ``None``: no limit. A key group that is
        larger moves alone.

    Examples
    --------
    >>> gw.Control(planner="albic", budget=gw.control.Budget(max_moves=16)).budget.max_moves
    16
    """

    max_moves: int | None = None
    max_bytes: float | None = 2.0**30

    def __post_init__(self) -> None:
        for name, whole in (("max_moves", True), ("max_bytes", False)):
            value = getattr(self, name)
            if value is not None:
                what = f"The budget's {name}"
                check_number(what, value, least=0, error=InvalidControlError, whole=whole)

    def less(self, moves: int, size_bytes: float) -> Budget:
        """Return the budget that remains after some moves.

        Parameters
        ----------
        moves
            Number of key groups that moved.
        size_bytes
            Bytes of their state.

        Examples
        --------
        >>> gw.control.Budget(max_moves=16, max_bytes=1e6).less(6, 4e5)
        Budget(max_moves=10, max_bytes=600000.0)
        """
        return Budget(
            max_moves=None if self.max_moves is None else max(0, self.max_moves - moves),
            max_bytes=None if self.max_bytes is None else max(0.0, self.max_bytes - size_bytes),
        )


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Network bandwidth and memory of one executor, which the controller balances beside CPU time.

    Pass it as ``gw.control.Worth(means=...)``.

    Attributes
    ----------
    link_bytes_per_s
        Bytes per second that an executor can receive over the network, by default those of a
        gigabit link; ``None``: the network is not balanced.
    memory_bytes
        Bytes of state that an executor can hold; ``None``, the default: memory is not balanced.

    Examples
    --------
    >>> gw.control.Worth(means=gw.control.Means(link_bytes_per_s=1e9)).means.link_bytes_per_s
    1000000000.0
    """

    link_bytes_per_s: float | None = 125e6
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        for name in ("link_bytes_per_s", "memory_bytes"):
            value = getattr(self, name)
            if value is not None:
                what = f"The setting {name}, a resource of an executor,"
                check_number(what, value, least=1, error=InvalidControlError, whole=False)


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """Timing of the controller: minimum period, lane balancing, cool-down and manual overrides.

    Pass it as ``gw.Control(cadence=...)``. Times are text such as ``"2 minutes"``, or timedeltas.

    Attributes
    ----------
    min_epochs
        Minimum number of epochs with input in a statistics period; the period lasts until it has
        them.
    lanes_every
        Interval at which key groups are re-balanced over the lanes (task slots) within an executor;
        ``None``: never.
    cool_down
        Time within which a scaling decision is not reversed; by default three statistics periods.
    respect
        Time for which the controller does not touch what you changed by hand, such as by
        ``query.migrate``.

    Examples
    --------
    >>> gw.Control(planner="albic", cadence=gw.control.Cadence(cool_down="2 minutes")).cool_down_s
    120.0
    """

    min_epochs: int = 3
    lanes_every: Duration | None = "0.5 seconds"
    cool_down: Duration | None = None
    respect: Duration = "1 minute"

    def __post_init__(self) -> None:
        _check_number("min_epochs", self.min_epochs, least=1, whole=True)
        for name in ("lanes_every", "cool_down", "respect"):
            if name == "respect" or getattr(self, name) is not None:
                seconds(getattr(self, name), f"The setting {name} of the controller")


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Settings of the controller's planner: options, limits, interval of plans, time limit.

    Pass it as ``gw.Control(search=...)``.

    Attributes
    ----------
    options
        Options of the planner, by name, as in ``{"gap": 0.5}``: then `milp` stops within 0.5 % of
        the mean load of the optimum. ``godwit plan NAME --help`` lists the options of a planner.
    limits
        Further limits for the planner, as in ``godwit.placement.Limits(tau=0.4)``: no executor's
        load may be above 1.4 times its fair share. Limits on moves and bytes are in `Budget`.
    every
        Number of statistics periods from one plan to the next. A planner that uses a history, such
        as `clb`, gets the loads of each of these periods. To empty an executor that is to be
        removed, the controller plans at once.
    time_limit
        Maximum wall-clock time of the planner for one decision, and of a scaling function, as text
        or a timedelta; then the event `godwit.events.PlannerFailed` reports it, and nothing
        changes.
        ``None``: no limit; then decisions do not depend on how busy the machine is.

    Examples
    --------
    >>> gw.control.Search(every=4, time_limit="2 seconds").every
    4
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    every: int = 1
    time_limit: Duration | None = "5 seconds"

    def __post_init__(self) -> None:
        if not isinstance(self.options, Mapping):
            raise InvalidControlError(
                f"The controller has options={self.options!r} for its planner.",
                remedy='Give a mapping, as in options={"rounds": 3}.',
            )
        _check_kind("limits", self.limits, Limits)
        _check_number("every", self.every, least=1, whole=True)
        if self.time_limit is not None:
            seconds(self.time_limit, "The setting time_limit of the controller")


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Thresholds and costs by which the controller decides whether moves of key groups pay.

    Pass it as ``gw.Control(worth=...)``.

    Attributes
    ----------
    max_load_distance
        Key groups move only if an executor's load differs from the mean by more than this share of
        the mean; by up to a quarter more within thirty periods in which none move and no
        executor comes or goes.
    theta
        Load of the busiest lane of an executor, divided by the mean of its lanes, above which its
        key groups are re-balanced over its lanes (paper 5 §3.1).
    horizon
        Number of statistics periods for which the load is assumed to stay as it is: the time that
        moves save within them must be more than the time that they cost.
    seconds_per_byte
        Cost of moving state: seconds that one network link needs for one byte.
    means
        Network bandwidth and memory of an executor; see `godwit.control.Means`.
    gain
        ``"positive"``: key groups move only if that gains more than it costs. ``"any"``: every plan
        is carried out as the planner made it, within the budget; for comparing planners as their
        papers define them, not for production.

    Notes
    -----
    Key groups move if all of this is so:

    - The *load distance*, the largest difference between an executor's load and the mean, is above
      ``max_load_distance`` (10 % of the mean), and more than four times its standard error.
    - The moves lower the load of the busiest executor, or the load distance, by at least 5 % of the
      mean and 1 % of an executor's time.
    - The time that the moves save over the ``horizon`` (10 periods) exceeds the time that the
      busiest network link needs to copy the moved state. This does not apply to a new executor with
      less than half of the mean load.

    Key groups move in the order of load relieved per byte of state, until the load is balanced or
    the ``budget`` is used up. With a ``budget`` of 0 none moves, not even off executors that are to
    be removed. Key groups of two-phase windows migrate without state, so they count with the bytes
    that are merged twice until open windows end.

    A plan in progress is replaced (``PlanAbandoned``) if it leaves new executors idle or key groups
    on an executor that is to be removed, or if the load has shifted so much that a better plan is
    worth its moves.

    Examples
    --------
    >>> worth = gw.control.Worth(max_load_distance=0.2)
    >>> gw.Control(planner="albic", worth=worth).worth.max_load_distance
    0.2
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
                f"The setting gain is {self.gain!r}.",
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
class Control(ControlSettings):
    """Settings of the controller, which moves key groups and changes the number of executors.

    Pass it as ``flow.start(control=...)``. Without it nothing moves by itself, except after the
    loss of an executor.

    Attributes
    ----------
    planner
        Name of a planner: ``"milp"``, or one of another package, such as `godwit-lab`. Or a
        function that gets a ``godwit.placement.Problem`` and returns a
        ``godwit.placement.Solution``, or an array with the index of the executor of each key group.
    scaling
        Rule for the number of executors: `gw.control.latency`, `gw.control.utilisation`,
        `gw.control.load_range`, `gw.control.fixed` or `gw.control.scripted`. Or a function that
        gets the measurements of the last period (an object with ``executors``, ``arrival_per_s``,
        ``epoch_s``, ``backlog_rows`` and more) and returns a number. ``None``: the number stays.
    min_executors, max_executors
        Limits on the number of executors; ``None``: no upper limit.
    elasticity
        Way in which work and cores are brought together. ``"resource_centric"``: key groups move
        between executors. ``"static"``: nothing moves. Other packages may add further ones, as
        `godwit-lab` does: in ``"executor_centric"`` a key group keeps a home executor, and uses
        cores of other executors only if those of its home are not enough.
    period
        Statistics period, as text such as ``"10 seconds"`` or a timedelta: the interval between
        decisions. It lasts longer if it has fewer than ``min_epochs`` of `gw.control.Cadence`
        epochs.
    budget
        Limits on the moves of one period; see `gw.control.Budget`.
    bounds
        Limits on what a migration has in flight at once; see `gw.migration.Bounds`. By default
        ``gw.migration.Bounds(max_moves=128)``.
    cadence
        Minimum period, lane balancing, cool-down and manual overrides; see `gw.control.Cadence`.
    search
        Options, limits and time limit of the planner; see `gw.control.Search`.
    worth
        Thresholds and costs that decide if a move is worth it; see `gw.control.Worth`.
    forecast
        Settings such as ``gw.control.Forecast()``: executors are requested before a repeating load
        rises. ``None``: they are requested when they are needed.

    Raises
    ------
    InvalidControlError
        If a setting is wrong, or settings contradict each other.

    Examples
    --------
    >>> gw.Control(planner="flux", period="5 seconds").period_s
    5.0
    """

    planner: AnyPlanner = "milp"
    scaling: ScalingModel | Callable[..., Any] | None = None
    min_executors: int = 1
    max_executors: int | None = None
    elasticity: str = "resource_centric"
    period: Duration = "10 seconds"
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
        self._check_elasticity()
        _check_number("min_executors", self.min_executors, least=1, whole=True)
        if self.max_executors is not None:
            _check_number("max_executors", self.max_executors, least=1, whole=True)
        seconds(self.period, "The setting period of the controller")
        self._check_scaling()

    def _check_planner(self) -> None:
        """Raise `InvalidControlError` if the planner is neither a known name nor a function."""
        if callable(self.planner):
            check_signature(
                "The planner", self.planner, "planner(problem)", error=InvalidControlError
            )
            return
        if not isinstance(self.planner, str):
            raise InvalidControlError(
                f"The controller has planner={self.planner!r}, which is not a planner.",
                remedy='Give a name, as in planner="milp", or a function of a problem.',
            )
        try:
            registered = planner(self.planner)
            registered.load()
        except GodwitError as error:
            raise InvalidControlError(
                f"The controller cannot use planner {self.planner!r}: {error.message}",
                remedy=error.remedy,
                planner=self.planner,
            ) from error
        if registered.asks is not Problem:
            raise InvalidControlError(
                f"Planner {registered.name!r} does not compute an assignment of key groups.",
                remedy="Use one that does, such as milp.",
                planner=registered.name,
            )
        unknown = sorted(set(self.search.options) - set(registered.takes))
        if unknown:
            raise InvalidControlError(
                f"Planner {registered.name!r} has no option {unknown[0]!r}.",
                remedy=f"Its options are {', '.join(registered.takes) or 'none'}.",
                planner=registered.name,
            )
        single_call_options = sorted(set(self.search.options) & set(registered.for_one_call))
        if single_call_options:
            raise InvalidControlError(
                f"The option {single_call_options[0]} applies to a single call, but a stream "
                "plans repeatedly.",
                remedy=f"Omit it; {registered.for_one_call[single_call_options[0]]}.",
                planner=registered.name,
            )

    def _check_elasticity(self) -> None:
        """Raise `InvalidControlError` if no style of placement has the name `elasticity`."""
        known = (BY_PLAN, STATIC, *plugins.names("policies"))
        if self.elasticity not in (*known, *plugins.absent("policies")):
            raise InvalidControlError(
                f"There is no elasticity {self.elasticity!r}.",
                remedy=f"Use one of {', '.join(known)}.",
                elasticity=self.elasticity,
            )
        try:
            load_style(self)
        except PluginError as error:
            raise InvalidControlError(
                f"The controller cannot use elasticity {self.elasticity!r}: {error.message}",
                remedy=error.remedy,
                elasticity=self.elasticity,
            ) from error

    def _check_scaling(self) -> None:
        """Raise `InvalidControlError` if scaling settings are wrong or contradict each other."""
        min_executors, max_executors = self.min_executors, self.max_executors
        if max_executors is not None and max_executors < min_executors:
            raise InvalidControlError(
                f"min_executors is {min_executors}, which is more than max_executors, "
                f"{max_executors}.",
                remedy="Give min_executors ≤ max_executors.",
                min_executors=min_executors,
                max_executors=max_executors,
            )
        if inspect.isfunction(self.scaling) and self.scaling.__module__ == custom.__module__:
            raise InvalidControlError(
                f"The controller has the function gw.control.{self.scaling.__name__} itself as "
                "its scaling model.",
                remedy='Call it, as in scaling=gw.control.latency("2 seconds").',
            )
        model = self.scaling_model
        missing = [name for name in ("name", "paced") if not hasattr(model, name)]
        if model is not None and missing:
            raise InvalidControlError(
                f"The scaling model {model!r} has no {missing[0]!r}.",
                remedy="Implement godwit.control.scaling.ScalingModel, or give a function.",
            )
        requested_numbers = [
            getattr(model, "executors", None),
            *(n for _, n in getattr(model, "steps", ())),
        ]
        for requested in requested_numbers:
            if not isinstance(requested, int) or min_executors <= requested <= (
                max_executors or requested
            ):
                continue
            raise InvalidControlError(
                f"The scaling model requests {requested} executors, but the limits are "
                f"{min_executors} to {max_executors}.",
                remedy="Change the scaling model or the limits.",
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
                    "`forecast=` requires a scaling model, and `scaling=` is not set.",
                    remedy='Choose a scaling model, as in scaling=gw.control.latency("2 seconds").',
                )
            self.forecast.check(self.period_s)
        if self.scaling is not None and model is None:
            raise InvalidControlError(
                f"The controller has scaling={self.scaling!r}, which is not a scaling model.",
                remedy='Give gw.control.latency("2 seconds"), gw.control.utilisation(0.7), '
                'gw.control.fixed(4), gw.control.scripted({0: 2, "1 minute": 4}), or a function.',
            )

    @property
    def registered(self) -> Planner | None:
        """The planner that `planner` names, with its description; ``None`` if it is a function.

        Examples
        --------
        >>> gw.Control(planner="flux").registered.name
        'flux'
        """
        return planner(self.planner) if isinstance(self.planner, str) else None

    @property
    def planner_name(self) -> str:
        """Name of the planner as events show it; of a function, its name.

        Examples
        --------
        >>> def stay(problem):
        ...     return problem.current
        >>> gw.Control(planner="milp").planner_name, gw.Control(planner=stay).planner_name
        ('milp', 'stay')
        """
        if isinstance(self.planner, str):
            return self.planner
        return getattr(self.planner, "__name__", type(self.planner).__name__)

    @property
    def scaling_model(self) -> ScalingModel | None:
        """The scaling model that `scaling` specifies; ``None`` if there is none.

        Examples
        --------
        >>> gw.Control(scaling=gw.control.fixed(4), max_executors=4).scaling_model.name
        'fixed'
        """
        model: Any = self.scaling
        if model is None or hasattr(model, "wanted"):
            return model  # type: ignore[no-any-return]
        return custom(model) if callable(model) else None

    @property
    def period_s(self) -> float:
        """The setting `period` in seconds: the interval between decisions.

        Examples
        --------
        >>> gw.Control(period="1 minute").period_s
        60.0
        """
        return seconds(self.period, "The period")

    def longest_epoch_s(self, trigger_s: float) -> float | None:
        """Return the max. time in seconds that an epoch over Godwit's own sources should take.

        Such an epoch reads no more rows than are processed in that time, because new executors get
        work only from the next epoch on. If the fixed cost of an epoch is more than half of
        that time, the bound is twice the fixed cost.

        Parameters
        ----------
        trigger_s
            Interval of the trigger, in seconds.

        Returns
        -------
        float or None
            ``None``: no limit, since the number of executors is not to change.

        Examples
        --------
        >>> print(gw.Control().longest_epoch_s(1.0))
        None
        >>> gw.Control(scaling=gw.control.latency("2 seconds")).longest_epoch_s(1.0)
        5.0
        """
        if self.scaling_model is None:
            return None
        return max(self.period_s / 2, trigger_s)

    @property
    def respect_s(self) -> float:
        """The setting ``respect`` of `cadence` in seconds: time to respect manual changes.

        Examples
        --------
        >>> gw.Control(cadence=gw.control.Cadence(respect="5 minutes")).respect_s
        300.0
        """
        return seconds(self.cadence.respect, "The setting respect")

    @property
    def planning_limit_s(self) -> float:
        """The setting ``time_limit`` of `search` in seconds; infinite if there is no limit.

        Examples
        --------
        >>> gw.Control(search=gw.control.Search(time_limit=None)).planning_limit_s
        inf
        """
        if self.search.time_limit is None:
            return float("inf")
        return seconds(self.search.time_limit, "The setting time_limit")

    @property
    def cool_down_s(self) -> float:
        """The setting ``cool_down`` of `cadence` in seconds; by default three periods.

        Examples
        --------
        >>> gw.Control(period="10 seconds").cool_down_s
        30.0
        """
        if self.cadence.cool_down is None:
            return 3 * self.period_s
        return seconds(self.cadence.cool_down, "The cool-down")


def _check_number(name: str, value: Any, *, least: float, whole: bool) -> None:
    """Raise `InvalidControlError` if a setting is not a finite number of at least `least`.

    `whole`: it must be an integer.
    """
    what = f"The setting {name} of the controller"
    check_number(what, value, least=least, error=InvalidControlError, whole=whole)
    if value == float("inf"):
        raise InvalidControlError(
            f"{what} is {value!r}.", remedy="Give a finite number.", setting=name, value=value
        )


def _check_kind(name: str, value: object, kind: type) -> None:
    """Raise `InvalidControlError` if a setting is not of the type `kind`."""
    if not isinstance(value, kind):
        room = "godwit.placement" if kind is Limits else "gw.control"
        raise InvalidControlError(
            f"The setting {name} of the controller is {value!r}.",
            remedy=f"Give a {room}.{kind.__name__}(...).",
        )


def load_style(settings: Control) -> Any:
    """Return the class of the placement style in the settings (`godwit.control.styles`).

    Raises
    ------
    PluginError
        If its package is not installed, or it cannot be imported.
    """
    if settings.elasticity not in (BY_PLAN, STATIC):
        return plugins.load("policies", settings.elasticity)
    known = settings.registered if settings.elasticity == BY_PLAN else None
    style = "" if known is None else known.style
    return resolve_name(style or "godwit.control.styles:PlacementStyle")
