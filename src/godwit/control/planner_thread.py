"""Functions of others, run no longer than they may: planners, and scaling models of the user's.

Problem: a function of the user's may never return, and Python cannot end a thread from outside.

The idea: it runs on a thread of its own, which is waited for, and no longer than the limit.  Then
an exception is raised in that thread, which ends whatever is written in Python at its next
instruction.  What hangs elsewhere (in a call that waits, in a library that computes) goes on by
itself; until it has ended nothing else is run, so that there is never more than one of them.

Invariant: the caller goes on after the limit in real time, whatever its own clock says: planners
compute for real also where the world that they plan for is simulated.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from godwit.control.ports import T

__all__ = ["PlannerThread"]

_GRACE_S = 0.05
"""What Python needs to raise an exception in another thread, and then some."""


class _PlannerEnded(BaseException):
    """Raised in a planner that has taken too long; no ``except Exception`` keeps it."""


class PlannerThread:
    """Runs one function at a time on a thread that can be given up."""

    def __init__(self) -> None:
        self._given_up: threading.Thread | None = None

    def __call__(self, plan: Callable[[], T], *, time_limit_s: float) -> T:
        """See `godwit.control.PlannerRunner`."""
        if self._given_up is not None and self._given_up.is_alive():
            raise TimeoutError
        made: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                made.append(plan())
            except BaseException as error:  # noqa: BLE001  raised again where it was asked for
                failed.append(error)

        thread = threading.Thread(target=work, name="godwit-planner", daemon=True)
        thread.start()
        thread.join(time_limit_s)
        if thread.is_alive():
            _end(thread)
            thread.join(_GRACE_S)
            self._given_up = thread
            raise TimeoutError
        if failed:
            error = failed[0]
            if isinstance(error, Exception):
                raise error
            # What would end a program ends nothing here but the planner.
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        return made[0]


def _end(thread: threading.Thread) -> None:
    identity = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(_PlannerEnded))
