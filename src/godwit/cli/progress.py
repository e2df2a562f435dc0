"""How far a verification is: a bar on a terminal, a line now and then anywhere else.

`godwit.checkpoint.verification` knows nothing of people, so it is watched from outside: through the
storage that it reads from.  What there is to read is counted beforehand from the records, which are
small; if they are damaged the total is unknown, and progress is told without it.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from godwit.checkpoint.commit_log import CommitLog
from godwit.checkpoint.records import padded
from godwit.checkpoint.verification import verify
from godwit.model.errors import GodwitError
from godwit.model.wording import human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from rich.console import Console

    from godwit.checkpoint.storage import CheckpointStorage
    from godwit.checkpoint.verification import VerificationReport

__all__ = ["Bar", "Lines", "Watcher", "verify_watched", "watcher_on"]

_LINE_EVERY_S = 5.0


class Watcher(Protocol):
    """Who is told how far a verification is."""

    def begin(self, blocks: int | None, size_bytes: int | None) -> None:
        """Take what there is to check; None if that cannot be told."""

    def advance(self, size_bytes: int) -> None:
        """Take note that one more block was read."""


def verify_watched(storage: CheckpointStorage, watcher: Watcher) -> VerificationReport:
    """Verify a checkpoint and tell `watcher` of every block that is read for it."""
    watcher.begin(*_blocks_to_read(storage))
    return verify(cast("CheckpointStorage", _WatchedStorage(storage, watcher.advance)))


def watcher_on(console: Console) -> AbstractContextManager[Watcher]:
    """Return a bar on a terminal, and otherwise lines."""
    return Bar(console) if console.is_terminal else nullcontext(Lines(console))


class Lines:
    """A line every few seconds, so that a log tells a slow verification from one that hangs.

    Parameters
    ----------
    console
        Where to print.
    clock
        Seconds, from any start.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._count = _Count()
        self._told_s = clock()

    def begin(self, blocks: int | None, size_bytes: int | None) -> None:
        """Take the totals."""
        self._count = _Count(blocks, size_bytes)

    def advance(self, size_bytes: int) -> None:
        """Count a block; print a line if the last one is some time ago."""
        self._count.add(size_bytes)
        now_s = self._clock()
        if now_s - self._told_s >= _LINE_EVERY_S:
            self._told_s = now_s
            self._console.print(Text(f"verified {self._count}"), soft_wrap=True)


class Bar:
    """A bar that is gone when the verification is over."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("verifying"),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("reading records", total=None)
        self._count = _Count()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, blocks: int | None, size_bytes: int | None) -> None:
        """Take the totals."""
        self._count = _Count(blocks, size_bytes)
        self._progress.update(self._task, total=size_bytes)

    def advance(self, size_bytes: int) -> None:
        """Count a block."""
        self._count.add(size_bytes)
        self._progress.update(self._task, advance=size_bytes, description=str(self._count))


class _Count:
    def __init__(self, blocks: int | None = None, size_bytes: int | None = None) -> None:
        self._of_blocks = "" if blocks is None else f" of {blocks}"
        self._of_bytes = "" if size_bytes is None else f" of {human_bytes(size_bytes)}"
        self._blocks = self._bytes = 0

    def add(self, size_bytes: int) -> None:
        self._blocks += 1
        self._bytes += size_bytes

    def __str__(self) -> str:
        return f"blocks {self._blocks}{self._of_blocks}, {human_bytes(self._bytes)}{self._of_bytes}"


class _WatchedStorage:
    """A storage that reports every part of a file that is read from it, found or not."""

    def __init__(self, storage: CheckpointStorage, on_part: Callable[[int], None]) -> None:
        self._storage = storage
        self._on_part = on_part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> pa.Buffer:
        try:
            return self._storage.read(path, offset, length)
        finally:
            if length is not None:  # records are read as a whole
                self._on_part(length)


def _blocks_to_read(storage: CheckpointStorage) -> tuple[int | None, int | None]:
    """Count the blocks that the retained epochs need, and their bytes."""
    try:
        log = CommitLog.open_read_only(storage)
        retained = log.retained_epochs
        blocks = set(log.replay(retained.start).blocks()) if retained else set()
        for epoch in retained:
            blocks.update(log.load(epoch).blocks())
    except GodwitError:  # what is wrong is for the verification to say
        return None, None
    sizes = [padded(block.length) for block in blocks if block.file and not block.data]
    return len(sizes), sum(sizes)
