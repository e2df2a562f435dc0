"""Run one command that must not outlive its parent: ``python guarded.py COMMAND [ARGUMENT ...]``.

A process that is killed by SIGKILL can tidy nothing up, so its children have to notice.  This small
process stands between: it holds the read end of a pipe whose only writer is the parent.  When the
parent is gone, however it went, the pipe ends, and so does the command, with everything that it
started and left behind.

A file of its own that imports nothing but the standard library, because it is started once for
every process of a cluster (``python -I -S``, some 15 ms).
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 5.0


def main(command: list[str]) -> int:
    """Run `command` until it ends or standard input does; return its exit status."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the command leaves behind becomes ours
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # only to wake the loop
    child = subprocess.Popen(  # noqa: S603  the parent's own command
        command,
        stdin=subprocess.DEVNULL,
        preexec_fn=_die_with_parent,  # noqa: PLW1509  there is one thread here
    )
    while child.poll() is None:
        ready, _, _ = select.select([0, wake_read], [], [])
        told = os.read(wake_read, 64) if wake_read in ready else b""
        if 0 in ready or signal.SIGTERM in told:
            _end(child)
    for orphan in _children():
        with suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _end(child: subprocess.Popen[bytes]) -> None:
    """Terminate a process; kill it if it does not end in time."""
    child.terminate()
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _children() -> list[int]:
    """Process ids of this process's children."""
    pid = os.getpid()
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:  # not Linux: the command had its chance to tidy up
        return []
    return [int(child) for child in listed.split()]


def _die_with_parent() -> None:
    """Have Linux kill this process when its parent dies."""
    # Should this process itself be killed, the kernel ends the command.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
