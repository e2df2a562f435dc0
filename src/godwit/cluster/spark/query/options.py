"""What a user may set when a flow is started, with the defaults and the checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from godwit.adapt.fusing import Fusion
from godwit.adapt.settings import Control
from godwit.adapt.splitting import Splitting
from godwit.engine.settings import LaneSettings
from godwit.migration.strategy import Policy
from godwit.model.assignment import Assignment
from godwit.model.checks import insist_on_number
from godwit.model.errors import InvalidFlowError
from godwit.sinks.continuity import WAYS

if TYPE_CHECKING:
    from godwit.checkpoint.storage import Access
    from godwit.sinks.continuity import OnDivergence

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `Flow.start`, checked; that says what each of them means.

    Attributes
    ----------
    checkpoint, name, access, single_driver, retain_epochs
        The checkpoint: where, for which query, who may read it, who else may write it, how much of
        its past stays readable.
    trigger, executors, executors_timeout_s, assignments, policy
        How the run goes: when epochs run, how many executors it waits for and how long, where key
        groups begin, what becomes of those whose executor dies.
    lanes
        How lanes read and write state.
    close_at_end
        Whether windows that are open come out once a bounded input has ended.
    components, fusion, splitting
        Which operators share one, how more of them come to, and where windows are consolidated.
    on_divergence
        What becomes of a sink whose target does not go on from the checkpoint.
    metrics_port, metrics_host
        Where metrics are served, if anywhere.
    control
        Settings of the controller, if there is one.
    """

    checkpoint: str
    trigger: Mapping[str, object] | None = None
    executors: int = 1
    executors_timeout_s: float = 60.0
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    retain_epochs: int = 10
    lanes: LaneSettings = field(default_factory=LaneSettings)
    name: str | None = None
    access: Access = "owner"
    single_driver: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    control: Control | None = None
    close_at_end: bool = False
    components: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fusion: Fusion | None = None
    splitting: Splitting | None = None
    on_divergence: OnDivergence = "refuse"

    def __post_init__(self) -> None:
        for name, least in (("executors", 1), ("executors_timeout_s", 0), ("retain_epochs", 1)):
            insist_on_number(
                f"The option {name} of start",
                getattr(self, name),
                least=least,
                whole=name != "executors_timeout_s",
                error=InvalidFlowError,
            )
        if self.control is not None and not isinstance(self.control, Control):
            raise InvalidFlowError(
                f"The option control of start is {self.control!r}.",
                remedy="Give a gw.Control, as in control=gw.Control(period=10).",
            )
        if self.fusion is not None and not isinstance(self.fusion, Fusion):
            raise InvalidFlowError(
                f"The option fusion of start is {self.fusion!r}.",
                remedy='Give a gw.Fusion, as in fusion=gw.Fusion(by="traffic").',
            )
        if self.splitting is not None and not isinstance(self.splitting, Splitting):
            raise InvalidFlowError(
                f"The option splitting of start is {self.splitting!r}.",
                remedy="Give a gw.Splitting, as in "
                'splitting=gw.Splitting(max_latency="500 milliseconds").',
            )
        port = self.metrics_port
        if port is not None and not (type(port) is int and 0 <= port < 2**16):
            raise InvalidFlowError(
                f"The option metrics_port of start is {port!r}.",
                remedy="Give a port from 1 to 65535, or 0 for any that is free.",
            )
        if not self.checkpoint:
            raise InvalidFlowError(
                "The flow is started without a checkpoint.",
                remedy='Give a directory, as in flow.start(checkpoint="checkpoints/delays").',
            )
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise InvalidFlowError(
                f"The option name of start is {self.name!r}.",
                remedy="Give the query a name, or leave it out: then it has the flow's.",
            )
        self._check_kinds()
        ways = self.on_divergence
        for way in ways.values() if isinstance(ways, Mapping) else (ways,):
            if way not in WAYS:
                raise InvalidFlowError(
                    f"The option on_divergence of start is {ways!r}.",
                    remedy='Give "refuse", "roll_back" or "new_writer", or sink → one of them, as '
                    'in on_divergence={"by_plane": "roll_back"}.',
                )
        if self.access not in ("owner", "umask"):
            raise InvalidFlowError(
                f"The option access of start is {self.access!r}.",
                remedy='Give "owner" or "umask".',
            )

    def _check_kinds(self) -> None:
        if not isinstance(self.assignments, Mapping):
            raise InvalidFlowError(
                f"The option assignments of start is of type {type(self.assignments).__name__}.",
                remedy='Give component → assignment, as in assignments={"by_plane": assignment}.',
            )
        kinds: tuple[tuple[str, object, type, str], ...] = (
            ("policy", self.policy, Policy, "gw.Policy(on_loss=gw.LossPolicy.LOAD)"),
            ("single_driver", self.single_driver, bool, "True or False"),
            ("close_at_end", self.close_at_end, bool, "True or False"),
            ("metrics_host", self.metrics_host, str, 'an address, such as "127.0.0.1"'),
            *(
                (f"assignments[{name!r}]", given, Assignment, "a gw.Assignment")
                for name, given in self.assignments.items()
            ),
        )
        for name, value, kind, example in kinds:
            if not isinstance(value, kind):
                raise InvalidFlowError(
                    f"The option {name} of start is of type {type(value).__name__}.",
                    remedy=f"Give {example}.",
                )
