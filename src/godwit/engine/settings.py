"""Settings of lanes and their state, with defaults and checks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Literal

from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_class
from godwit.model.naming import insist_on_number, type_name

_INLINE_BYTES: Final = 16 * 2**10
_INLINE_BYTES_OF_ALL: Final = 128 * 2**10


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Settings of lanes and their state: ``flow.start(..., lanes=gw.Lanes(...))``.

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
        What one lane writes up to this size travels in the commit record and not as a file, which
        it would have to force to disk. ``None``: 128 KiB shared by the lanes of an epoch, and at
        least 16 KiB each, since every lane gets what all of them wrote last.
    compression
        Arrow IPC compression of changelog and staged output: ``None``, ``"lz4"`` or ``"zstd"``.
        Worth it for object stores; local disks are faster without.
    hot_keys
        Rows of a key that has this much of what a lane gets on average are combined before they
        are sent to its lane, where the operator can merge them; 0: only where combining pays for
        all keys. ``query.lastProgress["hotKeys"]`` names such keys.
    resident
        Lanes stay between small epochs, as tasks of one long Spark job, which saves each the start
        of a job. They hold their cores; one core of every executor is left for everything else, so
        an executor has a lane less than cores.

    Raises
    ------
    InvalidFlowError
        If a setting makes no sense.
    """

    local_dir: str | os.PathLike[str] | None = None
    snapshot_budget_bytes: int = 32 * 2**20
    snapshot_growth: float = 4.0
    inline_bytes: int | None = None
    compression: Literal["lz4", "zstd"] | None = None
    hot_keys: float = 0.1
    resident: bool = False

    def __post_init__(self) -> None:
        if self.local_dir is not None and not isinstance(self.local_path, str):
            raise InvalidFlowError(
                f"The setting local_dir of lanes is of type {type_name(self.local_dir)}.",
                remedy='Give a directory, as in local_dir="/var/lib/godwit".',
            )
        for name, least in (
            ("snapshot_budget_bytes", 1),
            ("snapshot_growth", 0),
            ("inline_bytes", 0),
            ("hot_keys", 0),
        ):
            if name == "inline_bytes" and self.inline_bytes is None:
                continue
            insist_on_number(
                f"The setting {name} of lanes",
                getattr(self, name),
                least=least,
                whole=name not in ("snapshot_growth", "hot_keys"),
                error=InvalidFlowError,
            )
        if not isinstance(self.resident, bool):
            raise InvalidFlowError(
                f"The setting resident of lanes is of type {type_name(self.resident)}.",
                remedy="Give True or False.",
            )
        if self.compression not in (None, "lz4", "zstd"):
            raise InvalidFlowError(
                f"The setting compression of lanes is {self.compression!r}.",
                remedy='Give None, "lz4" or "zstd".',
            )

    def inline_limit(self, lanes: int) -> int:
        """Bytes that each of so many lanes of an epoch may leave to the commit record."""
        if self.inline_bytes is not None:
            return self.inline_bytes
        return max(_INLINE_BYTES, _INLINE_BYTES_OF_ALL // max(lanes, 1))

    @property
    def local_path(self) -> str | None:
        """Directory for local stores, as text."""
        return os.fspath(self.local_dir) if isinstance(self.local_dir, str | os.PathLike) else None
