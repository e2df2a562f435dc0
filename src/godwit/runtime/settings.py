"""Settings of a query, grouped by concern, with defaults and checks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from godwit.columns.tables import micros
from godwit.engine.settings import Lanes
from godwit.migration.strategy import Policy
from godwit.model.assignment import Assignment
from godwit.model.errors import CheckpointError, InvalidFlowError
from godwit.model.frames import user_class
from godwit.model.locations import check_location
from godwit.model.log_lines import chosen_format
from godwit.model.naming import check_number, did_you_mean, listing, type_name
from godwit.runtime.ports import AdaptationSettings, ControlSettings
from godwit.time.durations import read_duration

if TYPE_CHECKING:
    from godwit.sinks.continuity import OnDivergence


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """Settings of a query's checkpoint: retained epochs, access, and repartitioning at the start.

    Pass it as ``flow.start(checkpointing=...)``.

    Attributes
    ----------
    retain_epochs
        Number of newest epochs whose state ``gw.read_state(epoch=...)`` can read; older files are
        deleted.
    access
        Permissions of a checkpoint on a local disk. ``"owner"``: only its owner may read and write
        it (modes 0700 and 0600). ``"umask"``: as the umask of the process says, for executors that
        run as another user than the driver.
    single_driver
        ``True``: you guarantee that no second driver is ever started on this checkpoint. Needed
        only on object stores that cannot create a file only if it is absent, where Godwit cannot
        check it.
    repartition
        What to do if ``partition_by=`` of an operator, or ``num_key_groups=`` of the flow, has
        changed since the checkpoint was written. ``False``: the start fails with a
        `CheckpointMismatchError`. ``True``: the driver rewrites the operator's state, or all state,
        before the first epoch; with `gw.control.Fusion`, also the state of
        operators without ``partition_by=`` for which an earlier run has measured that other key
        columns would make epochs shorter.

    Raises
    ------
    InvalidFlowError
        If a setting has a wrong value.

    Examples
    --------
    >>> gw.Checkpointing(retain_epochs=100, access="umask").retain_epochs
    100
    """

    retain_epochs: int = 10
    access: Literal["owner", "umask"] = "owner"
    single_driver: bool = False
    repartition: bool = False

    def __post_init__(self) -> None:
        check_number(
            "The setting retain_epochs of checkpointing",
            self.retain_epochs,
            least=1,
            error=InvalidFlowError,
        )
        if self.access not in ("owner", "umask"):
            raise InvalidFlowError(
                f"The setting access of checkpointing is {self.access!r}.",
                remedy='Give "owner" or "umask".',
            )
        _check_kind("setting single_driver of checkpointing", self.single_driver, bool)
        _check_kind("setting repartition of checkpointing", self.repartition, bool)


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """Settings of a query's executors: time to wait for them, and the first assignment.

    Pass it as ``flow.start(sizing=...)``.

    Attributes
    ----------
    executors_timeout_s
        Maximum time to wait for executors, in seconds. If fewer than ``flow.start(executors=...)``
        are there after it, the start fails with an `EpochFailedError`. It is also the default of
        ``query.scale(timeout_s=...)``, which then ends with a `ScalingError`.
    assignments
        Name of a component (see `Flow.components`) → the assignment of its key groups in a new
        checkpoint. Key groups of components that are not named are divided evenly. A resumed
        checkpoint continues with its own assignments.

    Raises
    ------
    InvalidFlowError
        If a setting has a wrong value.

    Examples
    --------
    >>> gw.Sizing(executors_timeout_s=120.0).executors_timeout_s
    120.0
    """

    executors_timeout_s: float = 60.0
    assignments: Mapping[str, Assignment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_number(
            "The setting executors_timeout_s of sizing",
            self.executors_timeout_s,
            least=0,
            whole=False,
            error=InvalidFlowError,
        )
        if not isinstance(self.assignments, Mapping):
            raise InvalidFlowError(
                f"The setting assignments of sizing is of type {type_name(self.assignments)}.",
                remedy='Give component → assignment, as in assignments={"by_plane": assignment}.',
            )
        for name, assignment in self.assignments.items():
            _check_kind(f"setting assignments[{name!r}] of sizing", assignment, Assignment)


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Observability:
    """Settings of a running query's metrics, live web page, traces and lineage.

    Pass it as ``flow.start(observability=...)``.

    Attributes
    ----------
    metrics_port
        Port on which Prometheus can scrape the query's metrics; 0: any free port, which
        ``query.metrics_url`` shows. Needs ``pip install 'godwit-streams[metrics]'``. By default
        metrics are not served.
    metrics_host
        Address on which `metrics_port` listens; by default reachable from this machine only.
    ui_port
        Port on which the query's live page is served while it runs; 0: any free port, which
        ``query.ui_url`` shows. By default there is no page.
    ui_host
        Address on which `ui_port` listens. If other machines can reach it, the page needs a token,
        which is part of ``query.ui_url``.
    opentelemetry
        True: metrics and a trace of each epoch go to OpenTelemetry, by the providers that the
        application has configured, else by OTLP over HTTP as the variables ``OTEL_*`` say. Needs
        ``pip install 'godwit-streams[opentelemetry]'``.
    openlineage
        True: OpenLineage events of the query's start and end are sent, with the data that it reads
        and writes, as the variables ``OPENLINEAGE_*`` say. Needs
        ``pip install 'godwit-streams[openlineage]'``.
    log
        ``"json"``: the log of the process, and of Python on executors, has a line of JSON for each
        record, with query, epoch and phase. By default as the environment variable ``GODWIT_LOG``
        says, else the log stays as it is.

    Raises
    ------
    InvalidFlowError
        If a setting has a wrong value.

    Notes
    -----
    - ``time``, ``level``, ``logger``, ``message``, ``pid``, ``thread``: as ``logging`` has them;
      ``time`` in UTC
    - ``query``, ``epoch``, ``phase``, ``lane``: where they are known: in all that runs within an
      epoch, also in functions of yours. ``phase`` is one of ``durationMs`` in
      ``query.recentProgress``, or ``read`` and ``lane`` on executors
    - ``event``: the event that the line reports, with its fields
    - ``error``: ``type``, ``message`` and ``traceback`` of an exception, also of one that ends the
      program or a thread

    Warnings among the events are logged as such, others as INFO, those of every epoch as DEBUG.
    Executors write such lines to their standard error. The JVM has a log of its own
    (``spark.log.structuredLogging.enabled=true`` for JSON); set
    ``spark.ui.showConsoleProgress=false``, which writes to standard error as well.

    Examples
    --------
    >>> gw.Observability(metrics_port=9091, ui_port=0).metrics_port
    9091
    """

    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    ui_port: int | None = None
    ui_host: str = "127.0.0.1"
    opentelemetry: bool = False
    openlineage: bool = False
    log: str | None = None

    def __post_init__(self) -> None:
        for what, port in (("metrics_port", self.metrics_port), ("ui_port", self.ui_port)):
            if port is not None and not (type(port) is int and 0 <= port < 2**16):
                raise InvalidFlowError(
                    f"The setting {what} of observability is {port!r}.",
                    remedy="Give a port from 1 to 65535, or 0 for any that is free.",
                )
        _check_kind("setting metrics_host of observability", self.metrics_host, str)
        _check_kind("setting ui_host of observability", self.ui_host, str)
        _check_kind("setting opentelemetry of observability", self.opentelemetry, bool)
        _check_kind("setting openlineage of observability", self.openlineage, bool)
        if self.log is not None:
            chosen_format(self.log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `Flow.start`, checked; documented there."""

    checkpoint: str
    session: Any = None  # a SparkSession; ``None``: the active one
    trigger: Mapping[str, object] | None = None
    executors: int = 1
    name: str | None = None
    control: ControlSettings | None = None
    components: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    close_at_end: bool = False
    on_divergence: OnDivergence = "refuse"
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    lanes: Lanes = field(default_factory=Lanes)
    sizing: Sizing = field(default_factory=Sizing)
    adaptation: AdaptationSettings | None = None
    observability: Observability = field(default_factory=Observability)
    # as the user gave them (`godwit.engine.initial_state`)
    initial: Any = None
    initial_watermark: Any = None
    # the epoch to start from; at most one of both
    from_epoch: int | str | None = None
    as_of: dt.datetime | str | None = None

    @property
    def asked_epoch(self) -> int | str | dt.datetime | None:
        """Epoch to start from: its number, its name, or a time; ``None``: the last one."""
        if self.as_of is None:
            return self.from_epoch
        return dt.datetime.fromtimestamp(micros(self.as_of, "as_of") / 1e6, dt.UTC)

    def __post_init__(self) -> None:
        if self.from_epoch is not None and self.as_of is not None:
            raise InvalidFlowError(
                "The flow is started with from_epoch= and as_of=.", remedy="Give one of them."
            )
        if isinstance(self.from_epoch, bool) or not isinstance(self.from_epoch, int | str | None):
            raise InvalidFlowError(
                f"The option from_epoch of start is of type {type_name(self.from_epoch)}.",
                remedy="Give the number of an epoch, or the name of one that was kept.",
            )
        _ = self.asked_epoch
        if not self.checkpoint:
            raise InvalidFlowError(
                "The flow is started without a checkpoint.",
                remedy='Give a directory, as in flow.start(checkpoint="checkpoints/delays").',
            )
        check_location(self.checkpoint, CheckpointError)
        if self.session is not None and not hasattr(self.session, "readStream"):
            raise InvalidFlowError(
                f"The option session of start is of type {type_name(self.session)}.",
                remedy="Give a SparkSession, as of SparkSession.builder.getOrCreate(), or leave it "
                "out.",
            )
        check_number(
            "The option executors of start", self.executors, least=1, error=InvalidFlowError
        )
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise InvalidFlowError(
                f"The option name of start is {self.name!r}.",
                remedy="Give the query a name, or leave it out: then it has the flow's.",
            )
        from godwit.sinks.continuity import WAYS  # noqa: PLC0415  with all that compares targets

        ways = self.on_divergence
        for way in ways.values() if isinstance(ways, Mapping) else (ways,):
            if way not in WAYS:
                raise InvalidFlowError(
                    f"The option on_divergence of start is {ways!r}.",
                    remedy='Give "refuse", "roll_back" or "new_writer", or sink → one of them, as '
                    'in on_divergence={"by_plane": "roll_back"}.',
                )
        if self.control is not None:
            _check_kind("option control of start", self.control, ControlSettings)
        if self.adaptation is not None:
            _check_kind("option adaptation of start", self.adaptation, AdaptationSettings)
        _check_kind("option close_at_end of start", self.close_at_end, bool)
        for name, kind in (
            ("policy", Policy),
            ("checkpointing", Checkpointing),
            ("lanes", Lanes),
            ("sizing", Sizing),
            ("observability", Observability),
        ):
            _check_kind(f"option {name} of start", getattr(self, name), kind)


