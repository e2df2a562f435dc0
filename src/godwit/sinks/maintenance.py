"""Maintenance of a sink's table: small files are compacted, old versions are removed.

Invariant: maintenance changes no row, and nothing by which a sink finds its epochs.  Each step is
one commit to the table or deletes only files that no version of it names any more, so it may end
anywhere, and another writer's commit makes a step give up, not the writer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from godwit.model.errors import SinkError
from godwit.model.frames import user_class
from godwit.time.durations import seconds

if TYPE_CHECKING:
    from godwit.time.durations import Duration

_MIN_BYTES = 2**20


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """Policy by which a Delta or Iceberg sink maintains its table, beside the epochs.

    Attributes
    ----------
    max_small_files
        Number of small files in a partition above which they are compacted.
    file_bytes
        Size of a compacted file; a file of less than half of it is small.
    retain
        Age at which versions of the table are removed, with the files that only they have;
        ``None``: never. Readers of the table's changes, roll-backs and time travel need versions:
        choose more than the longest pause of any of them.
    every
        Time from one look at the table to the next.

    Raises
    ------
    SinkError
        If a number is too small.
    InvalidControlError
        If a duration is none.

    Notes
    -----
    - **Exactly-once** stays: compaction is a commit that changes no row.
    - **Readers of changes** skip it (``dataChange`` false in Delta, the operation ``replace`` in
      Iceberg). But a reader that was away for longer than ``retain`` misses its version, and a
      roll-back past it is refused: choose ``retain`` longer than either.
    - **Other writers.** If one replaces the files meanwhile, the compaction gives up until the next
      look. Failures are events (``BackgroundFailed``); ``TargetMaintained`` has the result.

    Examples
    --------
    >>> weekly = gw.sinks.Maintenance(max_small_files=100, retain="7 days")
    >>> gw.sinks.delta("s3://bucket/by_plane", maintain=weekly)
    gw.sinks.delta('s3://bucket/by_plane', mode='append')
    """

    max_small_files: int = 64
    file_bytes: int = 128 * 2**20
    retain: Duration | None = "7 days"
    every: Duration = "10 minutes"

    def __post_init__(self) -> None:
        for name, least in (("max_small_files", 1), ("file_bytes", _MIN_BYTES)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise SinkError(
                    f"The setting {name} of gw.sinks.Maintenance is {value!r}.",
                    remedy=f"Give a whole number of at least {least}.",
                )
        _ = self.every_s, self.retain_s

    @property
    def every_s(self) -> float:
        """Seconds from one look at the table to the next.

        Examples
        --------
        >>> gw.sinks.Maintenance(every="1 hour").every_s
        3600.0
        """
        return seconds(self.every, "every of gw.sinks.Maintenance")

    @property
    def retain_s(self) -> float | None:
        """Age in seconds at which versions are removed; ``None``: never.

        Examples
        --------
        >>> gw.sinks.Maintenance(retain="1 day").retain_s
        86400.0
        """
        if self.retain is None:
            return None
        return seconds(self.retain, "retain of gw.sinks.Maintenance", least_s=0.0)

    def is_small(self, size_bytes: int) -> bool:
        """Return whether a file is small.

        Examples
        --------
        >>> gw.sinks.Maintenance(file_bytes=2**21).is_small(2**20)
        False
        """
        return size_bytes < self.file_bytes // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """Result of a look at a table."""

    compacted: int = 0  # small files that were replaced
    written: int = 0  # files that replace them
    removed: int = 0  # files that were deleted with the versions that had them
    expired: int = 0  # versions that were removed

    def __bool__(self) -> bool:
        return any((self.compacted, self.written, self.removed, self.expired))

    def plus(self, other: Maintained) -> Maintained:
        """Return the sum of both."""
        return replace(
            self,
            compacted=self.compacted + other.compacted,
            written=self.written + other.written,
            removed=self.removed + other.removed,
            expired=self.expired + other.expired,
        )


def check_maintenance(sink: str, maintain: object) -> None:
    """Raise `SinkError` unless an option `maintain` of a sink is a policy or ``None``."""
    if maintain is not None and not isinstance(maintain, Maintenance):
        raise SinkError(
            f"The {sink} sink was given maintain={maintain!r}.",
            remedy="Give gw.sinks.Maintenance(...), or leave it out.",
        )
