"""What a user may set when a flow is started, with the defaults and the checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from godwit.migration.strategy import Policy
from godwit.model.errors import InvalidFlowError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from godwit.model.assignment import Assignment
    from godwit.state.disk import Access

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `godwit.spark.flow.Flow.start`, which explains them.

    Attributes
    ----------
    checkpoint
        Directory of the checkpoint: a path, or a URI that both ``pyarrow.fs`` and Spark open.
        Starting again from it resumes the flow.
    trigger
        Keyword arguments of ``DataStreamWriter.trigger``, such as ``{"availableNow": True}`` or
        ``{"processingTime": "1 second"}``; by default epochs follow each other at once.
    executors
        Executors to wait for before the first epoch, at most `executors_timeout_s` seconds.
    executors_timeout_s
        Seconds.
    assignments
        Component → assignment to begin a new checkpoint with; the others are dealt out evenly. A
        checkpoint that is resumed goes on with its own.
    local_dir
        Directory for local stores on every executor; by default the executor's own Spark
        directory. What is in it may vanish at any time.
    policy
        What happens to key groups of an executor that dies, and more.
    retain_epochs
        Epochs whose state stays readable by ``read_state(epoch=...)``.
    snapshot_budget_bytes
        State rewritten as snapshots in one epoch, at most (one key group always may).
    snapshot_growth
        A snapshot is due when reading the changelog costs this many times what reading the
        snapshot costs: larger writes less, smaller recovers and migrates faster.
    inline_bytes
        What one lane writes up to this size travels in the commit record and not as a file.
    compression
        Arrow IPC compression of changelog and staged output: ``None``, ``"lz4"`` or ``"zstd"``.
        Worth it for object stores; local disks are faster without.
    name
        Name of the Spark query; by default the flow's.
    access
        Who may read the checkpoint on a local disk: ``"owner"`` (0700, 0600), or ``"umask"`` for
        whomever the umask lets, as where executors run as another user than the driver.
    single_driver
        Vouches that no second driver can ever be started on this checkpoint. Needed only on stores
        where a file cannot be created only if there is none.
    """

    checkpoint: str
    trigger: Mapping[str, object] | None = None
    executors: int = 1
    executors_timeout_s: float = 60.0
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    local_dir: str | None = None
    policy: Policy = field(default_factory=Policy)
    retain_epochs: int = 10
    snapshot_budget_bytes: int = 32 * 2**20
    snapshot_growth: float = 4.0
    inline_bytes: int = 16 * 2**10
    compression: Literal["lz4", "zstd"] | None = None
    name: str | None = None
    access: Access = "owner"
    single_driver: bool = False

    def __post_init__(self) -> None:
        for name, least in (
            ("executors", 1),
            ("executors_timeout_s", 0),
            ("retain_epochs", 1),
            ("snapshot_budget_bytes", 1),
            ("inline_bytes", 0),
        ):
            value = getattr(self, name)
            if value < least:
                raise InvalidFlowError(
                    f"The option {name} of start is {value!r}.", remedy=f"Give at least {least}."
                )
        if not self.checkpoint:
            raise InvalidFlowError(
                "The flow is started without a checkpoint.",
                remedy='Give a directory, as in flow.start(checkpoint="checkpoints/delays").',
            )
        if self.access not in ("owner", "umask"):
            raise InvalidFlowError(
                f"The option access of start is {self.access!r}.",
                remedy='Give "owner" or "umask".',
            )
        if self.compression not in (None, "lz4", "zstd"):
            raise InvalidFlowError(
                f"The option compression of start is {self.compression!r}.",
                remedy='Give None, "lz4" or "zstd".',
            )