_EXAMPLES: Mapping[str, str] = {
    "bool": "True or False",
    "str": 'text, such as "127.0.0.1"',
    "Assignment": "a gw.migration.Assignment",
    "ControlSettings": 'a gw.Control, as in control=gw.Control(period="10 seconds")',
    "Policy": "gw.migration.Policy(on_loss=gw.migration.LossPolicy.LOAD)",
    "Checkpointing": "gw.Checkpointing(retain_epochs=100), say",
    "Lanes": 'gw.Lanes(compression="zstd"), say',
    "Sizing": "gw.Sizing(executors_timeout_s=300), say",
    "AdaptationSettings": "gw.control.Adaptation(fusion=gw.control.Fusion()), say",
    "Observability": "gw.Observability(metrics_port=0), say",
}


def _check_kind(what: str, value: object, kind: type) -> None:
    """Raise `InvalidFlowError` if a setting (`what`) is not an instance of `kind`."""
    if not isinstance(value, kind):
        raise InvalidFlowError(
            f"The {what} is of type {type_name(value)}.", remedy=f"Give {_EXAMPLES[kind.__name__]}."
        )


class Trigger(TypedDict, total=False):
    """Rule for the times at which epochs run: a dict with exactly one of the following keys.

    Pass it as ``flow.start(trigger=...)``; it means the same as a trigger of Spark's micro-batches.
    Without one, an epoch starts as soon as the last one has ended.

    Attributes
    ----------
    availableNow
        ``True``: process the input that is available at the start, in as many epochs as its limits
        need, then end the query.
    processingTime
        Minimum interval between the starts of epochs, such as ``"1 second"``.
    once
        ``True``: process the available input in one epoch, then end the query.

    Examples
    --------
    >>> trigger: gw.types.Trigger = {"processingTime": "1 second"}
    >>> query = flow.start(checkpoint="ck/", trigger=trigger)  # doctest: +SKIP
    """

    availableNow: bool
    processingTime: str
    once: bool


