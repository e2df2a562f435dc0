"""Settings of lanes and their state, with defaults and checks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Literal

from godwit.model.errors import InvalidFlowError
from godwit.model.frames import user_class
from godwit.model.locations import check_location, is_uri
from godwit.model.naming import check_number, type_name
from godwit.model.secrets import shown_uri
from godwit.model.text import read_bytes

_INLINE_BYTES: Final = 16 * 2**10
_INLINE_BYTES_OF_ALL: Final = 128 * 2**10


@user_class
@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Settings of lanes (the parallel tasks of operators) and of their state.

    Pass it as ``flow.start(lanes=...)``.

    Attributes
    ----------
    local_dir
        Directory for local stores on every executor; by default the executor's Spark directory.
        Local stores are caches: deleting them loses no state.
    snapshot_budget_bytes
        Maximum bytes of state that one epoch rewrites as snapshots (complete copies of a key
        group's state); at least one snapshot is written even if it is larger.
    snapshot_growth
        A new snapshot of a key group is due when reading its changelog (the changes since the last
        snapshot) costs this many times as much as reading the last snapshot, or reads a file from
        before the latest changes of all key groups that have this many times the bytes of all
        snapshots. With a larger value less is written; with a smaller one, recovery and migrations
        are faster, and the checkpoint is smaller.
    inline_bytes
        Maximum size of a lane's changelog and output of an epoch up to which they are stored in the
        commit record instead of a file of their own, which saves an fsync. ``None``: 128 KiB
        divided by the number of lanes, at least 16 KiB, because this data is sent to every lane in
        the next epoch.
    compression
        Arrow IPC compression of changelog and staged output: ``None``, ``"lz4"`` or ``"zstd"``.
        Useful on object stores; local disks are faster without compression.
    hot_keys
        Share of a lane's average number of rows, from which on the rows of a key are combined
        before the exchange (shuffle), if the operator can merge partial states. 0: they are
        combined only if that pays for all keys. ``query.lastProgress["hotKeys"]`` lists such keys.
    resident
        Whether lanes stay alive between small epochs, as tasks of one long Spark job, which saves
        starting a job per epoch. They occupy task slots meanwhile, but for one slot of every
        executor. ``"auto"``: once many small epochs follow one another, as long as no other job
        of the session waits for task slots. ``True``: between all small epochs; the start fails
        if that is impossible. ``False``: never.
    restore
        State that lanes read before their first rows after a restart or the loss of an executor.
        ``"touched"``: if much is missing, the state of the keys of these rows; later epochs read
        the rest, and take longer until then. ``"whole"``: all state of these keys' key groups.
    state_memory
        Maximum size of the tables of state on an executor, divided equally among its lanes: bytes,
        or a text such as ``"2g"``. Entries of keys without rows leave the tables for the
        checkpoint, and are read from there when rows of these keys come. An epoch that needs more
        at once fails with a `StateMemoryError`. ``None``: no maximum.

    Raises
    ------
    InvalidFlowError
        If a setting has a wrong value.

    Notes
    -----
    - *What it covers.* The blocks of the tables' files in the local store, which processes map. Not
      what an epoch computes with, nor memory that the kernel takes back when a container reaches
      its limit: pages of the checkpoint's files, and an index of them with 8 bytes a stored entry.
      A Python process also remembers which keys it has fetched, in 16 to 32 bytes each. On a tmpfs
      files are memory, so put the local store on a disk. A live migration brings whole key groups,
      which come on top until they have changed their owner.
    - *When it does not hold.* As for restarts, the checkpoint must be on a disk of the machine, and
      an operator must need the state of its rows' keys alone; ``restore`` must stay as it is. Other
      operators need all state of the key groups that have rows, and so do epochs in which windows
      close or timers are due. An epoch that needs more at once than a lane's share fails with a
      ``StateMemoryError``, which names the operator; a warning at the start says where this may
      happen.

    Examples
    --------
    >>> gw.Lanes(resident=True, local_dir="/mnt/nvme/godwit").resident
    True
    """

    local_dir: str | os.PathLike[str] | None = None
    snapshot_budget_bytes: int = 32 * 2**20
    snapshot_growth: float = 4.0
    inline_bytes: int | None = None
    compression: Literal["lz4", "zstd"] | None = None
    hot_keys: float = 0.1
    resident: bool | Literal["auto"] = "auto"
    restore: Literal["touched", "whole"] = "touched"
    state_memory: int | str | None = None

    def __post_init__(self) -> None:
        if self.local_dir is not None and not isinstance(self.local_path, str):
            raise InvalidFlowError(
                f"The setting local_dir of lanes is of type {type_name(self.local_dir)}.",
                remedy='Give a directory, as in local_dir="/var/lib/godwit".',
            )
        if self.local_path is not None:
            check_location(self.local_path, InvalidFlowError)
            if is_uri(self.local_path):
                raise InvalidFlowError(
                    f"The setting local_dir of lanes is {shown_uri(self.local_path)!r}, a URI.",
                    remedy="Give the path of a directory on the executors' own disks.",
                )
        for name, minimum in (
            ("snapshot_budget_bytes", 1),
            ("snapshot_growth", 0),
            ("inline_bytes", 0),
            ("hot_keys", 0),
        ):
            if name == "inline_bytes" and self.inline_bytes is None:
                continue
            check_number(
                f"The setting {name} of lanes",
                getattr(self, name),
                least=minimum,
                whole=name not in ("snapshot_growth", "hot_keys"),
                error=InvalidFlowError,
            )
        if not isinstance(self.resident, bool) and self.resident != "auto":
            raise InvalidFlowError(
                f"The setting resident of lanes is {self.resident!r}.",
                remedy='Give "auto", True or False.',
            )
        if self.compression not in (None, "lz4", "zstd"):
            raise InvalidFlowError(
                f"The setting compression of lanes is {self.compression!r}.",
                remedy='Give None, "lz4" or "zstd".',
            )
        if self.restore not in ("touched", "whole"):
            raise InvalidFlowError(
                f"The setting restore of lanes is {self.restore!r}.",
                remedy='Give "touched" or "whole".',
            )
        if self.state_memory is not None and not read_bytes(self.state_memory):
            raise InvalidFlowError(
                f"The setting state_memory of lanes is {self.state_memory!r}.",
                remedy='Give a number of bytes, or a size such as "512m" or "2g".',
            )

    def inline_limit(self, lanes: int) -> int:
        """Return the number of bytes up to which a lane's data goes into the commit record.

        More goes to a file; see `inline_bytes`.

        Parameters
        ----------
        lanes
            Number of lanes of the epoch.

        Examples
        --------
        >>> gw.Lanes().inline_limit(4), gw.Lanes(inline_bytes=1024).inline_limit(4)
        (32768, 1024)
        """
        if self.inline_bytes is not None:
            return self.inline_bytes
        return max(_INLINE_BYTES, _INLINE_BYTES_OF_ALL // max(lanes, 1))

    @property
    def state_memory_bytes(self) -> int:
        """The setting `state_memory` in bytes; 0: no maximum.

        Examples
        --------
        >>> gw.Lanes(state_memory="512m").state_memory_bytes
        536870912
        """
        return 0 if self.state_memory is None else read_bytes(self.state_memory) or 0

    @property
    def local_path(self) -> str | None:
        """The setting `local_dir` as text; ``None``: each executor's Spark directory.

        Examples
        --------
        >>> from pathlib import Path
        >>> gw.Lanes(local_dir=Path("/mnt/nvme")).local_path
        '/mnt/nvme'
        """
        return os.fspath(self.local_dir) if isinstance(self.local_dir, str | os.PathLike) else None
