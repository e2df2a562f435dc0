"""Time limit for planners, and for the user's scaling models.

A function of the user's may never return, and Python cannot end a thread from outside.  It runs on
a thread of its own, which is waited for, and no longer than the limit.  Then an exception is raised
in that thread, which ends whatever is written in Python at its next instruction; again for a while,
since Python drops an exception that happens to land in a finalizer.  What hangs elsewhere (in a
call that waits, in a library that computes) continues by itself; until it has ended nothing else is
run, so that there is never more than one of them.

Invariants: the caller continues after the limit in real time, whatever its own clock says.  Nothing
is raised in a thread whose function has returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from typing import TYPE_CHECKING, Any, Generic

from godwit.control.interfaces import T

if TYPE_CHECKING:
    from collections.abc import Callable

_ATTEMPTS = 4
_GRACE_S = 0.05
"""Time that Python needs to raise an exception in another thread, with a margin."""


class _PlannerEnded(BaseException):
    """Ends a planner that runs for too long; no ``except Exception`` catches it."""


class PlannerThread:
    """Runner of one function at a time on a thread that can be abandoned."""

    def __init__(self) -> None:
        self._abandoned_call: _Call[Any] | None = None

    def __call__(self, plan: Callable[[], T], *, time_limit_s: float) -> T:
        """Call `plan`; return its result, or raise its error."""
        if self._abandoned_call is not None and not self._abandoned_call.interrupt():
            raise TimeoutError
        call = _Call(plan)
        if not call.has_ended_within(time_limit_s):
            self._abandoned_call = call
            call.interrupt()
            raise TimeoutError
        self._abandoned_call = None
        return call.result()


class _Call(Generic[T]):
    """A call of a function on a separate thread."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._results: list[T] = []
        self._failed: list[BaseException] = []
        self._ending_lock = threading.Lock()
        self._has_begun = False  # before, an exception raised in its thread would not be caught
        self._thread = threading.Thread(target=self._run_thread, name="godwit-planner", daemon=True)
        self._thread.start()

    def has_ended_within(self, seconds: float) -> bool:
        """Wait up to `seconds` for the planner's call to end; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> T:
        """Return the function's result, or raise its error."""
        if not self._failed:
            return self._results[0]
        error = self._failed[0]
        if isinstance(error, Exception):
            raise error
        # What would end a program ends nothing here but the planner.
        raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def interrupt(self) -> bool:
        """Raise an exception in the call's thread to end it; return whether it has ended."""
        _silence_finalizers()
        for _ in range(_ATTEMPTS):
            self._raise_in_thread()
            if self.has_ended_within(_GRACE_S):
                return True
        return False

    def _run_thread(self) -> None:
        """Call the function, and store its result or its error."""
        # An exception raised after the time limit is dropped.
        with contextlib.suppress(_PlannerEnded):
            try:
                self._has_begun = True
                returned = self._function()
                with self._ending_lock:
                    self._results.append(returned)
            except BaseException as error:  # noqa: BLE001  raised again where it was asked for
                with self._ending_lock:
                    self._failed.append(error)

    def _raise_in_thread(self) -> None:
        """Raise `_PlannerEnded` in the call's thread, if its function still runs."""
        with self._ending_lock:
            if self._has_begun and not self._results and not self._failed:
                identity = ctypes.c_ulong(self._thread.ident or 0)
                ended = ctypes.py_object(_PlannerEnded)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ended)


def _silence_finalizers() -> None:
    """Suppress Python's message about `_PlannerEnded` if it is raised in a finalizer.

    It stays installed, since the thread may get the exception at any later time.
    """
    former = sys.unraisablehook
    if former.__module__ == __name__:
        return

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        """Pass on messages about finalizers, except those about `_PlannerEnded`."""
        if unraisable.exc_type is not _PlannerEnded:
            former(unraisable)

    sys.unraisablehook = report


def run_without_limit(plan: Callable[[], T], *, time_limit_s: float) -> T:  # noqa: ARG001
    """Return the result of a planner, called in this thread without a time limit.

    For virtual time; `time_limit_s` is ignored.
    """
    try:
        return plan()
    except SystemExit as error:  # ends nothing but the planner
        raise RuntimeError(f"SystemExit: {error}") from error