_EXAMPLE = 'Give {"availableNow": True} or {"processingTime": "1 second"}, or leave trigger out.'
_KINDS = ("availableNow", "processingTime", "once")
_NOT_HERE = {"continuous": "continuous processing", "realTime": "real-time mode"}


def checked_trigger(trigger: Any) -> Trigger | None:
    """Return a user's trigger; raise `InvalidFlowError` if it is not valid.

    The text of an interval is parsed later.
    """
    if trigger is None:
        return None
    if isinstance(trigger, str):
        name, value = ("processingTime", f'"{trigger}"')
        if did_you_mean(trigger, _KINDS):
            name, value = ("availableNow", "True")
        raise InvalidFlowError(
            f"The trigger of start is the text {trigger!r}.",
            remedy=f'Say which trigger it is, as in trigger={{"{name}": {value}}}.',
        )
    if not isinstance(trigger, Mapping):
        raise InvalidFlowError(
            f"The trigger of start is of type {type_name(trigger)}.", remedy=_EXAMPLE
        )
    for name in trigger:
        if name in _NOT_HERE:
            raise InvalidFlowError(
                f"The trigger {name!r} of start asks for {_NOT_HERE[name]}.",
                remedy=f"An epoch is a micro-batch: {_EXAMPLE[0].lower()}{_EXAMPLE[1:]}",
            )
        if name not in _KINDS:
            raise InvalidFlowError(
                f"There is no trigger {name!r}.",
                remedy=f"{did_you_mean(str(name), _KINDS)}Triggers are {listing(_KINDS)}.",
            )
    if len(trigger) != 1:
        raise InvalidFlowError(
            f"start was given {len(trigger)} triggers: {listing(list(trigger)) or 'none'}.",
            remedy=_EXAMPLE,
        )
    ((name, value),) = trigger.items()
    if name == "processingTime":
        if not isinstance(value, str):
            raise InvalidFlowError(
                f"The trigger processingTime of start is {value!r}, of type {type_name(value)}.",
                remedy='Give an interval as text, as in {"processingTime": "1 second"}.',
            )
        return {"processingTime": value}
    if value is not True:
        raise InvalidFlowError(
            f"The trigger {name} of start is {value!r}.",
            remedy=f'Give {{"{name}": True}}, or leave trigger out.',
        )
    return {"availableNow": True} if name == "availableNow" else {"once": True}


def is_bounded(trigger: Mapping[str, object] | None) -> bool:
    """Return whether a trigger ends the query with the available input."""
    return bool(trigger) and not {"availableNow", "once"}.isdisjoint(trigger or ())


def is_once(trigger: Mapping[str, object] | None) -> bool:
    """Return whether a trigger is ``once``: one epoch over the available input."""
    return "once" in (trigger or {})


def interval_s(trigger: Mapping[str, object] | None) -> float:
    """Return the trigger's interval in seconds; 0 if it has none.

    Raises `InvalidFlowError` if the interval is not a length of time.
    """
    text = (trigger or {}).get("processingTime")
    if text is None:
        return 0.0
    length_us = read_duration(str(text).strip().lower().removeprefix("interval "))
    if length_us is None or length_us < 0:
        raise InvalidFlowError(
            f"The trigger processingTime of start is {text!r}, which is not a length of time.",
            remedy='Give an interval such as "500 milliseconds", "1 second" or "2 minutes".',
        )
    return length_us / 1e6


def known_interval_s(trigger: Mapping[str, object] | None) -> float:
    """Return the trigger's interval in seconds; 0 also if only Spark can parse it."""
    with suppress(InvalidFlowError):
        return interval_s(trigger)
    return 0.0
