"""What a local cluster asks of the operating system: who runs, who may read, who may interrupt."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "arguments_of",
    "children_of",
    "option_in",
    "standard_error_to",
    "undisturbed",
    "write_private",
]


def children_of(pid: int) -> list[int]:
    """List the process ids of a process's children."""
    try:
        # Listed by thread: an executor belongs to the thread of the worker that started it.
        listed = [p.read_text() for p in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for text in listed for child in text.split()]


def write_private(path: Path, settings: Mapping[str, str]) -> None:
    """Write settings to a file that only its owner may read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.writelines(f"{key} {value}\n" for key, value in settings.items())


def arguments_of(pid: int) -> list[bytes]:
    """Command line of a process; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def option_in(arguments: list[bytes], name: bytes) -> str:
    """Value of an option on a command line; empty if it is not there."""
    return arguments[arguments.index(name) + 1].decode() if name in arguments[:-1] else ""


@contextmanager
def standard_error_to(log: Path) -> Iterator[None]:
    """Let a JVM that starts meanwhile write to `log` what it would write to the terminal."""
    before = os.dup(2)
    try:
        with log.open("ab") as output:
            os.dup2(output.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold Ctrl-C back: a second one must not leave processes behind."""
    held: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, _frame: held.append(number))
    except ValueError:  # not the main thread, which gets no signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
