"""What a user may set of how lanes read and write state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from godwit.model.checks import insist_on_number
from godwit.model.errors import InvalidFlowError

__all__ = ["LaneSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """Settings that an `Instructor` passes on to lanes.

    Attributes
    ----------
    local_dir
        Directory for local stores on every executor; by default the executor's own Spark
        directory. What is in it may vanish at any time.
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
    hot_keys
        Rows of a key that has this much of what a lane gets on average are combined before they are
        sent, whatever becomes of others; 0: of none.

    Raises
    ------
    InvalidFlowError
        If a setting makes no sense.
    """

    local_dir: str | None = None
    snapshot_budget_bytes: int = 32 * 2**20
    snapshot_growth: float = 4.0
    inline_bytes: int = 16 * 2**10
    compression: Literal["lz4", "zstd"] | None = None
    hot_keys: float = 0.1

    def __post_init__(self) -> None:
        for name, least in (
            ("snapshot_budget_bytes", 1),
            ("snapshot_growth", 0),
            ("inline_bytes", 0),
            ("hot_keys", 0),
        ):
            insist_on_number(
                f"The option {name} of start",
                getattr(self, name),
                least=least,
                whole=name not in ("snapshot_growth", "hot_keys"),
                error=InvalidFlowError,
            )
        if self.compression not in (None, "lz4", "zstd"):
            raise InvalidFlowError(
                f"The option compression of start is {self.compression!r}.",
                remedy='Give None, "lz4" or "zstd".',
            )
