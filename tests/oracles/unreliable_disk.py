"""A disk that stops at a chosen call, half-way through if it is a write, and may forget.

After the stop nothing works any more, as after the death of a process, so no clean-up runs.  `lose`
then does what a loss of power is allowed to do: whatever was not made durable may be gone, each
change on its own, in any combination.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from godwit.checkpoint.storage import PosixDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random


class StoppedError(Exception):
    """The process that used the disk is dead."""


class UnreliableDisk(PosixDisk):
    def __init__(self, graveyard: Path, *, stop_at: int | None = None) -> None:
        self.calls = 0
        self.stop_at = stop_at
        self.stopped = False
        self._graveyard = graveyard
        self._open: dict[int, Path] = {}
        self._unsynced_bytes: dict[Path, int] = {}
        self._unsynced_names: list[tuple[Path, Callable[[], None]]] = []

    def create(self, path: Path) -> int:
        self._step()
        descriptor = super().create(path)
        self._open[descriptor] = path
        self._unsynced_bytes[path] = 0
        self._changed(path, lambda: path.unlink(missing_ok=True))
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> int:
        try:
            self._step()
        except StoppedError:
            if not self._stopped_before:
                os.write(descriptor, data[: len(data) // 2])
            raise
        return super().write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        self._step()
        self._unsynced_bytes.pop(self._open[descriptor])

    def close(self, descriptor: int) -> None:
        if descriptor in self._open:
            del self._open[descriptor]
            super().close(descriptor)
        if self.stopped:
            raise StoppedError

    def link(self, source: Path, target: Path) -> None:
        self._step()
        super().link(source, target)
        self._changed(target, lambda: target.unlink(missing_ok=True))

    def replace(self, source: Path, target: Path) -> None:
        raise NotImplementedError("nothing of a checkpoint is ever replaced")

    def unlink(self, path: Path) -> None:
        self._step()
        kept = self._graveyard / f"{self.calls}-{path.name}"
        kept.hardlink_to(path)
        super().unlink(path)
        self._changed(path, lambda: restore(kept, path))

    def make_directory(self, path: Path) -> None:
        self._step()
        super().make_directory(path)
        self._changed(path, path.rmdir)

    def sync_directory(self, path: Path) -> None:
        self._step()
        self._unsynced_names = [(p, undo) for p, undo in self._unsynced_names if p.parent != path]

    def lose(self, random: Random) -> None:
        """Lose some of what was not durable when the power went."""
        for path in self._unsynced_bytes:
            if path.exists():
                os.truncate(path, random.randint(0, path.stat().st_size))
        for _, undo in reversed(self._unsynced_names):
            if random.random() < 0.5:
                undo()

    def _changed(self, path: Path, undo: Callable[[], None]) -> None:
        self._unsynced_names.append((path, undo))

    def _step(self) -> None:
        self._stopped_before = self.stopped
        self.stopped = self.stopped or self.calls == self.stop_at
        if self.stopped:
            raise StoppedError
        self.calls += 1


def restore(kept: Path, path: Path) -> None:
    if not path.exists():
        path.hardlink_to(kept)
